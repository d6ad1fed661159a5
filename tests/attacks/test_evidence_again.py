"""Second attack on evidence: lengths that nobody checked, keys of anybody, old files, odd files."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tightrope import (
    BallsInBinsSampling,
    DeclaredApproxDP,
    FullBatch,
    GaussianMechanism,
    NoisySGD,
    account,
)
from tightrope.cli import evidence_command, tables
from tightrope.cli.app import app
from tightrope.cli.tables import verdict_of
from tightrope.cli.task import Late
from tightrope.errors import InvalidInput
from tightrope.evidence.certificate import Title, certify, chain_of, read, titled
from tightrope.evidence.check import Check, stated
from tightrope.evidence.files import check_plain, parse
from tightrope.evidence.run_facts import RunFacts
from tightrope.evidence.signature import Trust, new_key_pair, signature_by, signed
from tightrope.evidence.statement import statement
from tightrope.evidence.verify import holds, verify
from tightrope.process.codec import from_json

DELTA = 1e-5
OLD = Path(__file__).parents[1] / "unit" / "evidence" / "old"


@lru_cache
def made() -> str:
    return json.dumps(certify(GaussianMechanism(2.0), DELTA))


def fresh() -> dict[str, Any]:
    return json.loads(made())  # type: ignore[no-any-return]


def rewritten(content: dict[str, Any]) -> dict[str, Any]:
    content["statement"] = statement(content)
    return {**content, "chain": chain_of(content)}


def stored(content: Any, path: Path) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def tool(*words: Any, given: str | None = None) -> Any:
    return CliRunner().invoke(app, [*map(str, words)], input=given)


# ---- what a run's length was held to
def trained(length: str, budget: tuple[float, float] | None, steps: int = 10) -> dict[str, Any]:
    said: dict[str, Any] = {"kind": "training", "private": True, "not_private_because": ()}
    said |= {"clip": "c", "sensitivity": 1.0, "noise": "n", "sampling": "s", "settings": {}}
    facts = RunFacts(steps=steps, length=length, budget=budget, **said)
    process = NoisySGD(FullBatch(), noise_multiplier=8.0, steps=10)
    return json.loads(json.dumps(certify(process, DELTA, facts)))  # type: ignore[no-any-return]


def test_a_budget_that_allows_more_did_not_hold_the_run() -> None:
    """Stopped at will after ten steps, under a budget for thousands: nothing covers that."""
    lines = verify(trained("budget", (1000.0, DELTA)))
    (length,) = [line for line in lines if line.name == "length"]
    assert length.holds is None and length.state == "stated by the writer"
    assert (
        "By its own word" in lines[-1].said and "all that its budget allows" not in lines[-1].said
    )


def test_a_budget_that_is_spent_is_proved_to_be() -> None:
    spent = account(NoisySGD(FullBatch(), 8.0, 10)).epsilon(DELTA).upper
    lines = verify(trained("budget", (spent * (1 + 1e-9), DELTA)))
    assert [line.holds for line in lines if line.name == "length"] == [True]
    assert "all that its budget allows" in lines[-1].said


def test_steps_are_not_nothing() -> None:
    assert not holds(verify(trained("nothing released", None)))


# ---- old bounds
@pytest.mark.parametrize("name", ["replace-one-bound", "balls-in-bins-bound"])
def test_a_bound_of_before_still_holds_and_a_smaller_one_does_not(name: str) -> None:
    """Written on commit 5860093; today's theorems prove less loss, and exactly."""
    old = read(OLD / f"{name}.json")
    assert holds(verify(old))
    truth = account(from_json(old["process"])).epsilon(old["setting"]["delta"]).upper
    for row in old["claims"]["epsilon"]:
        if row["delta"] == old["setting"]["delta"]:
            row.update(lower=0.0, upper=truth * (1 - 1e-6))
    assert not holds(verify(rewritten(old)))


