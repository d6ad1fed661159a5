"""What a form holds, and that it lets go of it."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn
from torch.utils import _pytree as tree
from torch.utils._python_dispatch import TorchDispatchMode

from tightrope.train import FlatClip, Gradients, StandardConv2d, SymmetricConv2d
from tightrope.train.gradients import passes
from tightrope.train.gradients.batch import Factors
from tightrope.train.gradients.chains import chained_product, chained_total
from tightrope.train.gradients.forms import Convolution, Outer, Patches, TableRows
from tightrope.train.gradients.forms import bundle as bundles

# A kernel of few taps over a large image: the gradient is much smaller than what it is made from.
SMALL = Convolution(torch.Size((4, 3, 2, 2)), (1, 1), (0, 0), (1, 1), 1)
# Few positions and many taps: the other way round.
LARGE = Convolution(torch.Size((40, 30, 3, 3)), (1, 1), (1, 1), (1, 1), 1)


def memory_of(tensor):
    return weakref.ref(tensor.untyped_storage())


class Alive(TorchDispatchMode):
    """The most bytes that results of operations held at one time."""

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
    held = [memory_of(x), memory_of(g)]
    form = Patches(x, g, convolution)
    form.settle()
    return form, held


def test_small_gradients_replace_the_images_they_come_from():
    form, held = settled(SMALL, 12, 11)
    assert [memory() for memory in held] == [None, None]
    assert form.dense().shape == (2, 4, 3, 2, 2)
    torch.testing.assert_close(form.squared_norms(), form.dense().flatten(1).square().sum(1))


def test_large_gradients_wait():
    _, held = settled(LARGE, 3, 3)
    assert all(memory() is not None for memory in held)


def products(sizes, batch=3):
    torch.manual_seed(0)
    return {
        row: Outer(*(torch.randn(batch, 5, n).bfloat16() for n in size))
        for row, size in enumerate(sizes)
    }


def test_bundled_products_are_those_of_each_layer_and_free_their_operands():
    group = products([(8, 16), (7, 5), (24, 8)])
    expected = {row: torch.bmm(f.g.transpose(1, 2), f.a) for row, f in group.items()}
    held = [memory_of(t) for form in group.values() for t in (form.a, form.g)]
    bundle = bundles._multiplied(group)
    assert not group
    assert [memory() for memory in held] == [None] * 6
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
    assert [row for bundle in made for row in bundle.rows] == list(range(5))


def test_bundles_begin_with_the_layers_that_free_the_most(monkeypatch):
    monkeypatch.setattr(Outer, "stored_in_half", True)
    lengths = [3, 50, 7, 20]
    forms = {
        row: Outer(*(torch.randn(2, length, 8).bfloat16() for _ in range(2)))
        for row, length in enumerate(lengths)
    }
    monkeypatch.setattr(bundles, "_LARGEST_BUFFER", 2 * 2 * 2 * 8 * 8)
    made = bundles._bundle_products(forms)
    assert [bundle.rows for bundle in made] == [[1, 3], [2, 0]]


@pytest.mark.parametrize("padded", [False, True])
def test_layers_handled_during_the_backward_pass_have_the_same_sums(monkeypatch, padded):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2),
        nn.Flatten(2), nn.LayerNorm(16), nn.Conv1d(4, 3, 2), nn.Flatten(), nn.Linear(45, 1),
    )  # fmt: skip
    engine, clip = Gradients(model), FlatClip(0.1)
    x = torch.randn(5, 2, 10, 10)
    expected = engine.clipped_sum(model(x).flatten(), clip)
    monkeypatch.setattr(passes, "_LARGE_INPUT", 0)
    present = torch.ones(5, dtype=torch.bool) if padded else None
    found = engine.clipped_sum(model(x).flatten(), clip, present=present)
    for one, other in zip(found.sums, expected.sums, strict=True):
        torch.testing.assert_close(one, other)


def test_casting_hooks_come_with_autocast_and_go_with_the_engine():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    engine, x = Gradients(model), torch.randn(2, 4)
    engine.clipped_sum(model(x).flatten(), FlatClip(1.0))
    assert not any(layer._forward_pre_hooks for layer in model)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            losses = model(x).flatten()
        engine.clipped_sum(losses.float(), FlatClip(1.0))
    assert [len(layer._forward_pre_hooks) for layer in model] == [1, 0]  # the second reads half
    engine.detach()
    assert not any(layer._forward_pre_hooks or layer._forward_hooks for layer in model)


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


class Blocks(nn.Module):
    """Words, then blocks of wide layers over their positions with norms and learned scales."""

    def __init__(self, depth):
        super().__init__()
        self.words, self.places = nn.Embedding(3000, 8), nn.Embedding(40, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(depth))
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(depth))
        self.scales = nn.ParameterList(nn.Parameter(torch.rand(1, 8)) for _ in range(depth))
        self.head = nn.Linear(8, 1)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1])[None])
        for norm, layer, scale in zip(self.norms, self.layers, self.scales, strict=True):
            x = x + scale * layer(norm(x)).tanh()
        return self.head(x.mean(1)).flatten()


def two_ways(model, ids):
    """The eager step, and the one that goes by a trace."""
    engine, clip = Gradients(model), FlatClip(0.1)
    present = torch.ones(len(ids), dtype=torch.bool)

    def eager():
        return engine.clipped_sum(model(ids), clip, chain=100)

    eager()
    traced = engine.traced(model, (ids,))
    how = {"present": present, "chain": 100}
    return eager, lambda: engine.clipped_sum_of(traced, (ids,), clip, **how)[0]


@pytest.mark.parametrize("way", [0, 1], ids=["eager", "traced"])
def test_forms_go_one_by_one_and_tables_are_summed_last(monkeypatch, way):
    torch.manual_seed(0)
    step = two_ways(Blocks(3), torch.randint(0, 3000, (6, 30)))[way]
    earlier, tables, own = [], [], Factors.sum

    def spied(self, form, row):
        assert [kind for kind, memory in earlier if memory() is not None] == []
        earlier.append((type(form), weakref.ref(form)))
        tables.append(isinstance(form, TableRows))
        return own(self, form, row)

    monkeypatch.setattr(Factors, "sum", spied)
    step()
    assert any(tables)
    assert tables == sorted(tables)


@pytest.mark.parametrize("way", [0, 1], ids=["eager", "traced"])
def test_a_pass_keeps_of_norms_and_scales_only_what_is_summed(monkeypatch, way):
    monkeypatch.setattr(passes, "_LARGE_INPUT", 0)
    torch.manual_seed(0)
    ids = torch.randint(0, 3000, (16, 40))
    few, many = (peak_of(two_ways(Blocks(depth), ids)[way]) for depth in (2, 12))
    image = 4 * 16 * 40 * 8  # bytes of what a layer reads or gives
    # Of a block stay what its layer read and the gradient of what it gave. Before the pass there
    # are the inputs of norm, layer and product, and what tanh gave.
    assert (many - few) / 10 < 6 * image


@pytest.mark.parametrize("kind", [nn.Conv2d, StandardConv2d, SymmetricConv2d])
def test_a_pass_keeps_of_large_convolutions_only_what_is_summed(monkeypatch, kind):
    monkeypatch.setattr(passes, "_LARGE_INPUT", 0)
    torch.manual_seed(0)
    x = torch.randn(16, 8, 16, 16)

    def network(depth):
        layers = [layer for _ in range(depth) for layer in (kind(8, 8, 3, padding=1), nn.Tanh())]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2048, 1), nn.Flatten(0))

    few, many = (peak_of(two_ways(network(depth), x)[0]) for depth in (2, 12))
    assert (many - few) / 10 < 1.5 * x.nbytes  # what a layer reads, before the pass


class Pixels(nn.Module):
    """A convolution, then linear layers over the pixels of its image."""

    def __init__(self):
        super().__init__()
        self.first, self.up = nn.Conv2d(2, 4, 3, padding=1), nn.Linear(4, 6)
        self.down, self.head = nn.Linear(6, 4), nn.Linear(4, 1)

    def forward(self, x):
        y = self.down(self.up(self.first(x).permute(0, 2, 3, 1)).tanh())
        return self.head(y.mean((1, 2))).flatten()


def traced_pixels():
    torch.manual_seed(0)
    model, x = Pixels(), torch.randn(3, 2, 5, 7)
    engine = Gradients(model)
    engine.clipped_sum(model(x), FlatClip(0.1))
    return engine.traced(model, (x,)), x


def test_forms_hold_what_comes_out_of_a_graph_however_it_lays_images_out():
    traced, x = traced_pixels()
    passes, came_out = traced._run, set()

    def laid_out(*inputs):
        last = {"memory_format": torch.channels_last}
        values = [v.contiguous(**last) if v.dim() == 4 else v for v in passes(*inputs)]
        came_out.update(v.untyped_storage().data_ptr() for v in values)
        return values

    traced._run = laid_out
    held = [v for _, form in traced((x,))[1] if isinstance(form, Outer) for v in (form.a, form.g)]
    assert len(held) == 4
    assert {v.untyped_storage().data_ptr() for v in held} <= came_out


def test_what_a_graph_gave_goes_as_soon_as_its_form_is_made():
    traced, x = traced_pixels()
    passes, came_out, left = traced._run, [], []

    def watched(*inputs):
        values = passes(*inputs)
        came_out.extend(memory_of(v) for v in values)
        return values

    def no_form(*values, **keywords):
        left.append(sum(memory() is not None for memory in came_out))
        return []

    traced._run, traced._makers = watched, [(no_form, len(x))] * len(traced._makers)
    traced((x,))
    assert left[-1] <= left[0] - 2 * (len(left) - 2)  # each gave two, and its own are still there


@pytest.mark.parametrize("padding", [None, 2])
def test_tables_that_all_examples_read_alike_have_the_gradients_of_each_alone(padding):
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 3, padding_idx=padding)
            self.last = nn.Linear(3, 1)

        def forward(self, x):
            found = self.table(torch.tensor([[0, 2, 2, 4]]))
            return self.last((x + found).tanh()).sum((1, 2))

    model, x = Model(), torch.randn(6, 4, 3)
    engine = Gradients(model)
    found = engine.clipped_sum(model(x), FlatClip(0.5))
    engine.detach()
    alone = [torch.autograd.grad(model(x[i : i + 1]).sum(), model.parameters()) for i in range(6)]
    norms = [sum(g.square().sum() for g in each).sqrt() for each in alone]
    torch.testing.assert_close(found.norms, torch.stack(norms))
    shrunk = [[g * min(1, 0.5 / n) for g in each] for each, n in zip(alone, norms, strict=True)]
    for total, parts in zip(found.sums, zip(*shrunk, strict=True), strict=True):
        torch.testing.assert_close(total, torch.stack(parts).sum(0), rtol=2e-3, atol=1e-5)


def test_parameters_that_enter_a_large_batch_have_the_same_sums(monkeypatch):
    torch.manual_seed(0)
    eager, traced = two_ways(Blocks(2), torch.randint(0, 3000, (5, 30)))
    expected = eager()
    monkeypatch.setattr(passes, "_LARGE_INPUT", 0)
    for found in (eager(), traced()):
        for one, other in zip(found.sums, expected.sums, strict=True):
            torch.testing.assert_close(one, other)


def test_only_the_first_engine_asks_the_c_library_for_memory(monkeypatch):
    """Later ones took 32 MB each out of what it keeps: gigabytes in a process of many runs."""
    Gradients(nn.Linear(2, 2))
    asked, empty = [], torch.empty

    def noted(*size, **how):
        asked.append(size)
        return empty(*size, **how)

    monkeypatch.setattr(torch, "empty", noted)
    Gradients(nn.Linear(2, 2))
    assert all(size[0] < 2**20 for size in asked if isinstance(size[0], int))
