"""Answers: verified ends, orders, infinite mass, groups, composition, theorems."""

ENDS = "tests/unit/guarantee/test_verified_ends.py"
LOSS = "guarantee/loss/"
INVERSE, CONTOUR, LINE, PROFILE, LATTICE, CLOSED = (
    f"{LOSS}{name}.py"
    for name in (
        [
            "contour_inverse",
            "contour",
            "contour_line",
            "profile",
            "lattice_inverse",
            "closed_form",
        ]
    )
)
ROUNDING = "numerics/rounding.py"
BINARY, OF_BINARY = "guarantee/renyi/binary.py", "tests/unit/guarantee/test_renyi_binary.py"
CELLS, OF_CELLS = f"{LOSS}renyi_cells.py", "tests/unit/guarantee/test_renyi_cells.py"
GROUP, COMPOSE, KIND = "guarantee/kinds/group.py", "guarantee/compose.py", "guarantee/kinds/loss.py"

FAULTS = [
    (
        CELLS,
        "isinstance(pair, GaussianPair) or pair.rate == 1.0",
        "isinstance(pair, GaussianPair)",
        OF_CELLS,
    ),
    (BINARY, "far = (power > _LARGE) | np.isinf(chi)", "far = power > 0.0", OF_BINARY),
    (BINARY, "far = (power > _LARGE) | np.isinf(chi)", "far = power > _LARGE", OF_BINARY),
    (BINARY, "far = (value > _LARGE) | np.isinf(near)", "far = value > -np.inf", OF_BINARY),
    (BINARY, "np.where(z * chi > _NOTHING", "np.where(z * chi >= 0.0", OF_BINARY),
    (BINARY, "np.where(power > _NOTHING", "np.where(power > 1e-3", OF_BINARY),
    (BINARY, "3.0 * ULP * (4.0 + np.abs(log_p)", "0.1 * ULP * (4.0 + np.abs(log_p)", OF_BINARY),
    (INVERSE, "line.certified(high).upper <= self", "line.certified(high).lower <= self", ENDS),
    (INVERSE, "line.certified(low).lower >= self", "line.certified(low).upper >= self", ENDS),
    (INVERSE, "<= self.log_target - self.slack", "<= self.log_target + self.slack", ENDS),
    (INVERSE, "+ 2.0 * math.exp(min(log_missing", "+ 0.0 * math.exp(min(log_missing", ENDS),
    (
        INVERSE,
        "return log_delta_at(x).upper <= log_target",
        "return log_delta_at(x).lower <= log_target",
        ENDS,
    ),
    (INVERSE, "lambda x: log_delta_at(x).lower <", "lambda x: log_delta_at(x).upper <", ENDS),
    (
        LATTICE,
        "if value > target else (low, min(high, x))",
        "if value > target + 1.0 else (low, min(high, x))",
        ENDS,
    ),
    (
        PROFILE,
        "max(seen[epsilon].upper, -1e300) - target",
        "max(seen[epsilon].lower, -1e300) - target",
        ENDS,
    ),
    (PROFILE, "if value.lower > target), default", "if value.upper > target), default", ENDS),
    (
        PROFILE,
        "turned = log_reverse <= log_delta or",
        "turned = log_reverse <= 0.9 * log_delta or",
        ENDS,
    ),
    (PROFILE, "(turned and are_reversed(first, order))", "turned", ENDS),
    (PROFILE, "if log_chernoff(order, found.lower, log_delta) > log_delta:", "if False:", ENDS),
    (PROFILE, "if log_chernoff(order, epsilon, log_found) > log_found:", "if False:", ENDS),
    (ROUNDING, "math.nextafter(value * (1.0 + 4.0 * UNIT), math.inf)", "value", ENDS),
    (ROUNDING, "math.nextafter(value * (1.0 - 4.0 * UNIT), -math.inf)", "value", ENDS),
    (ROUNDING, "* (1.0 + 4e-16) - 4e-16 if value", "if value", ENDS),
    (
        PROFILE,
        "if pair.least_infinite_mass > delta:",
        "if pair.least_infinite_mass > 1.1 * delta:",
        "tests/unit/guarantee/test_lattice_edges.py " + ENDS,
    ),
    (
        LINE,
        "upper = line.certified(-epsilon).upper",
        "upper = line.certified(-epsilon).lower",
        ENDS,
    ),
    (
        LINE,
        "math.expm1(-epsilon) + math.exp(upper)",
        "2.0 * math.expm1(-epsilon) + math.exp(upper)",
        ENDS,
    ),
    (LINE, "if any(pair.infinite_mass > 0.0 for pair, _ in components):", "if False:", ENDS),
    (
        CONTOUR,
        "return log_infinite > (math.log(delta)",
        "return log_infinite > (0.1 + math.log(delta)",
        ENDS,
    ),
    (
        CONTOUR,
        "goal = EpsilonGoal(log_target + math.log1p(-share)",
        "goal = EpsilonGoal(log_target",
        "tests/unit/guarantee/test_contour.py " + ENDS,
    ),
    (CONTOUR, "square = 0.25 * math.expm1", "square = 0.2 * math.expm1", ENDS),
    (
        CONTOUR,
        "whole = Interval(found.lower, found.upper + share)",
        "whole = found",
        "tests/unit/guarantee/test_contour_jumps.py " + ENDS,
    ),
    (CLOSED, "2.0 * rounding / left + 4.0", "4.0", ENDS),
    (CLOSED, "part.lower - error, min(0.0, part.upper + error)", "part.lower, part.upper", ENDS),
    (GROUP, "(order - 0.5) / (order - 1.0) * first", "(order - 1.0) / (order - 0.5) * first", ENDS),
    (GROUP, "_chained(inner, half, 2 * order)", "_chained(inner, half, order)", ENDS),
    (GROUP, "(self.size - 1) * each + tails", "(self.size - 2) * each + tails", ENDS),
    (COMPOSE, "-math.expm1(log_kept) * (1 + 1e-14)", "-math.expm1(log_kept) * (1 - 1e-12)", ENDS),
    (COMPOSE, "directions[order if len(directions) > 1 else 0]", "directions[0]", ENDS),
    (COMPOSE, "total[pair] += times * count", "total[pair] += times", ENDS),
    (
        COMPOSE,
        "if set(validities) == {Validity.EXACT}",
        "if Validity.EXACT in set(validities)",
        ENDS,
    ),
    (f"{KIND}::_ruled_out", "1.0 + 4e-13", "1.0 - 1e-11", ENDS),
    (
        "guarantee/gaussian/composition.py",
        "_UP = 1.0 + 4.0 * ULP",
        "_UP = 1.0 - 4.0 * ULP",
        ENDS,
    ),
    (
        "guarantee/from_profile.py",
        "return -1.0 if value.upper <= target",
        "return -1.0 if value.lower <= target",
        "tests/unit/guarantee/test_failing.py " + ENDS,
        "only its sign is read where delta is 0, which has one value",
    ),
    (
        "theorems/hidden_full_batch.py",
        "(1.0 + factor) / (1.0 - factor)",
        "1.0 / (1.0 - factor)",
        "tests/unit/theorems/test_hidden_golden.py",
    ),
    (
        "numerics/lognormal_moments.py",
        "growth ** (2 * (k - 1)) / k",
        "growth ** (2 * (k - 1)) / (k + 1)",
        "tests/unit/numerics/test_lognormal_moments.py",
    ),
    (
        "theorems/poisson_gaussian_exact_zdw22.py",
        'direction in ("remove", "add")',
        'direction in ("add",)',
        "tests/unit/test_account.py",
    ),
    (
        "theorems/stopping_times.py",
        "return first, KEPT",
        "return first, 1.0",
        "tests/attacks/test_stopping.py",
    ),
    (
        "theorems/gaussian_gdp_drs19.py",
        "process.step_mu * math.sqrt(process.steps)",
        "process.step_mu",
        "tests/unit/test_account.py",
    ),
    (
        "theorems/single_releases_exact.py",
        "process.categories * (1.0 - process.flip)",
        "(1.0 - process.flip)",
        "tests/unit/test_account.py",
    ),
]
