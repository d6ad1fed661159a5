"""Renyi bounds of sampled steps: where they are claimed."""

TESTS = "tests/unit/theorems/test_sampling_golden.py"
CLOSED = "theorems/poisson_renyi.py"
LEADING = "theorems/poisson_renyi.py"
BOTH = "first & second & (orders > 1.0)"

FAULTS = [
    # noise so small that the bound is below the divergence
    (
        f"{CLOSED}::PoissonGaussianRdpClosedMtz19.condition",
        "process.noise_multiplier < 4.0",
        "False",
        TESTS,
    ),
    (f"{LEADING}::PoissonGaussianRdpAbadi16.condition", "s < 1.0", "False", TESTS),
    (f"{LEADING}::PoissonGaussianRdpAbadi16.condition", "q * s >= 1.0 / 16.0", "False", TESTS),
    (
        f"{CLOSED}::PoissonGaussianRdpClosedMtz19.condition",
        "process.sampling.rate > 0.2",
        "False",
        TESTS,
    ),
    (f"{CLOSED}::ClosedFormTerm.covers", BOTH, "second & (orders > 1.0)", TESTS),
    (f"{CLOSED}::ClosedFormTerm.covers", BOTH, "first & (orders > 1.0)", TESTS),
    (
        f"{CLOSED}::ClosedFormTerm.upper",
        "2.0 * (self.rate / self.noise_multiplier) ** 2 * orders",
        "0.5 * (self.rate / self.noise_multiplier) ** 2 * orders",
        TESTS,
    ),
]
