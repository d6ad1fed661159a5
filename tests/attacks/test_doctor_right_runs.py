"""Hole I: the doctor accuses nobody. Right runs of many kinds, each examined in full."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, dropout, relu
from torch.utils.data import Dataset

from tightrope.process import Adjacency
from tightrope.train import (
    AutomaticClip,
    BallsInBinsSampler,
    CorrectedAdam,
    CyclicSampler,
    DiscreteGaussianNoise,
    FixedSizeSampler,
    FlatClip,
    FullBatchSampler,
    GaussianNoise,
    Gradients,
    OneByOne,
    PerLayerClip,
    PoissonSampler,
    PrivateOptimizer,
    ShuffledSampler,
)
from tightrope.train.doctor import check_run

torch.set_num_threads(1)

N = 120


def ce(outputs, labels):
    return cross_entropy(outputs, labels, reduction="none")


def chance():
    return torch.Generator().manual_seed(11)


def vectors(n=N, width=6):
    x = torch.randn(n, width, generator=chance())
    return x, (x[:, 0] > 0).long()


def images(n=N):
    x = torch.randn(n, 1, 8, 8, generator=chance())
    return x, (x.mean((1, 2, 3)) > 0).long()


def tokens(n=N, length=7):
    x = torch.randint(0, 20, (n, length), generator=chance())
    return x, x[:, 0] % 2


def series(n=N):
    x = torch.randn(n, 5, 3, generator=chance())
    return x, (x.sum((1, 2)) > 0).long()


def mlp(*between):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), *between, nn.Linear(8, 2))


# ---- models --------------------------------------------------------------------------------------


class Picked(nn.Module):
    """A recurrent layer whose last output is classified."""

    def __init__(self, cell):
        super().__init__()
        self.cell, self.head = cell, nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.cell(x)[0][:, -1])


class Encoder(nn.Module):
    """A small transformer with positions and dropout."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(20, 8), nn.Embedding(7, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        h = self.words(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.layer(h).mean(1))


