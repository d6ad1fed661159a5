"""What is bought before a fit: its noise, its sums on neighbours, and what it is good for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tightrope.convex import Budget
from tightrope.convex.counts import shared, whole_of
from tightrope.entropy import open_stream
from tightrope.errors import InvalidInput
from tightrope.process import Adjacency, DiscreteGaussianVector, ThresholdedCounts
from tightrope.tables import Category, Flag, Number, TableSchema, releases
from tightrope.tables.releases import Preparation, prepared, released
from tightrope.tables.rows import Rows, read_rows
from tightrope.tables.sources import open_source

SCHEMA = TableSchema(
    {
        "income": Number(),
        "age": Number(0, 100),
        "since": "date",
        "job": Category(),
        "city": Category(),
        "member": Flag(),
        "y": Flag(),
    },
    target="y",
)
BOTH = (Adjacency.REPLACE_ONE, Adjacency.ADD_OR_REMOVE)


def table(rows: int = 3000, seed: int = 0) -> dict[str, list[Any]]:
    generator = np.random.default_rng(seed)
    return {
        "income": generator.lognormal(10, 1, rows).round(2).tolist(),
        "age": generator.integers(18, 90, rows).tolist(),
        "since": ["2001-02-03"] * rows,
        "job": generator.choice(["a", "b", "c"], rows, p=[0.6, 0.39, 0.01]).tolist(),
        "city": ["x"] * rows,
        "member": generator.choice(["yes", "no"], rows).tolist(),
        "y": generator.choice(["0", "1"], rows).tolist(),
    }


def rows_of(data: dict[str, list[Any]], schema: TableSchema = SCHEMA) -> Rows:
    return read_rows(open_source(data, schema), schema)


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, int]]:
    """The counts to which noise is added, and its parameter, in order."""
    seen: list[tuple[Any, int]] = []

    def without_noise(counts: Any, scale: int, stream: Any) -> Any:
        seen.append((counts.copy(), scale))
        return counts

    monkeypatch.setattr(releases, "noisy", without_noise)
    return seen


def counts_of(plan: Preparation, data: dict[str, list[Any]], caught: list[Any]) -> list[Any]:
    caught.clear()
    released(plan, rows_of(data, plan.schema), open_stream("test", seed=0))
    return list(caught)


@pytest.mark.parametrize("relation", BOTH)
def test_noise_and_sums_are_those_of_the_process(relation: Adjacency, caught: list[Any]) -> None:
    """Counts of neighbours are no further apart than is accounted, and have the noise accounted.

    Bounds are known and texts occur often here, so that later counts have the same cells.
    """
    schema = TableSchema(
        {**SCHEMA.columns, "income": Number(0, 1e6), "low": Number(), "high": Number()}, target="y"
    )
    plan = prepared(schema, 0.3, 1e-6, relation)
    data = table() | {"low": [0.5] * 3000, "high": [0.5] * 3000}
    strange = {"income": math.nan, "age": -7.0, "since": "", "job": "a", "city": "x", "member": ""}
    strange |= {"y": "0", "low": 8.0, "high": -8.0}
    other = {name: [*column] for name, column in data.items()}
    for name, column in other.items():
        if relation is Adjacency.REPLACE_ONE:
            column[7] = strange[name]
        else:
            del column[7]
    first, second = (counts_of(plan, one, caught) for one in (data, other))
    assert len(first) == len(second) == len(plan.processes) == 4
    for (one, scale), (two, _), process in zip(first, second, plan.processes, strict=True):
        assert isinstance(process, DiscreteGaussianVector | ThresholdedCounts)
        assert process.sigma == scale
        moved = np.linalg.norm(one - two)
        if isinstance(process, DiscreteGaussianVector):
            assert 0.0 < moved <= process.sensitivity
            assert one.size <= process.dimension
        else:
            assert moved <= math.sqrt(2.0)


@pytest.mark.parametrize("relation", BOTH)
def test_the_worst_row_moves_as_many_counts_as_there_are_columns(
    relation: Adjacency, caught: list[Any]
) -> None:
    """The sensitivity is attained: a smaller one would be a fault."""
    schema = TableSchema({"a": Number(), "b": Number(), "c": Number()})
    plan = prepared(schema, 0.3, 1e-6, relation)
    small, large = {n: [1.0] * 50 for n in "abc"}, {n: [1.0] * 49 + [1e5] for n in "abc"}
    if relation is Adjacency.ADD_OR_REMOVE:
        large = {n: [1.0] * 49 for n in "abc"}
    one, two = (counts_of(plan, data, caught)[0][0] for data in (small, large))
    assert np.linalg.norm(one - two) == pytest.approx(plan.processes[0].sensitivity)  # type: ignore[attr-defined]


def test_whole_plans_meet_the_budget_and_leave_little(monkeypatch: pytest.MonkeyPatch) -> None:
    from tightrope import account

    budget = Budget(1.0, 1e-6)
    for relation in BOTH:
        for rows in (1, 2):
            found = shared(
                lambda mu, relation=relation: prepared(SCHEMA, mu, 1e-7, relation).processes,
                budget,
                relation,
                share=0.1,
                rows=rows,
            )
            spent = account(whole_of(found.planned, rows)).epsilon(1e-6).upper
            assert 0.99 < spent <= 1.0


def test_a_public_table_costs_nothing() -> None:
    schema = TableSchema({"a": Number(0, 1), "b": Category(("x", "y")), "c": Flag()})
    assert prepared(schema, 0.0, 1e-7, BOTH[0], ranks=False).processes == ()
    with pytest.raises(InvalidInput, match="preprocessing=0"):
        prepared(SCHEMA, 0.0, 1e-7, BOTH[0])


def test_bounds_ranks_and_categories_are_near_the_truth() -> None:
    data = table(20_000)
    plan = prepared(SCHEMA, 0.5, 1e-6, BOTH[0])
    design = released(plan, rows_of(data), open_stream("test", seed=1, cryptographic=True))
    income = np.array(data["income"])
    code = design.codes["income"]
    assert 0.93 < np.mean((code.low <= income) & (income <= code.high)) <= 1.0
    truth = np.argsort(np.argsort(income)) / len(income) * 2 - 1
    guess = np.interp(income, code.edges, code.ranks)
    assert np.abs(truth - guess).mean() < 0.1
    assert design.codes["job"].names in (("a", "b"), ("a", "b", "c"))
    assert design.codes["city"].names == ("x",)


def test_no_row_is_longer_than_the_bound_whatever_it_holds() -> None:
    data = table(400)
    design = released(prepared(SCHEMA, 0.5, 1e-6, BOTH[0]), rows_of(data), open_stream("t", seed=1))
    wild = {name: column[:5] for name, column in data.items()}
    wild["income"] = [math.inf, -math.inf, math.nan, 1e300, -1e300]
    wild["age"] = [1e9, -5, math.nan, math.inf, 3]
    wild["job"] = ["a", "never seen", "", "b", "c"]
    found = rows_of(wild).encoded(design)
    assert np.isfinite(found).all()
    assert (np.linalg.norm(found.astype(float), axis=1) <= design.norm * (1 + 1e-6)).all()


def test_an_empty_row_is_zero_and_is_not_counted(caught: list[Any]) -> None:
    data = table(50)
    data["y"][3] = ""
    plan = prepared(SCHEMA, 0.5, 1e-6, BOTH[0])
    design = released(plan, rows_of(data), open_stream("t", seed=1))
    assert all(counts.sum() % 49 == 0 for counts, _ in caught)
    assert not rows_of(data).encoded(design)[3].any()


@pytest.mark.parametrize("cell", [0, 1, 60, 61, 62, 120, 121, 122])
def test_bounds_come_from_any_cell(cell: int) -> None:
    counts = np.zeros(123, dtype=np.int64)
    for height in (3, 1000):  # below the noise and above it
        counts[cell] = height
        low, high = releases._ends(counts, 10)
        assert math.isfinite(low) and low < high
