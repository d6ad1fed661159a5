"""What a rehearsal shows to a loop: a batch, the same in other company, a smaller one."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from tightrope.train.feed import Rows, rows_at, tensors_of, to_device
from tightrope.train.independence import change_of, change_of_losses, collated_apart

if TYPE_CHECKING:
    from tightrope.train.feed import Batch
    from tightrope.train.samplers import Indices

__all__ = ["Answer", "Scene", "alone", "among_others", "smaller"]

# Of losses, and of gradients, that each count a tenth. In a batch half as large what is divided by
# the size doubles, and what is divided by its root changes by two fifths: rounding by kernels for
# other sizes, in half precision too, stays below.
_RESIZED, _HALF_RESIZED = (1e-2, 1e-2), (1e-1, 3.5e-2)


@final
@dataclass(frozen=True)
class Scene:
    """A batch to be stepped on, and the places of the examples that are compared."""

    batch: Any
    size: int
    places: list[int]


@final
@dataclass(frozen=True)
class Answer:
    """Losses of some examples, and the gradient of their sum with random signs.

    half: are the losses in half precision? within: was anything on the way to them?
    """

    losses: Tensor
    gradient: Any
    half: bool
    within: bool

    def change(self, other: Answer) -> float:
        """How far they are apart, relative to their size; up to `ROUNDING` it is rounding."""
        return max(self._changes(other, half=self.half or other.half))

    def resized(self, other: Answer) -> bool:
        """Are they further apart than batches of different sizes may be?"""
        allowed = _HALF_RESIZED if self.within or other.within else _RESIZED
        changes = self._changes(other, half=False)
        return any(change > most for change, most in zip(changes, allowed, strict=True))

    def _changes(self, other: Answer, *, half: bool) -> tuple[float, float]:
        return (
            change_of_losses(self.losses, other.losses, half=half),
            change_of(self.gradient, other.gradient, half=half),
        )


Pair = tuple[Scene, Scene]  # another one, and the batch itself


def alone(rows: Rows, indices: Indices, device: torch.device, chance: random.Random) -> Pair:
    """One example by itself; one that has another shape then, if there is any."""
    if len(indices) == 0:
        nobody = Scene(to_device(rows.take(indices), device), 0, [])
        return nobody, nobody
    whole, parts = collated_apart(rows, indices, device)
    place = chance.choice(_padded(whole, parts))
    return Scene(parts[place], 1, [0]), Scene(whole, len(parts), [place])


def among_others(batch: Batch, size: int, replaced: list[int], chance: random.Random) -> Pair:
    """One of the examples that stay takes all the other places: few statistics bear that."""
    kept = sorted(set(range(size)) - set(replaced))
    source = list(range(size))
    if kept:
        another = chance.choice(kept)
        for place in replaced:
            source[place] = another
    return Scene(rows_at(batch, size, source), size, kept), Scene(batch, size, kept)


def smaller(batch: Batch, size: int, chance: random.Random) -> Pair:
    """Half of it alone, all at other places: at which place an example comes is not its own."""
    kept = chance.sample(range(size), (size + 1) // 2)
    while size > 1 and any(place == old for place, old in enumerate(kept)):
        kept = chance.sample(range(size), (size + 1) // 2)
    half = Scene(rows_at(batch, size, kept), len(kept), list(range(len(kept))))
    return half, Scene(batch, size, kept)


def _padded(whole: Batch, parts: list[Any]) -> list[int]:
    """Places of the examples that have another shape alone; all places if there is none."""
    shape = [t.shape[1:] for t in tensors_of(whole)]
    found = [i for i, part in enumerate(parts) if [t.shape[1:] for t in tensors_of(part)] != shape]
    return found or list(range(len(parts)))
