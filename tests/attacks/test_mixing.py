"""Holes D3 to D5: examples that see each other in loops of one's own, late, rarely or in folded
layers; and batches that are as long as a sequence, which are no mixing at all.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train import (
    FixedSizeSampler,
    FlatClip,
    GaussianNoise,
    OneByOne,
    PoissonSampler,
    Trainer,
    noisy_sgd,
)
from tightrope.train.gradients import Gradients
from tightrope.train.gradients.apart import CHANCE, Probes, halves
from tightrope.train.gradients.reference import loop_clipped_sum


def made(model, sampler=None, **parts):
    settings = {
        "learning_rate": 0.05,
        "sampler": PoissonSampler(0.3) if sampler is None else sampler,
        "clip": FlatClip(1.0),
        "noise": GaussianNoise(1.0),
        "expected_batch_size": 18,
    }
    return noisy_sgd(model, **(settings | parts))


def data(n=60, d=5):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def train(run, steps, loss=None, given=None, **how):
    for x, y in run.batches(data() if given is None else given, steps=steps, **how):
        each = cross_entropy(run.model(x), y, reduction="none")
        run.step(each if loss is None else loss(each, run.steps))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


# ---- D4: own loops -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "share",
    [
        lambda each: each / len(each) + 0,
        lambda each: (each * 2 / len(each)).clone(),
        lambda each: each * torch.full_like(each, 1 / len(each)) * 3,
        lambda each: each * torch.tensor(float(len(each))) - 1,
        lambda each: torch.stack([each / len(each), each], 1).sum(1),
    ],
)
def test_losses_divided_by_the_size_of_the_batch_are_found_in_a_few_steps(share):
    """Where no rehearsal refuses it (tests/attacks/test_resized.py)."""
    run = made(network())
    run.company.asleep = True
    told = pytest.raises(ModelNotPrivate, match="follows the size of the batch")
    with pytest.warns(UserWarning, match="guarantee is void"), told:
        train(run, 20, lambda each, step: share(each))
    assert run.ledger.released <= 10 and not run.record().private


def test_a_constant_or_a_schedule_is_no_division_by_the_size():
    run = made(network())
    train(run, 30, lambda each, step: each / 7.5 * (1 + 0.1 * step) / 18.25)
    assert run.steps == 30 and run.record().private


def test_batches_of_one_size_may_be_divided_by_it():
    """It is a constant then; since nobody says that it is public, there is a warning."""
    run = made(network(), FixedSizeSampler(12, 60), expected_batch_size=12)
    with pytest.warns(UserWarning, match="how many examples were drawn"):
        train(run, 10, lambda each, step: each / len(each) + 0)
    assert run.record().private


@pytest.mark.parametrize("fold", [torch.mean, torch.amax, torch.sum])
def test_a_detached_statistic_of_the_batch_is_warned_about(fold):
    """Where no rehearsal refuses it: the loop's own look is off."""
    run = made(network())
    run.company.asleep = True
    with pytest.warns(UserWarning, match="changes from batch to batch"):
        train(run, 5, lambda each, step: each / fold(each.detach(), 0) + 0)


@pytest.mark.parametrize(
    "mix",
    [
        lambda each: each - each.mean(),
        lambda each: each + 1e-6 * each.flip(0),
        lambda each: each * torch.softmax(each, 0),
        lambda each: torch.cat([each[:1] + each[-1:], each[1:]]),
    ],
)
def test_mixing_that_begins_late_is_found_at_once_where_the_computation_changes(mix):
    run = made(network(), FixedSizeSampler(16, 60))
    start = 25
    with pytest.raises(ModelNotPrivate, match="depends on the other examples"):
        train(run, start + 5, lambda each, step: mix(each) if step >= start else each)
    assert run.ledger.released == start
    assert not run.record().private
    assert any("depends on the other examples" in why for why in run.record().not_private_because)