def test_balls_in_bins_are_certified_and_verified() -> None:
    process = NoisySGD(BallsInBinsSampling(20), noise_multiplier=1.0, steps=20)
    lines = verify(json.loads(json.dumps(certify(process, DELTA))))
    assert holds(lines)


def test_a_bound_says_nothing_below_itself() -> None:

    found = account(DeclaredApproxDP(1.0, 1e-6))
    assert found.epsilon(DELTA).lower == 0.0 < found.epsilon(DELTA).upper
    assert found.tradeoff(0.1).upper == 0.9 > found.tradeoff(0.1).lower
    assert certify(DeclaredApproxDP(1.0, 1e-6), DELTA)["claims"]["epsilon"][0]["lower"] == 0.0


# ---- keys
WEAK = ["01" + "00" * 31, "ee" + "ff" * 31, "00" * 32, "ec" + "ff" * 30 + "7f"]


@pytest.mark.parametrize("key", WEAK)
def test_a_key_with_which_anybody_signs_signs_nothing(key: str) -> None:
    """s = 0 and R of small order fit many contents under such a key, without any secret."""
    pytest.importorskip("cryptography")
    for first in ("01" + "00" * 31, "ec" + "ff" * 30 + "7f", "00" * 32, "00" * 31 + "80"):
        made = {"algorithm": "ed25519", "key": key, "signature": first + "00" * 32}
        (line,) = [c for c in verify({**fresh(), "signatures": [made]}) if c.name == "signature"]
        assert line.holds is False


def test_such_a_key_is_not_trusted(tmp_path: Path) -> None:
    ed = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    from cryptography.hazmat.primitives import serialization as serial

    public = ed.Ed25519PublicKey.from_public_bytes(bytes.fromhex(WEAK[0]))
    info = serial.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "a.pub").write_bytes(public.public_bytes(serial.Encoding.PEM, info))
    with pytest.raises(InvalidInput, match="anybody"):
        Trust.of(folder=tmp_path)


