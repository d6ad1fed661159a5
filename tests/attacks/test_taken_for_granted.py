"""What a recorded step takes for granted: an attacker's 330 cases, those that were wrong.

A recorded step gives the sum of the slow loop, or another way is gone and said, or it is refused.
"""

from __future__ import annotations

import random
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import prune

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train import FlatClip, GaussianNoise, Gradients, PoissonSampler, noisy_sgd
from tightrope.train.gradients import ClippedBatch
from tightrope.train.gradients.reference import loop_clipped_sum
from tightrope.train.gradients.traced import Traced
from tightrope.train.held import traceless
from tightrope.train.padded import PaddedBatch, Program
from tightrope.train.row_places import OutOfPlace

CLIP = FlatClip(0.1)


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    """What is traced is what would be compiled."""
    monkeypatch.setattr(Traced, "compile", lambda self: None)


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))


def data():
    torch.manual_seed(3)
    return torch.randn(40, 5), torch.randint(0, 3, (40,))


def made(model, *, asleep=True, **parts):
    how = {"sampler": PoissonSampler(0.3, seed=1), "clip": CLIP, "noise": GaussianNoise(0.0)}
    run = noisy_sgd(model, learning_rate=0.0, expected_batch_size=1, **(how | parts))
    run.company.asleep = asleep  # loops are rehearsed, and much is found so: here by what is left
    return run


def flat(tensors):
    return torch.cat([t.detach().double().reshape(-1) for t in tensors])


def follow(run, losses, *, between=None, args=lambda number, *batch: batch, rows=None, steps=5):
    """Every step has the sum of the slow loop; the step, to be asked for its mode."""
    step = run.compile(lambda *batch: losses(run.model, *batch), size=20)
    for number, batch in enumerate(run.batches(rows or data(), steps=steps)):
        if number == 2 and between is not None:
            between(run.model)
        given = args(number, *batch)
        with traceless(run.model):
            truth = flat(loop_clipped_sum(run.model, losses, CLIP, *given))
        run.gradients.forget()
        found = flat(step(*given).sensitive.batch.sums)
        assert float((found - truth).norm()) <= 1e-4 * float(truth.norm())
    return step


def plain(model, x, y, *_):
    return cross_entropy(model(x), y, reduction="none")


# ---- the order of rows ---------------------------------------------------------------------------


def flipped(model, x, y):
    return plain(model, x.flip(0), y.flip(0))


def by_length(model, x, y):
    order = x[:, 0].argsort()
    return plain(model, x[order], y[order])


@pytest.mark.parametrize("losses", [flipped, by_length])
def test_losses_in_another_order_than_the_rows(losses):
    """What fills up a batch would be counted in the place of its last examples."""
    run = made(network(), asleep=False)
    step = run.compile(lambda *batch: losses(run.model, *batch), size=32)
    with pytest.raises(ModelNotPrivate):
        for batch in run.batches(data(), steps=3):
            step(*batch)
    assert run.ledger.released == 0
    with pytest.warns(UserWarning, match="put in other places"):
        run = made(network())
        step = run.compile(lambda *batch: losses(run.model, *batch), size=32)
        for x, y in run.batches(data(), steps=3):
            truth = flat(loop_clipped_sum(network(), plain, CLIP, x, y))
            found = flat(step(x, y).sensitive.batch.sums)
            assert float((found - truth).norm()) <= 1e-4 * float(truth.norm())


def turned(change):
    """A program on numbers, whose answers do not stay in their rows."""

    def compute(batch, present):
        rows = batch[0][:, 0]
        squares = change(rows.square())
        finite = squares.masked_fill(squares.isnan(), torch.inf)
        total = (change(rows) * present).sum()[None]
        found = ClippedBatch((total,), len(rows), finite, torch.ones(1, len(rows)), 0, finite.sum())
        return found, change(rows).clone()

    return compute


