"""Answers: verified ends, orders, infinite mass, groups, composition, theorems."""

ENDS = "tests/unit/guarantee/test_verified_ends.py"
LOSS = "guarantee/loss/"
INVERSE, CONTOUR, LINE, PROFILE, LATTICE, SAMPLING, SAMPLED = (
    f"{LOSS}{name}.py"
    for name in (
        "contour",
        "contour",
        "contour",
        "profile",
        "lattice/answers",
        "pairs/sampling",
        "pairs/sampled",
    )
)
ROUNDING = "numerics/rounding.py"
BINARY, OF_BINARY = (
    "guarantee/renyi/kernel.py",
    "tests/unit/guarantee/test_renyi_kernel.py",
)
CELLS, OF_CELLS = f"{LOSS}renyi.py", "tests/unit/guarantee/test_renyi_cells.py"
GROUP, COMPOSE, KIND = "guarantee/kinds/group.py", "guarantee/compose.py", "guarantee/kinds/loss.py"

FAULTS = [
    (
        f"{SAMPLED}::SampledGaussianPair.cell_edges",
        "self.rate == 1.0",
        "False",
        OF_CELLS,
    ),
    (
        f"{BINARY}::log_chi_of_gamma",
        "(power > _LARGEST_POWER) | np.isinf(chi)",
        "power > 0.0",
        OF_BINARY,
    ),
    (
        f"{BINARY}::log_chi_of_gamma",
        "(power > _LARGEST_POWER) | np.isinf(chi)",
        "power > _LARGEST_POWER",
        OF_BINARY,
    ),
    (
        f"{BINARY}::gamma_of_log_chi",
        "(value > _LARGEST_POWER) | np.isinf(near)",
        "value > -np.inf",
        OF_BINARY,
    ),
    (f"{BINARY}::gamma_of_log_chi", "z * chi > _NOTHING", "z * chi >= 0.0", OF_BINARY),
    (f"{BINARY}::log_chi_of_gamma", "_NOTHING", "1e-3", OF_BINARY),
    (f"{BINARY}::log_chi_slack", "3.0 * ULP", "0.1 * ULP", OF_BINARY),
    (
        f"{INVERSE}::Inverse._verify",
        "line.certified(high).upper",
        "line.certified(high).lower",
        ENDS,
    ),
    (f"{INVERSE}::Inverse._verify", "line.certified(low).lower", "line.certified(low).upper", ENDS),
    (
        f"{INVERSE}::Inverse._verify",
        "self.log_target - self.slack",
        "self.log_target + self.slack",
        ENDS,
    ),
    (
        f"{INVERSE}::Inverse.__init__",
        "2.0 * math.exp(min(log_missing - self.log_target, 700.0))",
        "0.0 * math.exp(min(log_missing - self.log_target, 700.0))",
        ENDS,
    ),
    (
        f"{INVERSE}::invert_closed_form.safe",
        "log_delta_at(x).upper",
        "log_delta_at(x).lower",
        ENDS,
    ),
    (f"{INVERSE}::invert_closed_form", "log_delta_at(x).lower", "log_delta_at(x).upper", ENDS),
    (
        f"{LATTICE}::_crossing",
        "(max(low, x), high) if value > target else (low, min(high, x))",
        "(max(low, x), high) if value > target + 1.0 else (low, min(high, x))",
        ENDS,
    ),
    (
        f"{PROFILE}::_single_epsilon.excess",
        "seen[epsilon].upper",
        "seen[epsilon].lower",
        ENDS,
    ),
    (f"{PROFILE}::_single_epsilon", "value.lower", "value.upper", ENDS),
    (
        f"{PROFILE}::worst_epsilon",
        "log_reverse <= log_delta",
        "log_reverse <= 0.9 * log_delta",
        ENDS,
    ),
    (
        f"{PROFILE}::worst_epsilon",
        "_largest_loss(order) <= found.lower or (turned and are_reversed(first, order))",
        "_largest_loss(order) <= found.lower or turned",
        ENDS,
    ),
    (
        f"{PROFILE}::worst_epsilon",
        "log_chernoff(_few_above(order), found.lower, log_delta) > log_delta",
        "False",
        ENDS,
    ),
    (
        f"{PROFILE}::worst_delta",
        "log_chernoff(_few_above(order), epsilon, log_found) > log_found",
        "False",
        ENDS,
    ),
    (f"{ROUNDING}::up", "math.nextafter(value * (1.0 + 4.0 * UNIT), math.inf)", "value", ENDS),
    (f"{ROUNDING}::down", "math.nextafter(value * (1.0 - 4.0 * UNIT), -math.inf)", "value", ENDS),
    (
        f"{ROUNDING}::log_down",
        "math.log(value) * (1.0 + 4e-16) - 4e-16 if value > 0.0 else -math.inf",
        "math.log(value) if value > 0.0 else -math.inf",
        ENDS,
    ),
    (
        f"{PROFILE}::_single_epsilon",
        "pair.least_infinite_mass > delta",
        "pair.least_infinite_mass > 1.1 * delta",
        "tests/unit/guarantee/test_lattice_edges.py " + ENDS,
    ),
    (
        f"{LINE}::log_reverse",
        "line.certified(-epsilon).upper",
        "line.certified(-epsilon).lower",
        ENDS,
    ),
    (
        f"{LINE}::log_reverse",
        "math.expm1",
        "2.0 * math.expm1",
        ENDS,
    ),
    (
        f"{LINE}::log_chernoff",
        "any(pair.infinite_mass > 0.0 for pair, _ in components)",
        "False",
        ENDS,
    ),
    (
        f"{CONTOUR}::epsilon_and_reverse",
        "infinite.lower > log_target",
        "infinite.lower > 0.1 + log_target",
        ENDS,
    ),
    (
        f"{CONTOUR}::_beside",
        "log_target + math.log1p(-share)",
        "log_target",
        "tests/unit/guarantee/test_contour.py " + ENDS,
    ),
    (
        f"{CONTOUR}::_most_variation",
        "0.25 * math.expm1(min(count * pair.log_mean_square, 700.0))",
        "0.2 * math.expm1(min(count * pair.log_mean_square, 700.0))",
        ENDS,
    ),
    (
        f"{CONTOUR}::_without_rare",
        "Interval(found.lower, found.upper + share)",
        "found",
        "tests/unit/guarantee/test_contour_jumps.py " + ENDS,
    ),
    (
        f"{SAMPLING}::_moved_epsilon",
        "2.0 * rounding / left + 4.0 * ULP * (abs(value) - math.log(q) + 1.0)",
        "4.0 * ULP * (abs(value) - math.log(q) + 1.0)",
        ENDS,
    ),
    (
        f"{SAMPLING}::sampled_added",
        "Interval(part.lower - error, min(0.0, part.upper + error))",
        "Interval(part.lower, part.upper)",
        ENDS,
    ),
    (f"{GROUP}::_chained", "(order - 0.5) / (order - 1.0)", "(order - 1.0) / (order - 0.5)", ENDS),
    (
        f"{GROUP}::_chained",
        "_chained(inner, half, 2 * order)",
        "_chained(inner, half, order)",
        ENDS,
    ),
    (f"{GROUP}::GroupGuarantee._log_growth", "self.size - 1", "self.size - 2", ENDS),
    (f"{COMPOSE}::_by_renyi", "1 + 1e-14", "1 - 1e-12", ENDS),
    (f"{COMPOSE}::_together", "order if len(directions) > 1 else 0", "0", ENDS),
    (f"{COMPOSE}::_together", "times * count", "times", ENDS),
    (
        f"{COMPOSE}::_weakest",
        "set(validities) == {Validity.EXACT}",
        "Validity.EXACT in set(validities)",
        ENDS,
    ),
    (f"{KIND}::_ruled_out", "1.0 + 4e-13", "1.0 - 1e-11", ENDS),
    (
        "tightrope_reproduce/formulas/gaussian_noise.py",
        "_UP = 1.0 + 4.0 * ULP",
        "_UP = 1.0 - 4.0 * ULP",
        ENDS,
    ),
    (
        "guarantee/tradeoff.py::_sign",
        "value.upper",
        "value.lower",
        "tests/unit/guarantee/test_kinds.py " + ENDS,
        "only its sign is read where delta is 0, which has one value",
    ),
    (
        "theorems/last_iterate/descent.py::full_batch_squared_mu",
        "(1.0 + factor) / (1.0 - factor)",
        "1.0 / (1.0 - factor)",
        "tests/unit/theorems/test_hidden_golden.py",
    ),
    (
        "numerics/lognormal_mean.py::log_positive_moments",
        "series[-1] * growth ** (2 * (k - 1)) / k",
        "series[-1] * growth ** (2 * (k - 1)) / (k + 1)",
        "tests/unit/numerics/test_lognormal_mean.py",
    ),
    (
        "theorems/sampling.py::PoissonGaussianExactZdw22.proved",
        '("remove", "add")',
        '("add",)',
        "tests/unit/test_account.py",
    ),
    (
        "theorems/stopping_times.py::stated",
        "first, KEPT",
        "first, 1.0",
        "tests/attacks/test_stopping.py",
    ),
    (
        "theorems/releases.py::GaussianGdpDrs19.proved",
        "process.step_mu * math.sqrt(process.steps)",
        "process.step_mu",
        "tests/unit/test_account.py",
    ),
    (
        "theorems/releases.py::_response",
        "process.categories * (1.0 - process.flip)",
        "(1.0 - process.flip)",
        "tests/unit/test_account.py",
    ),
]
