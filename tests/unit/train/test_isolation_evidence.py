"""How examples were kept apart, on the certificate of a run and in its verification."""

from __future__ import annotations

import json
import sys

import jsonschema
import pytest
import torch
from tests.unit.train.conftest import each_loss
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.cli.app import run as command
from tightrope.evidence.certificate import chain_of, write
from tightrope.evidence.form import schema_of
from tightrope.evidence.statement import statement
from tightrope.evidence.verify import holds, verify
from tightrope.report.page import markdown_page, page_of
from tightrope.train import GaussianNoise
from tightrope.train.doctor.program import program_checks
from tightrope.train.program import capture, digest, save

DELTA = 1e-5


@pytest.fixture
def make_run(make_run):
    """Runs that promise something."""
    return lambda *args, **how: make_run(*args, **{"noise": GaussianNoise(4.0), "steps": 20} | how)


def centred_loss(model, x, y):
    outputs = model(x)
    return cross_entropy(outputs - outputs.mean(0), y, reduction="none")


def failed(checks):
    return {check.name for check in checks if check.holds is False}


def yours(checks, name):
    return [check.said for check in checks if check.name == name and check.holds is None]


def forged(certificate, **section):
    """What a forger does who knows the format."""
    run = certificate["run"]
    run = {**run, "isolation": {**run["isolation"], **section}}
    content = {**certificate, "run": run}
    content["statement"] = statement(content)
    return {**content, "chain": chain_of(content)}


def section_of(run):
    return run.certificate(DELTA)["run"]["isolation"]


def hows_of(run):
    return [(one["from_step"], one["how"]) for one in section_of(run)["examples"]]


# ---- the section -----------------------------------------------------------------------------
def test_a_proved_run_names_its_program_and_has_no_footnote(make_run, take):
    run = make_run()
    assert section_of(run)["examples"] == []  # no step, no period
    take(run, 3)
    certificate = run.certificate(DELTA)
    assert certificate["run"]["isolation"] == {
        "examples": [
            {
                "from_step": 1,
                "how": "proved",
                "rows": run.size,
                "programs": [digest(run.program)],
            }
        ],
        "private_values_shown": False,
        "weights_set_by_owner": 0,
    }
    jsonschema.Draft202012Validator(schema_of(certificate["schema"])).validate(certificate)
    checks = verify(certificate)
    assert holds(checks) and not yours(checks, "the owner's word")
    assert certificate["statement"].endswith("before its first step.")
    old = {k: v for k, v in certificate["run"].items() if k != "isolation"}
    content = {**certificate, "run": old}  # as certificates were before
    checks = verify({**content, "chain": chain_of(content)})
    assert holds(checks) and "does not say" in yours(checks, "isolation")[0]


def test_one_at_a_time_is_a_footnote_of_the_statement_and_of_the_report(make_run, take, stored):
    path = stored[1]
    run = make_run(isolation="one at a time")
    take(run, 2)
    certificate = run.certificate(DELTA)
    sentence = "From step 1 on, code of the owner ran on one example at a time"
    assert sentence in certificate["statement"]
    checks = verify(certificate)
    assert holds(checks) and sentence in yours(checks, "the owner's word")[0]
    page = markdown_page(page_of(write(certificate, path / "other.json")))
    assert page.index(sentence) < page.index("What this means")  # beside the headline
    (check,) = program_checks(certificate, [path / "program.pt2"])
    assert check.holds is False  # it names no program
    cut = certificate["statement"].partition(" From step 1 on")[0]
    content = {**certificate, "statement": cut}
    assert failed(verify({**content, "chain": chain_of(content)})) == {"statement"}


def test_private_values_and_set_weights_are_footnotes(make_run, take):
    run = make_run(sensitive=True)
    take(run, 1)
    for _ in range(2):
        set_weights(run)
        take(run, 1)
    certificate = run.certificate(DELTA)
    assert "was shown losses and norms of private examples" in certificate["statement"]
    assert "set between steps (2 times)" in certificate["statement"]
    assert holds(verify(certificate)) and len(yours(verify(certificate), "the owner's word")) == 2


def set_weights(run):
    with torch.no_grad():
        run.parameters[0].mul_(1.0)
    run.accept_weights()


def with_dropout():
    return nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.1), nn.Linear(4, 2))


def test_a_program_that_is_made_again_before_a_step_is_no_period_of_its_own(make_run, take):
    run = make_run(with_dropout())
    take(run, 2)
    run.model[1].eval()
    take(run, 1)
    run.model[1].train()
    take(run, 1)
    periods = section_of(run)["examples"]
    assert [one["from_step"] for one in periods] == [1, 3, 4]
    assert periods[0]["programs"] == periods[2]["programs"] != periods[1]["programs"]
    assert holds(verify(run.certificate(DELTA)))


# ---- runs that are stored --------------------------------------------------------------------
def test_a_resumed_run_keeps_what_was_so_before(make_run, take, tmp_path):
    run = make_run(folder=tmp_path, sensitive=True)
    take(run, 2)
    set_weights(run)
    take(run, 1)
    run.folder.save()
    run.close()
    again = make_run(folder=tmp_path, isolation="one at a time")
    take(again, 1)
    assert hows_of(again) == [(1, "proved"), (4, "one at a time")]
    section = section_of(again)
    assert section["private_values_shown"] and section["weights_set_by_owner"] == 1
    assert holds(verify(again.certificate(DELTA)))
    again.close()


