"""Tables from files, frames and arrays give the same cells, and no error shows a value."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from tightrope.errors import InvalidInput
from tightrope.tables import Category, Date, Flag, Number, TableSchema
from tightrope.tables.cells import COUNTS
from tightrope.tables.rows import read_rows
from tightrope.tables.sources import CHUNK, open_source

SCHEMA = TableSchema(
    {
        "age": Number(0, 120),
        "job": Category(),
        "region": Category(("north", "süd")),
        "member": Flag(),
        "since": Date(),
        "y": Flag(),
    },
    target="y",
)
TABLE: dict[str, list[Any]] = {
    "age": ["31", " 45.5", "", "many"],
    "job": ["clerk", "clerk, senior", "?", 'a "b"'],
    "region": ["süd", "north", "east", ""],
    "member": ["yes", "FALSE", "", "0"],
    "since": ["1970-01-03", "2001-02-03 10:00", "never", ""],
    "y": ["1", "0", "1", "yes"],
}
NAN = np.nan
CELLS = np.array(
    [
        [1, 31, 0, 1, 1, 2, 1],
        [1, 45.5, 1, 0, 0, 11356, 0],
        [1, NAN, NAN, 2, NAN, NAN, 1],
        [1, NAN, 2, NAN, 0, NAN, 1],
    ]
)


def cells(data: Any, schema: TableSchema = SCHEMA, **how: Any) -> Any:
    rows = read_rows(open_source(data, schema), schema, **how)
    return np.concatenate(list(rows.chunks()))


def texts(values: list[Any], schema: TableSchema) -> list[str | None]:
    """What each row says, by the book of the table that it is in."""
    rows = read_rows(open_source({"job": values}, schema), schema)
    book = {code: text for text, code in rows.books["job"].items()}
    codes = np.concatenate(list(rows.chunks()))[:, 1]
    return [None if np.isnan(code) else book[int(code)] for code in codes]


def lines(delimiter: str = ",", header: bool = True, end: str = "\n") -> str:
    def quoted(value: str) -> str:
        return '"' + value.replace('"', '""') + '"'

    rows = [list(TABLE)] if header else []
    rows += [list(row) for row in zip(*TABLE.values(), strict=True)]
    return end.join(delimiter.join(map(quoted, row)) for row in rows) + end


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_text_files_of_all_kinds_are_read(
    tmp_path: Path, delimiter: str, encoding: str, end: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(lines(delimiter, end=end).encode(encoding))
    np.testing.assert_array_equal(cells(path), CELLS)


def test_other_encodings_are_named_and_packed_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(lines().encode("latin-1")))
    named = TableSchema(SCHEMA.columns, target="y", encoding="latin-1")
    np.testing.assert_array_equal(cells(path, named), CELLS)


def test_a_file_without_a_header_has_the_columns_of_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(lines(header=False), encoding="utf-8")
    bare = TableSchema(SCHEMA.columns, target="y", header=False)
    np.testing.assert_array_equal(cells(path, bare), CELLS)


def test_mappings_and_structured_arrays_are_tables() -> None:
    np.testing.assert_array_equal(cells(TABLE), CELLS)
    rows = list(zip(*TABLE.values(), strict=True))
    array = np.array(rows, dtype=[(name, "U20") for name in TABLE])
    np.testing.assert_array_equal(cells(array), CELLS)


def pandas_frame() -> Any:
    return pytest.importorskip("pandas", reason="pandas is not installed").DataFrame(TABLE)


def polars_frame() -> Any:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    return pytest.importorskip("polars", reason="polars is not installed").DataFrame(TABLE)


def arrow_table() -> Any:
    return pytest.importorskip("pyarrow", reason="pyarrow is not installed").table(TABLE)


@pytest.mark.parametrize("made", [pandas_frame, polars_frame, arrow_table])
def test_frames_give_the_same_cells(made: Callable[[], Any], tmp_path: Path) -> None:
    frame = made()
    np.testing.assert_array_equal(cells(frame), CELLS)
    if made is arrow_table:
        import pyarrow.parquet as parquet

        parquet.write_table(frame, tmp_path / "t.parquet")
        np.testing.assert_array_equal(cells(tmp_path / "t.parquet"), CELLS)


def test_typed_columns_of_pandas_mean_what_their_text_means() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(
        {
            "age": pandas.array([31, None], dtype="Int64"),
            "job": pandas.Categorical(["clerk", None]),
            "region": ["north", None],
            "member": pandas.array([True, None], dtype="boolean"),
            "since": pandas.to_datetime(["1970-01-03", None]),
            "y": [1, 0],
        }
    )
    first = [1, 31, 0, 0, 1, 2, 1]
    second = [1, NAN, NAN, NAN, NAN, NAN, 0]
    np.testing.assert_array_equal(cells(frame), np.array([first, second]))


def test_dense_sparse_and_mapped_arrays_are_tables(tmp_path: Path) -> None:
    schema = TableSchema({"a": "number", "b": "number"})
    array = np.array([[1.0, 0.0], [0.0, np.nan], [3.0, 4.0]])
    expected = np.column_stack([np.ones(3), array])
    np.save(tmp_path / "a.npy", array)
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    for form in (array, sp.csr_array(array), mapped, sp.coo_array(array)):
        np.testing.assert_array_equal(cells(form, schema), expected)


def test_what_a_row_says_does_not_depend_on_the_rows_before() -> None:
    """1 == True == 1.0 in Python, and a cache must not confuse them."""
    schema = TableSchema({"job": "category"})
    values: list[Any] = [1, True, 1.0, "1", None, "1.0", False, 0]
    together = texts(values, schema)
    assert together == [text for value in values for text in texts([value], schema)]


def test_large_tables_go_to_a_file_and_stay_the_same() -> None:
    many = CHUNK + 500
    data = {"a": np.arange(many) % 7, "y": np.arange(many) % 2}
    schema = TableSchema({"a": "number", "y": "flag"}, target="y")
    np.testing.assert_array_equal(cells(data, schema), cells(data, schema, memory=1000))


def test_rows_without_a_listed_label_and_rows_of_other_lengths_stay_as_empty_ones(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,y\n1,yes\n2\n\n3,no,4\n5,perhaps\n6,no\n")
    schema = TableSchema({"a": "number", "y": Category(("no", "yes"))}, target="y")
    found = cells(path, schema)
    assert found[:, COUNTS].tolist() == [1, 0, 0, 0, 1]
    assert not found[found[:, COUNTS] == 0].any()


def test_each_key_has_at_most_so_many_rows() -> None:
    schema = TableSchema({"a": "number", "who": "category"}, key="who", rows=2)
    found = cells({"a": [1, 2, 3, 4, 5], "who": ["x", "x", "y", "x", ""]}, schema)
    assert found[:, COUNTS].tolist() == [1, 1, 1, 0, 1]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "names none of the columns"),
        (b"31,clerk-7731\n40,cook\n", "names none of the columns"),
        (b"age,age,job,region,member,since,y\n1,1,a,b,1,1,1\n", "more than one column 'age'"),
        (b"age,y\n31,1\n", "lacks columns"),
        ("äge,y\n".encode("latin-1"), "neither UTF-8"),
        (lines().encode().splitlines()[0] + b"\n", "no rows"),
        (b"age,y\n" + b'"' + b"7731" * 400_000, "quote is never closed"),
    ],
)
def test_files_that_are_no_such_table_are_refused_without_a_value(
    tmp_path: Path, content: bytes, words: str
) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=words) as refused:
        cells(path)
    assert "7731" not in str(refused.value)


@pytest.mark.parametrize("data", [np.zeros((3, 9)), np.zeros(3), "nowhere.csv", {"age": [1]}, 7])
def test_what_is_no_table_is_refused(data: Any) -> None:
    with pytest.raises(InvalidInput):
        cells(data)
