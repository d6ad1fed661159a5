from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tightrope.errors import AdjacencyMismatch, InvalidInput
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    CyclicSampling,
    DeclaredApproxDP,
    DeclaredRenyi,
    FixedSizeSampling,
    FullBatch,
    GaussianMechanism,
    LaplaceMechanism,
    NoisySGD,
    PoissonSampling,
    Repeated,
    Sequence,
    ShuffledSampling,
    parts_of,
)
from tightrope.process.codec import from_json, to_json
from tightrope.process.convex import ConvexLoss, CyclicSGD
from tightrope.process.training import (
    langevin_std,
    noise_std_from_langevin,
    noise_std_from_multiplier,
    noise_std_from_relative,
)
from tightrope.theorems.last_iterate.steps import step_mu

SAMPLINGS = [
    PoissonSampling(0.25),
    FixedSizeSampling(0.25),
    ShuffledSampling(4),
    CyclicSampling(4),
    BallsInBinsSampling(4),
    FullBatch(),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_rate_is_the_chance_of_one_record(sampling) -> None:
    assert sampling.rate == (1.0 if isinstance(sampling, FullBatch) else 0.25)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("relation", list(Adjacency))
def test_a_process_survives_json(sampling, relation) -> None:
    run = NoisySGD(sampling, 1.1, 10, relation)
    process = Sequence((run, Repeated(GaussianMechanism(2.0, relation), 3)))
    assert from_json(to_json(process)) == process


def test_json_knows_only_processes() -> None:
    with pytest.raises(InvalidInput, match="Unknown process type"):
        from_json({"type": "os.system", "command": "true"})
    with pytest.raises(InvalidInput):
        from_json({"type": "PoissonSampling", "rate": 2})
    with pytest.raises(InvalidInput):
        from_json({"type": "PoissonSampling", "speed": 2})


@given(st.integers(0, 5), st.integers(0, 5), st.integers(1, 7))
def test_counts_multiply_and_add(first: int, second: int, steps: int) -> None:
    run = NoisySGD(PoissonSampling(0.1), 1.0, steps)
    process = Sequence((Repeated(run, first), Repeated(Repeated(run, second), 2)))
    total = sum(parts_of(process).values())
    assert total == steps * (first + 2 * second)


def test_half_epochs_are_not_merged() -> None:
    half = NoisySGD(CyclicSampling(10), 1.0, 5)
    assert parts_of(Sequence((half, half))) == {half: 2}


def test_mixed_neighbours_are_refused_by_name() -> None:
    with pytest.raises(AdjacencyMismatch, match="add-or-remove and replace-one"):
        Sequence((GaussianMechanism(1.0), GaussianMechanism(1.0, Adjacency.REPLACE_ONE)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: PoissonSampling(1.5),
        lambda: PoissonSampling(float("nan")),
        lambda: CyclicSampling(0),
        lambda: CyclicSampling(2.5),
        lambda: NoisySGD(PoissonSampling(0.1), -1.0, 10),
        lambda: NoisySGD(PoissonSampling(0.1), 1.0, 1.5),
        lambda: LaplaceMechanism(-1.0),
        lambda: DeclaredApproxDP(-1.0),
        lambda: DeclaredApproxDP(1.0, 2.0),
        lambda: DeclaredRenyi((2.0,), ()),
        lambda: DeclaredRenyi((1.0,), (0.1,)),
        lambda: Sequence(()),
        lambda: Repeated(GaussianMechanism(1.0), -1),
    ],
)
def test_impossible_processes_cannot_be_written(make) -> None:
    with pytest.raises(InvalidInput):
        make()


def test_replacing_moves_the_sum_twice_as_far() -> None:
    run = NoisySGD(PoissonSampling(0.1), 2.0, 1)
    assert run.step_mu == 0.5
    assert NoisySGD(PoissonSampling(0.1), 2.0, 1, Adjacency.REPLACE_ONE).step_mu == 1.0


def test_noise_of_the_papers_conventions_makes_the_step_that_they_say() -> None:
    """Replacing a record moves the sum of gradients by 2 L, so noise 2 sigma L is 1/sigma-GDP."""

    def mu(noise_std: float) -> float:
        loss = ConvexLoss(0.7, 1.0)
        run = CyclicSGD(
            loss=loss, step_size=0.3, noise_std=noise_std, batch_size=8, batches_per_epoch=5
        )
        return step_mu(run)

    assert mu(noise_std_from_relative(1.5, 2 * 0.7, 8)) == pytest.approx(1 / 1.5)
    assert mu(noise_std_from_multiplier(1.5, 0.7, 8)) == pytest.approx(2 / 1.5)


def test_langevin_noise_and_gradient_noise_move_the_iterate_alike() -> None:
    """(6) of the survey: sqrt(2 eta) s on the iterate is eta times the noise on the gradient."""
    noise = noise_std_from_langevin(0.4, 0.1)
    assert 0.1 * noise == pytest.approx((2 * 0.1) ** 0.5 * 0.4)
    assert langevin_std(noise, 0.1) == pytest.approx(0.4)
    assert langevin_std(noise, 0.1) ** 2 == pytest.approx(0.1 * noise**2 / 2)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: NoisySGD(0.1, 1.0, 10), "PoissonSampling"),
        (lambda: NoisySGD(PoissonSampling, 1.0, 10), "how batches are drawn"),
        (lambda: PoissonSampling([0.1, 0.2]), "one number; got 2"),
        (lambda: NoisySGD(PoissonSampling(0.1), [1.0, 2.0], 10), "NoiseSchedule"),
        (lambda: GaussianMechanism([1.0, 2.0]), "one number; got 2"),
        (lambda: NoisySGD(PoissonSampling(0.1), 1.0, 10, "neighbours"), "Adjacency.REPLACE_ONE"),
        (lambda: Sequence((GaussianMechanism(1.0), 3)), "got 3"),
        (lambda: Repeated(3, 2), "got 3"),
    ],
)
def test_what_is_no_process_is_refused(make, told) -> None:
    with pytest.raises(InvalidInput, match=told):
        make()


def test_neighbours_may_be_named_and_counts_may_be_large() -> None:
    named = NoisySGD(PoissonSampling(0.1), 1.0, 10**18 + 1, "replace-one")
    assert named.adjacency is Adjacency.REPLACE_ONE
    assert named.steps == 10**18 + 1
    assert Sequence(named).parts == (named,)
