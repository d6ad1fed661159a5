"""Lattices: one step, powers, tails, jumps, and what is given away."""

BOUNDS = "tests/unit/guarantee/test_lattice_bounds.py"
NUMBERS = "tests/unit/numerics/test_convolution.py"
TERMS = "tests/unit/numerics/test_convolution.py"
LATTICE, TAIL = "numerics/lattice.py", "numerics/lattice_tail.py"
LAW, PLAN, BLOCKS = (f"guarantee/loss/lattice/{part}.py" for part in ("law", "plan", "blocks"))
NORMAL, SAMPLED, FIXED, POINTS, LAPLACE, DISCRETE = (
    f"guarantee/loss/pairs/{name}.py"
    for name in ("normals", "sampled", "fixed_size", "points", "laplace", "discrete")
)

MIXTURE = "tests/unit/guarantee/test_mixture.py"
EDGES = "tests/unit/guarantee/test_lattice_edges.py"
PAIRS = "guarantee/loss/abstract.py"
ROUNDING, ONE = "numerics/rounding.py", "tests/unit/guarantee/test_pairs.py"

FAULTS = [
    (f"{LAW}::one_side", "p.is_endless", "False", MIXTURE),
    (
        f"{LATTICE}::_discounted",
        "starts[:rows] @ table + starts[rows] * rest",
        "starts[:rows] @ table",
        TERMS,
    ),
    (f"{LATTICE}::LatticeMeasure.log_moment", "change > 0.0", "change < 0.0", TERMS),
    (f"{LATTICE}::_convolved", "2.0 * outside", "0.5 * outside", TERMS),
    (
        f"{LATTICE}::_convolved",
        "expm1_or_inf(sum(n * m.error for m, n in factors))",
        "0.0",
        NUMBERS,
    ),
    (
        f"{LATTICE}::_power",
        "2.0 * float(sums[0] + sums[1])",
        "1e-9 * float(sums[0] + sums[1])",
        NUMBERS,
    ),
    (
        f"{LATTICE}::LatticeMeasure.log_moment",
        "top + math.log(total) + slack",
        "top + math.log(total) - 0.5",
        TERMS,
    ),
    (
        f"{LATTICE}::_convolved",
        "math.fsum(n * m.slip for m, n in factors) + 4.0 * ULP * ulps",
        "0.0 * 4.0 * ULP * ulps",
        NUMBERS,
    ),
    (f"{TAIL}::TailTable.log_error", "m.uniform_error", "0.01 * m.uniform_error", NUMBERS),
    (
        f"{TAIL}::TailTable.log_error",
        "(m.error + exponents) * one",
        "0.1 * (m.error + exponents) * one",
        TERMS,
    ),
    (f"{TAIL}::TailTable.log_error", "m.slip * (1.0 + m.error)", "0.0", NUMBERS),
    (
        f"{TAIL}::tail_table",
        "np.exp(np.minimum(h - x, 0.0)) * -math.expm1(-h)",
        "np.exp(np.minimum(h - x, 0.0)) * h",
        NUMBERS,
    ),
    (f"{LATTICE}::gap_bound", "peak / 8.0", "peak / 16.0", BOUNDS),
    (
        f"{LATTICE}::lowered",
        "drop[1:-1] = at_left",
        "drop[1:-1] = 0.5 * at_left",
        BOUNDS + " " + NUMBERS,
    ),
    (f"{LATTICE}::lowered", "float(-masses[masses < 0.0].sum())", "0.0", NUMBERS),
    (f"{LATTICE}::gathered", "right * math.exp(tilt)", "right", BOUNDS),
    (f"{TAIL}::_open_cell", "high - end", "end - high", NUMBERS),
    (f"{TAIL}::_open_cell", "float(ndtr(high)) - right", "float(ndtr(high)) ", NUMBERS),
    (f"{TAIL}::_open_cell", "0.5 * mu", "mu", NUMBERS),
    (f"{TAIL}::_narrow", "(mass.sum(axis=0) - left) * width", "mass.sum(axis=0) * width", NUMBERS),
    (
        f"{TAIL}::_narrow",
        "-mu * (cells.before + width + cells.after)",
        "-1.01 * mu * (cells.before + width + cells.after)",
        NUMBERS,
    ),
    (
        "numerics/lattice_sums.py::coarsened",
        "(measure.error + rounding) * inflation",
        "measure.error",
        TERMS,
    ),
    (
        "numerics/lattice_sums.py::coarsened",
        "np.expm1(position) / math.expm1(wide)",
        "position / wide",
        NUMBERS,
    ),
    ("numerics/lattice_sums.py::compound", "2.0 * _outside(measure, count, size)", "0.0", TERMS),
    (
        f"{LAW}::OneSide.log_upper",
        "[value, error, self.log_given(epsilon)]",
        "[value, self.log_given(epsilon)]",
        BOUNDS,
    ),
    (
        f"{LAW}::OneSide.log_upper",
        "[value, error, self.log_given(epsilon)]",
        "[value, error]",
        BOUNDS,
    ),
    (f"{LAW}::OneSide.log_lower", "value + math.log1p(-math.exp(error - value))", "value", BOUNDS),
    (
        f"{LAW}::one_side",
        "infinite.upper",
        "-1e9",
        BOUNDS + " tests/unit/guarantee/test_verified_ends.py",
    ),
    (f"{LAW}::OneSide.log_lower", "not error < value", "error >= value", EDGES),
    (f"{NORMAL}::_relative_error", "not masses.any()", "False", EDGES),
    (
        f"{SAMPLED}::SampledGaussianPair.point_of",
        "point if point > LEFT else BEYOND_BULK",
        "point",
        EDGES,
    ),
    (
        f"{FIXED}::FixedSizeGaussianPair.point_of",
        "max(float(point_of_log_ratio(loss, self.rate, self.mu)), 0.5 * self.mu)",
        "float(point_of_log_ratio(loss, self.rate, self.mu))",
        EDGES,
    ),
    (
        f"{PLAN}::_dividing",
        "[grid for grid in grids if grid >= step]",
        "[grid for grid in grids ]",
        EDGES,
    ),
    (f"{LATTICE}::check_size", "not points <= _LARGEST", "points > 1e300", EDGES),
    (
        f"{ROUNDING}::exp_or_inf",
        "math.exp(value) if value < 700.0 else math.inf",
        "math.exp(min(value, 700.0))",
        NUMBERS,
    ),
    (
        f"{ROUNDING}::expm1_or_inf",
        "math.expm1(value) if value < 700.0 else math.inf",
        "math.expm1(min(value, 700.0)) or math.inf",
        NUMBERS,
    ),
    (f"{TAIL}::TailTable.log_error", "math.isinf(m.error)", "False", NUMBERS),
    (f"{PAIRS}::_log_any", "8.0 * UNIT * (2.0 + abs(value))", "1e-14", BOUNDS),
    (
        f"{PAIRS}::largest_loss",
        "UNIT * math.fsum((units + added) * abs(top) for top, units in tops)",
        "0.0 * math.fsum((units + added) * abs(top) for top, units in tops)",
        ONE,
    ),
    (
        f"{DISCRETE}::DiscretePair.log_delta_single",
        "np.array(self.losses) + way * self.loss_error",
        "np.array(self.losses) ",
        ONE,
    ),
    (f"{PAIRS}::_log_any", "mass >= 1.0", "False", BOUNDS),
    (f"{LAW}::OneSide.log_given", "self.highest", "0.0", BOUNDS),
    (f"{LAW}::one_side", "given.append(log_more)", "pass", BOUNDS),
    (
        f"{LAW}::one_side",
        "given.append(pair.log_beyond(plan.last) + math.log(count))",
        "pass",
        BOUNDS,
    ),
    (
        f"{NORMAL}::log_mass_beyond",
        "mu - point",
        "-point",
        BOUNDS,
    ),
    (
        f"{POINTS}::atoms_measure",
        "-np.expm1(-offset) / -math.expm1(-step)",
        "0.5 * offset / step",
        BOUNDS,
    ),
    (
        f"{POINTS}::atoms_measure",
        "np.add.at(total, index, weights)",
        "np.add.at(total, index + 1, weights)",
        BOUNDS,
    ),
    (
        f"{LAPLACE}::laplace_atoms",
        "right * math.exp(-own)",
        "0.9 * right * math.exp(-own)",
        BOUNDS,
    ),
    (f"{NORMAL}::lower_branch", "gap_bound(left, right, peak)", "0.0 * peak", BOUNDS),
    (NORMAL, "LOG_CUT_OFF = float(log_ndtr(LEFT + 0.1))", "LOG_CUT_OFF = -1e3", BOUNDS),
    (
        "guarantee/loss/pairs/jumps.py::NormalJumps.one",
        "np.logaddexp(base[1:], log_right)",
        "log_right",
        BOUNDS,
    ),
    (
        "guarantee/loss/pairs/jumps.py::NormalJumps.one",
        "np.log1p",
        "1.1 * np.log1p",
        BOUNDS,
    ),
    (
        "guarantee/loss/pairs/jumps.py::NormalJumps.several",
        "BRANCH[side]",
        'BRANCH["lower"]',
        BOUNDS,
    ),
    (
        "guarantee/loss/lattice/rare_losses.py::log_jump_sum",
        "log_sum_exp(logs + error)",
        "log_sum_exp(logs + error) - 9.0",
        BOUNDS,
    ),
    (
        "guarantee/loss/lattice/rare_losses.py::_log_fft_error",
        "1.01 * (rounding + fft.error)",
        "1e-3 * (rounding + fft.error)",
        BOUNDS,
    ),
    (
        "guarantee/loss/lattice/rare_losses.py::log_jump_sum",
        "[slack, rounding, relative]",
        "[slack, rounding]",
        BOUNDS,
    ),
    (
        BLOCKS,
        'if self.side == "lower":\n            return -math.inf\n',
        "return -math.inf\n",
        "tests/unit/guarantee/test_lattice_bounds.py",
    ),
    (
        f"{LAW}::LatticeLaw.log_delta",
        "self.below.log_lower(epsilon)",
        "self.above.log_upper(epsilon) - 1e-9",
        BOUNDS,
    ),
    (
        "numerics/lattice_tail.py::TailTable.between",
        "min((high - m.first) / m.step, last)",
        "(min(high, m.first + m.step * last) - m.first) / m.step",
        "tests/unit/numerics/test_convolution.py",
    ),
]