@pytest.mark.parametrize(
    "values", [[1.0, 2, 3], [1, 2, 5e4, 3], [1, torch.nan, 2, 3], [1, 1.2, 1.1]]
)
def test_what_fills_up_is_where_it_was_put(values):
    """Whatever one record is: as large as you like, or no number."""
    x = torch.tensor(values)[:, None]
    for change, right in ((lambda v: v, True), (lambda v: v.flip(0), False)):
        program = Program(turned(change), PaddedBatch((x,), 7))
        program.steady = True
        if right:
            program.run((x,))
            continue
        with pytest.raises(OutOfPlace):
            program.run((x,))


@pytest.mark.parametrize("losses", ["by_list", "by_function", "by_thread"])
@pytest.mark.parametrize("alike", [False, True])
def test_a_first_batch_that_shows_little(losses, alike):
    """Of one row, or of equal ones: nothing of it may live on."""
    sampler = PoissonSampler(0.06, seed=2) if not alike else PoissonSampler(0.3, seed=1)
    run, number = made(network(), sampler=sampler), 0
    step = run.compile(lambda *batch: globals()[losses](run.model, *batch), size=20)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*could not be compiled")
        for x, y in run.batches(data(), steps=6):
            if len(x) == 0:
                run.step_empty()
                continue
            if alike and number == 0:
                x, y = x[:1].expand_as(x).clone(), y[:1].expand_as(y).clone()
            with traceless(run.model):
                truth = flat(loop_clipped_sum(run.model, globals()[losses], CLIP, x, y))
            run.gradients.forget()
            found = flat(step(x, y).sensitive.batch.sums)
            assert float((found - truth).norm()) <= 1e-4 * float(truth.norm())
            number += 1


def cut(model, x, y):
    most = 1 + max(y.tolist())
    return plain(model, x * (torch.arange(5) < most), y)


def weighed_aside(model, x, y):
    found = []
    thread = threading.Thread(target=lambda: found.append(1.0 + y))
    thread.start()
    thread.join()
    return plain(model, x, y) * found[0]


@pytest.mark.parametrize("losses", [cut, weighed_aside])
def test_a_first_batch_of_one_label(losses):
    """Its rows differ, and what is read of them does not."""

    def args(number, x, y):
        return x, y if number else torch.ones_like(y)

    with pytest.warns(UserWarning, match="could not be compiled"):
        step = follow_whole(made(network()), losses, args)
    assert step.mode.startswith("eager")


def follow_whole(run, losses, args):
    """Against the eager sum of the whole batch: what is cut follows the longest of it."""
    step = run.compile(lambda *batch: losses(run.model, *batch), size=20)
    for number, batch in enumerate(run.batches(data(), steps=4)):
        x, y = args(number, *batch)
        mine = network()
        truth = flat(Gradients(mine).clipped_sum(losses(mine, x, y), CLIP).sums)
        found = flat(step(x, y).sensitive.batch.sums)
        assert float((found - truth).norm()) <= 1e-4 * float(truth.norm())
    return step


def test_a_buffer_may_be_as_long_as_the_batch():
    class Held(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 3)
            self.register_buffer("table", torch.randn(20, 5))

        def forward(self, x):
            return self.linear(x + self.table.sum(0))

    torch.manual_seed(0)
    assert follow(made(Held()), plain).mode == "compiled"
    assert "tolist" not in torch.Tensor.__dict__


