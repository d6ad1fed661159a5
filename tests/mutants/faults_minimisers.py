"""What private minimisers and searches release: noise, rows used, secret lengths, coins."""

CONVEX = "tests/statistical/test_convex_release.py"
SEARCH = "tests/statistical/test_search_release.py"
LAST, SEEN = "convex/last_iterate.py", "convex/algorithms.py"
CENTRED, ENTROPY = "convex/centred.py", "convex/entropy.py"
NOISE = "noise_std * entropy.normal(weights.shape)"
DRAWN = "self.noise_multiplier * charged(self, problem)"
SECRET = "skipped = entropy.whole_number(0, problem.counted // 2)"
USED = "used = entropy.whole_number(1, problem.counted)"

FAULTS = [
    # no noise
    (f"{LAST}::LastIterateDescent.run", NOISE, "0.0 * weights", CONVEX),
    (f"{LAST}::CyclicDescent.run", NOISE, "0.0 * weights", CONVEX),
    (f"{LAST}::SkipDescent.run", NOISE, "0.0 * weights", CONVEX),
    (f"{LAST}::StopDescent.run", NOISE, "0.0 * weights", CONVEX),
    (f"{SEEN}::PoissonDescent.run", "noise_std * entropy.normal(current.shape)", "0.0", CONVEX),
    (f"{SEEN}::AveragedDescent.run", "noise_std * entropy.normal(ahead.shape)", "0.0", CONVEX),
    (f"{CENTRED}::CentredDescent._centred", "noise_std * entropy.normal(sums.shape)", "0", CONVEX),
    # noise of another size than the process says
    (f"{LAST}::CyclicDescent.run", DRAWN, "0.9 * self.noise_multiplier", CONVEX),
    (f"{LAST}::SkipDescent.run", DRAWN, "0.5 * self.noise_multiplier", CONVEX),
    (f"{LAST}::StopDescent.run", DRAWN, "0.5 * self.noise_multiplier", CONVEX),
    (f"{LAST}::LastIterateDescent.run", DRAWN, "self.noise_multiplier / 11", CONVEX),
    (f"{SEEN}::PoissonDescent.run", DRAWN, "self.rate * self.noise_multiplier", CONVEX),
    (f"{SEEN}::AveragedDescent.run", DRAWN, "0.9 * self.noise_multiplier", CONVEX),
    (f"{LAST}::_Hidden._step", "total / size", "total / len(batch.factors)", CONVEX),
    (
        f"{LAST}::_Hidden._described",
        "self.noise_multiplier * sensitivity / batch_size",
        "self.noise_multiplier * sensitivity",
        CONVEX,
    ),
    (f"{CENTRED}::CentredDescent._centred", "sensitivity(problem.adjacency)", "1.0", CONVEX),
    (f"{CENTRED}::sensitivity", "math.sqrt(2.0)", "1.0", CONVEX),
    # one noise for all steps
    (
        f"{LAST}::CyclicDescent.run",
        f"noise = {NOISE}",
        f"noise = noise if 'noise' in locals() else {NOISE}",
        CONVEX,
    ),
    (
        f"{SEEN}::PoissonDescent.run",
        "total += noise_std * entropy.normal(current.shape)",
        "z = z if step else entropy.normal(current.shape); total += noise_std * z",
        CONVEX,
    ),
    (
        f"{SEEN}::AveragedDescent.run",
        "total = problem.gradient_sum(ahead) + noise_std * entropy.normal(ahead.shape)",
        "z = z if step else entropy.normal(ahead.shape)\n"
        "            total = problem.gradient_sum(ahead) + noise_std * z",
        CONVEX,
    ),
    # secret lengths
    (f"{LAST}::SkipDescent.run", SECRET, "skipped = 0", CONVEX),
    (f"{LAST}::SkipDescent.run", SECRET, "skipped = problem.counted // 2", CONVEX),
    (f"{LAST}::SkipDescent.run", "problem.counted // 2", "problem.counted // 2 - 1", CONVEX),
    (f"{LAST}::SkipDescent.run", "position >= skipped", "position < skipped + 1", CONVEX),
    (f"{LAST}::StopDescent.run", USED, "used = problem.counted", CONVEX),
    (f"{LAST}::StopDescent.run", USED, "used = (problem.counted + 1) // 2", CONVEX),
    (f"{LAST}::StopDescent.run", "problem.counted", "problem.counted - 1", CONVEX),
    (f"{LAST}::StopDescent.run", "position >= used", "position > used", CONVEX),
    # rows and coins
    (f"{LAST}::CyclicDescent.run", "range(self.epochs)", "range(self.epochs + 1)", CONVEX),
    (f"{LAST}::LastIterateDescent.run", "range(self.steps)", "range(self.steps + 1)", CONVEX),
    (f"{LAST}::CyclicDescent.run", "(problem.data, problem.public)", "(problem.data,)", CONVEX),
    (
        f"{SEEN}::PoissonDescent.run",
        "entropy.included(size, self.rate)",
        "entropy.included(size, 1.1 * self.rate)",
        CONVEX,
    ),
    (
        f"{SEEN}::PoissonDescent.run",
        "entropy.included(size, self.rate)",
        "np.full(size, entropy.included(1, self.rate)[0])",
        CONVEX,
    ),
    (
        f"{SEEN}::PoissonDescent.run",
        "entropy.included(size, self.rate)",
        "np.arange(size) < self.rate * size",
        CONVEX,
    ),
    (
        "convex/learn.py::learn",
        "planned.algorithm.run(problem, entropy, first)",
        "planned.algorithm.with_noise(1e-9).run(problem, entropy, first)",
        CONVEX,
    ),
    # what is drawn
    (
        f"{ENTROPY}::Entropy.normal",
        "normal_from_words(self._stream.words, shape)",
        "2 * normal_from_words(self._stream.words, shape)",
        SEARCH,
    ),
    (f"{ENTROPY}::normal_from_words", "2.0 * math.pi * angle", "math.pi * angle / 2.0", SEARCH),
    (
        f"{ENTROPY}::normal_from_words",
        "-2.0 * np.log(np.minimum(uniform, 1.0))",
        "-np.log(np.minimum(uniform, 1.0))",
        SEARCH,
    ),
    (
        f"{ENTROPY}::normal_from_words",
        "np.minimum(uniform, 1.0)",
        "np.clip(uniform, 0.02, 1.0)",
        SEARCH,
    ),
    (
        f"{ENTROPY}::Entropy.included",
        "(self._stream.words(count) >> np.uint64(11)) * 2.0**-53",
        "(self._stream.words(count) >> np.uint64(10)) * 2.0**-53",
        SEARCH,
    ),
    (
        f"{ENTROPY}::Entropy.included",
        "self._stream.generator().random(count) < rate",
        "self._stream.generator().random(count) < rate**1.05",
        SEARCH,
    ),
    (f"{ENTROPY}::Entropy.whole_number", "high - low + 1", "high - low", SEARCH),
    (f"{ENTROPY}::Entropy.whole_number", "True", "False", SEARCH),
    ("entropy.py::WordStream.uniform", "2.0**-53", "2.0**-54", SEARCH),
    ("entropy.py::WordStream.words", "os.urandom(8 * count)", "os.urandom(8) * count", SEARCH),
    # searches
    ("search.py::PrivateSelection.run", "self.trials.draw(source.uniform)", "3", SEARCH),
    (
        "search.py::PrivateSelection._best",
        "score > best[0]",
        "score >= best[0] + 1",
        SEARCH,
    ),
    ("search.py::PoissonTrials.draw", "self.mean", "self.mean + 0.5", SEARCH),
    (
        "search.py::TruncatedNegativeBinomial.draw",
        "uniform(), 1, self._log_first",
        "uniform(), 2, self._log_first",
        SEARCH,
    ),
    ("estimators/search.py::PrivateSearch._trial", "float(entropy.normal(()))", "0.0", SEARCH),
    (
        "estimators/search.py::PrivateSearch._trial",
        "_ROUNDING * float(entropy.normal(())) / mu",
        "_ROUNDING * float(entropy.normal(()))",
        SEARCH,
    ),
    (
        "estimators/search.py::PrivateSearch._trial",
        "len(self.candidates) - 1",
        "len(self.candidates) - 2",
        SEARCH,
    ),
    (
        "estimators/search.py::PrivateSearch.fit",
        "process.mean_trials",
        "process.mean_trials + 1",
        SEARCH,
    ),
]
