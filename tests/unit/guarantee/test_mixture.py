"""Mixtures of Gaussians: golden enclosures, bounds of the numerics, users, replaced records."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy.fft import irfft, rfft
from scipy.special import ndtr

from tightrope import NoisySGD, PoissonSampling, account
from tightrope.errors import InvalidInput, NotCertified
from tightrope.guarantee.loss import contour, lattice, profile
from tightrope.guarantee.loss.abstract import law_of
from tightrope.guarantee.loss.pairs import GaussianMixturePair, SampledGaussianPair
from tightrope.guarantee.loss.pairs.binomial_mixture import Arm
from tightrope.guarantee.loss.pairs.mixture import MixtureCumulant
from tightrope.guarantee.loss.renyi import renyi
from tightrope.process import Adjacency, FixedSizeSampling, Sequence, UserLevel

CASES = json.loads((Path(__file__).parents[2] / "golden" / "mixture.json").read_text())
PAIRS = [
    GaussianMixturePair(0.01, 1.0, 1, 1),
    GaussianMixturePair(0.2, 0.5, 5, 0),
    GaussianMixturePair(0.2, 0.5, 0, 5),
    GaussianMixturePair(0.05, 2.0, 3, 0),
    GaussianMixturePair(0.3, 1.5, 1, 1),
]


def cases(name: str) -> list[dict]:
    return [case for case in CASES if case["name"] == name]


def told(case: dict) -> str:
    return ", ".join(case["inputs"].values())


def numbers(case: dict) -> tuple[float, float, int, float]:
    i = case["inputs"]
    return float(i["q"]), float(i["sigma"]), int(i["T"]), float(i["delta"])


@pytest.mark.parametrize("case", cases("poisson_replace_one"), ids=told)
def test_golden_replaced_records_are_enclosed(case: dict) -> None:
    q, sigma, steps, delta = numbers(case)
    run = NoisySGD(PoissonSampling(q), sigma, steps, Adjacency.REPLACE_ONE)
    found = account(run, check="off").epsilon(delta)
    low, high = map(float, case["outputs"]["both"])
    assert found.lower <= high * (1 + 1e-11) and found.upper >= low * (1 - 1e-11)
    assert found.width <= 1e-6 * found.upper


@pytest.mark.parametrize("case", cases("group_poisson"), ids=told)
def test_golden_groups_are_enclosed(case: dict) -> None:
    q, sigma, steps, delta = numbers(case)
    size = int(case["inputs"]["K"])
    for order, members in (("remove", (size, 0)), ("add", (0, size))):
        if order not in case["outputs"]:
            continue
        pair = GaussianMixturePair(q, 1.0 / sigma, *members)
        found = profile.epsilon(((pair, steps),), delta)
        low, high = map(float, case["outputs"][order])
        assert found.lower <= high * (1 + 1e-11) and found.upper >= low * (1 - 1e-11)
        assert found.width <= 1e-6 * found.upper


@pytest.mark.parametrize("case", cases("fixed_size_replace_one"), ids=told)
def test_fixed_size_batches_have_both_ends(case: dict) -> None:
    q, sigma, steps, delta = numbers(case)
    run = NoisySGD(FixedSizeSampling(q), sigma, steps, Adjacency.REPLACE_ONE)
    found = account(run, check="off").epsilon(delta)
    (low, lower_high), (upper_low, high) = (
        map(float, case["outputs"][key]) for key in ("attained_remove_half_noise", "proved_C_q")
    )
    slack = 1e-6 * high
    assert low - slack <= found.lower <= lower_high + slack
    assert upper_low - slack <= found.upper <= high + slack


# ---- numerics
def test_one_record_is_the_sampled_gaussian() -> None:
    for plus, direction in ((1, "remove"), (0, "add")):
        mixed = GaussianMixturePair(0.01, 0.8, plus, 1 - plus)
        one = SampledGaussianPair(0.01, 0.8, direction)
        for steps in (1, 7, 900):
            a, b = (profile.epsilon(((pair, steps),), 1e-6) for pair in (mixed, one))
            assert a.lower <= b.upper * (1 + 1e-12) and b.lower <= a.upper * (1 + 1e-12)


def test_the_inverse_of_the_replaced_loss_is_known() -> None:
    """mu x = l/2 + asinh((1-q) sinh(l/2)/(q e^{-mu^2/2}))."""
    q, mu = 0.03, 1.3
    pair, loss = GaussianMixturePair(q, mu, 1, 1), np.linspace(-8.0, 8.0, 33)
    known = 0.5 * loss + np.arcsinh((1 - q) * np.sinh(loss / 2) / (q * math.exp(-mu * mu / 2)))
    low, high = pair.brackets(loss)
    assert np.all(low <= known / mu + 1e-12) and np.all(known / mu <= high + 1e-12)
    assert np.all(high - low < 1e-11)


def _exact_arm(pair: GaussianMixturePair, size: int, x: np.ndarray) -> np.ndarray:
    """In extended precision, 1e-19."""
    q, mu, k = np.longdouble(pair.rate), np.longdouble(pair.mu), np.arange(size + 1)
    b = np.array([np.longdouble(math.comb(size, int(i))) for i in k]) * q**k * (1 - q) ** (size - k)
    return (b * np.exp(np.multiply.outer(x, k * mu) - (k * mu) ** 2 / 2)).sum(axis=-1)


def _exact_loss(pair: GaussianMixturePair, x: np.ndarray) -> np.ndarray:
    x = x.astype(np.longdouble)
    return np.log(_exact_arm(pair, pair.plus, x)) - np.log(_exact_arm(pair, pair.minus, -x))


def _moment(pair: GaussianMixturePair, z: complex, end: float) -> complex:
    """M(z): a trapezoidal sum of the whole line, Gauss-Legendre panels of a part of it."""
    if end == math.inf:
        step = np.longdouble(1) / 16
        x = step * np.arange(-16 * 14, 16 * int(16 + (1 + abs(z)) * pair.mu * pair.plus))
        weight = np.full(len(x), step)
    else:
        edges, (nodes, rule) = np.linspace(-14.0, end, 80), np.polynomial.legendre.leggauss(40)
        half = 0.5 * np.diff(edges)
        x = (0.5 * (edges[1:] + edges[:-1])[:, None] + half[:, None] * nodes).ravel()
        x, weight = x.astype(np.longdouble), (half[:, None] * rule).ravel().astype(np.longdouble)
    density = weight * np.exp(-x * x / 2) / np.sqrt(2 * np.arccos(np.longdouble(-1)))
    density = density * _exact_arm(pair, pair.plus, x)
    return (density * np.exp(np.clongdouble(z) * _exact_loss(pair, x))).sum()


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_losses_are_right_to_their_error(pair: GaussianMixturePair) -> None:
    x = np.linspace(-9.0, 14.0, 47)
    off = np.abs(_exact_loss(pair, x) - pair.loss(x)).astype(float)
    assert np.all(off <= pair.loss_error(x) + 1e-18)


@pytest.mark.parametrize("size", [3, 40, 200])
@pytest.mark.parametrize("rate", [1e-9, 0.01, 0.5, 0.999])
def test_arms_of_any_size_are_right_to_their_error(rate: float, size: int) -> None:
    """Nobody of the group in the batch may be next to impossible, and a term beyond all doubles."""
    mp.dps = 40
    for mu in (0.004, 0.7, 30.0):
        arm, x = (
            Arm(rate, mu, size),
            np.array([-9.0, -1.0, 0.5, 3.0, 0.5 * mu * size, 1.1 * mu * size]),
        )
        value = arm.log(x)
        for at, found, error in zip(x, value, arm.log_error(x, value), strict=True):
            terms = (
                mp.binomial(size, k)
                * mpf(rate) ** k
                * (1 - mpf(rate)) ** (size - k)
                * mp.exp(k * mpf(mu) * mpf(at) - (k * mpf(mu)) ** 2 / 2)
                for k in range(size + 1)
            )
            assert abs(mp.log(mp.fsum(terms)) - mpf(found)) <= mpf(error)


@pytest.mark.parametrize("pair", PAIRS[:3], ids=str)
@pytest.mark.parametrize("end", [math.inf, 3.0])
def test_cumulants_are_right_to_their_error(pair: GaussianMixturePair, end: float) -> None:
    law, own = MixtureCumulant(pair, 1, end), 1e-17 if end == math.inf else 2e-14
    for tilt, nats in ((0.7, 40.0), (6.0, 40.0), (6.0, 9.0)):
        whole = _moment(pair, tilt, end).real
        value, error = (float(v[0]) for v in law.real(tilt, nats))
        assert abs(float(np.log(whole) - value)) <= error + own * (1 + abs(value))
        nodes = law.nodes(tilt, 9.0, nats)
        x, x_error = nodes.transform(9.0, 2)
        turned = _moment(pair, complex(tilt, 9.0), end) / whole
        turned = complex(turned * np.exp(np.clongdouble(-9.0j * float(nodes.centre[0]))))
        assert abs(complex(x[0, 1]) + 1.0 - turned) <= float(x_error[0, 1]) + 10 * own
        for y in (0.5, 3.0, 9.0):
            size = abs(complex(_moment(pair, complex(tilt, y), end) / whole))
            assert size <= float(law.decay(tilt).bound(y)[0]) * (1 + 1e-9)


@pytest.mark.parametrize("pair", PAIRS[:2], ids=str)
def test_panels_reach_the_cut_of_a_law(pair: GaussianMixturePair) -> None:
    """What lies below the cut belongs to the law; only what lies beyond is left out on purpose."""
    law = MixtureCumulant(pair, 1, 12.0)
    edges, _ = law._panels(1.0, 2.0, 9.0, 0.0)
    assert edges[-1] == pytest.approx(12.0, abs=1e-9)


@pytest.mark.parametrize("pair", [*PAIRS[2:], GaussianMixturePair(0.5, 1.0, 0, 4)], ids=str)
@pytest.mark.parametrize("wide", [0.0, 0.3])
def test_the_integrand_on_a_box_is_below_its_bound(pair: GaussianMixturePair, wide: float) -> None:
    """|phi A_plus^{1+z} A_minus^{-z} - (1+z) A_plus phi + z A_minus phi|, z = tilt + iy, y <= 2."""
    law, tilt, deep = MixtureCumulant(pair, 1), 20.0, 0.9 / pair.mu
    left = np.linspace(-3.0, 4.0, 29)
    bound = law._log_on_box(left, left + wide, np.full(29, deep), tilt, 2.0)
    across, up = np.meshgrid(np.linspace(0.0, wide, 5), np.linspace(-deep, deep, 9))
    x = (left[:, None, None] + across + 1j * up).astype(np.clongdouble)
    plus, minus = _exact_arm(pair, pair.plus, x), _exact_arm(pair, pair.minus, -x)
    for y in (-2.0, 0.0, 2.0):
        z = np.clongdouble(tilt + 1j * y)
        whole = np.exp((1 + z) * np.log(plus) - z * np.log(minus)) - (1 + z) * plus + z * minus
        size = np.abs(whole * np.exp(-x * x / 2)).max(axis=(1, 2)) / math.sqrt(2.0 * math.pi)
        assert np.all(np.log(size.astype(float)) <= bound)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_the_arms_have_real_zeros_only(pair: GaussianMixturePair) -> None:
    """So |A(x + id)|, its argument and the variance of k are those of Bernoulli factors."""
    for arm in pair.arms:
        k = np.arange(arm.size + 1)
        zeros = np.roots((arm.weights * np.exp(-0.5 * (k * arm.mu) ** 2))[::-1])
        assert np.all(np.abs(zeros.imag) < 1e-6 * np.abs(zeros)) and np.all(zeros.real < 0.0)
        x = np.linspace(-6.0, 8.0, 29)
        m = arm.mean(x)
        second = arm._expected(x, arm.k**2)[0]
        most = m * (1 - m / max(arm.size, 1)) if arm.size else 0.0 * m
        assert np.all(second - m * m <= most + 1e-12)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_the_second_method_agrees(pair: GaussianMixturePair) -> None:
    components = ((pair, 40),)
    first, second = contour.epsilon(components, 1e-5), lattice.epsilon(components, 1e-5)
    assert second.lower <= first.upper and first.lower <= second.upper
    assert second.width <= 1e-3 * second.upper


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_one_step_is_enclosed_by_its_lattices(pair: GaussianMixturePair) -> None:
    """delta(eps) of one step from the lattice masses, above and below, against the closed form."""
    for step in (0.3, 0.05):
        for epsilon in (0.05, 0.4, 1.3):
            exact = pair.log_delta_single(epsilon)
            ends = []
            for side in ("lower", "upper"):
                measure = pair.measure(side, step, 0.5, math.inf)
                losses = measure.first + step * np.arange(len(measure.weights))
                mass = np.exp(np.log(np.maximum(measure.weights, 1e-300)) + measure.log_scale)
                mass = mass * np.exp(-0.5 * losses)
                value = float(mass @ np.maximum(-np.expm1(epsilon - losses), 0.0))
                error = measure.error * math.exp(measure.log_scale - 0.5 * epsilon)
                ends.append(value - error if side == "lower" else value + error)
            assert ends[0] <= math.exp(exact.upper) * (1 + 1e-9) + 1e-18
            assert ends[1] >= math.exp(exact.lower) * (1 - 1e-9) - 1e-18


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair.plus], ids=str)
def test_what_is_beyond_the_cut_counts_as_infinite(pair: GaussianMixturePair) -> None:
    """Above with the mass beyond it, below without it, whatever the cut is."""
    step, epsilon = 0.05, 0.05
    for cut in (0.3, 1.5, 4.0):
        ends = []
        for side in ("lower", "upper"):
            measure = pair.measure(side, step, 0.5, cut)
            losses = measure.first + step * np.arange(len(measure.weights))
            mass = measure.weights * np.exp(measure.log_scale - 0.5 * losses)
            error = measure.error * math.exp(measure.log_scale - 0.5 * losses[0])
            value = float(mass @ np.maximum(-np.expm1(epsilon - losses), 0.0))
            ends.append(value - error if side == "lower" else value + error)
        assert losses[-1] <= float(pair.loss(np.array(cut))) + 5.0 * step
        beyond = math.exp(float(pair.arms[0].log_above(np.array(cut))))
        exact = math.exp(pair.log_delta_single(epsilon).upper)
        assert ends[0] <= exact <= (ends[1] + beyond) * (1 + 1e-9)
        assert ends[1] < exact + 1e-3  # what is beyond is not counted twice


def test_one_release_is_a_test_at_a_threshold() -> None:
    mp.dps = 40
    for pair in PAIRS:
        for epsilon in (-0.02, 0.03, 0.5):
            low, high = (float(end) for end in pair.brackets(epsilon))
            found = pair.log_delta_single(epsilon)
            at = mpf(0.5 * (low + high)) if math.isfinite(high - low) else mpf(high)
            if mp.isinf(at):
                value = mpf(0) if at > 0 else 1 - mp.exp(epsilon)
            else:
                value = _tail(pair, pair.plus, at) - mp.exp(epsilon) * _tail(pair, -pair.minus, at)
            assert math.exp(found.lower) <= float(value) * (1 + 1e-12) + 1e-300
            assert math.exp(found.upper) >= float(value) * (1 - 1e-12)


def _tail(pair: GaussianMixturePair, members: int, at: mpf) -> mpf:
    """The mass beyond `at` of the mixture with centres k mu, k up to `members`."""
    q, size, sign = mpf(pair.rate), abs(members), 1 if members >= 0 else -1
    return mp.fsum(
        mp.binomial(size, k) * q**k * (1 - q) ** (size - k) * mp.ncdf(sign * k * mpf(pair.mu) - at)
        for k in range(size + 1)
    )


# ---- a slow method of another kind
def _fft_enclosure(
    pair: GaussianMixturePair, steps: int, epsilon: float, cells: int = 1 << 15
) -> tuple[float, float]:
    """delta(eps) by a plain PLD: losses rounded up and down to a grid, FFT power, slack said."""
    x = np.linspace(-14.0, 14.0 + pair.mu * pair.plus, 60_001)
    k = np.arange(pair.plus + 1)
    weights = np.array([math.comb(pair.plus, int(i)) for i in k], float)
    weights = weights * pair.rate**k * (1 - pair.rate) ** (pair.plus - k)
    mass = np.diff(weights @ ndtr(x[None, :] - (pair.mu * k)[:, None]))
    loss = pair.loss(x)
    mean, most = float(mass @ loss[1:]), float(np.abs(loss).max())
    spread = math.sqrt(float(mass @ (loss[1:] - mean) ** 2) * steps)
    span = 2.0 * most + abs(mean) * steps + 14.0 * spread + epsilon
    step = 2.0 * span / cells
    ends = []
    for edge in (np.floor(loss[:-1] / step), np.ceil(loss[1:] / step)):
        law = np.bincount(np.mod(edge.astype(int), cells), mass, cells)
        power = irfft(rfft(law) ** steps, cells)
        place = np.arange(cells) * step
        place = np.where(place > span, place - 2.0 * span, place)
        ends.append(float(power @ -np.expm1(np.minimum(epsilon - place, 0.0))))
    slack = 1e-9 + steps * 2e-12
    return ends[0] - slack, ends[1] + slack


def _check_random(seed: int, count: int, rare: bool = True) -> None:
    """rare: small groups and rates; others can have so few and so large losses that it is wide."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        size = int(rng.integers(1, 13)) if rare else int(64 ** rng.uniform(0, 1))
        plus, minus = ((size, 0), (0, size), (1, 1))[int(rng.integers(3))]
        rate, mu = 10 ** rng.uniform(-3, -0.4 if rare else -0.05), 10 ** rng.uniform(-1.3, 0.3)
        pair, steps = GaussianMixturePair(rate, mu, plus, minus), int(10 ** rng.uniform(0, 2.5))
        try:
            found = profile.epsilon(((pair, steps),), delta := 10 ** rng.uniform(-6, -2))
        except NotCertified:
            continue
        if rare:
            assert found.width <= 1e-3 * found.upper + 1e-12, (pair, steps, delta)
        if found.lower > 0.0:
            low, high = _fft_enclosure(pair, steps, found.upper)
            assert low <= delta * (1 + 1e-9), (pair, steps, delta, found)
            low, high = _fft_enclosure(pair, steps, found.lower)
            assert high >= delta * (1 - 1e-9), (pair, steps, delta, found)


