"""The loss of one example must not depend on another example's row of any activation.

Some of the losses are differentiated: whatever lies in the rows of the other examples must be
exactly zero. A random half of the examples shows that example i reads example j with probability
1/4, and mixing of the whole batch nearly always; `halves` together show every pair.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from tightrope.train.gradients.graph import handed_over
from tightrope.train.gradients.owners import Owners

__all__ = ["Probes", "Seen", "halves", "look"]

# A training step is looked at with this probability: one backward pass more.
CHANCE = 1 / 200


class Probes:
    """Which steps are looked at, and at which examples: by chance, which no code can foresee."""

    def __init__(self) -> None:
        self._chance = random.Random()
        self._wait = 1

    def due(self, conclusive: bool) -> bool:
        """conclusive: whether the last look saw a gradient everywhere; else the next comes soon."""
        if conclusive:
            self._wait = 1
            return self._chance.random() < CHANCE
        self._wait = min(2 * self._wait, round(1 / CHANCE))
        return self._chance.random() < 2 / self._wait

    def half(self, count: int) -> Tensor:
        """(count,) weights: about half of them zero, at least one of each kind."""
        chosen = self._chance.sample(range(count), self._chance.choice(_middle(count)))
        weights = torch.zeros(count, device="cpu")
        for i in chosen:
            weights[i] = self._chance.uniform(0.5, 1.5)
        return weights


def _middle(count: int) -> list[int]:
    return [max(count // 2, 1), max((count + 1) // 2, 1)] if count > 2 else [1]


def halves(count: int) -> list[Tensor]:
    """Weights that set every example apart from every other: by the digits of its number."""
    numbers = torch.arange(count, device="cpu")
    bits = [(numbers >> b & 1).float() for b in range(max(count - 1, 1).bit_length())]
    return [side for bit in bits for side in (bit, 1 - bit)]


def _enough_seen(quiet: dict[int, Any], number: int, rows: Tensor, *, several: bool) -> bool:
    if not several:
        return bool(rows.any())
    before = quiet[number]
    quiet[number] = rows if before is None else before | rows
    return 2 * int(quiet[number].sum()) > len(rows)


@final
class Seen(NamedTuple):
    """mixed: numbers of the edges at which examples meet.

    hidden: numbers of those where it cannot be seen: a row of an example whose loss is finite holds
        what is no number, its own (of a square root at zero, say) or that of another example.
    lost: numbers of these examples, at all edges together.
    conclusive: whether every edge had a gradient to see.
    finite: whether all gradients were numbers.
    hooked: whether hooks of the user's change one.
    """

    mixed: set[int]
    hidden: set[int]
    lost: set[int]
    conclusive: bool
    finite: bool
    hooked: bool


def look(
    losses: Tensor, edges: list[Any], times: list[int], weights: list[Tensor], owners: Owners
) -> Seen:
    """The rows of one example may meet. times: rows of each edge for each row of the model."""
    mixed: set[int] = set()
    hidden: set[int] = set()
    lost: set[int] = set()
    numbers = torch.arange(len(losses), device=losses.device)
    rows_of = [owners.of_layer(owners.rows * each) for each in times]
    sound = losses.detach().isfinite()
    finite, hooked = bool(sound.all()), False
    # edges of which a gradient is still to be seen: at any row, or where an example has several
    # at most of them, since half may lie right by chance in another order
    quiet: dict[int, Tensor | None] = dict.fromkeys(range(len(edges)))
    for one in weights if edges else []:
        given = one.to(losses)
        others = given == 0
        with handed_over(edges) as after:
            grads = torch.autograd.grad(losses, edges, given, retain_graph=True, allow_unused=True)
        for number, before in enumerate(grads):
            g = after.get(number, before)
            hooked = hooked or g is not before
            if g is None:
                continue
            own, no_number = rows_of[number], g.isnan()
            rows = ((g != 0) & ~no_number).reshape(len(g), -1).any(1)
            if bool(no_number.any()):
                finite = False
                without = no_number.reshape(len(g), -1).any(1)
                whose = own.spread(numbers)[without & own.spread(sound)].tolist()
                lost |= set(whose)
                hidden |= {number} if whose else set()
            if number in quiet and _enough_seen(quiet, number, rows, several=times[number] > 1):
                del quiet[number]
            if bool((rows & own.spread(others)).any() if len(g) == own.rows else rows.any()):
                mixed.add(number)
    return Seen(mixed, hidden, lost, not quiet, finite, hooked)
