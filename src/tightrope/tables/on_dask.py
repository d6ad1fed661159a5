"""The second executor: chunks that stay on the workers of a Dask cluster.

Workers make cells, count them, encode rows and sum clipped gradients. Sums come back to the client,
which alone adds noise, once for each release. What a worker does is a function of its part alone
and draws nothing, so a part of a lost worker is computed again and no second release is made. Tasks
have random names; what goes wrong on a worker comes back as the kind of the error, since Dask logs
the arguments of a task that fails.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, final

import numpy as np

from tightrope.convex import ArrayData, Scaling
from tightrope.convex.exact import CarriedTotal
from tightrope.convex.rows import Block, Part
from tightrope.errors import InvalidInput, MissingTool, TightropeError
from tightrope.tables.cells import Chunk
from tightrope.tables.design import Design
from tightrope.tables.rows import Rows, encoded_targets, read_rows
from tightrope.tables.schema import TableSchema
from tightrope.tables.sources import open_source
from tightrope.validate import FloatArray


def is_of_dask(data: Any) -> bool:
    """Is this a frame or an array of Dask?"""
    return type(data).__module__.partition(".")[0] in ("dask", "dask_expr")


@final
class _Failed:
    """What went wrong on a worker, without what it went wrong with."""

    def __init__(self, error: Exception) -> None:
        ours = isinstance(error, TightropeError)
        self.words = str(error) if ours else f"{type(error).__name__} on a worker"


def _guarded(part: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(part, _Failed):
        return part
    try:
        return function(part)
    except Exception as error:  # Dask would log the arguments
        return _Failed(error)


@final
class DaskRows:
    """Cells of a Dask frame or array, a chunk for each of its parts."""

    def __init__(self, data: Any, schema: TableSchema) -> None:
        if schema.key is not None:
            raise InvalidInput(
                "A key column needs all rows of a key in one place, and parts of Dask are apart. "
                "Keep at most K rows of each key before, and pass a table without the key to a "
                "budget divided by K; or fit on one machine."
            )
        self._client, self._schema = _client(), schema
        parts = self._client.compute(_parts(data, schema))
        self._chunks = self._each(parts, _OfPart(_read, schema))
        counts = list(self.map(len))
        self._count = int(sum(counts))
        if not self._count:
            raise InvalidInput("The table has no rows.")

    def __len__(self) -> int:
        return self._count

    def _each(self, parts: list[Any], function: Callable[[Any], Any]) -> list[Any]:
        """A function of each part, on the workers."""
        name = f"tightrope-{uuid.uuid4().hex}"
        keys = [f"{name}-{at}" for at in range(len(parts))]
        found: list[Any] = self._client.map(
            _guarded, parts, function=function, key=keys, pure=False
        )
        return found

    def _gathered(self, futures: list[Any]) -> Iterator[Any]:
        for found in self._client.gather(futures):
            if isinstance(found, _Failed):
                raise InvalidInput(f"A part of the table could not be used: {found.words}.")
            yield found

    def map(self, function: Callable[[FloatArray], Any]) -> Iterable[Any]:
        return self._gathered(self._each(self._chunks, _OfPart(_of_cells, function)))

    def texts(self, column: str) -> Counter[str]:
        """The rows with each text of an unlisted category, over all parts."""
        part = _OfPart(_texts_of, column, self._schema)
        return sum(self._gathered(self._each(self._chunks, part)), Counter())

    def fit(self, estimator: Any, design: Design) -> Any:
        """Fit a linear estimator: its sums are made where the rows are."""
        if not hasattr(estimator, "fit_elsewhere"):
            raise InvalidInput(
                f"{type(estimator).__name__} needs all rows on one machine. On Dask use an "
                "estimator of tightrope.estimators, whose sums are made on the workers."
            )
        rows = self._each(self._chunks, _OfPart(_encoded, design, self._schema))
        return estimator.fit_elsewhere(
            lambda scaling: DaskData(self, rows, scaling, design.width), self._count
        )


@final
class DaskData:
    """Encoded rows on the workers, scaled; only sums over them come back."""

    divisible = False

    def __init__(self, table: DaskRows, encoded: list[Any], scaling: Scaling, width: int) -> None:
        self._table, self._encoded, self.scaling = table, encoded, scaling
        self._features, self.width = width, width + bool(scaling.intercept)
        self._rows = table._each(encoded, _OfPart(_placed, scaling))

    @property
    def count(self) -> int:
        return len(self._table)

    rows = count

    def total_of(self, part: Part) -> CarriedTotal:
        total: CarriedTotal | None = None
        for found in self._table._gathered(self._table._each(self._rows, _OfPart(_sum_of, part))):
            if total is None:
                total = found
            else:
                total.join(found)
        assert total is not None
        return total

    def rescaled(self, scaling: Scaling) -> Self:
        return type(self)(self._table, self._encoded, scaling, self._features)

    def blocks(self) -> Iterator[Block]:
        raise InvalidInput(
            "This algorithm reads rows one after the other, and these are on other machines. Use "
            "algorithm='descent', whose sums are made there."
        )

    def part(self, at: slice) -> Block:
        return next(self.blocks())


# ---- what a worker does: each a function of its part alone --------------------------------------


class _OfPart:
    """A function with its arguments, sent to workers. It shows nothing of them in a log."""

    def __init__(self, function: Callable[..., Any], *given: Any) -> None:
        self.function, self.given = function, given

    def __call__(self, part: Any) -> Any:
        return self.function(part, *self.given)

    def __repr__(self) -> str:
        return f"<{self.function.__name__}>"


def _read(part: Any, schema: TableSchema) -> Chunk:
    rows: Rows = read_rows(open_source(part, schema), schema, may_be_empty=True)
    return Chunk(np.concatenate(list(rows.chunks())), rows.books)


def _of_cells(chunk: Chunk, function: Callable[[FloatArray], Any]) -> Any:
    return function(chunk.cells)


def _texts_of(chunk: Chunk, column: str, schema: TableSchema) -> Counter[str]:
    return Rows(chunk.cells, schema, chunk.books).texts(column)


def _encoded(chunk: Chunk, design: Design, schema: TableSchema) -> tuple[Any, FloatArray]:
    rows = Rows(chunk.cells, schema, chunk.books)
    return rows.encoded(design), encoded_targets(chunk.cells, schema)


def _placed(pair: tuple[Any, FloatArray], scaling: Scaling) -> ArrayData | None:
    features, targets = pair
    return ArrayData(features, targets, scaling) if len(targets) else None


def _sum_of(data: ArrayData | None, part: Part) -> CarriedTotal:
    return part(() if data is None else data.blocks())


def _client() -> Any:
    try:
        from distributed import get_client
    except ModuleNotFoundError as missing:
        raise MissingTool(
            "Tables of Dask need its cluster: pip install 'tightrope[dask]'."
        ) from missing
    try:
        return get_client()
    except ValueError:
        raise InvalidInput(
            "Make a Dask client first: from distributed import Client; Client() for this machine."
        ) from None


def _parts(data: Any, schema: TableSchema) -> list[Any]:
    """The parts of a frame or an array, not computed yet."""
    if hasattr(data, "npartitions") and hasattr(data, "columns"):
        wanted = [name for name in data.columns if str(name) in schema.used]
        return list(data[wanted].to_delayed()) if wanted else list(data.to_delayed())
    if getattr(data, "ndim", 0) == 2:
        return list(data.rechunk({1: -1}).to_delayed().ravel())
    raise InvalidInput(
        f"A table of Dask is a frame or an array of two dimensions, not {type(data)}."
    )
