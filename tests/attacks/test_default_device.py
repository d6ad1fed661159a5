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
    PerLayerClip,
    PoissonSampler,
    Trainer,
    UserData,
    Users,
    accuracy,
    check_run,
    noisy_adam,
    noisy_sgd,
)


class Scaled(nn.Module):
    """Owns a parameter that broadcasts over the examples."""

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


def loss(model, words, labels):
    return cross_entropy(model(words), labels, reduction="none")


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


def made(model, data, kind=noisy_sgd, **more):
    how = {
        "sampler": PoissonSampler(0.3), "clip": FlatClip(1.0), "noise": GaussianNoise(1.0),
        "learning_rate": 0.1, "expected_batch_size": 18, "steps": 4, "delta": 1e-5,
    }  # fmt: skip
    return kind(model, data, loss, **(how | more))


@pytest.mark.parametrize("other", [dict, *OTHERS.values()], ids=["plain", *OTHERS])
@pytest.mark.parametrize("kind", [noisy_sgd, noisy_adam])
def test_a_run_says_where_its_numbers_are(parts, other, kind, tmp_path):
    model, data = parts
    with torch.device("meta"):
        run = made(model, data, kind, folder=tmp_path, **other())
        public = data[0][:, ::-1].copy(), data[1]
        run.fit(evaluation=Evaluation(public, accuracy, every=2), progress=False)
    assert run.steps == 4
    assert all(p.device.type == "cpu" and p.isfinite().all() for p in model.parameters())


def test_a_trainer(parts):
    model, data = parts
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.device("meta"):
        trainer = Trainer(
            model, rule, data, loss, records=60, batch_size=18, steps=3, epsilon=8.0, progress=False
        )
        assert trainer.fit().steps == 3


@pytest.mark.parametrize(
    "how", [{}, {"isolation": "vmap"}, {"isolation": "one at a time"}, {"micro_batch": 2}]
)
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # PyTorch's, of vmap
def test_users_and_the_other_tiers(parts, how, together):
    model, data = parts
    with torch.device("meta"):
        sampler = PoissonSampler(0.3, users=Users(6, together))
        run = made(model, UserData(data, np.arange(60) % 10), sampler=sampler, **how)
        assert len(list(run)) == 4


def test_strict_arithmetic(parts):
    model, data = parts
    with torch.device("meta"):
        run = made(model, data, noise=DiscreteGaussianNoise(1.0), arithmetic="strict", steps=2)
        assert len(list(run)) == 2
    torch.use_deterministic_algorithms(False)


def test_the_doctor(parts):
    model, data = parts
    with torch.device("meta"):
        assert check_run(made(model, data)).healthy


MAKERS = {
    "torch.arange", "torch.as_tensor", "torch.asarray", "torch.empty", "torch.eye", "torch.full",
    "torch.linspace", "torch.ones", "torch.rand", "torch.randint", "torch.randn", "torch.randperm",
    "torch.scalar_tensor", "torch.tensor", "torch.zeros",
}  # fmt: skip
# layers are made where the user wants them, and the demonstration is a script of its own
OF_THE_USER = {"fix.py", "demo.py"}


def made_without_place(tree):
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    makers = [call for call in calls if ast.unparse(call.func) in MAKERS]
    return [call.lineno for call in makers if "device" not in {word.arg for word in call.keywords}]


def test_every_tensor_of_the_package_says_where_it_is():
    for path in sorted(Path(tightrope.__file__).parent.rglob("*.py")):
        if path.name not in OF_THE_USER:
            assert not made_without_place(ast.parse(path.read_text())), path.name
