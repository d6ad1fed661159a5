"""Many settings in one process: one answer a line, whatever the line says."""

from __future__ import annotations

import json
import math
import random

import pytest

from tightrope.cli.batch import answers
from tightrope.interop.setting import SamplingName

GOOD = {"rate": "256/60000", "noise": 1.1, "steps": 14062, "delta": 1e-5}


def one(**changes):
    setting = {key: value for key, value in {**GOOD, **changes}.items() if value != "absent"}
    (found,) = answers([json.dumps(setting)])
    return found


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "one object a line"),
        ("[1, 2]", "got list"),
        ("null", "got NoneType"),
        ("\x00", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"rate": 0.1, "rate": 0.2, "noise": 1, "steps": 10}', "'rate' comes twice"),
        ('{"rate": 0.1}', "no noise and no delta"),
        ('{"noise": 1, "delta": 0.1, "steps": 3}', "no rate"),
    ],
)
def test_a_line_that_is_no_setting_says_what_one_is(line, told) -> None:
    (found,) = answers([line])
    assert found["error"] == "InvalidInput"
    assert told in found["message"]
    assert '"rate": "256/60000"' in found["message"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rate": "a"}, "256/60000"),
        ({"rate": [0.1]}, "256/60000"),
        ({"rate": "1e999/1e999"}, "finite"),
        ({"rate": 1e308 * 10}, "got inf"),
        ({"rate": -0.1}, "[0, 1]"),
        ({"noise": -1}, "[0, inf)"),
        ({"noise": math.nan}, "nan"),
        ({"steps": 1.5}, "whole number"),
        ({"steps": -5}, "got -5"),
        ({"steps": 10**400}, "1e+300"),
        ({"steps": True}, "True"),
        ({"steps": "absent"}, "neither"),
        ({"epochs": 3}, "both"),
        ({"delta": 2}, "probability"),
        ({"delta": "1e-400"}, "5e-324"),
        ({"sampling": "posson"}, "Did you mean poisson?"),
        ({"sampling": None}, "one of poisson"),
        ({"adjacency": "replace"}, "Did you mean replace-one?"),
        ({"smapling": "poisson"}, "Did you mean sampling?"),
        ({"sampling": "fixed-size"}, "replace-one"),
    ],
)
def test_a_bad_value_is_answered_by_what_is_allowed(changes, told) -> None:
    found = one(**changes)
    assert found["error"] in ("InvalidInput", "DoesNotApply")
    assert told in found["message"]


def test_lines_are_numbered_as_in_the_file_and_blank_ones_skipped() -> None:
    lines = ["", json.dumps(GOOD), "  ", "{", json.dumps({**GOOD, "steps": 0})]
    found = list(answers(lines))
    assert [answer["line"] for answer in found] == [2, 4, 5]
    assert found[0]["answer"]["epsilon"]["upper"] == pytest.approx(2.381596921, rel=1e-9)
    assert found[1]["error"] == "InvalidInput"
    assert found[2]["answer"]["epsilon"]["upper"] == 0.0


@pytest.mark.parametrize(
    ("changes", "epsilon"),
    [
        ({"steps": 0}, 0.0),
        ({"rate": 0}, 0.0),
        ({"delta": 1}, 0.0),
        ({"delta": 0.5}, 0.0),
        ({"noise": 0}, "infinity"),
        ({"delta": 0}, "infinity"),
    ],
)
def test_the_ends_of_every_range_are_answered_in_words(changes, epsilon) -> None:
    answer = one(**changes)["answer"]
    assert answer["epsilon"]["upper"] == epsilon
    assert ("Not private" in answer["words"]) == (epsilon == "infinity")


@pytest.mark.parametrize("scheme", SamplingName)
@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
def test_every_scheme_is_answered_or_refused_with_a_way_out(scheme, neighbours) -> None:
    found = one(rate=0.05, noise=2, steps=40, sampling=scheme.value, adjacency=neighbours)
    if (scheme, neighbours) == (SamplingName.FIXED_SIZE, "add-or-remove"):
        assert "declare Adjacency.REPLACE_ONE" in found["message"]
        return
    epsilon = found["answer"]["epsilon"]
    exact = found["answer"]["kind"] == "exact"
    assert epsilon["lower"] <= epsilon["upper"] < 60.0
    # below other upper bounds nothing is known
    attained = scheme in (
        SamplingName.SHUFFLED,
        SamplingName.FIXED_SIZE,
        SamplingName.BALLS_IN_BINS,
    )
    assert (epsilon["lower"] > 0.0) == (exact or attained)
    poisson = scheme in (SamplingName.POISSON, SamplingName.FULL)
    assert ("poisson_claim" in found["answer"]) == (not poisson)


def test_a_user_with_several_records_loses_more() -> None:
    alone = one(rate=1, noise=8, steps=4, sampling="full")["answer"]
    user = one(rate=1, noise=8, steps=4, sampling="full", group=3)["answer"]
    three = one(rate=1, noise="8/3", steps=4, sampling="full")["answer"]  # exact for Gaussians
    assert "group" not in alone
    assert user["epsilon"] == alone["epsilon"]
    assert user["group"]["size"] == 3
    assert user["group"]["epsilon"]["upper"] == pytest.approx(three["epsilon"]["upper"], rel=1e-9)
    assert "got 0" in one(group=0)["message"]


def test_fractions_are_read_as_written() -> None:
    same = [one(rate=rate, steps=100) for rate in ("1/200", 0.005, "5e-3", "1e2/2e4", " 1 / 200 ")]
    assert len({answer["answer"]["epsilon"]["upper"] for answer in same}) == 1


@pytest.mark.slow
def test_random_settings_never_end_the_batch() -> None:
    draw = random.Random(3)
    lines = [
        json.dumps(
            {
                "rate": 10 ** draw.uniform(-8, 0),
                "noise": 10 ** draw.uniform(math.log10(0.2), 2),
                "steps": int(10 ** draw.uniform(0, 9)),
                "delta": 10 ** draw.uniform(-300, -2),
                "sampling": draw.choice(["poisson", "shuffled", "cyclic", "full"]),
            }
        )
        for _ in range(25)
    ]
    for found in answers(lines):
        epsilon = found["answer"]["epsilon"]
        assert 0.0 <= epsilon["lower"] <= epsilon["upper"] < math.inf
        if found["answer"]["kind"] == "exact":
            assert epsilon["upper"] - epsilon["lower"] <= 1e-4 * epsilon["upper"]
