"""Events of dp_accounting: every one is read or refused with a reason, in every form of it."""

from __future__ import annotations

import json
import math
from collections import namedtuple
from types import SimpleNamespace

import pytest

from tightrope import (
    BallsInBinsSampling,
    DeclaredApproxDP,
    DeclaredZeroConcentrated,
    DiscreteGaussianMechanism,
    FixedSizeSampling,
    FullBatch,
    GaussianMechanism,
    LaplaceMechanism,
    NoisySGD,
    PoissonSampling,
    RandomizedResponse,
    Repeated,
    Sequence,
    ShuffledSampling,
    account,
)
from tightrope.errors import DoesNotApply, InvalidInput
from tightrope.interop import Setting, read, to_dp_event
from tightrope.interop.dp_event import _READERS, FIELDS
from tightrope.process import (
    DiscreteGaussianVector,
    DiscreteLaplaceMechanism,
    ExponentialMechanism,
    MixtureOfGaussians,
    NegativeBinomialSelection,
    NoiseSchedule,
    PermuteAndFlip,
    PoissonSelection,
    RandomAllocationSampling,
    RepeatAndSelect,
    SampledRelease,
    TreeAggregation,
    TruncatedPoissonSampling,
    UserLevel,
)


def event(name, **fields):
    return {"class_name": f"{name}DpEvent", **fields}


def process(given, relation="ADD_OR_REMOVE_ONE"):
    return read({"dp_event": given, "neighboring_relation": relation}).process


GAUSS = event("Gaussian", noise_multiplier=1.5)
POISSON = event("PoissonSampled", sampling_probability=0.01, event=GAUSS)


def test_every_event_has_a_reader() -> None:
    assert list(_READERS) == list(FIELDS)


