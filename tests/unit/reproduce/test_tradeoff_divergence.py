"""f-divergences and sampling of general trade-off functions, against golden values and laws."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from tightrope.errors import InvalidInput
from tightrope_reproduce.formulas.product import tensor
from tightrope_reproduce.formulas.proposition1 import gaussian_tail, renyi_of_tradeoff
from tightrope_reproduce.formulas.sampled import one_way_sampled, sampled
from tightrope_reproduce.tradeoff.bracket import bracket
from tightrope_reproduce.tradeoff.closed import ApproxTradeoff, LaplaceTradeoff
from tightrope_reproduce.tradeoff.discrete import DiscreteTradeoff
from tightrope_reproduce.tradeoff.divergence import (
    CHI_SQUARED,
    HELLINGER,
    KULLBACK_LEIBLER,
    NEYMAN,
    TOTAL_VARIATION,
    chi_alpha,
    hockey_stick,
    of_atoms,
    of_tradeoff,
)
from tightrope_reproduce.tradeoff.gaussian import GaussianTradeoff
from tightrope_reproduce.tradeoff.subsampled import SubsampledGaussianTradeoff

CASES = json.loads((Path(__file__).parents[2] / "golden" / "tradeoff.json").read_text())
NAMED = {
    "kl": KULLBACK_LEIBLER,
    "chi_squared": CHI_SQUARED,
    "neyman": NEYMAN,
    "total_variation": TOTAL_VARIATION,
    "hellinger": HELLINGER,
    "chi_3": chi_alpha(3.0),
    "hockey_2": hockey_stick(2.0),
}
ALPHA = np.linspace(0.0, 1.0, 41)


def golden(name: str) -> list[dict]:
    return [case for case in CASES if case["name"] == name]


def gaussian(mu: float) -> tuple:
    """f, |f'|, and bounds of the ends that hold for every F here (t ln t <= t^2 <= t^3 above 1)."""

    def head(type_i: float) -> float:  # int_0^t f'^2 = e^{mu^2} Phi(2 mu - z)
        return float(math.exp(mu * mu) * ndtr(2 * mu - ndtri(1 - type_i)))

    return (
        lambda t: ndtr(ndtri(1 - t) - mu),
        lambda t: np.exp(mu * ndtri(1 - t) - mu * mu / 2),
        head,
        lambda t: gaussian_tail(mu)(3.0, t),
    )


def laplace(eps: float) -> tuple:
    curve = LaplaceTradeoff(eps)

    def slope(t):
        middle = math.exp(-eps) / (4 * np.maximum(t, 1e-9) ** 2)
        return np.clip(middle, math.exp(-eps), math.exp(eps))

    return curve.type_ii, slope, None, None


@pytest.mark.parametrize("case", golden("f_divergence"), ids=lambda c: str(c["inputs"]))
def test_divergences_of_trade_off_functions(case):
    given, truth = case["inputs"], float(case["outputs"]["value"])
    make = gaussian if given["law"] == "gaussian" else laplace
    tradeoff, slope, head, tail = make(float(given["shift"]))
    found = of_tradeoff(NAMED[given["F"]], tradeoff, slope, head=head, tail=tail)
    assert found.lower <= truth * (1 + 1e-12) and truth * (1 - 1e-12) <= found.upper
    assert found.width <= 2e-4 * truth


def test_divergences_of_two_coins():
    p, q = np.array([0.25, 0.75]), np.array([0.5, 0.5])
    coins = DiscreteTradeoff(p, q)
    expected = {
        "kl": 0.25 * math.log(0.5) + 0.75 * math.log(1.5),
        "chi_squared": 0.25,
        "neyman": 1 / 16 * (4 + 4 / 3),
        "total_variation": 0.25,
        "hockey_2": 0.0,
    }
    for name, value in expected.items():
        found = of_atoms(NAMED[name], coins)
        assert found.lower <= value + 1e-15 and value - 1e-15 <= found.upper
        assert found.width <= 1e-12


def test_impossible_outcomes_count_by_their_ends():
    apart = DiscreteTradeoff(np.array([0.1, 0.9, 0.0]), np.array([0.0, 0.8, 0.2]))
    assert of_atoms(KULLBACK_LEIBLER, apart).lower == math.inf
    total = of_atoms(TOTAL_VARIATION, apart)
    assert total.lower <= 0.2 <= total.upper and total.width < 1e-12
    # (112) leaves out the mass of Q where P has none: f(0) = 0.8
    curve = of_tradeoff(TOTAL_VARIATION, apart.type_ii, lambda t: np.where(t < 0.9, 8 / 9, 0.0))
    assert curve.lower <= 0.2 + 1e-9 and curve.upper >= 0.2 - 1e-3


def test_chi_alpha_is_renyi():
    """D_a = ln(1 + (a - 1) chi^a)/(a - 1), eq. (8) to (11)."""
    tradeoff, slope, _, tail = gaussian(0.7)
    for order in (1.5, 2.0, 2.9):
        chi = of_tradeoff(chi_alpha(order), tradeoff, slope, tail=tail)
        renyi = renyi_of_tradeoff(order, tradeoff, slope, tail=gaussian_tail(0.7))
        for bound, end in ((chi.lower, renyi.lower), (chi.upper, renyi.upper)):
            assert math.log1p((order - 1) * bound) / (order - 1) == pytest.approx(end, rel=3e-4)


