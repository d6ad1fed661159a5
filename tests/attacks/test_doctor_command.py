"""Hole I: `tightrope doctor` for machines, losses of other forms, and mistaken functions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from tightrope.cli.app import run as command
from tightrope.errors import InvalidInput
from tightrope.train import FlatClip, GaussianNoise, PoissonSampler, noisy_sgd
from tightrope.train.doctor import check_model, check_run

torch.set_num_threads(1)

SCRIPT = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from tightrope.train import FlatClip, GaussianNoise, PoissonSampler, noisy_sgd

x = torch.randn(100, 4)
y = (x[:, 0] > 0).long()
model = nn.Linear(4, 2)

def make(noise=1.0, seed=None):
    return noisy_sgd(
        model, learning_rate=0.1, sampler=PoissonSampler(0.2), clip=FlatClip(1.0),
        noise=GaussianNoise(noise, seed=seed), expected_batch_size=20,
    )

def of_outputs():
    return make(), lambda output, y: cross_entropy(output, y, reduction="none"), (x, y)

def seeded():
    return make(seed=1), lambda output, y: cross_entropy(output, y, reduction="none"), (x, y)

def a_run_alone():
    return make()

def a_pair():
    return make(), (x, y)

def averaged():
    return make(), cross_entropy, (x, y)

def needs_an_argument(config):
    return make()

def fails():
    raise RuntimeError("no such file: weights.pt")

def no_rows():
    return make(), cross_entropy, {"x": x, "y": y}

def in_another_order():
    return cross_entropy, make(), (x, y)

number = 3
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("doctor") / "runs.py"
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


def test_json_of_a_sound_run_and_of_a_seeded_one(doctor, script):
    code, out, _ = doctor(f"{script}:of_outputs", "--json")
    told = json.loads(out)
    assert code == 0 and told["healthy"] and told["false_alarm"] == 1e-6
    assert {"check", "verdict", "told"} == set(told["findings"][0])
    code, out, _ = doctor(f"{script}:seeded", "--json")
    told = json.loads(out)
    assert code == 1 and not told["healthy"]
    assert [f["check"] for f in told["findings"] if f["verdict"] == "fault"] == ["randomness"]


def test_the_table_says_how_often_a_sound_run_is_accused(doctor, script):
    code, out, _ = doctor(f"{script}:of_outputs")
    assert code == 0 and "1e-06" in out and "noise law" in out


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("a_run_alone", "returned PrivateOptimizer"),
        ("a_pair", "returned 2 things"),
        ("averaged", "one number per example"),
        ("needs_an_argument", "config"),
        ("fails", "no such file: weights.pt"),
        ("no_rows", "cannot be read"),
        ("in_another_order", "check_run examines a private run"),
        ("number", "has no function"),
        ("missing", "has no function"),
    ],
)
def test_a_function_of_another_form_is_a_plain_error(doctor, script, function, told):
    code, out, _ = doctor(f"{script}:{function}", "--json")
    assert code == 2 and told in json.loads(out)["message"]


def test_a_file_of_another_form_is_a_plain_error(doctor, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_this_name\n")
    for where in (f"{broken}:make", f"{tmp_path / 'absent.py'}:make", "make", str(broken)):
        code, _, err = doctor(where)
        assert code == 2 and err.startswith("tightrope:")


# ---- losses of three forms -----------------------------------------------------------------------


def data(width=4):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, width, generator=generator)
    return x, (x[:, 0] > 0).long()


def run_of(model):
    return noisy_sgd(
        model,
        learning_rate=0.1,
        sampler=PoissonSampler(0.2),
        clip=FlatClip(1.0),
        noise=GaussianNoise(1.0),
        expected_batch_size=20,
    )


def ce(outputs, labels):
    return cross_entropy(outputs, labels, reduction="none")


FORMS = {
    "output": lambda model: ce,
    "model": lambda model: lambda model, x, y: ce(model(x), y),
    "inputs": lambda model: lambda x, y: ce(model(x), y),
    "layer": lambda model: nn.CrossEntropyLoss(reduction="none"),
    # looks at the weights, and is still a loss of outputs
    "penalised": lambda model: lambda o, y: ce(o, y) + 1e-3 * sum(
        (p**2).sum() for p in model.parameters()
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_loss_may_take_outputs_inputs_or_the_model(form):
    torch.manual_seed(0)
    run = run_of(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)))  # as wide as its input
    diagnosis = check_run(run, FORMS[form](run.model), data())
    assert diagnosis.healthy, str(diagnosis)


def test_an_autoencoder_whose_outputs_could_be_inputs():
    torch.manual_seed(0)
    model, (x, _) = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4)), data()
    calls = []

    def of_inputs(rows):
        calls.append(len(rows))
        return mse_loss(model(rows), rows, reduction="none").mean(1)

    diagnosis = check_model(model, of_inputs, x, clip=FlatClip(1.0))
    assert diagnosis.healthy and calls, str(diagnosis)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda o, y: ce(o, y).mean(), "one number per example"),
        (lambda o, y: o, "one number per example"),
        (lambda a, b, c, d: a, "cannot be computed"),
        (lambda o, y: 1.0, "one number per example"),
        (lambda o, y: o @ torch.ones(77), "cannot be computed"),
        ("cross entropy", "must be a function"),
    ],
)
def test_a_loss_of_another_form_is_refused_in_words(wrong, told):
    with pytest.raises(InvalidInput, match=told):
        check_run(run_of(nn.Linear(4, 2)), wrong, data())


def test_a_run_is_as_before_when_a_loss_is_refused():
    run = run_of(nn.Linear(4, 2))
    before = [p.detach().clone() for p in run.model.parameters()]
    with pytest.raises(InvalidInput):
        check_run(run, lambda o, y: ce(o, y).mean(), data())
    assert all(torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True))
    for x, y in run.batches(data(), steps=2):
        run.step(ce(run.model(x), y))
    assert run.steps == 2
