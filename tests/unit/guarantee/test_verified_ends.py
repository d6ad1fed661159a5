"""Ends are proved by the value on their own side; both orders; infinite mass; rounding outward."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import mpmath
import numpy as np
import pytest
from mpmath import mp, mpf

from tightrope.errors import NotCertified
from tightrope.guarantee.base import Validity
from tightrope.guarantee.compose import compose
from tightrope.guarantee.gaussian import compose_mu, group_mu
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.group import GroupGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.loss import contour, lattice, profile
from tightrope.guarantee.loss import contour as integral
from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.contour import (
    EpsilonGoal,
    Inverse,
    invert_closed_form,
    log_chernoff,
    log_reverse,
)
from tightrope.guarantee.loss.lattice.answers import _crossing
from tightrope.guarantee.loss.pairs import (
    FixedSizeGaussianPair,
    GaussianPair,
    LaplacePair,
    SampledGaussianPair,
    approx_pair,
)
from tightrope.guarantee.loss.pairs.sampling import sampled_added
from tightrope.guarantee.tradeoff import invert
from tightrope.numerics import rounding
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion import NO_LIMIT, LogEnclosure
from tightrope.numerics.inversion_law import SumLaw

TARGET = math.log(1e-5)


# ---- verified ends
class FakeLine:
    """ln g(x) = TARGET - 2 (x - 3), known to within 0.1 only.

    The slope it gives for the search is far too steep, so that ends are tried that prove nothing.
    """

    c, spread, period = 2.0, 1.0, 1.0

    def __init__(self, off: float = 0.1) -> None:
        self.off, self.asked = off, list[float]()

    def certified(self, x: float) -> LogEnclosure:
        self.asked.append(x)
        value = TARGET - 2.0 * (x - 3.0)
        return LogEnclosure(value - self.off, value + self.off)

    def quick(self, x: float) -> tuple[float, float]:
        return TARGET - 2.0 * (x - 3.0), -20.0


def inverse(
    relative_width: float = 1.0, slack: float = 0.01, missing: float = -math.inf
) -> Inverse:
    goal = EpsilonGoal(TARGET, relative_width, slack)
    return Inverse(SumLaw((), 0.5, 1.0), missing, goal, NO_LIMIT)


def test_the_safe_end_is_proved_by_the_upper_value_and_the_other_by_the_lower() -> None:
    line: Any = FakeLine()
    found = inverse()._verify(line, 3.0)
    assert found is not None
    assert line.certified(found.upper).upper <= TARGET - 0.01
    assert line.certified(found.lower).lower >= TARGET + 0.01
    assert found.upper - 3.0 < 0.12 and 3.0 - found.lower < 0.12


@pytest.mark.parametrize(("under", "over"), [(0.01, 0.3), (0.3, 0.01)])
def test_neither_end_is_proved_by_the_other_one(under: float, over: float) -> None:
    """Values far looser on one side: the end that needs that side must wait for it."""
    line: Any = FakeLine()
    line.certified = lambda x: LogEnclosure(line.quick(x)[0] - under, line.quick(x)[0] + over)
    found = inverse(slack=0.1)._verify(line, 3.0)
    assert found is not None
    assert line.certified(found.upper).upper <= TARGET - 0.1
    assert line.certified(found.lower).lower >= TARGET + 0.1


def test_nothing_is_proved_by_values_too_wide_or_on_one_side() -> None:
    wide: Any = FakeLine(0.6)
    assert inverse()._verify(wide, 3.0) is None
    one_sided: Any = FakeLine()
    one_sided.certified = lambda x: LogEnclosure(TARGET + 0.5, TARGET + 0.6)
    assert inverse()._verify(one_sided, 3.0) is None
    one_sided.certified = lambda x: LogEnclosure(TARGET - 0.6, TARGET - 0.5)
    assert inverse()._verify(one_sided, 3.0) is None


def test_an_interval_wider_than_asked_for_is_only_remembered() -> None:
    line: Any = FakeLine()
    search = inverse(relative_width=1e-3)
    assert search._verify(line, 3.0) is None
    assert search.best is not None and search.best.width < 0.5


def test_what_a_law_misses_moves_the_target() -> None:
    """A missing 1 % of delta: the safe end needs ln g <= ln(0.99 delta)."""
    line: Any = FakeLine(1e-6)
    found = inverse(slack=1e-9, missing=TARGET + math.log(0.01))._verify(line, 3.0)
    assert found is not None
    assert math.exp(line.certified(found.upper).upper) + 0.01 * 1e-5 <= 1e-5
    with pytest.raises(NotCertified):
        inverse(missing=TARGET - 0.5)


def test_an_answer_at_zero_has_no_lower_end_to_prove() -> None:
    line: Any = FakeLine()
    line.certified = lambda x: LogEnclosure(TARGET - 0.3 - x, TARGET - 0.2 - x)
    found = inverse()._verify(line, 0.001)
    assert found is not None and found.lower == 0.0


@pytest.mark.parametrize("off", [1e-3, 0.2])
def test_closed_forms_are_bisected_on_both_sides(off: float) -> None:
    def at(x: float) -> Interval:
        value = TARGET - 2.0 * (x - 3.0)
        return Interval(value - off, value + off)

    found = invert_closed_form(at, TARGET, 1e9)
    assert at(found.upper).upper <= TARGET <= at(found.lower).lower
    assert found.upper == pytest.approx(3.0 + 0.5 * off, rel=1e-9)
    assert found.lower == pytest.approx(3.0 - 0.5 * off, rel=1e-9)
    assert invert_closed_form(lambda x: at(x + 9.0), TARGET, 1e9) == Interval(0.0, 0.0)


def test_the_lattice_crosses_from_above_and_below() -> None:
    def log_delta(x: float) -> float:
        return TARGET - 2.0 * (x - 3.0)

    low, high = _crossing(log_delta, TARGET, 2.5, math.inf, 2.0, 1e-6)
    assert log_delta(low) > TARGET >= log_delta(high)
    assert high - low < 1e-6


def test_one_release_is_bisected_between_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds 10 % apart: the ends must be 5 % of ln delta on either side of the middle."""
    pair = GaussianPair(1.0)

    def at(pair: Any, epsilon: float) -> Interval:
        value = TARGET - 2.0 * (epsilon - 3.0)
        return Interval(value - 0.1, value + 0.1)

    monkeypatch.setattr(GaussianPair, "log_delta_single", at)
    found = profile._single_epsilon(pair, 1e-5)
    assert at(pair, found.upper).upper <= TARGET + 1e-12
    assert found.lower == 0.0 or at(pair, found.lower).lower >= TARGET
    assert found.upper == pytest.approx(3.05, rel=1e-6)


