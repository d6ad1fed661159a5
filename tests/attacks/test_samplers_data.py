"""Holes E1 to E3: samplers in two runs, data that change under a run, ranks with equal shards."""

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
from torch.utils.data import Dataset, TensorDataset

from tightrope.errors import InvalidInput, ModelNotPrivate, TightropeError
from tightrope.evidence.verify import holds, verify
from tightrope.train import (
    BallsInBinsSampler,
    CyclicSampler,
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    RunFolder,
    ShuffledSampler,
    Trainer,
    noisy_sgd,
)
from tightrope.train.adapters.loader import drawn_loader
from tightrope.train.feed import as_rows
from tightrope.train.fingerprint import fingerprint_of
from tightrope.train.row_sums import RowSums

EPOCH = 4
EPOCHS = [ShuffledSampler, CyclicSampler, BallsInBinsSampler]


def make_run(sampler: Any = None, **more: Any) -> Any:
    """Its loops are not rehearsed: every batch that comes is stepped on."""
    run = noisy_sgd(
        nn.Linear(3, 1),
        learning_rate=0.1,
        sampler=PoissonSampler(0.5) if sampler is None else sampler,
        clip=FlatClip(1.0),
        noise=GaussianNoise(1.0),
        expected_batch_size=10,
        **more,
    )
    run.company.asleep = True
    return run


def make_data(rows: int = 40) -> Tensor:
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(1))


def losses(run: Any, x: Tensor) -> Tensor:
    return run.model(x).square().sum(dim=1)


def train(run: Any, data: Any, steps: int) -> list[Tensor]:
    """The batches that were stepped on."""
    seen = []
    for x in run.batches(data, steps=steps):
        seen.append(x)
        run.step(losses(run, x))
    return seen


# ---- E1: a sampler belongs to one run -----------------------------------------------------------


@pytest.mark.parametrize("kind", [*EPOCHS, lambda b: PoissonSampler(1 / b)])
@pytest.mark.parametrize(
    "again", [lambda s: s, copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
)
def test_a_sampler_or_its_copy_serves_one_run_only(kind: Any, again: Any) -> None:
    sampler = kind(EPOCH)
    first = make_run(sampler)
    train(first, make_data(), 2)
    try:
        copied = again(sampler)
    except TightropeError:
        return  # a copy that cannot be made does no harm
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
        noisy_sgd(
            nn.Linear(3, 1),
            learning_rate=0.1,
            sampler=sampler,
            clip=FlatClip(1.0),
            noise=GaussianNoise(1.0),
            expected_batch_size=-1,
        )
    make_run(sampler)


@pytest.mark.parametrize("kind", EPOCHS)
def test_an_exchanged_sampler_is_refused_even_with_the_same_parameters(kind: Any) -> None:
    run = make_run(kind(EPOCH))
    train(run, make_data(), 2)
    run.sampler = kind(EPOCH)
    with pytest.raises(ModelNotPrivate, match="exchanged"):
        train(run, make_data(), 1)


# ---- E1: within one epoch nobody joins twice, whatever is done -----------------------------------


def joined_twice(seen: list[Tensor]) -> int:
    rows = torch.cat(seen)
    return len(rows) - len(rows.unique(dim=0))


@pytest.mark.parametrize("kind", EPOCHS)
@pytest.mark.parametrize(
    "other",
    [
        lambda x: x.flip(0),
        lambda x: x[:-1],
        lambda x: torch.cat([x, x[:5]]),
        lambda x: x.roll(1, 0),
        lambda x: x[[1, 0, *range(2, len(x))]],
    ],
)
def test_other_data_or_another_order_within_an_epoch_is_refused(kind: Any, other: Any) -> None:
    run, data = make_run(kind(EPOCH)), make_data()
    train(run, data, 2)
    with pytest.raises(InvalidInput, match="began with"):
        train(run, other(data), 2)
    seen = train(run, data.clone(), 2)  # the same content elsewhere is the same data
    assert len(seen) == 2 and run.steps == EPOCH


def _by_operation(data: Tensor) -> None:
    data.copy_(data.flip(0))


def _behind_the_count(data: Tensor) -> None:
    data.data.copy_(data.flip(0))


def _by_numpy(data: Tensor) -> None:
    data.numpy()[:] = data.numpy()[::-1].copy()


WAYS = [_by_operation, _behind_the_count, _by_numpy]


@pytest.mark.parametrize("kind", EPOCHS)
@pytest.mark.parametrize("write", WAYS)
@pytest.mark.parametrize(
    "form", [lambda x: x, lambda x: x.numpy(), lambda x: (x, x), TensorDataset]
)
def test_data_written_to_within_an_epoch_are_refused(kind: Any, write: Any, form: Any) -> None:
    run, data = make_run(kind(EPOCH)), make_data()
    given = form(data)

    def some(steps: int) -> None:
        for batch in run.batches(given, steps=steps):
            run.step(losses(run, batch if isinstance(batch, Tensor) else batch[0]))

    some(1)
    write(data)
    with pytest.raises(InvalidInput, match=r"other data|written to"):
        some(1)


@pytest.mark.parametrize("way", ["numpy", "from_numpy", "data", "loader"])
def test_data_that_change_between_two_batches_and_back_are_refused(way: str) -> None:
    """Records moved by one place in every batch would join twice, and the end look as the start."""
    run, array = make_run(CyclicSampler(EPOCH)), make_data().numpy()
    given = array if way == "numpy" else torch.from_numpy(array)
    first = array.copy()

    def batches() -> Any:
        if way == "loader":
            return drawn_loader(run, TensorDataset(given, given), steps=EPOCH)
        return run.batches(given, steps=EPOCH)

    with pytest.raises(InvalidInput, match="written to"):
        for batch in batches():
            run.step(losses(run, batch if isinstance(batch, Tensor) else batch[0]))
            moved = torch.from_numpy(np.roll(array, 1, axis=0))
            torch.as_tensor(given).data.copy_(moved)
    assert run.steps == 1
    array[:] = first


@pytest.mark.parametrize("kind", [torch.bool, torch.uint8, torch.int16, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0,)])
def test_row_sums_tell_rows_apart(kind: Any, shape: Any) -> None:
    array = torch.arange(7).reshape(7, *[1] * len(shape)).expand(7, *shape).to(kind).clone()
    sums, rows = RowSums([array]), np.array([2, 5])
    sums.check([array[[2, 5]]], rows, "")
    sums.check([array[[]]], rows[:0], "")
    if array.numel() and kind is not torch.bool:
        with pytest.raises(InvalidInput, match="written to"):
            sums.check([array[[5, 2]]], rows, "")


