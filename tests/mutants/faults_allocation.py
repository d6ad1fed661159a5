"""Balls in bins: the law of the mean of lognormals and its cumulant."""

LAW = "tests/unit/numerics/test_lognormal_mean.py"
GOLDEN = "tests/unit/guarantee/test_allocation.py::test_golden_deltas"
MEAN, ONE = "numerics/lognormal_mean.py", "numerics/lognormal.py"
CUMULANT = "guarantee/loss/cumulant_allocation.py"

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
]