class Sorts(nn.Module):
    """By its first number, and back; as long as these are equal no row moves."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 4), nn.Linear(4, 3)

    def forward(self, x):
        order = x[:, 0].argsort(stable=True)
        return self.b(self.a(x).tanh()[order])[order.argsort()]


def test_rows_that_are_moved_once_the_step_is_recorded():
    run = made(Sorts())
    step = run.compile(lambda *batch: plain(run.model, *batch), size=32)
    batches = run.batches(data(), steps=4)
    x, y = next(batches)
    x[:, 0] = 1.0
    with pytest.warns(UserWarning, match="chooses rows"):
        step(x, y)
    with pytest.raises(ModelNotPrivate, match="depends on the other examples"):
        for batch in batches:
            step(*batch)


# ---- values that are read on the way -------------------------------------------------------------


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()


def by_list(model, x, y):
    weights = [0.5, 1.0, 2.0]
    return plain(model, x, y) * torch.tensor([weights[label] for label in y.tolist()])


def by_numpy(model, x, y):
    return plain(model, x, y) * torch.from_numpy(1.0 + y.numpy() % 2).float()


def by_function(model, x, y):
    return plain(model, Sine.apply(x), y)


def by_thread(model, x, y):
    found = []
    thread = threading.Thread(target=lambda: found.append(x * x))
    thread.start()
    thread.join()
    return plain(model, found[0], y)


def by_python_chance(model, x, y):
    return plain(model, -x if random.random() < 0.5 else x, y)


def by_small_chance(model, x, y):
    return plain(model, x, y) * (1.0 + 1e-4 * np.random.rand())  # noqa: NPY002


CHANCES = (by_python_chance, by_small_chance)


@pytest.mark.parametrize("losses", [by_list, by_numpy, by_function, by_thread, *CHANCES])
def test_values_of_the_first_batch_do_not_live_on(losses):
    """Not in the sums, and not as data of records that no later step has counted."""
    run = made(network())
    with pytest.warns(UserWarning, match="could not be compiled"):
        if losses in CHANCES:
            step = run.compile(lambda *batch: losses(run.model, *batch), size=20)
            for batch in run.batches(data(), steps=2):
                step(*batch)
        else:
            step = follow(run, losses)
    assert step.mode.startswith("eager")


@pytest.mark.parametrize("change", [lambda h: h - h.mean(0, keepdim=True), lambda h: 2 * h])
def test_a_model_that_does_something_else_when_it_is_compiled(change):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(5, 4), nn.Linear(4, 3)

        def forward(self, x):
            h = self.a(x)
            if torch.compiler.is_compiling():
                return self.b(change(h))
            float(x.sum())  # which no trace can follow
            return self.b(h - h.mean(1, keepdim=True))

    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="could not be compiled"):
        follow(made(Two()), plain)


def test_a_model_that_is_told_may_draw_in_another_order():
    """Attention with a mask takes other kernels than without, and drops other numbers."""

    class Told(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.drop = nn.Linear(5, 4), nn.Linear(4, 3), nn.Dropout(0.5)

        def forward(self, x):
            if not torch.compiler.is_compiling():
                float(x.sum())  # which no trace can follow
                return self.b(self.drop(self.a(x)))
            return self.b(self.drop(self.a(x).t()).t())

    torch.manual_seed(0)
    run = made(Told())
    step = run.compile(lambda *batch: plain(run.model, *batch), size=20)
    for batch in run.batches(data(), steps=3):
        step(*batch)
    assert step.mode == "compiled"


# ---- what changes between steps ------------------------------------------------------------------


def doubled(module, args, out):
    return 2 * out


def replaced(model):
    model[1] = nn.Sigmoid()


def inserted(model):
    model.insert(1, nn.Softplus())


def given_forward(model):
    model[1].forward = torch.relu


def hooked(model):
    model[1].register_forward_hook(doubled)


class Acts(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = torch.tanh

    def forward(self, x):
        return self.act(x)


CHANGES = {
    "a function": lambda model: setattr(model[2], "act", torch.sin),
    "replaced": replaced,
    "inserted": inserted,
    "forward": given_forward,
    "hooked": hooked,
    "hook in front": lambda model: model[1].register_forward_pre_hook(lambda m, x: (3 * x[0],)),
    "a number": lambda model: setattr(model[3], "negative_slope", 0.9),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_of_the_model_are_seen(change):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), Acts(), nn.LeakyReLU(), nn.Linear(6, 3))
    step = follow(made(model), plain, between=change)
    assert step.mode == "compiled"


def frozen(model):
    model[0].weight.register_hook(lambda g: 0 * g)


def pruned(model):
    prune.random_unstructured(model[0], "weight", 0.5)


@pytest.mark.parametrize("change", [frozen, pruned])
def test_changes_that_no_rule_follows_are_refused(change):
    with pytest.raises(ModelNotPrivate, match=r"hook|another `weight`"):
        follow(made(network()), plain, between=change)


def test_a_step_is_not_recorded_again_and_again():
    run = made(network())
    run.model[1].slope = 0.0
    step = run.compile(lambda *batch: plain(run.model, *batch), size=20)
    with pytest.warns(UserWarning, match="again and again"):
        for batch in run.batches(data(), steps=15):
            run.model[1].slope += 0.1
            step(*batch)


def test_a_counter_counts_steps():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 3)
            self.register_buffer("passes", torch.zeros(()))

        def forward(self, x):
            self.passes += 1
            return self.linear(x)

    run = made(Counts())
    step = run.compile(lambda *batch: plain(run.model, *batch), size=20)
    for batch in run.batches(data(), steps=6):
        step(*batch)
    assert step.mode == "compiled" and float(run.model.passes) == 6


# ---- what comes with the batch -------------------------------------------------------------------


def scaled(model, x, y, factor):
    return plain(model, x, y) * factor


def with_lengths(model, x, y, lengths):
    return plain(model, x, y) * sum(lengths)


def one_of_two(model, x, y, a, b):
    return plain(model, x if a is None else 2 * x, y)


@pytest.mark.filterwarnings("ignore:A batch has other shapes")
@pytest.mark.parametrize(
    ("losses", "more"),
    [
        (scaled, lambda number, x: (1.0 + number,)),
        (with_lengths, lambda number, x: ([1, number],)),
        (one_of_two, lambda number, x: (x, None) if number % 2 else (None, x)),
    ],
)
def test_what_is_no_tensor_is_that_of_its_own_batch(losses, more):
    def args(number, x, y):
        return x, y, *more(number, x)

    follow(made(network()), losses, args=args)


def test_other_batches_are_said_once():
    run = made(network())
    step = run.compile(lambda *batch: scaled(run.model, *batch), size=20)
    with pytest.warns(UserWarning, match="other shapes, names or values") as told:
        for number, (x, y) in enumerate(run.batches(data(), steps=4)):
            step(x, y, number)
    assert len(told) == 1


def test_texts_may_come_along_unread():
    named = {"a": "one", "b": "two"}

    def losses(model, x, y, texts):
        return plain(model, x, y)

    def reads(model, x, y, texts):
        return plain(model, x, y) * torch.tensor([float(text == "a") for text in texts])

    def args(number, x, y):
        return x, y, [random.Random(i + number).choice(sorted(named)) for i in range(len(x))]

    assert follow(made(network()), losses, args=args).mode == "compiled"
    with pytest.warns(UserWarning, match="read texts"):
        run = made(network())
        step = run.compile(lambda *batch: reads(run.model, *batch), size=20)
        for number, batch in enumerate(run.batches(data(), steps=2)):
            step(*args(number, *batch))


class Pair(tuple):
    """None that PyTorch's trees know."""


