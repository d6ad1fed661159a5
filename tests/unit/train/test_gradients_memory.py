"""What a form holds, and that it lets go of it."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils import _pytree as tree
from torch.utils._python_dispatch import TorchDispatchMode

from tightrope.train.gradients import batch as bundles
from tightrope.train.gradients.convolution import Convolution, Patches
from tightrope.train.gradients.forms import chained_product, chained_total
from tightrope.train.gradients.outer import Outer

# A kernel of few taps over a large image: the gradient is much smaller than what it is made from.
SMALL = Convolution(torch.Size((4, 3, 2, 2)), (1, 1), (0, 0), (1, 1), 1)
# Few positions and many taps: the other way round.
LARGE = Convolution(torch.Size((40, 30, 3, 3)), (1, 1), (1, 1), (1, 1), 1)


def memory_of(tensor):
    return weakref.ref(tensor.untyped_storage())


class Alive(TorchDispatchMode):
    """The most bytes that results of operations took at one time."""

    def __init__(self):
        super().__init__()
        self.most, self._held = 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for value in tree.tree_leaves(out):
            if isinstance(value, torch.Tensor):
                self._count(value.untyped_storage())
        return out

    def _count(self, storage):
        if storage.data_ptr() not in self._held:
            self._held[storage.data_ptr()] = storage.nbytes()
            weakref.finalize(storage, self._held.pop, storage.data_ptr())
            self.most = max(self.most, sum(self._held.values()))


def peak_of(compute):
    with Alive() as alive:
        compute()
    return alive.most


def settled(convolution, side, out):
    outputs, inputs = convolution.weight_shape[:2]
    x, g = torch.randn(2, inputs, side, side), torch.randn(2, outputs, out, out)
    memories = [memory_of(x), memory_of(g)]
    form = Patches(x, g, convolution)
    form.settle()
    return form, memories


def test_small_gradients_replace_the_images_they_come_from():
    form, memories = settled(SMALL, 12, 11)
    assert [memory() for memory in memories] == [None, None]
    assert form.dense().shape == (2, 4, 3, 2, 2)
    torch.testing.assert_close(form.squared_norms(), form.dense().flatten(1).square().sum(1))


def test_large_gradients_wait():
    _, memories = settled(LARGE, 3, 3)
    assert all(memory() is not None for memory in memories)


def products(sizes, batch=3):
    torch.manual_seed(0)
    return {
        row: Outer(*(torch.randn(batch, 5, n).bfloat16() for n in size))
        for row, size in enumerate(sizes)
    }


def test_bundled_products_are_those_of_each_layer_and_free_their_operands():
    group = products([(8, 16), (7, 5), (24, 8)])
    expected = {row: torch.bmm(f.g.transpose(1, 2), f.a) for row, f in group.items()}
    memories = [memory_of(t) for form in group.values() for t in (form.a, form.g)]
    bundle = bundles._multiplied(group)
    assert not group
    assert [memory() for memory in memories] == [None] * 6
    for row, gradients in enumerate(expected.values()):
        for example in range(3):
            parts = bundle.split(bundle.form.values[example])
            torch.testing.assert_close(parts[row], gradients[example])
    squares = sum(g.double().flatten(1).square().sum(1) for g in expected.values())
    torch.testing.assert_close(bundle.form.squared_norms().double(), squares, rtol=1e-5, atol=0)


@pytest.mark.parametrize(("room", "count"), [(2**29, 1), (2 * 3 * 8 * 8, 5), (2 * 3 * 8 * 24, 2)])
def test_bundles_hold_what_there_is_room_for(monkeypatch, room, count):
    monkeypatch.setattr(bundles, "_LARGEST_BUFFER", room)
    monkeypatch.setattr(Outer, "stored_in_half", True)
    forms = products([(8, 8)] * 5)
    made = bundles._bundle_products(forms)
    assert not forms
    assert len(made) == count
    assert [part.row for bundle in made for part in bundle.parts] == list(range(5))


def test_bundles_begin_with_the_layers_that_free_the_most(monkeypatch):
    monkeypatch.setattr(Outer, "stored_in_half", True)
    lengths = [3, 50, 7, 20]
    forms = {
        row: Outer(*(torch.randn(2, length, 8).bfloat16() for _ in range(2)))
        for row, length in enumerate(lengths)
    }
    monkeypatch.setattr(bundles, "_LARGEST_BUFFER", 2 * 2 * 2 * 8 * 8)
    made = bundles._bundle_products(forms)
    assert [[part.row for part in bundle.parts] for bundle in made] == [[1, 3], [2, 0]]


@pytest.mark.parametrize("chain", [0, 5, 15, 20, 64])
def test_sums_in_chains_take_no_more_than_a_few_copies_of_what_is_summed(chain):
    left, right = torch.randn(4099, 96), torch.randn(4099, 160)
    factors = torch.rand(4099)
    most = 4 * (left.nbytes + right.nbytes)
    assert peak_of(lambda: chained_product(left, right, chain)) < most
    assert peak_of(lambda: chained_total(right, factors, chain)) < most
    truth = left.double().t() @ right.double()
    torch.testing.assert_close(chained_product(left, right, chain).double(), truth, rtol=1e-5,
                               atol=1e-4)  # fmt: skip
    total = (right.double() * factors[:, None].double()).sum(0)
    torch.testing.assert_close(chained_total(right, factors, chain).double(), total, rtol=1e-5,
                               atol=1e-4)  # fmt: skip
