"""Correlated noise: strategies, streams, sensitivities, and the account."""

SENSITIVITY = "tests/unit/correlated/test_sensitivity.py"
STRATEGIES = "tests/unit/correlated/test_strategies.py"
FACTORS = "tests/unit/correlated/test_factors.py"
ACCOUNT = "tests/unit/theorems/test_correlated_noise.py"
SUMS = "tests/unit/test_running_sums.py"
MOVED, STREAM = "correlated/sensitivity.py", "correlated/streaming.py"
RANDOM = "theorems/banded_random_cycle.py"
CYCLIC, GAUSS = "theorems/banded_cyclic_poisson.py", "theorems/correlated_gaussian.py"

FAULTS = [
    # a band that is missing from what is released
    (
        STREAM,
        "np.tile(weights[::-1], 2)",
        "np.tile(weights[::-1] * (np.arange(len(weights)) > 0), 2)",
        SUMS,
    ),
    (STREAM, "self._table[count - here : 2 * count - here]", "self._table[:count]", SUMS),
    (STREAM, "draw if isinstance(strategy, InverseToeplitz) else noise", "draw", SUMS),
    (STREAM, "kept += noise", "kept += draw", SUMS),
    (STREAM, "self._table[1].reshape", "self._table[0].reshape", STRATEGIES),
    (STREAM, "if self.step >= self.steps:", "if self.step > self.steps:", STRATEGIES),
    (
        "running_sums.py",
        "np.maximum(lengths, self.norm / largest)",
        "np.maximum(lengths, 0.0 * largest + 1e-9)",
        SUMS,
    ),
    ("running_sums.py", "np.trunc(", "np.ceil(", SUMS),
    # what one record moves
    (
        MOVED,
        "above = np.maximum.accumulate(np.abs(column)[::-1])[::-1]",
        "above = np.abs(column)",
        SENSITIVITY,
    ),
    (
        MOVED,
        "count = min(pattern.count, count)",
        "count = min(pattern.count, count) - (count > 1)",
        SENSITIVITY,
    ),
    (MOVED, "size = np.abs(gram) + error", "size = gram + error", SENSITIVITY),
    (MOVED, "< pattern.gap\n", "<= pattern.gap\n", SENSITIVITY),
    (MOVED, "after = best[t % gap]  # of step t + gap", "after = 0.0 * best[t % gap]", SENSITIVITY),
    (
        MOVED,
        "np.maximum.reduceat(weights, starts, axis=1).sum(axis=1)",
        "np.maximum.reduceat(weights, starts, axis=1).max(axis=1)",
        SENSITIVITY,
    ),
    (
        MOVED,
        "** 2)[::-1]",
        "** 2)",
        SENSITIVITY,
    ),
    ("correlated/strategies.py", "if not worst <= _WORST:", "if worst > 1e300:", SENSITIVITY),
    # the account
    (GAUSS, "scale = process.adjacency.moved / process", "scale = 1.0 / process", ACCOUNT),
    (
        GAUSS,
        "case CyclicPoissonSampling(1.0, cycle):",
        "case CyclicPoissonSampling(_, cycle):",
        ACCOUNT,
    ),
    (CYCLIC, "> sampling.cycle:", "> 2 * sampling.cycle:", ACCOUNT),
    (
        CYCLIC,
        "turns = -(-process.steps // cycle)",
        "turns = process.steps // cycle\n    lengths = lengths[: turns * cycle]",
        ACCOUNT,
    ),
    (CYCLIC, "longest = by_turn.max(axis=1)", "longest = by_turn.min(axis=1)", ACCOUNT),
    (CYCLIC, "found = replace(found, by_record=False)", "pass", ACCOUNT),
    (CYCLIC, "replace(found, validity=Validity.BOUND)", "found", ACCOUNT),
    (RANDOM, "cycle // bands", "cycle", ACCOUNT),
    (RANDOM, "math.sqrt(cycles) * longest", "longest", ACCOUNT),
    (RANDOM, "validity=VALIDITY, attained=())", "attained=())", ACCOUNT),
    (
        "guarantee/compose.py",
        "            validity = Validity.BOUND\n",
        "            pass\n",
        "tests/unit/guarantee/test_least_mu.py",
    ),
]
