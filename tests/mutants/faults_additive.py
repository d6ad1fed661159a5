"""Additive models: bins by public facts, whole slopes, exact sums, noise, shares of the budget."""

FIT, BINS = "convex/additive.py", "convex/bins.py"
UNIT = "tests/unit/convex/test_additive.py::test_"
LAW = "tests/statistical/test_additive_release.py::test_"
MOVED = UNIT + "no_record_moves_a_release_by_more_than_is_charged"
NOISES = UNIT + "each_release_has_the_noise_that_its_mechanism_says"
SHARES = UNIT + "shares_compose_to_the_budget_exactly"
WITHIN = UNIT + "slopes_are_within_their_units"
ALONE = UNIT + "the_slope_of_a_row_does_not_depend_on_other_rows"
LONG = UNIT + "rows_that_are_too_long_are_shortened_or_dropped"
CELLS = UNIT + "numbers_fall_into_cells_between_public_bounds"
SUMS = UNIT + "histograms_are_exact_where_floats_would_round"
PIECE = "np.bincount(piece, part, minlength=bins).astype(np.int64)"
LOSS = UNIT + "slopes_are_those_of_the_loss"
FRESH = LAW + "each_histogram_of_slopes_has_fresh_noise_of_its_mechanism"
ROUNDED, COUNTS = LAW + "noise_is_a_rounded_gaussian", LAW + "counts_have_the_noise"
COUNTED = COUNTS + "_of_their_mechanism"
GAUSS = "noise_std * entropy.normal(sums.shape)"

FAULTS = [
    # noise
    (f"{FIT}::noisy", GAUSS, "0.0 * entropy.normal(sums.shape)", ROUNDED),
    (f"{FIT}::noisy", GAUSS, f"0.96 * {GAUSS}", ROUNDED),
    (f"{FIT}::noisy", "entropy.normal(sums.shape) ", "entropy.normal((1, 1)) ", ROUNDED),
    (f"{FIT}::noisy", f"np.floor({GAUSS} + 0.5)", f"np.floor({GAUSS})", ROUNDED),
    (
        f"{FIT}::noisy",
        "noise_std <= _LARGEST_NOISE",
        "True",
        UNIT + "more_noise_than_whole_numbers_take_is_refused",
    ),
    (f"{FIT}::CyclicBoosting.slopes_std", "self.adjacency.moved", "1.0", NOISES),
    (f"{FIT}::CyclicBoosting.slopes_std", "self.adjacency.moved", "1.0", FRESH),
    (f"{FIT}::CyclicBoosting.counts_std", "moved * self.columns", "moved", NOISES),
    (
        f"{FIT}::CyclicBoosting.counts_std",
        "1.0 if self.adjacency is Adjacency.ADD_OR_REMOVE else 2.0",
        "1.0",
        COUNTED,
    ),
    (
        f"{FIT}::_Fit.visit",
        "noisy(sums, self._boosting.slopes_std, self._entropy)",
        "sums",
        FRESH,
    ),
    (
        f"{FIT}::_Fit.visit",
        "self._boosting.slopes_std",
        "self._boosting.counts_std * UNITS",
        NOISES,
    ),
    # what is accounted
    (f"{FIT}::CyclicBoosting.process", "Repeated(step, self.steps)", "step", NOISES),
    (f"{FIT}::CyclicBoosting.process", "self.steps", "self.rounds", NOISES),
    (
        f"{FIT}::CyclicBoosting.process",
        "Sequence((counts, Repeated(step, self.steps)))",
        "Sequence((Repeated(step, self.steps),))",
        SHARES,
    ),
    (
        f"{FIT}::CyclicBoosting._counts_multiplier",
        "(1.0 - self.share) / self.share",
        "self.share / (1.0 - self.share)",
        SHARES,
    ),
    # slopes of one row
    (
        f"{FIT}::_OneScore._table",
        "np.clip(np.trunc(slopes * (UNITS / self.bound)), -UNITS, UNITS)",
        "np.trunc(2 * slopes * (UNITS / self.bound))",
        WITHIN,
    ),
    (f"{FIT}::_OneScore._table", "UNITS / self.bound", "0.5 * UNITS / self.bound", WITHIN),
    (f"{FIT}::_OneScore.whole", "_places(signs * one)", "_places(one)", LOSS),
    (f"{FIT}::within_units", "np.sign(rows) * _too_long(rows)", "0", LONG),
    (f"{FIT}::within_units", "rows * ~_too_long(rows)", "rows", LONG),
    (f"{FIT}::_ManyClasses.whole", "np.minimum(1.0, limit)", "np.maximum(1.0, limit)", LOSS),
    (
        f"{FIT}::_ManyClasses.whole",
        "self._powers[_places(scores - scores.max(axis=1, keepdims=True))]",
        "softmax(scores / STEPS / max(1, len(scores) % 3), axis=1)",
        ALONE,
    ),
    (
        f"{FIT}::_OneScore.whole",
        "one - targets",
        "targets - one",
        LOSS,
    ),
    # sums and bins
    (f"{BINS}::histogram", f"total[:, output] += {PIECE}", f"total[:, output] = {PIECE}", SUMS),
    (f"{BINS}::histogram", PIECE, PIECE.replace("int64", "float32"), SUMS),
    (
        f"{BINS}::Numbers.codes",
        "np.asarray(self.edges[1:-1])",
        "np.quantile(given[np.isfinite(given)], np.linspace(0, 1, len(self.edges))[1:-1])",
        CELLS,
    ),
    (f"{BINS}::Numbers.codes", "np.isnan(given)", "np.isnan(given) & False", CELLS),
    (
        f"{FIT}::CyclicBoosting._counted",
        "noisy(histogram(code, column.bins), self.counts_std, entropy)",
        "histogram(code, column.bins)",
        NOISES,
    ),
    (
        f"{FIT}::_Fit._move",
        "moved[self._data.codes[number]]",
        "0",
        UNIT + "without_noise_the_shapes_of_an_additive_target_are_found",
    ),
    (
        f"{FIT}::_Fit._weights",
        "self._counts[number][:, None]",
        "np.bincount(self._data.codes[number], minlength=len(self._shapes[number]))[:, None]",
        "tests/unit/convex/test_additive.py::test_what_is_learnt_depends_on_the_releases_alone",
    ),
    # what is promised
    (
        "estimators/additive.py::_PrivateAdditive._learn",
        "calibrated(plan, None, budget)",
        "(plan.with_noise(1.0), calibrated(plan, None, budget)[1])",
        "tests/unit/estimators/test_additive_estimators.py",
    ),
    (
        "estimators/additive.py::_PrivateAdditive._learn",
        "reserved(process, 'cyclic boosting', private=entropy.private)",
        "reserved(process, 'cyclic boosting', private=True)",
        "tests/unit/estimators/test_additive_estimators.py -k ledger",
    ),
]
