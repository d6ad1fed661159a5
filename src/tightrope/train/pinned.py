"""The data of a run stay the same from the first look to the last batch.

An account counts how often one record may join; it holds for the records that were there when the
run began, in their order. So they are fingerprinted whole when the run first sees them, and
 - items of a dataset are compared with their mark each time they are drawn;
 - arrays are compared by their memory and PyTorch's count of writes at every batch, and those in
   main memory by the sums of the rows that are drawn (NumPy counts no writes); by their whole
   content in the middle of an epoch, on resuming, and for the certificate.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from tightrope.errors import InvalidInput
from tightrope.train.feed import Rows, item_rows
from tightrope.train.fingerprint import fingerprint_of, fingerprint_of_items, mark_of
from tightrope.train.row_sums import RowSums
from tightrope.train.samplers import Indices

if TYPE_CHECKING:
    from tightrope.train.feed import Items

__all__ = ["PinnedData"]

_READ_TWICE = 8  # items that are read again at once, to see whether reading changes them
_TIMED = 32
_PATIENCE = 60.0  # seconds
_CHANGED = (
    "A run's account is about the records it began with, in their order: other ones could join "
    "twice in one epoch, and the certificate would name data that were not used. Go on with "
    "the first data, or start a new run (history=run.record() counts this one)."
)
_NAME_IT = "name the data by run.watch(data, fingerprint='name and version') before the first batch"


@final
class PinnedData:
    """What a run knows of its data.

    name: given by the user in place of a fingerprint, for data that change from one reading to the
    next or are too many to read twice. Only the object and its length are compared then.
    """

    def __init__(self, rows: Rows, name: str | None = None) -> None:
        self.named = name is not None
        self._marks = None if self.named or rows.arrays is not None else _marks(rows)
        if name is not None:
            self.fingerprint = name
        elif self._marks is not None:
            self.fingerprint = fingerprint_of_items(self._marks)
        else:
            self.fingerprint = fingerprint_of(rows)
        self._sums = None if self.named or rows.arrays is None else RowSums(rows.arrays)
        self.changed = False
        self._hold(rows)

    @property
    def description(self) -> str:
        """How far the content was compared, for the certificate."""
        if self.named:
            return "named by the owner; their content was not compared"
        return "every record fingerprinted and compared"

    def accept(self, rows: Rows, *, within_epoch: bool) -> None:
        """Take the data as they are given again, with perhaps another way to collate them."""
        if rows.length != self.rows.length:
            raise InvalidInput(
                f"This run began with {self.rows.length} records and is now given {rows.length}. "
                f"{_CHANGED}"
            )
        if not self._surely_same(rows, within_epoch) and not self._equal(rows):
            raise InvalidInput(
                "This run is given other data than it began with, or the same in another order. "
                f"{_CHANGED}"
            )
        self._hold(rows)

    def _hold(self, rows: Rows) -> None:
        self._given, self._writes = rows, _writes(rows)
        self.rows = rows
        if self._marks is not None:
            self.rows = item_rows(_CheckedItems(rows.items, self._marks), rows.collate)
        elif self._sums is not None:
            self.rows = replace(rows, take=_CheckedArrays(rows, self._sums))

    def check_writes(self) -> None:
        """Refuse a batch of arrays that were written to."""
        if _writes(self._given) != self._writes:
            self.changed = True
            raise InvalidInput(f"The data of this run were written to since it began. {_CHANGED}")

    def look_again(self) -> bool:
        """Have the data changed? Arrays are read in whole once more."""
        if self._marks is None and not self.named and not self.changed:
            self.changed = fingerprint_of(self._given) != self.fingerprint
        return self.changed

    def _surely_same(self, rows: Rows, within_epoch: bool) -> bool:
        """Without reading them."""
        if rows.arrays is None:  # each item is compared when it is drawn
            return rows.items is not None and rows.items is self._given.items
        if _places(rows) != _places(self._given):
            return False
        counted = rows.counts_writes and self._given.counts_writes
        return self.named or (counted and not within_epoch and _writes(rows) == self._writes)

    def _equal(self, rows: Rows) -> bool:
        return not self.named and fingerprint_of(rows) == self.fingerprint


@final
class _CheckedItems:
    """A dataset whose items are compared with what they were."""

    def __init__(self, items: Items, marks: list[bytes]) -> None:
        self._items, self._marks = items, marks

    def __len__(self) -> int:
        return len(self._marks)

    def __getitem__(self, index: int) -> Any:
        item = self._items[index]
        if mark_of(item) != self._marks[index]:
            raise InvalidInput(
                "An item that was drawn is not what it was when the run began. If reading changes "
                f"items (random crops), {_NAME_IT}. {_CHANGED}"
            )
        return item


@final
class _CheckedArrays:
    """Takes rows, and compares them with what they were."""

    def __init__(self, rows: Rows, sums: RowSums) -> None:
        self._take, self._sums = rows.take, sums

    def __call__(self, indices: Indices) -> Any:
        taken = self._take(indices)
        self._sums.check(taken if isinstance(taken, tuple) else (taken,), indices, _CHANGED)
        return taken


def _marks(rows: Rows) -> list[bytes]:
    """The marks of all items, with a word about data that are slow or change when they are read."""
    start, marks = time.monotonic(), []
    for index in range(rows.length):
        marks.append(mark_of(rows.items[index]))
        if index == _TIMED - 1:
            _warn_if_slow((time.monotonic() - start) * rows.length / _TIMED)
    if any(mark_of(rows.items[i]) != marks[i] for i in range(min(_READ_TWICE, rows.length))):
        raise InvalidInput(
            "The items of this dataset change from one reading to the next (random crops?), so it "
            "cannot be seen whether the run keeps to its data. Move what is random into the model "
            f"or the loss, or {_NAME_IT}: the certificate then says that they were not compared."
        )
    return marks


def _warn_if_slow(seconds: float) -> None:
    if seconds > _PATIENCE:
        warnings.warn(
            f"Reading every item of the dataset once, to pin the data of the run, takes about "
            f"{seconds / 60:.0f} minutes. To do without, {_NAME_IT}: the certificate then says "
            "that their content was not compared.",
            stacklevel=2,
        )


def _writes(rows: Rows) -> list[int | None]:
    return [None if part.is_inference() else part._version for part in rows.arrays or ()]


def _places(rows: Rows) -> list[Any]:
    """Where in memory the arrays lie, and how."""
    parts = rows.arrays or ()
    return [(t.data_ptr(), t.shape, t.stride(), t.dtype, t.device) for t in parts]