def test_random_mixtures_against_a_plain_lattice() -> None:
    _check_random(1, 12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 20))
def test_500_random_mixtures_against_a_plain_lattice(seed: int) -> None:
    _check_random(seed, 25)
    _check_random(seed + 100, 25, rare=False)


# ---- users and replaced records
def test_users_are_told_of_by_processes_accounts_and_guarantees() -> None:
    run = NoisySGD(PoissonSampling(0.01), 1.0, 100)
    assert run.unit_of_privacy == "one record" and run.group(1) is run
    users = run.group(3)
    assert users.unit_of_privacy == "one user of at most 3 records"
    guarantee = account(users).guarantee()
    assert guarantee.unit_of_privacy == users.unit_of_privacy
    one = account(run).guarantee()
    assert one.group(3).epsilon(1e-5) == guarantee.epsilon(1e-5)
    assert one.group(2).group(3).records == 6
    with pytest.raises(InvalidInput, match="for the whole"):
        Sequence((users, run))
    with pytest.raises(InvalidInput, match="Say it once"):
        UserLevel(users, 2)


def test_groups_are_below_the_chain_of_neighbours_and_above_one_record() -> None:
    one = account(NoisySGD(PoissonSampling(0.02), 1.2, 200)).guarantee()
    last = one.epsilon(1e-5).upper
    for size in (2, 3, 8):
        mixed = one.group(size)
        found = mixed.epsilon(1e-5)
        assert found.lower >= last
        assert found.upper <= mixed.otherwise.epsilon(1e-5).upper  # type: ignore[attr-defined]
        last = found.upper


