"""Tables from wherever they come, a chunk of raw columns at a time.

Chunks are read once: dictionaries from names to lists of texts or arrays. Text files are read line
by line, as spreadsheets and databases write them: comma, semicolon, tab or bar, read off the
header; UTF-8, UTF-16 with a mark, Latin-1 when named; quotes; compressed by gzip or xz. Messages
name columns and files, never values.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import lzma
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import scipy.sparse as sp

from tightrope.errors import InvalidInput, MissingTool
from tightrope.evidence.files import open_ordinary, printable, why_unread
from tightrope.tables.schema import TableSchema

Raw: TypeAlias = Mapping[str, Any]
CHUNK = 1 << 16  # rows
_DELIMITERS = (",", ";", "\t", "|")
_MARKS_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_LONGEST_FIELD = 1 << 20


def open_source(data: Any, schema: TableSchema) -> Iterator[Raw]:
    """The chunks of a path, a frame of pandas, polars or Arrow, a mapping of columns, an array."""
    if isinstance(data, (str, os.PathLike)):
        path = Path(data)
        if path.suffix.lower() in (".parquet", ".pq"):
            return _parquet(path, schema)
        if path.suffix.lower() in (".arrow", ".feather", ".ipc"):
            return _arrow_file(path)
        return _text(path, _readable(path), schema)
    if isinstance(data, Mapping) and not sp.issparse(data):  # a sparse dictionary of keys is both
        return _columns(data)
    kind = f"{type(data).__module__.partition('.')[0]}.{type(data).__name__}"
    if kind == "pandas.DataFrame":
        _check_names([str(name) for name in data.columns], "The frame")
        return _pandas(data)
    if kind in ("polars.DataFrame", "polars.LazyFrame"):
        return _polars(data)
    if kind in ("pyarrow.Table", "pyarrow.RecordBatch", "pyarrow.RecordBatchReader"):
        return _arrow(data)
    return _array_source(data, schema)


def names_of(path: Path) -> tuple[str, ...]:
    """The columns of a file, from its header or its own description alone."""
    if path.suffix.lower() in (".parquet", ".pq"):
        _pyarrow("A Parquet file")
        import pyarrow.parquet as parquet

        with _readable(path), parquet.ParquetFile(path) as file:
            return tuple(map(str, file.schema_arrow.names))
    with _readable(path) as raw, _decompressed(raw, path) as binary:
        start = binary.peek(1)[:4]
        encoding = "utf-16" if start[:2] in _MARKS_16 else "utf-8-sig"
        text = io.TextIOWrapper(binary, encoding=encoding, errors="replace", newline="")
        first = next((line for line in text if line.strip()), "")
    delimiter = max(_DELIMITERS, key=first.count)
    names = [name.strip() for name in next(csv.reader([first], delimiter=delimiter), [])]
    _check_names(names, printable(path))
    if not names or "\ufffd" in first or any(map(_is_number, names)):
        raise InvalidInput(
            f"The first line of {printable(path)} holds no names. Write a header line, or a schema "
            "with header: false by hand."
        )
    return tuple(names)


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return not name
    return True


# ---- text files ---------------------------------------------------------------------------------


def _text(path: Path, raw: BinaryIO, schema: TableSchema) -> Iterator[Raw]:
    try:
        with raw, _decompressed(raw, path) as binary:
            # what is no text in this encoding is replaced: one row must not stop the others
            encoding = _encoding(binary, schema)
            text = io.TextIOWrapper(binary, encoding=encoding, errors="replace", newline="")
            yield from _rows(path, text, schema)
    except (csv.Error, EOFError, lzma.LZMAError, gzip.BadGzipFile) as error:
        reason = "a field is longer than a million characters, or a quote is never closed"
        reason = reason if isinstance(error, csv.Error) else "its compression is damaged"
        raise InvalidInput(f"{printable(path)} is not a table: {reason}.") from None


def _decompressed(raw: BinaryIO, path: Path) -> Any:
    if path.suffix.lower() == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=raw))
    if path.suffix.lower() == ".xz":
        return io.BufferedReader(lzma.LZMAFile(raw))
    return raw


def _encoding(binary: Any, schema: TableSchema) -> str:
    start = binary.peek(4)[:4]
    if start.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    if start.startswith(_MARKS_16):
        return "utf-16"
    return schema.encoding or "utf-8"


def _rows(path: Path, text: io.TextIOWrapper, schema: TableSchema) -> Iterator[Raw]:
    first = next((line for line in text if line.strip()), "")
    if schema.header and ("\0" in first or "\ufffd" in first):
        raise InvalidInput(
            f"{printable(path)} is neither UTF-8 nor UTF-16 with a byte order mark. Save it as "
            "UTF-8 (in a spreadsheet: 'CSV UTF-8'), or name its encoding in the schema (latin-1)."
        )
    delimiter = schema.delimiter or _delimiter(first, schema)
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_FIELD))
    reader = csv.reader(chain([first], text), delimiter=delimiter, skipinitialspace=True)
    names = list(schema.columns)
    if schema.header:
        names = [name.strip() for name in next(reader, [])]
        _check_header(path, names, schema)
    width, places = len(names), {name: at for at, name in reversed([*enumerate(names)])}
    taken = [(name, places[name]) for name in schema.used if name in places]
    columns: list[list[str]] = [[] for _ in taken]
    appends = [(column.append, at) for column, (_, at) in zip(columns, taken, strict=True)]
    rows = 0
    for row in reader:
        if len(row) != width:
            if not any(row):
                continue
            # a row of another length counts, as an empty one: what it holds is private
            row = (row + [""] * width)[:width] if len(row) < width else [""] * width
        for append, at in appends:
            append(row[at])
        rows += 1
        if rows % CHUNK == 0:
            yield {name: column for (name, _), column in zip(taken, columns, strict=True)}
            for column in columns:  # the consumer has made numbers of them
                column.clear()
    if columns and columns[0]:
        yield {name: column for (name, _), column in zip(taken, columns, strict=True)}


def _delimiter(first: str, schema: TableSchema) -> str:
    """The one that finds the most names of the schema in the header, which is public.

    Without a header the first line is a row, by which the others must not be read.
    """
    if not schema.header:
        return ","
    wanted = set(schema.used)

    def score(delimiter: str) -> int:
        names = next(csv.reader([first], delimiter=delimiter, skipinitialspace=True), [])
        return len(wanted & {name.strip() for name in names})

    return max(_DELIMITERS, key=score)


def _check_header(path: Path, names: list[str], schema: TableSchema) -> None:
    if not set(names) & set(schema.used):
        raise InvalidInput(
            f"The first line of {printable(path)} names none of the columns of the schema. If the "
            "file has no header line, say header: false in the schema; its columns are then those "
            "of the schema, in order."
        )
    _check_names(names, printable(path), schema)


def _check_names(names: list[str], what: str, schema: TableSchema | None = None) -> None:
    twice = sorted(name for name, times in Counter(names).items() if times > 1)
    if schema is not None:
        twice = [name for name in twice if name in schema.used]
    if twice:
        raise InvalidInput(f"{what} has more than one column {', '.join(map(repr, twice))}.")


# ---- frames -------------------------------------------------------------------------------------


def _columns(data: Mapping[str, Any]) -> Iterator[Raw]:
    kept = (list, np.ndarray)
    arrays = {str(n): c if isinstance(c, kept) else list(c) for n, c in data.items()}
    rows = {len(column) for column in arrays.values()}
    if len(rows) > 1:
        raise InvalidInput("The columns of the table have different lengths.")
    for at in range(0, max(rows, default=0), CHUNK):
        yield {name: column[at : at + CHUNK] for name, column in arrays.items()}


def _pandas(frame: Any) -> Iterator[Raw]:
    for at in range(0, len(frame), CHUNK):
        part = frame.iloc[at : at + CHUNK]
        yield {str(name): _pandas_column(part[name]) for name in frame.columns}


def _pandas_column(series: Any) -> Any:
    kind = getattr(series.dtype, "kind", "O")
    plain = isinstance(series.dtype, np.dtype) and kind in "fiubM"
    return series.to_numpy() if plain else series.to_numpy(dtype=object)


def _polars(frame: Any) -> Iterator[Raw]:
    frame = frame.collect() if hasattr(frame, "collect") else frame
    for part in frame.iter_slices(CHUNK):
        yield {name: _arrow_column(part[name].to_arrow()) for name in part.columns}


def _arrow(table: Any) -> Iterator[Raw]:
    batches = table.to_batches(max_chunksize=CHUNK) if hasattr(table, "to_batches") else table
    batches = [table] if type(table).__name__ == "RecordBatch" else batches
    for batch in batches:
        names = [str(name) for name in batch.schema.names]
        _check_names(names, "The table")
        yield {name: _arrow_column(batch.column(at)) for at, name in enumerate(names)}


def _arrow_column(column: Any) -> Any:
    """Numbers as an array with NaN for null; everything else as Python values."""
    import pyarrow as pa

    if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
        return column.to_numpy(zero_copy_only=False)
    return column.to_pylist()


def _pyarrow(what: str) -> Any:
    try:
        import pyarrow
    except ModuleNotFoundError as missing:
        raise MissingTool(
            f"{what} needs pyarrow: pip install 'tightrope[frames]'. Or save the table as CSV."
        ) from missing
    return pyarrow


def _parquet(path: Path, schema: TableSchema) -> Iterator[Raw]:
    _pyarrow("A Parquet file")
    import pyarrow.parquet as parquet

    with _readable(path), parquet.ParquetFile(path) as file:
        names = [name for name in file.schema_arrow.names if name in schema.used]
        for batch in file.iter_batches(batch_size=CHUNK, columns=names):
            yield from _arrow(batch)


def _arrow_file(path: Path) -> Iterator[Raw]:
    pa = _pyarrow("An Arrow file")
    with _readable(path), pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
        for at in range(reader.num_record_batches):
            yield from _arrow(reader.get_batch(at))


def _readable(path: Path) -> Any:
    try:
        return open_ordinary(path)
    except (InvalidInput, OSError) as error:
        raise InvalidInput(f"{printable(path)} cannot be read: {why_unread(error)}.") from None


# ---- arrays -------------------------------------------------------------------------------------


def _array_source(data: Any, schema: TableSchema) -> Iterator[Raw]:
    """Rows of a dense, sparse, memory-mapped or structured array; columns in the schema's order."""
    if type(data).__module__.partition(".")[0] in ("dask", "dask_expr"):
        raise InvalidInput(
            "A table of Dask is fitted as it is; to predict for one, let its workers do it: "
            "frame.map_partitions(model.predict)."
        )
    if isinstance(data, np.ndarray) and data.dtype.names:
        return _columns({str(name): data[name] for name in data.dtype.names or ()})
    array = data.tocsr() if hasattr(data, "tocsr") else np.asanyarray(data)
    names = list(schema.columns)
    if array.ndim != 2 or array.shape[1] not in (len(names), len(schema.features)):
        raise InvalidInput(
            f"A table is a file, a frame of pandas, polars or Arrow, a mapping of columns, or an "
            f"array with a column for each of the {len(names)} of the schema; got "
            f"{type(data).__name__} of shape {np.shape(array)}."
        )
    if array.shape[1] != len(names):
        names = list(schema.features)
    return _array(array, names)


def _array(array: Any, names: list[str]) -> Iterator[Raw]:
    for at in range(0, array.shape[0], CHUNK):
        part = array[at : at + CHUNK]
        part = part.toarray() if hasattr(part, "toarray") else part
        yield {name: part[:, place] for place, name in enumerate(names)}
