"""Hole H: certificates, pages, keys and files that say more than anybody has checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tightrope
from tightrope import DeclaredApproxDP, FullBatch, NoisySGD, PoissonSampling, account
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
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process.codec import from_json
from tightrope.report import page_figures
from tightrope.report.page import Page, html_page, markdown_page
from tightrope.report.words import meaning

DELTA = 1e-5
TRAINED = NoisySGD(FullBatch(), noise_multiplier=8.0, steps=10)
HANGS = 60  # seconds after which a command counts as hanging
OLD = Path(__file__).parents[1] / "unit" / "evidence" / "old"


def facts(**changed: Any) -> RunFacts:
    words: dict[str, Any] = {
        "kind": "training",
        "private": True,
        "not_private_because": (),
        "steps": 10,
        "clip": "FlatClip(clip_norm=1.0)",
        "sensitivity": 1.0,
        "noise": "Gaussian",
        "sampling": "operating-system entropy",
        "settings": {"optimizer": "SGD"},
        "length": "planned" if changed.get("steps", 10) is not None else None,
    }
    return RunFacts(**(words | changed))


def made(process: Any, delta: float = DELTA, run: RunFacts | None = None) -> dict[str, Any]:
    return json.loads(json.dumps(certify(process, delta, run)))  # type: ignore[no-any-return]


@lru_cache
def trained() -> str:
    return json.dumps(certify(TRAINED, DELTA, facts()))


def fresh() -> dict[str, Any]:
    return json.loads(trained())  # type: ignore[no-any-return]


def rehashed(certificate: dict[str, Any]) -> dict[str, Any]:
    return {**certificate, "chain": chain_of(certificate)}


def rewritten(content: dict[str, Any]) -> dict[str, Any]:
    return rehashed({**content, "statement": statement(content)})


def stored(content: dict[str, Any] | str, folder: Path) -> str:
    path = folder / "certificate.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def tool(*words: Any, given: str | None = None) -> Any:
    return CliRunner().invoke(app, [*map(str, words)], input=given)


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, as a shell would run it."""
    where = str(Path(tightrope.__file__).parents[1])
    path = os.pathsep.join([where, os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", "from tightrope.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        timeout=HANGS,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        check=False,
    )


# ---- H1: ticks that nobody checked
def test_words_of_the_run_are_not_ticks() -> None:
    forged = fresh()
    forged["run"]["clip"] = "a clip that never ran"
    told = {line.name: line.holds for line in verify(rehashed(forged))}
    assert told.get("clip", True) is None, "stated by the writer: it neither holds nor fails"


def test_the_page_has_no_tick_for_what_is_only_stated() -> None:
    text = html_page(Page(fresh()))
    assert "met:" not in text and "derived from the objects that really ran" not in text
    assert "Stated by the writer" in text and "Yours to check" in text


# ---- H2: free words inside of what is checked
def forged_kind(kind: str) -> dict[str, Any]:
    forged = fresh()
    honest = forged["run"]["kind"]
    forged["run"].update(kind=kind, steps=None)
    forged["statement"] = forged["statement"].replace(honest, kind)
    return rehashed(forged)


def test_the_kind_of_a_run_is_no_free_text() -> None:
    toy = (
        "model has (0.01, 1e-10)-differential privacy in every respect that matters; for "
        "comparison, the unrelated toy example"
    )
    assert not holds(verify(forged_kind(toy)))


def test_a_declared_guarantee_is_no_training_and_says_that_it_is_declared() -> None:
    assert not holds(verify(made(DeclaredApproxDP(0.01, 1e-9), 1e-9, facts(steps=None))))
    lines = verify(made(DeclaredApproxDP(0.01, 1e-9), 1e-9))
    assert "declared" in lines[-1].said


def test_a_key_that_comes_twice_is_refused(tmp_path: Path) -> None:
    text = trained().replace('"statement":', '"statement": "Perfectly private.", "statement":', 1)
    with pytest.raises(ValueError, match="twice"):
        read(stored(text, tmp_path))


@pytest.mark.parametrize("place", [("setting",), ("run", "settings"), ("process", "adjacency")])
def test_keys_that_nobody_knows_are_refused(place: tuple[str, ...]) -> None:
    forged = fresh()
    node = forged
    for key in place:
        node = node[key]
    node["note"] = {"guarantee": "(0, 0)"}
    assert not holds(verify(rehashed(forged)))


# ---- H3: hostile files
def test_a_small_file_that_asks_for_endless_work_gets_an_answer(tmp_path: Path) -> None:
    forged = made(NoisySGD(PoissonSampling(0.01), noise_multiplier=1.0, steps=10))
    forged["process"].update(steps=10**15, noise_multiplier=0.9)
    done = command("verify", stored(rehashed(forged), tmp_path), "--patience", "3")
    assert done.returncode in (1, 3), done.stdout


@pytest.mark.parametrize("rows", ["history", "epsilon"])
def test_thousands_of_rows_get_an_answer(rows: str, tmp_path: Path) -> None:
    sampled = NoisySGD(PoissonSampling(0.01), noise_multiplier=1.0, steps=3000)
    forged = made(sampled, run=facts(steps=3000))
    if rows == "history":
        loose = [{"step": step, "epsilon": 0.1} for step in range(1, 3001)]
        forged["run"]["history"] = loose[::-1]
    else:
        deltas = np.geomspace(1e-12, 1e-2, 2000)
        forged["claims"]["epsilon"] += [{"delta": d, "lower": 0.0, "upper": 99.0} for d in deltas]
    done = command("verify", stored(rehashed(forged), tmp_path), "--json")
    assert done.returncode == 1 and "form" in done.stdout


@pytest.mark.parametrize("text", ["[" * 100_000, '{"schema": "\\ud800"}', '{"a": ' * 5000, "\0"])
def test_odd_files_are_refused_in_words(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read(stored(text, tmp_path))


def test_the_command_refuses_them_without_a_traceback(tmp_path: Path) -> None:
    done = command("verify", stored("[" * 100_000, tmp_path))
    assert done.returncode == 2 and "Traceback" not in done.stderr


def test_no_escape_sequence_reaches_the_terminal(tmp_path: Path) -> None:
    forged = forged_kind("training\x1b[2J\x1b[31m")
    done = command("verify", stored(forged, tmp_path))
    assert done.returncode != 0 and "\x1b" not in done.stdout + done.stderr
    assert "\\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", "[click](javascript:alert(1))"])