@pytest.mark.parametrize("write", WAYS)
def test_a_certificate_of_data_that_were_changed_is_not_private(write: Any) -> None:
    run, data = make_run(), make_data()
    batches = run.batches(data, steps=5)
    run.step(losses(run, next(batches)))
    write(data)
    if write is _by_operation:
        with pytest.raises(InvalidInput, match="written to"):
            next(batches)
    certificate = run.certificate(1e-5)
    assert "NOT PRIVATE" in certificate["statement"] and "changed" in certificate["statement"]
    assert not holds(verify(certificate))


@pytest.mark.parametrize("kind", EPOCHS)
def test_batches_drawn_past_the_run_are_noticed(kind: Any) -> None:
    """One, or a whole epoch: the places then agree, but not the assignment."""
    for drawn in (1, EPOCH):
        run, data = make_run(kind(EPOCH)), make_data()
        train(run, data, 2)
        for _ in range(drawn):
            run.sampler.draw(len(data))
        with pytest.raises(ModelNotPrivate, match="join twice"):
            train(run, data, 1)
        run.abandon_batch()
        train(run, data, EPOCH - 2)


@pytest.mark.parametrize("kind", EPOCHS)
def test_abandoned_and_interleaved_loops_use_everybody_once(kind: Any) -> None:
    run, data, seen = make_run(kind(EPOCH)), make_data(), []
    first = run.batches(data, steps=3)
    seen.append(next(first))
    run.step(losses(run, seen[-1]))
    second = run.batches(data, steps=3)
    seen.append(next(second))
    with pytest.raises(InvalidInput):
        next(first)  # a batch of the other loop is waiting for its step
    run.abandon_batch()
    with pytest.raises(InvalidInput, match="abandoned"):
        next(second)
    seen.pop()
    seen += train(run, data, 3)
    assert run.steps == EPOCH and joined_twice(seen) == 0
    assert sum(map(len, seen)) == len(data)


@pytest.mark.parametrize("kind", EPOCHS)
def test_half_a_batch_that_was_abandoned_is_not_finished(kind: Any) -> None:
    run, data = make_run(kind(2)), make_data()
    parts = run.batches(data, steps=2, micro_batch=3)
    run.step(losses(run, next(parts)))
    run.abandon_batch()
    with pytest.raises(InvalidInput, match="abandoned"):
        next(parts)
    seen = train(run, data, 2)
    assert joined_twice(seen) == 0 and sum(map(len, seen)) == len(data)


@pytest.mark.parametrize("kind", EPOCHS)
def test_a_resumed_run_uses_nobody_twice_in_an_epoch(kind: Any, tmp_path: Path) -> None:
    """What is left of the epoch goes on with its own data, or is spent and another one begins."""
    data = make_data()
    run, folder = make_run(kind(EPOCH)), RunFolder(tmp_path)
    folder.attach(run, data)
    seen = train(run, data, 2)
    folder.save()
    folder.close()
    for other in (data.flip(0), data[:-1]):
        with pytest.raises(InvalidInput):
            RunFolder(tmp_path).attach(make_run(kind(EPOCH)), other)
    again = make_run(kind(EPOCH))
    RunFolder(tmp_path).attach(again, data)
    if again.steps == EPOCH:
        seen = []
    seen += train(again, data, EPOCH - again.steps % EPOCH)
    assert joined_twice(seen) == 0 and sum(map(len, seen)) == len(data)
    assert again.steps % EPOCH == 0


