"""Attacks on real runs of tightrope.train: honest ones hold, planted leaks are found."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tightrope import account
from tightrope.audit import (
    audit_folder,
    audit_inputs,
    audit_training,
    input_canaries,
    planted,
)
from tightrope.errors import InvalidInput
from tightrope.process import Adjacency
from tightrope.train import (
    FixedSizeSampler,
    FlatClip,
    FullBatchSampler,
    GaussianNoise,
    PerLayerClip,
    PoissonSampler,
    PrivateRun,
    noisy_sgd,
)
from tightrope.train.clip import Clip

torch.set_num_threads(1)  # two test processes share two cores
DELTA = 1e-5
RECORDS, WIDTH, STEPS = 64, 400, 20


def data(seed: int = 0, records: int = RECORDS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(records, WIDTH, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def losses(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


def loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return losses(model(inputs), labels)


def private_run(**changed: Any) -> PrivateRun:
    torch.manual_seed(0)
    parts: dict[str, Any] = {
        "sampler": PoissonSampler(0.5, seed=1),
        "clip": FlatClip(1.0),
        "noise": GaussianNoise(1.0, seed=2),
        "expected_batch_size": RECORDS / 2,
        "steps": STEPS,
    } | changed
    return noisy_sgd(nn.Linear(WIDTH, 2), data(), loss, learning_rate=0.1, **parts)  # type: ignore[no-any-return]


def train(run: PrivateRun, steps: int = STEPS) -> None:
    for _ in range(steps):
        run.take_step()


def audited(run: PrivateRun, canaries: int = 400) -> Any:
    return audit_training(run, train, delta=DELTA, canaries=canaries, seed=3)


def claimed(run: PrivateRun) -> float:
    return run.claim(DELTA).upper


# ---- honest runs
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"clip": PerLayerClip(1.0)},
        {"sampler": FullBatchSampler(adjacency=Adjacency.ADD_OR_REMOVE)},
        {"sampler": FullBatchSampler(adjacency=Adjacency.REPLACE_ONE)},
    ],
    ids=["sgd", "per layer", "full batch", "replace-one"],
)
def test_honest_runs_stay_below_their_claim_and_are_not_trivial(changed: dict[str, Any]) -> None:
    run = private_run(**changed)
    found = audited(run)
    assert 0.3 < found.epsilon_lower < claimed(run)
    assert found.canaries == 400 and found.roc[0] == (0.0, 0.0) and found.roc[-1] == (1.0, 1.0)


def test_the_run_gets_its_own_noise_back() -> None:
    run = private_run()
    noise = run.noise
    with planted(run, 10, seed=0) as canaries:
        assert run.noise is canaries and "10 audit canaries" in run.record().noise
        train(run, 2)
    assert run.noise is noise


def test_a_canary_moves_the_sum_by_exactly_the_sensitivity() -> None:
    run = private_run(noise=GaussianNoise(0.0), clip=FlatClip(0.5))
    with planted(run, 50, seed=0) as canaries:
        canaries.rate = 1.0
        sums = [torch.zeros_like(p) for p in run.parameters]
        canaries.add_(sums, 0.5)
    moved = sum(float(s.square().sum()) for s in sums)  # orthogonal: squares add up
    assert moved == pytest.approx(0.25 * canaries.included.sum(), rel=1e-3)


# ---- planted leaks
class Leak:
    """A noise that says one thing and does another."""

    private, description, splits_over_ranks = True, "says it is Gaussian", True

    def __init__(self, scale: float, repeat: bool = False) -> None:
        self.noise_multiplier, self._scale, self._repeat = 8.0, 8.0 * scale, repeat

    def add_(self, sums: Sequence[Tensor], sensitivity: float) -> None:
        generator = torch.Generator().manual_seed(7) if self._repeat else None
        for total in sums:
            noise = torch.randn(total.shape, generator=generator)
            total.add_(noise, alpha=self._scale * sensitivity)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


class WrongClip(Clip):
    """Promises norm 1 and lets twenty times that through."""

    @property
    def sensitivity(self) -> float:
        return 1.0

    def factors(self, squared_norms: Tensor) -> Tensor:
        return 20.0 / squared_norms.sum(0, keepdim=True).sqrt().clamp_min(20.0)


LEAKS: dict[str, dict[str, Any]] = {
    "noise off": {"noise": Leak(0.0)},
    "noise scaled by the batch size": {"noise": Leak(1.0 / (RECORDS / 2))},
    "same noise reused": {"noise": Leak(1.0, repeat=True)},
    "wrong clip": {"clip": WrongClip()},
}


@pytest.mark.parametrize("leak", LEAKS)
def test_planted_leaks_exceed_the_claimed_epsilon(leak: str) -> None:
    """A claim of epsilon about 2.5, so that 400 canaries can refute it."""
    noise = GaussianNoise(8.0, seed=2)
    run = private_run(**({"noise": noise} | LEAKS[leak]))
    found = audited(run)
    assert found.epsilon_lower > claimed(run), (found.epsilon_lower, claimed(run))


# ---- input canaries
def train_on(noise: float) -> Any:
    def fit(dataset: tuple[Tensor, Tensor]) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Linear(WIDTH, 2)
        run = noisy_sgd(
            model,
            dataset,
            loss,
            steps=30,
            learning_rate=1.0,
            sampler=PoissonSampler(0.5, seed=1),
            clip=FlatClip(1.0),
            noise=GaussianNoise(noise, seed=2),
            expected_batch_size=RECORDS / 2,
        )
        list(run)
        return model

    return fit


@pytest.mark.parametrize(
    ("kind", "adjacency"),
    [("mislabelled", Adjacency.REPLACE_ONE), ("random", Adjacency.ADD_OR_REMOVE)],
)
def test_input_canaries_find_a_run_without_noise(kind: Any, adjacency: Adjacency) -> None:
    canaries = input_canaries(*data(1, 100), 100, kind=kind, classes=2, seed=4)
    torch.manual_seed(0)
    found = audit_inputs(
        data(),
        canaries,
        train_on(noise=0.0),
        losses,
        delta=DELTA,
        start=nn.Linear(WIDTH, 2),
        adjacency=adjacency,
        seed=5,
    )
    assert found.epsilon_lower > 1.5


def test_input_canaries_against_much_noise_prove_little() -> None:
    canaries = input_canaries(*data(1, 100), 100, classes=2, seed=4)
    found = audit_inputs(data(), canaries, train_on(noise=50.0), losses, delta=DELTA, seed=5)
    assert found.epsilon_lower < 0.5 and found.attack == "losses of input canaries"


def test_states_of_an_input_canary() -> None:
    canaries = input_canaries(*data(), 6, classes=2, seed=0)
    assert not torch.equal(canaries.labels, canaries.other_labels)
    coins = np.array([True, False, False, True, False, False])
    base = (torch.zeros(1, WIDTH), torch.zeros(1, dtype=torch.long))
    added, _ = canaries.mixed_into(base, coins, Adjacency.ADD_OR_REMOVE)
    replaced, labels = canaries.mixed_into(base, coins, Adjacency.REPLACE_ONE)
    assert len(added) == 3 and len(replaced) == 7
    assert torch.equal(labels[1:] == canaries.labels, torch.from_numpy(coins))


# ---- the folder
def test_an_audit_in_a_run_folder_is_computed_again(tmp_path: Path) -> None:
    run = private_run(noise=GaussianNoise(4.0, seed=2))
    with planted(run, 100, seed=3) as canaries:
        train(run)
    direct = canaries.audit(delta=DELTA)
    canaries.save(tmp_path, run.process, delta=DELTA)
    stored = audit_folder(tmp_path)
    assert stored.audit == direct
    assert stored.claimed_epsilon == account(run.process).epsilon(DELTA).upper <= claimed(run)
    assert stored.audit.epsilon_lower <= stored.claimed_epsilon and not stored.contradicted


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "tightrope.audit/1"}'])
def test_damaged_audits_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "audit.json").write_text(text)
    with pytest.raises(InvalidInput, match="audit"):
        audit_folder(tmp_path)
    with pytest.raises(InvalidInput, match="Train with canaries"):
        audit_folder(tmp_path / "nowhere")


# ---- refusals
def test_samplers_that_draw_fixed_sizes_need_input_canaries() -> None:
    run = private_run(sampler=FixedSizeSampler(batch_size=8, population=RECORDS))
    with pytest.raises(InvalidInput, match="input canaries"), planted(run):
        pass


def test_canaries_come_before_the_first_step() -> None:
    run = private_run()
    train(run, 1)
    with pytest.raises(InvalidInput, match="before the first step"), planted(run):
        pass
    with pytest.raises(InvalidInput, match="No step"), planted(private_run(), 5) as canaries:
        canaries.scores()