def test_no_page_carries_a_script(text: str) -> None:
    pytest.importorskip("matplotlib")
    page = Page(made(TRAINED, run=facts(clip=text)))
    for written in (html_page(page), markdown_page(page)):
        assert "<script" not in written
    assert "[click](" not in markdown_page(page)


# ---- H4: a missing tool is no verdict
def test_without_matplotlib_there_is_still_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, name, None)
    text = html_page(Page(fresh()))
    assert "Not drawn" in text and "damaged" not in text and "Of 1,000 people" in text


# ---- H5: pictures and words on the safe side
@pytest.mark.parametrize("mu", [0.05, 0.4, 1.0, 3.0])
def test_nobody_gets_above_the_drawn_curve(mu: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the points too, as Matplotlib joins them on a log axis."""
    pytest.importorskip("matplotlib")
    kept: list[Any] = []
    finish = page_figures._svg

    def catch(made: Any) -> str:
        kept.append(made.axes[0].get_lines()[0])
        return finish(made)

    monkeypatch.setattr(page_figures, "_svg", catch)
    guarantee = GaussianGuarantee(mu)
    page_figures.tradeoff(guarantee)
    x, y = kept[0].get_data()
    at = np.geomspace(1.0, 1000.0, 3001)
    if kept[0].get_drawstyle() == "steps-pre":
        drawn = np.asarray(y)[np.minimum(np.searchsorted(x, at * (1 - 1e-12)), len(x) - 1)]
    else:
        drawn = np.interp(np.log(at), np.log(x), y)
    truth = [1000 * guarantee.true_positive_rate(min(a / 1000, 1.0)).lower for a in at]
    assert (drawn >= np.array(truth) - 1e-6).all()
    assert (drawn <= np.array(truth) * 1.1 + 0.1).all(), "and not far above either"


def test_epsilon_zero_beside_a_large_delta_is_not_nothing() -> None:
    guarantee = GaussianGuarantee(0.5)
    assert guarantee.epsilon(0.5).upper == 0.0
    told = meaning(guarantee, 0.5)[1]
    assert told.startswith("epsilon = 0:") and "but for what delta allows" in told


# ---- what a run's length was held to
def limited(length: str, budget: tuple[float, float] | None) -> dict[str, Any]:
    return made(TRAINED, run=facts(length=length, budget=budget))


def test_a_budget_that_allows_more_did_not_hold_the_run() -> None:
    """Stopped at will after ten steps, under a budget for thousands: nothing covers that."""
    lines = verify(limited("budget", (1000.0, DELTA)))
    (length,) = [line for line in lines if line.name == "length"]
    assert length.holds is None and length.state == "stated by the writer"
    assert (
        "By its own word" in lines[-1].said and "all that its budget allows" not in lines[-1].said
    )


def test_a_budget_that_is_spent_is_proved_to_be() -> None:
    spent = account(NoisySGD(FullBatch(), 8.0, 10)).epsilon(DELTA).upper
    lines = verify(limited("budget", (spent * (1 + 1e-9), DELTA)))
    assert [line.holds for line in lines if line.name == "length"] == [True]
    assert "all that its budget allows" in lines[-1].said


def test_steps_are_not_nothing() -> None:
    assert not holds(verify(limited("nothing released", None)))


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
        one = {"algorithm": "ed25519", "key": key, "signature": first + "00" * 32}
        (line,) = [c for c in verify({**fresh(), "signatures": [one]}) if c.name == "signature"]
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
    stored(fresh(), tmp_path)
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
    path = stored(rehashed(content), tmp_path)
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
    there = tmp_path / "mine.md"
    there.write_text("mine")
    run = ("--rate", "0.01", "--noise", "1", "--steps", "10")
    path = stored(fresh(), tmp_path)
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
    path = stored(fresh(), tmp_path)
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
