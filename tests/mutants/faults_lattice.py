"""Lattices: one step, powers, tails, jumps, and what is given away."""

BOUNDS = "tests/unit/guarantee/test_lattice_bounds.py"
NUMBERS = "tests/unit/numerics/test_convolution.py"
TERMS = "tests/unit/numerics/test_lattice_terms.py"
LATTICE, TAIL, CONVEX, CELLS, COARSE, COMPOUND = (
    f"numerics/lattice{part}.py"
    for part in ("", "_tail", "_convex", "_cells", "_coarse", "_compound")
)
LAW, STEP, BRANCH, JUMPS, BLOCKS, WHOLE = (
    f"guarantee/loss/lattice{part}.py"
    for part in ("_law", "_step", "_branch", "_jumps", "_blocks", "_delta")
)

MIXTURE = "tests/unit/guarantee/test_mixture.py"
EDGES = "tests/unit/guarantee/test_lattice_edges.py"
STAGING, PAIRS = "guarantee/loss/lattice_staging.py", "guarantee/loss/abstract.py"
ROUNDING, ONE = "numerics/rounding.py", "tests/unit/guarantee/test_pairs.py"

FAULTS = [
    (LAW, "            if is_cut(p)\n", "            if False\n", MIXTURE),
    (LATTICE, "table + starts[rows] * rest", "table", TERMS),
    (LATTICE, "self.weights[::-1] if change > 0.0", "self.weights[::-1] if change < 0.0", TERMS),
    (LATTICE, "+ 2.0 * outside\n", "+ 0.5 * outside\n", TERMS),
    (LATTICE, "_compounded(factors)\n        + 2.0", "2.0", NUMBERS),
    (LATTICE, "uniform = 2.0 * float", "uniform = 1e-9 * float", NUMBERS),
    (
        LATTICE,
        "return top + math.log(total) + slack",
        "return top + math.log(total) - 0.5",
        TERMS,
    ),
    (LATTICE, "math.fsum(n * m.slip for m, n in factors) +", "0.0 *", NUMBERS),
    (TAIL, "each = m.uniform_error * whole", "each = 0.01 * m.uniform_error * whole", NUMBERS),
    (TAIL, "(m.error + exponents) * one", "0.1 * (m.error + exponents) * one", TERMS),
    (TAIL, "m.slip * (1.0 + m.error)", "0.0", NUMBERS),
    (TAIL, "-math.expm1(-h) * mass[low:high]", "h * mass[low:high]", NUMBERS),
    (CONVEX, "peak / 8.0", "peak / 16.0", BOUNDS),
    (CONVEX, "drop[1:-1] = at_left", "drop[1:-1] = 0.5 * at_left", BOUNDS + " " + NUMBERS),
    (CONVEX, "clipped = float(-masses[masses < 0.0].sum())", "clipped = 0.0", NUMBERS),
    (CONVEX, "masses[1:] += right * math.exp(tilt)", "masses[1:] += right", BOUNDS),
    (CELLS, "mu * (high - end) - 0.5 * high", "mu * (end - high) - 0.5 * high", NUMBERS),
    (CELLS, "- right), right\n", "), right\n", NUMBERS),
    (CELLS, "mu * (0.5 * mu - end) +", "mu * (mu - end) +", NUMBERS),
    (CELLS, "(mass.sum(axis=0) - left) * width", "mass.sum(axis=0) * width", NUMBERS),
    (
        CELLS,
        "whole = -np.expm1(-mu * (cells.before",
        "whole = -np.expm1(-1.01 * mu * (cells.before",
        NUMBERS,
    ),
    (COARSE, "lost = (measure.error + rounding) * inflation", "lost = measure.error", TERMS),
    (COARSE, "share = np.expm1(position) / math.expm1(wide)", "share = position / wide", NUMBERS),
    (COMPOUND, "2.0 * _outside(measure, count, size)", "0.0", TERMS),
    (LAW, "[value, error, self.log_given(epsilon)]", "[value, self.log_given(epsilon)]", BOUNDS),
    (LAW, "[value, error, self.log_given(epsilon)]", "[value, error]", BOUNDS),
    (LAW, "value + math.log1p(-math.exp(error - value))", "value", BOUNDS),
    (
        LAW,
        "log_infinite = infinite.upper if",
        "log_infinite = -1e9 if",
        BOUNDS + " tests/unit/guarantee/test_verified_ends.py",
    ),
    (LAW, "if not error < value:", "if error >= value:", EDGES),
    (BRANCH, "    if not masses.any():", "    if False:", EDGES),
    (BRANCH, "return point if point > _LEFT else _BEYOND_BULK", "return point", EDGES),
    (BRANCH, "return max(point, 0.5 * mu)", "return point", EDGES),
    (STAGING, "if grid >= step]", "]", EDGES),
    (LATTICE, "if not points <= _LARGEST:", "if points > 1e300:", EDGES),
    (
        ROUNDING,
        "math.exp(value) if value < 700.0 else math.inf",
        "math.exp(min(value, 700.0))",
        NUMBERS,
    ),
    (
        ROUNDING,
        "math.expm1(value) if value < 700.0 else",
        "math.expm1(min(value, 700.0)) or",
        NUMBERS,
    ),
    (TAIL, "if math.isinf(m.error):", "if False:", NUMBERS),
    (PAIRS, "8.0 * UNIT * (2.0 + abs(value))", "1e-14", BOUNDS),
    (PAIRS, "slack = UNIT * math.fsum", "slack = 0.0 * math.fsum", ONE),
    ("guarantee/loss/closed_form.py", "+ way * pair.loss_error", "", ONE),
    (PAIRS, "if any(mass >= 1.0 for", "if any(False for", BOUNDS),
    (LAW, "if epsilon >= self.highest:", "if epsilon >= 0.0:", BOUNDS),
    (LAW, "given.append(log_more)", "pass", BOUNDS),
    (LAW, "given.append(_log_beyond(pair, plan.last) + math.log(count))", "pass", BOUNDS),
    (
        LAW,
        "math.log(rate) + float(log_ndtr(mu - point))",
        "math.log(rate) + float(log_ndtr(-point))",
        BOUNDS,
    ),
    (
        STEP,
        "to_right = -np.expm1(-offset) / -math.expm1(-step)",
        "to_right = 0.5 * offset / step",
        BOUNDS,
    ),
    (STEP, "np.add.at(total, index, weights)\n", "np.add.at(total, index + 1, weights)\n", BOUNDS),
    (
        "guarantee/loss/lattice_laplace.py",
        "whole - right, right * math.exp(-own)",
        "whole - right, 0.9 * right * math.exp(-own)",
        BOUNDS,
    ),
    (BRANCH, "gap = gap_bound(left, right, peak)", "gap = 0.0 * peak", BOUNDS),
    (BRANCH, "LOG_CUT_OFF = float(log_ndtr(_LEFT + 0.1))", "LOG_CUT_OFF = -1e3", BOUNDS),
    (JUMPS, "base[1:] = np.logaddexp(base[1:], log_right)", "base[1:] = log_right", BOUNDS),
    (
        JUMPS,
        "means = ends[:-1] + np.log1p(share",
        "means = ends[:-1] + 1.1 * np.log1p(share",
        BOUNDS,
    ),
    (JUMPS, "build = upper_branch if side", "build = lower_branch if side", BOUNDS),
    (JUMPS, "log_sum_exp(logs + error)", "log_sum_exp(logs + error) - 9.0", BOUNDS),
    (JUMPS, "1.01 * (rounding + fft.error)", "1e-3 * (rounding + fft.error)", BOUNDS),
    (JUMPS, "[slack, rounding, relative]", "[slack, rounding]", BOUNDS),
    (
        BLOCKS,
        'if self.side == "lower":\n            return -math.inf\n',
        "return -math.inf\n",
        "tests/unit/guarantee/test_lattice_blocks.py",
    ),
    (
        WHOLE,
        "self.below.log_lower(epsilon), self.above.log_upper(epsilon)",
        "self.above.log_upper(epsilon) - 1e-9, self.above.log_upper(epsilon)",
        BOUNDS,
    ),
    (
        "numerics/lattice_tail.py",
        "reach = min((high - m.first) / m.step, last)",
        "reach = (min(high, m.first + m.step * last) - m.first) / m.step",
        "tests/unit/numerics/test_convolution.py",
    ),
]
