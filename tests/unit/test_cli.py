"""The command as a user types it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tightrope.cli.app import app
from tightrope.errors import InvalidInput

RUNNER = CliRunner()
MNIST = ["--rate", "256/60000", "--noise", "1.1", "--delta", "1e-5"]


def run(*words: str):
    return RUNNER.invoke(app, list(words), catch_exceptions=False)


def answer(*words: str):
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    "command",
    [[], ["account"], ["calibrate"], ["compare"], ["convert"], ["convert", "renyi"], ["verify"]],
)
def test_help_is_there(command) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.stdout


@pytest.mark.parametrize("length", [["--epochs", "60"], ["--steps", "14062"]])
def test_account_answers_in_json(length) -> None:
    view = answer("account", *MNIST, *length)
    epsilon = view["answer"]["epsilon"]
    assert epsilon["lower"] <= epsilon["upper"] == pytest.approx(2.381596921, rel=1e-9)
    assert "exact" in view["answer"]["analysis"]
    for row in view["analyses"]:
        assert {"name", "kind", "applies", "reason", "epsilon", "source"} <= row.keys()
        assert row["kind"] in ("exact", "bound", "estimate")
        assert row["applies"] == (row["reason"] is None)


def test_account_prints_a_table_and_a_picture(tmp_path) -> None:
    picture = tmp_path / "account.svg"
    result = run("account", *MNIST, "--steps", "1000", "--plot", str(picture))
    assert "epsilon <=" in result.stdout
    assert picture.read_text().startswith("<?xml")


def test_a_batch_answers_line_by_line(tmp_path) -> None:
    settings = tmp_path / "settings.jsonl"
    lines = [
        {"rate": "256/60000", "noise": 1.1, "steps": 14062, "delta": 1e-5},
        {"rate": 2, "noise": 1.0, "steps": 10, "delta": 1e-5},
        {"rate": 0.01, "noise": 2.0, "steps": 1000, "delta": 1e-5, "sampling": "fixed-size",
         "adjacency": "replace-one"},
    ]  # fmt: skip
    settings.write_text("\n".join(json.dumps(line) for line in lines))
    result = run("account", "--batch", str(settings), "--json")
    first, second, third = (json.loads(line) for line in result.stdout.splitlines())
    assert first["answer"]["epsilon"]["upper"] == pytest.approx(2.3815969, rel=1e-7)
    assert second["error"] == "InvalidInput"
    assert third["answer"]["epsilon"]["upper"] == pytest.approx(2.199, abs=6e-4)


def test_calibrate_finds_the_noise() -> None:
    view = answer("calibrate", "--epsilon", "3", *MNIST[:2], "--delta", "1e-5", "--steps", "14062")
    assert 0.96840792 <= view["answer"]["noise_multiplier"] <= 0.968409
    clt = next(row for row in view["alternatives"] if row["kind"] == "estimate")
    assert clt["true_epsilon"]["lower"] > 3.0


def test_calibrate_finds_what_is_missing() -> None:
    assert answer("calibrate", "--epsilon", "3", *MNIST)["answer"]["steps"] > 14062


def test_compare_shows_what_the_sampler_is_worth() -> None:
    view = answer("compare", "--rate", "0.05", "--noise", "1", "--steps", "20")
    found = {
        (v["sampling"], v["answer"]["adjacency"]): v["answer"]["epsilon"]["upper"]
        for v in view["runs"]
    }
    assert found["poisson", "add-or-remove"] < found["shuffled", "add-or-remove"]
    assert found["shuffled", "add-or-remove"] < found["shuffled", "replace-one"]


def test_convert_prints_every_route() -> None:
    view = answer("convert", "renyi", "--order", "8", "--gamma", "0.5", "--delta", "1e-5")
    epsilons = [row["epsilon"] for row in view["routes"]]
    assert epsilons == sorted(epsilons)
    assert len(epsilons) == 5
    assert all({"name", "side", "source"} <= row.keys() for row in view["routes"])


def test_convert_backwards_and_sideways() -> None:
    back = answer("convert", "to-renyi", "--epsilon", "1", "--delta", "1e-4", "--order", "2")
    assert back["routes"][1]["gamma"] == pytest.approx(6.871166e-4, rel=1e-6)
    gaussian = answer("convert", "gaussian", "--mu", "1.13", "--deltas", "1e-5")
    assert gaussian["epsilon"][0]["upper"] == pytest.approx(5.0456366905784754, rel=1e-10)
    again = answer("convert", "gaussian", "--mu", "1.13", "--delta", "1e-5")
    assert again["epsilon"] == gaussian["epsilon"]
    pure = answer("convert", "approx", "--epsilon", "1")
    assert pure["renyi"][-1]["upper"] <= 1.0


def test_certify_verify_and_report(tmp_path) -> None:
    certificate, page = tmp_path / "certificate.json", tmp_path / "report.html"
    run("certify", "--rate", "1", "--noise", "8", "--steps", "10", "--out", str(certificate))
    assert run("verify", str(certificate)).exit_code == 0
    run("report", str(certificate), "--out", str(page))
    text = page.read_text()
    assert "Of 1,000 people" in text
    assert "http" not in text.replace("http://www.w3.org", "").replace("http-equiv", "")
    edited = json.loads(certificate.read_text())
    edited["process"]["noise_multiplier"] = 16.0
    certificate.write_text(json.dumps(edited))
    assert run("verify", str(certificate)).exit_code == 1
    done = run("report", str(certificate), "--out", str(page), "--force")
    assert done.exit_code == 1
    assert "Do not trust" in page.read_text() and "Of 1,000 people" not in page.read_text()


def test_sign_verify_and_export(tmp_path) -> None:
    pytest.importorskip("cryptography", reason="signatures need it")
    key, path, title = tmp_path / "alice", tmp_path / "certificate.json", tmp_path / "title.json"
    title.write_text('{"organisation": "Example", "people": 1000}')
    assert run("keygen", str(key)).exit_code == 0
    small = ["--rate", "1", "--noise", "8", "--steps", "10", "--out", str(path)]
    run("certify", *small, "--title", str(title), "--sign", str(key))
    signed = answer("verify", str(path), "--key", f"{key}.pub")
    assert {"signed by alice"} == {c["by"] for c in signed["checks"] if "stated" in c["state"]}
    run("certify", *small, "--force")
    assert run("verify", str(path), "--trust", str(tmp_path)).exit_code == 1
    run("sign", str(path), "--key", str(key), "--detached")
    assert run("verify", str(path), "--trust", str(tmp_path)).exit_code == 0
    card = tmp_path / "card.md"
    run("export", str(path), "--as", "model-card", "--out", str(card))
    assert card.read_text().startswith("## Privacy")


def test_patience_that_runs_out_is_not_decided(tmp_path) -> None:
    path = tmp_path / "certificate.json"
    run("certify", "--rate", "0.01", "--noise", "1", "--steps", "100", "--out", str(path))
    late = run("verify", str(path), "--patience", "0.1", "--json")
    assert late.exit_code == 3 and json.loads(late.stdout)["holds"] is None
    assert "--patience" in json.loads(late.stdout)["checks"][-1]["said"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["account", "--rate", "x", "--noise", "1", "--steps", "1"], "256/60000"),
        (["account", "--rate", "0.1", "--noise", "1"], "needs --steps"),
        (["account", "--rate", "0.1", "--noise", "-1", "--steps", "1"], "noise_multiplier"),
        (["account", "--rate", "0.1", "--noise", "1", "--steps", "1.5"], "whole number"),
        (["account", "--rate", "0.1", "--noise", "1", "--steps", "1", "--delta", "nan"], "delta"),
        (["account", "--noise", "1", "--steps", "1"], "--rate 256/60000"),
        (["account", *MNIST, "--steps", "1", "--sampling", "posson"], "Did you mean poisson"),
        (["account", *MNIST, "--steps", "1", "--epochs", "1"], "got both"),
        (["account", "--rate", "0", "--noise", "1", "--epochs", "1"], "Give steps, or a rate"),
        (["account", "--rate", "0", "--noise", "1", "--steps", "1", "--sampling", "shuffled"],
         "256/60000"),
        (["account", *MNIST, "--batch", "settings.jsonl"], "leave out --batch"),
        (["account", "--batch", "no-such-file"], "standard input"),
        (["account", *MNIST, "--steps", "1", "--plot", "picture.bmp"], "png, .svg or .pdf"),
        (["calibrate", "--rate", "0.1", "--steps", "10"], "--epsilon"),
        (["calibrate", "--rate", "0.1", "--steps", "10", "--epsilon", "-1"], "epsilon must be"),
        (["calibrate", "--rate", "0.1", "--steps", "10", "--epsilon", "nan"], "epsilon must be"),
        (["calibrate", "--rate", "0.1", "--steps", "10", "--epsilon", "inf"], "epsilon must be"),
        (["calibrate", *MNIST, "--epsilon", "1", "--find", "nois"], "Did you mean noise"),
        (["convert", "renyi", "--order", "1", "--gamma", "1", "--delta", "1e-5"], "order"),
        (["account", *MNIST, "--steps", "1", "--adjacency", "x"], "replace-one"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(words, told) -> None:
    with pytest.raises(InvalidInput, match=told):
        run(*words)


def test_a_batch_size_given_as_rate_is_told_apart() -> None:
    with pytest.raises(InvalidInput, match="--batch-size 256 --dataset-size N"):
        run("account", "--rate", "256", "--noise", "1.1", "--epochs", "60")


def test_a_bare_command_shows_what_to_begin_with() -> None:
    assert "tightrope demo" in run().output
