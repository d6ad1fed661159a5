"""What is public about a table: the kind of each column, its bounds, its categories, whom a row is.

Everything in a schema counts as known to everybody. What is unknown is left out (None) and bought
from the budget when a model is fitted. Names of columns are public; values are not, and no message
shows one.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, final

from tightrope.errors import InvalidInput, MissingTool
from tightrope.evidence.files import printable, read_most, why_unread, write_text
from tightrope.validate import check_count, check_real

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "NaT", "<NA>")
_MOST_BYTES, _MOST_VALUES = 10_000_000, 100_000
_FIRST_DAY, _LAST_DAY = "1900-01-01", "2100-01-01"


@final
@dataclass(frozen=True)
class Number:
    """A number. low, high: public bounds, beyond which values are clipped; None is unknown."""

    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if (self.low is None) != (self.high is None):
            raise InvalidInput("A number has two public bounds or none: give both low and high.")
        if self.low is not None and self.high is not None:
            low, high = (
                float(check_real(v, n)) for v, n in ((self.low, "low"), (self.high, "high"))
            )
            if not low < high or not math.isfinite(high - low):
                raise InvalidInput(
                    f"The bounds of a number must be low < high; got low={low!r}, high={high!r}."
                )
            object.__setattr__(self, "low", low)
            object.__setattr__(self, "high", high)

    @property
    def bounds(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)


@final
@dataclass(frozen=True)
class Category:
    """One of several texts. values: all that are public; others count as "other". None: unknown."""

    values: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.values is None:
            return
        if isinstance(self.values, str) or not isinstance(self.values, Sequence):
            raise InvalidInput("values of a category must be a list of texts.")
        if any(isinstance(value, bool) for value in self.values):
            raise InvalidInput(
                "A value of a category is true or false. YAML reads yes, no, on and off so: write "
                'them in quotes ("yes"), or use the kind flag.'
            )
        values = tuple(text_of(value) for value in self.values)
        if not values or len(set(values)) < len(values) or len(values) > _MOST_VALUES:
            raise InvalidInput(
                "values of a category must be different texts, at least one and at most "
                f"{_MOST_VALUES:,}; got {len(values)}, {len(set(values))} of them different."
            )
        object.__setattr__(self, "values", values)


@final
@dataclass(frozen=True)
class Flag:
    """Yes or no, in whatever way it is written (1/0, true/false, yes/no, t/f, y/n)."""


@final
@dataclass(frozen=True)
class Date:
    """A day, written as 2026-11-19 (a time after it is left out). Clipped to first ... last."""

    first: str = _FIRST_DAY
    last: str = _LAST_DAY

    def __post_init__(self) -> None:
        for name in ("first", "last"):
            object.__setattr__(self, name, str(getattr(self, name)))
        if not day_of(self.first) < day_of(self.last):
            raise InvalidInput("The bounds of a date must be two days in ISO form, first < last.")


@final
@dataclass(frozen=True)
class Ignored:
    """A column that nothing reads."""


Column = Number | Category | Flag | Date | Ignored
_KINDS: dict[str, type[Any]] = {
    "number": Number,
    "category": Category,
    "flag": Flag,
    "date": Date,
    "ignored": Ignored,
}


def day_of(text: str) -> float:
    """Days since 1970-01-01; NaN where the text is no ISO date."""
    try:
        return float(datetime.date.fromisoformat(text.strip()[:10]).toordinal() - 719_163)
    except (ValueError, AttributeError):
        return math.nan


def text_of(value: object) -> str:
    """The text that stands for a value; a whole number has no decimal point."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return str(value).strip()