def test_a_crash_does_not_lose_how_steps_were_kept_apart(make_run, take, tmp_path):
    """Steps after the last save are counted by the journal; their program must be known too."""
    run = make_run(with_dropout(), folder=tmp_path, save_every=1_000)
    take(run, 2)
    first = run.isolation.digests
    run.model[1].eval()
    take(run, 1)  # released, and not saved afterwards
    second = run.isolation.digests
    run.folder.close()
    again = make_run(with_dropout(), folder=tmp_path)
    take(again, 1)
    named = [(one["from_step"], tuple(one["programs"])) for one in section_of(again)["examples"]]
    assert named == [(1, first), (3, second), (4, first)]
    again.close()


def test_a_crash_after_a_resume_does_not_lose_what_the_resumed_part_was(make_run, take, tmp_path):
    """It went on in another way, showed private values, and stopped before it was saved."""
    how = {"folder": tmp_path, "save_every": 1_000}
    for number, more in ((2, {}), (1, {"isolation": "one at a time", "sensitive": True}), (1, {})):
        run = make_run(**how, **more)
        take(run, number)
        hows, shown = hows_of(run), section_of(run)["private_values_shown"]
        if number == 2:
            run.folder.save()
        run.folder.close()
    assert hows == [(1, "proved"), (3, "one at a time"), (4, "proved")] and shown


# ---- forgeries -------------------------------------------------------------------------------
def period(step=1, how="proved", programs=("a" * 64,)):
    return {"from_step": step, "how": how, "rows": 16, "programs": [*programs]}


@pytest.mark.parametrize(
    "periods",
    [
        [],
        [period(2)],
        [period(1), period(4)],
        [period(1), period(1, "vmap", ())],
        [period(1), period(3), period(2, "vmap", ())],
        [period(1, "proved", ())],
        [period(1, "vmap")],
        [period(1, "one at a time")],
    ],
    ids=["none", "from 2", "beyond", "twice", "order", "no program", "vmap", "one at a time"],
)
def test_periods_that_leave_steps_out_or_contradict_themselves_fail(stored, periods):
    certificate = stored[0].certificate(DELTA)
    assert failed(verify(forged(certificate, examples=periods))) == {"isolation"}


# ---- programs --------------------------------------------------------------------------------
@pytest.fixture
def stored(make_run, take, tmp_path):
    """A certificate, and the program that it names, as files."""
    run = make_run()
    take(run, 3)
    save(run.program, tmp_path / "program.pt2")
    write(run.certificate(DELTA), tmp_path / "certificate.json")
    return run, tmp_path


def verdict_of(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["tightrope", "verify", *map(str, arguments), "--json"])
    with pytest.raises(SystemExit) as ended:
        command()
    return ended.value.code, json.loads(capsys.readouterr().out)


def test_the_program_of_a_certificate_is_proved_again(stored, monkeypatch, capsys):
    run, folder = stored
    code, answer = verdict_of(
        monkeypatch, capsys, folder / "certificate.json", "--program", folder / "program.pt2"
    )
    (line,) = [row for row in answer["checks"] if row["name"] == "program"]
    assert code == 0 and answer["holds"] and line["holds"]
    assert digest(run.program)[:16] in line["said"] and f"{run.size} rows" in line["said"]


def test_another_program_fails(stored, monkeypatch, capsys, data):
    _, folder = stored
    other = capture(nn.Linear(5, 2), each_loss, (data[0][:8], data[1][:8]), rows=8)
    save(other, folder / "other.pt2")
    code, answer = verdict_of(
        monkeypatch, capsys, folder / "certificate.json", "--program", folder / "other.pt2"
    )
    found = {(row["name"], row["holds"]) for row in answer["checks"] if row["name"] == "program"}
    assert code == 1 and answer["holds"] is False
    assert found == {("program", False), ("program", None)}  # and the right one was not given


def test_a_certificate_that_names_a_program_whose_examples_meet_fails(stored, make_model, data):
    """The proof is made here, whatever the certificate claims of the program."""
    run, folder = stored
    mixing = capture(make_model(), centred_loss, (data[0][:8], data[1][:8]), rows=run.size)
    save(mixing, folder / "mixing.pt2")
    examples = [{"from_step": 1, "how": "proved", "rows": run.size, "programs": [digest(mixing)]}]
    certificate = forged(run.certificate(DELTA), examples=examples)
    assert holds(verify(certificate))  # nothing contradicts the writer's word so far
    (check,) = program_checks(certificate, [folder / "mixing.pt2"])
    assert check.holds is False and "mean" in check.said


@pytest.mark.parametrize("content", ["", "{}", "no json", '{"format": "tightrope program 1"}'])
def test_a_file_that_is_no_program_fails(stored, content):
    run, folder = stored
    (folder / "program.pt2").write_text(content)
    first, second = program_checks(run.certificate(DELTA), [folder / "program.pt2"])
    assert first.holds is False and second.holds is None
