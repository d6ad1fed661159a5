"""Methods that release their last iterate alone, in the command and in find_noise."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("typer", reason="the command needs typer")

from typer.testing import CliRunner

from tightrope import Target, find_noise
from tightrope.accounting import account
from tightrope.cli.app import app
from tightrope.errors import InvalidInput
from tightrope.interop.setting import Setting
from tightrope.process.convex import (
    ConvexLoss,
    CyclicSGD,
    NoisyGradientDescent,
    SkipSGD,
    StopSGD,
    SubsampledSGD,
)

LOSS = ConvexLoss(2.0, 4.0, 0.5)
SHARED: dict[str, Any] = {"loss": LOSS, "step_size": 0.1, "diameter": 3.0}
WORDS = ["--smoothness", "4", "--strong-convexity", "0.5", "--lipschitz", "2", "--step-size", "0.1"]
WORDS += ["--diameter", "3", "--dataset-size", "100", "--delta", "1e-5"]
NOISE = 5.0
CASES: dict[str, tuple[Any, list[str], int]] = {
    "descent": (
        NoisyGradientDescent(records=100, steps=20, noise_std=0.1, **SHARED),
        ["--steps", "20"],
        100,
    ),
    "cyclic": (
        CyclicSGD(batch_size=10, batches_per_epoch=10, epochs=3, noise_std=1.0, **SHARED),
        ["--batch-size", "10", "--epochs", "3"],
        10,
    ),
    "skip": (SkipSGD(records=100, noise_std=10.0, **SHARED), [], 1),
    "stop": (StopSGD(records=100, noise_std=10.0, **SHARED), [], 1),
    "subsampled": (
        SubsampledSGD(records=100, batch_size=10, steps=30, noise_std=1.0, **SHARED),
        ["--batch-size", "10", "--steps", "30"],
        10,
    ),
}


def answer(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", CASES)
def test_the_command_accounts_for_it(name: str) -> None:
    """The noise multiplier is relative to the Lipschitz constant, on the sum over a batch."""
    process, words, batch = CASES[name]
    assert process.noise_std == pytest.approx(NOISE * LOSS.lipschitz / batch)
    view = answer("account", "--last-iterate", name, *words, *WORDS, "--noise", str(NOISE))
    assert view["answer"]["epsilon"]["upper"] == account(process).epsilon(1e-5).upper
    assert view["answer"]["adjacency"] == "replace-one"


@pytest.mark.parametrize("name", CASES)
def test_the_least_noise_is_found(name: str) -> None:
    process, words, _ = CASES[name]
    target = Target.approx_dp(1.0, 1e-5)
    found = find_noise(process, target)
    assert found.quantity == "noise_std"
    assert target.met_by(account(found.process).guarantee(1e-5))
    less = replace(process, noise_std=found.value * 0.999)
    assert not target.met_by(account(less).guarantee(1e-5)), "one per mille less does not do"
    if name not in ("cyclic", "skip"):  # the command asks the same function for all
        return
    view = answer("calibrate", "--last-iterate", name, *words, *WORDS, "--epsilon", "1")
    assert view["answer"]["noise_std"] == pytest.approx(found.value, rel=1e-9)
    (noise,) = re.findall(r"--noise ([0-9.e-]+[0-9])", " ".join(view["remarks"]))
    again = answer("account", "--last-iterate", name, *words, *WORDS, "--noise", noise)
    assert again["answer"]["epsilon"]["upper"] <= 1.0 + 1e-12


def test_a_table_of_no_other_analyses_is_left_out() -> None:
    _, words, _ = CASES["skip"]
    setting = ["--last-iterate", "skip", *words, *WORDS]
    done = CliRunner().invoke(app, ["calibrate", *setting, "--epsilon", "1"])
    assert done.exit_code == 0 and "noise std" in done.stdout
    assert "true epsilon there" not in done.stdout


def test_a_setting_in_a_file_and_a_line_of_a_batch_know_it(tmp_path: Any) -> None:
    setting = {
        "last_iterate": "skip",
        "smoothness": 4,
        "step_size": 0.1,
        "dataset_size": 100,
        "noise": 5,
        "delta": 1e-5,
    }
    path = tmp_path / "run.json"
    path.write_text(json.dumps(setting))
    one = answer("account", "--from", str(path))
    batch = answer("account", "--batch", str(path))
    assert one["answer"]["epsilon"] == batch["answer"]["epsilon"]


@pytest.mark.parametrize(
    ("setting", "advice"),
    [
        ({"last_iterate": "skip"}, "smoothness, step_size, dataset_size"),
        ({"last_iterate": "skp"}, "Did you mean skip"),
        ({"smoothness": 3, "rate": 0.1, "noise": 1, "steps": 1}, "Name the method too"),
        ({"last_iterate": "skip", "steps": 3}, "has no steps"),
        ({"last_iterate": "stop", "epochs": 3}, "has no epochs"),
        ({"last_iterate": "cyclic", "rate": 0.1, "epochs": 2}, "has no rate"),
        ({"last_iterate": "cyclic"}, "needs epochs"),
        ({"last_iterate": "cyclic", "epochs": 1, "batch_size": 7}, "divides"),
        ({"last_iterate": "subsampled", "steps": 1, "batch_size": 101}, "no batches of 101"),
        ({"last_iterate": "descent", "steps": 1, "sampling": "poisson"}, "has no sampling"),
        ({"last_iterate": "skip", "adjacency": "add-or-remove"}, "replace-one"),
        ({"last_iterate": "descent"}, "steps or epochs"),
    ],
)
def test_what_does_not_belong_to_it_is_refused(setting: dict[str, Any], advice: str) -> None:
    if "last_iterate" in setting and setting != {"last_iterate": "skip"}:
        setting = {"smoothness": 1, "step_size": 1, "dataset_size": 100, "noise": 1} | setting
    with pytest.raises(InvalidInput, match=advice):
        Setting(**setting).run()


@pytest.mark.parametrize("name", CASES)
def test_noise_next_to_nothing_has_an_answer(name: str) -> None:
    _, words, _ = CASES[name]
    asked = ["account", "--last-iterate", name, *words, *WORDS, "--noise"]
    upper = answer(*asked, "1e-30")["answer"]["epsilon"]["upper"]
    assert upper == "infinity" or upper > 1e50
    with pytest.raises(InvalidInput, match="noise_std must be between 1e-40"):
        answer(*asked, "1e-300")
