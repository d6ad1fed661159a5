"""The trainer and the ten-line loop, on real digits."""

from __future__ import annotations

import re

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.evidence.certificate import read
from tightrope.evidence.commitment import read_key
from tightrope.train import (
    Budget,
    Evaluation,
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    RunFolder,
    Trainer,
    accuracy,
    check_run,
    noisy_sgd,
)
from tightrope.train.fingerprint import is_data_of


def losses(outputs, labels):
    return cross_entropy(outputs, labels, reduction="none")


@pytest.fixture(scope="module")
def digits():
    found = load_digits()
    x = torch.tensor(found.data, dtype=torch.float32) / 16
    y = torch.tensor(found.target)
    return (x[:1400], y[:1400]), (x[1400:], y[1400:])


def make_digits_run(**parts):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    settings = {
        "learning_rate": 2.0,
        "sampler": PoissonSampler(rate=0.1),
        "clip": FlatClip(1.0),
        "noise": GaussianNoise(1.5),
        "expected_batch_size": 140,
    }
    return noisy_sgd(model, **(settings | parts))


def test_it_learns_digits_within_its_budget(digits):
    train, test = digits
    run = make_digits_run(budget=Budget(epsilon=6.0, delta=1e-4))
    seen = []
    trainer = Trainer(
        run,
        losses,
        delta=1e-4,
        evaluation=Evaluation(test, accuracy, every=50),
        progress=False,
        log=lambda name, value, step: seen.append((name, step)),
    )
    outcome = trainer.fit(train, epochs=100)
    assert outcome.stopped_by_budget and outcome.epsilon.upper <= 6.0
    assert outcome.measured[max(outcome.measured)] > 0.8
    assert ("accuracy", 50) in seen and ("epsilon", 50) in seen


def test_the_ten_line_loop(digits):
    (x, y), _ = digits
    run = make_digits_run()
    for inputs, labels in run.batches((x, y), steps=20):
        run.step(losses(run.model(inputs), labels))
    assert run.epsilon(delta=1e-5).upper > 0


