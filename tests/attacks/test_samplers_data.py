"""Samplers in two runs, records that join twice, and data that change under a run."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tightrope.errors import InvalidInput, ModelNotPrivate, TightropeError
from tightrope.evidence.verify import holds, verify
from tightrope.train import (
    BallsInBinsSampler,
    CyclicSampler,
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    PrivateRun,
    ShuffledSampler,
)

EPOCH = 4
EPOCHS = [ShuffledSampler, CyclicSampler, BallsInBinsSampler]


def squares(model: nn.Module, x: Tensor, *_: Tensor) -> Tensor:
    return model(x).square().sum(dim=1)


def make_data(rows: int = 40) -> Tensor:
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(1))


def make_run(sampler: Any = None, data: Any = None, **more: Any) -> Any:
    model = nn.Linear(3, 1)
    settings: dict[str, Any] = {"clip": FlatClip(1.0), "noise": GaussianNoise(1.0), "steps": 100}
    return PrivateRun(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        make_data() if data is None else data,
        squares,
        sampler=PoissonSampler(0.5) if sampler is None else sampler,
        **({"expected_batch_size": 10} | settings | more),
    )


def take(run: Any, steps: int) -> None:
    for _ in range(steps):
        run.take_step()


# ---- a sampler belongs to one run ----------------------------------------------------------------
@pytest.mark.parametrize("kind", [*EPOCHS, lambda b: PoissonSampler(1 / b)])
def test_a_sampler_or_its_copy_serves_one_run_only(kind: Any) -> None:
    sampler = kind(EPOCH)
    first = make_run(sampler)
    take(first, 2)
    for again in (lambda s: s, copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))):
        try:
            copied = again(sampler)
        except TightropeError:
            continue  # a copy that cannot be made does no harm
        with pytest.raises(InvalidInput, match="belongs to one run"):
            make_run(copied)
    del first
    with pytest.raises(InvalidInput, match="belongs to one run"):
        make_run(sampler)


@pytest.mark.parametrize("kind", EPOCHS)
def test_a_sampler_in_the_middle_of_an_epoch_starts_no_run(kind: Any) -> None:
    sampler = kind(EPOCH)
    sampler.draw(40)
    with pytest.raises(InvalidInput, match="used before"):
        make_run(sampler)


def test_a_run_that_could_not_be_made_leaves_its_sampler_free() -> None:
    sampler = PoissonSampler(0.5)
    with pytest.raises(InvalidInput):
        make_run(sampler, expected_batch_size=-1)
    make_run(sampler)


@pytest.mark.parametrize("kind", EPOCHS)
def test_an_exchanged_sampler_is_refused_even_with_the_same_parameters(kind: Any) -> None:
    run = make_run(kind(EPOCH))
    take(run, 2)
    run.sampler = kind(EPOCH)
    with pytest.raises(ModelNotPrivate, match="exchanged"):
        take(run, 1)


# ---- within one epoch no record joins twice ------------------------------------------------------
class Seen:
    """Items of a data set that write down which of them were asked for."""

    def __init__(self, data: Tensor) -> None:
        self.data, self.asked = data, list[int]()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> Tensor:
        self.asked.append(i)
        return self.data[i]


@pytest.mark.parametrize("kind", EPOCHS)
def test_every_record_joins_once_an_epoch_also_after_loops_that_were_left(kind: Any) -> None:
    seen = Seen(make_data())
    run = make_run(kind(EPOCH), data=seen)
    seen.asked.clear()
    for step in run:
        if step.number in (1, 3):
            break
    for step in run:
        if step.number == EPOCH:
            break
    assert sorted(seen.asked) == list(range(40))


@pytest.mark.parametrize("kind", EPOCHS)
def test_batches_drawn_past_the_run_are_noticed(kind: Any) -> None:
    """One, or a whole epoch: the places then agree, but not the assignment."""
    for drawn in (1, EPOCH):
        run = make_run(kind(EPOCH))
        take(run, 2)
        run._feed = None
        for _ in range(drawn):
            run.sampler.draw(40)
        with pytest.raises(ModelNotPrivate, match="join twice"):
            take(run, 1)
        take(run, EPOCH - 2)
        assert run.steps == EPOCH


@pytest.mark.parametrize("kind", EPOCHS)
def test_a_resumed_run_uses_no_record_twice_in_an_epoch(kind: Any, tmp_path: Path) -> None:
    """What is left of the epoch goes on with its own data, or is spent and another one begins."""
    run = make_run(kind(EPOCH), folder=tmp_path)
    take(run, 2)
    run.folder.save()
    run.close()
    data = make_data()
    for other in (data.flip(0), data[:-1]):
        with pytest.raises(InvalidInput):
            make_run(kind(EPOCH), data=other, folder=tmp_path)
    again = make_run(kind(EPOCH), folder=tmp_path)
    assert again.steps == (2 if kind is CyclicSampler else EPOCH)
    take(again, EPOCH - again.steps % EPOCH)
    assert again.steps % EPOCH == 0


# ---- the data of a run stay what they were -------------------------------------------------------
def _by_operation(data: Tensor) -> None:
    data.copy_(data.flip(0))


def _behind_the_count(data: Tensor) -> None:
    data.data.copy_(data.flip(0))


def _by_numpy(data: Tensor) -> None:
    data.numpy()[:] = data.numpy()[::-1].copy()


@pytest.mark.parametrize("form", [lambda x: x, lambda x: (x, x), TensorDataset])
def test_tensors_written_to_between_steps_stop_the_run(form: Any) -> None:
    data = make_data()
    run = make_run(CyclicSampler(EPOCH), data=form(data))
    take(run, 1)
    _by_operation(data)
    with pytest.raises(InvalidInput, match="written to"):
        take(run, 1)


@pytest.mark.parametrize("write", [_by_operation, _behind_the_count, _by_numpy])
def test_a_certificate_of_data_that_were_changed_is_not_private(write: Any) -> None:
    data = make_data()
    run = make_run(data=data)
    take(run, 1)
    write(data)
    certificate = run.certificate(1e-5)
    assert "NOT PRIVATE" in certificate["statement"] and "changed" in certificate["statement"]
    assert not holds(verify(certificate))


@pytest.mark.parametrize("which", [0, 17, 699])
def test_one_record_that_differs_is_another_data_set(which: int, tmp_path: Path) -> None:
    data = make_data(700)
    changed, exchanged = data.clone(), data.clone()
    changed[which] += 1.0
    exchanged[[which, 5]] = exchanged[[5, which]]
    make_run(data=data, folder=tmp_path).close()
    for other in (changed, exchanged):
        with pytest.raises(InvalidInput, match="another run"):
            make_run(data=other, folder=tmp_path)


def test_items_are_not_compared_and_the_certificate_says_so() -> None:
    run = make_run(data=Seen(make_data()))
    assert "not compared" in run.certificate(1e-5)["run"]["settings"]["data"]
    named = make_run(data=Seen(make_data()), fingerprint="forty rows")
    assert "named by the owner" in named.certificate(1e-5)["run"]["settings"]["data"]


def test_a_read_only_memory_map_is_data_like_any_other(tmp_path: Path) -> None:
    rows = make_data().numpy()
    np.memmap(tmp_path / "rows", rows.dtype, "w+", shape=rows.shape)[:] = rows
    given = np.memmap(tmp_path / "rows", rows.dtype, "r", shape=rows.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = make_run(data=given)
        take(run, 2)
    assert run.steps == 2 and run.record().private
