"""Holes D2, D4 and D5 once more: memory beside the model, and right models that were refused."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from tightrope.errors import ModelNotPrivate
from tightrope.process.sampling import (
    BallsInBinsSampling,
    FixedSizeSampling,
    PoissonSampling,
    ShuffledSampling,
)
from tightrope.train import FixedSizeSampler, FlatClip, GaussianNoise, PoissonSampler, noisy_sgd
from tightrope.train.batch_scale import BatchScale

DATA = torch.randn(60, 5), torch.randint(0, 2, (60,))


def train(model: nn.Module, data=DATA, steps: int = 6, sampler=None, share=lambda each: each):
    run = noisy_sgd(
        model,
        learning_rate=0.1,
        sampler=sampler or PoissonSampler(rate=0.3),
        clip=FlatClip(1.0),
        noise=GaussianNoise(1.0),
        expected_batch_size=18,
    )
    run.company.asleep = True  # the model's own looks are attacked here
    for x, y in run.batches(data, steps=steps):
        run.step(share(cross_entropy(model(x), y, reduction="none")))
    return run


class Positions(nn.Module):
    """A table of positions, and a part whose activations are computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.positions = nn.Embedding(9, 6), nn.Embedding(7, 6)
        self.part = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
        self.out = nn.Linear(6, 2)

    def again(self, x: Tensor) -> Tensor:
        return x * 0.5 + self.part(x)

    def forward(self, x: Tensor) -> Tensor:  # (B, T)
        x = self.letters(x) + self.positions(torch.arange(x.shape[1]))
        return self.out(checkpoint(self.again, x, use_reentrant=False).mean(1))


def test_a_checkpointed_batch_as_long_as_its_sequences_is_no_mixing():
    data = torch.randint(0, 9, (60, 7)), DATA[1]
    assert train(Positions(), data, sampler=FixedSizeSampler(7, 60)).steps == 6


class Scaled(nn.Module):
    """A public constant, as LoRA has one, that is the size of some of the batches."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x + self.inner(x) * 18.0)


def test_a_constant_that_is_the_size_of_a_batch_by_chance_is_not_warned_about():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = train(Scaled(), steps=40)
    assert run.steps == 40 and run.record().private


@pytest.mark.parametrize("sizes", [[18, 18, 18, 5], [5, 18, 18, 18], [18] * 7 + [5, 18]])
def test_batches_of_that_size_one_after_another_are_no_evidence_either(sizes):
    scale, model = BatchScale(PoissonSampling(0.3)), Scaled()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for size in sizes:
            scale.check(cross_entropy(model(DATA[0][:size]), DATA[1][:size], reduction="none"))


@pytest.mark.parametrize(
    ("sampling", "sizes"),
    [
        (PoissonSampling(0.3), [6, 6, 6, 7]),
        (PoissonSampling(1.0), [6] * 8),
        (BallsInBinsSampling(9), [6, 7]),
        (FixedSizeSampling(0.1), [6, 6]),
        (ShuffledSampling(9), [6, 7]),
    ],
)
def test_a_division_is_warned_about_at_the_second_size_or_where_there_is_no_second(sampling, sizes):
    scale, model, warned = BatchScale(sampling), nn.Linear(5, 2), []
    for size in sizes:
        each = cross_entropy(model(DATA[0][:size]), DATA[1][:size], reduction="none") / size
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            scale.check(each)
        warned.append(bool(told))
    assert warned == [False] * (len(sizes) - 1) + [True]


def told_of(losses_of, sizes, sampling=None, labels=None, last=lambda k: True):
    """What is said about these losses of batches of these sizes."""
    scale, model = BatchScale(sampling or PoissonSampling(0.3)), nn.Linear(5, 2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for k, size in enumerate(sizes):
            y = DATA[1][:size] if labels is None else labels[k]
            scale.check(losses_of(model, DATA[0][:size], y), last=last(k))
    return [str(each.message) for each in told]


def each_by_itself(model, x, y):
    return torch.stack([cross_entropy(*pair) for pair in zip(model(x), y, strict=True)])


@pytest.mark.parametrize(
    "losses_of",
    [
        lambda model, x, y: each_by_itself(model, x, y) / len(x),
        lambda model, x, y: torch.stack([e / len(x) for e in each_by_itself(model, x, y)]),
        lambda model, x, y: torch.cat([e[None] * len(x) for e in each_by_itself(model, x, y)]),
    ],
)
def test_losses_formed_one_by_one_have_a_graph_as_long_as_the_batch_and_are_found(losses_of):
    with pytest.raises(ModelNotPrivate, match="follows the size of the batch"):
        told_of(losses_of, [6, 9, 7])


def test_a_mask_that_is_one_number_now_and_then_does_not_hide_a_division():
    masks = iter([torch.ones(6), torch.ones(9).index_fill(0, torch.tensor(2), 0), torch.ones(7)])
    with pytest.raises(ModelNotPrivate, match="follows the size of the batch"):
        told_of(lambda m, x, y: each_by_itself(m, x, y) / len(x) * next(masks), [6, 9, 7])


@pytest.mark.parametrize(
    "losses_of",
    [
        lambda model, x, y: cross_entropy(model(x), y, reduction="none") * (1 + y) / 3,
        lambda model, x, y: torch.relu(1 - (2 * y - 1) * model(x)[:, 0]),
        lambda model, x, y: -(y * model(x).log_softmax(1)[:, 1]),
    ],
)
def test_labels_and_weights_that_are_the_same_in_a_small_batch_are_no_statistic(losses_of):
    labels = [torch.tensor(y) for y in ([1, 1], [0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0, 1], [1])]
    assert told_of(losses_of, map(len, labels), labels=labels) == []


def test_a_statistic_of_the_batch_is_warned_about_however_it_is_written():
    def for_each(model, x, y):
        each = each_by_itself(model, x, y)
        return each / each.detach().mean().expand_as(each).clone()

    for losses_of in (for_each, lambda m, x, y: (e := each_by_itself(m, x, y)) / e.detach().sum()):
        (said,) = told_of(losses_of, [6, 9, 7, 8])
        assert "a tensor without gradient" in said


def test_parts_of_a_batch_are_as_long_as_a_constant_because_the_user_wants_it():
    def scaled(model, x, y):
        return cross_entropy(model(x) * 4.0, y, reduction="none")

    assert told_of(scaled, [4] * 9 + [1] + [4] * 9, last=lambda k: k == 9) == []


def test_a_division_by_the_length_of_parts_is_warned_about():
    def divided(model, x, y):
        return cross_entropy(model(x), y, reduction="none") / len(x)

    (said,) = told_of(divided, [2, 2, 2, 1], last=lambda k: k == 3)
    assert "divided by 2" in said
    assert len(told_of(divided, [2] * 16, last=lambda k: k % 2 == 1)) == 1
    assert told_of(divided, [1] * 24) == []  # strict mode has one example at a time


class Remembers(nn.Module):
    """Standardises by a running mean that is kept somewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def mean(self, x: Tensor) -> float:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - self.mean(x))