@pytest.mark.parametrize("off", [0.0, 0.05])
def test_a_profile_is_inverted_by_its_upper_end(off: float) -> None:
    def at(epsilon: float) -> Interval:
        value = math.exp(TARGET - 2.0 * (epsilon - 3.0))
        return Interval(value * (1 - off), value * (1 + off))

    found = invert(at, 1e-5)
    assert at(found.upper).upper <= 1e-5 * (1 + 1e-12)
    assert found.lower == 0.0 or at(found.lower).lower > 1e-5


# ---- orders and their limits
def both(rate: float, noise: float, steps: int) -> tuple[Components, Components]:
    remove, add = (SampledGaussianPair(rate, 1 / noise, way) for way in ("remove", "add"))
    return ((remove, steps),), ((add, steps),)


def test_the_order_that_is_left_out_is_proved_to_be_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With no bound on the other order it is computed, and the worse of both is the answer."""
    one, other = both(0.01, 1.0, 100)
    answers = {one: Interval(1.0, 1.1), other: Interval(2.0, 2.1)}

    def answer(components: Components, delta: float, reverse: bool) -> tuple[Interval, float]:
        return answers[components], 0.0

    monkeypatch.setattr(profile, "_epsilon_and_reverse", answer)
    monkeypatch.setattr(profile, "log_chernoff", lambda *_: 0.0)
    assert profile.worst_epsilon((one, other), 1e-5) == Interval(2.0, 2.1)
    assert profile.worst_epsilon((other, one), 1e-5) == Interval(2.0, 2.1)
    monkeypatch.setattr(profile, "log_chernoff", lambda *_: math.log(0.99e-5))
    assert profile.worst_epsilon((one, other), 1e-5) == Interval(1.0, 1.1)
    monkeypatch.setattr(profile, "log_chernoff", lambda *_: math.log(1.01e-5))
    assert profile.worst_epsilon((one, other), 1e-5) == Interval(2.0, 2.1)


@pytest.mark.parametrize("reverse", [math.log(0.99e-5), math.log(1.01e-5)])
def test_a_line_read_twice_settles_the_other_order_only_below_delta(
    monkeypatch: pytest.MonkeyPatch, reverse: float
) -> None:
    one, other = both(0.01, 1.0, 100)
    answers = {one: Interval(1.0, 1.1), other: Interval(2.0, 2.1)}
    monkeypatch.setattr(profile, "log_chernoff", lambda *_: 0.0)
    monkeypatch.setattr(
        profile, "_epsilon_and_reverse", lambda parts, delta, wanted: (answers[parts], reverse)
    )
    expected = Interval(1.0, 1.1) if reverse <= math.log(1e-5) else Interval(2.0, 2.1)
    assert profile.worst_epsilon((one, other), 1e-5) == expected
    strange = (((GaussianPair(1.0), 1), *other),)  # not the reverse: what was read says nothing
    answers[strange[0]] = Interval(3.0, 3.1)
    assert profile.worst_epsilon((one, strange[0]), 1e-5) == Interval(3.0, 3.1)


def test_the_worse_delta_of_both_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = both(0.01, 1.0, 100)
    answers = {one: Interval(1e-5, 1.1e-5), other: Interval(2e-5, 2.1e-5)}
    for chernoff, expected in ((math.log(0.99e-5), 1.1e-5), (math.log(1.01e-5), 2.1e-5)):
        monkeypatch.setattr(
            profile, "_delta_and_reverse", lambda parts, eps, wanted: (answers[parts], 0.0)
        )
        monkeypatch.setattr(profile, "log_chernoff", lambda *_, c=chernoff: c)
        assert profile.worst_delta((one, other), 1.0).upper == expected


def test_the_other_order_read_off_a_line() -> None:
    """delta'(eps) = 1 - e^eps + e^eps delta(-eps), from the upper end."""
    for epsilon, upper in ((0.5, -0.4), (2.0, -0.13)):
        line: Any = SimpleNamespace(certified=lambda x, u=upper: LogEnclosure(u - 1.0, u))
        truth = 1 - math.exp(epsilon) + math.exp(epsilon + upper)
        found = log_reverse(line, epsilon)
        assert math.log(truth) <= found <= math.log(truth) + 1e-12
    line = SimpleNamespace(certified=lambda x: LogEnclosure(-9.0, math.log(1 - math.exp(-3.0))))
    assert log_reverse(line, 3.0) >= math.log(2.0**-53) + 3.0