def test_a_pipe_is_no_key(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    os.mkfifo(tmp_path / "key.pub")
    with pytest.raises(InvalidInput, match="not a public"):
        Trust.of([tmp_path / "key.pub"])


def test_half_a_pair_of_keys_is_never_written(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    (tmp_path / "key.pub").write_text("the only copy")
    with pytest.raises(InvalidInput, match="never overwritten"):
        new_key_pair(tmp_path / "key")
    assert not (tmp_path / "key").exists()
    (tmp_path / "other").write_text("the only copy")
    with pytest.raises(InvalidInput, match="never overwritten"):
        new_key_pair(tmp_path / "other")
    assert not (tmp_path / "other.pub").exists()


def test_a_detached_signature_in_a_run_folder_counts(tmp_path: Path) -> None:
    """For verify, report and export alike."""
    pytest.importorskip("cryptography")
    stored(fresh(), tmp_path / "certificate.json")
    assert tool("keygen", tmp_path / "key").exit_code == 0
    assert tool("sign", tmp_path, "--key", tmp_path / "key", "--detached").exit_code == 0
    trust = ("--key", tmp_path / "key.pub")
    assert tool("verify", tmp_path, *trust, "--patience", 60).exit_code == 0
    card = ("--as", "model-card", "--out", tmp_path / "card.md", "--patience", 60)
    done = tool("export", tmp_path, *trust, *card)
    assert done.exit_code == 0 and "signed by key" in (tmp_path / "card.md").read_text()


@pytest.mark.parametrize("content", [{}, {"signatures": 5}, {"signatures": "abc"}, {"run": 7}])
def test_only_certificates_are_signed_and_titled(content: Any, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    key, _ = new_key_pair(tmp_path / "key")
    odd = {**(fresh() if content else {}), "schema": "tightrope.certificate/2", **content}
    for use in (lambda: signed(odd, key), lambda: signature_by(odd, key)):
        with pytest.raises(InvalidInput, match="not a certificate"):
            use()
    with pytest.raises(InvalidInput, match="not a certificate"):
        titled(odd, Title())


def test_a_date_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="2026-99-99"):
        Title(date="2026-99-99")


# ---- odd data
def test_integers_that_no_double_holds_are_refused_in_memory_too() -> None:
    """The canonical form would write two of them alike, under one signature."""
    with pytest.raises(InvalidInput, match="2\\^53"):
        check_plain({"steps": 2**53 + 1})


def test_a_key_twice_among_very_many_is_found() -> None:
    many = ",".join(f'"{i:x}":0' for i in range(200_000))
    with pytest.raises(InvalidInput, match="twice"):
        parse(f'{{{many},"zz":0,"zz":1}}')


def test_an_odd_certificate_is_no_source_of_a_run(tmp_path: Path) -> None:
    content = {"schema": "tightrope.certificate/2", "run": None}
    path = stored({**content, "chain": chain_of(content)}, tmp_path / "certificate.json")
    for words in (("account", "--from", path), ("compose", path, path)):
        done = tool(*words)
        assert isinstance(done.exception, InvalidInput | SystemExit)
        assert "not a certificate" in str(done.exception)


# ---- the command
def test_standard_input_is_verified_and_told_in_full() -> None:
    content = fresh()
    content["title"]["organisation"] = "[bold]:skull:[/]"
    done = tool("verify", "-", "--patience", 60, given=json.dumps(rewritten(content)))
    assert done.exit_code == 0
    assert "[bold]:skull:[/]" in "".join(done.stdout.split()) and "…" not in done.stdout
    done = tool("verify", "-", given="{")
    assert isinstance(done.exception, InvalidInput) and "Standard input" in str(done.exception)


def test_nothing_is_written_over_unless_forced(tmp_path: Path) -> None:
    there = stored("mine", tmp_path / "mine.md")
    run = ("--rate", "0.01", "--noise", "1", "--steps", "10")
    path = stored(fresh(), tmp_path / "certificate.json")
    for words in (
        ("certify", *run, "--out", there),
        ("report", path, "--out", there),
        ("export", path, "--as", "nist", "--out", there),
    ):
        done = tool(*words)
        assert "--force" in str(done.exception) and there.read_text() == "mine"
    done = tool("certify", *run, "--delta", "1e-5", "--out", there, "--force", "--json")
    told = json.loads(done.stdout)
    assert told["certificate"] == str(there) and told["statement"] == read(there)["statement"]


# ---- what the terminal shows
def test_a_statement_before_the_time_ran_out_decides_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The line of --rigorous, which comes after the statement, was asked for and never came."""
    rows = [asdict(line) for line in verify(fresh())]
    assert rows[-1]["name"] == "statement" and rows[-1]["holds"]

    def late(*_: Any, **__: Any) -> Any:
        raise Late(1.0, rows)

    monkeypatch.setattr(evidence_command, "rows_of", late)
    path = stored(fresh(), tmp_path / "certificate.json")
    told = tool("verify", path, "--rigorous")
    assert told.exit_code == 3 and "HOLDS" not in told.output and "NOT DECIDED" in told.output
    assert json.loads(tool("verify", path, "--rigorous", "--json").output)["holds"] is None


@pytest.mark.parametrize("columns", [1, 8, 20, 33, 40, 41, 80])
def test_no_terminal_is_too_narrow_for_a_word(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = [stated("title", "\u9577" * 200, "unsigned"), Check("epsilon", False, "q" * 300)]
    tables.screen().print(verdict_of(lines))
    shown = capsys.readouterr().out
    assert shown.count("\u9577") == 200 and shown.count("q") == 300
    assert shown.count("FAILS") == 2


def test_names_of_keys_do_nothing_to_a_terminal(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="signatures need it")
    _, public = new_key_pair(tmp_path / "alice")
    for name in ("b\x1b[2J.pub", "c\x1b[31m.pub"):
        (tmp_path / name).write_bytes(public.read_bytes())
    (name,) = Trust.of(folder=tmp_path).names.values()
    assert name == r"alice or b\u001b[2J or c\u001b[31m"
