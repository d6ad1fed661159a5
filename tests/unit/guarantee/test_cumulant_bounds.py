"""Bounds on cumulants: strips, panels, tails and densities, each as the inequality it states."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from mpmath import mp, mpf
from scipy.special import logsumexp

from tightrope.guarantee.loss.abstract import law_of
from tightrope.guarantee.loss.pairs import (
    FixedSizeGaussianPair,
    LaplacePair,
    PublicMixturePair,
    SampledGaussianPair,
    approx_pair,
    points,
    sampled_grid,
)
from tightrope.guarantee.loss.pairs.discrete import DiscreteCumulant
from tightrope.guarantee.loss.pairs.fixed_size import FixedSizeCumulant
from tightrope.guarantee.loss.pairs.laplace import LaplaceCumulant
from tightrope.guarantee.loss.pairs.points import POINTS, panel_points
from tightrope.guarantee.loss.pairs.sampled import SampledCumulant
from tightrope.guarantee.loss.pairs.sampled_grid import SampledStrip, layers_of_density
from tightrope.guarantee.loss.pairs.sampled_part import Panels, PartCumulant, log_tail
from tightrope.numerics.quadrature import LOG_ROOT_2PI

LAWS = [(0.3, 1.0), (0.02, 2.5), (0.9, 0.6)]  # rate, mu
POWERS = [1.0, 4.0, 30.0, -1.0, -6.0]


def strip_of(rate: float, mu: float) -> SampledStrip:
    return SampledStrip(np.array([rate]), np.array([mu]))


def ratio(s: Any, rate: float, mu: float) -> Any:
    """r(s), for complex s too."""
    return 1.0 - rate + rate * np.exp(mu * s - 0.5 * mu * mu)


def log_modulus(s: Any, depth: float, w: float, frequency: float, law: tuple[float, float]) -> Any:
    """ln |e^{-(s+id)^2/2} r(s+id)^{w + i y}| for the worse sign of y."""
    r = ratio(s + 1j * depth, *law)
    return 0.5 * (depth**2 - s**2) + w * np.log(np.abs(r)) + frequency * np.angle(r)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("w", POWERS)
def test_every_cell_of_the_strip_bounds_the_integrand(law: tuple[float, float], w: float) -> None:
    strip, power = strip_of(*law), np.array([[w]])
    reach = strip.reach(power, 12.0)
    outline = strip.outline(power, reach, right_ends=True)
    least = strip.outline(power, reach, right_ends=False)
    edges = strip._edges(reach)[0]
    width = edges[1] - edges[0]
    s = edges[:-1, None] + width * np.linspace(0.0, 1.0, 41)
    tightest = math.inf
    for i, depth in enumerate(outline.depths[0].tolist()):
        angle = np.angle(ratio(s + 1j * depth, *law))
        assert np.all(angle.max(axis=1) <= outline.angle[0, i] + 1e-12)
        assert np.all(angle.min(axis=1) >= least.angle[0, i] - 1e-12)
        sizes = log_modulus(s, depth, w, 0.0, law).max(axis=1) - 0.5 * depth**2
        gaps = outline.cells[0, i] - (sizes + math.log(width))
        assert np.all(gaps >= -1e-12)
        tightest = min(tightest, float(gaps.min()))
    assert tightest < 0.05


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("w", POWERS)
@pytest.mark.parametrize("frequency", [0.0, 3.0])
def test_the_strip_and_its_tails_bound_the_integral(
    law: tuple[float, float], w: float, frequency: float
) -> None:
    """Ends where the tails still count: beyond them, and all in all."""
    strip, power, push = strip_of(*law), np.array([[w]]), np.array([[frequency]])
    reach = strip.reach(power, 0.6)
    reach = (reach[0], strip.last_edge(power, reach[1], np.array([0.6]), push))
    depths, logs = strip.bound(power, push, reach)
    outline = strip.outline(power, reach, right_ends=True)
    left, right = strip.tails(power, push, outline)
    low, high = float(reach[0][0]), float(reach[1][0])
    step = 1e-3
    for i, depth in enumerate(depths[0].tolist()):
        ranges = (low - 14.0, low), (low, high), (high, high + 14.0)
        sums = [
            float(logsumexp(log_modulus(np.arange(*ends, step), depth, w, frequency, law)))
            + math.log(step)
            for ends in ranges
        ]
        assert sums[0] <= left[0, i] + 0.5 * depth**2 + 1e-3
        assert sums[2] <= right[0, i] + 0.5 * depth**2 + 1e-3
        assert float(logsumexp(sums)) - LOG_ROOT_2PI <= logs[0, i] + 1e-3


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("w", POWERS)
def test_beyond_the_reach_the_integrand_falls_like_a_gaussian(
    law: tuple[float, float], w: float
) -> None:
    strip, power = strip_of(*law), np.array([[w]])
    low, high = (float(end[0]) for end in strip.reach(power, 2.0))
    x = np.linspace(0.0, 9.0, 400)
    for end, sign in ((low, -1.0), (high, 1.0)):
        f = log_modulus(end + sign * x, 0.0, w, 0.0, law)
        assert np.all(f <= f[0] - 0.5 * x * x + 1e-9)


def slow_log_mass(rate: float, mu: float, w: complex, end: float = math.inf) -> mpmath.mpc:
    """ln E[r^w; s <= end] in 30 digits."""
    with mp.workdps(30):
        q, m = mpf(rate), mpf(mu)

        def integrand(s: mpf) -> mpmath.mpc:
            r = 1 - q + q * mpmath.exp(m * s - m * m / 2)
            return mpmath.npdf(s) * mpmath.exp(w * mpmath.log(r))

        top = min(end, 14 + max(w.real, 1.0) * mu)
        low = -14 + min(w.real, 0.0) * mu
        points = [low + (top - low) * mpf(k) / 24 for k in range(25)]
        return mpmath.log(mpmath.quad(integrand, points))


@pytest.mark.parametrize("law", [(0.3, 1.0), (0.02, 2.5), (1e-3, 0.4)])
@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("tilt", [0.5, 3.0, 20.0])
def test_coarse_grids_are_off_by_no_more_than_they_say(
    law: tuple[float, float], direction: Any, tilt: float
) -> None:
    """Few nats: strip and truncation errors are of the size of their bounds."""
    family = SampledCumulant([SampledGaussianPair(*law, direction)], [1])
    truth = float(slow_log_mass(*law, complex(family.power(tilt))).real)
    for nats in (1.0, 3.0, 6.0, 12.0):
        value, error = (float(v[0]) for v in family.real(tilt, nats))
        assert abs(value - truth) <= error


def test_some_coarse_grid_is_as_wrong_as_it_may_be() -> None:
    """Otherwise the test above would hold without the bounds."""
    shares = []
    for nats in (1.0, 2.0, 3.0, 4.0, 6.0):
        family = SampledCumulant([SampledGaussianPair(0.3, 1.0)], [1])
        value, error = (float(v[0]) for v in family.real(3.0, nats))
        truth = float(slow_log_mass(0.3, 1.0, 4.0 + 0j).real)
        shares.append(abs(value - truth) / error)
    assert 0.02 < max(shares) <= 1.0


@pytest.mark.parametrize("law", [(0.3, 1.0), (0.02, 2.5)])
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_truncation_is_bounded_by_the_gaussian_tails(law: Any, direction: Any) -> None:
    """The reach cut short: all that lies beyond both ends must be in the error."""
    family = SampledCumulant([SampledGaussianPair(*law, direction)], [1])
    for tilt in (0.3, 2.0, 8.0):
        for nats in (0.3, 1.0, 2.0):
            grid = family._proved([(tilt, 0.0, 30.0)])
            keep = (grid.s >= grid.reach[0][0] + nats) & (grid.s <= grid.reach[1][0] - nats)
            low, high = grid.s[keep].min(), grid.s[keep].max()
            cut = type(grid)(
                grid.of,
                grid.removes,
                grid.tilt,
                grid.s[:, keep[0]],
                grid.lr[:, keep[0]],
                grid.log_weight[:, keep[0]],
                grid.step,
                (np.array([low]), np.array([high])),
                grid.log_strip,
            )
            whole, _ = grid.mass()
            value, error = cut.mass()
            assert abs(float(whole[0] - value[0])) <= float(error[0]) + 1e-12


@pytest.mark.parametrize("law", [(0.3, 1.0), (0.02, 2.5), (1e-4, 1.3)])
@pytest.mark.parametrize("tilt", [-0.9, 0.5, 6.0])
def test_cells_of_the_density_lie_below_it(
    law: tuple[float, float], tilt: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    honest = sampled_grid.layers_of_steps
    monkeypatch.setattr(sampled_grid, "layers_of_steps", lambda *a: seen.append(a) or honest(*a))
    family = SampledCumulant([SampledGaussianPair(*law)], [1])
    w, log_size = family.power(tilt), family._log_size(tilt)
    reach = family.strip.reach(np.array([[w]]), 12.0)
    _, variation = layers_of_density(family.strip, w, reach, log_size)
    losses, heights, _ = seen[0]
    share = np.linspace(0.0, 1.0, 21)
    s = np.linspace(float(reach[0][0]), float(reach[1][0]), len(losses))
    inner = s[:-1, None] + np.diff(s)[:, None] * share
    r = ratio(inner, *law)
    slope = law[1] * (r - 1.0 + law[0]) / r  # L' = mu t
    density = np.exp(-0.5 * inner**2 - LOG_ROOT_2PI - log_size[0]) * r**w / slope
    assert np.all(heights <= density.min(axis=1) * (1 + 1e-12))
    solid = density.max(axis=1) > 1e-6 * density.max()
    assert float(np.max(heights[solid] / density.min(axis=1)[solid])) > 0.99
    flat = density.reshape(-1)
    assert float(np.abs(np.diff(flat)).sum() + flat[0] + flat[-1]) <= float(variation[0])


CUT_AWAY = SampledGaussianPair(0.3, 0.7)
FAMILIES = {
    "remove": (SampledCumulant([SampledGaussianPair(0.3, 1.0)], [2]), 2.0),
    "few large": (SampledCumulant([SampledGaussianPair(0.01, 3.0)], [2]), 0.5),
    "add": (SampledCumulant([SampledGaussianPair(0.3, 1.0, "add")], [2]), 3.0),
    "many": (SampledCumulant([SampledGaussianPair(0.1, 0.7)], [500]), 4.0),
    "cut": (PartCumulant([SampledGaussianPair(0.1, 1.5)], [2], np.array([4.0])), 1.0),
    "cut short": (PartCumulant([SampledGaussianPair(0.9, 1.5)], [2], np.array([1.0])), 1.0),
    "fixed size": (FixedSizeCumulant(FixedSizeGaussianPair(0.3, 1.4), 2), 1.5),
    "laplace": (LaplaceCumulant(LaplacePair(0.7), 2), 1.0),
    "public": (law_of(PublicMixturePair(0.3, CUT_AWAY, SampledGaussianPair(0.2, 1.4)), 2), 1.5),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_decay_is_above_the_transform_from_each_frequency_on(name: str) -> None:
    family, tilt = FAMILIES[name]
    spread = math.sqrt(family.moments(tilt)[2] / float(family.counts[0]))
    step, count = 0.02 / spread, 1500
    nodes = family.nodes(tilt, count * step, 30.0)
    x, error = nodes.transform(step, count)
    sizes = np.abs(1.0 + x[0]) - error[0]
    bounds = family.decay(tilt).bounds(step * np.arange(1, count))[:, 0]
    later = np.maximum.accumulate(sizes[:0:-1])[::-1]
    assert np.all(later <= bounds * (1 + 1e-9))
    near = slice(20, 60)  # of second order exact: not far above it at first
    assert np.all(1.0 - bounds[near] >= 0.2 * (1.0 - sizes[1:][near]))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("nats", [2.0, 6.0, 12.0])
def test_coarse_nodes_enclose_fine_ones(name: str, nats: float) -> None:
    """ln M and the transform, at few nats, against thirty."""
    family, tilt = FAMILIES[name]
    spread = math.sqrt(family.moments(tilt)[2] / float(family.counts[0]))
    step = 1.5 / spread
    coarse, fine = (family.nodes(tilt, 5 * step, n) for n in (nats, 32.0))
    assert (
        abs(coarse.log_mass - fine.log_mass)[0] <= (coarse.log_mass_error + fine.log_mass_error)[0]
    )
    values = []
    for nodes in (coarse, fine):
        x, error = nodes.transform(step, 5)
        values.append(((1.0 + x[0]) * np.exp(1j * step * np.arange(5) * nodes.centre[0]), error[0]))
    assert np.all(np.abs(values[0][0] - values[1][0]) <= values[0][1] + values[1][1])


def steps_of(module: Any, family: Any, tilt: float, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Losses and heights of the steps that a decay is made of."""
    seen: list[Any] = []
    honest = module.layers_of_steps
    monkeypatch.setattr(module, "layers_of_steps", lambda *a: seen.append(a) or honest(*a))
    family.decay(tilt)
    return seen[0][:2]


