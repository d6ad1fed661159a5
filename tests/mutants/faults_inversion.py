"""The inversion integral: decay, nodes, laws and lines."""

BOUNDS = "tests/unit/numerics/test_inversion_bounds.py"
DECAY, NODES, LAW, LINE, KERNEL = (
    f"numerics/inversion{part}.py" for part in ("_decay", "_nodes", "_law", "", "_saddle")
)

FAULTS = [
    (DECAY, "_SIDE_LOBE = 0.2172337", "_SIDE_LOBE = 0.2", BOUNDS),
    (DECAY, "np.maximum(wave, ", "np.minimum(wave, ", BOUNDS),
    (DECAY, "_SIDE_LOBE, 1.0 / half)", "_SIDE_LOBE, 0.9 / half)", BOUNDS),
    (DECAY, "self.masses * (1.0 - envelope)", "1.02 * self.masses * (1.0 - envelope)", BOUNDS),
    (DECAY, "self.variation / y", "0.9 * self.variation / y", BOUNDS),
    (DECAY, "np.minimum.accumulate(heights[peak:])", "heights[peak:]", BOUNDS),
    (KERNEL, "(1.0 + z) * np.log1p(z)", "(1.01 + z) * np.log1p(z)", BOUNDS),
    (NODES, "size * (self.relative + 4.0 * UNIT)", "size * 4.0 * UNIT", BOUNDS),
    (NODES, "+ self.point_error), axis=1)", "), axis=1)", BOUNDS),
    (NODES, "fixed_error=4.2 * quadrature", "fixed_error=2.0 * quadrature", BOUNDS),
    (NODES, "1.01 * share, large)", "1.01 * share, 1.01 * share)", BOUNDS),
    (NODES, "+ 2.1 * left_out", "+ 1.0 * left_out", BOUNDS),
    (NODES, "+ 1.01 * rounding,", ",", BOUNDS),
    (NODES, "log_error(quadrature) + rounding", "rounding", BOUNDS),
    (NODES, "units = 96.0", "units = 0.0", BOUNDS),
    (LAW, "np.exp(-log_part.real))", "1.0)", BOUNDS),
    (LAW, "+ gap, 0.0)) * (rounding - np.expm1(-gap))", ", 0.0)) * rounding", BOUNDS),
    (LAW, "@ (k_error + units", "@ (units", BOUNDS),
    (LAW, "own = nodes.log_mass_error + units", "own = units", BOUNDS),
    (LAW, "total = -0.5 * self.law.variance * y * y", "total = -self.law.variance * y * y", BOUNDS),
    (LINE, "- np.log(math.pi * y)", "- np.log(2.0 * math.pi * y)", BOUNDS),
    (LINE, "fall - math.log(-math.expm1(-fall))", "2.0 * fall", BOUNDS),
    (LINE, "total - spent - alias, total + spent", "total - spent, total + spent", BOUNDS),
    (LINE, "spent - alias, total + spent", "spent - alias, total", BOUNDS),
    (LINE, "spent = truncation + self.size_error", "spent = self.size_error", BOUNDS),
    (LINE, "self.size_error + rounding\n", "rounding\n", BOUNDS),
    (LINE, "self.phase_slope = 8.0 * UNIT", "self.phase_slope = 1.0 * UNIT", BOUNDS),
    (LINE, "scale = self.log_mass_error + 8.0", "scale = 8.0", BOUNDS),
    (LINE, "self.size_error = float(np.abs(ratio) @ at.error)", "self.size_error = 0.0", BOUNDS),
]
