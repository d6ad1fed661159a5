"""Certificates and pages that said more than anybody had checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tightrope
from tightrope import GaussianMechanism, NoisySGD, PoissonSampling
from tightrope.errors import InvalidInput
from tightrope.evidence import rigorous
from tightrope.evidence.certificate import certify, chain_of, read
from tightrope.evidence.run_facts import RunFacts
from tightrope.evidence.verify import holds, verify
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import DeclaredApproxDP, FullBatch
from tightrope.report import page_figures
from tightrope.report.page import Page, html_page, markdown_page
from tightrope.report.words import meaning

DELTA = 1e-5
TRAINED = NoisySGD(FullBatch(), noise_multiplier=8.0, steps=10)
HANGS = 60  # seconds after which a command counts as hanging


def facts(**changed: Any) -> RunFacts:
    said: dict[str, Any] = {
        "kind": "training",
        "private": True,
        "not_private_because": (),
        "steps": 10,
        "clip": "FlatClip(clip_norm=1.0)",
        "sensitivity": 1.0,
        "noise": "Gaussian",
        "sampling": "operating-system entropy",
        "settings": {"optimizer": "SGD"},
    }
    if "length" in RunFacts.__dataclass_fields__ and changed.get("steps", 10) is not None:
        said["length"] = "planned"
    return RunFacts(**(said | changed))


@lru_cache
def trained() -> str:
    return json.dumps(certify(TRAINED, DELTA, facts()))


def fresh() -> dict[str, Any]:
    return json.loads(trained())  # type: ignore[no-any-return]


def rehashed(certificate: dict[str, Any]) -> dict[str, Any]:
    return {**certificate, "chain": chain_of(certificate)}


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


def stored(content: dict[str, Any] | str, folder: Path) -> str:
    path = folder / "certificate.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


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


def test_a_declared_guarantee_is_no_training() -> None:
    declared = certify(DeclaredApproxDP(0.01, 1e-9), 1e-9, facts(steps=None))
    assert not holds(verify(json.loads(json.dumps(declared))))


def test_a_declared_guarantee_says_that_it_is_declared() -> None:
    lines = verify(json.loads(json.dumps(certify(DeclaredApproxDP(0.01, 1e-9), 1e-9))))
    (said,) = [line.said for line in lines if line.name == "statement"]
    assert "declared" in said


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
    content = certify(NoisySGD(PoissonSampling(0.01), noise_multiplier=1.0, steps=10), DELTA)
    forged = json.loads(json.dumps(content))
    forged["process"].update(steps=10**15, noise_multiplier=0.9)
    done = command("verify", stored(rehashed(forged), tmp_path), "--patience", "3")
    assert done.returncode in (1, 3), done.stdout


@pytest.mark.parametrize("rows", ["history", "epsilon"])
def test_thousands_of_rows_get_an_answer(rows: str, tmp_path: Path) -> None:
    sampled = NoisySGD(PoissonSampling(0.01), noise_multiplier=1.0, steps=3000)
    forged = json.loads(json.dumps(certify(sampled, DELTA, facts(steps=3000))))
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
    page = Page(json.loads(json.dumps(certify(TRAINED, DELTA, facts(clip=text)))))
    for written in (html_page(page), markdown_page(page)):
        assert "<script" not in written
    assert "[click](" not in markdown_page(page)


# ---- H4: a missing tool is no verdict
def test_without_matplotlib_there_is_still_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.pyplot"):
        monkeypatch.setitem(sys.modules, name, None)
    text = html_page(Page(fresh()))
    assert "Not drawn" in text and "damaged" not in text and "Of 1,000 people" in text


def test_without_flint_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flint", None)
    line = rigorous.reprove(json.loads(json.dumps(certify(GaussianMechanism(2.0), DELTA))))
    assert line.holds is None and line.verdict == "not checked"


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