def test_mixing_without_any_change_of_the_computation_is_found_by_chance():
    """The same operations all the time; only their values begin to mix. Looks come by chance."""
    torch.manual_seed(0)
    found = []
    for _ in range(5):
        run, weight = made(network(), FixedSizeSampler(8, 60)), 0.0
        run.gradients._probes._chance.seed(len(found))
        try:
            for x, y in run.batches(data(), steps=3000):
                weight = 1e-3 if run.steps > 20 else weight
                each = cross_entropy(run.model(x), y, reduction="none")
                run.step(each + weight * each.mean())
        except ModelNotPrivate:
            found.append(run.steps)
            assert not run.record().private
    # missed within 3,000 steps with probability (1 - CHANCE)^2980 < 1e-6 each
    assert len(found) == 5


def test_the_stated_chance_is_the_chance():
    probes = Probes()
    looks = sum(probes.due(conclusive=True) for _ in range(40_000))
    assert 100 < looks < 320  # 200 expected
    pairs = 0
    for _ in range(4000):
        weights = probes.half(10)
        pairs += bool(weights[3] > 0 and weights[7] == 0)
    assert CHANCE == 1 / 200 and 0.24 < pairs / 4000 < 0.32  # 5/18 in a batch of ten


@pytest.mark.parametrize("count", [2, 3, 7, 16, 33])
def test_the_first_look_sets_every_pair_apart(count):
    apart = torch.zeros(count, count, dtype=torch.bool)
    for weights in halves(count):
        apart |= (weights[:, None] > 0) & (weights[None, :] == 0)
    assert bool((apart | torch.eye(count, dtype=torch.bool)).all())


class Neighbours(nn.Module):
    """Two of the examples see each other, behind a trainable layer or before it."""

    def __init__(self, early):
        super().__init__()
        self.layer, self.early = nn.Linear(5, 2), early

    def forward(self, x):
        if self.early:
            x = torch.cat([x[:-1], x[-1:] + x[:1]])
            return self.layer(x)
        out = self.layer(x)
        return torch.cat([out[:-1], out[-1:] + 1e-4 * out[:1]])


def test_two_examples_that_see_each_other_are_found_at_the_first_batch():
    run = made(Neighbours(early=False), FixedSizeSampler(16, 60))
    with pytest.raises(ModelNotPrivate, match=r"other examples|mixes examples|example more"):
        train(run, 1)  # whichever of the two looks is first
    assert run.ledger.released == 0


def test_two_examples_that_see_each_other_before_the_first_layer_are_found_by_looks():
    torch.manual_seed(0)
    found = 0
    for _ in range(40):
        run = made(Neighbours(early=True), FixedSizeSampler(16, 60))
        try:
            train(run, 1)
        except ModelNotPrivate:
            found += 1
        run.close()
    assert found >= 2  # a quarter of the looks: fewer has probability 2e-4


class Sized(nn.Module):
    """Divides by the size of the batch where no gradient shows it."""

    def __init__(self):
        super().__init__()
        self.layer, self.dropout = nn.Linear(5, 2), nn.Dropout(0.1)

    def forward(self, x):
        return self.layer(self.dropout(x) / len(x))


def test_a_model_that_knows_the_size_of_its_batch_is_refused():
    run = made(Sized())
    with pytest.raises(ModelNotPrivate, match="an example more"):
        train(run, 3)
    assert run.ledger.released == 0


def test_a_zero_head_hides_nothing_for_long():
    """At first no gradient reaches the layer that mixes: the look is repeated."""
    torch.manual_seed(0)

    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(5, 4), nn.Linear(4, 2)
            nn.init.zeros_(self.head.weight)

        def forward(self, x):
            h = self.body(x)
            return self.head(h - h.mean(0).tanh())

    run = made(Mixing(), FixedSizeSampler(16, 60), learning_rate=0.5)
    with pytest.raises(ModelNotPrivate):
        train(run, 60)
    assert run.steps <= 40


