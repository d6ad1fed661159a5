"""A fault in each home that the inventory of the papers names, for each test that it cites."""

FORMULAS = "tests/unit/reproduce/test_renyi_formulas.py"
GOLDEN = f"tests/unit/guarantee/test_renyi_golden.py {FORMULAS}"
REGIONS = f"tests/unit/guarantee/test_renyi_regions.py {FORMULAS}"
GAUSSIAN = "tests/unit/guarantee/test_gaussian_profile.py"
DIVERGENCE = "tests/unit/reproduce/test_tradeoff_divergence.py"
CURVES = "tests/unit/reproduce/test_tradeoff_curves.py"
OPERATIONS = "tests/unit/reproduce/test_tradeoff_operations.py"
LAWS, RENYI, TRADEOFF = (
    f"tests/laws/test_{name}_laws.py" for name in ("guarantee", "renyi", "tradeoff")
)
PASSING, PROCESS = "tests/unit/test_said_in_passing.py", "tests/unit/test_process.py"
PLAN = "tests/unit/reproduce/test_plan.py"
HIDDEN, REFUSED, TRUTH = (
    f"tests/unit/theorems/test_hidden_{name}.py" for name in ("golden", "refusals", "truth")
)
SAMPLING = "tests/unit/theorems/test_sampling_golden.py"
CLT = "tests/unit/theorems/test_asymmetric_clt.py"
RUN = "tests/statistical/test_convex_release.py"
MADE = "tests/unit/train/test_optimizers.py"
ADAM = "tightrope_reproduce/learning/printed_adam.py"
FUNCTIONALS = "tests/unit/reproduce/test_functionals.py"
FACTS = "tightrope_reproduce/formulas/functionals.py"
SHIFTED, TRACING, RANGE, TANGENT = (
    f"tests/unit/reproduce/test_{name}.py"
    for name in ("shifted", "tracing", "joint_range", "tangent")
)
FORMULAS = "tightrope_reproduce/formulas"
PLANS = "tightrope_reproduce/plan"
NOISE = "noise_std * entropy.normal(weights.shape)"

