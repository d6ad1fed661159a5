"""Deep Learning with GDP, Tables 1 to 4: every privacy column, and what the trainings say."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tightrope_reproduce.gdp.trained import RUNS, score_line, spread, trained
from tightrope_reproduce.item import Setting, Verdict
from tightrope_reproduce.learning.paper import CLAIMS, TABLE_1, TABLE_4
from tightrope_reproduce.learning.result import Result, Store

Reproduced = Callable[[str], dict[str, Any]]

# exact epsilon, true delta at the printed central-limit epsilon
TRUTH = {
    "mnist-1.3": (0.8645, 1.8e-5),
    "mnist-1.1": (2.3816, 1.5e-5),
    "mnist-0.7": (5.6397, 4.9e-5),
    "mnist-0.6": (10.9495, 4.5e-5),
    "mnist-0.55": (15.7163, 2.3e-5),
    "mnist-0.5": (28.0460, 9.5e-7),
    "adult": (11.8073, 7.3e-5),
    "imdb": (12.1407, 7.2e-5),
    "movielens": (12.7494, 2.1e-5),
}


def rows_of(folder: Path, item: str) -> list[dict[str, str]]:
    with (folder / item / "rows.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_privacy_columns(reproduced: Reproduced, quick_folder: Path, number: int) -> None:
    record = reproduced(f"gdp-table-{number}")
    for row in rows_of(quick_folder, f"gdp-table-{number}"):
        name, printed = row["row"], CLAIMS[row["row"]]
        exact, delta_there = TRUTH[name]
        assert float(row["mu"]) == pytest.approx(printed.mu, abs=0.0051)
        assert float(row["epsilon_clt"]) == pytest.approx(printed.clt_epsilon, abs=0.0051)
        # the table of tenths gives all nine printed numbers; IMDb's T is rounded up there
        assert float(row["epsilon_moments"]) == pytest.approx(printed.moments_epsilon, abs=0.0061)
        lower, upper = float(row["epsilon_exact_lower"]), float(row["epsilon_exact_upper"])
        assert upper == pytest.approx(exact, abs=6e-5)
        assert 0 <= upper - lower <= 1e-8 * upper
        assert upper < float(row["epsilon_improved_moments"]) < float(row["epsilon_moments"])
        assert float(row["true_delta_at_printed_clt_epsilon"]) == pytest.approx(
            delta_there, rel=0.03
        )
        clt = next(x for x in record["lines"] if x["what"].startswith(f"{name}: epsilon, central"))
        expected = "reproduced" if name == "mnist-0.5" else "claim invalid"
        assert clt["verdict"] == expected
    moments = [x for x in record["lines"] if x["what"].endswith("moments accountant")]
    verdicts = {x["verdict"] for x in moments if x["claim"] is not None}
    assert verdicts == {"reproduced"}


def test_the_quick_training_learns(reproduced: Reproduced) -> None:
    record = reproduced("gdp-table-1")
    scores = [x for x in record["lines"] if "test accuracy" in x["what"]]
    assert len(scores) == 7
    assert {x["verdict"] for x in scores} == {"not run"}  # made data say nothing of the claim
    assert {x["ours"] for x in scores} == {None}
    learned = [re.search(r"\(([\d.]+) %\)", x["because"]) for x in (scores[0], scores[-1])]
    private, twin = (float(found[1]) for found in learned if found is not None)
    assert private > 85 and twin > 90  # one of ten digits at random is 10 %
    assert all("quick run" in x["because"] for x in scores)


def stored(folder: Path, finals: list[float], recipe: Any = TABLE_1[0]) -> Setting:
    store = Store(folder)
    for seed, value in enumerate(finals):
        store.add(Result(recipe, seed, (value,), 1.0, "test", recipe.process, "2020-01-01"))
    return Setting(learned=folder)


def test_finished_runs_are_read_and_compared(tmp_path: Path) -> None:
    setting = stored(tmp_path, [94.8, 95.0, 95.2])
    found = trained(TABLE_1[0], setting)
    assert not isinstance(found, str)
    assert len(found.results) == 3 < RUNS["table-1"]
    assert spread(found) == "95.00 +- 0.20 (3 runs)"
    line = score_line("accuracy", TABLE_1[0], setting, within=0.3)
    assert (line.verdict, line.claim) == (Verdict.REPRODUCED, 95.0)
    assert line.within == 0.3 and "standard error 0.12" in line.because


@pytest.mark.parametrize(
    ("recipe", "value", "word"),
    [(TABLE_1[0], 96.0, "better"), (TABLE_1[0], 94.0, "worse"), (TABLE_4, 0.85, "better")],
)
def test_a_score_that_differs_says_which_way(
    tmp_path: Path, recipe: Any, value: float, word: str
) -> None:
    line = score_line("score", recipe, stored(tmp_path, [value], recipe), within=0.01)
    assert line.verdict is Verdict.DIFFERS
    assert line.because.startswith(word)


def test_without_data_a_training_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIGHTROPE_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nowhere"))
    line = score_line("accuracy", TABLE_1[0], Setting(learned=tmp_path), within=0.3)
    assert line.verdict is Verdict.NOT_RUN
    assert "TIGHTROPE_DATA" in line.because


def test_a_stopped_training_is_taken_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seeds are missing and the mark of a begun training is there: the rest is trained."""
    setting = stored(tmp_path, [95.0])
    (tmp_path / f".{TABLE_1[0].name}.begun").touch()
    asked: list[int] = []

    def train(jobs: Any, store: Store, **options: Any) -> None:
        asked.extend(job.seed for job in jobs)

    monkeypatch.setattr("tightrope_reproduce.gdp.trained.work", train)
    trained(TABLE_1[0], setting)
    assert asked == list(range(1, RUNS["table-1"]))
    asked.clear()
    trained(TABLE_1[0], setting)  # the mark is gone
    assert asked == []
