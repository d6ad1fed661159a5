"""Hole I: the doctor accuses no right run. Runs of many kinds, each examined in full.

Each examination accuses a sound run with probability at most 1e-6. Models are not varied here: that
right models are proved is in tests/unit/train/zoo.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from tightrope.process import Adjacency
from tightrope.train import (
    AdaptiveClip,
    AutomaticClip,
    BallsInBinsSampler,
    CorrectedAdam,
    CyclicSampler,
    DiscreteGaussianNoise,
    FixedSizeSampler,
    FlatClip,
    FullBatchSampler,
    GaussianNoise,
    PerLayerClip,
    PoissonSampler,
    PrivateRun,
    ShuffledSampler,
    TruncatedPoissonSampler,
)
from tightrope.train.doctor import check_run

torch.set_num_threads(1)

N = 120


def ce(model, x, y):
    return cross_entropy(model(x), y, reduction="none")


def chance():
    return torch.Generator().manual_seed(11)


def vectors(n=N, width=6):
    x = torch.randn(n, width, generator=chance())
    return x, (x[:, 0] > 0).long()


def mlp(*between):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), *between, nn.Linear(8, 2))


def run_of(model, rule=None, data=None, loss=ce, **parts):
    rule = (lambda p: torch.optim.SGD(p, lr=0.1)) if rule is None else rule
    settings = {
        "sampler": PoissonSampler(0.2),
        "clip": FlatClip(1.0),
        "noise": GaussianNoise(1.0),
        "expected_batch_size": 24,
        "steps": 1_000,
    }
    trained = [p for p in model.parameters() if p.requires_grad]
    data = vectors() if data is None else data
    return PrivateRun(model, rule(trained), data, loss, **(settings | parts))


def assert_healthy(run, **how):
    diagnosis = check_run(run, **how)
    assert diagnosis.healthy, str(diagnosis)


# ---- parts -----------------------------------------------------------------------------------
PARTS = {
    "fixed size": {"sampler": lambda: FixedSizeSampler(24, N)},
    "truncated": {"sampler": lambda: TruncatedPoissonSampler(0.2, 28, N)},
    "shuffled": {"sampler": lambda: ShuffledSampler(5)},
    "cyclic": {"sampler": lambda: CyclicSampler(5), "noise": lambda: DiscreteGaussianNoise(1.0)},
    "balls in bins": {"sampler": lambda: BallsInBinsSampler(5)},
    "full batch": {"sampler": FullBatchSampler},
    "cryptographic": {"sampler": lambda: PoissonSampler(0.2, cryptographic=True)},
    "replace one": {"sampler": lambda: PoissonSampler(0.2, adjacency=Adjacency.REPLACE_ONE)},
    "often empty": {"sampler": lambda: PoissonSampler(0.004)},
    "nearly all": {"sampler": lambda: PoissonSampler(0.97)},
    "all": {"sampler": lambda: PoissonSampler(1.0)},
    "discrete": {"noise": lambda: DiscreteGaussianNoise(1.3)},
    "strict": {"noise": lambda: DiscreteGaussianNoise(1.0), "arithmetic": lambda: "strict"},
    "little noise, large clip": {
        "noise": lambda: GaussianNoise(0.05),
        "clip": lambda: FlatClip(100.0),
    },
    "much noise, small clip": {
        "noise": lambda: GaussianNoise(40.0),
        "clip": lambda: FlatClip(1e-3),
    },
    "per layer": {"clip": lambda: PerLayerClip(1.0)},
    "automatic": {"clip": lambda: AutomaticClip(1.0)},
    "adaptive": {"clip": lambda: AdaptiveClip(1.0)},
    "parts of batches": {"micro_batch": lambda: 5},
    "one at a time": {"isolation": lambda: "one at a time"},
    "uncovered": {"arithmetic": lambda: "uncovered"},
}
RULES = {
    "adam with decay": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "corrected adam": lambda p: CorrectedAdam(p, lr=0.01, noise_variance=1e-3),
    "with memory of its own": lambda p: Hidden(p, {"lr": 0.1}),
}


class Hidden(torch.optim.Optimizer):
    """Keeps its momentum outside of its state."""

    @torch.no_grad()
    def step(self, closure=None):
        self.kept = getattr(self, "kept", {})
        for group in self.param_groups:
            for p in group["params"]:
                self.kept[p] = 0.9 * self.kept.get(p, 0.0) + p.grad
                p.sub_(self.kept[p], alpha=group["lr"])


@pytest.mark.parametrize("name", PARTS)
def test_samplers_noises_and_clips(name):
    """In the middle of a run, which goes on as before: what an examination did is undone."""
    run = run_of(mlp(), **{k: make() for k, make in PARTS[name].items()})
    run.take_step(), run.take_step()
    before = repr(run.clip), float(run.clip.sensitivity), repr(run.sampler.state())
    weights = torch.cat([p.detach().reshape(-1) for p in run.parameters])
    assert_healthy(run)
    assert (repr(run.clip), float(run.clip.sensitivity), repr(run.sampler.state())) == before
    assert torch.equal(weights, torch.cat([p.detach().reshape(-1) for p in run.parameters]))
    assert run.steps == run.ledger.released == 2
    assert run.take_step().number == 3 and run.ledger.released == 3


@pytest.mark.parametrize("name", RULES)
def test_optimizers(name):
    """With memory of earlier steps."""
    run = run_of(mlp(), RULES[name])
    for _ in range(5):
        run.take_step()
    assert_healthy(run)
    assert run.steps == 5


# ---- data ------------------------------------------------------------------------------------
class Noisy(Dataset):
    """Named parts; every reading of an item is another: vectors shifted at random."""

    def __init__(self):
        self.x, self.y = vectors()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = torch.roll(self.x[i], int(torch.randint(0, 3, ())), -1)
        return {"inputs": x, "labels": self.y[i]}


class Sequences(Dataset):
    """Items of many lengths, filled up to one of a public list; zeros are no entries."""

    def __init__(self):
        lengths = torch.randint(1, 9, (N,), generator=chance()).tolist()
        self.items = [(torch.randn(t, 3, generator=chance()), t % 2) for t in lengths]

    def __len__(self):
        return N

    def __getitem__(self, i):
        return self.items[i]


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        present = (x != 0).any(-1, keepdim=True)
        h = torch.tanh(self.cell(x)) * present
        return self.head(h.sum(1) / present.sum(1))


def test_dictionaries_that_change_from_reading_to_reading():
    def named(model, batch):
        return ce(model, batch["inputs"], batch["labels"])

    assert_healthy(run_of(mlp(), data=Noisy(), loss=named))


def test_sequences_of_several_lengths():
    assert_healthy(run_of(Masked(), data=Sequences(), lengths=(4, 8)))


def test_dropout_and_frozen_batch_norm():
    model = mlp(nn.BatchNorm1d(8), nn.Dropout(0.3))
    model[2].eval().requires_grad_(False)
    assert_healthy(run_of(model))


def test_equal_records_one_record_that_is_no_number_and_few_records():
    x, y = vectors()
    x[10:20], y[10:20] = x[0], y[0]
    x[30] = torch.nan
    assert_healthy(run_of(mlp(), data=(x, y)))
    assert_healthy(run_of(mlp(), data=vectors(3), expected_batch_size=1))
    assert_healthy(run_of(mlp(), data=(torch.ones(N, 6), torch.ones(N, dtype=torch.long))))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(dtype):
    x, y = vectors()
    assert_healthy(run_of(mlp().to(dtype), data=(x.to(dtype), y)))


def test_users_drawn_whole():
    from tightrope.train import UserData, Users

    owners = torch.arange(N) // 3
    sampler = PoissonSampler(0.2, users=Users(3))
    assert_healthy(run_of(mlp(), data=UserData(vectors(), owners), sampler=sampler))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_the_same_run_twenty_times_over_at_a_thousand_times_the_rate(seed):
    """At a rate of 1e-3 an examination in a thousand would be a false alarm."""
    torch.manual_seed(seed)
    assert_healthy(run_of(mlp()), false_alarm=1e-3)