FAULTS = [
    ("guarantee/base.py::Guarantee.advantage", "self.delta(0.0)", "self.delta(0.1)", LAWS),
    ("guarantee/base.py::Guarantee.loss_known", "Interval(0.0, found.upper)", "found", LAWS),
    ("guarantee/compose.py::_gaussian", "[count for _, count in parts]", "[1] * len(parts)", LAWS),
    (
        "guarantee/compose.py::_by_renyi",
        "curves[0][0].curve * curves[0][1]",
        "curves[0][0].curve",
        LAWS,
    ),
    (
        "guarantee/kinds/renyi.py::RenyiGuarantee._one_renyi",
        "float(self.curve(check_order(order)))",
        "0.5 * float(self.curve(check_order(order)))",
        RENYI,
    ),
    (
        "guarantee/kinds/renyi.py::RenyiGuarantee._one_epsilon",
        "_best_epsilon(self.curve, d, self.route)",
        "0.5 * _best_epsilon(self.curve, d, self.route)",
        RENYI,
    ),
    (
        "guarantee/kinds/renyi.py::RenyiGuarantee._one_delta",
        "min(1.0, best_delta(self.curve, eps, route=self.route))",
        "0.5 * min(1.0, best_delta(self.curve, eps, route=self.route))",
        RENYI,
    ),
    (
        "guarantee/kinds/gaussian.py::GaussianGuarantee._one_renyi",
        "0.5 * check_order(order)",
        "0.25 * check_order(order)",
        GAUSSIAN,
    ),
    (
        "guarantee/kinds/gaussian.py::GaussianGuarantee._one_tradeoff",
        "Interval(lower[1], upper[0])",
        "Interval(0.5 * lower[1], upper[0])",
        GAUSSIAN,
    ),
    (
        "guarantee/loss/pairs/gaussian.py::GaussianPair.log_survival",
        "log_ndtr(self.mu - s)",
        "log_ndtr(-s)",
        "tests/unit/guarantee/test_pairs.py",
    ),
    (
        "guarantee/gaussian.py::tradeoff_of",
        "np.minimum(mu, 1e300)",
        "1.01 * np.minimum(mu, 1e300)",
        GAUSSIAN,
    ),
    (
        "guarantee/gaussian.py::delta_of",
        "terms(np.abs(eps[live]), mu[live])",
        "terms(np.abs(eps[live]), 3.0 * mu[live])",
        PASSING,
    ),
    (
        "theorems/releases.py::GaussianGdpDrs19.proved",
        "1.0 / noise",
        "0.5 / noise",
        GAUSSIAN,
    ),
    (
        "process/training.py::NoisySGD.step_mu",
        "self.adjacency.moved / self.noise_multiplier",
        "0.5 * self.adjacency.moved / self.noise_multiplier",
        PROCESS,
    ),
    (
        "process/training.py::noise_std_from_relative",
        "check_count(batch_size, 'batch_size', low=1)",
        "(2 * check_count(batch_size, 'batch_size', low=1))",
        PROCESS,
    ),
    ("process/training.py::langevin_std", "2.0", "4.0", PROCESS),
    (
        "process/sampling.py::PoissonSampling.__post_init__",
        "object.__setattr__(self, 'rate', rate)",
        "object.__setattr__(self, 'rate', 0.9 * rate)",
        RUN,
    ),
    (
        "process/sampling.py::PoissonSampling.__post_init__",
        "object.__setattr__(self, 'rate', rate)",
        "object.__setattr__(self, 'rate', 0.9 * rate)",
        PROCESS,
    ),
    (
        "guarantee/approx.py::amplified",
        "q * math.expm1(eps)",
        "0.9 * q * math.expm1(eps)",
        "tests/unit/guarantee/test_approx_simple.py",
    ),
    ("guarantee/renyi/closed_forms.py::log_zeta", "np.log1p(z)", "2.0 * np.log1p(z)", GOLDEN),
    (
        "guarantee/renyi/best.py::_Search.look",
        "values == values.min()",
        "values == values.max()",
        "tests/unit/guarantee/test_renyi_best.py",
    ),
    (
        "guarantee/renyi/closed_forms.py::epsilon_above",
        "np.log(delta)",
        "0.5 * np.log(delta)",
        GOLDEN,
    ),
    (
        "guarantee/renyi/closed_forms.py::epsilon_above",
        "np.log(delta)",
        "0.5 * np.log(delta)",
        PASSING,
    ),
    (
        "guarantee/renyi/closed_forms.py::second_term",
        "growth - np.log(delta) - np.log1p(z)",
        "growth - np.log(delta) - 2.0 * np.log1p(z)",
        GOLDEN,
    ),
    (
        "guarantee/renyi/closed_forms.py::theorem4_f",
        "weight + log_growth(z, eps)",
        "weight + 2.0 * log_growth(z, eps)",
        GOLDEN,
    ),
    (
        "tightrope_reproduce/formulas/improved_moments_accountant.py::_terms",
        "np.maximum(rounded_up(rate / d + np.log1p(-d), rate / d, np.log1p(-d)), 0.0)",
        "np.zeros_like(rate)",
        GOLDEN,
    ),
    ("tightrope_reproduce/formulas/moments_accountant.py::epsilon", "2.0", "1.9", GOLDEN),
    ("guarantee/renyi/optimal.py::_envelope", "1.0 + problem.z", "problem.z", GOLDEN),
    (
        "guarantee/renyi/optimal.py::one_sided_bounds",
        "gamma_of_log_chi(best.upper, z)",
        "gamma_of_log_chi(best.lower, z) * 0.999",
        GOLDEN,
    ),
    (
        "guarantee/renyi/optimal.py::_with_crossing_epsilon",
        "np.minimum(high, upper)",
        "np.minimum(0.99 * high, upper)",
        GOLDEN,
    ),
    (
        "guarantee/renyi/regions.py::type_ii_of_curve",
        "np.maximum(best, values[place, columns])",
        "1.2 * np.maximum(best, values[place, columns])",
        REGIONS,
    ),
    (
        "guarantee/renyi/regions.py::boundary",
        "_backward(z, gamma, raised)",
        "one",
        REGIONS,
    ),
    (
        "tightrope_reproduce/formulas/question_two.py::largest_steps",
        "2.0 * s * s * rate",
        "s * s * rate",
        GOLDEN,
    ),
    (
        "tightrope_reproduce/formulas/lemma3.py::type_ii_of_family",
        "np.maximum(np.maximum(first, second), 0.0)",
        "0.5 * np.maximum(np.maximum(first, second), 0.0)",
        REGIONS,
    ),
    ("tightrope_reproduce/formulas/area.py::of_approx", "(1.0 - d) ** 2", "(1.0 - d)", REGIONS),
    (
        "tightrope_reproduce/tradeoff/abstract.py::AbstractTradeoff.delta",
        "np.maximum(self._delta(eps), self.inverse()._delta(eps))",
        "self._delta(eps)",
        TRADEOFF,
    ),
    (
        "tightrope_reproduce/tradeoff/closed.py::ApproxTradeoff.integral",
        "(1.0 - self.failure) ** 2",
        "1.0 - self.failure",
        CURVES,
    ),
    (
        "tightrope_reproduce/tradeoff/closed.py::LaplaceTradeoff._type_ii",
        "0.25 * factor",
        "0.26 * factor",
        CURVES,
    ),
    (
        "tightrope_reproduce/tradeoff/discrete.py::DiscreteTradeoff._parts",
        "self.q - moved",
        "self.q - 1.01 * moved",
        CURVES,
    ),
    ("tightrope_reproduce/tradeoff/divergence.py::chi_alpha", "t**a - 1.0", "t**a - t", DIVERGENCE),
    (
        "tightrope_reproduce/tradeoff/divergence.py::hockey_stick",
        "np.maximum(t - c, 0.0)",
        "np.maximum(t - c, 0.0) ** 2",
        DIVERGENCE,
    ),
    (
        "tightrope_reproduce/tradeoff/divergence.py::of_atoms",
        "generator.at_infinity",
        "generator.at_zero",
        DIVERGENCE,
    ),
    (
        "tightrope_reproduce/tradeoff/gaussian.py::GaussianTradeoff.integral",
        "math.sqrt(2.0)",
        "2.0",
        CURVES,
    ),
    (
        "tightrope_reproduce/tradeoff/hull.py::_hull",
        "np.stack([curve.y, curve.power, curve.x, curve.co_x])",
        "np.stack([curve.x, curve.co_x, curve.y, curve.power])",
        OPERATIONS,
    ),
    (
        "tightrope_reproduce/formulas/product.py::_product",
        "np.outer(f.q, g.q).ravel()",
        "np.outer(f.q, g.p).ravel()",
        OPERATIONS,
    ),
    (
        "tightrope_reproduce/formulas/product.py::_product",
        "np.outer(f.q, g.q).ravel()",
        "np.outer(f.q, g.p).ravel()",
        TRADEOFF,
    ),
    (
        "tightrope_reproduce/formulas/product.py::group",
        "range(size - 1)",
        "range(size)",
        OPERATIONS,
    ),
    (
        "tightrope_reproduce/formulas/sampled.py::_mixed",
        "rate * curve.q + (1.0 - rate) * curve.p",
        "curve.q * rate + (1.0 - rate) * curve.q",
        DIVERGENCE,
    ),
    ("theorems/limits.py::limit_mu", "m.mean_p - m.mean_q", "m.mean_p", CLT),
    (
        "theorems/limits.py::limit_mu",
        "m.variance_p + m.variance_q",
        "2 * m.mean_p",
        CLT,
    ),
    (
        "theorems/limits.py::clt_mu",
        "3.0 * ndtr(-0.5 * m)",
        "ndtr(-0.5 * m)",
        SAMPLING,
    ),
    (
        "theorems/composition.py::NoiseScheduleExact.proved",
        "int(count)",
        "1",
        "tests/unit/theorems/test_noise_schedule.py",
    ),
    (
        "theorems/poisson_renyi.py::renyi_guarantee",
        "renyi_bound(process, route)",
        "renyi_bound(type(process)(process.sampling, process.noise_multiplier, "
        "process.steps // 2, process.adjacency), route)",
        SAMPLING,
    ),
    (
        "theorems/last_iterate/bounded.py::gaussian_divergence",
        "0.5 * order * ratios**2",
        "order * ratios**2",
        HIDDEN,
    ),
    (
        "theorems/last_iterate/bounded.py::laplace_divergence",
        "rest / (order - 1.0)",
        "rest / order",
        HIDDEN,
    ),
    ("tightrope_reproduce/formulas/last_iterates.py::renyi_by_lemma_25", "1.0 + c", "1.0", HIDDEN),
    (
        "theorems/last_iterate/bounded.py::HiddenNonconvex.proved",
        "math.sqrt(projected_squared_mu(process))",
        "0.5 * math.sqrt(projected_squared_mu(process))",
        TRUTH,
    ),
    (
        "theorems/last_iterate/bounded.py::projected_squared_mu",
        "least_window_cost(pushes, factors, scales, process.diameter)",
        "least_window_cost(pushes, factors, scales, 0.5 * process.diameter)",
        TRUTH,
    ),
    ("theorems/last_iterate/steps.py::step_mu", "2.0", "1.0", HIDDEN),
    ("numerics/hull.py::_absorbing", "t + 1 < len(s)", "True", REFUSED),
    ("process/convex.py::_in_reach", "away.any()", "False", REFUSED),
    (
        "theorems/last_iterate/sampled.py::HiddenSampledComposition.proved",
        "2.0 / step_mu(process)",
        "4.0 / step_mu(process)",
        REFUSED,
    ),
    ("theorems/last_iterate/steps.py::batch_of", "process.records", "process.records + 1", HIDDEN),
    (
        "theorems/last_iterate/steps.py::convexity_refusal",
        "process.step_size * loss.smoothness > 2.0",
        "process.step_size * loss.smoothness > 4.0",
        REFUSED,
    ),
    (
        "process/convex.py::ContractiveIteration.__post_init__",
        "len(lengths) != 1",
        "False",
        REFUSED,
    ),
    (
        "process/convex.py::ContractiveIteration.__post_init__",
        "_store(self, start_distance=_in_reach(start, 'start_distance'))",
        "_store(self, start_distance=0.0)",
        PASSING,
    ),
    (
        "process/convex.py::ConvexLoss.__post_init__",
        "self.strong_convexity > self.smoothness",
        "False",
        REFUSED,
    ),
    (f"{PLANS}/per_person.py::per_person", "2.0", "1.9", PLAN),
    (
        f"{PLANS}/smoothing.py::smoothed",
        "loss.lipschitz * _SLOPE / scale",
        "0.9 * loss.lipschitz * _SLOPE / scale",
        PLAN,
    ),
    (
        f"{PLANS}/smoothing.py::smoothed",
        "loss.lipschitz * _SLOPE / scale",
        "0.9 * loss.lipschitz * _SLOPE / scale",
        PASSING,
    ),
    (f"{PLANS}/utility.py::best_step", "distance**2", "distance", PLAN),
    ("train/optimizers.py::noisy_sgd", "learning_rate", "2 * learning_rate", MADE),
    ("train/optimizers.py::noisy_adagrad", "learning_rate", "2 * learning_rate", MADE),
    (f"{ADAM}::PrintedAdam._update", "1 - beta1", "beta1", MADE),
    (f"{FACTS}::functionals", "np.abs(ratio) ** power", "np.abs(ratio) ** 2", FUNCTIONALS),
    (f"{FACTS}::functionals", "curve.p @ -ratio", "curve.q @ -ratio", FUNCTIONALS),
    (f"{FACTS}::log_moment", "power + 1.0", "power", FUNCTIONALS),
    (f"{FORMULAS}/shifted.py::farthest", "np.abs(gaps).max()", "np.abs(gaps).min()", SHIFTED),
    (f"{FORMULAS}/shifted.py::nearest", "whole[2 * z :]", "whole[z : len(whole) - z]", SHIFTED),
    (
        f"{FORMULAS}/shifted.py::_next_bend",
        "float(most[high_at])",
        "float(least[high_at])",
        SHIFTED,
    ),
    (f"{FORMULAS}/shifted.py::magnitude", "range(1, s + 1)", "range(1, s)", SHIFTED),
    (f"{FORMULAS}/tracing.py::density", "2.0 * sigma**2 * t", "sigma**2 * t", TRACING),
    (f"{FORMULAS}/tracing.py::drift_seen", "chances[:, None] * densities", "densities", TRACING),
    (f"{FORMULAS}/tracing.py::at_rest", "sigma**2", "(2.0 * sigma**2)", TRACING),
    (f"{FORMULAS}/joint_range.py::pair_of", "(p / q) ** order", "(p / q) ** (order - 0.1)", RANGE),
    (f"{FORMULAS}/joint_range.py::_lower_hull", "ax * by - ay * bx > 0.0", "True", RANGE),
    (f"{FORMULAS}/tangent.py::tangent_point", "math.exp(high)", "math.exp(epsilon)", TANGENT),
    (f"{FORMULAS}/tangent.py::limit", "0.5 * mu", "mu", TANGENT),
    ("convex/last_iterate.py::CyclicDescent.run", NOISE, "0.0 * weights", RUN),
    (
        "train/samplers.py::FixedSizeSampler._draw",
        "np.argpartition(keys, self._size - 1)[: self._size]",
        "np.arange(self._size)",
        "tests/statistical/test_train_samplers.py",
    ),
]