def test_chernoff_says_nothing_where_losses_may_be_infinite() -> None:
    parts = ((SampledGaussianPair(0.01, 1.0, "add"), 100), (approx_pair(0.1, 1e-3), 1))
    assert log_chernoff(parts, 5.0, math.log(1e-5)) == 0.0
    assert log_chernoff(parts[:1], 5.0, math.log(1e-5)) < math.log(1e-5)


# ---- infinite mass
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("share", [0.9, 0.999, 1.001, 1.1])
def test_delta_below_the_infinite_mass_is_never_reached(count: int, share: float) -> None:
    parts = ((approx_pair(0.3, 1e-4), count), (SampledGaussianPair(0.01, 1.0), 50))
    infinite = 1 - (1 - 1e-4) ** count
    found = profile.epsilon(parts, share * infinite)
    if share < 1.0:
        assert found.upper == math.inf
    else:
        assert found.upper == math.inf or profile.delta(parts, found.upper).upper <= (
            share * infinite * (1 + 1e-6)
        )


def test_infinite_mass_is_part_of_every_delta() -> None:
    parts = ((approx_pair(0.3, 1e-4), 2), (SampledGaussianPair(0.02, 1.0), 200))
    bare = ((approx_pair(0.3, 0.0), 2), (SampledGaussianPair(0.02, 1.0), 200))
    infinite = 1 - (1 - 1e-4) ** 2
    for epsilon in (0.2, 1.0, 30.0):
        inner = profile.delta(bare, epsilon)
        expected = infinite + (1 - infinite) * inner.upper
        found = profile.delta(parts, epsilon)
        assert found.lower <= expected * (1 + 1e-9) and found.upper >= expected * (1 - 1e-6)
        other = lattice.log_delta(parts, epsilon)
        assert math.exp(other.lower) <= expected * (1 + 1e-9)
        assert math.exp(other.upper) >= expected * (1 - 1e-6)
    assert contour.log_delta(parts[:1], 0.7).upper >= math.log(infinite)


@pytest.mark.parametrize("count", [1, 2])
def test_below_the_infinite_mass_of_few_releases_nothing_is_promised(count: int) -> None:
    parts = ((approx_pair(0.5, 1e-5), count),)
    assert profile.epsilon(parts, 0.95e-5 * count) == Interval(math.inf, math.inf)
    assert contour.epsilon(parts, 0.95e-5 * count) == Interval(math.inf, math.inf)
    assert profile.epsilon(parts, 1.05e-5 * count).upper <= 0.5 * count