@pytest.mark.parametrize("tilt", [-0.7, 1.0, 6.0])
def test_steps_of_a_laplace_law_lie_below_its_density(
    tilt: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = LaplacePair(0.7)
    family = LaplaceCumulant(pair, 1)
    losses, heights = steps_of(points, family, tilt, monkeypatch)
    log_size = float(family.real(tilt, 30.0)[0][0])
    inner = losses[:-1, None] + np.diff(losses)[:, None] * np.linspace(0.0, 1.0, 9)
    density = pair.inner * np.exp((tilt + 0.5) * inner - 0.5 * pair.top - log_size)
    assert np.all(heights <= density.min(axis=1))
    assert np.all(heights >= 0.99 * density.min(axis=1))


@pytest.mark.parametrize("tilt", [0.2, 1.5, 6.0])
def test_steps_of_a_fixed_size_law_lie_below_its_density(
    tilt: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate, mu = 0.3, 1.4
    family = FixedSizeCumulant(FixedSizeGaussianPair(rate, mu), 1)
    losses, heights = steps_of(points, family, tilt, monkeypatch)
    log_size = float(family.real(tilt, 30.0)[0][0])
    middle = len(heights) // 2
    s = (np.log((np.exp(losses[middle:]) - 1.0 + rate) / rate) + 0.5 * mu * mu) / mu
    inner = s[:-1, None] + np.diff(s)[:, None] * np.linspace(0.0, 1.0, 9)
    r = ratio(inner, rate, mu)
    slope = mu * (r - 1.0 + rate) / r
    for side, w in ((heights[middle:], 1.0 + tilt), (heights[middle - 1 :: -1], -tilt)):
        density = np.exp(-0.5 * inner**2 - LOG_ROOT_2PI - log_size) * r**w / slope
        assert np.all(side <= density.min(axis=1))
        solid = density.max(axis=1) > 1e-6 * density.max()
        assert np.all(side[solid] >= 0.98 * density.min(axis=1)[solid])


def test_few_points_of_a_bounded_law_are_off_by_no_more_than_they_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    family = LaplaceCumulant(LaplacePair(0.2), 1)
    fine = family.nodes(3.0, 1.0, 30.0)
    for count in (6, 9, 12):
        monkeypatch.setattr(points, "COUNTS", (count,))
        coarse = family.nodes(3.0, 1.0, -99.0)  # one panel, whatever its error
        gap = abs(float(coarse.log_mass[0] - fine.log_mass[0]))
        assert gap <= float(coarse.log_mass_error[0])
        values = [(1.0 + n.transform(1.0, 2)[0][0, 1]) * np.exp(1j * n.centre[0])
                  for n in (coarse, fine)]  # fmt: skip
        assert 1e-12 < abs(values[0] - values[1]) <= float(coarse.transform(1.0, 2)[1][0, 1])


def test_a_public_mixture_keeps_what_its_parts_miss() -> None:
    family, tilt = FAMILIES["public"]
    nodes = family.nodes(tilt, 3.0, 3.0)
    parts = [law.nodes(tilt, 3.0, 3.0) for law in family.laws]
    logs = np.array([float(part.log_mass[0]) for part in parts]) + family.log_weights
    share = np.exp(logs - logsumexp(logs))
    missed = sum(s * float(part.fixed_error[0]) for s, part in zip(share, parts, strict=True))
    assert 1e-6 < missed <= float(nodes.fixed_error[0]) * (1 + 1e-12)


@pytest.mark.parametrize("count", [3, 4, 6])
def test_panels_are_off_by_no_more_than_they_say(count: int) -> None:
    """Panels that turn too far for 32 points: the error is seen, and bounded."""
    law, w, frequency = (0.3, 1.2), 2.0, 60.0
    edges, total = np.linspace(-1.0, 5.0, count + 1), []
    for cells in (edges, np.linspace(-1.0, 5.0, 400)):
        s, log_weight = panel_points(cells, POINTS)
        terms = np.exp(log_weight - LOG_ROOT_2PI - 0.5 * s * s)
        total.append(complex(np.sum(terms * ratio(s, *law) ** (w + 1j * frequency))))
    gap = abs(total[0] - total[1])
    assert gap <= math.exp(Panels(strip_of(*law), 0, w, frequency).log_error(edges)) + 1e-13
    if count == 3:
        assert gap > 1e-6


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("frequency", [0.0, 8.0])
def test_the_integrand_is_bounded_on_every_box(law: tuple[float, float], frequency: float) -> None:
    """phi r^{w+iy} and the Gaussian part that is taken from it, for |Im s| <= depth."""
    w, depth = 2.5, 0.3
    panels = Panels(strip_of(*law), 0, w, frequency)
    left = np.array([-4.0, -1.0, -0.2, 0.5, 2.0])
    right = left + 0.8
    bound = panels._log_on_box(left[None], right[None], np.full((1, 5), depth))[0]
    for a, b, most in zip(left.tolist(), right.tolist(), bound.tolist(), strict=True):
        x, d = np.meshgrid(np.linspace(a, b, 41), np.linspace(-depth, depth, 41))
        r = ratio(x + 1j * d, *law)
        phi = 0.5 * (d**2 - x**2) - LOG_ROOT_2PI
        sizes = phi + w * np.log(np.abs(r)) + frequency * np.abs(np.angle(r))
        assert float(sizes.max()) <= most
        assert float((phi + np.log(np.abs(1.0 + w * (r - 1.0)))).max()) <= most
        assert most <= float(sizes.max()) + 7.0


def test_panels_reach_from_end_to_end() -> None:
    edges = Panels(strip_of(0.3, 1.2), 0, 2.0, 40.0).edges(-3.0, 5.0, 51.0)
    assert edges[0] <= -3.0 and edges[-1] == 5.0 and np.all(np.diff(edges) > 0.0)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("low", [-5.0, -2.0, -0.5])
def test_what_lies_left_of_the_panels_is_bounded(law: tuple[float, float], low: float) -> None:
    panels = Panels(strip_of(*law), 0, 3.0, 0.0)
    s = np.arange(low - 12.0, low, 1e-3)
    phi = np.exp(-0.5 * s * s - LOG_ROOT_2PI)
    r = ratio(s, *law)
    for size in (phi * r**3.0, phi * np.abs(1.0 + 3.0 * (r - 1.0))):
        assert 1e-3 * float(np.sum(size)) <= math.exp(panels.log_left(low))


@pytest.mark.parametrize("law", [(0.3, 1.0), (1e-3, 2.5), (1e-7, 0.2)])
@pytest.mark.parametrize("s", [0.5, 3.0, 9.0, 30.0])
def test_the_mass_left_out_is_above_the_true_tail(law: tuple[float, float], s: float) -> None:
    rate, mu = law
    with mp.workdps(40):
        truth = (1 - mpf(rate)) * mpmath.ncdf(-mpf(s)) + mpf(rate) * mpmath.ncdf(mpf(mu) - s)
        one = float(mpmath.log(truth))
        found = float(log_tail(np.array([s]), np.log([rate]), np.array([mu]))[0])
        assert one <= found + 1e-12 * abs(found)
        assert found <= one + math.log1p(2 * rate) + 1e-9
        part = PartCumulant([SampledGaussianPair(*law)], [300], np.array([s]))
        assert float(mpmath.log(300 * truth)) <= part.log_dropped() + 1e-12 * abs(found)


def test_what_is_cut_off_is_taken_from_the_mass() -> None:
    """Near G = 1 the excess is summed: what lies beyond the end must be missing."""
    pair, end = SampledGaussianPair(0.05, 1.0), 2.0
    value, error = (float(v[0]) for v in PartCumulant([pair], [1], np.array([end])).real(0.1, 30.0))
    truth = float(slow_log_mass(0.05, 1.0, 1.1 + 0j, end).real)
    assert abs(value) < 0.5 and abs(value - truth) <= error <= 1e-12


@pytest.mark.parametrize("tilt", [0.3, 1.5, 40.0])
@pytest.mark.parametrize("failure", [0.0, 3e-9])
def test_the_masses_of_a_discrete_law_add_up_to_one(tilt: float, failure: float) -> None:
    """As stored they miss half a unit of it, and millions of steps would miss millions of them."""
    epsilon = 0.0005185352608482504
    at = law_of(approx_pair(epsilon, failure)).nodes(tilt, 0.0, 30.0)
    with mp.workdps(40):
        e, z = mpf(epsilon), mpf(tilt)
        truth = mpmath.log((mpmath.exp(z * e) + mpmath.exp(-(1 + z) * e)) / (1 + mpmath.exp(-e)))
        truth += mpmath.log(1 - mpf(failure))
        assert abs(truth - mpf(float(at.log_mass[0]))) <= float(at.log_mass_error[0])


def test_a_discrete_law_with_infinite_mass_has_less_than_one() -> None:
    """M(0) = 1 - delta and M(-1) = Q(L < inf)."""
    family = DiscreteCumulant(approx_pair(0.5, 0.01), 1)
    for tilt in (0.0, -1.0):
        value, error = (float(v[0]) for v in family.real(tilt, 30.0))
        assert abs(value - math.log(0.99)) <= error + 1e-16
        assert error < 1e-14
