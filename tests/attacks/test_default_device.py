"""What a user sets as default device is not where the package keeps numbers of its own.

With the default "meta" every tensor that does not say where it is has no values.
"""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import tightrope
from tightrope.train import (
    BallsInBinsSampler,
    DiscreteGaussianNoise,
    Evaluation,
    FlatClip,
    GaussianNoise,
    OneByOne,
    PerLayerClip,
    PoissonSampler,
    RunFolder,
    Trainer,
    UserData,
    Users,
    accuracy,
    check_run,
    noisy_adam,
    noisy_sgd,
)


class Scaled(nn.Module):
    """Owns a parameter, so that it is run one example at a time."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x * self.scale


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.cell = nn.Embedding(9, 4), nn.LSTM(4, 4, batch_first=True)
        self.own, self.out = Scaled(), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.own(self.cell(self.words(x))[0].mean(1)))


def loss(outputs, labels):
    return cross_entropy(outputs, labels, reduction="none")


@pytest.fixture
def parts():
    """Made before the default is set: what the user holds says where it is."""
    torch.manual_seed(0)
    rows = np.random.default_rng(0)
    data = rows.integers(0, 9, (60, 6)), torch.from_numpy(rows.integers(0, 3, 60))
    return Words(), data


OTHERS = {
    "by layers": lambda: {"clip": PerLayerClip(1.0, clip_norms=(0.25,) * 8)},
    "whole numbers": lambda: {"noise": DiscreteGaussianNoise(1.0)},
    "in bins": lambda: {"sampler": BallsInBinsSampler(4)},
}


@pytest.mark.parametrize("other", [dict, *OTHERS.values()], ids=["plain", *OTHERS])
@pytest.mark.parametrize("kind", [noisy_sgd, noisy_adam])
def test_a_run_says_where_its_numbers_are(parts, other, kind, tmp_path):
    model, data = parts
    how = {"sampler": PoissonSampler(0.3), "clip": FlatClip(1.0), "noise": GaussianNoise(1.0)}
    with torch.device("meta"):
        run = kind(model, learning_rate=0.1, expected_batch_size=18, **(how | other()))
        score = Evaluation(data, accuracy, every=2)
        trainer = Trainer(run, loss, delta=1e-5, evaluation=score, folder=RunFolder(tmp_path))
        trainer.fit(data, steps=4)
    assert all(p.device.type == "cpu" and p.isfinite().all() for p in model.parameters())


def test_users_and_examples_one_by_one(parts):
    model, data = parts
    with torch.device("meta"):
        run = noisy_sgd(
            model, learning_rate=0.1, sampler=PoissonSampler(0.3, users=Users(6)),
            clip=FlatClip(1.0), noise=GaussianNoise(1.0), expected_batch_size=3,
            gradients=OneByOne(model),
        )  # fmt: skip
        Trainer(run, loss, delta=1e-5, micro_batch=1).fit(
            UserData(data, np.arange(60) % 10), steps=3
        )


def test_the_doctor(parts):
    model, data = parts
    with torch.device("meta"):
        run = noisy_sgd(
            model, learning_rate=0.1, sampler=PoissonSampler(0.3), clip=FlatClip(1.0),
            noise=GaussianNoise(1.0), expected_batch_size=18,
        )  # fmt: skip
        assert check_run(run, loss, data).healthy


MAKERS = {
    "torch.arange", "torch.as_tensor", "torch.asarray", "torch.empty", "torch.eye", "torch.full",
    "torch.linspace", "torch.ones", "torch.rand", "torch.randint", "torch.randn", "torch.randperm",
    "torch.scalar_tensor", "torch.tensor", "torch.zeros",
}  # fmt: skip
# layers are made where the user wants them, and the demonstration is nobody's model
OF_THE_USER = {"symmetric_convolution.py", "demo_training.py"}


def made_without_place(tree):
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    makers = [call for call in calls if ast.unparse(call.func) in MAKERS]
    return [call.lineno for call in makers if "device" not in {word.arg for word in call.keywords}]


def test_every_tensor_of_the_package_says_where_it_is():
    for path in sorted(Path(tightrope.__file__).parent.rglob("*.py")):
        if path.name not in OF_THE_USER:
            assert not made_without_place(ast.parse(path.read_text())), path.name
