"""Faults in the corners of trade-off curves, pairs, groups and beliefs."""

from __future__ import annotations

_TESTS = "tests/unit/guarantee/test_curve_corners.py"

FAULTS = [
    ("guarantee/kinds/approx.py", "inside = rest - share", "inside = 1.0 - share - share", _TESTS),
    ("guarantee/approx/curve.py", "np.clip(eps - _LARGE, 0.0, _LARGE)", "0.0 * eps", _TESTS),
    ("guarantee/approx/curve.py", "value + rounded) +", "value) +", _TESTS),
    ("guarantee/approx/simple.py", "(times_up(eps, k), d)", "(eps * k, d)", _TESTS),
    ("guarantee/kinds/group.py", "over_down(epsilon, self.size)", "epsilon / self.size", _TESTS),
    ("guarantee/kinds/group.py", "rest_up(self.inner", "1.0 - (self.inner", _TESTS),
    (
        "guarantee/kinds/loss.py",
        "Interval(rest_down(worst.upper)",
        "Interval(1.0 - worst.upper",
        _TESTS,
    ),
    ("guarantee/kinds/gaussian.py", "1.0 - _ULPS, ", "1.0 + _ULPS, ", _TESTS),
    (
        "guarantee/tradeoff/of_profile.py",
        "return Interval(found.lower, max(found.upper, beyond)), gain",
        "return found, gain",
        _TESTS,
    ),
    ("guarantee/tradeoff/of_profile.py", "clamp(0.0, rest_up(a))", "clamp(0.0, 1.0 - a)", _TESTS),
    (
        "tightrope_reproduce/tradeoff/discrete.py",
        "4.0 * self.rounding + self._of_sums",
        "4.0 * self.rounding",
        _TESTS,
    ),
    (
        "tightrope_reproduce/tradeoff/subsampled.py",
        "x + y - type_i + slack",
        "x + y - type_i",
        _TESTS,
    ),
    ("guarantee/risk.py", "math.ldexp(prior, _UP)", "math.ldexp(1.0, _UP) * 0.0 + prior", _TESTS),
    ("numerics/rounding.py", "if 1.0 - found >= share", "if True", _TESTS),
    ("numerics/rounding.py", "Fraction(found) ** 2 < square", "False", _TESTS),
    (
        "tightrope_reproduce/tradeoff/divergence.py",
        "(value - error, value + error)",
        "(value, value)",
        _TESTS,
    ),
    ("tightrope_reproduce/tradeoff/bracket.py", "int(reach / _FINEST)", "resolution", _TESTS),
    (
        "tightrope_reproduce/tradeoff/bracket.py",
        "4.0 * UNIT * (len(x)",
        "0.0 * UNIT * (len(x)",
        _TESTS,
    ),
]
