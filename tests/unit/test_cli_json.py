"""--json: one document, and every field of it is told in docs/json.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the command needs typer")

from typer.testing import CliRunner

from tightrope.cli.app import app

PAGE = (Path(__file__).parents[2] / "docs" / "json.md").read_text()
SETTING = ["--rate", "0.01", "--noise", "2", "--steps", "100", "--delta", "1e-5"]
ASKED = {
    "account": ["account", *SETTING],
    "calibrate": ["calibrate", "--epsilon", "1", *SETTING[:2], *SETTING[4:]],
    "compare": ["compare", *SETTING],
    "sweep": ["sweep", "--over", "noise", *SETTING],
    "certify": ["certify", *SETTING],
    "reproduce": ["reproduce", "variants-fig-6", "--quick"],
}


def answered(words):
    told = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert told.exit_code == 0
    return json.loads(told.stdout)


def described(document):
    """The schema names a section of the page, and each field has its word there."""
    name = document["schema"].removeprefix("tightrope.")
    command = name.partition("/")[0].replace(".", " ")
    (section,) = [one for one in PAGE.split("\n## ") if f"`tightrope.{name}`" in one.split("\n")[0]]
    assert section.startswith(f"`tightrope {command}`")
    return [key for key in document if key != "schema" and f"`.{key}" not in section]


@pytest.mark.parametrize("command", ASKED)
def test_every_field_is_described(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if command == "reproduce":
        pytest.importorskip("tightrope_reproduce", reason="a package of its own")
    assert described(answered(ASKED[command])) == []


@pytest.mark.slow
def test_the_demo_without_torch_certifies_the_declared_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tightrope.cli.demo.missing_package", lambda: "torch")
    found = answered(["demo"])
    assert described(found) == []
    assert found["holds"] is True and found["trained"] is None
    assert found["account"]["epsilon"]["upper"] == pytest.approx(2.381597, rel=1e-6)
    assert all(Path(found[name]).exists() for name in ("certificate", "report", "picture"))


@pytest.mark.slow
def test_the_demo_trains_and_is_attacked(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="training needs torch")
    monkeypatch.chdir(tmp_path)
    found = answered(["demo"])
    assert found["holds"] is True and found["trained"]["epsilon"] <= 3.0
    assert found["trained"]["audit"]["epsilon_lower"] <= found["trained"]["epsilon"]