@final
@dataclass(frozen=True)
class TableSchema:
    """The public facts about a table.

    columns: a kind for each column that is used, by name (or the name of the kind: "number").
    target: the column to be predicted. key, rows: the column that says whose a row is, and how many
    rows of each of these are used at most; None protects one row. missing: texts that stand for a
    missing value. header: whether the first line of a text file holds the names; if not, the
    columns of the file are those of the schema, in order. delimiter, encoding: of text files; None
    is read off the header (a comma without one), and UTF-8.

    >>> from tightrope.tables import Category, Number, TableSchema
    >>> schema = TableSchema(
    ...     {"age": Number(0, 120), "job": Category(), "rich": Category(("no", "yes"))},
    ...     target="rich",
    ... )
    >>> schema.features
    ('age', 'job')
    """

    columns: Mapping[str, Column]
    target: str | None = None
    key: str | None = None
    rows: int = 1
    missing: tuple[str, ...] = MISSING
    header: bool = True
    delimiter: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.columns, Mapping) or not self.columns:
            raise InvalidInput("columns must name at least one column and its kind.")
        columns = {str(name): _column(name, given) for name, given in self.columns.items()}
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "rows", check_count(self.rows, "rows", low=1))
        object.__setattr__(self, "missing", tuple(map(str, self.missing)))
        self._check_target()
        if self.key is not None and self.key == self.target:
            raise InvalidInput("The key says whose a row is; it cannot be the target, too.")
        if self.key is None and self.rows != 1:
            raise InvalidInput(
                f"rows={self.rows} is how many rows one unit has at most, and no key column says "
                "whose a row is. Give key=..., or leave rows out to protect one row."
            )
        if not self.features:
            raise InvalidInput("The schema has no column to predict from.")

    def _check_target(self) -> None:
        if self.target is None:
            return
        kind = self.columns.get(self.target)
        if kind is None:
            raise InvalidInput(f"The target {self.target!r} is not among the columns.")
        if (isinstance(kind, Number) and kind.bounds is not None) or isinstance(kind, Flag):
            return
        if isinstance(kind, Category) and kind.values is not None and len(kind.values) > 1:
            return
        raise InvalidInput(
            f"The target {self.target!r} must be a number with public bounds, a category whose "
            "two or more values are listed, or a flag: a label that occurs is a private fact, so "
            "all possible ones are declared. Rows with another label count as empty."
        )

    @property
    def features(self) -> tuple[str, ...]:
        """The columns to predict from."""
        apart = (self.target, self.key)
        kinds = self.columns.items()
        return tuple(n for n, c in kinds if n not in apart and not isinstance(c, Ignored))

    @property
    def used(self) -> tuple[str, ...]:
        """All columns that are read."""
        return tuple(filter(None, (*self.features, self.target, self.key)))

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The labels of the target in their order; None where it is a number."""
        kind = None if self.target is None else self.columns[self.target]
        if isinstance(kind, Category):
            return kind.values
        return ("0", "1") if isinstance(kind, Flag) else None

    def as_dict(self) -> dict[str, Any]:
        """The schema as plain data, as a file has it."""
        kinds = {cls: name for name, cls in _KINDS.items()}
        columns = {
            name: {"kind": kinds[type(column)]}
            | {k: v for k, v in _plain(asdict(column)).items() if v is not None}
            for name, column in self.columns.items()
        }
        rest = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "columns"}
        return {"columns": columns, **_plain(rest)}

    @staticmethod
    def from_dict(data: object) -> TableSchema:
        """From plain data; unknown names are refused."""
        known = {f.name for f in fields(TableSchema)}
        if not isinstance(data, Mapping) or not set(data) <= known or "columns" not in data:
            got = ", ".join(map(str, data)) if isinstance(data, Mapping) else type(data).__name__
            raise InvalidInput(
                f"A schema holds columns and perhaps {', '.join(sorted(known - {'columns'}))}; "
                f"got {got[:200]}."
            )
        return TableSchema(**{name: data[name] for name in data if data[name] is not None})

    @staticmethod
    def read(path: str | Path) -> TableSchema:
        """From a YAML or JSON file."""
        path = Path(path)
        try:
            text = read_most(path, _MOST_BYTES).decode("utf-8-sig")
        except (InvalidInput, OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{printable(path)} cannot be read: {why_unread(error)}.") from None
        try:
            data = json.loads(text) if path.suffix == ".json" else _from_yaml(text)
        except ValueError as error:
            raise InvalidInput(f"{printable(path)} is not a schema file: {error}.") from None
        return TableSchema.from_dict(data)

    def write(self, path: str | Path) -> Path:
        """To a YAML or JSON file, by its ending."""
        data = self.as_dict()
        if Path(path).suffix == ".json":
            return write_text(path, json.dumps(data, indent=2) + "\n")
        return write_text(path, _yaml().safe_dump(data, sort_keys=False, allow_unicode=True))


def _column(name: object, given: object) -> Column:
    if isinstance(given, Column):
        return given
    data = {"kind": given} if isinstance(given, str) else given
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidInput(
            f"Column {name!r} needs a kind: {', '.join(_KINDS)}; got {str(kind)[:40]!r}."
        )
    cls = _KINDS[kind]
    allowed = {f.name for f in fields(cls)}
    if not set(data) <= allowed | {"kind"}:
        raise InvalidInput(
            f"Column {name!r} of kind {kind} may have {', '.join(sorted(allowed)) or 'nothing'} "
            f"beside its kind; got {', '.join(sorted(map(str, set(data) - allowed - {'kind'})))}."
        )
    try:
        found: Column = cls(**{key: value for key, value in data.items() if key != "kind"})
    except InvalidInput as error:
        raise InvalidInput(f"Column {name!r}: {error}") from None
    return found


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in data.items()}


def _yaml() -> Any:
    try:
        import yaml
    except ModuleNotFoundError as missing:
        raise MissingTool(
            "A YAML schema needs PyYAML: pip install 'tightrope[tables]'. Or write it as JSON."
        ) from missing
    return yaml


def _from_yaml(text: str) -> Any:
    yaml = _yaml()
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" (line {mark.line + 1})"
        raise ValueError(f"it is not YAML{where}") from None
