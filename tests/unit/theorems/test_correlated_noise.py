"""The account of correlated noise: golden numbers, enumerable cases, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from tightrope.accounting import account
from tightrope.calibrate import Target, find_noise
from tightrope.correlated import (
    BandedToeplitz,
    SquareRoot,
    Triangular,
    banded_inverse_square_root,
    square_root,
    white,
)
from tightrope.errors import DoesNotApply, InvalidInput
from tightrope.guarantee.base import Validity
from tightrope.guarantee.kinds.group import GroupGuarantee
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    CorrelatedSGD,
    CyclicPoissonSampling,
    CyclicSampling,
    FixedSizeSampling,
    FullBatch,
    GaussianMechanism,
    NoiseSchedule,
    NoisySGD,
    PoissonSampling,
    RandomAllocationSampling,
    RandomCycleSampling,
    SeparatedSampling,
    Sequence,
    ShuffledSampling,
)

FILE = Path(__file__).parents[2] / "golden" / "correlated.json"
GOLDEN = [c for c in json.loads(FILE.read_text()) if c["name"] == "banded_cyclic_poisson"]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: str(case["inputs"]["bands"]))
def test_golden_noise_of_cyclic_poisson_batches(case) -> None:  # type: ignore[no-untyped-def]
    """The golden numbers count every turn with a whole column; so many steps have them."""
    given, bands = case["inputs"], case["inputs"]["bands"]
    length = float(np.linalg.norm(SquareRoot().column(bands)))
    whole = -(-given["steps"] // bands) * bands
    sampling = CyclicPoissonSampling(bands * given["batch"] / given["records"], bands)
    target = Target.approx_dp(given["epsilon"], float(given["delta"]))
    found = find_noise(CorrelatedSGD(square_root(bands), sampling, 1.0, whole), target)
    low, high = (float(case["outputs"][end]) for end in ("lower", "upper"))
    assert low <= found.value / length <= high * (1 + 1e-6)
    assert account(found.process).guarantee().validity is Validity.EXACT
    cut = find_noise(CorrelatedSGD(square_root(bands), sampling, 1.0, given["steps"]), target)
    assert cut.value <= found.value * (1 + 1e-7)  # a column that is cut off is shorter


@pytest.mark.parametrize("adjacency", Adjacency)
def test_white_noise_is_noisy_sgd(adjacency: Adjacency) -> None:
    pairs = [
        (CyclicPoissonSampling(0.1, 1), PoissonSampling(0.1)),
        (CyclicPoissonSampling(1.0, 4), CyclicSampling(4)),
        (CyclicSampling(4), CyclicSampling(4)),
        (SeparatedSampling(4, 99), CyclicSampling(4)),
        (FullBatch(), FullBatch()),
    ]
    for mine, plain in pairs:
        ours = account(CorrelatedSGD(white(), mine, 2.0, 50, adjacency)).epsilon(1e-5)
        theirs = account(NoisySGD(plain, 2.0, 50, adjacency)).epsilon(1e-5)
        assert ours.upper == pytest.approx(theirs.upper, rel=1e-9)
        assert ours.lower == pytest.approx(theirs.lower, rel=1e-9)


def _delta(present: list[tuple[float, np.ndarray]], noise: float, epsilon: float) -> float:
    """E_Q (P/Q - e^eps)_+ and E_Q (1 - e^eps P/Q)_+ on a grid in two dimensions, the larger."""
    side = np.linspace(-9.0, 9.0, 721) * noise
    grid = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1)
    law = [multivariate_normal(at, noise**2 * np.eye(2)).pdf(grid) for _, at in present]
    p = sum(w * density for (w, _), density in zip(present, law, strict=True))
    q = multivariate_normal(np.zeros(2), noise**2 * np.eye(2)).pdf(grid)
    cell = (side[1] - side[0]) ** 2
    one, other = p - np.exp(epsilon) * q, q - np.exp(epsilon) * p
    return max(float(np.maximum(part, 0.0).sum() * cell) for part in (one, other))


def test_the_account_is_never_below_the_truth_of_two_steps() -> None:
    """Two steps, gradients of 1: the exact law, on a grid, of what C times the releases show."""
    noise, epsilon, q = 0.9, 0.4, 0.35
    for strategy in (SquareRoot(), BandedToeplitz((1.0, 0.8)), banded_inverse_square_root(2)):
        c = strategy.matrix(2)
        both = [(1.0, c @ np.ones(2))]
        coin = [(1.0 - q, np.zeros(2)), (q, c[:, 0])]
        cases = [
            (FullBatch(), both, Validity.EXACT),
            (SeparatedSampling(2, 1), [(1.0, c[:, 0])], Validity.EXACT),
            (CyclicPoissonSampling(q, 2), coin, Validity.EXACT),
            (BallsInBinsSampling(2), [(0.5, c[:, 0]), (0.5, c[:, 1])], Validity.BOUND),
            (RandomCycleSampling(2), [(0.5, c[:, 0]), (0.5, c[:, 1])], Validity.BOUND),
            (ShuffledSampling(2), [(0.5, c[:, 0]), (0.5, c[:, 1])], Validity.BOUND),
        ]
        for sampling, present, kind in cases:
            run = CorrelatedSGD(strategy, sampling, noise, 2)
            truth, found = _delta(present, noise, epsilon), account(run).delta(epsilon)
            assert found.upper >= truth * (1 - 1e-4), run
            if kind is Validity.EXACT:
                assert found.lower <= truth * (1 + 1e-4)
                assert found.upper <= truth * (1 + 1e-4), run


def test_replaced_records_cost_twice_where_nothing_is_secret() -> None:
    run = CorrelatedSGD(SquareRoot(), CyclicSampling(5), 8.0, 20)
    twice = replace(run, adjacency=Adjacency.REPLACE_ONE, noise_multiplier=16.0)
    assert account(twice).epsilon(1e-5).upper == pytest.approx(
        account(run).epsilon(1e-5).upper, rel=1e-12
    )


def test_both_ends_survive_composition() -> None:
    run = CorrelatedSGD(SquareRoot(), CyclicSampling(5), 8.0, 20)
    more = Sequence((run, GaussianMechanism(3.0), NoisySGD(PoissonSampling(0.1), 1.0, 5)))
    one, all_three = account(run).epsilon(1e-5), account(more).epsilon(1e-5)
    assert 0.0 < one.lower <= one.upper < all_three.lower <= all_three.upper
    assert all_three.relative_width < 1e-6


def test_every_turn_counts_with_its_own_column() -> None:
    """Three steps in a cycle of two: the first group has a second turn, whose column is cut off."""
    strategy = BandedToeplitz((1.0, 0.8))
    run = CorrelatedSGD(strategy, CyclicPoissonSampling(0.3, 2), 1.5, 3)
    noises = (1.5 / np.hypot(1.0, 0.8), 1.5)
    for adjacency in Adjacency:
        mine = account(replace(run, adjacency=adjacency)).epsilon(1e-4)
        plain = account(NoiseSchedule(PoissonSampling(0.3), noises, adjacency)).epsilon(1e-4)
        assert mine.upper == pytest.approx(plain.upper, rel=1e-9)
        assert mine.lower == pytest.approx(plain.lower, rel=1e-9)


def test_records_of_one_user_are_no_mixture() -> None:
    """Their turns meet: nothing better than the chain of neighbours is claimed."""
    for sampling in (CyclicPoissonSampling(0.2, 8), RandomCycleSampling(32)):
        run = CorrelatedSGD(square_root(8), sampling, 6.0, 100)
        two = account(run.group(2)).guarantee()
        assert isinstance(two, GroupGuarantee)
        assert two.records == 2


@pytest.mark.parametrize(("cycle", "cycles", "bands"), [(12, 1, 2), (8, 3, 3)])
def test_one_secret_place_costs_at_least_what_chance_shows(
    cycle: int, cycles: int, bands: int
) -> None:
    """The likelihood ratio of gradients of 1, drawn 40,000 times: the mean of a convex function,
    five standard errors less (false alarm below 1e-6), is at most the bound."""
    strategy, noise = square_root(bands), 1.7
    run = CorrelatedSGD(strategy, RandomCycleSampling(cycle), noise, cycle * cycles)
    matrix = strategy.matrix(run.steps)
    moved = np.stack([matrix[:, i::cycle].sum(axis=1) for i in range(cycle)]) / noise
    draws = np.random.default_rng(2).normal(size=(40_000, run.steps)) @ moved.T
    ratio = np.exp(draws - 0.5 * np.sum(moved * moved, axis=1)).mean(axis=1)
    for epsilon in (0.1, 0.5):
        bound = account(run).delta(epsilon).upper
        grown = np.exp(epsilon)
        for sample in (np.maximum(ratio - grown, 0.0), np.maximum(1.0 - grown * ratio, 0.0)):
            assert sample.mean() - 5.0 * sample.std() / 200.0 <= bound
        plain = account(replace(run, sampling=CyclicSampling(cycle))).delta(epsilon).upper
        assert bound < 0.8 * plain


def test_one_secret_place_is_exact_for_independent_noise() -> None:
    """One cycle is an epoch of balls in bins; more of them are one epoch with less noise."""
    run = CorrelatedSGD(white(), RandomCycleSampling(20), 2.0, 20)
    bins = account(NoisySGD(BallsInBinsSampling(20), 2.0, 20)).delta(0.3)
    assert account(run).delta(0.3).upper == pytest.approx(bins.upper, rel=1e-9)
    assert account(run).guarantee(0.01).validity is Validity.EXACT
    more = replace(run, steps=80, noise_multiplier=4.0)
    assert account(more).delta(0.3).upper == pytest.approx(bins.upper, rel=1e-9)
    part = account(replace(more, steps=61)).guarantee(0.01)
    assert part.validity is Validity.BOUND and not part.two_sided
    swapped = account(replace(run, adjacency=Adjacency.REPLACE_ONE)).delta(0.3)
    assert bins.upper < swapped.upper


def test_a_bound_is_called_one() -> None:
    """Columns of different lengths: each turn counts with the longest of them."""
    rng = np.random.default_rng(3)
    columns = tuple((1.0, *rng.uniform(0.0, 1.0, size=min(1, 39 - j))) for j in range(40))
    run = CorrelatedSGD(Triangular(columns), CyclicPoissonSampling(0.2, 2), 3.0, 40)
    found = account(run)
    assert found.guarantee().validity is Validity.BOUND
    lengths = [np.linalg.norm(column) for column in columns]
    norms = tuple(
        (c[0] / n, *(x / n for x in c[1:])) for c, n in zip(columns, lengths, strict=True)
    )
    equal = replace(run, strategy=Triangular(norms), noise_multiplier=3.0 / max(lengths))
    assert account(equal).guarantee().validity is Validity.EXACT
    assert found.epsilon(1e-5).upper <= account(equal).epsilon(1e-5).upper * (1 + 1e-9)


@pytest.mark.parametrize(
    ("sampling", "strategy", "words"),
    [
        (PoissonSampling(0.1), square_root(4), "sets of steps"),
        (FixedSizeSampling(0.1), square_root(4), "sets of steps"),
        (RandomAllocationSampling(10, 2), square_root(4), "sets of steps"),
        (CyclicPoissonSampling(0.1, 4), square_root(5), "got 5 bands and a cycle of 4"),
        (CyclicPoissonSampling(0.1, 4), SquareRoot(), "got 20 bands and a cycle of 4"),
        (CyclicPoissonSampling(0.1, 4), banded_inverse_square_root(2), "a cycle of 4"),
        (RandomAllocationSampling(10, 1), white(), "sets of steps"),
    ],
    ids=str,
)
def test_a_strategy_that_does_not_fit_its_sampler_is_refused(sampling, strategy, words) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(DoesNotApply, match=words):
        account(CorrelatedSGD(strategy, sampling, 2.0, 20)).epsilon(1e-5)


def test_no_noise_promises_nothing_and_no_steps_cost_nothing() -> None:
    for sampling in (CyclicSampling(4), CyclicPoissonSampling(0.1, 4)):
        assert (
            account(CorrelatedSGD(square_root(4), sampling, 0.0, 20)).epsilon(1e-5).upper == np.inf
        )
        assert account(CorrelatedSGD(square_root(4), sampling, 1.0, 0)).epsilon(1e-5).upper == 0.0
    with pytest.raises(InvalidInput, match="at most 1 steps"):
        CorrelatedSGD(Triangular(((1.0,),)), CyclicSampling(4), 1.0, 2)
