"""Sums of which every rank keeps its own rows, where a model stays in parts.

As soon as the clipped sum of a parameter is formed, it is added up over the ranks, and each keeps
the rows that it holds of the parameter. When all ranks are done, each adds the noise to its own
rows, with a key of its own: every coordinate belongs to one rank, so it gets its noise once. Until
then a rank sees its rows without noise, as one process does; it hands them to nobody.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.train.sharded import local_part, rows_of_each

if TYPE_CHECKING:
    from tightrope.train.gradients import ClippedBatch
    from tightrope.train.in_parts import InParts
    from tightrope.train.noise import Noise
    from tightrope.train.sums import Rounded

__all__ = ["Scattered", "Shares", "SplitsNoise"]


@runtime_checkable
class SplitsNoise(Protocol):
    """A noise that every rank may draw for coordinates of its own."""

    def for_rank(self, rank: int) -> None: ...


@final
class Shares:
    """What the gradient engine needs of a model in parts, and where it puts its sums.

    units: for each unit its trainable parameters, by their numbers in the engine.
    """

    def __init__(self, parts: InParts, units: Sequence[dict[int, Any]]) -> None:
        self._parts, self._units = parts, units
        self._unit_of = {row: number for number, unit in enumerate(units) for row in unit}
        self.lent, self.check, self.taking = parts.lent, parts.check, False
        self._clear()

    @property
    def open(self) -> bool:
        return self._parts.open

    @staticmethod
    def look_at(batch: ClippedBatch) -> None:
        """A value that is not there makes every gradient behind it not a number."""
        if batch.nonfinite == batch.examples > 1:
            warnings.warn(_NOBODY, stacklevel=2)

    def scatters(self, row: int) -> bool:
        return row in self._unit_of

    def give(self, row: int, total: Tensor) -> Tensor:
        """Add a sum to those of the other ranks, once its unit is complete; none is kept here."""
        number = self._unit_of.get(row)
        if number is None:
            return total
        if not self.taking:
            raise InvalidInput(
                "The sums of a sharded model go to the ranks that hold the parameters, as part of "
                "a step. Call step(losses) of the run instead of clipped_sum(losses)."
            )
        waiting = self._waiting.setdefault(number, {})
        waiting[row] = total
        if len(waiting) == len(self._units[number]):
            self._hand_over(number)
        return total.new_zeros(0)

    def whole_part(self) -> None:
        """All sums of a part of the batch were given."""
        for number in list(self._waiting):
            self._hand_over(number)
        self._halfway = False

    def take(self) -> dict[int, Tensor]:
        """This rank's rows of all sums, once all ranks are done."""
        found, shards = self._sums, {row: p for unit in self._units for row, p in unit.items()}
        self._clear()
        return {row: found.get(row, _zeros(shard)) for row, shard in shards.items()}

    def failed(self) -> None:
        """What was given of a part can be neither finished nor taken back."""
        self._waiting.clear()
        if self._halfway:
            self._parts.rounds.give_up()

    def abandon(self) -> None:
        """Forget the step: all ranks must, who wait for this one, or hold what it gave."""
        if self._given or self.open:
            self._parts.rounds.give_up()
        self._parts.rounds.broken = False
        self._clear()

    def _clear(self) -> None:
        self._sums: dict[int, Tensor] = {}
        self._waiting: dict[int, dict[int, Tensor]] = {}
        self._given = self._halfway = False

    def _hand_over(self, number: int) -> None:
        self._parts.rounds.ask(2 * number + 1)
        self._halfway = True
        self.add(number, self._waiting.pop(number))

    def add(self, number: int, totals: Mapping[int, Tensor] = MappingProxyType({})) -> None:
        """Over the ranks, in float64. All call it together; those without a sum add zero."""
        self._given = True
        unit = self._units[number]
        shards = list(unit.values())
        group = shards[0].device_mesh.get_group()
        sizes = [rows_of_each(shard) * shard.shape[1:].numel() for shard in shards]
        sent = _zeros(shards[0]).new_zeros((group.size(), sum(sizes)))
        for row, part in zip(unit, sent.split(sizes, dim=1), strict=True):
            if row in totals:
                _spread(totals[row], part)
        mine = torch.empty_like(sent[0])
        dist.reduce_scatter(mine, list(sent.unbind()), group=group)
        for (row, shard), part in zip(unit.items(), mine.split(sizes), strict=True):
            known = self._sums.setdefault(row, _zeros(shard))
            known.add_(part[: known.numel()].view_as(known))


_NOBODY = (
    "No example of a batch has a finite gradient, so all of them add zero and the step is noise "
    "alone. Either the weights or the losses have overflowed, or hooks that the model sets on what "
    "autograd saves (saved_tensors_hooks) keep a parameter instead of its values, which a sharded "
    "model lets go: let them keep parameter.detach()."
)


def _zeros(shard: Any) -> Tensor:
    """For this rank's rows of a sum."""
    mine = local_part(shard)
    return torch.zeros(mine.shape, dtype=torch.float64, device=mine.device)


def _spread(total: Tensor, ranks: Tensor) -> None:
    """The rows of a sum to the ranks (R, size) that hold them; the last may have fewer, or none."""
    flat = total.reshape(-1)
    for part, to in zip(flat.split(ranks.shape[1]), ranks, strict=False):
        to[: len(part)] = part


@final
class Scattered:
    """The sums of a model in parts; parameters that every rank holds whole are added as ever."""

    exact = False

    def __init__(self, rounded: Rounded, shares: Shares, noise: Noise) -> None:
        self._rounded, self._shares, self._noise = rounded, shares, noise
        if isinstance(noise, SplitsNoise):
            noise.for_rank(dist.get_rank())
        self.gradients, self.arithmetic = rounded.gradients, rounded.arithmetic
        self.examples_at_a_time, self.begin = rounded.examples_at_a_time, rounded.begin

    def add(self, total: list[Tensor] | None, part: Sequence[Tensor]) -> list[Tensor]:
        kept = [row for row, left in enumerate(part) if self._shares.scatters(row) and left.numel()]
        assert not kept, f"the sums of parameters {kept} were not given to the ranks"
        self._shares.whole_part()
        return self._rounded.add(total, part)

    def noisy(
        self, total: list[Tensor], noise: Noise, sensitivity: float, examples: int
    ) -> list[Tensor]:
        """This rank's rows of the sum with their noise; whole, where the parameter is whole."""
        if noise is not self._noise:
            raise InvalidInput(
                "The noise of this run was exchanged. In a sharded run every rank draws its part "
                "of it, and what one rank's is, the others do not see. Make a new run with "
                "history=run.record()."
            )
        mine = self._shares.take()
        if len(total) > len(mine):  # what was scattered is empty there
            total = self._rounded.noisy(total, noise, sensitivity, examples)
        drawn_for = [rows for rows in mine.values() if rows.numel()]
        if drawn_for:
            noise.add_(drawn_for, self.arithmetic.charged(sensitivity))
        return [mine.get(row, whole) for row, whole in enumerate(total)]
