"""What you gain today: every recipe that is recommended keeps its budget, and is the best one."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tightrope import NoisySGD, PoissonSampling, account
from tightrope_reproduce.item import Setting, Verdict
from tightrope_reproduce.learning.beyond import at_the_papers, beyond, candidate
from tightrope_reproduce.learning.paper import CLAIMS, TABLE_1, TABLE_4
from tightrope_reproduce.learning.result import Result, Store
from tightrope_reproduce.today.beyond import run as run_beyond
from tightrope_reproduce.today.gain import Gain, improvement
from tightrope_reproduce.today.gains import _score_lines, _scores

Reproduced = Callable[[str], dict[str, Any]]


def test_glance_counts_the_broken_claims(reproduced: Reproduced, quick_folder: Path) -> None:
    lines = reproduced("glance")["lines"]
    assert (lines[0]["claim"], lines[0]["ours"], lines[0]["verdict"]) == (9, 1, "claim invalid")
    assert "2.14 in epsilon" in lines[0]["because"]
    assert (lines[1]["ours"], lines[1]["verdict"]) == (9, "reproduced")
    assert lines[2]["ours"] == "13 to 27"
    with (quick_folder / "glance" / "epsilons.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9
    for row in rows:
        exact, improved = float(row["exact_upper"]), float(row["improved"])
        assert exact < improved < float(row["moments_printed"])
        assert (exact > float(row["clt_printed"])) == (row["row"] != "mnist-0.5")


def test_gains_keep_the_budget_and_use_it_up(reproduced: Reproduced, quick_folder: Path) -> None:
    record = reproduced("today-gains")
    for line in record["lines"]:
        name, budget = line["what"].split(":")[0], float(line["what"].split()[-1])
        assert budget == CLAIMS[name].moments_epsilon
        assert 0.998 * budget < line["truth"]["lower"] <= line["truth"]["upper"] <= budget
    with (quick_folder / "today-gains" / "gains.csv").open() as file:
        rows = {row["row"]: row for row in csv.DictReader(file)}
    first = rows["mnist-1.3"]
    assert float(first["noise_allowed"]) == 1.0705
    assert float(first["less_noise_percent"]) == pytest.approx(17.65, abs=0.01)
    assert int(first["steps_allowed"]) == 6399
    # one round more, or a ten-thousandth less noise, would break the budget
    rate = 256 / 60_000
    longer = account(NoisySGD(PoissonSampling(rate), 1.3, 6400)).epsilon(1e-5)
    quieter = account(NoisySGD(PoissonSampling(rate), 1.0704, 3516)).epsilon(1e-5)
    assert longer.lower > 1.19 and quieter.lower > 1.19


def test_what_the_trained_gains_say(tmp_path: Path) -> None:
    gain = Gain(TABLE_1[0])
    store = Store(tmp_path)
    for recipe, values in (
        (gain.row, (95.0, 95.2)),
        (gain.quieter, (95.5, 95.7)),
        (gain.longer, (95.8, 95.8)),
    ):
        for seed, value in enumerate(values):
            store.add(Result(recipe, seed, (value,), 1.0, "test", recipe.process, "2020-01-01"))
    scores = _scores(gain, Setting(learned=tmp_path))
    quieter, longer = _score_lines(gain, scores)
    assert quieter.ours == "95.60 +- 0.14 (2 runs)"
    assert quieter.because.startswith("+0.5 (95 % by t: +-")
    assert longer.because.startswith("+0.7 (95 % by t: +-1.3)")  # two runs: 12.7 standard errors
    before, after = scores[0], scores[2]
    assert not isinstance(before, str) and not isinstance(after, str)
    assert improvement(gain.row, before, after) == pytest.approx((0.7, 1.27062), rel=1e-5)
    assert improvement(TABLE_4, before, after) == pytest.approx((-70.0, 127.062), rel=1e-5)


def test_beyond_spends_no_more_than_its_epsilon(reproduced: Reproduced, quick_folder: Path) -> None:
    record = reproduced("today-beyond")
    goals = [line for line in record["lines"] if "accuracy (%) at epsilon 3" in line["what"]]
    assert [line["claim"] for line in goals] == ["goal 98.5"] * 2 + ["goal 87"] * 2
    for line in goals:
        assert 2.999 < line["truth"]["lower"] <= line["truth"]["upper"] <= 3.0
    with (quick_folder / "today-beyond" / "beyond.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 + 2 * 6
    for row in rows:
        promised = float(row["recipe"].rsplit("-", 1)[1])
        assert 0.99 * promised < float(row["epsilon_upper"]) <= promised
    charged = next(line for line in record["lines"] if "protected data" in line["what"])
    assert charged["ours"] > 3.0  # choosing on the same data is never free


def test_beyond_reads_what_was_learned(tmp_path: Path) -> None:
    store = Store(tmp_path)
    every = (*beyond(), *at_the_papers(), candidate("mnist-linear", (2048, 20, 0.1, 0.25, 0.0)))
    for recipe in every:
        for seed, value in enumerate((98.6, 98.8)):
            store.add(Result(recipe, seed, (value,), 60.0, "test", recipe.process, "2020-01-01"))
    outcome = run_beyond(Setting(learned=tmp_path))
    mnist, fashion = outcome.lines[0], outcome.lines[2]
    assert mnist.ours == "98.70 +- 0.14 (2 runs)" and mnist.because.startswith("goal met")
    assert fashion.verdict is Verdict.BEYOND
    minutes = next(line for line in outcome.lines if line.what.startswith("minutes"))
    assert minutes.ours == pytest.approx(2.0)
    first = next(line for line in outcome.lines if "mnist-1.3's epsilon 0.86" in line.what)
    assert first.claim == 95.0 and first.because == "+3.70 at no more epsilon"


def test_users_are_learned_from_and_accounted_both_ways(
    reproduced: Reproduced, quick_folder: Path
) -> None:
    assert len(reproduced("today-users")["lines"]) == 2
    with (quick_folder / "today-users" / "accounts.csv").open() as file:
        rows = list(csv.DictReader(file))
    whole, one, several = (float(row["upper"]) for row in rows)
    assert whole == one < several and 2.99 < whole <= 3.0
