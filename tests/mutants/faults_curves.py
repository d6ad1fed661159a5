"""Faults in the corners of trade-off curves, pairs, groups and beliefs."""

from __future__ import annotations

_TESTS = "tests/unit/guarantee/test_curve_corners.py tests/unit/reproduce/test_tradeoff_corners.py"

FAULTS = [
    (
        "guarantee/kinds/approx.py::ApproxGuarantee._one_epsilon",
        "rest - share * math.exp(-self.level)",
        "1.0 - share - share * math.exp(-self.level)",
        _TESTS,
    ),
    ("guarantee/kinds/gaussian.py", "least * (1.0 - _ULPS)", "least * (1.0 + _ULPS)", _TESTS),
    (
        "guarantee/approx.py::tradeoff",
        "np.clip(eps - _LARGE, 0.0, _LARGE)",
        "0.0 * eps",
        _TESTS,
    ),
    ("guarantee/approx.py::tradeoff_bounds", "value + rounded", "value", _TESTS),
    ("guarantee/approx.py::group", "times_up(eps, k)", "eps * k", _TESTS),
    (
        "guarantee/kinds/group.py::GroupGuarantee._chain_delta",
        "over_down(epsilon, self.size)",
        "epsilon / self.size",
        _TESTS,
    ),
    (
        "guarantee/kinds/group.py::GroupGuarantee._one_tradeoff",
        "rest_up(self.inner.tradeoff(reached).lower)",
        "1.0 - (self.inner.tradeoff(reached).lower)",
        _TESTS,
    ),
    (
        "guarantee/kinds/loss.py::LossGuarantee._one_tradeoff",
        "rest_down(worst.upper)",
        "1.0 - worst.upper",
        _TESTS,
    ),
    ("guarantee/kinds/gaussian.py::GaussianGuarantee._mus", "1.0 - _ULPS", "1.0 + _ULPS", _TESTS),
    (
        "guarantee/tradeoff.py::_steep",
        "Interval(found.lower, max(found.upper, beyond))",
        "found",
        _TESTS,
    ),
    ("guarantee/tradeoff.py::supporting_line", "rest_up(a)", "1.0 - a", _TESTS),
    (
        "tightrope_reproduce/tradeoff/discrete.py::DiscreteTradeoff._bounds",
        "4.0 * self.rounding + self._of_sums",
        "4.0 * self.rounding",
        _TESTS,
    ),
    (
        "tightrope_reproduce/tradeoff/subsampled.py::SubsampledGaussianTradeoff._joined",
        "x + y - type_i + slack",
        "x + y - type_i",
        _TESTS,
    ),
    (
        "guarantee/base.py::_bayes",
        "math.ldexp(prior, _UP)",
        "math.ldexp(1.0, _UP) * 0.0 + prior",
        _TESTS,
    ),
    ("numerics/rounding.py::rest_down", "1.0 - found >= share", "True", _TESTS),
    ("numerics/rounding.py::root_up", "Fraction(found) ** 2 < square", "False", _TESTS),
    (
        "tightrope_reproduce/tradeoff/divergence.py::of_atoms",
        "(value - error, value + error)",
        "(value, value)",
        _TESTS,
    ),
    (
        "tightrope_reproduce/tradeoff/bracket.py::_grid",
        "int(reach / _FINEST)",
        "resolution",
        _TESTS,
    ),
    (
        "tightrope_reproduce/tradeoff/bracket.py::_chords",
        "4.0 * UNIT",
        "0.0 * UNIT",
        _TESTS,
    ),
]
