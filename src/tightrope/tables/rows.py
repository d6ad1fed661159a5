"""Cells of a table that was read once: in memory, or beyond a limit in a file without a name.

The file is made where temporary files are, for its owner only, and has no name from the start, so
nothing is left when the process ends.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from typing import Any, final

import numpy as np

from tightrope.errors import InvalidInput
from tightrope.tables.cells import (
    Books,
    cells_of,
    counts_of_texts,
    kept_of_each,
    relisted,
)
from tightrope.tables.design import Design
from tightrope.tables.schema import Number, TableSchema
from tightrope.tables.sources import CHUNK, Raw
from tightrope.validate import FloatArray

MEMORY = 1 << 29  # bytes of cells, and again of encoded rows, that are kept in memory


def room_for(shape: tuple[int, ...], kind: type[Any], memory: int) -> Any:
    """An array of zeros, in memory or in a file without a name."""
    if np.prod(shape, dtype=np.int64) * np.dtype(kind).itemsize <= memory:
        return np.zeros(shape, kind)
    with tempfile.TemporaryFile() as file:  # stays open for as long as it is mapped
        return np.memmap(file, kind, "w+", shape=shape)


@final
class Rows:
    """All cells, passed over a chunk at a time."""

    def __init__(self, cells: Any, schema: TableSchema, books: Books | None = None) -> None:
        self._cells, self._schema, self.books = cells, schema, books or {}

    def __len__(self) -> int:
        return len(self._cells)

    def chunks(self) -> Iterator[FloatArray]:
        for at in range(0, max(len(self._cells), 1), CHUNK):
            yield np.asarray(self._cells[at : at + CHUNK])

    def map(self, function: Callable[[FloatArray], Any]) -> Iterable[Any]:
        return map(function, self.chunks())

    def texts(self, column: str) -> Counter[str]:
        """The rows with each text of an unlisted category."""
        place, book = 1 + self._schema.used.index(column), self.books.get(column, {})
        total: Counter[str] = Counter()
        for chunk in self.chunks():
            total.update(counts_of_texts(chunk, place, book))
        return total

    def targets(self, schema: TableSchema) -> Any:
        """The target of all rows, as the estimators take it."""
        return np.concatenate([target_cells(chunk, schema) for chunk in self.chunks()])

    def cells_for_keys(self) -> Any:
        """The cells without NaN, by which this process knows rows that are fitted again."""
        return np.nan_to_num(self._cells, nan=-1.0, posinf=1e300, neginf=-1e300)

    def encoded(self, design: Design, memory: int = MEMORY) -> Any:
        """The rows that a model sees (float32)."""
        out = room_for((len(self), design.width), np.float32, memory)
        names = design.names_of(self._schema)
        for at, chunk in zip(range(0, len(self), CHUNK), self.chunks(), strict=True):
            cells = relisted(chunk, self._schema, self.books, names) if names else chunk
            design.fill(cells, out[at : at + CHUNK])
        return out


def read_rows(
    chunks: Iterator[Raw],
    schema: TableSchema,
    *,
    with_target: bool = True,
    memory: int = MEMORY,
    on_chunk: Callable[[int], None] | None = None,
    may_be_empty: bool = False,
) -> Rows:
    """Every chunk of a source as numbers. on_chunk: called with the rows read so far."""
    kept: list[FloatArray] = []
    books: Books = {}
    seen: dict[float, int] = {}
    rows = 0
    with ExitStack() as files:
        if isinstance(chunks, Generator):  # its file is closed whatever goes wrong
            files.callback(chunks.close)
        stored: Any = None
        for raw in chunks:
            cells = cells_of(raw, schema, books, with_target=with_target)
            if with_target and schema.key is not None:
                keys = cells[:, 1 + schema.used.index(schema.key)]
                cells[~kept_of_each(keys, schema.rows, seen)] = 0.0
            rows += len(cells)
            kept.append(cells)
            if stored is None and sum(part.nbytes for part in kept) > memory:
                stored = files.enter_context(tempfile.TemporaryFile())
            if stored is not None:
                for part in kept:
                    stored.write(np.ascontiguousarray(part).data)
                kept = []
            if on_chunk is not None:
                on_chunk(rows)
        if not rows and may_be_empty:
            kept = [np.empty((0, 1 + len(schema.used)))]
        elif not rows:
            raise InvalidInput("The table has no rows.")
        if stored is None:
            return Rows(np.concatenate(kept), schema, books)
        stored.flush()
        shape = (rows, 1 + len(schema.used))
        return Rows(np.memmap(stored, np.float64, "r", shape=shape), schema, books)


def target_cells(cells: FloatArray, schema: TableSchema) -> Any:
    """The target of a chunk: whole numbers for classes, and numbers in [-1, 1]."""
    target = cells[:, 1 + schema.used.index(str(schema.target))]
    kind = schema.columns[str(schema.target)]
    if not isinstance(kind, Number) or kind.bounds is None:
        return target.astype(np.int64)
    low, high = kind.bounds
    return np.clip((target - 0.5 * (low + high)) / (0.5 * (high - low)), -1.0, 1.0)


def encoded_targets(cells: FloatArray, schema: TableSchema) -> FloatArray:
    """The target of a chunk as the losses take it: two classes are -1 and +1."""
    target = target_cells(cells, schema).astype(np.float64)
    two = schema.classes is not None and len(schema.classes) == 2
    return np.asarray(2.0 * target - 1.0 if two else target)
