"""Laws that are given outright, alone and on a Poisson sample: sums over outcomes, in fractions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from tightrope import account
from tightrope.errors import DoesNotApply
from tightrope.process import Adjacency, DeclaredPair, Process, Repeated, SampledRelease
from tightrope.process.codec import from_json, to_json
from tightrope.theorems.listed_laws import ListedLaws
from tightrope_reproduce.formulas.sampled import sampled
from tightrope_reproduce.tradeoff.discrete import DiscreteTradeoff

# with a record and without; an outcome that only one of the laws has, and laws close to each other
LAWS = [
    ((0.75, 0.25), (0.25, 0.75)),
    ((0.5, 0.25, 0.25, 0.0), (0.125, 0.25, 0.5, 0.125)),
    ((0.5, 0.375, 0.125), (0.25, 0.75, 0.0)),
    ((0.5 + 2.0**-30, 0.5 - 2.0**-30), (0.5, 0.5)),
    ((0.0, 0.5, 0.5), (0.5, 0.5, 0.0)),
]
EPSILONS = (0.0, 1e-9, 0.05, 0.3, 1.0, 2.5)
Law = Sequence[Fraction]


def _mixed(p: Law, q: Law, rate: float) -> Law:
    r = Fraction(rate)
    return [r * a + (1 - r) * b for a, b in zip(p, q, strict=True)]


def _delta(p: Law, q: Law, epsilon: float, steps: int) -> float:
    """The larger hockey stick of the two orders after so many releases, outcome by outcome."""
    scale, found = Fraction(math.exp(epsilon)), []
    for one, other in ((p, q), (q, p)):
        total = Fraction(0)
        for places in itertools.product(range(len(p)), repeat=steps):
            left, right = (math.prod(law[i] for i in places) for law in (one, other))
            total += max(Fraction(left) - scale * Fraction(right), Fraction(0))
        found.append(float(total))
    return max(found)


def _fractions(laws: tuple[tuple[float, ...], tuple[float, ...]]) -> tuple[Law, Law]:
    first, second = ([Fraction(x) for x in law] for law in laws)
    return first, second


@pytest.mark.parametrize("laws", LAWS)
@pytest.mark.parametrize("rate", [None, 1e-12, 0.01, 0.3, 0.875, 1.0])
@pytest.mark.parametrize("steps", [1, 3])
def test_delta_is_the_sum_over_all_outcomes(
    laws: tuple[tuple[float, ...], tuple[float, ...]], rate: float | None, steps: int
) -> None:
    release = DeclaredPair(*laws)
    p, q = _fractions(laws)
    process: Process = release
    if rate is not None:
        process, p = SampledRelease(release, rate), _mixed(p, q, rate)
    found = account(process if steps == 1 else Repeated(process, steps))
    for epsilon in EPSILONS:
        truth, upper = _delta(p, q, epsilon, steps), found.delta(epsilon).upper
        assert truth * (1.0 - 1e-15) <= upper <= truth * (1.0 + 1e-5) + 1e-13


@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_a_sampled_pair_is_c_p_of_its_trade_off_function(rate: float) -> None:
    """Proposition A.1 of Deep Learning with Gaussian Differential Privacy, for an own f."""
    first, second = LAWS[1]
    curve = DiscreteTradeoff(np.array(second), np.array(first))
    of_curve = sampled(curve, rate)
    found = account(SampledRelease(DeclaredPair(first, second), rate))
    for epsilon in EPSILONS[2:]:
        low, high = of_curve.delta_bounds(epsilon)
        assert float(low) - 1e-9 <= found.delta(epsilon).upper <= float(high) + 1e-9
    for type_i in (0.05, 0.2, 0.5, 0.9):
        low, high = of_curve.bounds(type_i)
        assert float(low) - 1e-6 <= found.tradeoff(type_i).lower <= float(high) + 1e-6


def test_a_sample_of_laws_without_a_common_outcome_shows_who_is_in_it() -> None:
    process = SampledRelease(DeclaredPair((0.0, 1.0), (1.0, 0.0)), 0.25)
    assert account(process).delta(0.0).upper == pytest.approx(0.25, rel=1e-12)
    assert account(process).delta(50.0).upper == pytest.approx(0.25, rel=1e-12)


def test_nothing_is_sampled_at_rate_0() -> None:
    assert account(SampledRelease(DeclaredPair(*LAWS[0]), 0.0)).epsilon(0.0).upper == 0.0


@pytest.mark.parametrize("neighbours", [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT])
def test_samples_of_other_neighbours_are_refused(neighbours: Adjacency) -> None:
    process = SampledRelease(DeclaredPair(*LAWS[0]), 0.3, neighbours)
    with pytest.raises(DoesNotApply, match="add-or-remove"):
        ListedLaws.guarantee(process)


def test_a_ratio_that_is_no_double_counts_as_infinite() -> None:
    tiny = 5e-324
    process = SampledRelease(DeclaredPair((0.5, 0.5), (tiny, 1.0)), 0.5)
    assert account(process).delta(700.0).upper == pytest.approx(0.25)
    assert account(process).delta(0.0).upper == pytest.approx(0.25)


def test_a_sampled_pair_is_written_and_read() -> None:
    process = SampledRelease(DeclaredPair(*LAWS[0]), 0.3)
    assert from_json(to_json(process)) == process
