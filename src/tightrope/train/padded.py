"""A computation of fixed shape for batches of any size up to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.train.feed import tensors_of, with_tensors
from tightrope.train.gradients import ClippedBatch
from tightrope.train.packed import pack, unpack, whole

if TYPE_CHECKING:
    from tightrope.train.feed import Batch

__all__ = ["PaddedBatch", "Program", "refuse_places"]

_WARM_UPS = 3


@final
class PaddedBatch:
    """Memory for `size` rows; a batch lies in the first of them, its first row in the others.

    A copy of a real row is as well-behaved as the batch itself, whatever the model takes.
    """

    def __init__(self, batch: Batch, size: int) -> None:
        given = tensors_of(batch)
        self._tensors = [t.new_zeros((size, *t.shape[1:])) for t in given]
        self._numbers = torch.arange(size, device=given[0].device)
        self.values = with_tensors(batch, self._tensors)
        self.present = torch.zeros(size, dtype=torch.bool, device=given[0].device)
        self.load(batch)

    def load(self, batch: Batch) -> int:
        """Put a batch in place; how many rows it has."""
        given = tensors_of(batch)
        rows = len(given[0])
        for mine, new in zip(self._tensors, given, strict=True):
            mine[:rows].copy_(new)
            if rows < len(mine):
                mine[rows:].copy_(new[:1].expand_as(mine[rows:]))
        torch.lt(self._numbers, rows, out=self.present)
        return rows

    def fits(self, batch: Batch) -> bool:
        given = tensors_of(batch)
        return len(given) == len(self._tensors) and all(
            a.dtype is b.dtype and a.shape[1:] == b.shape[1:] and a.device == b.device
            for a, b in zip(given, self._tensors, strict=True)
        )


@final
class Program:
    """`compute(batch, present)` on a padded batch: in Python, or once captured by one launch."""

    def __init__(
        self,
        compute: Callable[[Any, Tensor], tuple[ClippedBatch, Tensor]],
        batch: PaddedBatch,
    ) -> None:
        self._compute, self._batch = compute, batch
        self._graph: torch.cuda.CUDAGraph | None = None
        self._found: tuple[list[Tensor], ClippedBatch, Tensor] | None = None

    def fits(self, batch: Batch) -> bool:
        return self._batch.fits(batch)

    def _warm_up(self) -> None:
        """Plans are made, kernels compiled and chosen before anything is captured."""
        device = self._batch.present.device
        side, here = torch.cuda.Stream(device), torch.cuda.current_stream(device)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                self._find()
        here.wait_stream(side)

    def capture(self) -> None:
        self._warm_up()
        graph, device = torch.cuda.CUDAGraph(), self._batch.present.device
        generator = torch.cuda.default_generators[device.index]
        before = generator.clone_state()
        torch.clear_autocast_cache()  # weights cast outside would never be cast again
        try:
            with torch.cuda.device(device), torch.cuda.graph(graph):
                self._found = self._find()
        except RuntimeError:
            generator.graphsafe_set_state(before)  # the other one waits for the end of a capture
            raise
        finally:
            torch.clear_autocast_cache()
        self._graph = graph

    def run(self, batch: Batch, *, alone: bool = False) -> tuple[ClippedBatch, Tensor]:
        """The clipped sum and the losses of a batch; examples that are not finite are dropped.

        alone: whether the sums are done with before the next run. Large ones are then lent, which
        saves as much memory as the model takes; else they are copies, as all others always are.
        """
        found, losses, healthy = self._run(batch, alone)
        bad = None if healthy else ~found.squared_norms.isfinite()
        if bad is None or not bad.any():  # the squares of all may overflow where no one's do
            return found, losses
        return self._without(bad, batch, alone), losses

    def _without(self, bad: Tensor, batch: Batch, alone: bool) -> ClippedBatch:
        """The batch again, in the same shape: no other example is rounded in another way."""
        left = [t[~bad] for t in tensors_of(batch)]
        squared, factors = (torch.full(bad.shape, v, device=bad.device) for v in (torch.inf, 0.0))
        if len(left[0]) == 0:
            assert self._found is not None
            sums = tuple(torch.zeros_like(total) for total in self._found[0])
            return ClippedBatch(sums, len(bad), squared, factors[None], len(bad))
        found, _ = self.run(with_tensors(batch, left), alone=alone)
        squared = squared.to(found.squared_norms).masked_scatter_(~bad, found.squared_norms)
        factors = factors.expand(len(found.factors), -1).to(found.factors).clone()
        factors[:, ~bad] = found.factors
        return found._replace(
            examples=len(bad),
            squared_norms=squared,
            factors=factors,
            nonfinite=found.nonfinite + int(bad.sum()),
        )

    def _run(self, batch: Batch, alone: bool) -> tuple[ClippedBatch, Tensor, bool]:
        """And whether the squares of all together are finite."""
        rows = self._batch.load(batch)
        if self._graph is None:
            self._found = self._find()
        else:
            self._graph.replay()
        assert self._found is not None
        sums, found, losses = self._found
        assert found.health is not None
        # Copies: the next replay writes where this one wrote.
        together = whole(sums)
        copied = ClippedBatch(
            tuple(sums) if alone and len(together) > 1 else _copy(sums, together),
            rows,
            found.squared_norms[:rows].clone(),
            found.factors[:, :rows].clone(),
            0,
        )
        return copied, losses[:rows].clone(), math.isfinite(float(found.health))

    def _find(self) -> tuple[list[Tensor], ClippedBatch, Tensor]:
        found, losses = self._compute(self._batch.values, self._batch.present)
        return pack(found.sums), found, losses


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


def _copy(sums: Sequence[Tensor], together: list[Tensor]) -> tuple[Tensor, ...]:
    if len(together) == len(sums):
        return torch._foreach_mul(together, 1.0)
    return tuple(unpack(together[0].clone(), sums))
