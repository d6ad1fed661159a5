"""Hole I: `tightrope doctor` for machines, and mistaken functions in plain words."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from tightrope.cli.app import run as command

torch.set_num_threads(1)

SCRIPT = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from tightrope.train import FlatClip, GaussianNoise, PoissonSampler, private

x = torch.randn(100, 4)
y = (x[:, 0] > 0).long()
network = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
batch = (x[:8], y[:8])

def make_model():
    return network

def make_example():
    return batch

def loss(model, x, y):
    return cross_entropy(model(x), y, reduction="none")

def centred(model, x, y):
    outputs = model(x)
    return cross_entropy(outputs - outputs.mean(0), y, reduction="none")

def branching(model, x, y):
    return loss(model, x, y) if x.sum() > 0 else loss(model, -x, y)

def make_run(seed=None):
    model = nn.Linear(4, 2)
    return private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), (x, y), loss,
        sampler=PoissonSampler(0.2), clip=FlatClip(1.0), noise=GaussianNoise(1.0, seed=seed),
        expected_batch_size=20, steps=10,
    )

def seeded():
    return make_run(seed=1)

def a_pair():
    return make_run(), (x, y)

def needs_an_argument(config):
    return make_run()

def fails():
    raise RuntimeError("no such file: weights.pt")

number = 3
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("doctor") / "my_runs.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def doctor(monkeypatch, capsys):
    """The command as the shell runs it: its exit code, and what it prints."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["tightrope", "doctor", *arguments])
        with pytest.raises(SystemExit) as ended:
            command()
        printed = capsys.readouterr()
        return ended.value.code, printed.out, printed.err

    return call


# ---- programs --------------------------------------------------------------------------------
def test_a_proved_loss_ends_with_0_and_names_its_program(doctor, script):
    code, out, _ = doctor("program", f"{script}:loss", "--json")
    answer = json.loads(out)
    assert code == 0 and answer["proved"] and answer["verdict"] == "proved"
    assert len(answer["digest"]) == 64 and answer["rows"] == 8
    code, out, _ = doctor("program", f"{script}:loss")
    assert code == 0 and "PROVED" in out and answer["digest"] in out.replace("\n", "")


def test_a_loss_whose_examples_meet_ends_with_1_and_names_operator_and_line(doctor, script):
    line = next(i for i, text in enumerate(SCRIPT.splitlines(), 1) if "outputs.mean(0)" in text)
    code, out, _ = doctor("program", f"{script}:centred", "--json")
    answer = json.loads(out)
    assert code == 1 and answer["verdict"] == "mixes" and answer["digest"] is None
    assert "mean" in answer["reason"] and f"{script}:{line}" in answer["reason"]
    assert "MIXES" in doctor("program", f"{script}:centred")[1]


def test_a_loss_that_is_no_graph_ends_with_3(doctor, script):
    code, out, _ = doctor("program", f"{script}:branching", "--json")
    assert code == 3 and json.loads(out)["verdict"] == "not known"


def test_model_and_example_may_be_named_and_may_be_made_or_there(doctor, script):
    named = ("--model", f"{script}:network", "--example", f"{script}:batch")
    assert doctor("program", f"{script}:loss", *named)[0] == 0
    code, out, _ = doctor(
        "program", f"{script}:loss", "--model", f"{script}:nothing_of_this", "--json"
    )
    assert code == 2 and "nothing_of_this" in json.loads(out)["message"]


def test_a_module_may_be_named_instead_of_a_file(doctor, script, monkeypatch):
    monkeypatch.chdir(script.parent)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert doctor("program", "my_runs:loss")[0] == 0


# ---- runs ------------------------------------------------------------------------------------
def test_json_of_a_sound_run_and_of_a_seeded_one(doctor, script):
    code, out, _ = doctor("run", f"{script}:make_run", "--json")
    answer = json.loads(out)
    assert code == 0 and answer["healthy"] and answer["false_alarm"] == 1e-6
    assert {"check", "verdict", "text"} == set(answer["findings"][0])
    code, out, _ = doctor("run", f"{script}:seeded", "--json")
    answer = json.loads(out)
    assert code == 1 and not answer["healthy"]
    wrong = [f["check"] for f in answer["findings"] if f["verdict"] == "fault"]
    assert wrong == ["randomness"]


def test_the_table_states_how_often_a_sound_run_is_accused(doctor, script):
    code, out, _ = doctor("run", f"{script}:make_run")
    assert code == 0 and "1e-06" in out and "noise law" in out


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("a_pair", "got tuple"),
        ("needs_an_argument", "config"),
        ("fails", "no such file: weights.pt"),
        ("number", "got int"),
        ("missing", "has no 'missing'"),
        ("network", "got Sequential"),
    ],
)
def test_a_function_of_another_form_is_a_plain_error(doctor, script, function, words):
    code, out, _ = doctor("run", f"{script}:{function}", "--json")
    assert code == 2 and words in json.loads(out)["message"]


def test_a_file_of_another_form_is_a_plain_error(doctor, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_this_name\n")
    for where in (f"{broken}:make", f"{tmp_path / 'absent.py'}:make", "make", str(broken)):
        code, _, err = doctor("run", where)
        assert code == 2 and err.startswith("tightrope:")
