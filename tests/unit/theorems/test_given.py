"""Laws given outright, mixtures with any weights, zCDP on a sample, selection among any trials."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from mpmath import mp

from tightrope.accounting import account
from tightrope.errors import InvalidInput
from tightrope.process import (
    Adjacency,
    CutDiscreteGaussianMechanism,
    DeclaredApproxDP,
    DeclaredPair,
    DeclaredZeroConcentrated,
    GaussianMechanism,
    LaplaceMechanism,
    MixtureOfGaussians,
    NoisySGD,
    PoissonSampling,
    RepeatAndSelect,
    Repeated,
    SampledRelease,
    UserLevel,
)
from tightrope.process.codec import from_json, to_json

EPSILONS = (0.0, 0.1, 0.7, 2.0)


def stick(p: Any, q: Any, epsilon: float) -> Any:
    """The larger delta of two listed laws, in their own arithmetic."""
    factor = mp.exp(mp.mpf(epsilon)) if isinstance(p[0], mp.mpf) else type(p[0])(math.exp(epsilon))
    sides = ((p, q), (q, p))
    return max(sum(max(a - factor * b, 0 * a) for a, b in zip(*s, strict=True)) for s in sides)


def product(law: Any, times: int) -> list[Any]:
    return [math.prod(chosen) for chosen in itertools.product(law, repeat=times)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("times", [1, 3])
def test_a_declared_pair_has_the_profile_of_its_sums(seed: int, times: int) -> None:
    """Also where one of the laws lacks an outcome."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 9, size=(2, 5)) + np.eye(5, dtype=int)[seed % 5]
    laws = [[Fraction(int(n), int(row.sum())) for n in row] for row in counts]
    release = DeclaredPair(tuple(map(float, laws[0])), tuple(map(float, laws[1])))
    found = account(Repeated(release, times) if times > 1 else release)
    for epsilon in EPSILONS:
        true = float(stick(product(laws[0], times), product(laws[1], times), epsilon))
        answer = found.delta(epsilon)
        assert answer.lower == 0.0  # a declaration says nothing of what is lost
        assert true * (1 - 1e-9) - 1e-15 <= answer.upper <= true * (1 + 1e-4) + 1e-12


@pytest.mark.parametrize("sigma, bound, moved", [(1.0, 3, 1), (2.5, 6, 2), (3.0, 60, 1)])
@pytest.mark.parametrize("times", [1, 2])
def test_cut_noise_has_the_profile_of_its_sums(
    sigma: float, bound: int, moved: int, times: int
) -> None:
    with mp.workdps(40):
        weights = {k: mp.exp(-mp.mpf(k * k) / (2 * sigma**2)) for k in range(-bound, bound + 1)}
        total, zero = mp.fsum(weights.values()), mp.mpf(0)
        places = range(-bound, bound + moved + 1)
        laws = [[weights.get(k - s, zero) / total for k in places] for s in (0, moved)]
        release = CutDiscreteGaussianMechanism(sigma, bound, moved)
        found = account(Repeated(release, times) if times > 1 else release)
        for epsilon in EPSILONS:
            true = stick(product(laws[0], times), product(laws[1], times), epsilon)
            answer = found.delta(epsilon)
            assert answer.lower <= true <= answer.upper
            assert answer.width <= 1e-6 * true + 1e-14


def normal(x: Any, mean: float, std: float) -> Any:
    return np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * math.sqrt(2.0 * math.pi))


@pytest.mark.parametrize("seed", range(4))
def test_a_mixture_of_gaussians_is_above_its_integral_and_close(seed: int) -> None:
    """One release by a line of points, two by a square of them (errors of the sums: 1e-5)."""
    rng = np.random.default_rng(seed)
    std, moves = 1.0, (0.0, *rng.uniform(0.2, 3.0, size=2).tolist())
    chances = rng.dirichlet(np.ones(3)) if seed else np.array([0.9, 0.07, 0.03])
    x = np.linspace(-9.0, 12.0, 841)
    p = sum(w * normal(x, c, std) for w, c in zip(chances, moves, strict=True)) * (x[1] - x[0])
    q = normal(x, 0.0, std) * (x[1] - x[0])
    release = MixtureOfGaussians(std, moves, tuple(chances.tolist()))
    for times, run in ((1, release), (2, Repeated(release, 2))):
        one, other = (law if times == 1 else np.outer(law, law) for law in (p, q))
        for epsilon in EPSILONS:
            sides = ((one, other), (other, one))
            true = max(np.maximum(a - math.exp(epsilon) * b, 0.0).sum() for a, b in sides)
            upper = account(run, check="off").delta(epsilon).upper
            assert true * (1 - 1e-4) - 1e-6 <= upper <= true * (1 + 1e-3) + 1e-5


@pytest.mark.parametrize("rate, noise", [(1e-3, 0.6), (0.1, 1.0), (0.5, 5.0), (0.01, 40.0)])
@pytest.mark.parametrize("times", [1, 100])
@pytest.mark.parametrize("relation", [Adjacency.ADD_OR_REMOVE, Adjacency.ZERO_OUT])
def test_a_mixture_with_weights_of_sampling_is_sampling(
    rate: float, noise: float, times: int, relation: Adjacency
) -> None:
    one = MixtureOfGaussians(2.0 * noise, (0.0, 2.0), (1.0 - rate, rate), relation)
    found = account(Repeated(one, times) if times > 1 else one, check="off")
    known = account(NoisySGD(PoissonSampling(rate), noise, times, relation))
    for delta in (1e-3, 1e-6, 1e-10):
        upper, true = found.epsilon(delta).upper, known.epsilon(delta)
        assert true.lower * (1 - 1e-12) <= upper <= true.upper * (1 + 2e-3) + 1e-6


