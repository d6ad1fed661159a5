"""Cumulants: strips, grids, panels, densities, tails."""

BOUNDS = "tests/unit/guarantee/test_cumulant_bounds.py"
STRIP, GRID, PANELS, PART, SAMPLED, FIXED, LAPLACE, BOUNDED, DISCRETE = (
    f"guarantee/loss/cumulant_{part}.py"
    for part in (
        [
            "strip",
            "grid",
            "panels",
            "part",
            "sampled",
            "fixed_size",
            "laplace",
            "bounded",
            "discrete",
        ]
    )
)

VALUES = "tests/unit/guarantee/test_discrete_pairs.py"
RATES = "tests/unit/guarantee/test_rates_near_one.py"
POINTS, PAIR = "guarantee/loss/cumulant_points.py", "guarantee/loss/discrete.py"
NOISE, ARMS = "guarantee/loss/integer_noise.py", "guarantee/loss/by_chance.py"
CLOSED, CELLS = "guarantee/loss/closed_form.py", "guarantee/loss/renyi_cells.py"
TOP = "guarantee/loss/laplace.py"
MIXED = "tests/unit/guarantee/test_mixture.py"
MIXTURE = "guarantee/loss/cumulant_mixture.py"
SCAN = "guarantee/loss/cumulant_mixture_scan.py"

FAULTS = [
    (STRIP, "+ 0.125 * width * width * bend +", "+", BOUNDS),
    (STRIP, "np.minimum(cross[:, :-1], cross[:, 1:])", "cross[:, :-1]", BOUNDS),
    (
        STRIP,
        "t[:, 1:] if right_ends else t[:, :-1]",
        "t[:, :-1] if right_ends else t[:, 1:]",
        BOUNDS,
    ),
    (STRIP, "+ push * theta\n", "+ 0.0 * theta\n", BOUNDS),
    (STRIP, "left + math.log(1.2534), right", "left - 1.0, right", BOUNDS),
    (STRIP, "total + 0.5 * self.depths * self.depths", "total", BOUNDS),
    (STRIP, "0.5 * w * _log_modulus", "0.0 * w * _log_modulus", BOUNDS),
    (GRID, "return np.asarray(strip + beyond +", "return np.asarray(beyond +", BOUNDS),
    (GRID, "return np.asarray(strip + beyond +", "return np.asarray(strip +", BOUNDS),
    (
        GRID,
        "return value, log_error(self._quadrature) + rounding",
        "return value, rounding",
        BOUNDS,
    ),
    (STRIP, "np.minimum(g[:, :-1], g[:, 1:]) - bend", "g[:, :-1] - bend", BOUNDS),
    (STRIP, "variation = 4.0 * np.exp", "variation = 1.0 * np.exp", BOUNDS),
    (
        STRIP,
        "scale = log_size[:, None] + LOG_MASS_SLACK",
        "scale = log_size[:, None] - 0.1",
        BOUNDS,
    ),
    (PANELS, "nearest = np.clip(0.0, left, right)", "nearest = right", BOUNDS),
    (PANELS, "self.w * lr[0] + self.frequency * angle[0]", "self.w * lr[0]", BOUNDS),
    (PANELS, "64.0 / 15.0 * half", "64e-6 / 15.0 * half", BOUNDS),
    (
        PANELS,
        "self._log_gaussian(lr)) - 0.5 * at * at",
        "self._log_gaussian(lr)) - at * at",
        BOUNDS,
    ),
    (PART, "log_rate + log_ndtr(mu - s)", "log_rate + log_ndtr(-s)", BOUNDS),
    (PART, "tails + np.log(self.counts)", "tails", BOUNDS),
    (PART, "total - self._beyond(w)", "total", BOUNDS),
    (PART, "np.logaddexp(logs, down - math.log(y))", "logs", BOUNDS),
    (
        SAMPLED,
        "outline.total(-y * ones, outside)",
        "outline.total(-2.0 * y * ones, outside)",
        BOUNDS,
    ),
    (FIXED, "sides.append(np.exp(np.minimum(g[:-1], g[1:])", "sides.append(np.exp(g[:-1]", BOUNDS),
    (FIXED, "self._panel_errors(trial, powers, frequency) + outside", "0.0", BOUNDS),
    (BOUNDED, "quadrature = 3.0 * math.exp", "quadrature = 0.0 * math.exp", BOUNDS),
    (LAPLACE, "heights = np.exp(np.minimum(g[:-1], g[1:]))", "heights = np.exp(g[1:])", BOUNDS),
    (POINTS, "- infinite + tilt * (only_under_q - infinite)", "", BOUNDS),
    (POINTS, "- infinite + tilt * (only_under_q - infinite)", "- infinite", VALUES),
    (DISCRETE, "+ self.log_errors", "", VALUES),
    (PAIR, "* (3.0 + sizes)", "* (0.0 * sizes)", VALUES),
    (PAIR, "self.only_under_q,\n            self.infinite_mass", "0.0, 0.0", VALUES),
    (PAIR, "self.only_under_q + missing", "self.only_under_q", VALUES),
    (NOISE, "loss_units=off / UNIT", "loss_units=0.0", VALUES),
    (NOISE, "only_under_q=far + left_out", "only_under_q=0.0", VALUES),
    (ARMS, "_LARGEST_POWER = 700.0", "_LARGEST_POWER = 30.0", RATES),
    (ARMS, "(np.asarray(rate) > 0.5) & (u < -0.5)", "(np.asarray(rate) > 2.0)", RATES),
    (
        CLOSED,
        "gaps = np.array(pair.losses) + way * pair.loss_error",
        "gaps = np.array(pair.losses)",
        VALUES,
    ),
    (CLOSED, "slack = 64.0 * ULP * (1.0 + abs(value))", "slack = 64.0 * ULP", VALUES),
    (CELLS, "way * pair.log_errors", "0.0", VALUES),
    (TOP, "return math.nextafter(found, math.inf)", "return found", RATES),
    (MIXTURE, "4.0 * spread * np.log(np.cos(half))", "0.0 * spread", MIXED),
    (MIXTURE, "last = len(coarse.x) - 1", "pass", MIXED),
    (MIXTURE, "total - out[0], rounding", "total, rounding", MIXED),
    (MIXTURE, "tilt * q * (safe", "q * (safe", MIXED),
    (SCAN, "return (1.0 + tilt) * pair.mu * pair.plus + high", "return high", MIXED),
]
