"""Private selection: the bound against exact selections, the laws of the number of trials."""

from __future__ import annotations

import math
import random
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import chisquare, logser

from tightrope.errors import InvalidInput, NotCertified
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.search import PoissonTrials, PrivateSelection, TruncatedNegativeBinomial

LAWS = [
    TruncatedNegativeBinomial(0.0, 0.1),
    TruncatedNegativeBinomial(1.0, 0.05),
    TruncatedNegativeBinomial(-0.5, 0.02),
    TruncatedNegativeBinomial(2.5, 0.3),
]


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_chances_sum_to_one_with_the_stated_mean(law: TruncatedNegativeBinomial) -> None:
    chances = np.array([law.chance(k) for k in range(1200)])
    assert chances.sum() == pytest.approx(1.0, abs=1e-9)
    assert chances @ np.arange(1200) == pytest.approx(law.mean, rel=1e-7)


def test_shapes_zero_and_one_are_the_known_laws() -> None:
    logarithmic, geometric = LAWS[0], LAWS[1]
    for k in (1, 2, 7):
        assert logarithmic.chance(k) == pytest.approx(logser.pmf(k, 0.9))
        assert geometric.chance(k) == pytest.approx(0.05 * 0.95 ** (k - 1))
    assert geometric.mean == pytest.approx(20.0)


@pytest.mark.parametrize("law", [LAWS[1], LAWS[2], PoissonTrials(3.0)], ids=repr)
def test_drawn_numbers_follow_their_law(law: TruncatedNegativeBinomial | PoissonTrials) -> None:
    """False-alarm rate 1e-4, with a fixed seed."""
    source = random.Random(0)
    drawn = np.minimum([law.draw(source.random) for _ in range(20_000)], 12)
    if isinstance(law, PoissonTrials):
        chances = np.array([math.exp(-3.0) * 3.0**k / math.factorial(k) for k in range(12)])
    else:
        chances = np.array([law.chance(k) for k in range(12)])
    expected = np.append(chances, 1 - chances.sum()) * 20_000
    found = np.bincount(drawn, minlength=13)
    kept = expected > 0
    assert chisquare(found[kept], expected[kept]).pvalue > 1e-4


def exact_divergence(law: TruncatedNegativeBinomial, p: np.ndarray, order: float) -> float:
    """Renyi divergence of the released best between two laws of a trial, outcomes in order."""

    def generating(x: np.ndarray) -> np.ndarray:
        if law.shape == 0.0:
            return np.log1p(-(1 - law.gamma) * x) / math.log(law.gamma)
        top = (1 - (1 - law.gamma) * x) ** -law.shape - 1
        return np.asarray(top / (law.gamma**-law.shape - 1))

    def released(q: np.ndarray) -> np.ndarray:
        return np.diff(generating(np.minimum(np.concatenate([[0.0], np.cumsum(q)]), 1.0)))

    a, b = released(p[0]), released(p[1])
    return math.log(float(np.sum(a**order * b ** (1 - order)))) / (order - 1)


@pytest.mark.parametrize("law", LAWS, ids=repr)
def test_no_selection_among_finitely_many_outcomes_exceeds_the_bound(
    law: TruncatedNegativeBinomial,
) -> None:
    """Random pairs of pure epsilon-DP trials, and the extreme one: the best outcome e^eps rarer."""
    epsilon, generator = 0.6, np.random.default_rng(0)
    bound = law.guarantee(ApproxGuarantee(epsilon, 0.0))
    rare = np.array([1 - 1e-3, 1e-3])
    pairs = [np.array([rare, [1 - 1e-3 * math.exp(-epsilon), 1e-3 * math.exp(-epsilon)]])]
    for _ in range(200):
        q = generator.dirichlet(np.full(4, 0.5)) + 1e-9
        tilted = q * np.exp(epsilon / 2 * generator.choice([-1, 1], 4))
        pairs.append(np.array([q / q.sum(), tilted / tilted.sum()]))
    for order in (1.5, 4.0, 30.0):
        limit = bound.renyi(order).upper
        for pair in pairs:
            assert exact_divergence(law, pair, order) <= limit
            assert exact_divergence(law, pair[::-1], order) <= limit


def test_pure_trials_cost_two_plus_shape_times_epsilon_in_the_limit() -> None:
    for shape in (0.0, 1.0):
        law = TruncatedNegativeBinomial(shape, 0.1)
        found = law.guarantee(ApproxGuarantee(0.5, 0.0)).renyi(1e6).upper
        assert found == pytest.approx((2 + shape) * 0.5, rel=0.01)


def test_a_search_costs_more_than_one_trial_and_less_than_composition() -> None:
    trial = GaussianGuarantee(0.3)
    law = TruncatedNegativeBinomial(0.0, 0.01)
    assert law.mean == pytest.approx(21.5, abs=0.1)
    whole = law.guarantee(trial).epsilon(1e-6).upper
    assert trial.epsilon(1e-6).upper < whole < (trial**21).epsilon(1e-6).upper
    assert law.guarantee(trial).adjacency is trial.adjacency


def test_more_trials_cost_more() -> None:
    trial = GaussianGuarantee(0.3)
    costs = [
        TruncatedNegativeBinomial(1.0, gamma).guarantee(trial).epsilon(1e-6).upper
        for gamma in (0.5, 0.1, 0.01)
    ]
    assert costs == sorted(costs)


@pytest.mark.parametrize("law", [TruncatedNegativeBinomial(1.0, 0.05), PoissonTrials(20.0)])
def test_the_best_trial_is_released_with_the_guarantee_of_the_search(
    law: TruncatedNegativeBinomial | PoissonTrials,
) -> None:
    scores = iter([0.2, 0.9, 0.9, 0.4] + [0.1] * 200)
    names = iter("abcd" + "x" * 200)
    search = PrivateSelection(lambda: (next(scores), next(names)), GaussianGuarantee(0.2), law)
    found = search.run(seed=3)
    assert (found.score, found.result) == (0.9, "b")
    assert found.guarantee.epsilon(1e-6).upper == search.guarantee.epsilon(1e-6).upper
    assert not found.private


def test_no_seed_is_private_and_no_trial_is_said() -> None:
    one = PrivateSelection(lambda: (1.0, None), GaussianGuarantee(0.2), LAWS[0])
    assert one.run().private
    none = PrivateSelection(lambda: (1.0, None), GaussianGuarantee(0.2), PoissonTrials(1e-9))
    with pytest.raises(NotCertified, match="was 0"):
        none.run(seed=0)


def test_refusals() -> None:
    for shape, gamma in ((-1.0, 0.1), (0.0, 0.0), (0.0, 1.0), (math.nan, 0.1)):
        with pytest.raises(InvalidInput, match=r"shape|gamma"):
            TruncatedNegativeBinomial(shape, gamma)
    with pytest.raises(InvalidInput, match="mean"):
        PoissonTrials(0.0)
    nan = PrivateSelection(lambda: (math.nan, None), GaussianGuarantee(0.2), LAWS[0])
    with pytest.raises(InvalidInput, match="NaN"):
        nan.run(seed=0)


def test_a_search_needs_neither_scikit_learn_nor_torch() -> None:
    code = (
        "import sys\n"
        "from tightrope.guarantee.kinds.gaussian import GaussianGuarantee\n"
        "from tightrope.search import PoissonTrials\n"
        "PoissonTrials(3.0).guarantee(GaussianGuarantee(0.5))\n"
        "print(*{name.split('.')[0] for name in sys.modules})\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"sklearn", "torch"} & set(out.stdout.split())