@pytest.mark.parametrize("rate, noise", [(0.01, 1.0), (0.2, 3.0), (0.6, 1.0), (1.0, 2.0)])
def test_concentrated_releases_on_a_sample_are_above_gaussian_and_laplace(
    rate: float, noise: float
) -> None:
    """Both are concentrated with this rho, and their divergences on a sample are known."""
    rho = 0.5 / noise**2
    bound = account(SampledRelease(DeclaredZeroConcentrated(rho), rate))
    gaussian = account(NoisySGD(PoissonSampling(rate), noise, 1))
    laplace = account(SampledRelease(LaplaceMechanism(noise), rate))
    for order in (2.0, 3.0, 8.0, 64.0):
        upper = bound.renyi(order).upper
        assert upper >= gaussian.renyi(order).lower * (1 - 1e-9)
        assert upper >= laplace.renyi(order).lower * (1 - 1e-9)
        assert upper <= rho * order * (1 + 1e-9)  # sampling does not hurt
        assert upper <= 1.5 * gaussian.renyi(order).upper
    none = account(SampledRelease(DeclaredZeroConcentrated(0.0), rate))
    assert none.epsilon(1e-6).upper == 0.0


def generating(mean: float, shape: float | None, gamma: float, x: Any) -> Any:
    """E x^K for K trials."""
    if shape is None:
        return np.exp(mean * (x - 1.0))
    if shape == 0.0:
        return np.log1p(-(1.0 - gamma) * x) / math.log(gamma)
    return ((1.0 - (1.0 - gamma) * x) ** -shape - 1.0) / (gamma**-shape - 1.0)


@pytest.mark.parametrize("mean", [1.5, 6.0])
@pytest.mark.parametrize("shape", [None, 1.0, 0.0, 2.5, -0.5])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_of_trials_of_any_kind_loses_no_more_than_is_promised(
    mean: float, shape: float | None, seed: int
) -> None:
    """The law of the best of listed outcomes, the later ones better, is exact."""
    rng = np.random.default_rng(seed)
    laws = rng.dirichlet(np.full(4, 2.0), size=2) if seed else np.array([[0.9, 0.1], [0.1, 0.9]])
    found = RepeatAndSelect(DeclaredPair(tuple(laws[0]), tuple(laws[1])), mean, shape)
    gamma = 1.0 if shape is None else found.law.gamma
    best = [
        np.diff(generating(mean, shape, gamma, np.append(0.0, np.cumsum(law))), prepend=0.0)
        for law in laws
    ]
    assert all(law.sum() == pytest.approx(1.0) and (law > -1e-12).all() for law in best)
    promised = account(found)
    for epsilon in EPSILONS:
        assert promised.delta(epsilon).upper >= stick(best[0], best[1], epsilon) - 1e-12
    for order in (1.5, 2.0, 10.0):
        keep = best[0] + best[1] > 1e-12
        p, q = best[0][keep], best[1][keep]
        true = [math.log((a**order * b ** (1.0 - order)).sum()) for a, b in ((p, q), (q, p))]
        assert promised.renyi(order).upper >= max(true) / (order - 1.0) - 1e-9


def test_selection_among_laplace_trials_costs_three_times_one() -> None:
    search = RepeatAndSelect(LaplaceMechanism(10.0), 20.0, shape=1.0)
    assert account(search).epsilon(1e-6).upper <= 0.3 * (1 + 1e-2)


@pytest.mark.parametrize(
    "process",
    [
        DeclaredPair((0.5, 0.5, 0.0), (0.25, 0.5, 0.25)),
        MixtureOfGaussians(1.0, (0.0, 1.0), (0.5, 0.5)),
        CutDiscreteGaussianMechanism(2.0, 10),
        SampledRelease(DeclaredZeroConcentrated(0.1), 0.2),
        RepeatAndSelect(Repeated(GaussianMechanism(3.0), 2), 4.0, 1.0),
    ],
)
def test_they_survive_json_and_are_found(process: Any) -> None:
    back = from_json(to_json(process))
    assert back == process and account(back).epsilon(1e-5) == account(process).epsilon(1e-5)


def test_what_is_no_law_is_refused() -> None:
    for wrong in ((0.5, 0.4), (1.5, -0.5), (), "half"):
        with pytest.raises(InvalidInput):
            DeclaredPair(wrong, (0.5, 0.5))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="equally many"):
        DeclaredPair((1.0,), (0.5, 0.5))
    with pytest.raises(InvalidInput, match="one probability"):
        MixtureOfGaussians(1.0, (0.0, 1.0, 2.0), (0.5, 0.5))
    with pytest.raises(InvalidInput, match="37 sigma"):
        CutDiscreteGaussianMechanism(1.0, 38)
    with pytest.raises(InvalidInput):
        RepeatAndSelect(UserLevel(DeclaredApproxDP(1.0), 2), 3.0)