def test_what_is_left_out_is_added_to_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    """A law that misses 0.1 % of delta: its upper end is that much higher."""
    parts = both(0.01, 1.0, 100)[0]
    found = SimpleNamespace(interval=Interval(TARGET - 1e-4, TARGET + 1e-4))
    missing = TARGET - 1e-4 + math.log(1e-3)
    monkeypatch.setattr(integral, "certified_value", lambda *_: (found, None))
    monkeypatch.setattr(integral, "without_rare", lambda *_: (SumLaw((), 0.5, 1.0), missing))
    whole = integral._without_rare(parts, 1.0, 1e-2, NO_LIMIT)
    assert whole.lower == TARGET - 1e-4
    assert math.exp(whole.upper) >= math.exp(TARGET + 1e-4) + math.exp(missing)


def test_without_false_alarms_only_infinite_losses_are_hits() -> None:
    guarantee = LossGuarantee((((approx_pair(0.3, 1e-3), 2),),))
    ruled_out = 1 - (1 - mpf(1e-3)) ** 2
    at = guarantee.tradeoff(0.0)
    assert at.lower <= 1 - ruled_out <= at.upper
    assert at.width < 1e-12


# ---- rounding, up and down
CLOSED = [
    SampledGaussianPair(1e-9, 0.7),
    SampledGaussianPair(0.3, 1.2),
    SampledGaussianPair(0.3, 1.2, "add"),
    SampledGaussianPair(1e-6, 2.0, "add"),
    FixedSizeGaussianPair(0.05, 0.8),
    LaplacePair(0.7),
]


def exact_delta(pair: Any, epsilon: float) -> mpf:
    e, eps = mpmath.exp(mpf(epsilon)), mpf(epsilon)
    if isinstance(pair, LaplacePair):
        top = 1 / mpf(pair.scale)
        return 1 - mpmath.exp((eps - top) / 2) if eps < top else mpf(0)
    q, mu = mpf(pair.rate), mpf(pair.mu)
    if getattr(pair, "direction", "remove") == "remove":
        kappa = (e - 1 + q) / q
        s = mpmath.log(kappa) / mu + mu / 2
        return q * (mpmath.ncdf(mu - s) - kappa * mpmath.ncdf(-s))
    kappa = (1 / e - 1 + q) / q
    if kappa <= 0:
        return mpf(0)
    s = mpmath.log(kappa) / mu + mu / 2
    return mpmath.ncdf(s) - e * ((1 - q) * mpmath.ncdf(s) + q * mpmath.ncdf(s - mu))


@pytest.mark.parametrize("pair", CLOSED, ids=str)
def test_closed_forms_enclose_fifty_digits(pair: Any) -> None:
    top = min(pair.support[1], 12.0)
    with mp.workdps(60):
        for share in (1e-9, 1e-4, 0.1, 0.5, 0.9, 0.999, 1 - 1e-7):
            epsilon = share * top
            truth = exact_delta(pair, epsilon)
            found = pair.log_delta_single(epsilon)
            if truth > 0:
                assert found.lower <= mpmath.log(truth) <= found.upper
                assert found.width < 1e-4


@pytest.mark.parametrize("short", [1e-9, 1e-12, 1e-14])
def test_next_to_the_largest_loss_an_added_record_has_no_exact_point(short: float) -> None:
    """ln kappa cancels there: with a profile that is flat, its error is all that is left."""
    rate = 0.3
    epsilon = -math.log1p(-rate) * (1.0 - short)
    found = sampled_added(rate, epsilon, lambda _: Interval(-1.0, -1.0))
    with mp.workdps(60):
        kappa = mpmath.log((mpmath.exp(-mpf(epsilon)) - 1 + mpf(rate)) / mpf(rate))
        truth = mpmath.log(mpf(rate)) + mpf(epsilon) + kappa - 1
        assert found.lower <= truth <= found.upper


def test_sums_of_squares_are_rounded_up() -> None:
    with mp.workdps(50):
        for mus, counts in (([0.1, 0.3, 0.7], [3, 5, 11]), ([1e-3] * 3, [7, 7, 7])):
            truth = mpmath.sqrt(
                mpmath.fsum(c * mpf(m) ** 2 for m, c in zip(mus, counts, strict=True))
            )
            assert truth <= compose_mu(mus, counts) <= truth * (1 + 1e-14)
        assert mpf(0.1) * 3 <= group_mu(0.1, 3) <= mpf(0.1) * 3 * (1 + mpf(2) ** -49)