class Given(nn.Module):
    """A module of its own, with a parameter that no rule knows, and a pair as its argument."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, pair):
        return torch.matmul(pair[0], self.weight.cos()) * pair[1]


class Gives(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.own, self.last = nn.Linear(5, 4), Given(), nn.Linear(4, 3)

    def forward(self, x):
        h = self.first(x)
        return self.last(self.own(Pair((h, h.sin()))))


@pytest.mark.filterwarnings("ignore:.*could not be compiled")
def test_arguments_that_a_trace_cannot_open():
    torch.manual_seed(0)
    try:
        follow(made(Gives()), plain)
    except (ModelNotPrivate, InvalidInput) as error:
        assert "OneByOne" in str(error)


def test_a_batch_that_the_model_changes_is_loaded_again():
    """Where an example is not finite the step runs twice."""
    x = torch.arange(1.0, 5.0)[:, None]
    x[1] = torch.nan

    def compute(batch, present):
        (rows,) = batch
        rows.mul_(2.0)
        squares = rows.square().sum(1).masked_fill(~present, 0.0)
        health = squares.masked_fill(squares.isnan(), torch.inf).sum()
        total = (rows * present[:, None]).sum(0)
        squares = squares.masked_fill(squares.isnan(), torch.inf)
        return ClippedBatch((total,), 4, squares, torch.ones(1, 4), 0, health), rows[:, 0].clone()

    found, _ = Program(compute, PaddedBatch((x,), 4)).run((x,))
    assert found.nonfinite == 1
    assert float(found.sums[0]) == 2 * (1 + 3 + 4)
