"""Closed-form and discrete trade-off functions against golden values and slow, obvious code."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from mpmath import erfc, exp, log, mp, mpf, sqrt
from scipy.integrate import trapezoid
from scipy.special import ndtr, ndtri

from tightrope.errors import InvalidInput
from tightrope.guarantee import gaussian as profile
from tightrope_reproduce.tradeoff.closed import ApproxTradeoff, LaplaceTradeoff
from tightrope_reproduce.tradeoff.discrete import DiscreteTradeoff, from_corners, from_losses
from tightrope_reproduce.tradeoff.gaussian import GaussianTradeoff, SampledGaussianTradeoff
from tightrope_reproduce.tradeoff.subsampled import SubsampledGaussianTradeoff

CASES = json.loads((Path(__file__).parents[2] / "golden" / "tradeoff.json").read_text())
ALPHA = np.concatenate([[0.0, 1e-300, 1e-12, 1e-4], np.linspace(0.01, 0.99, 33), [1 - 1e-9, 1.0]])
EPS = np.linspace(-4.0, 4.0, 33)
CURVES = [
    GaussianTradeoff(0.0),
    GaussianTradeoff(0.01),
    GaussianTradeoff(1.0),
    GaussianTradeoff(9.0),
    SampledGaussianTradeoff(0.25, 2.5),
    SampledGaussianTradeoff(0.01, 1.0).inverse(),
    SampledGaussianTradeoff(0.0, 1.0),
    SampledGaussianTradeoff(1.0, 1.0).inverse(),
    SubsampledGaussianTradeoff(0.25, 2.5),
    SubsampledGaussianTradeoff(0.001, 0.5),
    ApproxTradeoff(1.0, 1e-5),
    ApproxTradeoff(0.0, 0.2),
    ApproxTradeoff(700.0, 0.0),
    ApproxTradeoff(0.3, 1.0),
    LaplaceTradeoff(1.3),
    LaplaceTradeoff(0.0),
    DiscreteTradeoff(np.array([0.5, 0.3, 0.2, 0.0]), np.array([0.1, 0.2, 0.6, 0.1])),
    DiscreteTradeoff(np.array([0.5, 0.5]), np.array([1.0, 0.0])),
    DiscreteTradeoff(np.array([1.0]), np.array([1.0])),
]


def close(value: float, case: dict, key: str) -> bool:
    truth = mpf(case["outputs"][key])
    return abs(mpf(float(value)) - truth) <= mpf(case["rtol"]) * abs(truth)


def golden(name: str) -> list[dict]:
    return [c for c in CASES if c["name"] == name]


@pytest.mark.parametrize("case", golden("tradeoff_eps_delta"))
def test_approx_golden(case):
    i = {k: float(v) for k, v in case["inputs"].items()}
    assert close(ApproxTradeoff(i["eps"], i["delta"]).type_ii(i["alpha"]), case, "beta")


@pytest.mark.parametrize("case", golden("tradeoff_laplace"))
def test_laplace_golden(case):
    i = {k: float(v) for k, v in case["inputs"].items()}
    assert close(LaplaceTradeoff(i["eps"]).type_ii(i["alpha"]), case, "beta")


@pytest.mark.parametrize("case", golden("subsample_tradeoff"))
def test_subsampled_gaussian_golden(case):
    i = {k: float(v) for k, v in case["inputs"].items()}
    forward = SampledGaussianTradeoff(i["p"], 1 / i["sigma"])
    both = SubsampledGaussianTradeoff(i["p"], 1 / i["sigma"])
    assert close(forward.type_ii(i["alpha"]), case, "f_p")
    assert close(forward.inverse().type_ii(i["alpha"]), case, "f_p_inverse")
    assert close(both.type_ii(i["alpha"]), case, "symmetrised")
    assert close(both.kinks[0], case, "kink_x") and close(both.kinks[1], case, "kink_y")
    truth = float(case["outputs"]["symmetrised"])
    low, high = both.bounds(i["alpha"])
    assert low <= truth * (1 + 1e-15) and truth * (1 - 1e-15) <= high
    assert high - low <= 1e-10 * high


@pytest.mark.parametrize("curve", CURVES)
def test_it_is_a_tradeoff_function(curve):
    f = curve.type_ii(ALPHA)
    low, high = curve.bounds(ALPHA)
    assert (low <= f).all() and (f <= high).all() and (low >= 0).all()
    assert (f <= 1 - ALPHA + 1e-15).all() and f[-1] == 0.0
    assert (np.diff(f) <= 1e-15).all()
    x = np.linspace(0.01, 0.99, 99)
    assert (np.diff(curve.type_ii(x), 2) >= -1e-14).all()  # convex


@pytest.mark.parametrize("curve", CURVES)
def test_profile_is_the_conjugate(curve):
    """1 + f*(-e^eps) against the supremum over a fine grid of points of f."""
    x = np.unique(np.concatenate([np.linspace(0, 1, 20001), np.geomspace(1e-12, 1, 4001)]))
    f = curve.type_ii(x)
    slow = np.array([np.max(1 - f - math.exp(e) * x) for e in EPS])
    fast = curve.delta_one_way(EPS)
    assert (slow <= fast + 1e-12).all()
    assert fast == pytest.approx(slow, abs=3e-5 * math.exp(4.0))
    low, high = curve._delta_bounds(EPS)
    assert (low <= fast).all() and (fast <= high).all()
    assert curve.conjugate(-np.exp(EPS)) == pytest.approx(fast - 1, abs=1e-14)


@pytest.mark.parametrize("curve", CURVES)
def test_negative_epsilon_is_the_other_order(curve):
    """delta_{P||Q}(-e) = 1 - e^-e + e^-e delta_{Q||P}(e)."""
    e = EPS[EPS > 0]
    other = curve.inverse().delta_one_way(e)
    assert curve.delta_one_way(-e) == pytest.approx(1 - np.exp(-e) + np.exp(-e) * other, rel=1e-13)


@pytest.mark.parametrize("curve", CURVES)
def test_tangents_touch_the_curve(curve):
    e = np.linspace(0.0, 3.0, 13)
    x, power = curve.tangent(e)
    assert power - np.exp(e) * x == pytest.approx(curve.delta_one_way(e), abs=1e-13)
    low, high = curve.bounds(x)
    touch = (x > 0) | (curve.type_ii(0.0) == 1 - power)
    assert (low[touch] <= 1 - power[touch] + 1e-14).all()
    assert (1 - power[touch] <= high[touch] + 1e-14).all()


@pytest.mark.parametrize("curve", CURVES)
def test_inverse_mirrors_the_curve(curve):
    back = curve.inverse()
    f = curve.type_ii(ALPHA)
    inner = (f > 0) & (ALPHA > 1e-6) & (f < curve.type_ii(0.0) - 1e-9)
    if isinstance(curve, ApproxTradeoff) and curve.failure == 1.0:
        assert not inner.any()
        return
    assert back.type_ii(f[inner]) == pytest.approx(ALPHA[inner], rel=1e-9, abs=1e-12)
    again = back.inverse()
    assert again.type_ii(ALPHA) == pytest.approx(f, rel=1e-13)


@pytest.mark.parametrize("curve", CURVES)
def test_integral_and_area(curve):
    x = np.unique(np.concatenate([np.linspace(0, 1, 20001), np.geomspace(1e-12, 0.1, 4001)]))
    slow = trapezoid(curve.type_ii(x), x)
    assert curve.integral() == pytest.approx(slow, abs=2e-7)
    assert curve.area() == pytest.approx(0.5 - slow, abs=2e-7)
    assert curve.area() >= 0.0


@pytest.mark.parametrize("curve", [c for c in CURVES if math.isfinite(c.gaussian_mu().upper)])
def test_gaussian_mu_is_the_tightest(curve):
    mu = curve.gaussian_mu()
    x = ndtr(np.linspace(-38.0, 8.0, 4601))
    f = curve.type_ii(x)
    assert (profile.tradeoff(x, mu.upper) <= f + 1e-13).all()
    # the mu that each point needs, where f is not so close to 1 that its last digits decide
    visible = (f < 1 - 1e-7) & (f > 0) & (x < 1 - 1e-7)
    needed = -ndtri(x[visible]) - ndtri(f[visible])
    largest = np.max(needed, initial=0.0)
    assert largest <= mu.upper + 1e-7
    if not isinstance(curve, (SampledGaussianTradeoff, SubsampledGaussianTradeoff)):
        # for sampled curves the supremum is only approached as type_i -> 0
        assert mu.lower <= largest + 0.01


def test_sampling_does_not_lower_the_gaussian_parameter():
    curve = SampledGaussianTradeoff(0.1, 3.0)
    z = np.array([5.0, 10.0, 20.0, 36.0])
    power = 1 - curve.rate  # 1 - f(a) = p Phi(3 - z) + (1 - p) Phi(-z)
    shift = z + ndtri(curve.rate * ndtr(3.0 - z) + power * ndtr(-z))
    assert (np.diff(shift) > 0).all() and 2.9 < shift[-1] < 3.0
    assert curve.gaussian_mu().upper == 3.0


def test_both_orders_are_reported():
    """Remove and add of one sampled Gaussian step, in closed form."""
    q, mu, eps = 0.02, 1.25, 0.7
    curve = SampledGaussianTradeoff(q, mu)
    s = (math.log((math.exp(eps) - 1 + q) / q) + mu * mu / 2) / mu
    remove = q * ndtr(mu - s) - (math.exp(eps) - 1 + q) * ndtr(-s)
    assert curve.delta_one_way(eps) == pytest.approx(remove, rel=1e-12)
    assert curve.inverse().delta_one_way(eps) == 0.0  # eps > -ln(1 - q)
    small = 0.01
    t = (math.log((math.exp(-small) - 1 + q) / q) + mu * mu / 2) / mu
    add = ndtr(t) * (1 - math.exp(small) * (1 - q)) - math.exp(small) * q * ndtr(t - mu)
    assert curve.inverse().delta_one_way(small) == pytest.approx(add, rel=1e-10)
    assert curve.delta(small) == max(
        curve.delta_one_way(small), curve.inverse().delta_one_way(small)
    )
    assert SubsampledGaussianTradeoff(q, mu).delta(small) == curve.delta(small)


def tail(x: mpf) -> mpf:
    return erfc(x / sqrt(2)) / 2


def test_sampled_profiles_lie_inside_their_bounds():
    """200 random (rate, mu, eps), a fifth of them next to the end -ln(1 - rate) of one order."""
    mp.dps = 50
    rng = np.random.default_rng(77)
    for _ in range(200):
        p, mu = 10 ** rng.uniform(-8, 0), 10 ** rng.uniform(-3, 1)
        eps = 10 ** rng.uniform(-6, 1.3) * rng.choice([-1.0, 1.0, 1.0])
        if rng.random() < 0.2:
            eps = float(-np.log1p(-p) * (1 - 10 ** rng.uniform(-15, -1)))
        q, m, e = mpf(p), mpf(mu), mpf(eps)

        def profile_of(x: mpf, m: mpf = m) -> mpf:
            return tail(x / m - m / 2) - exp(x) * tail(x / m + m / 2)

        kappa, k = (exp(e) - 1 + q) / q, 1 - (1 - q) * exp(e)
        forward = q * profile_of(log(kappa)) if kappa > 0 else 1 - exp(e)
        backward = k * profile_of(e + log(q / k)) if k > 0 else mpf(0)
        curve = SampledGaussianTradeoff(p, mu)
        for found, truth in ((curve, forward), (curve.inverse(), backward)):
            low, high = found._delta_bounds(np.array(eps))
            assert mpf(float(low)) <= truth <= mpf(float(high))


def brute_force(p: np.ndarray, q: np.ndarray, alpha: float) -> float:
    """Smallest type II error over randomised tests on a few points, by trying every corner."""
    best = 1.0
    n = p.size
    for mask in range(2**n):
        chosen = np.array([(mask >> i) & 1 for i in range(n)], dtype=bool)
        if p[chosen].sum() > alpha + 1e-15:
            continue
        left = alpha - p[chosen].sum()
        power = q[chosen].sum()
        extra = [min(left / p[i], 1.0) * q[i] for i in range(n) if not chosen[i] and p[i] > 0]
        best = min(best, 1.0 - power - max(extra, default=0.0))
    return best


def test_discrete_curve_is_neyman_pearson():
    rng = np.random.default_rng(5)
    p, q = rng.dirichlet(np.ones(6)), rng.dirichlet(np.ones(6))
    curve = DiscreteTradeoff(p, q)
    for alpha in (0.0, 0.05, 0.3, 0.5, 0.77, 1.0):
        assert curve.type_ii(alpha) == pytest.approx(brute_force(p, q, alpha), abs=1e-14)


def test_losses_give_the_reversed_pair():
    """Randomised response at level 1: L = +-1."""
    e = math.e
    curve = from_losses([1.0, -1.0], [e / (1 + e), 1 / (1 + e)])
    approx = ApproxTradeoff(1.0, 0.0)
    assert curve.type_ii(ALPHA) == pytest.approx(approx.type_ii(ALPHA), abs=1e-14)
    assert curve.delta_one_way(0.5) == pytest.approx((e - math.exp(0.5)) / (1 + e), rel=1e-14)
    leaky = from_losses([0.0], [0.9], infinite_mass=0.1)
    assert leaky.delta_one_way(3.0) == pytest.approx(0.1, rel=1e-14)
    # the other order: Q has mass 0.1 where P has none
    assert leaky.inverse().delta_one_way(3.0) == pytest.approx(0.1, rel=1e-14)


def test_corners_round_trip():
    curve = from_corners([0.0, 0.1, 0.5, 1.0], [0.9, 0.5, 0.1, 0.0])
    assert curve.type_ii(np.array([0.0, 0.1, 0.3, 0.5, 1.0])) == pytest.approx(
        [0.9, 0.5, 0.3, 0.1, 0.0]
    )
    assert curve.delta_one_way(10.0) == pytest.approx(0.1, rel=1e-14)


@pytest.mark.parametrize(
    "call",
    [
        lambda: GaussianTradeoff(-1.0),
        lambda: SampledGaussianTradeoff(1.5, 1.0),
        lambda: SubsampledGaussianTradeoff(0.5, math.nan),
        lambda: ApproxTradeoff(-0.1),
        lambda: ApproxTradeoff(1.0, 2.0),
        lambda: LaplaceTradeoff(math.inf),
        lambda: DiscreteTradeoff(np.array([0.5, 0.6]), np.array([0.5, 0.5])),
        lambda: DiscreteTradeoff(np.array([0.5, 0.5]), np.array([1.0])),
        lambda: DiscreteTradeoff(np.array([-0.5, 1.5]), np.array([0.5, 0.5])),
        lambda: from_corners([0.0, 0.5, 1.0], [0.9, 0.8, 0.0]),
        lambda: from_corners([0.1, 1.0], [0.9, 0.0]),
        lambda: from_losses([-1.0], [1.0]),
        lambda: GaussianTradeoff(1.0).type_ii(1.01),
        lambda: GaussianTradeoff(1.0).delta(701.0),
        lambda: GaussianTradeoff(1.0).conjugate(0.5),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(InvalidInput):
        call()