_bank: list[Tensor] = []


class InGlobal(Remembers):
    def mean(self, x: Tensor) -> float:
        _bank.append(x.detach())
        return float(torch.cat(_bank[-5:]).mean())


class InClosure(Remembers):
    def __init__(self) -> None:
        super().__init__()
        kept = [0.0]

        def mean(x: Tensor) -> float:
            kept[0] = 0.9 * kept[0] + float(x.mean())
            return kept[0]

        self.mean = mean


@pytest.mark.parametrize("kind", [InGlobal, InClosure])
def test_a_memory_beside_the_model_is_warned_about(kind):
    with pytest.warns(UserWarning, match="in another way each time"):
        train(kind())


class InSet(Remembers):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[float] = set()

    def mean(self, x: Tensor) -> float:
        self.seen |= set(x[:, 0].tolist())
        return len(self.seen) / 60


class InClass(Remembers):
    kept = 0.0

    def mean(self, x: Tensor) -> float:
        type(self).kept = 0.9 * self.kept + float(x.mean())
        return self.kept


@pytest.mark.parametrize("kind", [InSet, InClass])
def test_a_memory_in_a_set_or_in_the_class_is_refused(kind):
    with pytest.raises(ModelNotPrivate):
        train(kind())


class Draws(nn.Module):
    """Its own generator; mixed: by the mean of the batch."""

    def __init__(self, generator, mixed: bool) -> None:
        super().__init__()
        self.layer, self.generator, self.mixed = nn.Linear(5, 2), generator, mixed

    def draw(self, count: int) -> Tensor:
        if isinstance(self.generator, torch.Generator):
            return torch.randn(5, count, generator=self.generator).T
        if isinstance(self.generator, np.random.Generator):
            return torch.tensor(self.generator.normal(size=(5, count))).float().T
        return torch.tensor([[self.generator.gauss(0, 1) for _ in range(count)]] * 5).T

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.draw(len(x))
        return self.layer(x - x.mean(0) if self.mixed else x)


GENERATORS = [torch.Generator, np.random.default_rng, random.Random]


@pytest.mark.parametrize("make", GENERATORS)
def test_a_generator_of_its_own_does_not_hide_mixing(make):
    with pytest.raises(ModelNotPrivate, match="mixes examples"):
        train(Draws(make(), mixed=True))


@pytest.mark.parametrize("make", GENERATORS)
def test_a_generator_of_its_own_is_allowed_and_goes_on(make):
    model = Draws(make(), mixed=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model)
    assert not torch.equal(model.draw(4), model.draw(4))