def test_a_loop_that_was_taken_over_gives_no_batch_twice() -> None:
    run, data = make_run(ShuffledSampler(EPOCH)), TensorDataset(make_data())
    loader = drawn_loader(run, data, steps=EPOCH, workers=1)
    first = iter(loader)
    run.step(losses(run, next(first)))
    second = iter(loader)
    seen = [next(second)]
    run.step(losses(run, seen[0]))
    with pytest.raises(InvalidInput, match="abandoned"):
        next(first)


# ---- E3: the data of a run are pinned -----------------------------------------------------------


class Items(Dataset[Any]):
    """Items read one by one, as from a folder of files."""

    def __init__(self, x: Any) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Tensor:
        return self.x[i]


FORMS = [lambda x: x, lambda x: x.numpy(), TensorDataset, Items]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("which", [0, 17, 699])
def test_attach_to_one_and_train_on_another_is_refused(
    form: Any, which: int, tmp_path: Path
) -> None:
    """One record of 700 differs, or two are exchanged: 64 of them used to be looked at."""
    data = make_data(700)
    changed, exchanged = data.clone(), data.clone()
    changed[which] += 1.0
    exchanged[[which, 5]] = exchanged[[5, which]]
    run, folder = make_run(), RunFolder(tmp_path / "run")
    folder.attach(run, form(data))
    for other in (changed, exchanged):
        with pytest.raises(InvalidInput, match="other data"):
            train(run, form(other), 1)
        with pytest.raises(InvalidInput, match="other data"):
            drawn_loader(run, form(other), steps=1)
        with pytest.raises(InvalidInput, match="other data"):
            Trainer(run, lambda out: out[:, 0], delta=1e-5, progress=False).fit(
                form(other), steps=1
            )
    assert run.steps == 0


def test_items_that_change_are_noticed_when_they_are_drawn() -> None:
    data = make_data()
    run, items = make_run(PoissonSampler(1.0)), [row.clone() for row in data]
    batches = run.batches(Items(items), steps=3)
    run.step(losses(run, next(batches)))
    items[3], items[4] = items[4], items[3]
    with pytest.raises(InvalidInput, match="not what it was"):
        next(batches)


def test_items_that_change_are_noticed_in_workers_too() -> None:
    items = [row.clone() for row in make_data()]
    run = make_run(PoissonSampler(1.0))
    loader = drawn_loader(run, Items(items), steps=3, workers=1)
    items.reverse()
    with pytest.raises(InvalidInput, match="not what it was"):
        next(iter(loader))


def test_every_item_counts_for_the_fingerprint_and_every_value_of_it() -> None:
    long = np.arange(5000.0)
    nudged = long.copy()
    nudged[2500] += 1e-9
    variants: list[Any] = [
        [long, long],
        [long, nudged],  # printed with dots, both look alike
        [(1, 2), 3],
        [1, (2, 3)],
        [[1, 2], [3]],
        [["a", "bc"], 1],
        [["ab", "c"], 1],
        [{"x": 1.0, "y": 2.0}, 0],
        [{"x": 2.0, "y": 1.0}, 0],
        [1, 2],
        [1.0, 2.0],
        [torch.tensor(1), torch.tensor(2)],
    ]
    found = {fingerprint_of(as_rows(items)) for items in variants}
    assert len(found) == len(variants)


def test_items_of_unknown_content_are_refused_or_named() -> None:
    items = [object() for _ in range(4)]
    run = make_run()
    with pytest.raises(InvalidInput, match="cannot be compared"):
        run.watch(items)
    run.watch(items, fingerprint="four objects")
    assert "not compared" in run.certificate(1e-5)["run"]["settings"]["data"]
    with pytest.raises(InvalidInput, match="other data"):
        run.watch(list(items))


def test_a_memory_map_is_fingerprinted_whole(tmp_path: Path) -> None:
    stored = np.memmap(tmp_path / "rows", dtype="float32", mode="w+", shape=(2000, 3))
    stored[:] = make_data(2000).numpy()
    run = make_run()
    train(run, stored, 1)
    stored[1234, 1] += 1.0
    with pytest.raises(InvalidInput, match="other data"):
        train(run, stored, 1)


# ---- E2: ranks ----------------------------------------------------------------------------------

RANKS = Path(__file__).with_name("ranks_data_worker.py")


def test_equal_and_overlapping_shards_are_refused(torchrun: Any) -> None:
    done = torchrun(RANKS)
    assert done.returncode == 0, done.stderr[-3000:]


def test_drawing_until_a_batch_pleases_is_refused() -> None:
    run = make_run(PoissonSampler(0.5))
    run.watch(make_data())
    _, ticket = run.draw()
    with pytest.raises(InvalidInput, match="until a batch pleases"):
        run.draw()
    run.expect(ticket)
    run.abandon_batch()
    run.draw()


def test_a_read_only_memory_map_is_data_like_any_other(tmp_path: Path) -> None:
    rows = make_data().numpy()
    np.memmap(tmp_path / "rows", rows.dtype, "w+", shape=rows.shape)[:] = rows
    given = np.memmap(tmp_path / "rows", rows.dtype, "r", shape=rows.shape)
    run = make_run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(run, given, 2)
    assert run.steps == 2 and run.record().private
