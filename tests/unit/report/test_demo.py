"""`tightrope demo` ends with a report page, a certificate and its verification."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tightrope.cli.app import app
from tightrope.cli.demo import _fresh_folder
from tightrope.evidence.certificate import read
from tightrope.evidence.verify import holds, verify

pytest.importorskip("torch", reason="the demo trains")
pytest.importorskip("sklearn", reason="the demo's digits")
pytest.importorskip("matplotlib", reason="the demo draws")


@pytest.mark.slow
def test_the_demo_leaves_evidence_that_holds(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert done.exit_code == 0 and "FAILS" not in done.output
    certificate = read(tmp_path / "certificate.json")
    assert holds(verify(certificate)) and certificate["run"]["kind"] == "training"
    page = (tmp_path / "report.html").read_text()
    assert "Of 1,000 people" in page and "An attack was tried" in page
    assert json.loads((tmp_path / "run-1" / "audit.json").read_text())["schema"]


def test_a_demo_never_touches_an_earlier_run(tmp_path: Path) -> None:
    assert _fresh_folder(tmp_path).name == "run-1"
    (tmp_path / "run-1").mkdir()
    assert _fresh_folder(tmp_path).name == "run-2"
