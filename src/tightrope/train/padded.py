"""A computation of fixed shape for batches of any size up to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.train.cuda_graph import record
from tightrope.train.feed import tensors_of, with_tensors
from tightrope.train.gradients import ClippedBatch
from tightrope.train.packed import pack, unpack, whole
from tightrope.train.row_places import check_fillers

if TYPE_CHECKING:
    from tightrope.train.feed import Batch

__all__ = [
    "AskAgain",
    "PaddedBatch",
    "Program",
    "TextsRead",
]

_WARM_UPS = 3
_MOST_RUNS = 100
_PLAIN = (str, bytes, int, float, complex, type(None))


class AskAgain(Exception):
    """A gradient of this batch is not finite, so it shows neither a plan nor what is right."""


@final
class PaddedBatch:
    """Memory for `size` rows; a batch lies in the first of them, its first row in the others.

    A copy of a real row is as well-behaved as the batch itself, whatever the model takes.
    """

    def __init__(self, batch: Batch, size: int) -> None:
        given = tensors_of(batch)
        self._tensors = [t.new_zeros((size, *t.shape[1:])) for t in given]
        self._numbers = torch.arange(size, device=given[0].device)
        self.values, self._kind = with_tensors(batch, self._tensors, _Texts), _kind(batch)
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

    @property
    def all_alike(self) -> bool:
        """Whether no row differs from the first, so that nothing can be seen."""
        return all(bool((t == t[:1]).all()) for t in self._tensors)

    def rearranged(self, rows: Tensor) -> Any:
        """Other rows in the places of these; rows: their numbers."""
        index = rows.to(self.present.device)
        return with_tensors(self.values, [t[index] for t in self._tensors])

    def replace(self, bad: Tensor) -> bool:
        """An example takes the place of all bad rows, and the others stay; False: none is left."""
        self.present &= ~bad
        left = self.present.nonzero()
        for mine in self._tensors if len(left) else ():
            mine[bad] = mine[left[0, 0]].clone()
        return len(left) > 0

    def fits(self, batch: Batch) -> bool:
        given = tensors_of(batch)
        return self._kind == _kind(batch) and all(
            a.dtype is b.dtype and a.shape[1:] == b.shape[1:] and a.device == b.device
            for a, b in zip(given, self._tensors, strict=True)
        )


class TextsRead(RuntimeError):
    """A list of texts, one for each row, has no rows that could fill it up."""


@final
class _Texts:
    """In the place of such a list, which may come with a batch as long as nobody reads it."""

    def __init__(self, _: Any) -> None: ...

    def _read(self, *_: Any) -> Any:
        raise TextsRead

    __iter__ = __getitem__ = __len__ = __contains__ = __add__ = __bool__ = _read


@final
class _Same:
    """Something that is only equal to itself."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def _kind(batch: Batch) -> Any:
    """What stands where in a batch: types, names, and all values that are no tensors."""
    if isinstance(batch, Mapping):
        return type(batch), [(key, _kind(value)) for key, value in batch.items()]
    if isinstance(batch, (tuple, list)):
        texts = bool(batch) and all(isinstance(value, (str, bytes)) for value in batch)
        return type(batch), texts or [_kind(value) for value in batch]
    if isinstance(batch, Tensor):
        return Tensor
    return (type(batch), batch) if isinstance(batch, _PLAIN) else _Same(batch)


