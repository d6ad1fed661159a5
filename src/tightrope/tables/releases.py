"""What is bought before a model is fitted: bounds, ranks and categories, from noisy counts.

All of it comes from counts of rows in cells that are fixed in advance, with discrete Gaussian noise
on whole numbers, so nothing is rounded. A row is in one cell of each column. Three releases, each
only where the schema needs it:

- octaves: counts in cells between powers of two, for numbers without public bounds. The outermost
  cells that stand out of the noise are the bounds.
- cells: counts in a few dozen cells between these or the public bounds. They give the bounds of all
  but about 2 % of the rows at each end, and ranks.
- categories: counts of texts that occur, shown from a threshold on (`ThresholdedCounts`); all
  others are "other".

What is released is accounted as it is described here: `Preparation.processes` is read by the
accountant and `released` draws the noise from the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
from scipy.special import ndtri

from tightrope.convex.counts import Whole, moved_by, noisy, whole_scale
from tightrope.entropy import WordStream
from tightrope.errors import InvalidInput
from tightrope.process import Adjacency, DiscreteGaussianVector, Process, ThresholdedCounts
from tightrope.tables.cells import COUNTS
from tightrope.tables.design import CategoryCode, Design, NumberCode
from tightrope.tables.schema import Category, Date, Flag, Number, TableSchema, day_of
from tightrope.theorems.discrete_gaussian import chance_alone
from tightrope.validate import FloatArray

LEAST, MOST = -20, 40  # powers of two that numbers without bounds are sorted into
_EDGES = np.concatenate(
    [-(2.0 ** np.arange(MOST, LEAST - 1, -1)), 2.0 ** np.arange(LEAST, MOST + 1)]
)
_EVEN, _FINEST = 24, 2.0**-10
_STANDS_OUT, _COUNTS_FROM, _TAIL = 4.0, 1.5, 0.02
_WEIGHTS = {"octaves": 1.0, "cells": 1.5, "categories": 1.5}  # of mu^2; chosen on Adult and Bank


class Cells(Protocol):
    """Chunks of cells to be passed over, here or on other machines."""

    def map(self, function: Callable[[FloatArray], Any]) -> Iterable[Any]: ...
    def texts(self, column: str) -> Mapping[str, int]: ...


@final
@dataclass(frozen=True)
class Preparation:
    """The releases with their noise, before a row is read. A scale of 0: not needed."""

    schema: TableSchema
    adjacency: Adjacency
    octaves: int = 0
    cells: int = 0
    categories: int = 0
    threshold: int = 0
    ranks: bool = True

    @property
    def processes(self) -> tuple[Process, ...]:
        """What is released, in order."""
        found: list[Process] = []
        for scale, columns, dimension in (
            (self.octaves, unbounded(self.schema), len(_EDGES) + 1),
            (self.cells, ranked(self.schema), _EVEN + 2 * len(_EDGES)),
        ):
            if scale:
                moved = moved_by(len(columns), self.adjacency)
                size = dimension * len(columns)
                found.append(DiscreteGaussianVector(scale, moved, size, self.adjacency))
        if self.categories:
            one = ThresholdedCounts(self.categories, self.threshold, self.adjacency)
            found += [one] * len(unlisted(self.schema))
        return tuple(found)


def prepared(
    schema: TableSchema, mu: float, tail: float, adjacency: Adjacency, *, ranks: bool = True
) -> Preparation:
    """What a budget of mu (and `tail` of delta, for thresholds) buys."""
    needed = {
        "octaves": len(unbounded(schema)),
        "cells": len(ranked(schema)) if ranks or unbounded(schema) else 0,
        "categories": len(unlisted(schema)),
    }
    whole = math.fsum(_WEIGHTS[name] for name, count in needed.items() if count)
    if not whole:
        return Preparation(schema, adjacency, ranks=ranks)
    if not mu > 0.0:
        raise InvalidInput(
            "The schema leaves bounds or categories unknown, and preprocessing=0 buys none. Give "
            "it a share of the budget, or make them public."
        )

    def scale(name: str) -> int:
        share = mu * math.sqrt(_WEIGHTS[name] / whole)
        return whole_scale(moved_by(needed[name], adjacency), share) if needed[name] else 0

    sigma, threshold = scale("categories"), 0
    if sigma:
        each = tail / needed["categories"]
        threshold = 2 + math.ceil(-sigma * float(ndtri(each)))
        while chance_alone(sigma, threshold) > each:
            threshold += 1
    return Preparation(
        schema, adjacency, scale("octaves"), scale("cells"), sigma, max(threshold, 2), ranks
    )


def unbounded(schema: TableSchema) -> tuple[str, ...]:
    """Features that are numbers without public bounds."""
    kinds = schema.columns
    return tuple(
        n for n in schema.features if isinstance(c := kinds[n], Number) and c.bounds is None
    )


def ranked(schema: TableSchema) -> tuple[str, ...]:
    """Features that are numbers or dates."""
    return tuple(n for n in schema.features if isinstance(schema.columns[n], Number | Date))


def unlisted(schema: TableSchema) -> tuple[str, ...]:
    """Features whose categories are unknown."""
    kinds = schema.columns
    return tuple(
        n for n in schema.features if isinstance(c := kinds[n], Category) and c.values is None
    )


# ---- counts of one chunk: what a worker computes ------------------------------------------------


@final
@dataclass(frozen=True)
class CellCounts:
    """Rows of a chunk in each cell of some columns; the outer cells reach to infinity."""

    places: tuple[int, ...]
    edges: tuple[tuple[float, ...], ...]

    def __call__(self, cells: FloatArray) -> Whole:
        most = max(len(edges) for edges in self.edges) + 1
        found = np.zeros((len(self.places), most), dtype=np.int64)
        for row, (place, edges) in enumerate(zip(self.places, self.edges, strict=True)):
            values = cells[(cells[:, COUNTS] == 1.0) & ~np.isnan(cells[:, place]), place]
            at = np.searchsorted(np.array(edges), values, "right")
            found[row] = np.bincount(at, minlength=most)
        return found


# ---- the releases -------------------------------------------------------------------------------


def released(plan: Preparation, rows: Cells, stream: WordStream) -> Design:
    """How features are encoded, from noisy counts and the schema alone."""
    schema = plan.schema
    place = {name: 1 + schema.used.index(name) for name in schema.features}
    bounds = _public_bounds(schema) | _released_bounds(plan, rows, stream, place)
    numbers = _numbers(plan, rows, stream, place, bounds)
    codes: dict[str, Any] = {}
    for name in schema.features:
        kind = schema.columns[name]
        if isinstance(kind, Flag):
            codes[name] = NumberCode(0.0, 1.0)
        elif isinstance(kind, Category):
            values = kind.values
            codes[name] = (
                _occurring(plan, rows, stream, name) if values is None else CategoryCode(values)
            )
        else:
            codes[name] = numbers[name]
    return Design(codes, tuple(place[name] for name in codes))


def _public_bounds(schema: TableSchema) -> dict[str, tuple[float, float]]:
    found = {}
    for name in schema.features:
        kind = schema.columns[name]
        if isinstance(kind, Number) and kind.bounds is not None:
            found[name] = kind.bounds
        elif isinstance(kind, Date):
            found[name] = (day_of(kind.first), day_of(kind.last))
    return found


def _released_bounds(
    plan: Preparation, rows: Cells, stream: WordStream, place: dict[str, int]
) -> dict[str, tuple[float, float]]:
    names = unbounded(plan.schema)
    if not names:
        return {}
    part = CellCounts(tuple(place[n] for n in names), (tuple(_EDGES.tolist()),) * len(names))
    counts = noisy(sum(rows.map(part)), plan.octaves, stream)
    return {n: _ends(row, plan.octaves) for n, row in zip(names, counts, strict=True)}


def _ends(counts: Whole, scale: int) -> tuple[float, float]:
    """The outer edges of the outermost cells that stand out of the noise."""
    clear = np.flatnonzero(counts > _STANDS_OUT * scale)
    if not len(clear):
        clear = np.array([int(counts.argmax())])
    first = min(max(int(clear[0]) - 1, 0), len(_EDGES) - 2)
    last = min(int(clear[-1]), len(_EDGES) - 1)
    return float(_EDGES[first]), float(_EDGES[max(last, first + 1)])


def edges_between(low: float, high: float) -> tuple[float, ...]:
    """Cells between two bounds: even ones, and finer ones towards zero, where tails are long."""
    powers = _EDGES[(low < _EDGES) & (high > _EDGES)]
    powers = powers[np.abs(powers) >= _FINEST * (high - low)]
    return tuple(np.unique(np.concatenate([np.linspace(low, high, _EVEN + 1), powers])).tolist())


def _numbers(
    plan: Preparation,
    rows: Cells,
    stream: WordStream,
    place: dict[str, int],
    bounds: dict[str, tuple[float, float]],
) -> dict[str, NumberCode]:
    names = ranked(plan.schema)
    if not plan.cells:
        return {name: NumberCode(*bounds[name]) for name in names}
    # values outside count in the outermost cells, so those have inner edges only
    edges = [edges_between(*bounds[name]) for name in names]
    part = CellCounts(tuple(place[n] for n in names), tuple(e[1:-1] for e in edges))
    counts = noisy(sum(rows.map(part)), plan.cells, stream)
    return {
        name: number_code(row[: len(e) - 1], e, plan.cells, ranks=plan.ranks)
        for name, row, e in zip(names, counts, edges, strict=True)
    }


def number_code(
    counts: Whole, edges: tuple[float, ...], scale: int, *, ranks: bool = True
) -> NumberCode:
    """Bounds of all but the tails, and ranks, from noisy counts between `edges`."""
    shares = np.where(counts > _COUNTS_FROM * scale, counts, 0.0)
    shares = shares / shares.sum() if shares.sum() > 0.0 else np.full(len(counts), 1 / len(counts))
    below = np.concatenate([[0.0], np.minimum(np.cumsum(shares), 1.0)])
    low, high = quantile(below, edges, _TAIL), quantile(below, edges, 1.0 - _TAIL)
    if not low < high:
        low, high = edges[0], edges[-1]
    if not ranks:
        return NumberCode(low, high)
    return NumberCode(low, high, edges, tuple(np.clip(2.0 * below - 1.0, -1.0, 1.0).tolist()))


def quantile(below: FloatArray, edges: tuple[float, ...], share: float) -> float:
    """Where the share of rows below, a straight line in each cell, reaches `share`."""
    after = (
        int(np.searchsorted(below, share, "left"))
        if share > 0.5
        else int(np.searchsorted(below, share, "right"))
    )
    after = min(max(after, 1), len(edges) - 1)
    inside = below[after] - below[after - 1]
    part = (share - below[after - 1]) / inside if inside > 0.0 else 0.5
    return float(edges[after - 1] + min(max(part, 0.0), 1.0) * (edges[after] - edges[after - 1]))


def _occurring(plan: Preparation, rows: Cells, stream: WordStream, name: str) -> CategoryCode:
    counts = rows.texts(name)
    texts = sorted(counts)  # the order of rows must not show
    total = np.array([counts[text] for text in texts], dtype=np.int64)
    shown = noisy(total, plan.categories, stream) >= plan.threshold
    return CategoryCode(tuple(text for text, kept in zip(texts, shown, strict=True) if kept))
