"""Small real tables with a binary label; none has an official split.

Nominal columns become one 0/1 column for each value. The values are listed here from the data,
which no epsilon covers; for a strict guarantee list public values yourself.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tightrope.data.folder import find_folder, read_text
from tightrope.data.libsvm import parse_libsvm
from tightrope.errors import InvalidInput
from tightrope.validate import FloatArray

__all__ = ["Table", "TABLES", "load_table"]


@final
@dataclass(frozen=True)
class Table:
    """Features float64 (n, d), labels int64 (n,) with 1 for the positive class, column names."""

    name: str
    x: NDArray[np.float64]
    y: NDArray[np.int64]
    columns: tuple[str, ...]


@final
@dataclass(frozen=True)
class _Form:
    stem: str
    positive: str
    delimiter: str = ","
    heading: bool = False
    skipped: int = 0


_FORMS = {
    "german": _Form("german.data", "2", " "),
    "bank": _Form("bank-full.csv", "yes", ";", heading=True),
    "bank-additional": _Form("bank-additional-full.csv", "yes", ";", heading=True),
    "credit-card": _Form("UCI_Credit_Card.csv", "1", heading=True, skipped=1),
    "spambase": _Form("spambase.data", "1"),
    "magic": _Form("magic04.data", "g"),
    "skin": _Form("Skin_NonSkin.txt", "1", "\t"),
}
TABLES = (*_FORMS, "w8a")


def load_table(name: str, folder: str | Path | None = None) -> Table:
    """One of TABLES."""
    if name not in TABLES:
        raise InvalidInput(f"There is no table {name!r}; the tables are {', '.join(TABLES)}.")
    place = find_folder("tabular", folder)
    if name == "w8a":
        return _w8a(place)
    form = _FORMS[name]
    rows = list(csv.reader(io.StringIO(read_text(place, form.stem)), delimiter=form.delimiter))
    rows = [row[form.skipped :] for row in rows if row]
    names = rows.pop(0)[:-1] if form.heading else [f"x{i}" for i in range(len(rows[0]) - 1)]
    y = np.array([row[-1].strip() == form.positive for row in rows], dtype=np.int64)
    return _table(name, names, [row[:-1] for row in rows], y)


def _w8a(place: Path) -> Table:
    rows = parse_libsvm(read_text(place, "w8a"), features=300)
    y = (rows.y > 0).astype(np.int64)
    return Table("w8a", rows.x.astype(np.float64), y, tuple(f"x{i}" for i in range(300)))


def _table(name: str, names: list[str], rows: list[list[str]], y: NDArray[np.int64]) -> Table:
    parts: list[NDArray[np.float64]] = []
    columns: list[str] = []
    for index, column in enumerate(names):
        values = [row[index] for row in rows]
        numbers = _numbers(values)
        encode: Callable[..., Any] = _one_hot if numbers is None else _as_they_are
        part, labels = encode(column, values, numbers)
        parts.append(part)
        columns.extend(labels)
    return Table(name, np.concatenate(parts, axis=1), y, tuple(columns))


def _numbers(values: list[str]) -> NDArray[np.float64] | None:
    try:
        return np.array(values, dtype=np.float64)
    except ValueError:
        return None


def _as_they_are(column: str, values: list[str], numbers: FloatArray) -> tuple[Any, list[str]]:
    return numbers[:, None], [column]


def _one_hot(column: str, values: list[str], numbers: FloatArray) -> tuple[Any, list[str]]:
    names, code = np.unique(np.array(values), return_inverse=True)
    return np.eye(len(names))[code], [f"{column}={name}" for name in names]