# ---- D3: OneByOne --------------------------------------------------------------------------------
class Folded(nn.Module):
    """A mean over the batch behind a layer whose rows are not the examples."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(1, 3), nn.Linear(15, 2)

    def forward(self, x):
        h = self.layer(x.reshape(-1, 1))  # (5 B, 3)
        return self.head((h - h.mean(0)).reshape(len(x), -1))


def test_one_by_one_takes_one_example_at_a_time():
    run = made(Folded(), gradients=None)
    model = Folded()
    run = made(model, gradients=OneByOne(model))
    with pytest.raises((InvalidInput, ModelNotPrivate)):
        train(run, 1)
    assert run.ledger.released == 0
    x, y = data()
    engine, clip = OneByOne(model := Folded()), FlatClip(1.0)
    with pytest.raises(InvalidInput, match="micro_batch=1"):
        engine.clipped_sum(cross_entropy(model(x), y, reduction="none"), clip)


# ---- D5: as many examples as positions -----------------------------------------------------------
class Positions(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.tokens, self.places, self.how = nn.Embedding(11, 4), nn.Embedding(9, 4), how
        self.mix, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, ids):
        t = ids.shape[1]
        place = {
            "flat": lambda: self.places(torch.arange(t)),
            "through a layer": lambda: self.mix(self.places(torch.arange(t))),
            "sliced": lambda: self.places.weight[:t],
            "square": lambda: (
                (self.places.weight[:t] @ self.places.weight[:t].t()).softmax(1)
                @ self.places.weight[:t]
            ),
        }[self.how]()
        return self.head(torch.tanh(self.tokens(ids) + place).mean(1))


def token_losses(model, ids):
    return cross_entropy(model(ids), ids[:, 0] % 2, reduction="none")


@pytest.mark.parametrize("how", ["flat", "through a layer", "sliced", "square"])
@pytest.mark.parametrize("method", ["auto", "two-pass"])
def test_as_many_examples_as_positions(how, method):
    for count in (7, 4, 9, 2, 11, 1):
        torch.manual_seed(count)
        model = Positions(how)
        ids = torch.randint(0, 11, (count, 7))
        expected = loop_clipped_sum(model, token_losses, FlatClip(0.5), ids)
        found = Gradients(model, method).clipped_sum(token_losses(model, ids), FlatClip(0.5)).sums
        for mine, truth in zip(found, expected, strict=True):
            torch.testing.assert_close(mine.float(), truth, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("how", ["flat", "through a layer"])
def test_runs_whose_batches_are_as_long_as_their_sequences(how):
    ids = torch.randint(0, 11, (40, 7), generator=torch.Generator().manual_seed(0))
    given = (ids, ids[:, 0] % 2)
    for sampler in (FixedSizeSampler(7, 40), PoissonSampler(0.18)):
        torch.manual_seed(0)
        run = made(Positions(how), sampler, expected_batch_size=7)
        run.gradients._probes.due = lambda conclusive: True  # every batch is looked at
        train(run, 40, given=given)
        assert run.steps == 40 and run.record().private


class WithPlaces(nn.Module):
    """Positions as an argument of the model itself."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places, self.head = (
            nn.Embedding(11, 4),
            nn.Embedding(9, 4),
            nn.Linear(4, 2),
        )

    def forward(self, ids, places):
        return self.head(torch.tanh(self.tokens(ids) + self.places(places)).mean(1))


def test_an_argument_as_long_as_the_batch_is_no_mixing():
    torch.manual_seed(0)
    ids = torch.randint(0, 11, (40, 7))
    run = made(WithPlaces(), FixedSizeSampler(7, 40), expected_batch_size=7)
    for x in run.batches(ids, steps=5):
        run.step(cross_entropy(run.model(x, torch.arange(7)), x[:, 0] % 2, reduction="none"))
    assert run.steps == 5 and run.record().private


def test_real_mixing_is_still_refused_at_such_sizes():
    class Mixed(Positions):
        def forward(self, ids):
            h = self.tokens(ids).mean(1)  # (B, 4)
            scores = (h @ h.t()).softmax(1)
            return self.head(scores @ h + self.places(torch.arange(ids.shape[1])).mean(0))

    for count in (7, 4):
        model = Mixed("flat")
        ids = torch.randint(0, 11, (count, 7))
        with pytest.raises(ModelNotPrivate, match="depends on the other examples"):
            Gradients(model).clipped_sum(token_losses(model, ids), FlatClip(0.5))


def test_the_trainer_looks_again():
    """A loss that begins to mix in the middle of the training, in the Trainer."""
    calls = [0]

    def loss(out, y):
        calls[0] += 1
        each = cross_entropy(out, y, reduction="none")
        return each if calls[0] < 40 else each + each.mean()

    run = made(network())
    with pytest.raises(ModelNotPrivate):
        Trainer(run, loss, delta=1e-5, progress=False).fit(data(), steps=200)
    assert not run.record().private
