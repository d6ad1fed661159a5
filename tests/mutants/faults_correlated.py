"""Correlated noise: strategies, streams, sensitivities, and the account."""

SENSITIVITY = "tests/unit/correlated/test_sensitivity.py"
STRATEGIES = "tests/unit/correlated/test_strategies.py"
ACCOUNT = "tests/unit/theorems/test_correlated_noise.py"
SUMS = "tests/unit/test_running_sums.py"
ADVANCE = "correlated/streaming.py::Stream._advance"
MOVED = "correlated/sensitivity.py"
RANDOM = "theorems/correlated.py::BandedRandomCycle.guarantee"
CYCLIC, GAUSS = "theorems/correlated.py", "theorems/correlated.py"

FAULTS = [
    # a band that is missing from what is released
    (
        ADVANCE,
        "np.tile(weights[::-1], 2)",
        "np.tile(weights[::-1] * (np.arange(len(weights)) > 0), 2)",
        SUMS,
    ),
    (ADVANCE, "self._table[count - here : 2 * count - here]", "self._table[:count]", SUMS),
    (ADVANCE, "draw if isinstance(strategy, InverseToeplitz) else noise", "draw", SUMS),
    (ADVANCE, "kept += noise", "kept += draw", SUMS),
    (ADVANCE, "self._table[1].reshape", "self._table[0].reshape", STRATEGIES),
    (
        "correlated/streaming.py::Stream.next",
        "self.step >= self.steps",
        "self.step > self.steps",
        STRATEGIES,
    ),
    (
        "running_sums.py::RunningSums._in_parts",
        "np.maximum(lengths, self.norm / largest)",
        "np.maximum(lengths, 0.0 * largest + 1e-9)",
        SUMS,
    ),
    ("running_sums.py::RunningSums._in_parts", "np.trunc", "np.ceil", SUMS),
    # what one record moves
    (
        f"{MOVED}::_of_first_pattern",
        "np.maximum.accumulate(np.abs(column)[::-1])[::-1]",
        "np.abs(column)",
        SENSITIVITY,
    ),
    (
        f"{MOVED}::_of_first_pattern",
        "min(pattern.count, count)",
        "min(pattern.count, count) - (count > 1)",
        SENSITIVITY,
    ),
    (f"{MOVED}::_of_gram_matrix", "np.abs(gram) + error", "gram + error", SENSITIVITY),
    (
        f"{MOVED}::_never_both",
        "np.abs(np.subtract.outer(at, at)) < pattern.gap",
        "np.abs(np.subtract.outer(at, at)) <= pattern.gap",
        SENSITIVITY,
    ),
    (
        f"{MOVED}::_most",
        "after = best[t % gap]",
        "after = 0.0 * best[t % gap]",
        SENSITIVITY,
    ),
    (
        f"{MOVED}::_most",
        "np.maximum.reduceat(weights, starts, axis=1).sum(axis=1)",
        "np.maximum.reduceat(weights, starts, axis=1).max(axis=1)",
        SENSITIVITY,
    ),
    (
        f"{MOVED}::column_norms",
        "np.cumsum(column.astype(np.longdouble) ** 2)[::-1]",
        "np.cumsum(column.astype(np.longdouble) ** 2)",
        SENSITIVITY,
    ),
    ("correlated/strategies.py::check_strategy", "worst <= _WORST", "worst <= 1e300", SENSITIVITY),
    # the account
    (f"{GAUSS}::CorrelatedGaussian.guarantee", "process.adjacency.moved", "1.0", ACCOUNT),
    (
        GAUSS,
        "case CyclicPoissonSampling(1.0, cycle):",
        "case CyclicPoissonSampling(_, cycle):",
        ACCOUNT,
    ),
    (
        f"{CYCLIC}::BandedCyclicPoisson.applies",
        "min(bands, process.steps) > sampling.cycle",
        "min(bands, process.steps) > 2 * sampling.cycle",
        ACCOUNT,
    ),
    (
        f"{CYCLIC}::BandedCyclicPoisson.guarantee",
        "turns = -(-process.steps // cycle)",
        "turns = process.steps // cycle\n        lengths = lengths[: turns * cycle]",
        ACCOUNT,
    ),
    (
        f"{CYCLIC}::BandedCyclicPoisson.guarantee",
        "by_turn.max(axis=1)",
        "by_turn.min(axis=1)",
        ACCOUNT,
    ),
    (f"{CYCLIC}::_of_one_record", "found = replace(found, by_record=False)", "pass", ACCOUNT),
    (f"{CYCLIC}::_of_one_record", "replace(found, validity=Validity.BOUND)", "found", ACCOUNT),
    (RANDOM, "cycle // bands", "cycle", ACCOUNT),
    (RANDOM, "math.sqrt(cycles) * longest", "longest", ACCOUNT),
    (
        RANDOM,
        "replace(shown, validity=Validity.BOUND, attained=())",
        "replace(shown, attained=())",
        ACCOUNT,
    ),
    (
        "guarantee/compose.py::compose",
        "validity = Validity.BOUND",
        "pass",
        "tests/unit/guarantee/test_least_mu.py",
    ),
]
