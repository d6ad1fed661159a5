"""Does any example's contribution depend on another example, in small, large or crowded batches?

One batch is looked at as large as the largest that the sampler draws; half of it are pairs of
records that lie next to each other, for models that join only neighbours.

Replacing: the examples of one half become copies of examples of the other half, whose losses and
gradients must stay as they are. The halves are those of a binary digit of the position, so that any
two examples are apart in at least one of log2(B) turns. Same shapes and same draws of chance, so
random models are tested too.

Leaving out: the parts of a batch, read and collated on their own, must add up to the whole.

Memory: what one batch leaves behind must not change the next one's contribution.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd

from tightrope.train.doctor.subject import Answer, Subject, distance, rows_of
from tightrope.train.doctor.verdict import Finding, fault, good, note
from tightrope.train.feed import tensors_of
from tightrope.train.held import as_it_was
from tightrope.train.modes import in_mode

if TYPE_CHECKING:
    from tightrope.train.feed import Batch

__all__ = ["check_mixing", "check_memory"]

CHECK, MEMORY = "cross-example leakage", "memory"
# relative to a loss, and to the sensitivity times the root of the batch size; in float32
SAME_KERNELS, OTHER_KERNELS = 1e-4, 1e-3
ALL_DIGITS = 512  # larger batches: three halves at random
SETTLE = 24  # passes
POOL = 512  # records among which neighbours are looked for


def check_mixing(subject: Subject) -> list[Finding]:
    """In a batch as large as they come."""
    count = min(subject.reach, subject.rows.length)
    if count < 2:
        return [note(CHECK, "examples come one at a time: there is nothing to mix")]
    indices = crowded(subject, count)
    batch = subject.read(indices)
    replaced = _replacing(subject, batch, count)
    with _no_dropout(subject.model):
        random = not _same(subject, subject.answer(batch), subject.answer(batch, seed=1))
        left_out = _leaving_out(subject, indices, random)
    worst = max((f for f in (replaced, left_out) if f is not None), default=None)
    if worst is None:
        return [note(CHECK, "the examples of a batch cannot be told apart by its tensors")]
    change, how = worst
    if change <= 1.0:
        return [good(CHECK, f"{how} others moves an example by {change:.1e} of what rounding may")]
    return [
        fault(
            CHECK,
            f"{how} other examples of a batch of {count} moves an example's loss or gradient by "
            f"{change:.1e} times what rounding may: a layer, the loss or the collation mixes "
            "examples",
        )
    ]


def crowded(subject: Subject, count: int) -> NDArray[np.int64]:
    """A batch half of which are pairs of neighbouring records, in random order."""
    pool = subject.some(POOL)
    points = _points(subject.read(pool), len(pool))
    chosen = list(pool[_nearest(points, count // 4)]) if points is not None else []
    seen = set(chosen)
    rest = [i for i in subject.some(count + len(chosen)) if i not in seen]
    return subject.draw.permutation(np.array([*chosen, *rest][:count], dtype=np.int64))


def _points(batch: Batch, count: int) -> Tensor | None:
    """The records as points: all their numbers in a row."""
    parts = [t.reshape(count, -1).double().cpu() for t in tensors_of(batch) if _rows(t) == count]
    return torch.cat(parts, dim=1).nan_to_num() if parts and count > 1 else None


def _rows(tensor: Tensor) -> int:
    return len(tensor) if tensor.dim() else 0


def _nearest(points: Tensor, pairs: int) -> list[int]:
    """Up to `pairs` disjoint pairs, the closest first; equal records last."""
    apart = torch.cdist(points, points)
    apart[apart == 0] = torch.inf
    chosen: list[int] = []
    for place in torch.argsort(apart.reshape(-1))[: 8 * len(points)].tolist():
        i, j = divmod(place, len(points))
        if len(chosen) < 2 * pairs and i != j and i not in chosen and j not in chosen:
            chosen += [i, j]
    return chosen


def _replacing(subject: Subject, batch: Batch, count: int) -> tuple[float, str] | None:
    """Largest change relative to rounding, and how it came about."""
    if not any(_rows(t) == count for t in tensors_of(batch)):
        return None
    whole = subject.answer(batch)
    changes = [_in_two(subject, batch, whole, count)]
    for half in _halves(subject, count):
        keep = torch.from_numpy(half)
        index = torch.arange(count, device="cpu")
        index[~keep] = index[keep].repeat(2)[: int((~keep).sum())]
        mask = keep.to(subject.device, whole.losses.dtype)
        before = subject.answer(batch, weights=mask)
        after = subject.answer(rows_of(batch, index, count), weights=mask)
        keep = keep.to(subject.device)
        changes.append(_change(subject, before, after, SAME_KERNELS, keep))
    return max(changes), "replacing"


def _in_two(subject: Subject, batch: Batch, whole: Answer, count: int) -> float:
    """The sums over either half of the examples must add up to the sum over all."""
    first = (torch.arange(count, device=subject.device) < count // 2).to(whole.losses.dtype)
    one, other = (subject.answer(batch, weights=w) for w in (first, 1 - first))
    sums = [a + b for a, b in zip(one.sums, other.sums, strict=True)]
    return _change(subject, whole, Answer(whole.losses, sums), SAME_KERNELS)


def _halves(subject: Subject, count: int) -> list[NDArray[np.bool_]]:
    """Which examples are kept, turn by turn; at least one, and at least one is not."""
    digits = range(max(count - 1, 1).bit_length())
    if count <= ALL_DIGITS:
        return [(np.arange(count) >> digit) % 2 == 0 for digit in digits]
    return [subject.draw.permutation(count) < count // 2 for _ in range(3)]


def _leaving_out(
    subject: Subject, indices: NDArray[np.int64], random: bool
) -> tuple[float, str] | None:
    """Parts, each read on its own; a random model is asked in evaluation mode, for losses only."""
    if not _reads_alike(subject, indices):
        return None
    ask = _quiet_losses if random else _plain
    whole = ask(subject, indices)
    changes = []
    for size in {1, len(indices) // 3, len(indices) // 2} - {0}:
        some = subject.draw.permutation(len(indices)) < size
        one, other = ask(subject, indices[some]), ask(subject, indices[~some])
        sums = [a + b for a, b in zip(one.sums, other.sums, strict=True)]
        parts = Answer(torch.cat([one.losses, other.losses]).sort().values, sums)
        ordered = Answer(whole.losses.sort().values, whole.sums)  # a collation may sort
        changes.append(_change(subject, ordered, parts, OTHER_KERNELS))
    return max(changes), "leaving out"


def _plain(subject: Subject, indices: NDArray[np.int64]) -> Answer:
    return subject.answer(subject.read(indices))


def _quiet_losses(subject: Subject, indices: NDArray[np.int64]) -> Answer:
    with in_mode(subject.model, training=False), torch.no_grad():
        return Answer(subject.losses_of(subject.read(indices)).detach(), [])


def _reads_alike(subject: Subject, indices: NDArray[np.int64]) -> bool:
    """Data may change from one reading to the next, as when images are cropped at random."""
    first, again = (tensors_of(subject.read(indices)) for _ in range(2))
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, again, strict=True))


def _same(subject: Subject, left: Answer, right: Answer) -> bool:
    return _change(subject, left, right, SAME_KERNELS) <= 1.0


def _change(
    subject: Subject, before: Answer, after: Answer, rounding: float, kept: Tensor | None = None
) -> float:
    """The larger one of the losses' and the sum's change, in units of what rounding may do."""
    a, b = before.losses.double(), after.losses.double()
    a, b = (a, b) if kept is None else (a[kept], b[kept])
    if not torch.equal(a.isfinite(), b.isfinite()):
        return float("inf")
    a, b = a[a.isfinite()], b[b.isfinite()]
    scale = a.abs() + a.abs().mean() + 1e-12
    moved = float(((a - b).abs() / scale).max()) if len(a) else 0.0
    if before.sums:
        unit = subject.bound * max(len(a), 1) ** 0.5
        moved = max(moved, distance(before.sums, after.sums) / unit)
    return moved / (rounding * subject.precision)


def check_memory(subject: Subject) -> list[Finding]:
    """The same batch after different ones."""
    count = min(16, subject.reach, subject.rows.length // 2)
    if count < 1:
        return [note(MEMORY, "fewer than two examples to look at")]
    index = subject.some(2 * count)
    one, other = subject.read(index[:count]), subject.read(index[count:])
    first, again, different = (_after(subject, past, one) for past in (one, one, other))
    moving = _change(subject, first, again, SAME_KERNELS)
    if moving > 1.0:  # by something outside the model: let it settle
        *_, first, again = (_after(subject, one, one) for _ in range(SETTLE))
        different = _after(subject, other, one)
        moving = _change(subject, first, again, SAME_KERNELS)
    if _change(subject, again, different, SAME_KERNELS) <= max(1.0, 3 * moving):
        if moving > 1.0:
            return [note(MEMORY, "losses change from pass to pass, whatever was in the batches")]
        return [good(MEMORY, "a batch leaves nothing behind that the next one notices")]
    return [
        fault(
            MEMORY,
            "the loss or gradient of a batch depends on the batch before it: something keeps data "
            "of private examples, and a record then acts in steps that do not count it",
        )
    ]


def _after(subject: Subject, past: Batch, batch: Batch) -> Answer:
    with as_it_was(subject.model):
        subject.lasting_answer(past)
        return subject.lasting_answer(batch)


@contextmanager
def _no_dropout(model: torch.nn.Module) -> Iterator[None]:
    dropout = [m for m in model.modules() if isinstance(m, _DropoutNd) and m.training]
    for module in dropout:
        module.eval()
    try:
        yield
    finally:
        for module in dropout:
            module.train()
