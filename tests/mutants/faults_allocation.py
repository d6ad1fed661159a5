"""Balls in bins: the law of the mean of lognormals and its cumulant."""

LAW = "tests/unit/numerics/test_lognormal_mean.py"
GOLDEN = "tests/unit/guarantee/test_allocation.py::test_golden_deltas"
MEAN, ONE = "numerics/lognormal_mean.py", "numerics/lognormal.py"
CUMULANT = "guarantee/loss/cumulant_allocation.py"

WHOLE = " ".join(
    f"tests/unit/guarantee/test_allocation.py::test_{name}"
    for name in (
        "less_noise_and_more_epochs_cost_more",
        "a_cut_off_epoch_counts_as_a_whole_one",
        "golden_epsilons",
        "a_replaced_record_is_two_of_them",
        "the_removed_order_is_the_worse_one",
    )
)
EXACT = "theorems/balls_in_bins_exact.py"

PARTIAL = "tests/unit/theorems/test_partial_epochs.py"

FAULTS = [
    (MEAN, "slope[0] *= 0.5", "slope[0] *= 1.0", LAW),
    (MEAN, "factor = np.asarray(k / math.pi", "factor = np.asarray(1.0 / math.pi", LAW),
    (MEAN, "np.minimum(logs, m - a * x)", "np.minimum(logs, m - (a + 1) * x)", LAW),
    (ONE, "0.5 * bend * bend + 1j * g * bend", "0.5 * bend * bend - 1j * g * bend", LAW),
    (ONE, "coefficients = 0.5 * mu * mu * k * (k - 1.0)", "coefficients = 0.0 * k", LAW),
    (CUMULANT, "1.01 * inside + math", "math", LAW),
    (CUMULANT, "2.0 * math.pi / self.law.step - frequency", "2.0 * math.pi / self.law.step", LAW),
    (CUMULANT, "math.exp(-0.5 * variance * y * y)", "math.exp(-variance * y * y)", LAW),
    (CUMULANT, '(1.0, 1.0) if pair.direction == "remove"', "(1.0, 0.0) if True", GOLDEN),
    (MEAN, "(whole, strip / fine + cut)", "(whole, 0.0 * strip + cut)", LAW),
    (MEAN, "(strip + strips) / fine + cut", "0.0 * strip + cut", LAW),
    (MEAN, "np.asarray(count * f_error / size + unit", "np.asarray(unit", LAW),
    (
        MEAN,
        "np.exp(exponents) * (slope * np.expm1(logs))",
        "np.exp(exponents) * (slope * logs)",
        LAW,
    ),
    (MEAN, "0.5 * powers * (mu * mu + powers * variance)", "0.4 * powers * (mu * mu)", LAW),
    (MEAN, "known = error < 0.5 * most", "known = error < 1e9 * most", LAW),
    (ONE, "self.units * size + self.share", "0.0 * size + 0.0 * self.share", LAW),
    (ONE, "fixed = float(gammaln(power + 1.0))", "fixed = float(gammaln(power))", LAW),
    (ONE, "values * (1.0 + 1e-12)", "values * (1.0 - 1e-1)", LAW),
    (CUMULANT, "return 3.0 * math.exp(", "return 0.003 * math.exp(", LAW),
    (CUMULANT, "if power >= 1.0 or power <= 0.0:", "if True:", LAW),
    (
        EXACT,
        "epochs = -(-process.steps // batches)\n    if",
        "epochs = process.steps // batches\n    if",
        WHOLE,
    ),
    (EXACT, "Validity.BOUND, attained=_attained(process, epochs)\n", "VALIDITY\n", PARTIAL),
    (EXACT, "epochs = -(-process.steps // batches_of(process))", "epochs = 1", PARTIAL),
    (
        EXACT,
        "adjacency=Adjacency.ADD_OR_REMOVE)).as_replace_one()",
        "adjacency=Adjacency.ADD_OR_REMOVE))",
        WHOLE,
    ),
    (EXACT, 'for way in ("remove", "add"))', 'for way in ("add",))', WHOLE),
]