def test_a_part_for_one_record_is_composed_for_the_users_of_the_other() -> None:
    one = account(NoisySGD(PoissonSampling(0.02), 1.2, 50)).guarantee()
    both = one.group(2) @ one
    assert both.records == 2
    assert both.epsilon(1e-5) == (one**2).group(2).epsilon(1e-5)


def test_replacing_is_the_theorem_whichever_way_one_goes() -> None:
    run = NoisySGD(PoissonSampling(0.02), 1.2, 50)
    straight = account(NoisySGD(run.sampling, 1.2, 50, Adjacency.REPLACE_ONE)).guarantee()
    turned = account(run).guarantee().as_replace_one()
    assert turned.epsilon(1e-5) == straight.epsilon(1e-5)
    twice = account(NoisySGD(run.sampling, 1.2, 100, Adjacency.REPLACE_ONE)).epsilon(1e-5)
    assert (turned**2).epsilon(1e-5) == twice


def test_hard_settings_answer_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rate, noise, steps in ((0.01, 0.6, 100), (0.01, 0.06, 100), (1e-4, 1.0, 1000)):
            run = NoisySGD(PoissonSampling(rate), noise, steps, Adjacency.REPLACE_ONE)
            found = account(run)
            assert 0.0 < found.epsilon(1e-5).upper < math.inf
            assert 0.0 < found.delta(0.0).upper < 1.0


def test_renyi_divergences_are_enclosed() -> None:
    for pair in PAIRS[:3]:
        low, high = renyi(pair, 3.0)
        truth = float(np.log(_moment(pair, 2.0, math.inf).real) / 2)
        assert low <= truth * (1 + 1e-14) and truth * (1 - 1e-14) <= high
        assert high - low <= 1e-12 * high
    assert law_of(PAIRS[0]).max_tilt > 100.0


def test_what_is_no_mixture_is_refused() -> None:
    for bad in ((1.0, 1.0, 1, 0), (0.1, 1.0, 0, 0), (0.1, 1.0, 513, 0), (0.1, -1.0, 1, 0)):
        with pytest.raises(InvalidInput):
            GaussianMixturePair(*bad)
