"""Laws of every analysis of the catalogue: none claims less than another proves to be needed.

A new theorem is asked here without any change of this file: over neighbours, ways of drawing
batches, and one step to 100,000. Processes of a new kind go into FAMILY.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tightrope.accounting import account
from tightrope.correlated import (
    square_root,
)
from tightrope.errors import ContradictoryMethods
from tightrope.guarantee.base import Validity
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    CorrelatedSGD,
    CyclicPoissonSampling,
    CyclicSampling,
    DeclaredApproxDP,
    DiscreteLaplaceMechanism,
    FixedSizeSampling,
    FullBatch,
    GaussianMechanism,
    LaplaceMechanism,
    NoisySGD,
    PoissonSampling,
    RandomizedResponse,
    Repeated,
    SampledRelease,
    Sequence,
    TruncatedPoissonSampling,
)
from tightrope.theorems.catalog import ANALYSES, Analysis
from tightrope.theorems.sampling import PoissonGaussianExactZdw22

RUNS = [
    NoisySGD(PoissonSampling(0.01), 1.0, 300),
    NoisySGD(PoissonSampling(0.2), 3.0, 20),
    NoisySGD(FixedSizeSampling(0.05), 1.5, 50, Adjacency.REPLACE_ONE),
    NoisySGD(FullBatch(), 5.0, 30),
    Repeated(LaplaceMechanism(3.0), 5),
    Sequence((GaussianMechanism(2.0), DeclaredApproxDP(0.2, 1e-7))),
]
RUN = pytest.mark.parametrize("run", RUNS, ids=lambda run: str(run)[:50])


SAMPLINGS = [
    PoissonSampling(0.004),
    PoissonSampling(0.3),
    FixedSizeSampling(0.02),
    BallsInBinsSampling(20),
    CyclicSampling(20),
    FullBatch(),
]
ONE_SIDED = {
    (FixedSizeSampling, Adjacency.ADD_OR_REMOVE),
    (BallsInBinsSampling, Adjacency.REPLACE_ONE),
}
FAMILY = [
    *RUNS[:-1],  # of what is declared nothing is known from below
    Sequence((GaussianMechanism(2.0), LaplaceMechanism(3.0))),
    *(
        NoisySGD(sampling, noise, steps, adjacency)
        for adjacency in Adjacency
        for sampling in SAMPLINGS
        if (type(sampling), adjacency) not in ONE_SIDED
        for noise, steps in ((0.8, 20), (3.0, 2_000), (8.0, 100_000))
    ),
    NoisySGD(PoissonSampling(0.01), 1.0, 1),
    *(
        CorrelatedSGD(square_root(4), sampling, 3.0, 400, adjacency)
        for adjacency in Adjacency
        for sampling in (CyclicPoissonSampling(0.1, 4), CyclicSampling(50))
    ),
    NoisySGD(TruncatedPoissonSampling(0.01, 150, 10_000), 1.0, 2_000),
    Repeated(SampledRelease(LaplaceMechanism(2.0), 0.02), 2_000),
    *(GaussianMechanism(2.0, adjacency) for adjacency in Adjacency),
    *(LaplaceMechanism(2.0, adjacency) for adjacency in Adjacency),
    DiscreteLaplaceMechanism(0.5, 2),
    RandomizedResponse(0.5, adjacency=Adjacency.REPLACE_ONE),
]


@pytest.mark.parametrize("run", FAMILY, ids=str)
def test_no_analysis_claims_less_than_another_proves_to_be_needed(run) -> None:  # type: ignore[no-untyped-def]
    """A failure names two analyses: the one with the smaller epsilon is unsound for this run."""
    found = account(run, check="off")
    two_sided = [finding.outcome.two_sided for finding in found.certified]  # type: ignore[union-attr]
    assert any(two_sided), "nothing is known from below, so this run holds nothing"
    for finding in found.certified:
        assert finding.outcome.adjacency is run.adjacency, f"{finding.name}: other neighbours"  # type: ignore[union-attr]
    for delta in (1e-3, 1e-6, 1e-12):
        found.compare(delta)


def more_noise(run: NoisySGD) -> NoisySGD:
    return replace(run, noise_multiplier=run.noise_multiplier / 0.9)


def fewer_steps(run: NoisySGD) -> NoisySGD:
    return replace(run, steps=min(run.steps, 1_000))


def other_neighbours(run: NoisySGD) -> NoisySGD:
    return replace(run, adjacency=Adjacency.ADD_OR_REMOVE)


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("validity", [Validity.EXACT, Validity.BOUND])
@pytest.mark.parametrize("easier", [more_noise, fewer_steps, other_neighbours])
def test_an_unsound_theorem_is_refused(easier, validity: Validity, place: str) -> None:  # type: ignore[no-untyped-def]
    """It gives a run the guarantee of an easier one; some run of the family tells."""
    planted = SimpleNamespace(
        NAME="planted",
        applies=lambda run: PoissonGaussianExactZdw22.applies(easier(run)),
        guarantee=lambda run: replace(
            PoissonGaussianExactZdw22.guarantee(easier(run)),
            adjacency=run.adjacency,
            validity=validity,
        ),
    )
    wrong = Analysis("planted", planted)  # type: ignore[arg-type]
    analyses = (wrong, *ANALYSES) if place == "first" else (*ANALYSES, wrong)
    runs = [r for r in FAMILY if isinstance(r, NoisySGD) and r.sampling == PoissonSampling(0.004)]
    with pytest.raises(ContradictoryMethods, match=r"planted proves .* report this"):
        for run in runs:
            account(run, analyses, check="off").compare(1e-6)


@pytest.mark.parametrize("sampling", [PoissonSampling, FixedSizeSampling])
def test_epsilons_rise_with_rate_and_steps_and_fall_with_noise(sampling) -> None:  # type: ignore[no-untyped-def]
    def all_of(rate: float, noise: float, steps: int) -> dict[str, float]:
        found = account(NoisySGD(sampling(rate), noise, steps), check="off")
        return {f.key: f.outcome.epsilon(1e-5).upper for f in found.certified}  # type: ignore[union-attr]

    base = all_of(0.02, 1.0, 100)
    for other, sign in (
        (all_of(0.03, 1.0, 100), 1.0),
        (all_of(0.02, 1.2, 100), -1.0),
        (all_of(0.02, 1.0, 150), 1.0),
    ):
        for key in set(base) & set(other):
            assert sign * (other[key] - base[key]) >= -1e-9 * base[key], key


@RUN
def test_n_times_is_a_list_of_n(run) -> None:  # type: ignore[no-untyped-def]
    repeated = account(Repeated(run, 3), check="off")
    listed = account(Sequence((run, run, run)), check="off")
    there = {f.key: f for f in listed.certified}
    for finding in repeated.certified:
        if finding.key in there:
            one, other = (f.outcome.epsilon(1e-5).upper for f in (finding, there[finding.key]))
            assert one == pytest.approx(other, rel=1e-6)