def test_progress_shows_epsilon_and_measurements_in_a_narrow_terminal(digits, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    run, test = make_digits_run(), Evaluation(digits[1], accuracy, every=50)
    outcome = Trainer(run, losses, delta=1e-4, evaluation=test).fit(digits[0], steps=50)
    shown = capsys.readouterr().err
    told = float(re.search(r"step 50: ε ≤ (\S+), δ 0.0001", shown)[1])
    assert outcome.epsilon.upper <= told < 1.01 * outcome.epsilon.upper  # rounded up
    assert f"accuracy {outcome.measured[50]:.3f}" in shown and "50/50" in shown
    assert "…" not in shown and "NOT PRIVATE" not in shown


def test_epsilon_is_logged_also_where_nothing_is_measured(digits):
    told = []
    run = make_digits_run()
    trainer = Trainer(run, losses, delta=1e-4, progress=False, log=lambda *line: told.append(line))
    trainer.fit(digits[0], steps=100)
    assert {name for name, _, _ in told} == {"epsilon"} and len(told) == 50
    assert told[-1] == ("epsilon", run.spent(1e-4).upper, 100)


def test_progress_ends_with_the_budget(digits, capsys):
    run = make_digits_run(budget=Budget(2.0, 1e-4))
    outcome = Trainer(run, losses, delta=1e-4).fit(digits[0], steps=4000)
    assert outcome.stopped_by_budget and outcome.steps < 4000
    assert f"{outcome.steps}/{outcome.steps}" in capsys.readouterr().err


def test_progress_of_a_run_without_noise_says_so(digits, capsys):
    run = make_digits_run(noise=GaussianNoise(0.0))
    Trainer(run, losses, delta=1e-4).fit(digits[0], steps=2)
    shown = capsys.readouterr().err
    assert "ε unbounded" in shown and "NOT PRIVATE" in shown


def test_progress_says_when_a_run_is_not_private(digits, capsys):
    run = make_digits_run(noise=GaussianNoise(1.0, seed=1))
    Trainer(run, losses, delta=1e-4).fit(digits[0], steps=2)
    assert "NOT PRIVATE" in capsys.readouterr().err


def test_micro_batches_and_resume_through_the_trainer(digits, tmp_path):
    def make():
        return make_digits_run(
            sampler=PoissonSampler(0.05, seed=1), noise=GaussianNoise(1.0, seed=2)
        )

    whole = make()
    Trainer(whole, losses, delta=1e-4, progress=False).fit(digits[0], steps=60)
    run, folder = make(), RunFolder(tmp_path)
    Trainer(run, losses, delta=1e-4, progress=False, folder=folder, save_every=16).fit(
        digits[0], steps=50
    )
    folder.close()
    again, folder = make(), RunFolder(tmp_path)
    trainer = Trainer(again, losses, delta=1e-4, progress=False, folder=folder, save_every=16)
    outcome = trainer.fit(digits[0], steps=60)
    assert outcome.steps == 60 == read(tmp_path)["run"]["steps"]
    assert is_data_of(read(tmp_path), read_key(tmp_path / "data.key"), digits[0])
    for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    at_once, parts = make(), make()
    Trainer(at_once, losses, delta=1e-4, progress=False).fit(digits[0], steps=8)
    Trainer(parts, losses, delta=1e-4, progress=False, micro_batch=16).fit(digits[0], steps=8)
    for a, b in zip(at_once.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_loss_that_mixes_examples_is_refused(digits):
    def centred(outputs, labels):
        return losses(outputs - outputs.mean(0), labels)

    with pytest.raises(ModelNotPrivate, match="mixed"):
        Trainer(make_digits_run(), centred, delta=1e-4, progress=False).fit(digits[0], steps=1)


class Standardised(nn.Module):
    """By the deviation of the batch, which a batch of one has not: its loss is no number."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        centred = x - x.mean(0)
        return self.layer(centred / centred.norm(dim=0))


def test_a_model_that_standardises_its_batch_is_refused(data):
    run = noisy_sgd(
        Standardised(),
        learning_rate=1.0,
        sampler=PoissonSampler(0.2),
        clip=FlatClip(1.0),
        noise=GaussianNoise(1.0),
        expected_batch_size=12,
    )
    with pytest.raises(ModelNotPrivate, match="mixed"):
        Trainer(run, losses, delta=1e-4, progress=False).fit(data, steps=1)


class Cropped:
    """Other values at every reading, as with random crops."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.roll(self.x[i], int(torch.randint(0, 60, ()))), self.y[i]


def test_data_that_change_at_every_reading_are_no_mixing(digits):
    run, data = make_digits_run(), Cropped(*digits[0])
    with pytest.raises(InvalidInput, match="from one reading to the next"):
        run.watch(data)
    run.watch(data, fingerprint="digits, rolled")
    outcome = Trainer(run, losses, delta=1e-4, progress=False).fit(data, steps=2)
    assert outcome.steps == 2
    assert "not compared" in run.record().data
    diagnosis = check_run(run, losses, data)
    assert diagnosis.healthy and diagnosis.of("clip bound"), str(diagnosis)


@pytest.mark.parametrize("length", [{}, {"steps": 1, "epochs": 1}, {"epochs": 0}, {"steps": 1.5}])
def test_the_length_of_training_is_said_once_and_makes_sense(digits, length):
    with pytest.raises(InvalidInput):
        Trainer(make_digits_run(), losses, delta=1e-4, progress=False).fit(digits[0], **length)


def test_an_example_with_a_nonfinite_gradient_contributes_zero_and_is_counted(digits):
    x, y = digits[0]
    spoiled = x.clone()
    spoiled[7] = float("nan")
    run = make_digits_run(sampler=PoissonSampler(1.0), noise=GaussianNoise(0.0))
    clean = make_digits_run(sampler=PoissonSampler(1.0), noise=GaussianNoise(0.0))
    keep = torch.arange(len(x)) != 7
    for inputs, labels in run.batches((spoiled, y), steps=1):
        report = run.step(losses(run.model(inputs), labels))
    for inputs, labels in clean.batches((x[keep], y[keep]), steps=1):
        clean.step(losses(clean.model(inputs), labels))
    assert report.sensitive.nonfinite == 1
    for a, b in zip(run.model.parameters(), clean.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"delta": 2.0}, "delta"),
        ({"delta": 1e-4, "evaluation": (torch.zeros(2), torch.zeros(2))}, "an Evaluation"),
    ],
)
def test_what_a_trainer_needs_is_checked_before_it_trains(wrong, told):
    with pytest.raises(InvalidInput, match=told):
        Trainer(make_digits_run(), losses, **wrong)
    with pytest.raises(InvalidInput, match="private run"):
        Trainer(nn.Linear(2, 2), losses, delta=1e-4)
    with pytest.raises(InvalidInput, match="every"):
        Evaluation((torch.zeros(2), torch.zeros(2)), accuracy, every=0)


def test_the_doctor_says_what_it_needs(digits):
    with pytest.raises(InvalidInput, match="check_model"):
        check_run(nn.Linear(2, 2), losses, digits[0])
    with pytest.raises(InvalidInput, match="empty"):
        check_run(make_digits_run(), losses, (digits[0][0][:0], digits[0][1][:0]))
