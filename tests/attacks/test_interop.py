"""Runs that others describe: odd files must not be read as runs that are more private."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tightrope import account
from tightrope.errors import InvalidInput
from tightrope.interop import Setting, read
from tightrope.process import NoisySGD, PoissonSampling, UserLevel
from tightrope.report.account_view import opinion

STATEMENT = {
    "number_of_examples": 60000,
    "batch_size": 256,
    "num_epochs": 10,
    "noise_multiplier": 2.0,
    "max_examples_per_user": 5,
    "epsilon": "3.0",
    "delta": 1e-5,
    "sampling": "poisson",
}
TREE = {
    "dp_event": {
        "class_name": "SingleEpochTreeAggregationDpEvent",
        "noise_multiplier": 5.0,
        "step_counts": [100],
    },
    "neighboring_relation": "REPLACE_SPECIAL",
}


def gaussian(noise: float) -> dict[str, Any]:
    return {"class_name": "GaussianDpEvent", "noise_multiplier": noise}


def on_one_batch(*events: dict[str, Any]) -> dict[str, Any]:
    inner = {"class_name": "ComposedDpEvent", "events": list(events)}
    return {"class_name": "PoissonSampledDpEvent", "sampling_probability": 0.01, "event": inner}


@pytest.mark.parametrize("count", [-3, 0.5, math.nan, math.inf, "3", True])
def test_releases_are_counted_in_whole_numbers_on_a_batch_too(count: Any) -> None:
    """A count below 0, or none at all, left the release out: 0.0022 in place of 58.8."""
    more = {"class_name": "SelfComposedDpEvent", "event": gaussian(0.2), "count": count}
    with pytest.raises(InvalidInput, match=r"count.* must be"):
        read(on_one_batch(gaussian(10.0), more))
    whole = read(on_one_batch(gaussian(10.0), {**more, "count": 3})).process
    assert account(whole).epsilon(1e-5).lower > 50


@pytest.mark.parametrize("column", [{"group": 5}, {"delta": 1e-9}, {"group": 5, "delta": 1e-9}])
def test_what_belongs_to_a_whole_schedule_is_not_read_over(column: dict[str, Any]) -> None:
    """A column `group` was known, and forgotten."""
    row = {"noise": 1.0, "rate": 0.01, "steps": 100}
    with pytest.raises(InvalidInput, match=f"say --{min(column)}"):
        read([row, row | column])
    assert read([row, row]).group == 1


@pytest.mark.parametrize("said", [{"sampling": "shuffled"}, {"noise": "1"}, {"adjacency": "x"}])
def test_a_file_does_not_overrule_what_was_said_beside_it(said: dict[str, str]) -> None:
    given = {"noise": 10.0, "rate": 0.01, "steps": 10, "sampling": "poisson"}
    with pytest.raises(InvalidInput, match=f"leave out --{next(iter(said))}"):
        read(given | {"adjacency": "add-or-remove"}, Setting(**said))


@pytest.mark.parametrize("bands", [1, 2, 4, 0])
def test_bands_are_as_many_as_the_strategy_has(bands: int) -> None:
    """Noise that is correlated over three steps was accounted for as fresh in each."""
    given = {"iterations": 100, "noise_multiplier": 1.0, "expected_participations": 5}
    with pytest.raises(InvalidInput, match="the strategy has 3"):
        read({**given, "strategy": [1.0, 0.5, 0.3], "num_bands": bands})
    assert read({**given, "strategy": [1.0, 0.5, 0.3], "num_bands": 3}).process.steps == 34


def test_an_epsilon_for_all_records_of_a_user_is_held_against_that_of_all() -> None:
    """It was called safe by what holds for one record: 1.1, where five have more than 3."""
    view, _ = opinion(read(STATEMENT), Setting())
    assert (
        view["answer"]["epsilon"]["upper"] < 1.2 < 3.0 < view["answer"]["group"]["epsilon"]["upper"]
    )
    assert view["said"]["verdict"] != "safe" and "5 records together" in view["said"]["words"]


def test_a_certificate_of_users_is_about_all_their_records() -> None:
    process = read(STATEMENT).certifiable()
    assert process == UserLevel(NoisySGD(PoissonSampling(256 / 60000), 1.0, 2344), 5)


@pytest.mark.parametrize("given", [STATEMENT, TREE], ids=["group", "zero-out"])
def test_an_account_that_is_read_again_is_about_the_same_people(given: dict[str, Any]) -> None:
    """Neighbours and groups were lost: a tree became certifiable for a removed record."""
    first = read(given)
    view, _ = opinion(first, Setting(delta="1e-5"))
    again = read(json.loads(json.dumps(view)))
    assert (again.neighbours, again.group) == (first.neighbours, first.group)
    assert opinion(again, Setting())[0]["said"]["verdict"] == "safe"
    assert again.certifiable() == first.certifiable()


def test_an_old_account_of_a_zeroed_record_is_not_read_as_one_of_a_removed_record() -> None:
    """Its process said add-or-remove, and only the answer zero-out."""
    view, _ = opinion(read(TREE), Setting(delta="1e-5"))
    view["process"]["adjacency"] = "add-or-remove"
    with pytest.raises(InvalidInput, match="about zero-out neighbours"):
        read(view)


def test_what_floating_point_does_not_cover_is_told_of_what_is_read(
    small_run: Any, take_steps: Any
) -> None:
    """A composition of certificates lost the first words of theirs."""
    run = small_run(arithmetic="uncovered")
    take_steps(run, 2)
    certificate = run.certificate(1e-5)
    assert certificate["statement"].startswith("FLOATING POINT IS NOT COVERED")
    assert "floating point" in read(certificate).notes[0]
