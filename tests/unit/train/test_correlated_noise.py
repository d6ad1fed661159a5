"""Runs with correlated noise: the covariance of what is released, and what a run refuses.

The runs of `released` learn nothing: all gradients are 0, so that the weights move by noise alone.
C times the noise of all steps must be independent draws. Its Gram matrix over the coordinates is
compared entry by entry; all entries together accuse sound noise with a chance of 1e-6.
"""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from tightrope.correlated import (
    BandedToeplitz,
    BufferedToeplitz,
    SquareRoot,
    Triangular,
    banded_inverse_square_root,
    previous_step,
    square_root,
)
from tightrope.errors import BudgetExceeded, DoesNotApply, InvalidInput, ModelNotPrivate
from tightrope.evidence.verify import holds, verify
from tightrope.ledger import Terms, Total, create_ledger, open_ledger
from tightrope.process import Adjacency, CorrelatedSGD, CyclicPoissonSampling, CyclicSampling
from tightrope.train import (
    AdaptiveClip,
    Budget,
    CorrelatedNoise,
    CyclicPoissonSampler,
    CyclicSampler,
    GaussianNoise,
    PoissonSampler,
    SeparatedSampler,
    check_run,
    private,
)

STEPS, NOISE, WIDTH = 9, 2.0, 30_000
FALSE_ALARM = 1e-6
STRATEGIES = [
    square_root(1),
    square_root(4),
    SquareRoot(),
    banded_inverse_square_root(4),
    previous_step(0.9),
    BufferedToeplitz((0.3, 0.2), (0.9, 0.5)),
    Triangular(tuple((1.0 + j, 0.5, 0.2 * j)[: STEPS - j] for j in range(STEPS))),
]
EVERY = pytest.mark.parametrize("strategy", STRATEGIES, ids=str)


def nothing(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) * 0.0).sum(1)


