"""The best of a secret number of trials, by their profile."""

TESTS = "tests/unit/theorems/test_selection_profile.py"
FILE = "theorems/poisson_selection_profile.py"
BOTH = TESTS + " tests/unit/search/test_selection.py"
BINOMIAL = "guarantee/selection.py"

FAULTS = [
    (
        FILE,
        "delta_bounds(epsilon - moved, mu)[1]",
        "delta_bounds(epsilon + 0.0 * moved, mu)[1]",
        TESTS,
    ),
    (FILE, "weights = np.append(-np.diff(mean * np", "weights = np.append(-np.diff(np", TESTS),
    (FILE, "u = np.minimum(p, ndtr(-0.5 * mu))", "u = np.minimum(p, ndtr(-3.0 - mu))", TESTS),
    (FILE, "_most_moved(p[1:], mu)", "_most_moved(p[:-1] + 1e-300, 0.5 * mu)", TESTS),
    (BINOMIAL, "float((1.0 + shape) * min(cost)", "float(shape * min(cost)", BOTH),
    (BINOMIAL, "self.extra + self.log_mean / (orders - 1.0)", "self.extra", BOTH),
    ("process/selection.py", "math.exp(low) * (1.0 - 1e-14)", "math.exp(high) * (1 + 1e-9)", TESTS),
]
