"""Lattices so coarse that each side must show: steps, jumps, tails and what is given away."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
from mpmath import mp, mpf
from scipy.special import logsumexp

from tightrope.errors import ContradictoryMethods
from tightrope.guarantee.loss import lattice
from tightrope.guarantee.loss.abstract import JumpLaw, infinite_log_mass
from tightrope.guarantee.loss.lattice.best import best_plan
from tightrope.guarantee.loss.lattice.blocks import Blocks, _Level
from tightrope.guarantee.loss.lattice.law import OneSide, one_side
from tightrope.guarantee.loss.lattice.plan import plain_plan, sketch_of
from tightrope.guarantee.loss.lattice.rare_losses import compound_jumps, log_jump_sum
from tightrope.guarantee.loss.pairs import (
    AbstractLossPair,
    DiscretePair,
    FixedSizeGaussianPair,
    GaussianPair,
    LaplacePair,
    SampledGaussianPair,
    approx_pair,
)
from tightrope.guarantee.loss.pairs.jumps import NormalJumps
from tightrope.guarantee.loss.pairs.normals import LOG_CUT_OFF
from tightrope.guarantee.loss.pairs.sampling import log_ratio
from tightrope.numerics.lattice import LatticeMeasure

PAIRS: list[tuple[AbstractLossPair, float]] = [
    (GaussianPair(1.0), 0.4),
    (SampledGaussianPair(0.3, 1.2), 0.15),
    (SampledGaussianPair(0.3, 1.2, "add"), 0.08),
    (SampledGaussianPair(0.01, 2.0), 0.02),
    (FixedSizeGaussianPair(0.3, 1.2), 0.12),
    (LaplacePair(0.8), 0.3),
    (DiscretePair((-0.71, 0.13, 0.9), (0.25, 0.35, 0.4)), 0.4),
]


def call(measure: LatticeMeasure, epsilon: float) -> float:
    """E (1 - e^{eps - X})_+ of a tilted measure, plainly."""
    x = measure.first + measure.step * np.arange(len(measure.weights))
    masses = measure.weights * np.exp(measure.log_scale - measure.rate * x)
    return float(np.sum(masses * np.maximum(0.0, -np.expm1(epsilon - x))))


def allowed(measure: LatticeMeasure, epsilon: float) -> float:
    """What the stated error of the weights can do there."""
    return measure.error * math.exp(measure.log_scale - measure.rate * epsilon) + 1e-15


@pytest.mark.parametrize(("pair", "step"), PAIRS, ids=lambda value: str(value)[:24])
@pytest.mark.parametrize("rate", [0.0, 2.0])
def test_one_step_is_enclosed_by_its_two_lattices(
    pair: AbstractLossPair, step: float, rate: float
) -> None:
    """At every epsilon, negative ones too: that is what survives composition."""
    cut = 11.0
    upper = pair.measure("upper", step, rate, cut)
    lower = pair.measure("lower", step, rate, cut)
    gaps = []
    for epsilon in np.linspace(-1.5, 2.5, 161).tolist():
        truth = math.exp(pair.log_delta_single(epsilon).upper)
        above, below = call(upper, epsilon), call(lower, epsilon)
        # upper lattices may leave out what is added elsewhere: losses beyond the cut, s < -40
        assert truth <= above * (1 + 1e-12) + allowed(upper, epsilon) + 1e-14
        assert below <= truth * (1 + 1e-12) + allowed(lower, epsilon)
        gaps += [(above - below) / truth] if truth > 1e-3 else []
    assert 1e-4 < max(gaps) < 40.0
    assert upper.error < 1e-10 and lower.error < 1e-6


def dense(rate: float, mu: float, begin: float, end: float) -> tuple[np.ndarray, np.ndarray]:
    """Losses and masses under P of s in (begin, end), by a fine midpoint rule."""
    n = 40_000
    s = begin + (end - begin) * (np.arange(n) + 0.5) / n
    losses = log_ratio(s, rate, mu)
    return losses, np.exp(losses - 0.5 * s * s) / math.sqrt(2 * math.pi) * (end - begin) / n


def payoff(losses: np.ndarray, masses: np.ndarray, epsilon: float) -> float:
    return float(masses @ np.maximum(0.0, -np.expm1(epsilon - losses)))


def test_one_jump_is_enclosed() -> None:
    rate, mu, begin, end = 0.01, 1.5, 1.0, 5.0
    truth = dense(rate, mu, begin, end)
    for epsilon in np.linspace(-0.5, 3.0, 50).tolist():
        true = payoff(*truth, epsilon)
        laws = [NormalJumps(rate, mu).one(begin, end, 12, side) for side in ("lower", "upper")]  # type: ignore[arg-type]
        below, above = (payoff(law.losses, np.exp(law.log_masses), epsilon) for law in laws)
        assert below <= true * (1 + 1e-6) and true <= above * (1 + 1e-6)
        if 0.5 < epsilon < 1.0:
            assert above > 1.001 * below


@pytest.mark.parametrize("k", [2, 3])
def test_several_jumps_are_enclosed(k: int) -> None:
    rate, mu, begin, end = 0.01, 1.5, 1.0, 4.0
    losses, masses = dense(rate, mu, begin, end)
    step = 0.002
    place = np.round(losses / step).astype(int)
    one = np.bincount(place, masses)
    total = one
    for _ in range(k - 1):
        total = np.convolve(total, one)
    sums = step * np.arange(len(total))
    laws = [
        NormalJumps(rate, mu).several((begin, end), 400, k, 1.0, side)
        for side in ("lower", "upper")
    ]  # type: ignore[arg-type]
    for epsilon in np.linspace(0.2, 4.0, 20).tolist():
        true = payoff(sums, total, epsilon)
        below, above = (
            payoff(law[k - 2].losses, np.exp(law[k - 2].log_masses), epsilon) for law in laws
        )
        assert below <= true * 1.004 and true <= above * 1.004
        assert below < above or true < 1e-9


def test_a_sum_over_jumps_keeps_its_errors() -> None:
    """Errors of the rest, of the masses and of an FFT, each where it stands alone."""
    law = JumpLaw(np.array([1.0, 2.0]), np.log(np.array([0.3, 0.2])), 1e-5)

    def rest(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(points), math.log(0.5)), np.full(len(points), math.log(1e-6))

    value, error = log_jump_sum(law, rest, 0.7, "upper")
    assert math.exp(value) == pytest.approx(0.25, rel=1e-12)
    assert 0.5e-6 + 0.25e-5 <= math.exp(error) <= 1.1 * (0.5e-6 + 0.25e-5)
    fft = LatticeMeasure(0.0, 1.0, np.empty(0), 0.0, 0.0, 3e-4, 1e-3, 2e-3)
    _, error = log_jump_sum(replace(law, fft=fft), rest, 0.7, "upper")
    assert math.exp(error) + 3e-4 * 0.5 >= 1e-3 * 2 * 0.5 + 3e-4 * 0.5
    assert math.exp(error) >= 2e-3 * 0.5 * 0.5 * math.sqrt(2) and math.exp(error) >= 3e-4 * 0.5


@pytest.mark.parametrize("tilt", [0.0, 3.0])
def test_any_number_of_jumps_is_enclosed(tilt: float) -> None:
    pair, count, begin, end = SampledGaussianPair(1e-3, 1.5), 200, 3.0, 6.0
    losses, masses = dense(pair.rate, pair.mu, begin, end)
    step = 0.001
    one = np.bincount(np.round(losses / step).astype(int), masses, 8000)
    terms, power = np.zeros(8000), np.zeros(8000)
    power[0] = 1.0
    for k in range(1, 9):
        power = np.convolve(power, one)[:8000]
        terms += math.comb(count, k) * power
    sums = step * np.arange(8000)
    laws = [
        compound_jumps(pair.jumps, count, begin, end, 0.02, 1024, tilt, side)  # type: ignore[arg-type]
        for side in ("lower", "upper")
    ]
    for epsilon in np.linspace(0.1, 2.0, 12).tolist():
        below, above = (payoff(law.losses, np.exp(law.log_masses), epsilon) for law in laws)
        true = payoff(sums, terms, epsilon)
        assert below <= true * 1.003 and true <= above * 1.003


@pytest.mark.parametrize("pair", [SampledGaussianPair(0.05, 1.3), FixedSizeGaussianPair(0.2, 1.1)])
@pytest.mark.parametrize("tilt", [0.7, 3.0])
def test_the_moment_of_one_step_is_bounded(pair: Any, tilt: float) -> None:
    end = 4.0
    low = 0.5 * pair.mu if isinstance(pair, FixedSizeGaussianPair) else -12.0
    losses, masses = dense(pair.rate, pair.mu, low, end)
    logs = [np.log(masses) + tilt * losses]
    if isinstance(pair, FixedSizeGaussianPair):
        other, mass = dense(pair.rate, pair.mu, low, low + 12.0)
        logs += [np.log(mass) - (1.0 + tilt) * other, np.log(np.array([pair.atoms[0][1]]))]
    truth = float(logsumexp(np.concatenate(logs)))
    assert truth - 1e-7 <= pair.jumps.log_moment(tilt, end) <= truth + 1e-4


class Table:
    """A table that answers with one value and one error."""

    size = 16

    def __init__(self, value: float, error: float) -> None:
        self.value, self.error = math.log(value), math.log(error)

    def log_call(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full(len(points), self.value), np.full(len(points), self.error)


def side_of(side: Any, **changed: Any) -> OneSide:
    plan = plain_plan(((SampledGaussianPair(0.05, 1.0), 10),), 1.0, -7.0, 0.1)
    values: dict[str, Any] = {
        "plan": plan,
        "side": side,
        "tables": (Table(1e-3, 1e-5),),
        "laws": (),
        "log_infinite": -math.inf,
        "log_left_out": math.log(3e-6),
        "log_moment": -math.inf,
        "highest": 50.0,
    } | changed
    return OneSide(**values)


def test_each_side_takes_its_error_to_its_own_side() -> None:
    assert math.exp(side_of("upper").log_upper(1.0)) == pytest.approx(1e-3 + 1e-5 + 3e-6, rel=1e-9)
    assert math.exp(side_of("lower").log_lower(1.0)) == pytest.approx(1e-3 - 1e-5, rel=1e-9)
    assert side_of("lower", tables=(Table(1e-5, 1e-4),)).log_lower(1.0) == -math.inf


def test_infinite_losses_are_in_both_ends() -> None:
    log_p = math.log(2e-4)
    upper = side_of("upper", log_infinite=log_p).log_upper(1.0)
    assert math.exp(upper) == pytest.approx(1e-3 + 2e-4 + 1e-5 + 3e-6, rel=1e-9)
    nothing = side_of("lower", log_infinite=log_p, tables=(Table(1e-5, 1.0),))
    assert nothing.log_lower(1.0) == log_p


def test_what_is_only_bounded_is_added_below_the_largest_sum() -> None:
    plan = plain_plan(((SampledGaussianPair(0.05, 1.0), 10),), 1.0, -7.0, 0.1)
    side = side_of("upper", log_moment=plan.split.saddle.rate * 1.0 + math.log(2e-3))
    assert math.exp(side.log_upper(1.0)) == pytest.approx(1e-3 + 1e-5 + 3e-6 + 2e-3, rel=1e-9)
    assert math.exp(side.log_given(60.0)) == pytest.approx(3e-6, rel=1e-9)


def test_sides_that_cross_are_not_believed() -> None:
    plan = plain_plan(((SampledGaussianPair(0.05, 1.0), 10),), 1.0, -7.0, 0.1)
    law = lattice.LatticeLaw(
        plan,
        side_of("upper", tables=(Table(1e-3, 1e-9),), log_left_out=-math.inf),
        side_of("lower", tables=(Table(2e-3, 1e-9),)),
    )
    with pytest.raises(ContradictoryMethods):
        law.log_delta(1.0)


@pytest.mark.parametrize("point", [-1.0, 2.0, 12.0, 35.0])
def test_the_mass_beyond_a_point_is_that_of_the_mixture(point: float) -> None:
    pair = SampledGaussianPair(0.03, 1.7)
    with mp.workdps(40):
        q, mu, s = mpf(pair.rate), mpf(pair.mu), mpf(point)
        truth = float(mpmath.log((1 - q) * mpmath.ncdf(-s) + q * mpmath.ncdf(mu - s)))
        assert pair.log_beyond(point) == pytest.approx(truth, rel=1e-12)
        assert float(mpmath.log(mpmath.ncdf(-40))) <= LOG_CUT_OFF


def test_everything_not_followed_is_given_away() -> None:
    """Losses beyond the last, numbers of jumps beyond the largest, s < -40."""
    parts = ((SampledGaussianPair(1e-6, 1.0), 1000),)
    plan = best_plan(parts, 2e-4, -20.0, 0.01)
    assert plan.split.jumps > 0 and not plan.compound
    side = one_side(plan, "upper")
    with mp.workdps(30):
        q, mu = mpf(1e-6), mpf(1)

        def beyond(s: float) -> mpf:
            return (1 - q) * mpmath.ncdf(-mpf(s)) + q * mpmath.ncdf(mu - s)

        least = 1000 * beyond(plan.last)
        k = plan.split.jumps + 1
        least += mpmath.binomial(1000, k) * beyond(plan.cuts[0]) ** k
        assert float(mpmath.log(least)) <= side.log_left_out + 1e-9


@pytest.mark.parametrize(
    ("mass", "count"),
    [(1e-9, 1), (1e-3, 40), (0.3, 3), (3.4752321776566066e-230, 509), (7.73710686052652e-64, 66)],
)
def test_infinite_mass_of_a_composition(mass: float, count: int) -> None:
    found = infinite_log_mass(((approx_pair(0.5, mass), count),))
    with mp.workdps(40):
        truth = mpmath.log(-mpmath.expm1(count * mpmath.log1p(-mpf(mass))))
        assert found.lower <= truth <= found.upper
        assert found.width < 1e-12 + 1e-12 * abs(float(truth))


def test_infinite_mass_of_a_release_that_always_gives_everything_away() -> None:
    found = infinite_log_mass(((DiscretePair((0.0,), (0.0,), 1.0), 2),))
    assert (found.lower, found.upper) == (0.0, 0.0)


SETTINGS = [
    ((SampledGaussianPair(0.01, 1.0), 1000), 1e-5),
    ((SampledGaussianPair(0.02, 0.8, "add"), 300), 1e-4),
    ((SampledGaussianPair(1e-3, 1.6), 100), 1e-6),
    ((SampledGaussianPair(2e-6, 0.3), 10**7), 1e-5),  # blocks on coarser lattices
]


@pytest.mark.parametrize(("part", "delta"), SETTINGS, ids=str)
def test_coarse_epsilons_enclose_the_fine_one(part: Any, delta: float) -> None:
    """Each end is read off its own side."""
    truth = lattice.epsilon((part,), delta, 1e-6)
    width = 0.0
    for share in (0.3, 0.1, 0.03):
        plan = best_plan((part,), truth.upper, math.log(delta), share)
        law = lattice.build(plan)
        for epsilon in (0.97 * truth.upper, truth.upper, 1.03 * truth.upper):
            found, fine = law.log_delta(epsilon), lattice.log_delta((part,), epsilon, 1e-4)
            assert found.lower <= fine.upper and fine.lower <= found.upper
            width = max(width, found.width)
        wide = lattice.epsilon((part,), delta, 10 * share)
        assert wide.lower <= truth.upper and truth.lower <= wide.upper
    assert width > 1e-3


# ---- blocks of steps on coarser lattices: what a block does not follow is in its error
@pytest.mark.parametrize("k", [2, 3])
def test_blocks_with_more_rare_losses_are_bounded_above_and_dropped_below(k: int) -> None:
    """sum over j >= k of C(n, j) B^j S^(n-j), the masses being those of the tilted steps."""
    pair, n = SampledGaussianPair(0.01, 1.5), 40
    step, rate, ends = 0.05, 0.5, (2.0, 4.0)
    single = pair.measure("upper", step, rate, ends[0])
    jump = pair.jumps.measure("upper", step, rate, ends, single.first)
    blocks = Blocks.__new__(Blocks)
    blocks.side = "upper"
    level = _Level(0, n, n, step)
    found = blocks._log_more_jumps(level, single, jump, k)
    s, b = math.exp(single.log_scale), math.exp(jump.log_scale)
    truth = math.fsum(math.comb(n, j) * b**j * s ** (n - j) for j in range(k, n + 1))
    assert truth <= 1.01 * math.exp(found) <= 3.0 * truth
    blocks.side = "lower"
    assert blocks._log_more_jumps(level, single, jump, k) == -math.inf


def test_levels_hold_every_step() -> None:
    pair, count = SampledGaussianPair(1e-4, 0.4), 50_000
    sketch = sketch_of(((pair, count),))
    blocks = Blocks(pair, "upper", 20.0, 6.0, sketch, 2e-5, 2, 0, 20.0)
    lengths = [level.length for level in blocks.levels]
    assert blocks.levels[0].singles == lengths[0]
    for before, level in zip(lengths, blocks.levels[1:], strict=False):
        assert level.blocks * before + level.singles == level.length
    assert blocks.blocks * lengths[-1] + blocks.rest == count
    assert np.isclose(float(blocks.block.weights.sum()), 1.0)
