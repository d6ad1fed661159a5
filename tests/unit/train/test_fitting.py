"""Training without a loop of one's own, on real digits."""

from __future__ import annotations

import inspect
import re
from contextlib import nullcontext
from importlib import import_module

import pytest
import torch
from sklearn.datasets import load_digits
from tests.unit.train.conftest import each_loss
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

from tightrope.errors import InvalidInput
from tightrope.evidence.certificate import read
from tightrope.evidence.commitment import read_key
from tightrope.evidence.verify import verify
from tightrope.train import (
    Evaluation,
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    PrivateRun,
    Trainer,
    accuracy,
    optimizers,
    private,
)
from tightrope.train.data import is_data_of
from tightrope.train.fitting import fit
from tightrope.validate import PromisesNothing


@pytest.fixture(scope="module")
def digits():
    found = load_digits()
    x = torch.tensor(found.data, dtype=torch.float32) / 16
    y = torch.tensor(found.target)
    return (x[:1400], y[:1400]), (x[1400:], y[1400:])


def digits_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def trainer_of(data, **options):
    model = digits_model()
    settings = {
        "sampler": PoissonSampler(rate=0.1),
        "clip": FlatClip(1.0),
        "noise": GaussianNoise(1.5),
        "expected_batch_size": 140,
        "delta": 1e-4,
        "progress": False,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    return Trainer(model, optimizer, data, each_loss, **(settings | options))


def test_it_learns_digits_within_its_budget(digits):
    train, test = digits
    seen = []
    trainer = trainer_of(
        train, records=1400, noise=None, epsilon=6.0, epochs=30,
        evaluation=Evaluation(test, accuracy, every=50),
        log=lambda name, value, step: seen.append((name, step)),
    )  # fmt: skip
    outcome = trainer.fit()
    assert outcome.steps == 300 and outcome.epsilon.upper <= 6.0
    assert outcome.measured[300] == trainer.evaluate() > 0.8
    assert {("accuracy", 50), ("epsilon", 50), ("learning_rate", 50)} <= set(seen)


def test_progress_shows_epsilon_and_measurements_in_a_narrow_terminal(digits, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    test = Evaluation(digits[1], accuracy, every=50)
    outcome = trainer_of(digits[0], evaluation=test, steps=50, progress=True).fit()
    shown = capsys.readouterr().err
    epsilon = float(re.search(r"step 50: ε ≤ (\S+), δ 0.0001", shown)[1])
    assert outcome.epsilon.upper <= epsilon < 1.01 * outcome.epsilon.upper  # rounded up
    assert f"accuracy {outcome.measured[50]:.3f}" in shown and "50/50" in shown
    assert "…" not in shown and "NOT PRIVATE" not in shown


def test_any_function_of_name_value_and_step_is_a_logger(digits, tmp_path):
    lines = []
    trainer = trainer_of(
        digits[0], steps=100, log=lambda *line: lines.append(line), gradient_norm=True
    )
    trainer.fit()
    assert len(lines) == 150 and lines[-3:-1] == [
        ("epsilon", trainer.run.epsilon(1e-4).upper, 100),
        ("learning_rate", 2.0, 100),
    ]
    assert lines[-1][0] == "noisy_gradient_norm"


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (GaussianNoise(0.0), ("ε unbounded", "NOT PRIVATE")),
        (GaussianNoise(1.0, seed=1), ("NOT PRIVATE",)),
    ],
)
def test_progress_says_when_a_run_is_not_private(digits, capsys, noise, words):
    trainer_of(digits[0], noise=noise, steps=2, progress=True).fit()
    shown = capsys.readouterr().err
    assert all(word in shown for word in words)


