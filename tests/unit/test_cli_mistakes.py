"""What people type by mistake: one sentence that says what to type instead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="the command needs typer")

from typer.testing import CliRunner

from tightrope.cli.app import app
from tightrope.errors import InvalidInput

RUN = ["--rate", "0.01", "--noise", "1", "--steps", "10"]


def told(*words: str) -> str:
    with pytest.raises(InvalidInput) as refused:
        CliRunner().invoke(app, list(words), catch_exceptions=False)
    return str(refused.value)


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["account", "--rate", "1%", "--noise", "1", "--steps", "10"], "1/100 for 1%"),
        (["account", "--rate", "0,01", "--noise", "1", "--steps", "10"], "with a point"),
        (["account", "--rate", "256/0", "--noise", "1", "--steps", "10"], "divided by 0"),
        (["account", *RUN[:4], "--steps", "-3"], "from 0 to 1e+300; got -3."),
        (["account", "--rate", "0.01", "--noise", "-1", "--steps", "9"], "standard deviation"),
        (["account", "--rate", "-0.1", "--noise", "1", "--steps", "9"], "batch size / dataset"),
        (["account", "--batch-size", "9", "--noise", "1", "--steps", "9"], "--dataset-size N"),
        (["account", "--from", "none.json"], "there is no such file"),
        (["compare"], "tightrope compare --rate"),
        (["sweep", "--rate", "0.01", "--epochs", "3"], "sweep needs --noise"),
        (["sweep", *RUN[:4], "--over", "rate", "--values", "0.1"], "needs --steps"),
        (["certify"], "tightrope certify --rate"),
        (["certify", *RUN, "--out", "."], "is a folder"),
        (["certify", *RUN, "--sign", "none.key"], "does not exist"),
        (["doctor", "run", "none.py:run"], "no file 'none.py'"),
        (["ledger", "status", "--ledger", "none.db"], "init --ledger none.db"),
        (["audit", "none"], "there is no such file"),
        (["ledger", "check", "people", "--head", "3:abc"], "A head is NUMBER:HASH"),
    ],
)
def test_a_mistake_is_told_with_what_to_type(words, advice, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert advice in told(*words)


@pytest.mark.parametrize("over", ["noise", "steps", "epochs", "rate"])
def test_what_a_sweep_varies_need_not_be_said(over) -> None:
    given = {"rate": "0.01", "noise": "1", "steps": "10"}
    given.pop({"epochs": "steps"}.get(over, over))
    words = [word for name, value in given.items() for word in (f"--{name}", value)]
    asked = ["sweep", *words, "--over", over, "--values", "1", "--json"]
    ended = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert ended.exit_code == 0 and "epsilon" in json.loads(ended.stdout)["rows"][0]


def test_the_wrong_half_of_a_key_is_named(tmp_path: Path) -> None:
    """A public key must never be made secret by advice, nor a secret one handed to readers."""
    pytest.importorskip("cryptography")
    from tightrope.evidence.signature import Trust, new_key_pair, signature_of

    secret, public = new_key_pair(tmp_path / "k")
    with pytest.raises(InvalidInput, match=r"the one without \.pub"):
        signature_of({}, public)
    with pytest.raises(InvalidInput, match=r"the one that ends in \.pub"):
        Trust.of([secret])
    secret.chmod(0o640)
    with pytest.raises(InvalidInput, match="chmod 600"):
        signature_of({}, secret)


def test_an_edited_certificate_is_neither_signed_nor_given_a_title(tmp_path: Path) -> None:
    """A new hash chain over edited sections would hide the edit: `verify` must go on to fail."""
    pytest.importorskip("cryptography")
    from tightrope.evidence import certify, new_key_pair, write
    from tightrope.evidence.certificate import Title, chain_of, titled
    from tightrope.evidence.signature import signature_by, signed
    from tightrope.process import GaussianMechanism

    key, _ = new_key_pair(tmp_path / "key")
    edited = certify(GaussianMechanism(1.0), 1e-5)
    edited["setting"]["delta"] = 1e-6
    path = write(edited, tmp_path / "certificate.json")
    for use in (
        lambda: titled(edited, Title(model="x")),
        lambda: signed(edited, key),
        lambda: signature_by(edited, key),
    ):
        with pytest.raises(InvalidInput, match="changed after it was written"):
            use()
    assert "changed after it was written" in told("sign", str(path), "--key", str(key))
    assert json.loads(path.read_text())["chain"] != chain_of(edited)


def test_a_certificate_says_its_statement_when_it_is_written(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "c.json")]
    words = ["certify", "--rate", "0.01", "--noise", "0", "--steps", "10", *out]
    ended = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "NOT PRIVATE" in ended.output


def _table(folder: Path) -> list[str]:
    (folder / "t.csv").write_text("a,y\n" + "0.1,0\n0.2,1\n" * 20)
    columns = "{a: {kind: number, low: 0, high: 1}, y: {kind: category, values: ['0', '1']}}"
    (folder / "s.yaml").write_text(f"columns: {columns}\ntarget: y\n")
    return ["--schema", str(folder / "s.yaml"), "--epsilon", "1"]


def test_a_fit_never_overwrites_an_earlier_one(tmp_path: Path) -> None:
    """Its privacy was spent: what it gave is not lost, and no more is spent before the refusal."""
    usual = _table(tmp_path)
    out = tmp_path / "model.json"
    words = ["table", "fit", str(tmp_path / "t.csv"), *usual, "--out", str(out)]
    for name in ("model.json", "certificate.json"):
        (tmp_path / name).write_text("kept")
        assert name in told(*words) and (tmp_path / name).read_text() == "kept"
        (tmp_path / name).unlink()
    assert not out.exists()


@pytest.mark.parametrize("words", [["plan", "--records", "40"], ["fit", "t.csv"]])
def test_a_delta_that_is_too_large_is_remarked_on(words, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["table", *words, *_table(tmp_path), "--delta", "0.5"]
    ended = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert ended.exit_code == 0 and "too large for 40 records" in " ".join(ended.output.split())


def test_a_scheme_that_cannot_draw_such_batches_is_a_row_of_the_table() -> None:
    words = ["compare", "--rate", "1e-301", "--noise", "1", "--steps", "10", "--json"]
    told = CliRunner().invoke(app, words, catch_exceptions=False)
    runs = json.loads(told.stdout)["runs"]
    assert told.exit_code == 0 and "answer" in runs[0]
    assert [run["sampling"] for run in runs if "error" in run]
