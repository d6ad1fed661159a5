"""What is public about a table: its forms, its files, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tightrope.errors import InvalidInput
from tightrope.tables import Category, Date, Flag, Ignored, Number, TableSchema

COLUMNS = {
    "age": Number(0, 120),
    "balance": Number(),
    "job": Category(),
    "region": Category(("north", "south")),
    "member": Flag(),
    "since": Date("2000-01-01", "2026-12-31"),
    "id": Ignored(),
    "bought": Category(("no", "yes")),
}


@pytest.mark.parametrize("ending", ["yaml", "json"])
def test_a_schema_comes_back_from_its_file(tmp_path: Path, ending: str) -> None:
    schema = TableSchema(COLUMNS, target="bought", key="id", rows=3, missing=("", "-"))
    path = schema.write(tmp_path / f"schema.{ending}")
    assert TableSchema.read(path) == schema
    assert schema.features == ("age", "balance", "job", "region", "member", "since")


def test_a_kind_may_be_a_word() -> None:
    schema = TableSchema({"age": "number", "job": "category", "y": "flag"}, target="y")
    assert schema.columns == {"age": Number(), "job": Category(), "y": Flag()}
    assert schema.classes == ("0", "1")


@pytest.mark.parametrize(
    ("columns", "more", "words"),
    [
        ({"age": {"kind": "number", "low": 9, "high": 1}, "y": "flag"}, {}, "low < high"),
        ({"age": {"kind": "number", "low": 9}, "y": "flag"}, {}, "both low and high"),
        ({"age": {"kind": "numeric"}, "y": "flag"}, {}, "needs a kind"),
        ({"age": {"kind": "number", "lowest": 1}, "y": "flag"}, {}, "may have high, low"),
        ({"when": {"kind": "date", "first": "soon"}, "y": "flag"}, {}, "two days"),
        ({"job": {"kind": "category", "values": ["a", "a"]}, "y": "flag"}, {}, "different"),
        ({"job": {"kind": "category", "values": [True]}, "y": "flag"}, {}, "in quotes"),
        ({"age": "number", "y": "category"}, {}, "labels|values are listed"),
        ({"age": "number", "y": "number"}, {}, "public bounds"),
        ({"age": "number", "z": "flag"}, {}, "not among the columns"),
        ({"y": "flag"}, {}, "no column to predict from"),
        ({"age": "number", "y": "flag"}, {"rows": 2}, "no key column"),
        ({"age": "number", "y": "flag"}, {"key": "y"}, "cannot be the target"),
        ({}, {}, "at least one column"),
    ],
)
def test_what_makes_no_sense_is_refused(columns: Any, more: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        TableSchema(columns, target="y", **more)


@pytest.mark.parametrize("text", ["columns: [", "- 1", "columns: {a: number}\nsecret: 1", "{}"])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match="schema"):
        TableSchema.read(path)
