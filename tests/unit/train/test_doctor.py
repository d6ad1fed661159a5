"""The doctor finds nothing wrong with a sound run, and each of the planted mistakes."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.errors import ModelNotPrivate
from tightrope.process import Adjacency
from tightrope.train import (
    BallsInBinsSampler,
    CyclicSampler,
    DiscreteGaussianNoise,
    FixedSizeSampler,
    FlatClip,
    FullBatchSampler,
    GaussianNoise,
    Gradients,
    PoissonSampler,
    ShuffledSampler,
    TruncatedPoissonSampler,
    noisy_sgd,
)
from tightrope.train.doctor import check_model, check_run


def loss(outputs, labels):
    return cross_entropy(outputs, labels, reduction="none")


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


SAMPLERS = {
    "poisson": lambda: PoissonSampler(0.2),
    "fixed": lambda: FixedSizeSampler(12, 60),
    "truncated": lambda: TruncatedPoissonSampler(0.2, 14, 60),
    "shuffled": lambda: ShuffledSampler(5),
    "cyclic": lambda: CyclicSampler(5),
    "balls": lambda: BallsInBinsSampler(5),
    "full": lambda: FullBatchSampler(),
}


QUICK = [*((name, GaussianNoise) for name in SAMPLERS), ("poisson", DiscreteGaussianNoise)]


@pytest.mark.parametrize(
    ("sampler", "noise"),
    [
        pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow)
        for pair in product(SAMPLERS, [GaussianNoise, DiscreteGaussianNoise])
    ],
)
def test_a_sound_run_is_healthy_and_left_as_it_was(make_run, data, train, sampler, noise):
    run = make_run(sampler=SAMPLERS[sampler](), noise=noise(1.0))
    train(run, data, steps=2)
    before, stream = weights(run.model), run.sampler.state()
    diagnosis = check_run(run, loss, data)
    assert diagnosis.healthy, str(diagnosis)
    assert torch.equal(before, weights(run.model)) and run.sampler.state() == stream
    assert run.steps == run.ledger.released == 2
    train(run, data, steps=1)
    assert run.ledger.released == 3


def faults(run, data, loss=loss):
    return {finding.check for finding in check_run(run, loss, data).faults}


class Wrapped:
    """A part of a run with something changed."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)


class Quiet(Wrapped):
    def add_(self, sums, sensitivity):
        pass


def test_planted_wrong_noise(make_run, data):
    """The kinds of it are in tests/attacks/test_doctor_kinds.py."""
    assert "noise scale" in faults(make_run(noise=Quiet(GaussianNoise(1.0))), data)


def test_planted_division_by_the_realised_batch(make_run, data, monkeypatch):
    run = make_run()
    apply, summed, sizes = run._apply, run.gradients.clipped_sum, []

    def counting(losses, clip, **how):
        sizes.append(len(losses))
        return summed(losses, clip, **how)

    def by_batch(sums):
        run.expected_batch_size, constant = max(sizes[-1], 1), 12.0
        apply(sums)
        run.expected_batch_size = constant

    monkeypatch.setattr(run.gradients, "clipped_sum", counting)

    monkeypatch.setattr(run, "_apply", by_batch)
    assert "public divisor" in faults(run, data)


def test_planted_divisor_worked_out_from_the_private_size(make_run, data):
    x, y = data[0][:57], data[1][:57]
    derived = check_run(make_run(expected_batch_size=0.2 * len(x)), loss, (x, y))
    assert "rate * 57" in derived.of("size of the data")[0].told
    assert not check_run(make_run(expected_batch_size=11), loss, (x, y)).of("size of the data")


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(dim=0, keepdim=True)


def test_planted_layer_that_mixes_examples(make_run, data):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), Centred(), nn.Linear(4, 2))
    found = faults(make_run(model), data)
    assert {"cross-example leakage", "losses mix examples"} <= found


def test_mixing_before_the_first_trainable_layer_is_told_in_full(data):
    model = nn.Sequential(Centred(), nn.Linear(5, 2))
    run = noisy_sgd(
        model,
        learning_rate=0.1,
        sampler=PoissonSampler(0.2),
        clip=FlatClip(1.0),
        noise=GaussianNoise(1.0),
        expected_batch_size=12,
    )
    assert {"cross-example leakage", "losses mix examples"} <= faults(run, data)
    with pytest.raises(ModelNotPrivate, match="mixes examples"):  # and is refused by the run
        for x, y in run.batches(data, steps=1):
            run.step(loss(model(x), y))


