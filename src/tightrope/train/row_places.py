"""Whether losses come in the order of the rows: else rows that fill up a batch would be counted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.train.answers import any_half
from tightrope.train.feed import tensors_of, with_tensors
from tightrope.train.gradients import ClippedBatch

if TYPE_CHECKING:
    from tightrope.train.feed import Batch
    from tightrope.train.padded import PaddedBatch, Program

__all__ = ["OutOfPlace", "check_fillers", "places", "refuse_places"]

_APART = 3e-2  # of its size and the usual one, by which the same row may differ elsewhere
# All rows together, of how far losses are from each other; nothing else would show among losses
# that are nearly the same, as those of models that have just begun are.
_PLACES, _HALF_PLACES = 1e-2, 0.3


class OutOfPlace(Exception):
    """What a row that fills up gives is not where that row is."""


def check_fillers(found: ClippedBatch, losses: Tensor, rows: int) -> None:
    """Rows that fill up are copies of the first: if theirs are others' losses, others are theirs.

    Losses may come in another order than the rows of the batch, or rows be sorted on the way.
    """
    if rows == len(losses):
        return
    values = torch.stack([losses.double(), found.squared_norms.double()])
    usual = values[:, :rows].abs().nan_to_num(0.0, 0.0).median(dim=1, keepdim=True).values
    if not _same(values[:, :1], values[:, rows:], usual):
        raise OutOfPlace


def _same(first: Tensor, others: Tensor, usual: Tensor) -> bool:
    same = (others - first).abs() <= _APART * (first.abs() + usual)
    return bool((same | ~first.isfinite() & ~others.isfinite()).all())


def places(
    losses: Callable[[Any, int], Tensor], batch: PaddedBatch
) -> Literal["kept", "moved", "random", "alike"]:
    """Whether losses move as rows do, when the rows of the batch are put in other places.

    losses: from a batch and a seed. Nothing can be seen where the seed matters, or where the losses
    of all rows are about the same.
    """
    rows = torch.arange(len(batch.present), device="cpu")
    first = losses(batch.rearranged(rows), 0)
    rounding = _HALF_PLACES if any_half([first]) else _PLACES
    here, again = (x.detach().double() for x in (first, losses(batch.rearranged(rows), 1)))
    if not torch.equal(here, again):
        return "random"
    usual, width = here.abs().median(), _width(here[batch.present])
    found: set[bool] = set()
    for order in (rows.flip(0), rows.roll(1), _shuffled(len(rows))):
        there, expected = (
            losses(batch.rearranged(order), 0).detach().double(),
            here[order.to(here.device)],
        )
        if not _same(expected, there, usual):
            return "moved"
        apart = (there - expected).clamp(-width, width).norm()
        seen = (expected - expected.roll(1)).clamp(-width, width).norm()
        found.add(bool(apart <= rounding * seen) and bool(seen > 0))
    return "kept" if found == {True} else "alike"


def _width(losses: Tensor) -> Tensor:
    """How far losses usually are from each other: one that is far off must not hide the others."""
    far = (losses - losses.median()).abs()
    usual = far.quantile(0.75)
    return torch.where(usual > 0, usual, far.max())  # most of a hinge's losses are zero


def _shuffled(rows: int) -> Tensor:
    """An order in which no way of moving rows by halves, steps or the other way round is hidden."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(rows), device="cpu")


def refuse_places(program: Program, batch: Batch, charged: float) -> None:
    """Take the first example out, so that all others move up: how far do the sums move?

    Nothing can be said where two runs of one batch differ: random layers draw anew.
    """
    first, _ = program.run(batch)
    again, _ = program.run(batch)
    if first.examples < 2 or not _apart(first, again) <= charged / 1000:
        return
    without, _ = program.run(with_tensors(batch, [t[1:] for t in tensors_of(batch)]))
    moved = _apart(first, without)
    if not moved <= charged:
        raise InvalidInput(
            "In half precision the place of an example in the batch changes how it is rounded: "
            f"without its first example the batch has a sum that is {moved:.4g} away, and "
            f"{charged:.4g} is what is charged for one record. Compute in float32 or tf32, try "
            'another size (size=...), or say arithmetic="strict" or arithmetic="uncovered": the '
            "certificate then opens with that."
        )


def _apart(one: ClippedBatch, other: ClippedBatch) -> float:
    pairs = zip(one.sums, other.sums, strict=True)
    return math.sqrt(sum(float((a - b).double().square().sum()) for a, b in pairs))
