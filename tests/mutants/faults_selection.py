"""The best of a secret number of trials, by their profile."""

TESTS = "tests/unit/theorems/test_selection_profile.py"
FILE = "theorems/selection.py"
BOTH = TESTS + " tests/unit/search/test_selection.py"
BINOMIAL = "guarantee/selection.py"

FAULTS = [
    (
        f"{FILE}::_delta_upper",
        "epsilon - moved",
        "epsilon + 0.0 * moved",
        TESTS,
    ),
    (f"{FILE}::_cells", "mean * np.exp(-mean * p)", "np.exp(-mean * p)", TESTS),
    (f"{FILE}::_most_moved", "-0.5 * mu", "-3.0 - mu", TESTS),
    (f"{FILE}::_cells", "_most_moved(p[1:], mu)", "_most_moved(p[:-1] + 1e-300, 0.5 * mu)", TESTS),
    (f"{BINOMIAL}::binomial_selection", "(1.0 + shape) * min(cost)", "shape * min(cost)", BOTH),
    (
        f"{BINOMIAL}::_BinomialSelected.upper",
        "self.extra + self.log_mean / (orders - 1.0)",
        "self.extra",
        BOTH,
    ),
    (
        "process/selection.py::NegativeBinomialSelection.gamma",
        "math.exp(low) * (1.0 - 1e-14)",
        "math.exp(high) * (1 + 1e-9)",
        TESTS,
    ),
]
