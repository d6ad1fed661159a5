"""Ranks that need each other at moments nobody can foresee.

Every rank goes through its own batch, which may be larger than another's, or empty, and now and
then it needs all others at once: to gather the weights of a layer, or to add up a sum. Collectives
wait until everybody has come. So before each of them the ranks tell each other what they wish for
next; what most of them wish for is done, by all; and who wished for something else takes part all
the same and asks again. Ranks in step lose one short message by that. A rank that is done with its
batch wishes for nothing and serves the others, until nobody wishes for anything any more.

What is exchanged says how far a rank has come, never what is in its batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist

from tightrope.errors import InvalidInput

__all__ = ["Rounds"]

_NOTHING, _GIVEN_UP = -1, -2


@final
class Rounds:
    """serve: takes part in what others wish for, a number from 0 on that all ranks understand."""

    def __init__(self, serve: Callable[[int], None]) -> None:
        self._serve = serve
        # Numbers in main memory: no device has to be waited for.
        self._talk = dist.new_group(backend="gloo", timeout=_patience())
        self.broken = False  # a step was given up, and this rank has not been told so yet

    def ask(self, wish: int) -> None:
        """Returns when all ranks are about to do what this one wishes for."""
        while (chosen := self._chosen(wish)) != wish:
            self._serve(chosen)

    def finish(self) -> None:
        """Serve the others until nobody wishes for anything."""
        while (chosen := self._chosen(_NOTHING)) != _NOTHING:
            self._serve(chosen)

    def give_up(self) -> None:
        """Tell all ranks, once, that this step cannot be finished."""
        if not self.broken:
            self.broken = True
            with suppress(InvalidInput):  # what went wrong here is more to the point
                self._exchange(_GIVEN_UP)

    def _chosen(self, wish: int) -> int:
        if self.broken:
            raise InvalidInput(f"This step was given up before. {_GO_ON}")
        wishes = self._exchange(wish)
        if _GIVEN_UP in wishes:
            self.broken = True
            raise InvalidInput(
                f"Rank {wishes.index(_GIVEN_UP)} failed, or gave its batch up, in the middle of a "
                f"step that all ranks take together; nothing was released. {_GO_ON}"
            )
        counts = Counter(other for other in wishes if other != _NOTHING)
        return max(counts, key=lambda other: (counts[other], -other)) if counts else _NOTHING

    def _exchange(self, wish: int) -> list[int]:
        wishes = torch.empty(dist.get_world_size(), dtype=torch.int64, device="cpu")
        to = list(wishes.split(1)) if dist.get_rank() == 0 else None
        try:  # by one rank and down a tree: a ring takes as many hops as there are ranks
            dist.gather(torch.tensor([wish], device="cpu"), to, dst=0, group=self._talk)
            dist.broadcast(wishes, src=0, group=self._talk)
        except RuntimeError as error:
            self.broken = True
            raise InvalidInput(
                "Another rank has ended, or has not come for as long as the process group waits, "
                "in the middle of a step that all ranks take together; nothing was released. Look "
                "at its own error, and start all ranks again (a RunFolder goes on after the last "
                "save)."
            ) from error
        return [int(other) for other in wishes.tolist()]


def _patience() -> timedelta:
    """As long as the process group waits; PyTorch gives a new one half an hour."""
    world: Any = dist.group.WORLD
    waits: timedelta = world._get_backend(world._device_types[0]).options._timeout
    return waits


_GO_ON = (
    "Call abandon_batch() on every rank and go on, or start all ranks again (a RunFolder goes on "
    "after the last save)."
)