@pytest.mark.parametrize(
    ("given", "relation", "expected"),
    [
        (GAUSS, "ADD_OR_REMOVE_ONE", GaussianMechanism(1.5)),
        (GAUSS, "REPLACE_ONE", GaussianMechanism(0.75, "replace-one")),
        (GAUSS, "REPLACE_SPECIAL", GaussianMechanism(1.5, "zero-out")),
        (event("Laplace", noise_multiplier=3), "REPLACE_ONE", LaplaceMechanism(1.5, "replace-one")),
        (event("DiscreteGaussian", sigma=2.0, sensitivity=1.0, dimension=1), "ADD_OR_REMOVE_ONE",
         DiscreteGaussianMechanism(2.0, 1)),
        (event("RandomizedResponse", noise_parameter=0.4, num_buckets=3), "REPLACE_ONE",
         RandomizedResponse(0.4, 3)),
        (event("ExponentialMechanism", epsilon=0.5), "ADD_OR_REMOVE_ONE",
         ExponentialMechanism(0.5)),
        (event("PermuteAndFlip", epsilon=0.5), "ADD_OR_REMOVE_ONE", PermuteAndFlip(0.5)),
        (event("DiscreteLaplace", noise_parameter=0.5, sensitivity=2), "REPLACE_ONE",
         DiscreteLaplaceMechanism(0.5, 4, "replace-one")),
        (event("DiscreteLaplace", noise_parameter=0.0, sensitivity=2), "ADD_OR_REMOVE_ONE",
         DeclaredApproxDP(0.0)),
        (event("DiscreteGaussian", sigma=2.0, sensitivity=1.5, dimension=4), "ADD_OR_REMOVE_ONE",
         DiscreteGaussianVector(2.0, 1.5, 4)),
        (event("DiscreteGaussian", sigma=2.0, sensitivity=1.0, dimension=1), "REPLACE_ONE",
         DiscreteGaussianMechanism(2.0, 2, "replace-one")),
        (event("DiscreteGaussian", sigma=2.0, sensitivity=1.5, dimension=4), "REPLACE_ONE",
         DiscreteGaussianVector(2.0, 3.0, 4, "replace-one")),
        (event("ZC", rho=0.1, xi=0.2), "ADD_OR_REMOVE_ONE", DeclaredZeroConcentrated(0.1, xi=0.2)),
        (event("PoissonSampled", sampling_probability=0.1, event=event("Laplace",
               noise_multiplier=2.0)), "REPLACE_ONE",
         SampledRelease(LaplaceMechanism(2.0), 0.1, "replace-one")),
        (event("PoissonSampled", sampling_probability=0.1, event=event("DiscreteLaplace",
               noise_parameter=0.5, sensitivity=1)), "REPLACE_SPECIAL",
         SampledRelease(DiscreteLaplaceMechanism(0.5), 0.1, "zero-out")),
        (event("SelfComposed", count=3, event=event("TruncatedSubsampledGaussian", dataset_size=9,
               sampling_probability=0.1, truncated_batch_size=3, noise_multiplier=1)),
         "ADD_OR_REMOVE_ONE", NoisySGD(TruncatedPoissonSampling(0.1, 3, 9), 1.0, 3)),
        (event("RandomAllocation", event=GAUSS, num_selected=2, num_steps=20), "ADD_OR_REMOVE_ONE",
         NoisySGD(RandomAllocationSampling(20, 2), 1.5, 20)),
        (event("SingleEpochTreeAggregation", noise_multiplier=3.0, step_counts=[8, 3]),
         "REPLACE_SPECIAL", TreeAggregation(3.0, 8, "zero-out")),
        (event("EpsilonDelta", epsilon=1, delta=1e-6), "ADD_OR_REMOVE_ONE",
         DeclaredApproxDP(1.0, 1e-6)),
        (event("ZC", rho=0.1), "ADD_OR_REMOVE_ONE", DeclaredZeroConcentrated(0.1)),
        (event("NoOp"), "ADD_OR_REMOVE_ONE", DeclaredApproxDP(0.0, 0.0)),
        (event("NonPrivate"), "ADD_OR_REMOVE_ONE", GaussianMechanism(0.0)),
        (POISSON, "REPLACE_ONE", NoisySGD(PoissonSampling(0.01), 1.5, 1, "replace-one")),
        (event("SelfComposed", event=POISSON, count=7), "ADD_OR_REMOVE_ONE",
         NoisySGD(PoissonSampling(0.01), 1.5, 7)),
        (event("SelfComposed", event=GAUSS, count=7), "ADD_OR_REMOVE_ONE",
         Repeated(GaussianMechanism(1.5), 7)),
        (event("Composed", events=[GAUSS, event("NoOp"), event("ZC", rho=0.1)]),
         "ADD_OR_REMOVE_ONE",
         Sequence((GaussianMechanism(1.5), DeclaredZeroConcentrated(0.1)))),
        (event("Composed", events=[]), "ADD_OR_REMOVE_ONE", DeclaredApproxDP(0.0, 0.0)),
        (event("SampledWithoutReplacement", source_dataset_size=1000, sample_size=10, event=GAUSS),
         "REPLACE_ONE", NoisySGD(FixedSizeSampling(0.01), 1.5, 1, "replace-one")),
        (event("SampledWithoutReplacement", source_dataset_size=1000, sample_size=10, event=GAUSS),
         "REPLACE_SPECIAL", NoisySGD(FixedSizeSampling(0.01), 1.5, 1, "zero-out")),
        (event("RandomAllocation", event=GAUSS, num_selected=1, num_steps=20), "ADD_OR_REMOVE_ONE",
         NoisySGD(BallsInBinsSampling(20), 1.5, 20)),
    ],
)  # fmt: skip
def test_what_an_event_is_read_as(given, relation, expected) -> None:
    assert process(given, relation) == expected


def test_several_gaussians_on_one_batch_are_one_with_less_noise() -> None:
    inner = event("Composed", events=[GAUSS, event("SelfComposed", event=GAUSS, count=3)])
    found = process(event("PoissonSampled", sampling_probability=0.01, event=inner))
    assert 0.75 * (1 - 1e-13) < found.noise_multiplier < 0.75  # 1.5 / sqrt(4), rounded down


def test_a_tree_is_a_gaussian_of_its_depth() -> None:
    tree = event("SingleEpochTreeAggregation", noise_multiplier=3.0, step_counts=[3, 8])
    found = process(tree, "REPLACE_SPECIAL")
    same = account(GaussianMechanism(1.5)).epsilon(1e-5)
    assert same.upper <= account(found).epsilon(1e-5).upper <= same.upper * (1 + 1e-12)


def test_several_numbers_of_discrete_noise_cost_no_less_than_one() -> None:
    one = process(event("DiscreteGaussian", sigma=4.0, dimension=1))
    many = process(event("DiscreteGaussian", sigma=4.0, dimension=10))
    assert account(many).epsilon(1e-5).upper >= account(one).epsilon(1e-5).lower
    unknown = process(event("DiscreteGaussian", sigma=4.0, sensitivity=1.0, dimension=None))
    assert unknown.rho >= 1 / 32