def test_a_folder_resumes_and_gets_a_certificate_with_what_was_measured(digits, tmp_path):
    def made(**options):
        return trainer_of(
            digits[0], sampler=PoissonSampler(0.05, seed=1), noise=GaussianNoise(1.0, seed=2),
            expected_batch_size=70, steps=24, **options,
        )  # fmt: skip

    whole = made()
    whole.fit()
    first = made(folder=tmp_path, save_every=8)
    for _, step in zip(range(20), first.run, strict=False):
        assert step.number <= 20
    first.run.close()
    again = made(
        folder=tmp_path, save_every=8, evaluation=Evaluation(digits[1], accuracy, every=12)
    )
    assert again.run.steps == 16  # the last that was stored; a seeded run computes the rest again
    outcome = again.fit()
    certificate = read(tmp_path)
    assert outcome.steps == 24 == certificate["run"]["steps"]
    assert certificate["run"]["measured"][-1]["step"] == 24
    assert is_data_of(certificate, read_key(tmp_path / "data.key"), digits[0])
    for a, b in zip(whole.run.model.parameters(), again.run.model.parameters(), strict=True):
        assert torch.equal(a, b)


# ---- on which data it is measured
class Items(Dataset):
    """The same records one by one."""

    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data[1])

    def __getitem__(self, index):
        return self.data[0][index], self.data[1][index]


@pytest.mark.parametrize(
    ("private_data", "public"),
    [
        (lambda d: d, lambda d: d),
        (lambda d: d, lambda d: (d[0][5:9], d[1][5:9])),
        (lambda d: d, lambda d: (d[0][[1399]].clone(), d[1][[1399]].clone())),
        (lambda d: d, lambda d: TensorDataset(d[0][:10], d[1][:10])),
        (lambda d: (d[0].numpy(), d[1].numpy()), lambda d: Items((d[0][:10], d[1][:10]))),
    ],
)
def test_private_rows_are_not_measured_on(digits, private_data, public):
    data = digits[0]
    test = Evaluation(public(data), accuracy, every=1)
    trainer = trainer_of(private_data(data), evaluation=test, steps=2)
    with pytest.raises(InvalidInput, match="published without noise"):
        trainer.fit()
    assert trainer.run.steps == 0, "refused before anything was released"


@pytest.mark.parametrize("name", [None, "digits"])
def test_parts_of_one_data_set_may_not_overlap(digits, name):
    whole = Items(digits[0])
    trained = Subset(whole, range(1000))
    for places, allowed in ((range(1000, 1400), True), (range(999, 1400), False)):
        test = Evaluation(Subset(whole, places), accuracy, every=2, data_name=name)
        trainer = trainer_of(trained, evaluation=test, steps=2)
        if allowed:
            assert trainer.fit().measured
        else:
            with pytest.raises(InvalidInput, match="published without noise"):
                trainer.fit()
    with pytest.raises(InvalidInput, match="published without noise"):
        trainer_of(whole, evaluation=Evaluation(whole, accuracy, 1, data_name=name), steps=2).fit()


def test_a_certificate_names_the_data_that_were_measured_on(digits, tmp_path):
    named = {}
    x, y = digits[1]
    order = torch.randperm(len(y))
    for place, (data, name) in enumerate(
        [((x, y), None), ((x[order], y[order]), None), ((x[1:], y[1:]), None), ((x, y), "digits")]
    ):
        test = Evaluation(data, accuracy, every=2, data_name=name)
        trainer_of(digits[0], folder=tmp_path / str(place), evaluation=test, steps=2).fit()
        certificate = read(tmp_path / str(place))
        named[place] = certificate["run"]["measured"][0]["data"]
        (line,) = (line for line in verify(certificate) if line.name == "measured")
        assert named[place] in line.said
    assert re.fullmatch("SHA-256 [0-9a-f]{64}", named[0]) and named[3] == "digits"
    assert named[0] == named[1] != named[2], "the records decide, and not their order"
    with pytest.raises(InvalidInput, match="printable"):
        Evaluation(digits[1], accuracy, every=1, data_name="a\x1b[2J")


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"epsilon": 3.0, "delta": 1 / 1400}, "too large for 1,400 records"),
        ({"epsilon": 3.0, "delta": 0.5}, "too large for 1,400 records"),
        ({"epsilon": 1000.0}, "epsilon = 1000 promises nothing"),
        ({"noise": GaussianNoise(1.0), "delta": 0.1}, "too large for 1,400 records"),
        ({"epsilon": 3.0}, None),
    ],
)
@pytest.mark.parametrize("kind", [private, Trainer])
def test_a_budget_that_protects_no_one_is_warned_of(digits, budget, words, kind):
    model = digits_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    with pytest.warns(PromisesNothing, match=words) if words else nullcontext():
        kind(
            model, optimizer, digits[0], each_loss, records=1400, batch_size=140, steps=5, **budget
        )