def learner(noise: CorrelatedNoise, dtype: torch.dtype = torch.float32, **parts):
    model = nn.Linear(10, WIDTH // 10, dtype=dtype, bias=False)
    settings = {"records": 40, "batch_size": 10, "steps": STEPS, "delta": 1e-5} | parts
    sampler = settings.pop("sampler", None) or CyclicSampler(4)
    return private(
        model, torch.optim.SGD(model.parameters(), lr=1.0), torch.ones(40, 10, dtype=dtype),
        nothing, sampler=sampler, noise=noise, arithmetic="uncovered", **settings,
    )  # fmt: skip


def released(run, steps: int) -> np.ndarray:
    """The noise of the next steps on the sum, in clip norms."""
    rows = []
    for _ in range(steps):
        before = run.model.weight.detach().double().clone()
        run.take_step()
        moved = (before - run.model.weight.detach().double()).reshape(-1)
        rows.append(moved.numpy() * run.expected_batch_size)
    return np.array(rows)


def assert_independent(draws: np.ndarray) -> None:
    """Rows of standard normal numbers? By the largest entry of their Gram matrix."""
    steps, width = draws.shape
    gram = draws @ draws.T
    pairs = gram[np.triu_indices(steps, 1)] / np.sqrt(width)
    lengths = stats.chi2.sf(np.diag(gram), width)
    chances = [2.0 * stats.norm.sf(np.abs(pairs)), 2.0 * np.minimum(lengths, 1.0 - lengths)]
    # the product of two normals has heavier tails than one: 3 times what the limit would allow
    assert np.concatenate(chances).min() > FALSE_ALARM / (3.0 * steps**2)


@EVERY
def test_what_a_run_releases_has_the_stated_covariance(strategy) -> None:
    run = learner(CorrelatedNoise(strategy, NOISE), micro_batch=3)
    assert_independent(strategy.matrix(STEPS) @ released(run, STEPS) / NOISE)
    assert run.process == CorrelatedSGD(
        strategy, CyclicSampling(4), NOISE, STEPS, Adjacency.REPLACE_ONE
    )
    assert run.finished and run.record().private


@pytest.mark.parametrize("strategy", [previous_step(0.9), banded_inverse_square_root(4)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_draws_that_are_made_again_are_the_same(strategy, dtype) -> None:
    run = learner(CorrelatedNoise(strategy, NOISE, replay=True), dtype)
    noise = released(run, STEPS)
    assert_independent(strategy.matrix(STEPS) @ noise / NOISE)
    assert not any("buffers" in name for name in run.noise.kept())


def test_an_adaptive_clip_scales_what_is_taken_back() -> None:
    strategy = square_root(4)
    clip = AdaptiveClip(1.0)
    run = learner(CorrelatedNoise(strategy, NOISE), clip=clip)
    rows = []
    for _ in range(STEPS):
        scale = float(clip.sensitivity)
        rows.append(released(run, 1)[0] / scale)
    assert len({float(np.std(row)) for row in rows}) == STEPS
    assert_independent(strategy.matrix(STEPS) @ np.array(rows) / NOISE)


# ---- a run folder --------------------------------------------------------------------------------
def without_lost(strategy, lost: slice) -> np.ndarray:
    """C, from which later rows leave out the lost columns."""
    matrix = strategy.matrix(STEPS).copy()
    matrix[lost.stop :, lost] = 0.0
    return matrix


@pytest.mark.parametrize(
    ("strategy", "replay"),
    [
        (STRATEGIES[1], False),
        (STRATEGIES[3], False),
        (STRATEGIES[3], True),
        (STRATEGIES[4], True),
        (STRATEGIES[5], False),
        (STRATEGIES[6], False),
    ],
    ids=str,
)
def test_a_resumed_run_goes_on_with_its_noise(strategy, replay, tmp_path) -> None:
    def made():
        return learner(CorrelatedNoise(strategy, NOISE, replay=replay), folder=tmp_path)

    run = made()
    first = released(run, 4)
    run.folder.save()
    lost = released(run, 2)  # and then the program ends
    run.folder.close()
    run = made()
    assert run.steps == 6
    later = released(run, STEPS - 6)
    matrix = without_lost(strategy, slice(4, 6))
    assert_independent(matrix @ np.concatenate([first, lost, later]) / NOISE)
    whole = strategy.matrix(STEPS)
    assert (matrix.T @ matrix <= whole.T @ whole + 1e-12).all()
    run.folder.save()
    assert run.finished and not run.noise.kept()  # nothing secret is left in the folder


def test_nothing_is_lost_where_every_step_is_stored(tmp_path) -> None:
    strategy = BandedToeplitz((1.0, 0.8, -0.3))

    def made(**how):
        return learner(CorrelatedNoise(strategy, NOISE), folder=tmp_path, **how)

    run = made(save_every=1)
    first = released(run, 4)
    run.folder.close()
    run = made(save_every=100)
    both = np.concatenate([first, released(run, 3)])
    assert_independent((strategy.matrix(STEPS) @ np.pad(both, ((0, 2), (0, 0))))[:7] / NOISE)
    run.folder.close()
    with pytest.raises(InvalidInput, match="negative entries"):  # of steps that were not stored
        made()


def test_another_strategy_on_resume_is_refused(tmp_path) -> None:
    run = learner(CorrelatedNoise(square_root(4), NOISE), folder=tmp_path)
    released(run, 2)
    run.folder.save()
    run.folder.close()
    for noise in (CorrelatedNoise(square_root(3), NOISE), GaussianNoise(NOISE)):
        with pytest.raises(InvalidInput, match="strategy: stored 'Toeplitz, 4 bands"):
            learner(noise, folder=tmp_path)
    for part in tmp_path.glob("step-*/noise.safetensors"):
        part.unlink()
    with pytest.raises(InvalidInput, match="damaged"):
        learner(CorrelatedNoise(square_root(4), NOISE), folder=tmp_path)


def test_a_seeded_run_is_continued_bit_for_bit(tmp_path) -> None:
    def made(replay, **how):
        noise = CorrelatedNoise(previous_step(0.9), NOISE, seed=3, replay=replay)
        torch.manual_seed(0)
        return learner(noise, sampler=CyclicPoissonSampler(0.5, 9, seed=1), **how)

    for replay in (False, True):
        wanted = released(made(replay), STEPS)
        run = made(replay, folder=tmp_path / str(replay))
        first = released(run, 3)
        run.folder.save()
        released(run, 2)
        run.folder.close()
        run = made(replay, folder=tmp_path / str(replay))
        assert run.steps == 3
        assert np.array_equal(np.concatenate([first, released(run, STEPS - 3)]), wanted)
        assert not run.record().private


# ---- what fits what ------------------------------------------------------------------------------
def test_the_least_noise_for_a_budget_is_found() -> None:
    sampler = CyclicPoissonSampler(0.5, 4)
    run = learner(CorrelatedNoise(square_root(4)), sampler=sampler, epsilon=3.0)
    assert 2.999 < run.epsilon(steps=STEPS).upper <= 3.0
    assert run.process == CorrelatedSGD(
        square_root(4), CyclicPoissonSampling(0.5, 4), run.noise.noise_multiplier, 0
    )
    half = learner(
        CorrelatedNoise(square_root(4), run.noise.noise_multiplier),
        sampler=CyclicPoissonSampler(0.5, 4), epsilon=2.0,
    )  # fmt: skip
    allowed = half.ledger.steps_allowed
    assert 0 < allowed < STEPS and half.epsilon(steps=allowed).upper <= 2.0
    list(half)
    with pytest.raises(BudgetExceeded):
        half.take_step()


def test_independent_noise_on_batches_that_keep_apart_is_accounted_as_such() -> None:
    run = learner(GaussianNoise(NOISE), sampler=CyclicPoissonSampler(0.5, 4))
    assert run.process.strategy == square_root(1)


def test_a_ledger_counts_the_whole_run(tmp_path) -> None:
    ledger = create_ledger(tmp_path / "ledger.db")
    ledger.add(Terms("data", Total(epsilon=5.0, delta=1e-5)))
    budget = Budget(ledger=ledger, dataset="data")
    run = learner(
        CorrelatedNoise(square_root(4), NOISE), sampler=CyclicPoissonSampler(0.5, 4), budget=budget
    )
    list(run)
    (entry,) = open_ledger(tmp_path / "ledger.db").book("data").reservations.values()
    assert entry.settled == STEPS and entry.process == run.process


def test_noise_belongs_to_one_run_and_its_steps() -> None:
    noise = CorrelatedNoise(square_root(4), NOISE)
    with pytest.raises(InvalidInput, match="by its run only"):
        noise.add_([torch.zeros(3)], 1.0)
    run = learner(noise)
    released(run, 1)
    with pytest.raises(InvalidInput, match="by its run only"):
        noise.add_([torch.zeros(3)], 1.0)
    with pytest.raises(InvalidInput, match="another run"):
        learner(noise)
    with pytest.raises(InvalidInput, match="cannot be copied"):
        copy.deepcopy(noise)
    run.noise = CorrelatedNoise(square_root(4), NOISE)
    with pytest.raises(ModelNotPrivate, match="exchanged"):
        run.take_step()


def test_a_step_that_ends_in_the_middle_of_its_noise_is_the_last(monkeypatch) -> None:
    run = learner(CorrelatedNoise(square_root(4), NOISE))
    released(run, 1)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tightrope.train.correlated_noise.unpack", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.take_step()
    with pytest.raises(ModelNotPrivate, match="in the middle of its noise"):
        run.take_step()
    assert run.steps == 2  # it counts


def four_bands() -> CorrelatedNoise:
    return CorrelatedNoise(square_root(4), NOISE)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CorrelatedNoise("white"), "must be one of tightrope.correlated"),
        (lambda: CorrelatedNoise(square_root(3), replay=True), "not a short sum of draws"),
        (lambda: CorrelatedNoise(square_root(3)).noise_multiplier, "is not known"),
        (lambda: CorrelatedNoise(square_root(3), -1.0), "noise_multiplier"),
        (lambda: SeparatedSampler(0.5, 3, 4), "at most 1/3"),
        (lambda: learner(CorrelatedNoise(BandedToeplitz((1.0, 3.0)), 1.0)), "badly scaled"),
        (
            lambda: learner(CorrelatedNoise(Triangular(((1.0, 0.5), (1.0,))), 1.0)),
            "made for at most 2 steps",
        ),
        (lambda: learner(four_bands(), sampler=PoissonSampler(0.25)), "Use CyclicSampling"),
        (lambda: learner(four_bands(), sampler=CyclicPoissonSampler(0.5, 3)), "a cycle of 3"),
        (lambda: learner(four_bands(), steps=None), "Say steps= or epochs="),
        (lambda: check_run(learner(four_bands())), "depend on each other"),
    ],
)
def test_what_does_not_fit_is_refused(make, words: str) -> None:
    with pytest.raises((InvalidInput, DoesNotApply), match=words):
        make()


def test_a_certificate_carries_the_strategy(tmp_path) -> None:
    run = learner(
        CorrelatedNoise(square_root(4)), sampler=CyclicPoissonSampler(0.5, 4), epsilon=3.0,
        folder=tmp_path,
    )  # fmt: skip
    list(run)
    certificate = json.loads((tmp_path / "certificate.json").read_text())
    assert "Toeplitz, 4 bands" in certificate["run"]["noise"]
    run.folder.close()
    assert holds(verify(certificate, folder=tmp_path))
