"""Tables in CSV files, as spreadsheets and databases write them.

UTF-8 with or without a byte order mark, UTF-16 with one; fields apart by comma, semicolon or tab,
found out from the header, which is public. Messages name columns, never values.
"""

from __future__ import annotations

import codecs
import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from tightrope.errors import InvalidInput
from tightrope.evidence.files import open_ordinary, why_unread
from tightrope.validate import FloatArray

__all__ = ["CsvTable", "read_csv", "numbers"]

_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_DELIMITERS = (",", ";", "\t")


@final
@dataclass(frozen=True)
class CsvTable:
    """Features (n, d) float64, the target column as text, and the names of the features."""

    features: FloatArray
    target: Any
    names: tuple[str, ...]


def read_csv(path: str | Path, target: str) -> CsvTable:
    """Read a file with a header line."""
    text = _text(Path(path))
    try:
        delimiter = _delimiter(text, target)
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=delimiter) if row]
    except csv.Error as error:
        raise InvalidInput(f"{path} is not a table: {error}.") from None
    header = [name.strip() for name in rows[0]] if rows else []
    _check_header(path, header, target)
    if len(rows) < 2 or any(len(row) != len(header) for row in rows):
        raise InvalidInput(
            f"{path} must hold at least one row, and each row as many fields as the header "
            f"({len(header)}, apart by {delimiter!r})."
        )
    columns = dict(zip(header, zip(*rows[1:], strict=True), strict=True))
    labels = np.array([value.strip() for value in columns.pop(target)])
    table = np.column_stack([numbers(values, name) for name, values in columns.items()])
    return CsvTable(table, labels, tuple(columns))


def _text(path: Path) -> str:
    try:
        with open_ordinary(path) as file:
            raw = file.read()
    except (InvalidInput, OSError) as error:
        raise InvalidInput(f"{path} cannot be read: {why_unread(error)}.") from None
    encoding = next((name for mark, name in _MARKS.items() if raw.startswith(mark)), "utf-8")
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InvalidInput(
            f"{path} is neither UTF-8 nor UTF-16 with a byte order mark. Save it as UTF-8 "
            "(in a spreadsheet: 'CSV UTF-8')."
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _delimiter(text: str, target: str) -> str:
    """The one that finds the target among the names of the first line that is not empty."""
    for delimiter in _DELIMITERS:
        names = next(filter(None, csv.reader(io.StringIO(text), delimiter=delimiter)), [])
        if target in [name.strip() for name in names]:
            return delimiter
    return ","


def _check_header(path: str | Path, header: list[str], target: str) -> None:
    if target not in header:
        raise InvalidInput(f"{path} has no column {target!r}; {_said(header)}.")
    if len(header) < 2:
        raise InvalidInput(
            f"{path} has only the column {target!r}: there is nothing to predict it from."
        )
    twice = sorted(name for name, times in Counter(header).items() if times > 1)
    if twice:
        raise InvalidInput(f"{path} has more than one column {', '.join(map(repr, twice))}.")


def _said(header: list[str]) -> str:
    """The names, unless they look like a row: numbers, or a quote that was never closed."""
    if any(_is_row(name) for name in header):
        return "its first line holds values, not names: write a header line"
    return f"its columns are {', '.join(header)}" if header else "its header is empty"


def _is_row(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return "\n" in name
    return True


def numbers(values: Sequence[str], name: str) -> FloatArray:
    """A column of finite numbers."""
    try:
        found = np.array([float(value) for value in values])
    except ValueError:
        raise InvalidInput(
            f"Column {name!r} holds text or empty fields. Encode it as numbers by a rule that does "
            "not look at the data (a public list of categories, a fixed value for empty fields; "
            "numbers have a decimal point, not a comma)."
        ) from None
    if not np.isfinite(found).all():
        raise InvalidInput(
            f"Column {name!r} holds NaN or infinity. Replace such fields by a fixed value, or "
            "drop their rows, by a rule that does not depend on other rows."
        )
    return found