@pytest.mark.parametrize("value", [1e-5, 3e-7, 0.1])
def test_ends_of_a_delta_are_rounded_outward(value: float) -> None:
    log = math.log(value)
    with mp.workdps(40):
        assert rounding.up(math.exp(log)) > mpmath.exp(mpf(log)) > rounding.down(math.exp(log))
        assert rounding.log_down(value) < mpmath.log(mpf(value))
    assert rounding.down(value) < value < rounding.up(value)
    assert rounding.down(0.0) == 0.0


# ---- groups, compositions
@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("order", [1.1, 2.0, 50.0, 5000.0])
def test_renyi_of_a_group_is_above_that_of_a_gaussian(size: int, order: float) -> None:
    """Groups of Gaussians are known exactly; for large orders the chain is close to them."""
    mu = 0.4
    truth = 0.5 * order * (size * mu) ** 2
    found = GroupGuarantee(GaussianGuarantee(mu), size).renyi(order).upper
    assert truth <= found
    if size in (2, 8) and order == 5000.0:
        assert found <= truth * 1.01


@pytest.mark.parametrize("size", [2, 5])
def test_delta_of_a_group_is_reached_by_randomised_response(size: int) -> None:
    """(e^{k x} - 1)/(e^x - 1) delta(x): sums of e^{jx} delta, j < k."""
    inner = ApproxGuarantee(0.3, 1e-6)
    found = GroupGuarantee(inner, size).delta(0.3 * size)
    truth = 1e-6 * math.fsum(math.exp(0.3 * j) for j in range(size))
    assert truth <= found.upper <= truth * (1 + 1e-9)


def test_failures_of_a_composition_are_rounded_up() -> None:
    from tightrope.guarantee.kinds.renyi import LinearTerm, RenyiCurve, RenyiGuarantee

    curve = RenyiGuarantee(RenyiCurve.of(LinearTerm(0.1)))
    both = compose([ApproxGuarantee(0.1, 1e-3), curve], [7, 1])
    with mp.workdps(40):
        truth = 1 - (1 - mpf(1e-3)) ** 7
        assert truth <= both.failure <= truth * (1 + 1e-12)  # type: ignore[attr-defined]


def test_pairs_of_the_same_order_are_composed() -> None:
    """Remove with remove, add with add; a symmetric part is in both."""
    remove, add = SampledGaussianPair(0.1, 1.0), SampledGaussianPair(0.1, 1.0, "add")
    lopsided = LossGuarantee((((remove, 5),), ((add, 5),)))
    symmetric = LossGuarantee((((LaplacePair(2.0), 1),),), validity=Validity.BOUND)
    composed = compose([lopsided, symmetric], [2, 3])
    assert isinstance(composed, LossGuarantee)
    assert composed.orders == (
        ((remove, 10), (LaplacePair(2.0), 3)),
        ((add, 10), (LaplacePair(2.0), 3)),
    )
    assert composed.validity is Validity.BOUND


def test_trivial_zero_is_claimed_only_where_it_is_proved() -> None:
    parts = ((SampledGaussianPair(0.01, 1.0), 100),)
    at_zero = math.exp(contour.log_delta(parts, 0.0).lower)
    second = 0.5 * math.sqrt(math.expm1(100 * math.log1p(1e-4 * math.expm1(1.0))))
    assert at_zero <= second
    assert contour.trivially_zero(parts, math.log(second * (1 + 1e-9)))
    assert not contour.trivially_zero(parts, math.log(second * (1 - 1e-9)))
    assert np.isinf(LaplacePair(1.0).log_mean_square)
    both = (*parts, (SampledGaussianPair(0.01, 1.0, "add"), 100))  # kinds of steps add up
    assert contour.trivially_zero(both, math.log(2.0 * second * (1 + 1e-9)))
    assert not contour.trivially_zero(both, math.log(2.0 * second * (1 - 1e-9)))


@pytest.mark.parametrize("mu", [1e-3, 0.7, 3.0])
@pytest.mark.parametrize("rate", [1e-4, 0.3, 1.0])
def test_total_variation_is_delta_at_zero(rate: float, mu: float) -> None:
    pairs = [SampledGaussianPair(rate, mu, way) for way in ("remove", "add")]
    for pair in [*pairs, FixedSizeGaussianPair(rate, mu), *([GaussianPair(mu)] * (rate == 1.0))]:
        one = pair.log_delta_single(0.0)
        assert one.lower - 1e-13 <= math.log(pair.total_variation) <= one.upper + 1e-13
