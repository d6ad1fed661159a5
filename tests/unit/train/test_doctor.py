"""The doctor finds nothing wrong with a sound run, and each of the planted mistakes.

Every examination accuses a sound run with probability at most 1e-6 (`false_alarm`).
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.errors import InvalidInput
from tightrope.train.clip import FlatClip
from tightrope.train.doctor import check_program, check_run
from tightrope.train.noise import GaussianNoise
from tightrope.train.private import private
from tightrope.train.samplers import PoissonSampler

torch.set_num_threads(1)


def loss(model, x, y):
    return cross_entropy(model(x), y, reduction="none")


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))


def run_of(data, model=None, rule=lambda p: torch.optim.SGD(p, lr=0.1), loss=loss, **parts):
    model = small() if model is None else model
    optimizer = rule([p for p in model.parameters() if p.requires_grad])
    settings = {
        "sampler": PoissonSampler(0.2),
        "clip": FlatClip(1.0),
        "noise": GaussianNoise(1.0),
        "expected_batch_size": 12,
        "steps": 100,
    }
    return private(model, optimizer, data, loss, **(settings | parts))


def faults(run, **how):
    return {finding.check for finding in check_run(run, **how).faults}


# ---- sound runs: of many kinds in tests/attacks/test_doctor_right_runs.py ---------------------
def test_an_examination_changes_nothing_of_the_run(data):
    """Optimizer, schedule, average, generators and what the run shows are those of before."""
    model = nn.Sequential(small(), nn.Dropout(0.2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    run = run_of(data, model, lambda p: optimizer, schedule=schedule, average=0.9, sensitive=True)
    for _ in range(4):
        run.take_step()
    state, rng = copy.deepcopy(optimizer.state_dict()), torch.get_rng_state()
    last, shown = schedule.state_dict()["last_epoch"], run.sensitive.batch_size
    assert check_run(run).healthy
    after = optimizer.state_dict()
    for key, value in state["state"].items():
        for name in value:
            assert torch.equal(
                torch.as_tensor(value[name]), torch.as_tensor(after["state"][key][name])
            )
    assert after["param_groups"] == state["param_groups"]
    assert schedule.state_dict()["last_epoch"] == last and run.sensitive.batch_size == shown
    assert torch.equal(rng, torch.get_rng_state()) and run.steps == 4


def test_a_run_at_the_end_of_its_budget_can_be_examined_and_takes_no_step_more(data):
    run = run_of(data, steps=3)
    assert sum(1 for _ in run) == 3 and run.finished
    assert check_run(run).healthy
    assert run.finished and run.steps == 3 and run.ledger.budget is None


def test_a_function_that_makes_the_run(data):
    diagnosis = check_run(lambda: run_of(data))
    assert diagnosis.healthy and diagnosis.false_alarm == 1e-6
    assert "proved" in diagnosis.of("examples")[0].text


def test_what_is_no_run_is_refused(data):
    with pytest.raises(InvalidInput, match="check_program"):
        check_run(small())


# ---- planted mistakes: more in tests/attacks/test_doctor_kinds.py -----------------------------
def test_no_noise(data):
    assert "noise" in faults(run_of(data, noise=GaussianNoise(0.0)))


def test_a_seed_and_the_diagnosis_as_data(data):
    found = check_run(run_of(data, noise=GaussianNoise(1.0, seed=3))).as_dict()
    assert found["healthy"] is False and found["false_alarm"] == 1e-6
    wrong = [row["check"] for row in found["findings"] if row["verdict"] == "fault"]
    assert wrong == ["randomness"] and {"check", "verdict", "text"} == set(found["findings"][0])


def test_division_by_the_realised_batch(data, monkeypatch):
    run, sizes = run_of(data), []
    apply, summed = run._apply, run._clipped_sum

    def counting(groups, drawn):
        sizes.append(drawn)
        return summed(groups, drawn)

    def by_batch(sums):
        run.expected_batch_size, constant = max(sizes[-1], 1), 12.0
        try:
            return apply(sums)
        finally:
            run.expected_batch_size = constant

    monkeypatch.setattr(run, "_clipped_sum", counting)
    monkeypatch.setattr(run, "_apply", by_batch)
    assert "public divisor" in faults(run)


def test_a_divisor_worked_out_from_the_private_size(data):
    data = data[0][:57], data[1][:57]
    derived = check_run(run_of(data, expected_batch_size=0.2 * 57))
    assert "rate * 57" in derived.of("size of the data")[0].text
    assert not check_run(run_of(data, expected_batch_size=11)).of("size of the data")


def test_uncounted_steps(data, monkeypatch):
    run = run_of(data)
    monkeypatch.setattr(run.ledger, "count", lambda step: None)
    assert "ledger" in faults(run)


def test_weights_that_were_changed_behind_the_run(data):
    run = run_of(data)
    run.take_step()
    with torch.no_grad():
        run.parameters[0].add_(1.0)
    (fault,) = check_run(run).faults
    assert fault.check == "run" and "written to between two steps" in fault.text
    assert run.weights_touched  # an examination does not make it good


# ---- programs --------------------------------------------------------------------------------
class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(dim=0, keepdim=True)


def test_a_loss_that_keeps_examples_apart_is_proved(data):
    batch = data[0][:8], data[1][:8]
    found = check_program(small(), loss, batch)
    assert found.verdict == "proved" and found.proved and len(found.digest) == 64
    assert check_program(small(), loss, batch).digest == found.digest  # whatever the weights
    other = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    assert check_program(other, loss, batch).digest != found.digest


@pytest.mark.parametrize(
    ("model", "loss", "operator"),
    [
        (lambda: nn.Sequential(nn.Linear(5, 4), Centred(), nn.Linear(4, 2)), loss, "mean"),
        (lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), loss, "norm"),
        (small, lambda m, x, y: loss(m, x, y) / loss(m, x, y).sum(), "sum"),
    ],
    ids=["centred", "batch norm", "contrast"],
)
def test_a_loss_whose_examples_meet_is_named_with_its_operator(data, model, loss, operator):
    found = check_program(model(), loss, (data[0][:8], data[1][:8]))
    assert found.verdict == "mixes" and operator in found.reason and found.digest is None
    assert "test_doctor.py:" in found.reason or "norm" in operator  # the line; of a layer, the call


def test_a_loss_that_is_no_graph_is_not_known(data):
    def branching(model, x, y):
        return loss(model, x, y) if float(x.sum()) > 0 else loss(model, x, -y)

    found = check_program(small(), branching, (data[0][:8], data[1][:8]))
    assert found.verdict == "not known" and not found.proved and found.reason


def test_one_loss_for_the_whole_batch_is_named_with_the_way_out(data):
    found = check_program(
        small(), lambda m, x, y: cross_entropy(m(x), y), (data[0][:8], data[1][:8])
    )
    assert not found.proved and 'reduction="none"' in found.reason


def test_a_check_runs_nothing_on_the_example(data):
    """Only shapes are used: buffers and generators stay, and values may be anything."""
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    before, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    check_program(model, loss, (torch.full((8, 5), torch.nan), data[1][:8]))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert torch.equal(rng, torch.get_rng_state())


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (3, "a tuple of tensors"),
        ((), "a tuple of tensors"),
        ((torch.ones(4, 5), 3), "must be a tensor"),
        ((torch.ones(4, 5), torch.ones(3)), "must be a tensor"),
        ((torch.ones(()),), "must be a tensor"),
    ],
)
def test_an_example_of_another_form_is_refused(example, words):
    with pytest.raises(InvalidInput, match=words):
        check_program(small(), loss, example)


def test_what_is_no_model_and_no_loss_is_refused(data):
    with pytest.raises(InvalidInput, match="model must be"):
        check_program(loss, small(), data)
    with pytest.raises(InvalidInput, match="loss must be"):
        check_program(small(), "cross entropy", data)