def test_sampled_releases_that_are_known_by_epsilon_alone_are_amplified() -> None:
    inner = event("EpsilonDelta", epsilon=1.0, delta=1e-6)
    found = process(event("PoissonSampled", sampling_probability=0.1, event=inner))
    assert found.epsilon >= math.log1p(0.1 * math.expm1(1.0))
    assert found.epsilon == pytest.approx(math.log1p(0.1 * math.expm1(1.0)))
    assert found.delta == pytest.approx(1e-7)
    choice = event("PermuteAndFlip", epsilon=1.0)
    sampled = process(event("PoissonSampled", sampling_probability=0.1, event=choice))
    assert sampled.epsilon == pytest.approx(found.epsilon) and sampled.delta == 0.0


def test_poisson_many_trials() -> None:
    found = process(event("RepeatAndSelect", event=GAUSS, mean=10, shape=math.inf))
    assert isinstance(found, PoissonSelection)
    assert found.trial_mu >= 1 / 1.5 and found.trial_mu == pytest.approx(1 / 1.5)


def test_trials_of_other_laws() -> None:
    found = process(event("RepeatAndSelect", event=GAUSS, mean=10, shape=0.0))
    assert isinstance(found, NegativeBinomialSelection)
    assert (found.shape, found.mean_trials) == (0.0, 10.0) and found.trial_mu >= 1 / 1.5
    alone = process(event("RepeatAndSelect", event=GAUSS, mean=1, shape=0.0))
    assert alone == process(GAUSS)


def test_a_mixture_of_gaussians_is_a_user_on_a_poisson_sample() -> None:
    mixture = event("MixtureOfGaussians", standard_deviation=2.0, sensitivities=[0, 2, 4],
                    sampling_probs=[0.9801, 0.0198, 0.0001])  # fmt: skip
    found = process(event("SelfComposed", event=mixture, count=10))
    assert isinstance(found, UserLevel) and found.records == 2
    run = UserLevel(NoisySGD(PoissonSampling(0.01), 1.0, 10), 2)
    exact = account(run).epsilon(1e-5)
    assert exact.lower <= account(found).epsilon(1e-5).upper <= exact.upper * (1 + 1e-10)
    one = event("MixtureOfGaussians", standard_deviation=1.0, sensitivities=[0, 1],
                sampling_probs=[0.9, 0.1])  # fmt: skip
    assert process(one).sampling.rate == pytest.approx(0.1, rel=1e-11)


@pytest.mark.parametrize(
    ("given", "relation", "told"),
    [
        (event("Unsupported"), "ADD_OR_REMOVE_ONE", "nothing is known"),
        (event("MixtureOfGaussians", standard_deviation=1, sensitivities=[0, 1, 3],
               sampling_probs=[0.25, 0.5, 0.25]), "REPLACE_ONE", "added, removed or zeroed"),
        (event("Composed", events=[GAUSS, event("MixtureOfGaussians", standard_deviation=1,
               sensitivities=[0, 1, 2], sampling_probs=[0.25, 0.5, 0.25])]),
         "ADD_OR_REMOVE_ONE", "different numbers"),
        (event("SampledWithReplacement", source_dataset_size=9, sample_size=3, event=GAUSS),
         "REPLACE_ONE", "without replacement"),
        (event("SampledWithoutReplacement", source_dataset_size=9, sample_size=3, event=GAUSS),
         "ADD_OR_REMOVE_ONE", "REPLACE_ONE"),
        (event("PoissonSampled", sampling_probability=0.1, event=event("EpsilonDelta",
               epsilon=1, delta=0)), "REPLACE_SPECIAL", "amplify"),
        (event("RandomizedResponse", noise_parameter=0.4, num_buckets=3), "ADD_OR_REMOVE_ONE",
         "replace-one"),
        (event("SingleEpochTreeAggregation", noise_multiplier=3.0, step_counts=8),
         "ADD_OR_REMOVE_ONE", "zero-out"),
        (event("PoissonSampled", sampling_probability=0.1, event=event("ZC", rho=1)),
         "REPLACE_ONE", "got ZCDpEvent"),
        (event("PoissonSampled", sampling_probability=0.1, event=POISSON), "ADD_OR_REMOVE_ONE",
         "got PoissonSampledDpEvent"),
        (event("PoissonSampled", sampling_probability=0.1, event=event("EpsilonDelta",
               epsilon=1, delta=0)), "REPLACE_ONE", "amplify"),
        (event("PoissonSampled", sampling_probability=0.1, event=event("NoOp")),
         "ADD_OR_REMOVE_ONE", "nothing inside"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_refused_with_a_way_out(given, relation, told) -> None:
    with pytest.raises(DoesNotApply, match=told):
        process(given, relation)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"noise_multiplier": 1.0}, "has its class with it"),
        (event("Gaussan", noise_multiplier=1.0), "Known are"),
        (event("Gaussian"), "missing: noise_multiplier"),
        (event("Gaussian", noise_multiplier=1.0, count=3), "unknown: count"),
        (event("Gaussian", noise_multiplier=-1.0), "noise_multiplier must be"),
        (event("SelfComposed", event=GAUSS, count=1.5), "whole number"),
        (event("PoissonSampled", sampling_probability=1.5, event=GAUSS), "sampling_probability"),
    ],
)
def test_a_broken_event_is_explained(given, told) -> None:
    with pytest.raises(InvalidInput, match=told):
        process(given)


