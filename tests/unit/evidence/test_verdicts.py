"""What a verification comes to: only a promise that holds is green and ends with 0."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer", reason="the command needs typer")

from typer.testing import CliRunner

from tightrope import GaussianMechanism, LaplaceMechanism, NoisySGD, PoissonSampling
from tightrope.cli import tables
from tightrope.cli.app import app
from tightrope.cli.tables import verdict_of
from tightrope.evidence import Check, Verdict, certify, holds, rigorous, verdict, verify
from tightrope.evidence.certificate import Title, titled, write
from tightrope.process import DeclaredApproxDP
from tightrope.report.page import Page, html_page
from tightrope.validate import no_promise

USELESS: dict[str, tuple[Any, float, int | None, str]] = {
    "no noise": (NoisySGD(PoissonSampling(0.1), 0.0, 3), 1e-6, None, "no finite epsilon"),
    "declared": (DeclaredApproxDP(1.0, 1e-3), 1e-6, None, "no finite epsilon"),
    "delta near one": (GaussianMechanism(2.0), 0.999999999, None, "one of two records"),
    "delta of a half": (GaussianMechanism(2.0), 0.5, None, "one of two records"),
    "delta one": (GaussianMechanism(2.0), 1.0, None, "every release meets it"),
    "delta for the people": (GaussianMechanism(2.0), 1e-3, 1000, "1,000 records"),
    "epsilon": (LaplaceMechanism(1 / 5e5), 1e-6, None, "epsilon = 500000 promises nothing"),
}


def useless(name: str) -> tuple[dict[str, Any], str]:
    process, delta, people, why = USELESS[name]
    made = json.loads(json.dumps(certify(process, delta, title=Title(people=people))))
    return made, why


@pytest.mark.parametrize("name", USELESS)
def test_a_true_claim_that_protects_no_one_does_not_hold(name: str) -> None:
    certificate, why = useless(name)
    lines = verify(certificate)
    assert verdict(lines) is Verdict.PROMISES_NOTHING and not holds(lines), lines
    assert not [line for line in lines if line.holds is False], "nothing in it is false"
    assert why in lines[-1].said
    page = html_page(Page(certificate))
    assert "promises nothing" in page and "Of 1,000 people like you" not in page


def test_the_people_that_a_title_names_decide_what_delta_means() -> None:
    certificate = certify(GaussianMechanism(2.0), 1e-3)
    assert holds(verify(certificate)) and holds(verify(titled(certificate, Title(people=999))))
    assert not holds(verify(titled(certificate, Title(people=1000))))


@pytest.mark.parametrize("name", ["no noise", "delta for the people", "epsilon"])
def test_no_command_ends_with_0_for_it(name: str, tmp_path: Path) -> None:
    path = write(useless(name)[0], tmp_path / "certificate.json")
    told = CliRunner().invoke(app, ["verify", str(path), "--json"], catch_exceptions=False)
    answer = json.loads(told.stdout)
    assert told.exit_code == 4 and answer["holds"] is False
    assert answer["verdict"] == "promises nothing"
    page = ["report", str(path), "--out", str(tmp_path / "page.html"), "--json"]
    told = CliRunner().invoke(app, page, catch_exceptions=False)
    assert told.exit_code == 4 and json.loads(told.stdout)["verdict"] == "promises nothing"


def test_it_is_not_printed_as_a_promise() -> None:
    with tables.screen().capture() as caught:
        tables.screen().print(verdict_of(verify(useless("no noise")[0])))
    assert "HOLDS" not in caught.get()
    last = verdict_of(verify(useless("no noise")[0])).renderables[-1]
    assert str(last).startswith("PROMISES NOTHING") and "green" not in str(last.style)  # type: ignore[union-attr]


def test_a_false_claim_fails_even_where_it_promises_nothing() -> None:
    lines = [*verify(useless("no noise")[0]), Check("late", False, "no")]
    assert verdict(lines) is Verdict.FAILS and Verdict.FAILS.code == 1


def test_every_verdict_has_an_exit_code_of_its_own() -> None:
    assert {found: found.code for found in Verdict} == {
        Verdict.HOLDS: 0,
        Verdict.FAILS: 1,
        Verdict.UNDECIDED: 3,
        Verdict.PROMISES_NOTHING: 4,
    }
    assert [found for found in Verdict if found.holds] == [Verdict.HOLDS]


def test_a_proof_without_python_flint_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flint", None)
    for process in (GaussianMechanism(2.0), NoisySGD(PoissonSampling(0.01), 1.0, 100)):
        certificate = json.loads(json.dumps(certify(process, 1e-5)))
        line = rigorous.reprove(certificate)
        assert line.verdict == "not checked" and "tightrope[rigorous]" in line.said
        assert verdict([*verify(certificate), line]) is Verdict.HOLDS


@pytest.mark.parametrize(
    ("epsilon", "delta", "records", "worthless"),
    [
        (1.0, 1e-6, None, False),
        (10.0, 1e-6, 10**5, False),
        (1.0, 0.4999, None, False),
        (1.0, 0.5, None, True),
        (1.0, 0.1, 10, True),
        (1.0, 0.09, 10, False),
        (1000.0, 1e-6, 30_000, True),
        (36.0, 1e-6, None, True),
        (35.9, 1e-6, None, False),
        (float("inf"), 1e-6, None, True),
        (1.0, 0.0, 10**9, False),
    ],
)
def test_what_promises_nothing(
    epsilon: float, delta: float, records: int | None, worthless: bool
) -> None:
    assert (no_promise(epsilon, delta, records) is not None) == worthless


# ---- the command says so before anything is written
def remarks(*words: str) -> str:
    told = CliRunner().invoke(app, ["account", *words, "--json"], catch_exceptions=False)
    assert told.exit_code == 0
    return " ".join(json.loads(told.stdout)["remarks"])


def test_an_account_says_where_its_numbers_promise_nothing() -> None:
    run = ["--rate", "0.1", "--steps", "10"]
    assert "one of two records" in remarks(*run, "--noise", "1", "--delta", "0.5")
    assert "promises nothing" in remarks(*run, "--noise", "0.05", "--delta", "1e-6")
    assert "publishing one of them" in remarks(
        *run, "--noise", "1", "--delta", "0.01", "--dataset-size", "100"
    )
    assert remarks(*run, "--noise", "1", "--delta", "1e-6") == ""


@pytest.mark.parametrize("command", ["sweep", "compare"])
def test_a_table_without_an_answer_does_not_end_with_0(command: str) -> None:
    run = ["--rate", "0.1", "--noise", "1", "--steps", "10", "--delta", "1e-5"]
    over = ["--over", "rate", "--values"] if command == "sweep" else []
    good = [*run, *over, *(["0.1,2"] if over else [])]
    assert CliRunner().invoke(app, [command, *good], catch_exceptions=False).exit_code == 0
    if over:
        bad = [*run, *over, "2,3"]
        assert CliRunner().invoke(app, [command, *bad], catch_exceptions=False).exit_code == 2
