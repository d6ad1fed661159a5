"""One quick run for all tests of the reproduction: the first that asks for an item runs it."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tightrope_reproduce.catalog import find
from tightrope_reproduce.folder import run_item
from tightrope_reproduce.item import Setting


@pytest.fixture(scope="session")
def quick_folder(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent  # one folder for all test processes
    return shared / "reproduction"


@pytest.fixture(scope="session")
def reproduced(quick_folder: Path) -> Callable[[str], dict[str, Any]]:
    """`reproduced(item)` is the item's record; its lines are found by their words."""

    def record(name: str) -> dict[str, Any]:
        (item,) = find(name)
        return run_item(item, Setting(quick=True, learned=quick_folder / "learning"), quick_folder)

    return record


@pytest.fixture(scope="session")
def table_of(
    reproduced: Callable[[str], dict[str, Any]], quick_folder: Path
) -> Callable[[str, str], list[dict[str, float]]]:
    """`table_of(item, table)` is a table of numbers that the item wrote, row by row."""

    def rows(item: str, table: str) -> list[dict[str, float]]:
        reproduced(item)
        with (quick_folder / item / f"{table}.csv").open() as file:
            return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]

    return rows
