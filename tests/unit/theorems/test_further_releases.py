"""Sampled Laplace and discrete noise, choices, trees, vectors, k of t: golden and brute force."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest

from tightrope import (
    Adjacency,
    DeclaredRenyi,
    DeclaredZeroConcentrated,
    DiscreteGaussianMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    NoisySGD,
    Repeated,
    Sequence,
    Validity,
    account,
)
from tightrope.errors import InvalidInput
from tightrope.evidence.certificate import certify
from tightrope.evidence.check import holds
from tightrope.evidence.verify import verify
from tightrope.guarantee.loss.pairs import (
    BoundedRangePair,
    DiscretePair,
    LaplaceMixturePair,
    LaplacePair,
    discrete_gaussian_pair,
    discrete_laplace_pair,
)
from tightrope.guarantee.loss.profile import epsilon as composed_epsilon
from tightrope.guarantee.loss.renyi import renyi_by_cells
from tightrope.process import (
    BallsInBinsSampling,
    DiscreteGaussianVector,
    DiscreteLaplaceMechanism,
    ExponentialMechanism,
    PermuteAndFlip,
    RandomAllocationSampling,
    SampledRelease,
    TreeAggregation,
)
from tightrope.process.codec import from_json, to_json
from tightrope.theorems.bins import as_blocks

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "mechanisms.json").read_text())


def cases(name: str) -> list[dict[str, Any]]:
    return [case for case in GOLDEN if case["name"] == name]


# ---- sampled noise -------------------------------------------------------------------------------
@pytest.mark.parametrize("case", cases("poisson_laplace"), ids=lambda c: str(c["inputs"]["steps"]))
def test_sampled_laplace_noise_is_within_its_golden_enclosure(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    rate, scale, steps = inputs["rate"], inputs["scale_over_sensitivity"], inputs["steps"]
    for name, sides in (("remove", (True, False)), ("add", (False, True))):
        pair = LaplaceMixturePair(rate, scale, *sides)
        found = composed_epsilon(((pair, steps),), inputs["delta"])
        known = case["orders"][name]
        assert found.lower <= known["upper"] * (1 + 1e-9)
        assert found.upper >= known["lower"] * (1 - 1e-9)
        assert found.relative_width < 1e-6
    run = Repeated(SampledRelease(LaplaceMechanism(scale), rate), steps)
    assert account(run).epsilon(inputs["delta"]).upper >= case["lower"] * (1 - 1e-9)


def laplace(x: Any, centre: float, scale: float) -> Any:
    return np.exp(-np.abs(x - centre) / scale) / (2 * scale)


@pytest.mark.parametrize(("rate", "scale"), [(0.1, 1.0), (0.5, 0.4), (0.9, 2.0)])
def test_no_replaced_record_loses_more_than_its_opposite(rate: float, scale: float) -> None:
    """Every pair of values, by the trapezoidal rule; that of the pair itself is attained."""
    x = np.linspace(-40.0, 40.0, 80_001)
    base = (1 - rate) * laplace(x, 0.0, scale)
    points = np.linspace(-1.0, 1.0, 9)
    pair = LaplaceMixturePair(rate, scale, True, True)
    for eps in (0.0, 0.2, 0.7):
        promised = math.exp(pair.log_delta_single(eps).upper)
        truth = {}
        for g in points:
            for h in points:
                p, q = (base + rate * laplace(x, v, scale) for v in (g, h))
                truth[g, h] = float(np.maximum(p - math.exp(eps) * q, 0.0).sum() * (x[1] - x[0]))
        assert max(truth.values()) <= promised + 1e-6
        assert truth[1.0, -1.0] == pytest.approx(promised, abs=1e-6)


@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_no_replaced_whole_number_loses_more_than_its_opposite(rate: float) -> None:
    x = np.arange(-200, 201)
    for pair, log_mass in (
        (discrete_laplace_pair(0.6, 3, rate, True, True), -0.6 * np.abs(x)),
        (discrete_gaussian_pair(2.0, 3, rate, True, True), -(x**2) / 8.0),
    ):
        mass = np.exp(log_mass) / np.exp(log_mass).sum()
        moved = {g: (1 - rate) * mass + rate * np.roll(mass, g) for g in range(-3, 4)}
        for eps in (0.0, 0.3, 1.0):
            promised = math.exp(pair.log_delta_single(eps).upper)
            truth = max(
                float(np.maximum(p - math.exp(eps) * q, 0.0).sum())
                for p in moved.values()
                for q in moved.values()
            )
            assert truth == pytest.approx(promised, rel=1e-9)


@pytest.mark.parametrize("sides", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("rate", "scale"), [(0.1, 2.0), (0.9, 0.2)])
def test_masses_and_divergences_of_sampled_laplace_noise(
    rate: float, scale: float, sides: tuple[bool, bool]
) -> None:
    pair = LaplaceMixturePair(rate, scale, *sides)
    low, high = pair.support
    at = np.array([low - 0.1, low, 0.5 * low, 0.0, 0.4 * high, high])
    for above, below in zip(pair.log_survival(at), pair.log_cdf(at), strict=True):
        assert np.exp(above) + np.exp(below) == pytest.approx(1.0, abs=1e-13)
    atoms = dict(pair.atoms)
    assert atoms[high] == pytest.approx(math.exp(pair.log_survival(high * (1 - 1e-9))[0]), rel=1e-6)
    cells = renyi_by_cells(pair, 4.0)
    found = account(Sequence((SampledRelease(LaplaceMechanism(scale), rate),))).renyi(4.0)
    if sides[0] and not sides[1]:
        assert cells.lower <= found.upper and found.lower <= cells.upper * (1 + 1e-9)
    assert pair.reversed().reversed() == pair


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_sampling_all_records_is_no_sampling(adjacency: Adjacency) -> None:
    moved = 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0
    whole = account(SampledRelease(LaplaceMechanism(2.0), 1.0, adjacency)).epsilon(1e-5)
    assert whole.upper == pytest.approx(account(LaplaceMechanism(2.0 / moved)).epsilon(1e-5).upper)
    integers = account(SampledRelease(DiscreteLaplaceMechanism(0.3, 2), 1.0, adjacency))
    plain = account(DiscreteLaplaceMechanism(0.3, int(2 * moved)))
    assert integers.epsilon(1e-3).upper == pytest.approx(plain.epsilon(1e-3).upper)
    assert account(SampledRelease(LaplaceMechanism(2.0), 0.0, adjacency)).epsilon(0.0).upper == 0
    assert account(SampledRelease(LaplaceMechanism(0.0), 0.1)).epsilon(1e-5).upper == math.inf
    far = account(SampledRelease(LaplaceMechanism(0.01), 0.1, adjacency))
    assert 90.0 < far.epsilon(1e-5).upper < 201.0


def test_a_sampled_release_needs_the_bound_of_one_record() -> None:
    for wrong in (LaplaceMechanism(1.0, Adjacency.REPLACE_ONE), GaussianMechanism(1.0), 3):
        with pytest.raises(InvalidInput, match="one record added or removed"):
            SampledRelease(wrong, 0.1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="rate"):
        SampledRelease(LaplaceMechanism(1.0), 1.5)
    with pytest.raises(InvalidInput, match="LaplacePair has rate 1"):
        LaplaceMixturePair(1.0, 1.0, True, False)


# ---- discrete Laplace, bounded range -------------------------------------------------------------
@pytest.mark.parametrize("case", cases("discrete_laplace"), ids=lambda c: str(c["inputs"]["decay"]))
def test_discrete_laplace_noise_composes_exactly(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    release = DiscreteLaplaceMechanism(inputs["decay"], inputs["sensitivity"])
    found = account(Repeated(release, inputs["steps"]), check="full").epsilon(inputs["delta"])
    assert found.lower * (1 - 1e-12) <= case["value"] <= found.upper * (1 + 1e-12)
    assert found.relative_width < 1e-9


@pytest.mark.parametrize("case", cases("bounded_range"), ids=lambda c: str(c["inputs"]["top"]))
def test_bounded_range_agrees_with_its_inversion(case: dict[str, Any]) -> None:
    inputs = case["inputs"]
    run = Repeated(ExponentialMechanism(inputs["top"]), inputs["steps"])
    found = account(run, check="full").epsilon(inputs["delta"]).upper
    assert found == pytest.approx(case["value"], rel=1e-10)
    assert (
        found
        < account(Repeated(PermuteAndFlip(inputs["top"]), inputs["steps"]))
        .epsilon(inputs["delta"])
        .upper
    )


def two_values(top: float, t: float) -> DiscretePair:
    """The extreme law whose ratios lie in [t - top, t]."""
    p = (math.exp(top) - math.exp(t)) / math.expm1(top)
    return DiscretePair((t - top, t), (1.0 - p, p))


def test_bounded_range_is_the_worst_of_all_two_valued_laws() -> None:
    top = 1.3
    for eps in np.linspace(0.0, 1.2, 7):
        each = [math.exp(two_values(top, t).log_delta_single(eps).upper)
                for t in np.linspace(0.01, top - 0.01, 400)]  # fmt: skip
        found = BoundedRangePair(top).log_delta_single(float(eps))
        assert max(each) <= math.exp(found.upper) * (1 + 1e-12)
        assert max(each) == pytest.approx(math.exp(found.lower), rel=1e-3)


def test_what_an_exponential_mechanism_attains_lies_below() -> None:
    """Scores fixed in advance: the same two-valued law each time."""
    found = account(Repeated(ExponentialMechanism(1.0), 20)).epsilon(1e-5).upper
    least = max(composed_epsilon(((two_values(1.0, t), 20),), 1e-5).lower for t in (0.4, 0.55, 0.7))
    assert 0.85 * found < least <= found


# ---- permute-and-flip ----------------------------------------------------------------------------
def winners(scores: tuple[float, ...]) -> Any:
    """The chances of permute-and-flip, by integrating over the noise (exponential, rate 1)."""
    y = np.linspace(min(scores), max(scores) + 40.0, 400_001)
    cdfs = [np.where(y > s, -np.expm1(-(y - s)), 0.0) for s in scores]
    chances = []
    for i, s in enumerate(scores):
        others = np.prod([c for j, c in enumerate(cdfs) if j != i], axis=0)
        chances.append(np.sum(np.where(y > s, np.exp(-(y - s)), 0.0) * others) * (y[1] - y[0]))
    return np.array(chances) / sum(chances)


@pytest.mark.parametrize("epsilon", [0.3, 1.5])
def test_permute_and_flip_stays_below_laplace_noise(epsilon: float) -> None:
    rng = np.random.default_rng(5)
    promised = account(PermuteAndFlip(epsilon))
    grid = [0.0, 0.3 * epsilon, 0.8 * epsilon]
    most = [promised.delta(eps).upper for eps in grid]
    for count in (2, 3, 5):
        for _ in range(4):
            scores = tuple(rng.uniform(0.0, 2.0, count))
            signs = rng.choice([-0.5, 0.5], count)
            moved = tuple(s + m for s, m in zip(scores, signs * epsilon, strict=True))
            p, q = winners(scores), winners(moved)
            for eps, bound in zip(grid, most, strict=True):
                truth = float(np.maximum(p - math.exp(eps) * q, 0.0).sum())
                assert truth <= bound + 1e-4
    assert account(PermuteAndFlip(0.0)).epsilon(0.0).upper == 0.0
    assert promised.certified[0].kind is Validity.BOUND


def test_two_candidates_attain_it() -> None:
    """P(1 wins) is the distribution function of Laplace noise at the difference."""
    eps, epsilon = 0.4, 1.0
    best = 0.0
    for t in np.linspace(-3, 3, 601):
        chance = [0.5 * math.exp(v) if v < 0 else 1 - 0.5 * math.exp(-v) for v in (t + epsilon, t)]
        best = max(best, chance[0] - math.exp(eps) * chance[1])
    assert best == pytest.approx(account(PermuteAndFlip(epsilon)).delta(eps).lower, rel=1e-4)


@pytest.mark.parametrize("parameter", [0.3, 1.0, 7.7])
def test_pure_releases_end_where_they_say(parameter: float) -> None:
    """At delta = 0, against the rational number that the parameter is."""
    for choice in (ExponentialMechanism(parameter), PermuteAndFlip(parameter)):
        assert account(choice).epsilon(0.0).upper >= parameter
        assert account(choice).certified[0].kind is Validity.BOUND
    scale = parameter / 400.0
    one = SampledRelease(LaplaceMechanism(scale), 0.1)
    opposite = SampledRelease(LaplaceMechanism(scale), 0.1, Adjacency.REPLACE_ONE)
    assert Fraction(account(opposite).epsilon(0.0).upper) >= 2 / Fraction(scale)
    with mpmath.workdps(30):
        sampled = mpmath.log1p(mpmath.mpf(0.1) * mpmath.expm1(1 / mpmath.mpf(scale)))
        assert account(one).epsilon(0.0).upper >= sampled


# ---- trees, vectors, zCDP ------------------------------------------------------------------------
@pytest.mark.parametrize("leaves", [1, 2, 3, 4, 7, 8, 9, 100])
def test_a_record_is_in_so_many_nodes_of_a_tree(leaves: int) -> None:
    nodes = [range(k * size, (k + 1) * size) for size in (2**i for i in range(8))
             for k in range(leaves // size)]  # fmt: skip
    most = max(sum(leaf in node for node in nodes) for leaf in range(leaves))
    assert TreeAggregation(1.0, leaves).depth == most
    found = account(TreeAggregation(3.0, leaves)).epsilon(1e-5)
    same = account(GaussianMechanism(3.0 / math.sqrt(most))).epsilon(1e-5)
    assert same.lower * (1 - 1e-12) <= found.upper <= same.upper * (1 + 1e-12)
    replaced = account(TreeAggregation(3.0, leaves, Adjacency.REPLACE_ONE)).epsilon(1e-5)
    twice = account(GaussianMechanism(1.5 / math.sqrt(most))).epsilon(1e-5)
    assert twice.lower * (1 - 1e-12) <= replaced.upper <= twice.upper * (1 + 1e-12)


@pytest.mark.parametrize("sigma", [1.0, 3.0, 8.0, 20.0])
def test_vectors_of_discrete_noise_cover_every_whole_shift(sigma: float) -> None:
    """Shifts of squared length at most 5, as products of one-dimensional laws."""
    run = Repeated(DiscreteGaussianVector(sigma, math.sqrt(5.0), 6), 3)
    found = account(run).epsilon(1e-5).upper
    for shift in ([1] * 5, [2, 1], [2], [1, 1, 1]):
        parts = tuple((discrete_gaussian_pair(sigma, s), 3 * shift.count(s)) for s in set(shift))
        assert composed_epsilon(parts, 1e-5).lower <= found
    plain = account(Repeated(GaussianMechanism(sigma / math.sqrt(5.0)), 3)).epsilon(1e-5).upper
    assert found <= (1.35 if sigma < 8.0 else 1.05) * plain + 0.1


@pytest.mark.parametrize("dimension", [5, 40_000])
def test_each_coordinate_has_its_share_of_failure(dimension: int) -> None:
    """4.1 e^(-8 pi^2) each: below their sum nothing is promised, above it nearly all."""
    share = dimension * 4.1 * math.exp(-8.0 * math.pi**2)
    found = account(DiscreteGaussianVector(20.0, 2.0, dimension))
    assert found.epsilon(0.999 * share).upper == math.inf
    assert found.epsilon(1.001 * share).upper < 3.0


def test_one_coordinate_is_exact_and_none_is_free() -> None:
    one = account(DiscreteGaussianMechanism(2.0, 1)).epsilon(1e-5)
    found = account(DiscreteGaussianVector(2.0, 1.4, 30))
    assert found.epsilon(1e-5) == one and found.certified[0].kind is Validity.EXACT
    assert account(DiscreteGaussianVector(2.0, 0.9, 3)).epsilon(0.0).upper == 0.0
    assert account(DiscreteGaussianVector(0.0, 1.0, 3)).epsilon(1e-5).upper == math.inf


def test_zcdp_with_an_offset_is_its_renyi_divergences() -> None:
    rho, xi = 0.05, 0.2
    found = account(DeclaredZeroConcentrated(rho, xi=xi))
    assert found.renyi(3.0).upper == pytest.approx(xi + 3 * rho)
    orders = tuple(np.linspace(1.5, 60.0, 200))
    table = DeclaredRenyi(orders, tuple(xi + rho * a for a in orders))
    assert found.epsilon(1e-5).upper <= account(table).epsilon(1e-5).upper * (1 + 1e-9)
    plain = account(DeclaredZeroConcentrated(rho)).epsilon(1e-5).upper
    assert plain + 0.9 * xi < found.epsilon(1e-5).upper <= plain + 1.01 * xi
    with pytest.raises(InvalidInput):
        DeclaredZeroConcentrated(rho, xi=-0.1)


# ---- k of t --------------------------------------------------------------------------------------
@pytest.mark.parametrize(("t", "k"), [(4, 2), (5, 2), (5, 3), (4, 3)])
def test_the_bound_for_k_of_t_covers_a_sample_of_the_truth(t: int, k: int) -> None:
    """Monte Carlo: the likelihood ratio is the mean over subsets of products of lognormals."""
    noise, draws, rng = 1.2, 200_000, np.random.default_rng(3)
    subsets = list(combinations(range(t), k))
    z = rng.standard_normal((draws, t)) / noise
    ratio = np.mean([np.exp(z[:, s].sum(1) - k / (2 * noise**2)) for s in map(list, subsets)], 0)
    run = account(NoisySGD(RandomAllocationSampling(t, k), noise, t))
    for eps in (0.0, 0.5, 1.0):
        removed, added = (
            np.maximum(ratio - math.exp(eps), 0),
            np.maximum(1 - math.exp(eps) * ratio, 0),
        )
        for sample in (removed, added):
            slack = 5.0 * float(sample.std()) / math.sqrt(draws)
            assert float(sample.mean()) - slack <= run.delta(eps).upper


def test_one_and_all_of_t_are_exact() -> None:
    one = account(NoisySGD(RandomAllocationSampling(20, 1), 1.0, 60)).epsilon(1e-5)
    assert one == account(NoisySGD(BallsInBinsSampling(20), 1.0, 60)).epsilon(1e-5)
    every = account(NoisySGD(RandomAllocationSampling(4, 4), 1.0, 8)).epsilon(1e-5)
    assert every.upper == pytest.approx(account(GaussianMechanism(8**-0.5)).epsilon(1e-5).upper)
    two = account(NoisySGD(RandomAllocationSampling(20, 2), 1.0, 20))
    assert two.certified[0].kind is Validity.BOUND
    same = account(NoisySGD(BallsInBinsSampling(10), 1.0, 20)).epsilon(1e-5)
    assert two.epsilon(1e-5).upper == pytest.approx(same.upper)
    begun = account(NoisySGD(RandomAllocationSampling(20, 2), 1.0, 21)).epsilon(1e-5)
    again = account(NoisySGD(RandomAllocationSampling(20, 2), 1.0, 40)).epsilon(1e-5)
    assert begun.upper == again.upper > two.epsilon(1e-5).upper
    uneven = RandomAllocationSampling(11, 3)
    blocks = as_blocks(NoisySGD(uneven, 1.0, 11), uneven).parts
    assert sum(b.count * b.inner.sampling.batches_per_epoch for b in blocks) == 11
    assert account(NoisySGD(RandomAllocationSampling(20, 2), 1.0, 0)).epsilon(0.0).upper == 0.0
    with pytest.raises(InvalidInput, match="joins"):
        RandomAllocationSampling(3, 4)


# ---- all of them ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "process",
    [
        SampledRelease(LaplaceMechanism(2.0), 0.1, Adjacency.REPLACE_ONE),
        DiscreteLaplaceMechanism(0.4, 2),
        ExponentialMechanism(0.7),
        TreeAggregation(5.0, 10),
        DiscreteGaussianVector(20.0, 2.0, 5),
    ],
    ids=lambda p: type(p).__name__,
)
def test_they_go_into_files_and_certificates_and_back(process: Any) -> None:
    assert from_json(json.loads(json.dumps(to_json(process)))) == process
    assert holds(verify(certify(process, 1e-5)))


def test_laplace_noise_has_two_homes_and_one_law() -> None:
    """Sampled at a rate next to 1, it is next to Laplace noise."""
    near, plain = LaplaceMixturePair(1.0 - 1e-12, 0.7, True, False), LaplacePair(0.7)
    for eps in (0.0, 0.5, 1.2):
        assert near.log_delta_single(eps).upper == pytest.approx(plain.log_delta_single(eps).upper)
