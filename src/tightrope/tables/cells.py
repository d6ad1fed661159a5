"""Raw cells as numbers, each by a rule that looks at no other row.

A chunk of a table becomes an array (rows, 1 + columns) of float64: first 1 where a row counts and 0
where it is empty, then one column for each that the schema uses. A number is itself, a flag 0 or 1,
a date its day, a listed category its place (one beyond the last for "other"), one of an unknown
list its number in a book of texts, and NaN is a missing value. So a chunk is small, and can be
stored, sent and passed over again and again. Numbers of a book follow the order of rows and mean
nothing elsewhere: whatever leaves goes by the text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tightrope.errors import InvalidInput
from tightrope.tables.schema import (
    Category,
    Column,
    Date,
    Flag,
    Number,
    TableSchema,
    day_of,
    text_of,
)
from tightrope.validate import FloatArray

Books = dict[str, dict[str, int]]  # of each column: the number of each text
COUNTS = 0  # the place of the column that says whether a row counts
_PLAIN = (str, int, float, bool)
_YES = frozenset(("1", "1.0", "true", "yes", "t", "y", "on"))
_NO = frozenset(("0", "0.0", "false", "no", "f", "n", "off"))


@final
@dataclass(frozen=True)
class Chunk:
    """Some rows as numbers, and the books of their unlisted categories."""

    cells: FloatArray
    books: Books


def cells_of(
    raw: Mapping[str, Any], schema: TableSchema, books: Books, *, with_target: bool = True
) -> FloatArray:
    """The numbers of a chunk of raw columns (lists of texts, or arrays); new texts are booked."""
    wanted = schema.used if with_target else schema.features
    missing = [name for name in wanted if name not in raw]
    if missing:
        raise InvalidInput(
            f"The table lacks columns that the schema names: {', '.join(map(repr, missing[:5]))}"
            f"{' and more' * (len(missing) > 5)}. Its columns are "
            f"{', '.join(map(repr, list(raw)[:40]))}."
        )
    absent = frozenset(schema.missing)
    rows = len(raw[wanted[0]])
    cells = np.empty((rows, 1 + len(schema.used)))
    cells[:, COUNTS] = 1.0
    for at, name in enumerate(schema.used, start=1):
        if name not in wanted:
            cells[:, at] = math.nan
            continue
        if len(raw[name]) != rows:
            raise InvalidInput(f"Column {name!r} has another length than {wanted[0]!r}.")
        kind = Category() if name == schema.key else schema.columns[name]
        cells[:, at] = _column(raw[name], kind, absent, books.setdefault(name, {}))
    if with_target and schema.target is not None:
        _without_label(cells, schema)
    return cells


def _without_label(cells: FloatArray, schema: TableSchema) -> None:
    """A row whose label is missing or not listed counts as empty: it stays, and says nothing."""
    label = cells[:, 1 + schema.used.index(str(schema.target))]
    kind = schema.columns[str(schema.target)]
    bad = np.isnan(label)
    if isinstance(kind, Category) and kind.values is not None:
        bad |= label >= len(kind.values)
    cells[bad] = 0.0


def _column(raw: Any, kind: Column, absent: frozenset[str], book: dict[str, int]) -> FloatArray:
    if isinstance(kind, Number):
        return _numbers(raw, absent)
    if isinstance(kind, Flag):
        return _by_text(raw, _flag, absent)
    if isinstance(kind, Date):
        array = raw if isinstance(raw, np.ndarray) else None
        if array is not None and array.dtype.kind == "M":
            days = array.astype("datetime64[D]")
            return np.where(np.isnat(days), math.nan, days.astype(np.int64).astype(np.float64))
        return _by_text(raw, day_of, absent)
    assert isinstance(kind, Category)
    if kind.values is None:
        return _by_text(raw, lambda text: float(book.setdefault(text, len(book))), absent)
    places = {value: float(place) for place, value in enumerate(kind.values)}
    other = float(len(places))
    return _by_text(raw, lambda text: places.get(text, other), absent)


def _flag(text: str) -> float:
    lower = text.lower()
    return 1.0 if lower in _YES else 0.0 if lower in _NO else math.nan


def _numbers(raw: Any, absent: frozenset[str]) -> FloatArray:
    """Floats, NaN where a cell is no number. Infinite ones stay, to be clipped."""
    if isinstance(raw, np.ndarray) and raw.dtype.kind in "fiub":
        return raw.astype(np.float64)
    if isinstance(raw, np.ndarray) and raw.dtype.kind in "mMc":
        return np.full(len(raw), math.nan)
    try:
        return np.fromiter(map(float, raw), np.float64, len(raw))
    except (ValueError, TypeError):
        return np.fromiter((_number(value, absent) for value in raw), np.float64, len(raw))


def _number(value: Any, absent: frozenset[str]) -> float:
    try:
        return math.nan if isinstance(value, str) and value.strip() in absent else float(value)
    except (ValueError, TypeError):
        return math.nan


def _by_text(raw: Any, rule: Callable[[str], float], absent: frozenset[str]) -> FloatArray:
    """`rule` of the text of each cell; each different text is looked at once."""
    if isinstance(raw, np.ndarray) and raw.dtype.kind in "fiub":
        values, places = np.unique(raw, return_inverse=True)
        found = [math.nan if v != v else _of_text(text_of(v.item()), rule, absent) for v in values]
        return np.asarray(found, dtype=np.float64)[places.reshape(len(raw))]
    # by type, too: 1 == True, and what a row says must not depend on which of them came before
    seen: dict[tuple[type, Any], float] = {}

    def of_cell(value: Any) -> float:
        if type(value) not in _PLAIN:
            none = value is None or _is_missing_scalar(value)
            return math.nan if none else _of_text(text_of(value), rule, absent)
        key = (type(value), value)
        got = seen.get(key)
        if got is None:
            got = math.nan if value != value else _of_text(text_of(value), rule, absent)
            seen[key] = got
        return got

    return np.fromiter(map(of_cell, raw), np.float64, len(raw))


def _is_missing_scalar(value: Any) -> bool:
    return type(value).__name__ in ("NAType", "NaTType")


def _of_text(text: str, rule: Callable[[str], float], absent: frozenset[str]) -> float:
    return math.nan if text in absent else rule(text)


def kept_of_each(keys: FloatArray, rows: int, seen: dict[float, int]) -> NDArray[np.bool_]:
    """Which rows are among the first `rows` of their key; missing keys are one key together."""
    keys = np.where(np.isnan(keys), -1.0, keys)
    kept = np.zeros(len(keys), dtype=bool)
    for at, key in enumerate(keys.tolist()):
        before = seen.get(key, 0)
        kept[at] = before < rows
        seen[key] = before + 1
    return kept


def counts_of_texts(cells: FloatArray, place: int, book: Mapping[str, int]) -> Counter[str]:
    """In how many rows that count each text of a column is; a row has at most one."""
    values = cells[(cells[:, COUNTS] == 1.0) & ~np.isnan(cells[:, place]), place]
    counts = np.bincount(values.astype(np.int64), minlength=len(book))
    return Counter({text: int(counts[code]) for text, code in book.items() if counts[code]})


def relisted(
    cells: FloatArray, schema: TableSchema, books: Books, names: Mapping[str, tuple[str, ...]]
) -> FloatArray:
    """The cells with unlisted categories at their places in `names`, others one beyond."""
    found = cells.copy()
    for name, shown in names.items():
        place, book = 1 + schema.used.index(name), books.get(name, {})
        new = np.full(len(book) + 1, float(len(shown)))
        for at, text in enumerate(shown):
            if text in book:
                new[book[text]] = at
        present = ~np.isnan(cells[:, place])
        found[present, place] = new[cells[present, place].astype(np.int64)]
    return found
