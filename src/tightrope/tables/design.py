"""From cells to the rows that a model sees, by numbers that are public or were released.

A number gives up to three entries: its place between two bounds, in [-1, 1]; its rank among all, in
[-1, 1], from released counts; and 1 where it is missing. A category gives one entry of 1: its own,
"other" or missing. An empty row is zero. So the length of a row has a bound that is known without
looking at one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np

from tightrope.errors import InvalidInput
from tightrope.tables.cells import COUNTS
from tightrope.tables.schema import Category, TableSchema
from tightrope.validate import FloatArray


class Code(Protocol):
    """How one column enters a row; `most` bounds the squared length of its entries."""

    @property
    def most(self) -> float: ...
    @property
    def labels(self) -> tuple[str, ...]: ...
    def fill(self, cells: FloatArray, out: Any) -> None: ...


@final
@dataclass(frozen=True)
class NumberCode:
    """Clipped to low ... high; ranks: 2 F - 1 at `edges`, F the share of rows below."""

    low: float
    high: float
    edges: tuple[float, ...] = ()
    ranks: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        given = np.array((self.low, self.high, *self.edges, *self.ranks), dtype=np.float64)
        even = len(self.edges) == len(self.ranks) and bool((np.diff(self.edges) > 0.0).all())
        if not (even and self.low < self.high and np.isfinite(given).all()):
            raise ValueError("A number is encoded between finite bounds and increasing edges.")
        if any(abs(rank) > 1.0 for rank in self.ranks):
            raise ValueError("A rank lies in [-1, 1].")

    @property
    def most(self) -> float:
        return 2.0 if self.edges else 1.0

    @property
    def labels(self) -> tuple[str, ...]:
        return ("", "rank", "missing") if self.edges else ("", "missing")

    def fill(self, cells: FloatArray, out: Any) -> None:
        absent = np.isnan(cells)
        values = np.where(absent, self.low, cells)
        middle, half = 0.5 * (self.low + self.high), 0.5 * (self.high - self.low)
        scaled = (np.clip(values, self.low, self.high) - middle) / half
        out[:, 0] = np.where(absent, 0.0, np.clip(scaled, -1.0, 1.0))
        if self.edges:
            out[:, 1] = np.where(absent, 0.0, np.interp(values, self.edges, self.ranks))
        out[:, -1] = absent


@final
@dataclass(frozen=True)
class CategoryCode:
    """One entry for each of `names`, by its place, one for "other", one for missing."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        texts = all(isinstance(name, str) for name in self.names)
        if not texts or len(set(self.names)) < len(self.names):
            raise ValueError("Categories are different texts.")

    @property
    def most(self) -> float:
        return 1.0

    @property
    def labels(self) -> tuple[str, ...]:
        return (*(f"={name}" for name in self.names), "=(other)", "=(missing)")

    def fill(self, cells: FloatArray, out: Any) -> None:
        out[:] = 0.0
        other = len(self.names)
        places = np.where(np.isnan(cells), other + 1, np.clip(cells, 0, other)).astype(np.int64)
        out[np.arange(len(cells)), places] = 1.0


_CODES: dict[str, type[Any]] = {"number": NumberCode, "category": CategoryCode}


@final
@dataclass(frozen=True)
class Design:
    """A code for each feature; places: their columns among the cells."""

    codes: Mapping[str, Any]
    places: tuple[int, ...]

    def names_of(self, schema: TableSchema) -> dict[str, tuple[str, ...]]:
        """What was released of the categories that the schema does not list."""
        kinds = schema.columns
        return {
            name: code.names
            for name, code in self.codes.items()
            if isinstance(kind := kinds[name], Category) and kind.values is None
        }

    @property
    def width(self) -> int:
        return sum(len(code.labels) for code in self.codes.values())

    @property
    def norm(self) -> float:
        """A bound on the length of every row, known without the rows."""
        return math.sqrt(math.fsum(code.most for code in self.codes.values()))

    @property
    def names(self) -> tuple[str, ...]:
        """What each entry of a row stands for."""
        pairs = self.codes.items()
        return tuple(f"{n} {x}" if x[:1].isalpha() else n + x for n, c in pairs for x in c.labels)

    def rows_of(self, cells: FloatArray) -> Any:
        """The rows (float32) of a chunk of cells."""
        out = np.empty((len(cells), self.width), np.float32)
        self.fill(cells, out)
        return out

    def fill(self, cells: FloatArray, out: Any) -> None:
        start = 0
        for code, place in zip(self.codes.values(), self.places, strict=True):
            end = start + len(code.labels)
            code.fill(cells[:, place], out[:, start:end])
            start = end
        out[cells[:, COUNTS] == 0.0] = 0.0

    def as_dict(self) -> dict[str, Any]:
        kinds = {cls: name for name, cls in _CODES.items()}
        codes = {
            name: {"code": kinds[type(code)]}
            | {key: list(v) if isinstance(v, tuple) else v for key, v in vars(code).items()}
            for name, code in self.codes.items()
        }
        return {"codes": codes, "places": list(self.places)}

    @staticmethod
    def from_dict(data: Any) -> Design:
        """From plain data; anything that is not of this form is refused."""
        try:
            codes = {}
            for name, given in data["codes"].items():
                values = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
                kind = _CODES[str(values.pop("code"))]
                codes[str(name)] = kind(**values)
            design = Design(codes, tuple(int(place) for place in data["places"]))
            design.rows_of(np.zeros((1, max(design.places) + 1)))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise InvalidInput("The encoding in this model file is damaged.") from error
        return design
