"""The command's first screen: flags, completion, and what to install."""

from __future__ import annotations

import builtins
import json
import sys

import pytest

pytest.importorskip("typer", reason="the command needs typer")

from typer.testing import CliRunner

from tightrope.cli.app import app, run


@pytest.mark.parametrize("words", [[], ["doctor"], ["ledger", "init"], ["table", "fit"]])
def test_flags_are_shown_as_flags(words):
    told = CliRunner().invoke(app, [*words, "--help"]).output
    assert "--help" in told and "bool" not in told.lower()


def test_the_first_screen_offers_completion_and_three_examples():
    told = CliRunner().invoke(app, []).output
    assert "--install-completion" in told
    assert told.count("tightrope account") + told.count("tightrope calibrate") == 2
    assert "tightrope demo" in told


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_words_are_completed(shell, monkeypatch, capsys):
    asked = {"_TIGHTROPE_COMPLETE": f"complete_{shell}", "COMP_WORDS": "tightrope acc"}
    asked |= {"COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "tightrope acc"}
    asked |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["tightrope"])
    with pytest.raises(SystemExit):
        run()
    assert "account" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("missing", "extra", "words"),
    [
        ("uvicorn", "explore", ["explore"]),
        ("torch", "train", ["doctor", "run", "x.py:run", "--json"]),
    ],
)
def test_a_missing_package_is_named_with_its_extra(missing, extra, words, monkeypatch, capsys):
    """No traceback of ModuleNotFoundError, whatever the command."""
    real = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    for name in [name for name in sys.modules if name.startswith("tightrope.train")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr(sys, "argv", ["tightrope", *words])
    with pytest.raises(SystemExit) as ended:
        run()
    told = capsys.readouterr()
    assert ended.value.code == 2 and f"tightrope[{extra}]" in told.err.replace("\n", "")
    if "--json" in words:
        assert json.loads(told.out)["error"] == "MissingTool"