def test_what_is_measured_are_the_averaged_weights(digits):
    test = Evaluation(digits[1], accuracy, every=100)
    trainer = trainer_of(digits[0], average=0.9, steps=30, evaluation=test)
    trainer.fit()
    with torch.no_grad():
        averaged = trainer.run.average.weights()
        x, y = digits[1]
        outputs = torch.func.functional_call(trainer.run.model, averaged, (x,))
        own = accuracy(trainer.run.model(x), y).mean()
    assert trainer.evaluate() == pytest.approx(float(accuracy(outputs, y).mean()))
    assert trainer.evaluate() != float(own)


def test_what_a_trainer_needs_is_checked_before_it_trains(digits):
    test = digits[1]
    with pytest.raises(InvalidInput, match="an Evaluation"):
        trainer_of(digits[0], steps=1, evaluation=test)
    with pytest.raises(InvalidInput, match="has no evaluation"):
        trainer_of(digits[0], steps=1).evaluate()
    with pytest.raises(InvalidInput, match="every"):
        Evaluation(test, accuracy, every=0)
    with pytest.raises(InvalidInput, match="with steps or with epochs"):
        trainer_of(digits[0], steps=1, epochs=1)


def options_of(function):
    """The names of its options, without those that are passed on."""
    found = inspect.signature(function).parameters.values()
    return {p.name for p in found if p.kind is inspect.Parameter.KEYWORD_ONLY}


OPTIONS = (options_of(private) | options_of(PrivateRun)) - {"self"}


@pytest.mark.parametrize("name", ["noisy_sgd", "noisy_adam", "noisy_adamw", "noisy_adagrad"])
def test_the_constructions_pass_every_option_of_a_run_on(monkeypatch, name, make_model):
    given = {option: object() for option in OPTIONS}
    monkeypatch.setattr(optimizers, "private", lambda *parts, **options: options)
    make = getattr(optimizers, name)
    assert make(make_model(), (), each_loss, learning_rate=0.1, **given) == given


def test_the_trainer_takes_every_option_of_a_run_and_of_its_fit(monkeypatch, make_model):
    given = {option: object() for option in OPTIONS}
    seen = []
    module = import_module("tightrope.train.private")  # its function has the same name
    monkeypatch.setattr(module, "private", lambda *parts, **options: seen.append(options))
    model = make_model()
    Trainer(model, torch.optim.SGD(model.parameters(), 0.1), (), each_loss, **given)
    assert seen == [given]
    # delta is the run's own
    assert options_of(fit) - {"delta"} <= options_of(Trainer)


def test_a_run_in_print_says_what_was_decided(digits):
    shown = str(trainer_of(digits[0], noise=None, records=1400, epsilon=6.0, epochs=3).run)
    lines = dict(line.split(None, 1) for line in shown.splitlines())
    assert lines["batches"] == "PoissonSampling(rate=0.1), 140 records on average"
    assert lines["length"] == "30 steps, 10 in an epoch"
    assert lines["budget"] == "epsilon 6 at delta 0.0001, add-or-remove neighbours"
    nominal, charged = re.match(
        r"(\S+) times the clip norm, (\S+) with what", lines["noise"]
    ).groups()
    assert float(nominal) < float(charged) < 1.02 * float(nominal)
    assert lines["examples"] == "kept apart by proof of the program"
    free = str(trainer_of(digits[0], steps=None).run)
    assert "until you stop" in free and "budget    none" in free
