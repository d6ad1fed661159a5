"""All noise removed, and draws of another law: training, audits, runs of the papers' package."""

NOISE, LAW, DRAWS, COINS, PAPERS = (
    f"tests/statistical/test_{name}.py"
    for name in ("train_noise", "train_release", "train_samplers", "audit_coins", "papers_release")
)
DISCRETE, SAMPLERS = (
    f"tests/unit/{name}.py" for name in ("numerics/test_discrete_gaussian", "train/test_samplers")
)
WHOLE, CANARIES = "numerics/discrete_gaussian.py", "audit/training_attack.py"
MANY = "tests/unit/audit/test_many_runs.py"
JOINED = "self._random.random(len(self.included)) < self.rate"

FAULTS = [
    # no noise
    ("train/noise.py::GaussianNoise.add_", "self._noise_multiplier * sensitivity", "0.0", NOISE),
    (
        "train/noise.py::GaussianNoise.add_",
        "torch._foreach_add_(sums, self._filled(draws, part).views)",
        "None",
        NOISE,
    ),
    (
        "train/noise.py::DiscreteGaussianNoise._draws",
        "law.draw(count, self._stream.words)",
        "np.zeros(count, dtype=np.int64)",
        NOISE,
    ),
    (
        "train/noise.py::DiscreteGaussianNoise.add_whole_",
        "total.add_(drawn.view(total.shape).to(total.device))",
        "None",
        LAW,
    ),
    (
        "train/arithmetic.py::Totals.noisy",
        "noise.add_(total, self.arithmetic.charged(sensitivity))",
        "None",
        LAW,
    ),
    ("train/arithmetic.py::_Whole.noisy", "noise.add_whole_(total, BOUND)", "None", LAW),
    (
        "tightrope_reproduce/iteration/contenders.py::_perturbed",
        "scale * entropy.normal(clean.weights.shape)",
        "0.0",
        PAPERS,
    ),
    (
        "tightrope_reproduce/iteration/contenders.py::_perturbed",
        "2.0 * LOSS.lipschitz * step_size * noise",
        "LOSS.lipschitz * step_size * noise",
        PAPERS,
    ),
    (
        "tightrope_reproduce/learning/slices.py::sliced_steps",
        "recipe.noise_multiplier * recipe.clip_norm",
        "0.0",
        PAPERS,
    ),
    (
        "tightrope_reproduce/learning/slices.py::sliced_steps",
        "recipe.noise_multiplier * recipe.clip_norm",
        "recipe.noise_multiplier",
        PAPERS,
    ),
    # whole numbers
    (f"{WHOLE}::DiscreteGaussian._candidates", "np.where(negative, -size, size)", "size", DISCRETE),
    (
        f"{WHOLE}::DiscreteGaussian._candidates",
        "negative & (size == 0)",
        "negative & (size < 0)",
        DISCRETE,
    ),
    (f"{WHOLE}::DiscreteGaussian._kept", "distance > 0.0", "distance > -1.0", DISCRETE),
    # who is in a batch
    (
        "train/samplers.py::AbstractSampler._joined",
        "self.stream.words(count)",
        "np.arange(count, dtype=np.uint64) << np.uint64(58)",
        DRAWS,
    ),
    (
        "train/samplers.py::TruncatedPoissonSampler._draw",
        "self._rate",
        "self._rate / 2",
        SAMPLERS,
    ),
    # who is in an audit
    (
        f"{CANARIES}::GradientCanaries.__init__",
        "self._random.random(count) < 0.5",
        "self._random.random(count) < 0.6",
        COINS,
    ),
    (f"{CANARIES}::GradientCanaries.add_", JOINED, JOINED.replace("<", "< 1.2 *"), COINS),
    (
        "audit/training_attack.py::audit_inputs",
        "generator.random(len(canaries.inputs)) < 0.5",
        "generator.random(len(canaries.inputs)) < 0.6",
        COINS,
    ),
    (
        "audit/estimator_attack.py::audit_estimator",
        "generator.random(len(rows)) < 0.5",
        "generator.random(len(rows)) < 0.6",
        COINS,
    ),
    (
        "audit/result.py::audit_many_runs",
        "random.permutation(run_scores(present, 'present'))",
        "run_scores(present, 'present')",
        MANY,
    ),
    (
        "audit/result.py::audit_many_runs",
        "random.permutation(run_scores(absent, 'absent'))",
        "run_scores(absent, 'absent')",
        MANY,
    ),
]