def test_a_threshold_below_one_is_no_generator():
    with pytest.raises(InvalidInput, match="at least 1"):
        hockey_stick(0.5)


def test_lemma_b_3_the_chi_squared_of_a_curve():
    """chi^2(f) = int f'^2 - 1 = chi^2(P||Q) as E_P (dQ/dP - 1)^2; e^{mu^2} - 1 for G_mu."""
    tradeoff, slope, head, tail = gaussian(1.0)
    found = of_tradeoff(NEYMAN, tradeoff, slope, head=head, tail=tail)
    assert found.lower <= math.expm1(1.0) <= found.upper


@pytest.mark.parametrize("case", golden("sampled_tradeoff"), ids=lambda c: str(c["inputs"]))
def test_sampled_laplace(case):
    given = {name: float(value) for name, value in case["inputs"].items()}
    found = sampled(LaplaceTradeoff(given["epsilon"]), given["rate"]).interval(given["type_i"])
    truth = float(case["outputs"]["type_ii"])
    assert found.lower <= truth * (1 + 1e-12) and truth * (1 - 1e-12) <= found.upper
    assert found.width <= 1e-5


def test_sampling_agrees_with_the_gaussian_closed_form():
    found, exact = sampled(GaussianTradeoff(1.0), 0.1), SubsampledGaussianTradeoff(0.1, 1.0)
    low, high = found.bounds(ALPHA)
    assert (low <= exact.bounds(ALPHA)[1]).all() and (exact.bounds(ALPHA)[0] <= high).all()
    assert np.max(high - low) < 1e-5


def test_sampling_improves_the_subsampling_theorem_of_approximate_privacy():
    """C_p(f_{eps,delta}) >= f_{ln(1 + p (e^eps - 1)), p delta}, and more somewhere."""
    rate, eps, delta = 0.1, 1.0, 1e-3
    ours = sampled(ApproxTradeoff(eps, delta), rate)
    theirs = ApproxTradeoff(math.log1p(rate * math.expm1(eps)), rate * delta)
    gain = ours.bounds(ALPHA)[0] - theirs.type_ii(ALPHA)
    assert (gain >= -1e-9).all()
    assert gain.max() > 1e-3
    assert ours.delta_bounds(theirs.epsilon)[1] == pytest.approx(rate * delta, rel=1e-3)


@pytest.mark.parametrize("seed", range(6))
def test_lemma_a_2_mixtures(seed):
    """T(sum w P_i, (1-p) sum w P_i + p sum w Q_i) >= p f + (1-p) Id for f below all T(P_i, Q_i)."""
    rng = np.random.default_rng(seed)
    rate, parts = 0.3, [rng.dirichlet(np.ones(5), size=2) for _ in range(3)]
    shares = rng.dirichlet(np.ones(3))
    p = sum(w * a for w, (a, _) in zip(shares, parts, strict=True))
    q = sum(w * b for w, (_, b) in zip(shares, parts, strict=True))
    mixed = DiscreteTradeoff(p, (1 - rate) * p + rate * q)
    lowest = np.min([DiscreteTradeoff(a, b).type_ii(ALPHA) for a, b in parts], axis=0)
    hull = np.array([_minorant(ALPHA, lowest, at) for at in ALPHA])
    assert (mixed.type_ii(ALPHA) >= rate * hull + (1 - rate) * (1 - ALPHA) - 1e-12).all()


def _minorant(x, y, at):
    """A convex function below the points: the best line through none of them from above."""
    best = -math.inf
    for slope in np.linspace(-30.0, 0.0, 601):
        best = max(best, float(np.min(y - slope * x)) + slope * at)
    return best


def test_theorem_6_sampled_laplace_tends_to_a_gaussian():
    """f_p composed T times tends to G_{nu sqrt(chi^2(f))}, p sqrt(T) = nu."""
    nu, curve = 0.5, LaplaceTradeoff(1.0)
    chi = of_tradeoff(NEYMAN, *laplace(1.0)[:2])
    limit = GaussianTradeoff(nu * math.sqrt(chi.lower)).type_ii(ALPHA)
    gaps = []
    for doublings in (2, 4, 6):
        one = one_way_sampled(curve, nu / math.sqrt(2**doublings), 256)
        for _ in range(doublings):
            one = type(one)(
                tensor(one.lower, one.lower, resolution=256).lower,
                tensor(one.upper, one.upper, resolution=256).upper,
            )
        low, high = one.bounds(ALPHA)
        assert np.max(high - low) < 5e-3
        gaps.append(float(np.max(np.abs(0.5 * (low + high) - limit))))
    assert gaps[0] > 1.5 * gaps[1] > 2.2 * gaps[2]
    assert gaps[2] < 0.01


def test_a_bracket_keeps_its_side_under_sampling():
    curve = bracket(GaussianTradeoff(2.0), 64)
    fine = one_way_sampled(GaussianTradeoff(2.0), 0.2, 1024)
    coarse = curve.map(lambda f: one_way_sampled(f, 0.2).lower)
    assert (coarse.lower.type_ii(ALPHA) <= fine.upper.type_ii(ALPHA) + 1e-12).all()
    assert (fine.lower.type_ii(ALPHA) <= coarse.upper.type_ii(ALPHA) + 1e-12).all()