def test_planted_loss_that_mixes_examples(make_run, data):
    def contrast(outputs, labels):
        return loss(outputs, labels) - 0.5 * loss(outputs, labels).mean()

    assert "losses mix examples" in faults(make_run(), data, contrast)


class Unclipped(Wrapped):
    def clipped_sum(self, losses, clip, **how):
        return self._inner.clipped_sum(losses, type(clip)(clip.clip_norm * 3), **how)


def test_planted_clip_that_does_not_clip(make_run, make_model, data):
    run = make_run(clip=type(make_run().clip)(0.01))
    run.gradients = Unclipped(run.gradients)
    assert "clip bound" in faults(run, data)


class Forgetful(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(5, 2), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.used(x) + 0.0 * self.unused.sum()


def test_planted_parameter_that_gets_no_gradient(make_run, data):
    assert faults(make_run(Forgetful()), data) == {"unused parameters"}


def test_planted_bypass_of_the_optimizer(make_run, data):
    run = make_run()
    for handle in run.guard._handles:
        handle.remove()
    assert "optimizer bypass" in faults(run, data)


def test_planted_change_of_the_weights_behind_the_run(make_run, data, train):
    run = make_run()
    train(run, data, steps=1)
    with torch.no_grad():
        next(run.model.parameters()).add_(1.0)
    assert faults(run, data) == {"optimizer bypass"}
    assert faults(run, data) == {"optimizer bypass"}  # looking does not make it good


def test_modules_set_by_hand_keep_their_mode(make_run, make_model, data):
    model = nn.Sequential(make_model(), nn.Dropout(0.5))
    model[1].eval()
    check_run(make_run(model), loss, data)
    assert model.training and model[0].training and not model[1].training


def test_planted_learning_rate_of_zero(make_run, data):
    assert "weights" in faults(make_run(rule=lambda p: torch.optim.SGD(p, lr=0.0)), data)


def test_planted_uncounted_steps(make_run, data, monkeypatch):
    run = make_run()
    monkeypatch.setattr(run.ledger, "count", lambda step: None)
    assert faults(run, data) == {"ledger"}


def test_planted_seed_and_planted_silence(make_run, data):
    assert faults(make_run(noise=GaussianNoise(1.0, seed=3)), data) == {"randomness"}
    assert "noise" in faults(make_run(noise=GaussianNoise(0.0)), data)


def test_frozen_and_tied_parameters_are_told(make_run, data):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 2))
    model[1].weight = model[0].weight
    model[2].bias.requires_grad_(False)
    diagnosis = check_run(make_run(model), loss, data)
    assert diagnosis.healthy
    assert "0.weight=1.weight" in diagnosis.of("tied parameters")[0].told
    assert "2.bias" in diagnosis.of("frozen parameters")[0].told


@pytest.mark.parametrize("change", ["unfrozen", "replaced"])
def test_parameters_that_the_run_does_not_know_are_told(make_run, data, change):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].requires_grad_(change == "replaced")
    run = make_run(model, gradients=Gradients(model), clip=FlatClip(1.0))
    if change == "unfrozen":
        model[0].requires_grad_(True)
    else:
        model[2] = nn.Linear(4, 2)
    (finding,) = check_run(run, loss, data).of("parameters left out")
    assert ("0.weight" if change == "unfrozen" else "2.weight") in finding.told


def test_check_model_before_training(make_model, make_run, data):
    run = make_run()
    diagnosis = check_model(run.model, loss, data, clip=run.clip, gradients=run.gradients)
    assert diagnosis.healthy, str(diagnosis)
    assert "clip bound" in str(diagnosis)


def test_replace_one_runs_are_examined_too(make_run, data):
    run = make_run(sampler=PoissonSampler(0.2, adjacency=Adjacency.REPLACE_ONE))
    assert check_run(run, loss, data).healthy


def with_engine(make_run, model, **parts):
    return make_run(model, clip=FlatClip(1.0), gradients=Gradients(model), **parts)


def test_the_fast_engine_is_examined_too(make_run, make_model, data):
    model = nn.Sequential(make_model(), nn.LayerNorm(2), nn.Dropout(0.3), nn.Linear(2, 2))
    diagnosis = check_run(with_engine(make_run, model), loss, data)
    assert diagnosis.healthy, str(diagnosis)


def test_mixing_is_found_with_the_fast_engine_too(make_run, data):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), Centred(), nn.Linear(4, 2))
    found = faults(with_engine(make_run, model), data)
    assert found & {"model", "losses mix examples", "cross-example leakage"}


def test_check_model_explains_what_the_engine_refuses(data):
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    (finding,) = check_model(model, loss, data, clip=FlatClip(1.0)).faults
    assert finding.check == "model" and "GroupNorm" in finding.told
