"""Correlated noise: strategies, streams, sensitivities, and the account."""

SENSITIVITY = "tests/unit/correlated/test_sensitivity.py"
STRATEGIES = "tests/unit/correlated/test_strategies.py"
ACCOUNT = "tests/unit/theorems/test_correlated_noise.py"
SUMS = "tests/unit/test_running_sums.py"
ADVANCE = "correlated/streaming.py::Stream._advance"
MOVED = "correlated/sensitivity.py"
TRAIN, SAMPLERS = "train/correlated_noise.py", "train/samplers.py"
RUN, SEPARATE = "tests/unit/train/test_correlated_noise.py", "tests/unit/train/test_samplers.py"
RESUMED = "test_a_resumed_run_goes_on_with_its_noise"
RANDOM = "theorems/correlated.py::BandedRandomCycle.proved"
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
    # in a run
    (f"{TRAIN}::CorrelatedNoise.add_", "group.skip(self._due - 1)", "pass", f"{RUN}::{RESUMED}"),
    (
        f"{TRAIN}::CorrelatedNoise._check_lost",
        "not self.strategy.non_negative(self._planned or 1)",
        "False",
        f"{RUN}::test_nothing_is_lost_where_every_step_is_stored",
    ),
    (
        f"{TRAIN}::CorrelatedNoise.kept",
        "self._done in (0, self._planned)",
        "self._done == 0",
        f"{RUN}::{RESUMED}",
    ),
    (
        f"{TRAIN}::_Buffers.noise",
        "self._stream.rescale(scale / self._scale)",
        "pass",
        f"{RUN}::test_an_adaptive_clip_scales_what_is_taken_back",
    ),
    (
        f"{TRAIN}::_Replayed.skip",
        "self._advance(-(self._taps @ self._sums) / self._own)",
        "self._advance(0.0 * (self._taps @ self._sums))",
        f"{RUN}::{RESUMED}",
    ),
    (
        f"{TRAIN}::_Replayed.noise",
        "float(weight)",
        "abs(float(weight))",
        f"{RUN}::test_draws_that_are_made_again_are_the_same",
    ),
    ("correlated/streaming.py::Stream.skip", "self._kept -= draw", "pass", STRATEGIES),
    ("correlated/streaming.py::Stream.skip", "-draw / own", "draw / own", STRATEGIES),
    (
        "train/spending.py::Ledger.accounts_for",
        "noise is not self._noise",
        "False",
        f"{RUN}::test_noise_belongs_to_one_run_and_its_steps",
    ),
    (
        f"{SAMPLERS}::AbstractSampler.process",
        "getattr(noise, 'strategy', None)",
        "None",
        f"{RUN}::test_the_least_noise_for_a_budget_is_found",
    ),
    (f"{SAMPLERS}::SeparatedSampler._batch", "place + self._gap", "place + 1", SEPARATE),
    (
        f"{SAMPLERS}::CyclicPoissonSampler._batch",
        "place % self._cycle",
        "(place + place // self._cycle) % self._cycle",
        SEPARATE,
    ),
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
    (
        "correlated/strategies.py::_check_known",
        "worst <= most_scale",
        "worst <= 1e300",
        SENSITIVITY,
    ),
    # the account
    (f"{GAUSS}::CorrelatedGaussian.proved", "process.adjacency.moved", "1.0", ACCOUNT),
    (
        GAUSS,
        "case CyclicPoissonSampling(1.0, cycle):",
        "case CyclicPoissonSampling(_, cycle):",
        ACCOUNT,
    ),
    (
        f"{CYCLIC}::BandedCyclicPoisson.condition",
        "min(bands, process.steps) > cycle",
        "min(bands, process.steps) > 2 * cycle",
        ACCOUNT,
    ),
    (
        f"{CYCLIC}::BandedCyclicPoisson.proved",
        "turns = -(-process.steps // cycle)",
        "turns = process.steps // cycle\n        lengths = lengths[: turns * cycle]",
        ACCOUNT,
    ),
    (
        f"{CYCLIC}::BandedCyclicPoisson.proved",
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
        "tests/unit/guarantee/test_kinds.py",
    ),
]
