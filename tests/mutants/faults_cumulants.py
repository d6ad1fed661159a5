"""Cumulants: strips, grids, panels, densities, tails."""

BOUNDS = "tests/unit/guarantee/test_cumulant_bounds.py"
ROOM = "guarantee/loss/pairs/"
SAMPLED, GRID, SAMPLING, FIXED, LAPLACE, POINTS, DISCRETE, MIXTURE = (
    f"{ROOM}{name}.py"
    for name in (
        "sampled",
        "sampled_grid",
        "sampling",
        "fixed_size",
        "laplace",
        "points",
        "discrete",
        "mixture",
    )
)

VALUES = "tests/unit/guarantee/test_discrete_pairs.py"
RATES = "tests/unit/guarantee/test_rates_near_one.py"
MIXED = "tests/unit/guarantee/test_mixture.py"

FAULTS = [
    (
        f"{GRID}::SampledStrip.outline",
        "np.maximum(f[:, :-1], f[:, 1:]) + 0.125 * width * width * bend + np.log(width)",
        "np.maximum(f[:, :-1], f[:, 1:]) + np.log(width)",
        BOUNDS,
    ),
    (
        f"{GRID}::SampledStrip.outline",
        "np.minimum(cross[:, :-1], cross[:, 1:])",
        "cross[:, :-1]",
        BOUNDS,
    ),
    (
        f"{GRID}::SampledStrip.outline",
        "t[:, 1:] if right_ends else t[:, :-1]",
        "t[:, :-1] if right_ends else t[:, 1:]",
        BOUNDS,
    ),
    (f"{GRID}::SampledStrip.tails", "push * theta", "0.0 * theta", BOUNDS),
    (f"{GRID}::SampledStrip.tails", "left + math.log(1.2534)", "left - 1.0", BOUNDS),
    (f"{GRID}::Outline.total", "total + 0.5 * self.depths * self.depths", "total", BOUNDS),
    (
        f"{GRID}::SampledStrip.tails",
        "0.5 * w * np.log1p(-2.0 * nearest * (1.0 - nearest) * (1.0 - np.cos(theta)))",
        "0.0 * w * theta",
        BOUNDS,
    ),
    (f"{GRID}::SampledGrid._quadrature", "strip + beyond", "beyond", BOUNDS),
    (
        f"{GRID}::SampledGrid._quadrature",
        "strip + beyond + np.where(np.abs(value) <= 0.6, self._base_error(), 0.0)",
        "strip + np.where(np.abs(value) <= 0.6, self._base_error(), 0.0)",
        BOUNDS,
    ),
    (
        f"{GRID}::SampledGrid.mass",
        "log_error(self._quadrature) + rounding",
        "rounding",
        BOUNDS,
    ),
    (f"{GRID}::layers_of_density", "np.minimum(g[:, :-1], g[:, 1:])", "g[:, :-1]", BOUNDS),
    (
        f"{GRID}::layers_of_density",
        "4.0 * np.exp(np.minimum(sup, 700.0))",
        "1.0 * np.exp(np.minimum(sup, 700.0))",
        BOUNDS,
    ),
    (
        f"{GRID}::layers_of_density",
        "log_size[:, None] + LOG_MASS_SLACK",
        "log_size[:, None] - 0.1",
        BOUNDS,
    ),
    (
        "guarantee/loss/pairs/sampled_part.py::Panels._log_on_box",
        "np.clip(0.0, left, right)",
        "right",
        BOUNDS,
    ),
    (
        "guarantee/loss/pairs/sampled_part.py::Panels._log_on_box",
        "self.w * lr + self.frequency * angle",
        "self.w * lr",
        BOUNDS,
    ),
    (
        "guarantee/loss/pairs/points.py::log_panels_error",
        "64.0 / 15.0",
        "64e-6 / 15.0",
        BOUNDS,
    ),
    (
        "guarantee/loss/pairs/sampled_part.py::Panels.log_left",
        "0.5 * at",
        "at",
        BOUNDS,
    ),
    ("guarantee/loss/pairs/sampled_part.py::log_tail", "log_ndtr(mu - s)", "log_ndtr(-s)", BOUNDS),
    (
        "guarantee/loss/pairs/sampled_part.py::PartCumulant.log_dropped",
        "tails + np.log(self.counts)",
        "tails",
        BOUNDS,
    ),
    (
        "guarantee/loss/pairs/sampled_part.py::PartCumulant.nodes",
        "total - self._beyond(w)",
        "total",
        BOUNDS,
    ),
    (
        "guarantee/loss/pairs/sampled_part.py::PartCumulant.shifted.further",
        "np.logaddexp(logs, down - math.log(y))",
        "logs",
        BOUNDS,
    ),
    (
        f"{SAMPLED}::SampledCumulant.shifted.further",
        "-y * ones",
        "-2.0 * y * ones",
        BOUNDS,
    ),
    (f"{FIXED}::FixedSizeCumulant.decay", "np.minimum(g[:-1], g[1:])", "g[:-1]", BOUNDS),
    (
        f"{FIXED}::FixedSizeCumulant._choose",
        "self._panel_errors(trial, powers, frequency) + outside",
        "0.0",
        BOUNDS,
    ),
    (
        f"{POINTS}::BoundedCumulant.nodes",
        "3.0 * math.exp(log_error - value)",
        "0.0 * math.exp(log_error - value)",
        BOUNDS,
    ),
    (f"{LAPLACE}::LaplaceCumulant.decay", "np.minimum(g[:-1], g[1:])", "g[1:]", BOUNDS),
    (
        f"{POINTS}::log_mass",
        "float(np.sum(first + tilt * second)) - infinite + tilt * (only_under_q - infinite)",
        "float(np.sum(first + tilt * second)) ",
        BOUNDS,
    ),
    (
        f"{POINTS}::log_mass",
        "float(np.sum(first + tilt * second)) - infinite + tilt * (only_under_q - infinite)",
        "float(np.sum(first + tilt * second)) - infinite",
        VALUES,
    ),
    (
        f"{DISCRETE}::DiscreteCumulant.nodes",
        "UNIT * (2.0 + 2.0 * np.abs(tilt * self.losses)) + self.log_errors",
        "UNIT * (2.0 + 2.0 * np.abs(tilt * self.losses)) ",
        VALUES,
    ),
    (f"{DISCRETE}::DiscretePair.log_errors", "3.0 + sizes", "0.0 * sizes", VALUES),
    (DISCRETE, "self.only_under_q,\n            self.infinite_mass", "0.0, 0.0", VALUES),
    (
        f"{DISCRETE}::DiscretePair.__post_init__",
        "self.only_under_q + missing",
        "self.only_under_q",
        VALUES,
    ),
    (f"{DISCRETE}::_pair", "off / UNIT", "0.0", VALUES),
    (f"{DISCRETE}::_pair", "far + left_out", "0.0", VALUES),
    (SAMPLING, "_LARGEST_POWER = 700.0", "_LARGEST_POWER = 30.0", RATES),
    (
        f"{SAMPLING}::_log_one_plus",
        "(np.asarray(rate) > 0.5) & (u < -0.5)",
        "(np.asarray(rate) > 2.0)",
        RATES,
    ),
    (
        f"{DISCRETE}::DiscretePair.log_delta_single",
        "np.array(self.losses) + way * self.loss_error - epsilon",
        "np.array(self.losses) - epsilon",
        VALUES,
    ),
    (f"{SAMPLING}::below_support", "64.0 * ULP * (1.0 + abs(value))", "64.0 * ULP", VALUES),
    (f"{DISCRETE}::DiscretePair.divergence_terms", "way * self.log_errors", "0.0", VALUES),
    (f"{LAPLACE}::LaplacePair.top", "math.nextafter(found, math.inf)", "found", RATES),
    (
        f"{MIXTURE}::MixtureCumulant._log_on_box",
        "4.0 * spread * np.log(np.cos(half))",
        "0.0 * spread",
        MIXED,
    ),
    (f"{MIXTURE}::MixtureCumulant._panels", "last = len(coarse.x) - 1", "pass", MIXED),
    (f"{MIXTURE}::MixtureCumulant.nodes", "total - out[0]", "total", MIXED),
    (
        f"{MIXTURE}::_excess",
        "tilt * q * (safe * np.expm1(safe) - expm1_minus(safe))",
        "q * (safe * np.expm1(safe) - expm1_minus(safe))",
        MIXED,
    ),
    (f"{MIXTURE}::furthest_peak", "(1.0 + tilt) * pair.mu * pair.plus + high", "high", MIXED),
]
