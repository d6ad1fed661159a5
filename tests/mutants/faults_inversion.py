"""The inversion integral: decay, nodes, laws and lines."""

BOUNDS = "tests/unit/numerics/test_inversion_bounds.py"
LAW, LINE = "numerics/inversion_law.py", "numerics/inversion.py"

FAULTS = [
    (LAW, "_SIDE_LOBE = 0.2172337", "_SIDE_LOBE = 0.2", BOUNDS),
    (
        f"{LAW}::Decay.bounds",
        "np.maximum(wave, np.minimum(_SIDE_LOBE, 1.0 / half))",
        "np.minimum(wave, np.minimum(_SIDE_LOBE, 1.0 / half))",
        BOUNDS,
    ),
    (f"{LAW}::Decay.bounds", "1.0 / half", "0.9 / half", BOUNDS),
    (f"{LAW}::Decay.bounds", "self.masses", "1.02 * self.masses", BOUNDS),
    (f"{LAW}::Decay.bounds", "self.variation", "0.9 * self.variation", BOUNDS),
    (
        f"{LAW}::layers_of_steps",
        "np.minimum.accumulate(heights[peak:])",
        "heights[peak:]",
        BOUNDS,
    ),
    (f"{LINE}::log_peak", "(1.0 + z) * np.log1p(z)", "(1.01 + z) * np.log1p(z)", BOUNDS),
    (
        f"{LAW}::TiltedNodes._error",
        "size * (self.relative + 4.0 * UNIT)",
        "size * 4.0 * UNIT",
        BOUNDS,
    ),
    (
        f"{LAW}::TiltedNodes._error",
        "size * (self.relative + 4.0 * UNIT) + self.point_error",
        "size * (self.relative + 4.0 * UNIT) ",
        BOUNDS,
    ),
    (f"{LAW}::tilted_nodes", "4.2 * quadrature", "2.0 * quadrature", BOUNDS),
    (
        f"{LAW}::log_error",
        "np.where(share <= _SMALL, 1.01 * share, large)",
        "np.where(share <= _SMALL, 1.01 * share, 1.01 * share)",
        BOUNDS,
    ),
    (f"{LAW}::tilted_nodes", "2.1 * left_out", "1.0 * left_out", BOUNDS),
    (
        f"{LAW}::tilted_nodes",
        "2.0 * UNIT * (np.abs(value) + 4.0) + 1.01 * rounding",
        "2.0 * UNIT * (np.abs(value) + 4.0) ",
        BOUNDS,
    ),
    (f"{LAW}::tilted_nodes", "log_error(quadrature) + rounding", "rounding", BOUNDS),
    (
        f"{LAW}::TiltedNodes._error",
        "96.0 + math.isqrt(len(y)) * weights.size / _TABLE",
        "0.0 + math.isqrt(len(y)) * weights.size / _TABLE",
        BOUNDS,
    ),
    (f"{LAW}::SumOnLine.sample", "np.exp(-log_part.real)", "1.0", BOUNDS),
    (
        f"{LAW}::SumOnLine.sample",
        "np.exp(np.minimum(log_phi.real + gap, 0.0)) * (rounding - np.expm1(-gap))",
        "np.exp(np.minimum(log_phi.real , 0.0)) * rounding",
        BOUNDS,
    ),
    (
        f"{LAW}::SumLaw.real_sum",
        "k_error + units * UNIT * np.abs(k)",
        "units * UNIT * np.abs(k)",
        BOUNDS,
    ),
    (
        f"{LAW}::SumOnLine.sample",
        "nodes.log_mass_error + units * UNIT * np.abs(nodes.log_mass)",
        "units * UNIT * np.abs(nodes.log_mass)",
        BOUNDS,
    ),
    (f"{LAW}::SumOnLine.log_decay", "-0.5 * self.law.variance", "-self.law.variance", BOUNDS),
    (f"{LINE}::Line._log_tail", "math.pi * y", "2.0 * math.pi * y", BOUNDS),
    (
        f"{LINE}::Line._log_aliases",
        "size - tilt * x - fall - math.log(-math.expm1(-fall))",
        "size - tilt * x - 2.0 * fall",
        BOUNDS,
    ),
    (f"{LINE}::Line.certified", "total - spent - alias", "total - spent", BOUNDS),
    (f"{LINE}::Line.certified", "total + spent", "total", BOUNDS),
    (f"{LINE}::Line.certified", "truncation + self.size_error", "self.size_error", BOUNDS),
    (
        f"{LINE}::Line.certified",
        "truncation + self.size_error + rounding",
        "truncation + rounding",
        BOUNDS,
    ),
    (f"{LINE}::Line._sample", "8.0 * UNIT", "1.0 * UNIT", BOUNDS),
    (
        f"{LINE}::Line.certified",
        "self.log_mass_error + 8.0 * UNIT * (abs(self.log_mass) + abs(self.c * "
        "x) + abs(log_kernel(self.c)) + 4.0)",
        "8.0 * UNIT * (abs(self.log_mass) + abs(self.c * x) + abs(log_kernel(self.c)) + 4.0)",
        BOUNDS,
    ),
    (f"{LINE}::Line._sample", "float(np.abs(ratio) @ at.error)", "0.0", BOUNDS),
]
