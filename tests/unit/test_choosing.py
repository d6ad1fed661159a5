"""Choosing correlated noise: exact budgets, the least error first, and never worse than white."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tightrope import Adjacency, NoisySGD, Target, account
from tightrope.choosing import choose
from tightrope.cli.app import app
from tightrope.correlated import Workload
from tightrope.errors import InvalidInput
from tightrope.process import CorrelatedSGD, CyclicPoissonSampling, CyclicSampling

# frontier values of banded square roots: bands -> error at epsilon 8
BY_SQUARE_ROOT = {1: 0.03945, 2: 0.03359, 4: 0.02963, 8: 0.02715, 16: 0.02589, 32: 0.02559}


def test_the_candidates_of_a_known_setting() -> None:
    target = Target.approx_dp(8.0, 1e-5)
    choice = choose(50_000, 512, 1954, target)
    for one in choice.candidates:
        spent = account(one.process).epsilon(1e-5)
        assert 8.0 * (1 - 1e-6) < spent.lower <= spent.upper <= 8.0, one.name
        known = BY_SQUARE_ROOT.get(one.strategy.bands or 0)
        if known and isinstance(one.process, NoisySGD | CorrelatedSGD) and "cycle" not in one.name:
            assert one.error <= known * (1 + 3e-4), one.name
        assert one.error == pytest.approx(np.sqrt(np.mean(np.square(one.by_step))))
    assert choice.white.error == pytest.approx(0.03945, abs=5e-6)
    assert choice.best.error < 0.56 * choice.white.error
    assert [one.error for one in choice.candidates] == sorted(
        one.error for one in choice.candidates
    )
    kinds = {type(one.process.sampling) for one in choice.candidates}
    assert {CyclicPoissonSampling, CyclicSampling} < kinds


def test_independent_noise_wins_where_it_should() -> None:
    choice = choose(5000, 500, 100, Target.approx_dp(0.2, 1e-5))
    assert choice.best is choice.white
    one_batch = choose(100, 100, 1, Target.approx_dp(1.0, 1e-3))
    assert one_batch.best.error == pytest.approx(one_batch.white.error)


def test_memory_and_neighbours_and_workloads_count() -> None:
    target, falling = Target.approx_dp(4.0, 1e-5), tuple(np.linspace(1.0, 0.1, 64))
    choice = choose(4000, 100, 64, target, Workload(0.9, falling), most_buffers=3)
    assert max(one.buffers for one in choice.candidates) <= 3
    assert choice.best.error < choice.white.error
    assert any("every entry" in one.name for one in choice.candidates)
    swapped = choose(4000, 100, 64, target, adjacency=Adjacency.REPLACE_ONE, most_buffers=3)
    for one in swapped.candidates:
        assert one.process.adjacency is Adjacency.REPLACE_ONE
    with pytest.raises(InvalidInput, match="at most all 10 records"):
        choose(10, 11, 5, target)


PAGE = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
FIELDS = PAGE.split("`tightrope.correlated/1`")[1].split("## ")[0]


def command(*words: str) -> Any:
    setting = ["--batch-size", "100", "--dataset-size", "4000", "--delta", "1e-5"]
    return CliRunner().invoke(app, ["calibrate", *setting, *words])


def test_the_command_shows_a_table_a_picture_and_json(tmp_path) -> None:  # type: ignore[no-untyped-def]
    pytest.importorskip("matplotlib", reason="it draws a picture")
    words = ("--correlated", "--epsilon", "4", "--steps", "300")
    shown = command(*words, "--plot", str(tmp_path / "noise.png"))
    assert shown.exit_code == 0, shown.output
    assert "white, Poisson batches" in shown.stdout
    assert "less noise in the model" in " ".join(shown.stdout.split())
    assert (tmp_path / "noise.png").stat().st_size > 10_000
    view = json.loads(command(*words, "--momentum", "0.9", "--json").stdout)
    assert view["schema"] == "tightrope.correlated/1"
    assert view["candidates"][0]["error"] <= view["white"]["error"]
    assert view["candidates"][0]["process"]["type"] == "CorrelatedSGD"
    assert all(f"`.{field}" in FIELDS for field in view if field != "schema")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--correlated", "--epsilon", "4"], "Give --dataset-size"),
        (["--correlated", "--epsilon", "4", "--steps", "9", "--noise", "1"], "none of --noise"),
        (["--epsilon", "4", "--steps", "9", "--momentum", "0.9"], "belong to --correlated"),
        (["--correlated", "--epsilon", "4", "--steps", "9", "--momentum", "1"], "never forgets"),
    ],
    ids=str,
)
def test_the_command_says_what_it_needs(words: list[str], answer: str) -> None:
    with pytest.raises(InvalidInput, match=answer):
        raise command(*words).exception
