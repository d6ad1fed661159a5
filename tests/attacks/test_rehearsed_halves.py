"""Half of a batch alone: sound loops that one look would deceive, and what a loop that is left in
the middle of a rehearsal leaves behind.
"""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from tightrope.train import PoissonSampler
from tightrope.train.feed import as_rows, rows_at
from tightrope.train.gradients.rounding import ExactLayers, exact_products, precision_of_products
from tightrope.train.scenes import Scene

sys.path.insert(0, str(Path(__file__).parent))
import small_loops
from small_loops import X, Y, each, rehearse_every_batch


def made(model=None, rate=0.1):
    sampler = PoissonSampler(rate)
    run = small_loops.made(model, sampler=sampler, expected_batch_size=400 * rate)
    rehearse_every_batch(run)
    return run


def train(run, loss, steps=12):
    small_loops.train(run, loss, steps)
    assert run.steps == steps and run.record().private


# ---- sound loops --------------------------------------------------------------------------------
class Named(torch.utils.data.Dataset):
    """Items with a text, which default_collate leaves in a list."""

    def __len__(self):
        return 400

    def __getitem__(self, index):
        return {"x": X[index], "y": Y[index], "name": f"n{index}"}


@pytest.mark.parametrize("rate", [0.1, 0.002])
def test_texts_come_with_their_examples(rate):
    run, weights = made(rate=rate), {f"n{i}": 1.0 + i % 3 for i in range(400)}
    for batch in run.batches(Named(), steps=8):
        assert len(batch["name"]) == len(batch["x"])
        weight = torch.tensor([weights[name] for name in batch["name"]])
        run.step(each(run.model, batch["x"], batch["y"]) * weight)
    assert run.steps == 8


def test_texts_are_taken_where_there_is_one_for_each_example():
    batch = [torch.arange(3), ("a", "b", "c"), {"classes": ["cat", "dog"]}]
    numbers, names, rest = rows_at(batch, 3, [2, 0])
    assert numbers.tolist() == [2, 0] and names == ("c", "a")
    assert rest == {"classes": ["cat", "dog"]}


def test_an_empty_batch_has_no_texts():
    assert as_rows(Named()).take(torch.zeros(0, dtype=torch.long).numpy())["name"] == []


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.own = nn.Linear(5, 2), torch.Generator().manual_seed(1)

    def forward(self, x):
        return self.layer(x + 0.1 * torch.randn(x.shape, generator=self.own))


def test_a_model_may_draw_from_a_generator_of_its_own():
    train(made(Noisy()), each)


def erased(model, x, y):
    """Rarely an example is erased: two looks in three see nothing of it."""
    torch.rand(len(x))
    return each(model, torch.where(torch.rand(len(x), 1) < 0.06, 0.0, x), y)


def negated(model, x, y):
    for _ in x:
        random.random()
    signs = torch.tensor([-1.0 if random.random() < 0.06 else 1.0 for _ in x]).reshape(-1, 1)
    return each(model, x * signs, y)


@pytest.mark.parametrize("loss", [erased, negated])
def test_draws_that_rarely_matter_are_no_alarm(loss):
    train(made(rate=0.03), loss, steps=40)


def test_gradients_that_are_all_the_same_do_not_cancel():
    """What were left of them is rounding, which differs between batches of different sizes."""
    company = made().company
    signs = [company._signs(Scene(None, size, list(range(size)))) for size in (1, 2, 4, 6) * 25]
    assert all(abs(float(each.sum())) >= 1 for each in signs)


@pytest.mark.filterwarnings("ignore:The loop gives the same batch other losses")
def test_a_loop_may_count_batches_by_itself():
    run = made()
    for count, (x, y) in enumerate(run.batches((X, Y), steps=6)):
        run.step(each(run.model, x, y) * (2.0 if count % 9 == 0 else 1.0))
    assert run.steps == 6


# ---- what is left behind ------------------------------------------------------------------------
@pytest.fixture
def lower():
    torch.set_float32_matmul_precision("high")
    yield precision_of_products()
    torch.set_float32_matmul_precision("highest")


def left(run, place):
    """A loop that is left, and held, in the middle of a rehearsal."""
    loop = run.batches((X, Y), steps=3)
    for number, (x, y) in enumerate(loop):
        if number == place:
            return loop
        run.step(each(run.model, x, y))
    raise AssertionError


def test_an_abandoned_rehearsal_leaves_precision_and_modes(lower):
    run = made()
    loop, hooks = left(run, 5), len(run.model._forward_pre_hooks)
    assert precision_of_products() != lower  # the rehearsal is under way
    run.abandon_batch()
    assert precision_of_products() == lower and all(m.training for m in run.model.modules())
    assert len(run.model._forward_pre_hooks) == hooks - 1
    again = left(run, 5)
    del loop  # which ends now, and must not end the other one's
    assert precision_of_products() != lower
    again.close()
    assert precision_of_products() == lower and all(m.training for m in run.model.modules())
    run.close()


def test_a_loop_that_is_left_leaves_precision_and_modes(lower):
    run = made()
    left(run, 5)
    assert precision_of_products() == lower and all(m.training for m in run.model.modules())


def test_a_loop_may_wait_for_another_thread():
    def work():
        with exact_products():
            pass

    def loss(model, x, y):
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        return each(model, x, y)

    train(made(), loss, steps=2)


@pytest.mark.parametrize("precision", ["high", "highest"])
def test_a_loop_may_ask_for_settings_and_set_them(precision):
    torch.set_float32_matmul_precision(precision)

    def loss(model, x, y):
        assert isinstance(torch.backends.cuda.matmul.allow_tf32, bool)
        assert torch.get_float32_matmul_precision() in ("high", "highest")
        with torch.backends.cudnn.flags(enabled=False):
            return each(model, x, y)

    try:
        train(made(), loss, steps=2)
        assert torch.get_float32_matmul_precision() == precision
    finally:
        torch.set_float32_matmul_precision("highest")


def test_two_may_hold_the_precision_and_end_in_any_order(lower):
    layers = torch.backends.cudnn.allow_tf32
    one, two = ExactLayers(), ExactLayers()
    one.end()
    one.end()
    assert precision_of_products() != lower and not torch.backends.cudnn.allow_tf32
    two.end()
    assert precision_of_products() == lower and torch.backends.cudnn.allow_tf32 == layers


# ---- several ranks ------------------------------------------------------------------------------
RANKS = {"plain": "trained", "collate": "trained", "divided": "refused"}


@pytest.fixture(scope="module")
def ranks(torchrun):
    return torchrun(Path(__file__).with_name("halves_ranks_worker.py"), *RANKS)


@pytest.mark.parametrize("kind", RANKS)
def test_all_ranks_rehearse_as_many_batches_and_refuse_together(ranks, kind):
    """In a loop that waits for the other ranks at every batch; some of them are empty."""
    told = sorted(line for line in ranks.stdout.splitlines() if f" {kind} " in line)
    wanted = [f"rank {rank} {kind} {RANKS[kind]}" for rank in range(2)]
    assert told == wanted, ranks.stdout + ranks.stderr