class LowRank(nn.Module):
    """A frozen layer with a trained correction of low rank."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(6, 8).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 8, bias=False)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(torch.relu(self.base(x) + self.up(self.down(x))))


class TiedWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.read = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.read.weight = self.words.weight

    def forward(self, x):
        return self.read(torch.tanh(self.words(x).mean(1)))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.head = nn.GroupNorm(2, 4), nn.Linear(4, 2)

    def forward(self, x):
        h = relu(self.first(x))
        return self.head((h + self.norm(self.second(h))).mean((2, 3)))


class FunctionalDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.outer(dropout(torch.tanh(self.inner(x)), 0.3, self.training))


class Counter(nn.Module):
    """Counts its passes, and anneals by them: public, whatever the data."""

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))
        self.plain = 0

    def forward(self, h):
        if self.training:
            self.passes = self.passes + 1
            self.plain += 1
        return h + 1 / (1 + self.passes) + 0.01 / (1 + self.plain)


def small_cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2)
    )


def frozen_norm():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model[1].eval().requires_grad_(False)
    return model


MODELS = {
    "mlp": (mlp, vectors),
    "linear": (lambda: nn.Linear(6, 2), vectors),
    "deep": (lambda: mlp(*[m for _ in range(6) for m in (nn.Linear(8, 8), nn.Tanh())]), vectors),
    "layer norm": (lambda: mlp(nn.LayerNorm(8)), vectors),
    "dropout": (lambda: mlp(nn.Dropout(0.3)), vectors),
    "functional dropout": (FunctionalDropout, vectors),
    "cnn": (small_cnn, images),
    "residual cnn": (Residual, images),
    "lstm": (lambda: Picked(nn.LSTM(3, 4, batch_first=True)), series),
    "gru": (lambda: Picked(nn.GRU(3, 4, batch_first=True)), series),
    "transformer": (Encoder, tokens),
    "bag of words": (
        lambda: nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(28, 2)),
        tokens,
    ),
    "tied": (TiedWords, tokens),
    "low rank": (LowRank, vectors),
    "frozen norm": (frozen_norm, vectors),
    "counter": (lambda: mlp(Counter()), vectors),
}


def run_of(model, rule=None, gradients=Gradients, **parts):
    rule = (lambda p: torch.optim.SGD(p, lr=0.1)) if rule is None else rule
    settings = {
        "sampler": PoissonSampler(0.2),
        "clip": FlatClip(1.0),
        "noise": GaussianNoise(1.0),
        "expected_batch_size": 24,
        "gradients": gradients(model),
    }
    trained = [p for p in model.parameters() if p.requires_grad]
    return PrivateOptimizer(model, rule(trained), **(settings | parts))


def assert_healthy(run, data, loss=ce, **how):
    diagnosis = check_run(run, loss, data, **how)
    assert diagnosis.healthy, str(diagnosis)


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    torch.manual_seed(0)
    make, data = MODELS[name]
    assert_healthy(run_of(make()), data())


# ---- parts ---------------------------------------------------------------------------------------

REPLACE = {"adjacency": Adjacency.REPLACE_ONE}
PARTS = {
    "fixed size": {"sampler": lambda: FixedSizeSampler(24, N)},
    "shuffled": {"sampler": lambda: ShuffledSampler(5)},
    "cyclic": {"sampler": lambda: CyclicSampler(5)},
    "balls in bins": {"sampler": lambda: BallsInBinsSampler(5)},
    "full batch": {"sampler": FullBatchSampler},
    "cryptographic": {"sampler": lambda: PoissonSampler(0.2, cryptographic=True)},
    "replace one": {"sampler": lambda: PoissonSampler(0.2, **REPLACE)},
    "often empty": {"sampler": lambda: PoissonSampler(0.004)},
    "nearly all": {"sampler": lambda: PoissonSampler(0.97)},
    "all": {"sampler": lambda: PoissonSampler(1.0)},
    "discrete": {"noise": lambda: DiscreteGaussianNoise(1.3)},
    "little noise": {"noise": lambda: GaussianNoise(0.05)},
    "much noise": {"noise": lambda: GaussianNoise(40.0)},
    "per layer": {"clip": lambda: PerLayerClip(1.0)},
    "automatic": {"clip": lambda: AutomaticClip(1.0)},
    "small clip": {"clip": lambda: FlatClip(1e-3)},
    "large clip": {"clip": lambda: FlatClip(100.0)},
}
RULES = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam with decay": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "corrected adam": lambda p: CorrectedAdam(p, lr=0.01, noise_variance=1e-3),
}


@pytest.mark.parametrize("name", PARTS)
def test_samplers_noises_and_clips(name):
    torch.manual_seed(0)
    assert_healthy(run_of(mlp(), **{k: make() for k, make in PARTS[name].items()}), vectors())


@pytest.mark.parametrize("name", RULES)
def test_optimizers(name):
    """In the middle of a run, with memory of earlier steps and a schedule."""
    torch.manual_seed(0)
    run, data = run_of(mlp(), RULES[name]), vectors()
    schedule = torch.optim.lr_scheduler.StepLR(run.optimizer, 2)
    for x, y in run.batches(data, steps=5):
        run.step(ce(run.model(x), y))
        schedule.step()
    assert_healthy(run, data)
    assert run.steps == 5


# ---- engines, data and forms ---------------------------------------------------------------------


def test_micro_batches():
    assert_healthy(run_of(mlp()), vectors(), micro_batch=5)


def test_two_passes_and_one_by_one():
    assert_healthy(run_of(mlp(), gradients=lambda m: Gradients(m, method="two-pass")), vectors())
    assert_healthy(run_of(mlp(), gradients=OneByOne), vectors(), micro_batch=1, steps=12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions(dtype):
    torch.manual_seed(0)
    x, y = vectors()
    assert_healthy(run_of(mlp().to(dtype)), (x.to(dtype), y))


def test_autocast():
    def cast(model, x, y):
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(x)
        return ce(outputs.float(), y)

    assert_healthy(run_of(mlp()), vectors(), cast)


class Noisy(Dataset):
    """Every reading is another: images shifted at random."""

    def __init__(self):
        self.x, self.y = images()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.roll(self.x[i], int(torch.randint(0, 3, ())), -1), self.y[i]


def test_data_that_change_from_reading_to_reading():
    run, data = run_of(small_cnn()), Noisy()
    run.watch(data, fingerprint="images shifted at random")
    assert_healthy(run, data)


class Named(Dataset):
    def __init__(self):
        self.x, self.y = vectors()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"inputs": self.x[i], "labels": self.y[i]}


def test_dictionaries():
    def named(model, batch):
        return ce(model(batch["inputs"]), batch["labels"])

    assert_healthy(run_of(mlp()), Named(), named)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        present = (x != 0).any(-1, keepdim=True)
        h = torch.tanh(self.cell(x)) * present
        return self.head(h.sum(1) / present.sum(1))


def test_padding_behind_a_mask():
    lengths = torch.randint(1, 9, (N,), generator=chance()).tolist()
    items = [(torch.randn(t, 3, generator=chance()), torch.tensor(t % 2)) for t in lengths]

    def padded(batch):
        rows = nn.utils.rnn.pad_sequence([x for x, _ in batch], batch_first=True)
        return rows, torch.stack([y for _, y in batch])

    torch.manual_seed(0)
    assert_healthy(run_of(Masked()), items, collate=padded)


def test_equal_records_one_record_that_is_no_number_and_few_records():
    x, y = vectors()
    x[10:20], y[10:20] = x[0], y[0]
    x[30] = torch.nan
    assert_healthy(run_of(mlp()), (x, y))
    assert_healthy(run_of(mlp(), expected_batch_size=1), vectors(3))


def test_records_that_are_all_equal():
    assert_healthy(run_of(mlp()), (torch.ones(N, 6), torch.ones(N, dtype=torch.long)))


def test_regression():
    x, _ = vectors()
    targets = x @ torch.randn(6, 2, generator=chance())

    def squares(outputs, wanted):
        return (outputs - wanted).pow(2).mean(1)

    assert_healthy(run_of(mlp()), (x, targets), squares)


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_the_same_run_twenty_times_over_at_a_thousand_times_the_rate(seed):
    """At a rate of 1e-3 an examination in a thousand would be a false alarm."""
    torch.manual_seed(seed)
    assert_healthy(run_of(mlp()), vectors(), false_alarm=1e-3)