@final
class Program:
    """`compute(batch, present)` on a padded batch: in Python, or once captured by one launch."""

    def __init__(
        self,
        compute: Callable[[Any, Tensor], tuple[ClippedBatch, Tensor]],
        batch: PaddedBatch,
        held: Sequence[Tensor] = (),
    ) -> None:
        """held: tensors of the model's, some of which a run may write to (counters)."""
        self._compute, self._batch, self._held = compute, batch, held
        self.steady = False  # whether two runs of a batch are known to give the same
        self._graph: torch.cuda.CUDAGraph | None = None
        self._found: tuple[list[Tensor], ClippedBatch, Tensor] | None = None

    def fits(self, batch: Batch) -> bool:
        return self._batch.fits(batch)

    def settle(self, state: Callable[[], object]) -> bool:
        """A program is recorded with a batch all of whose gradients are finite.

        Returns whether a run leaves `state()` as it is. The first may fill what the model keeps.
        """
        first, _ = self.once()
        if _not_finite(first) is not None:
            raise AskAgain
        before, versions = state(), [t._version for t in self._held]
        again, _ = self.once()
        pairs = zip(self._held, versions, strict=True)
        self._held = [t for t, version in pairs if t._version != version]
        self.steady = torch.equal(first.squared_norms, again.squared_norms)
        return before == state()

    def once(self) -> tuple[ClippedBatch, Tensor]:
        """The eager step on the batch that is there."""
        return self._compute(self._batch.values, self._batch.present)

    def _warm_up(self) -> int:
        """Plans are made, kernels compiled and chosen before anything is captured.

        Returns the most bytes that a run held at one time, by the device's peak, which begins anew.
        """
        device = self._batch.present.device
        side, here = torch.cuda.Stream(device), torch.cuda.current_stream(device)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                torch.cuda.reset_peak_memory_stats(device)
                before = torch.cuda.memory_allocated(device)  # then never above the peak
                _, found, _ = self._find()
            most = torch.cuda.max_memory_allocated(device)
            if _not_finite(found) is not None:
                raise AskAgain
        here.wait_stream(side)
        return most - before

    def capture(self) -> None:
        room = self._warm_up()
        device = self._batch.present.device
        self._graph, self._found = record(self._find, device, room)

    def run(self, batch: Batch, *, alone: bool = False) -> tuple[ClippedBatch, Tensor]:
        """The clipped sum and the losses of a batch; examples that are not finite are dropped.

        The first run says which. In the next all others stay where they are and have the same draws
        (or new ones until all are finite): neither an example's fate nor its law or its rounding
        is up to the others.

        alone: whether the sums are done with before the next run. Large ones are then lent, which
        saves as much memory as the model takes; else they are copies, as all others always are.
        """
        rows = self._batch.load(batch)
        draws, held = self._generator.get_state(), [t.clone() for t in self._held]
        sums, found, losses = self._start()
        bad = _not_finite(found)
        if self.steady:
            check_fillers(found, losses, rows)
        losses = losses[:rows].clone()
        if bad is None:
            return _copied(sums, found, rows, alone), losses
        self._batch.load(batch)  # a model may have changed it in place
        if not self._batch.replace(bad):
            return _nobody(sums, found, rows), losses
        self._generator.set_state(draws)
        sums, found = self._start_until_finite(held)
        return _without(~self._batch.present[:rows], _copied(sums, found, rows, alone)), losses

    def _start_until_finite(self, held: list[Tensor]) -> tuple[list[Tensor], ClippedBatch]:
        """Every example left is finite once; by chance (dropout) it or a copy may not be again.

        held: what the model held before, and holds at each start: a count that went on would show
        that somebody is not finite.
        """
        for _ in range(_MOST_RUNS):
            with torch.no_grad():
                for mine, before in zip(self._held, held, strict=True):
                    mine.copy_(before)
            sums, found, _ = self._start()
            if _not_finite(found) is None:
                return sums, found
        raise InvalidInput(
            "By chance (dropout) a gradient is not finite in nearly every run of this batch, so "
            "the step cannot be recorded. Fix the model, or take the step eagerly."
        )

    @property
    def _generator(self) -> torch.Generator:
        device = self._batch.present.device
        if device.type == "cuda":
            return torch.cuda.default_generators[device.index]
        return torch.default_generator

    def _start(self) -> tuple[list[Tensor], ClippedBatch, Tensor]:
        if self._graph is None:
            self._found = self._find()
        else:
            self._graph.replay()
        assert self._found is not None
        return self._found

    def _find(self) -> tuple[list[Tensor], ClippedBatch, Tensor]:
        found, losses = self._compute(self._batch.values, self._batch.present)
        return pack(found.sums), found, losses


def _not_finite(found: ClippedBatch) -> Tensor | None:
    """Which rows have gradients that are not finite; None: no row, as one number tells."""
    assert found.health is not None
    if math.isfinite(float(found.health)):
        return None
    bad = ~found.squared_norms.isfinite()
    return bad if bool(bad.any()) else None  # the squares of all may overflow where no one's do


def _copied(sums: list[Tensor], found: ClippedBatch, rows: int, alone: bool) -> ClippedBatch:
    """Copies: the next replay writes where this one wrote."""
    together = whole(sums)
    return ClippedBatch(
        tuple(sums) if alone and len(together) > 1 else _copy(sums, together),
        rows,
        found.squared_norms[:rows].clone(),
        found.factors[:, :rows].clone(),
        0,
    )


def _without(dropped: Tensor, found: ClippedBatch) -> ClippedBatch:
    squared = found.squared_norms.masked_fill(dropped, torch.inf)
    return found._replace(squared_norms=squared, nonfinite=int(dropped.sum()))


def _nobody(sums: list[Tensor], found: ClippedBatch, rows: int) -> ClippedBatch:
    zeros = tuple(torch.zeros_like(total) for total in sums)
    squared = torch.full_like(found.squared_norms[:rows], torch.inf)
    return ClippedBatch(zeros, rows, squared, torch.zeros_like(found.factors[:, :rows]), rows)


def _copy(sums: Sequence[Tensor], together: list[Tensor]) -> tuple[Tensor, ...]:
    if len(together) == len(sums):
        return torch._foreach_mul(together, 1.0)
    return tuple(unpack(together[0].clone(), sums))