def test_neighbours_are_those_of_the_file_or_those_that_were_told() -> None:
    assert "default" in read(GAUSS).notes[0]
    told = read(GAUSS, Setting(adjacency="replace-one"))
    assert told.process.adjacency.value == "replace-one"
    assert "four times too small" in told.suspects[0]
    said = {"dp_event": GAUSS, "neighboring_relation": "ADD_OR_REMOVE_ONE"}
    with pytest.raises(InvalidInput, match="leave out --adjacency"):
        read(said, Setting(adjacency="replace-one"))
    with pytest.raises(InvalidInput, match="neighboring_relation must be"):
        read({"dp_event": GAUSS, "neighboring_relation": "REPLACE"})
    with pytest.raises(InvalidInput, match="leave out --sampling"):
        read(GAUSS, Setting(sampling="shuffled"))


# --- forms ----------------------------------------------------------------------------------------
class GaussianDpEvent:
    def __init__(self, noise_multiplier):
        self.noise_multiplier = noise_multiplier


class SelfComposedDpEvent:
    def __init__(self, event, count):
        self.event, self.count = event, count


Wrapper = namedtuple("Wrapper", ["module_name", "class_name", "noise_multiplier"])
Outer = namedtuple("Outer", ["module_name", "class_name", "event", "count"])
NAMED = Outer("dp_accounting.dp_event", "SelfComposedDpEvent",
              Wrapper("dp_accounting.dp_event", b"GaussianDpEvent", 1.5), 3)  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        SelfComposedDpEvent(GaussianDpEvent(1.5), 3),
        NAMED,
        ["dp_accounting.dp_event", "SelfComposedDpEvent", ["m", "GaussianDpEvent", 1.5], 3],
        event("SelfComposed", module_name="dp_accounting.dp_event", event=GAUSS, count=3),
    ],
)
def test_every_form_of_an_event_is_read(given) -> None:
    assert read(given).process == Repeated(GaussianMechanism(1.5), 3)


def test_a_live_accountant_brings_its_ledger_and_its_neighbours() -> None:
    relation = SimpleNamespace(name="REPLACE_ONE")
    accountant = SimpleNamespace(ledger=GaussianDpEvent(1.5), neighboring_relation=relation)
    assert read(accountant).process == GaussianMechanism(0.75, "replace-one")


