"""What the pages recommend is computed again: their numbers, and which way is the better one."""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path
from typing import Any

import pytest

from tightrope import NoisySGD, PoissonSampling, account
from tightrope.numerics.rounding import rounded_up
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    FixedSizeSampling,
    ShuffledSampling,
)
from tightrope.theorems.epochs import least_epsilon

ROOT = Path(__file__).parents[2]
RATE, NOISE, STEPS, DELTA = 256 / 60000, 1.1, 14062, 1e-5
EPOCHS = 60 * 234
REPLACED = Adjacency.REPLACE_ONE


def down(lower: float, digits: int) -> float:
    """A lower end as it is said: never rounded up."""
    return math.floor(lower * 10**digits) / 10**digits


def flat(page: str) -> str:
    return " ".join((ROOT / "docs" / page).read_text().split())


def epsilon(sampling: Any, steps: int, adjacency: Adjacency = Adjacency.ADD_OR_REMOVE) -> Any:
    return account(NoisySGD(sampling, NOISE, steps, adjacency)).epsilon(DELTA)


def test_how_to_choose_says_what_each_way_of_drawing_batches_costs() -> None:
    poisson, shuffled = PoissonSampling(RATE), ShuffledSampling(234)
    fixed = epsilon(FixedSizeSampling(RATE), STEPS, REPLACED)
    balls = epsilon(BallsInBinsSampling(234), EPOCHS)
    lowest = [least_epsilon(NoisySGD(shuffled, NOISE, EPOCHS, a), DELTA) for a in Adjacency]
    highest = [epsilon(shuffled, EPOCHS, a).upper for a in Adjacency]
    for said in (
        f"| balls in bins | {rounded_up(balls.upper, 4)} |",
        f"| Poisson | {rounded_up(epsilon(poisson, STEPS).upper, 4)} | "
        f"{rounded_up(epsilon(poisson, STEPS, REPLACED).upper, 4)} |",
        f"| fixed size | | {down(fixed.lower, 2)} to {rounded_up(fixed.upper, 4)} |",
        f"| shuffled | {down(lowest[0], 2)} to {rounded_up(highest[0], 3)} | "
        f"{down(lowest[1], 1)} to {rounded_up(highest[1], 4)} |",
    ):
        assert said in flat("how_to_choose.md")
    assert balls.upper < epsilon(PoissonSampling(1 / 234), EPOCHS).lower


def test_how_to_choose_says_what_a_user_costs() -> None:
    users = account(NoisySGD(PoissonSampling(RATE), NOISE, STEPS).group(8)).epsilon(DELTA)
    said = f"`run.group(8)` gives {users.upper:.2f} where one record has 2.38"
    assert said in flat("how_to_choose.md")


def rows(page: str, title: str) -> list[list[str]]:
    """The cells of a table, found by its first line."""
    text = (ROOT / page).read_text()
    table = text[text.index(title) :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")[2:]]


@pytest.mark.parametrize("row", rows("docs/balls_in_bins.md", "| batches | noise | epochs | delta"))
def test_balls_in_bins_cost_what_their_page_says(row: list[str]) -> None:
    batches, noise, epochs, delta = int(row[0]), float(row[1]), int(row[2]), float(row[3])
    balls, poisson = (
        account(NoisySGD(sampling, noise, epochs * batches)).epsilon(delta)
        for sampling in (BallsInBinsSampling(batches), PoissonSampling(1 / batches))
    )
    for said, found in ((row[5], balls), (row[7], poisson)):
        digits = len(said.split(".")[1])
        assert float(said) == pytest.approx(found.upper, abs=0.6 * 10**-digits)
    assert balls.width <= 1.5 * float(row[6])
    assert balls.upper < poisson.lower


def events() -> Any:
    path = ROOT / "benchmarks" / "events.py"
    spec = importlib.util.spec_from_file_location("events", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_event_costs_what_the_table_says() -> None:
    benchmark = events()
    for page in ("docs/interop.md", "benchmarks/RESULTS.md"):
        told = {row[0]: row for row in rows(page, "| release | Tightrope | dp_accounting PLD")}
        assert list(told) == [row[0] for row in benchmark.ROWS]
    for row in benchmark.ROWS:
        mine, said = benchmark.ours(row, DELTA), told[row[0]]
        if "error" in mine:
            assert said[1] == "-"
            continue
        assert said[1].startswith(f"{mine['epsilon']:.5g} (") and mine["kind"] in said[1], row[0]
        for peer in said[2:]:  # bold: too small
            number = re.match(r"(\*\*)?([\d.]+) \(", peer)
            if number is not None:
                small = float(number.group(2)) < mine["least"] * (1 - 1e-4)
                assert small == (number.group(1) is not None), row[0]
