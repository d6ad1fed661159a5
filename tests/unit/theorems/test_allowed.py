"""Theorems list what they are proved for: a relation or sampler that is new is refused by all."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from tightrope.accounting import account
from tightrope.correlated import (
    SquareRoot,
    square_root,
)
from tightrope.errors import DoesNotApply, InvalidInput
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    CorrelatedSGD,
    CyclicPoissonSampling,
    CyclicSampling,
    DeclaredApproxDP,
    DeclaredPair,
    DeclaredZeroConcentrated,
    ExponentialMechanism,
    FixedSizeSampling,
    FullBatch,
    GaussianMechanism,
    LaplaceMechanism,
    MixtureOfGaussians,
    NegativeBinomialSelection,
    NoiseSchedule,
    NoisySGD,
    PermuteAndFlip,
    PoissonSampling,
    PoissonSelection,
    RandomAllocationSampling,
    RandomCycleSampling,
    RandomizedResponse,
    RepeatAndSelect,
    SampledRelease,
    ShuffledSampling,
    TruncatedPoissonSampling,
)
from tightrope.process.convex import (
    ContractiveIteration,
    ConvexLoss,
    CyclicSGD,
    LocalGradient,
    NoisyGradientDescent,
    SkipSGD,
    SmoothLoss,
    StopSGD,
    SubsampledSGD,
)
from tightrope.process.mechanism import (
    DiscreteGaussianVector,
    ThresholdedCounts,
    TreeAggregation,
)
from tightrope.theorems.catalog import THEOREMS

CONVEX = ConvexLoss(1.0, 1.0, 0.5)


@dataclass(frozen=True)
class WithReplacement:
    """A sampler that no theorem knows."""

    rate: float


def twins() -> Adjacency:
    """A relation that no theorem knows."""
    made = object.__new__(Adjacency)
    made._name_, made._value_ = "TWINS", "twins"
    return made


def processes() -> list[Any]:
    """Some of every kind, so that each theorem applies to one of them."""
    replaced = Adjacency.REPLACE_ONE
    samplers = [
        PoissonSampling(0.01),
        PoissonSampling(1.0),
        FullBatch(),
        CyclicSampling(10),
        ShuffledSampling(10),
        BallsInBinsSampling(10),
        RandomAllocationSampling(10, 2),
        TruncatedPoissonSampling(0.1, 20, 100),
    ]
    runs = [NoisySGD(how, 4.0, 20) for how in samplers]
    found = [
        *runs,
        *(replace(run, adjacency=replaced) for run in runs),
        NoisySGD(FixedSizeSampling(0.1), 4.0, 20, replaced),
        NoiseSchedule(PoissonSampling(0.1), (1.0, 2.0)),
        CorrelatedSGD(SquareRoot(), CyclicSampling(10), 4.0, 20),
        CorrelatedSGD(square_root(4), CyclicPoissonSampling(0.1, 4), 4.0, 20),
        CorrelatedSGD(square_root(2), RandomCycleSampling(4), 4.0, 20),
        GaussianMechanism(1.0),
        LaplaceMechanism(1.0),
        RandomizedResponse(0.5),
        DeclaredApproxDP(1.0),
        SampledRelease(LaplaceMechanism(1.0), 0.1),
        SampledRelease(DeclaredZeroConcentrated(0.1), 0.1),
        DeclaredPair((0.5, 0.5), (0.25, 0.75)),
        MixtureOfGaussians(1.0, (0.0, 1.0), (0.5, 0.5)),
        RepeatAndSelect(LaplaceMechanism(1.0), 3.0),
        ExponentialMechanism(1.0),
        PermuteAndFlip(1.0),
        PoissonSelection(1.0, 10.0),
        NegativeBinomialSelection(1.0, 10.0, 1.0),
        TreeAggregation(1.0, 10),
        DiscreteGaussianVector(10.0, 1.0, 3),
        ThresholdedCounts(10.0, 60),
        LocalGradient(CONVEX, 1.0),
        ContractiveIteration((1.0, 1.0), (1.0, 1.0), (1.0, 1.0)),
    ]
    common: dict[str, Any] = {"step_size": 0.5, "noise_std": 1.0}
    for loss, diameter in ((CONVEX, None), (CONVEX, 2.0), (SmoothLoss(1.0, 1.0), 2.0)):
        shared = {**common, "loss": loss, "diameter": diameter}
        found += [
            NoisyGradientDescent(**shared, records=10, steps=5),
            NoisyGradientDescent(**shared, records=10, steps=5, start_std=1.0),
            CyclicSGD(**shared, batch_size=2, batches_per_epoch=5, epochs=2),
            SkipSGD(**shared, records=10),
            StopSGD(**shared, records=10),
            SubsampledSGD(**shared, records=10, batch_size=2, steps=5),
        ]
    return found


def moved_to(process: Any, relation: Adjacency) -> Any:
    if isinstance(process, RepeatAndSelect):
        return replace(process, trial=moved_to(process.trial, relation))
    return replace(process, adjacency=relation)


@pytest.mark.parametrize("theorem", THEOREMS, ids=lambda theorem: theorem.NAME)
def test_a_new_relation_is_refused(theorem: Any) -> None:
    made = twins()
    assert theorem.RELATIONS and set(theorem.RELATIONS) <= set(Adjacency)
    accepted = [process for process in processes() if theorem.applies(process) is None]
    assert accepted, "the list above has nothing for this theorem"
    for process in accepted:
        other = moved_to(process, made)
        assert theorem.applies(other) is not None
        with pytest.raises(DoesNotApply):
            theorem.guarantee(other)


@pytest.mark.parametrize("theorem", THEOREMS, ids=lambda theorem: theorem.NAME)
@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_a_new_sampler_is_refused(theorem: Any, rate: float) -> None:
    for relation in Adjacency:
        for process in (
            NoisySGD(WithReplacement(rate), 4.0, 20, relation),
            NoiseSchedule(WithReplacement(rate), (4.0, 4.0), relation),
        ):
            assert theorem.applies(process) is not None
            with pytest.raises(DoesNotApply):
                theorem.guarantee(process)


def test_nothing_is_assumed_of_a_new_relation() -> None:
    with pytest.raises(InvalidInput, match="is not known"):
        _ = twins().moved
    with pytest.raises(DoesNotApply):
        account(NoisySGD(PoissonSampling(0.1), 1.0, 10, twins())).epsilon(1e-5)


def test_every_relation_in_use_is_named_by_a_theorem() -> None:
    assert {relation for theorem in THEOREMS for relation in theorem.RELATIONS} == set(Adjacency)
    assert [relation.moved for relation in Adjacency] == [1.0, 2.0, 1.0]