# --- and back -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "given",
    [
        NoisySGD(PoissonSampling(0.01), 1.1, 10),
        NoisySGD(PoissonSampling(0.01), 1.1, 1, "replace-one"),
        NoisySGD(FullBatch(), 1.1, 10, "replace-one"),
        NoisySGD(FixedSizeSampling(256 / 60000), 1.1, 10, "replace-one"),
        NoisySGD(FixedSizeSampling(0.1234567890123456), 1.1, 10, "replace-one"),
        NoisySGD(BallsInBinsSampling(10), 1.0, 50),
        NoisySGD(RandomAllocationSampling(10, 3), 1.0, 50),
        NoisySGD(TruncatedPoissonSampling(0.1, 30, 200), 1.0, 50),
        SampledRelease(LaplaceMechanism(2.0), 0.1, "replace-one"),
        SampledRelease(DiscreteGaussianMechanism(2.0, 1), 0.1),
        Repeated(SampledRelease(DiscreteLaplaceMechanism(0.5, 2), 0.1), 3),
        DiscreteLaplaceMechanism(0.5, 2, "replace-one"),
        DiscreteGaussianVector(2.0, 1.5, 4),
        ExponentialMechanism(0.5),
        PermuteAndFlip(0.5, "replace-one"),
        DeclaredZeroConcentrated(0.1, xi=0.2),
        Sequence((NoisySGD(PoissonSampling(0.01), 1.1, 1), GaussianMechanism(2.0))),
        Repeated(NoisySGD(PoissonSampling(0.01), 1.1, 1), 4),
        Repeated(Repeated(LaplaceMechanism(0.3), 2), 4),
        NoiseSchedule(PoissonSampling(0.1), (1.0, 2.0, 1.0)),
        NoiseSchedule(PoissonSampling(0.1), (1.0, 2.0, 1.0), "zero-out"),
        NoisySGD(FixedSizeSampling(0.25), 1.1, 10, "zero-out"),
        NoisySGD(TruncatedPoissonSampling(0.1, 30, 200), 1.0, 50, "zero-out"),
        TreeAggregation(3.0, 8, "zero-out"),
        DiscreteGaussianMechanism(2.0, 3),
        DiscreteGaussianMechanism(2.0, 4, "replace-one"),
        DiscreteGaussianVector(2.0, 1.5, 4, "replace-one"),
        DeclaredApproxDP(1.0, 1e-6, "replace-one"),
        DeclaredZeroConcentrated(0.1),
        RandomizedResponse(0.3, 4),
        RandomizedResponse(0.3, 4, "zero-out"),
        Repeated(MixtureOfGaussians(2.0, (0.0, 1.0, 3.0), (0.25, 0.5, 0.25)), 3),
        SampledRelease(DeclaredZeroConcentrated(0.1, xi=0.2), 0.3),
        RepeatAndSelect(LaplaceMechanism(2.0), 3.0),
        RepeatAndSelect(NoisySGD(PoissonSampling(0.1), 2.0, 5), 3.0, 0.5),
        GaussianMechanism(1.3, "replace-one"),
        LaplaceMechanism(0.7, "replace-one"),
    ],
)
def test_a_process_comes_back_without_change(given) -> None:
    written = json.loads(json.dumps(to_dp_event(given)))
    assert process(written, str(given.adjacency).replace("-", "_").upper()) == given


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (NoisySGD(ShuffledSampling(10), 1.0, 10), "no event for ShuffledSampling"),
        (NoisySGD(BallsInBinsSampling(10), 1.0, 15), "part of an epoch"),
        (PoissonSelection(1.0, 3.0), "no event for PoissonSelection"),
        (TreeAggregation(3.0, 8), "zero-out neighbours only"),
        (DiscreteGaussianMechanism(2.0, 3, "replace-one"), "half of that"),
    ],
)
def test_what_has_no_event_is_refused(given, told) -> None:
    with pytest.raises(DoesNotApply, match=told):
        to_dp_event(given)


def test_live_events_are_made_by_the_module_that_is_handed_over() -> None:
    module = SimpleNamespace(
        SelfComposedDpEvent=lambda event, count: SelfComposedDpEvent(event, count),
        PoissonSampledDpEvent=lambda sampling_probability, event: (sampling_probability, event),
        GaussianDpEvent=GaussianDpEvent,
    )
    made = to_dp_event(NoisySGD(PoissonSampling(0.01), 1.1, 10), module)
    assert made.count == 10 and made.event[0] == 0.01 and made.event[1].noise_multiplier == 1.1
    with pytest.raises(DoesNotApply, match="has no LaplaceDpEvent"):
        to_dp_event(LaplaceMechanism(1.0), module)


def test_the_real_library_agrees_about_its_events() -> None:
    dp_accounting = pytest.importorskip("dp_accounting", reason="dp_accounting is not installed")
    run = NoisySGD(PoissonSampling(0.01), 1.1, 10)
    live = to_dp_event(run, dp_accounting.dp_event)
    assert read(live).process == run
    assert read(live.to_named_tuple()).process == run
    names = {n for n in dir(dp_accounting.dp_event) if n.endswith("DpEvent") and n != "DpEvent"}
    assert names <= set(FIELDS)
    for name in names:
        import attr

        theirs = tuple(f.name for f in attr.fields(getattr(dp_accounting.dp_event, name)))
        assert theirs == FIELDS[name]
    accountant = dp_accounting.pld.PLDAccountant().compose(live)
    assert account(read(accountant).process).epsilon(1e-5).upper <= accountant.get_epsilon(1e-5)
