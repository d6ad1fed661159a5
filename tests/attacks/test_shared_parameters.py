"""Holes F1 to F3 and D5: parameters combined with themselves and each other before they meet the
batch, arguments without batch, einsum in two passes, batches as long as another dimension.

A generated family of small graphs against the slow loop: right or refused, never wrong.
"""

from __future__ import annotations

import copy
from itertools import product

import pytest
import torch
from torch import nn

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.clip import FlatClip
from tightrope.train.gradients import Gradients
from tightrope.train.gradients.apart import Probes
from tightrope.train.gradients.one_by_one import OneByOne
from tightrope.train.gradients.reference import loop_clipped_sum

T, D = 3, 4
CLIP = FlatClip(0.3)
METHODS = ("auto", "two-pass")


class Parameters(nn.Module):
    """g, h: vectors; w: a matrix; t: a table; s: a number; places, layer: layers."""

    def __init__(self):
        super().__init__()
        self.g, self.h = nn.Parameter(torch.randn(D)), nn.Parameter(torch.randn(1, D))
        self.w, self.t = nn.Parameter(torch.randn(D, D)), nn.Parameter(torch.randn(T + 2, D))
        self.s = nn.Parameter(torch.tensor(0.7))
        self.places, self.layer = nn.Embedding(T, D), nn.Linear(D, D)


def halves(v):
    a, b = v.chunk(2)
    return torch.cat([a * b, a + b])


def rows(w):
    first, _, third, _ = w.unbind(0)
    return first * third + third


VECTORS = {
    "itself": lambda m: m.g,
    "normalised": lambda m: m.g / m.g.norm(),
    "plus square": lambda m: m.g + m.g**2,
    "square": lambda m: m.g * m.g,
    "swish": lambda m: m.g * m.g.sigmoid(),
    "softmax": lambda m: m.g.softmax(0) * m.h[0],
    "times its sum": lambda m: m.g * m.g.sum(),
    "matrix": lambda m: m.w @ m.g,
    "matrix and itself": lambda m: m.w @ m.g + m.g,
    "matrix twice": lambda m: (m.w @ m.w)[0] + m.w[1],
    "diagonal": lambda m: m.w.diagonal() * m.g,
    "table mean": lambda m: m.t.mean(0) + m.t[0],
    "chunks": lambda m: halves(m.g),
    "unbound": lambda m: rows(m.w),
    "where": lambda m: torch.where(m.g > 0, m.g, m.h[0] * m.g),
    "einsum": lambda m: torch.einsum("ij,j->i", m.w, m.g),
    "einsum twice": lambda m: torch.einsum("ij,jk,k->i", m.w, m.w, m.g),
    "weight norm": lambda m: (m.s * m.w / m.w.norm(dim=1, keepdim=True))[0],
    "layer": lambda m: m.layer(m.g) + m.layer(m.h)[0],
    "largest": lambda m: m.t.max(0).values * m.g.max(),
    "number": lambda m: (m.s * m.s.exp()).expand(D) * m.g.tanh(),
    "indexed": lambda m: m.g[[1, 0, 3, 3]] * m.g,
    "reshaped": lambda m: m.w.reshape(2, 8).sum(0).view(2, D).prod(0),
    "outer": lambda m: torch.outer(m.g, m.h[0]).sum(0) + m.h.squeeze(0),
}
MEETINGS = {
    "times": lambda x, v: x * v,
    "plus": lambda x, v: x + v,
    "minus": lambda x, v: v - x,
    "scaled and shifted": lambda x, v: x * v + v,
    "twice": lambda x, v: x * v * v,
    "quotient": lambda x, v: x / (1 + v.square()),
    "divided by": lambda x, v: x.exp() / v.exp() - v,
    "where": lambda x, v: torch.where(x > 0, x, v),
    "expanded": lambda x, v: v.expand(len(x), -1) * x,
    "joined": lambda x, v: torch.cat([x, v.expand(len(x), -1) * v], 1)[:, 2:-2],
    "einsum": lambda x, v: torch.einsum("bd,d->bd", x, v),
    "matrix product": lambda x, v: x @ torch.diag(v),
    "largest": lambda x, v: torch.maximum(x, v),
    "outer": lambda x, v: (x[:, :, None] * v).sum(2) + v,
}
TABLES = {
    "sliced": lambda m, n: m.t[:n],
    "and itself": lambda m, n: m.t[:n] * m.g + m.t[:n].flip(0),
    "softmax": lambda m, n: m.t.softmax(0)[:n] * m.t[1 : n + 1],
    "product": lambda m, n: m.t[:n] @ m.w,
    "layer": lambda m, n: m.layer(m.t[:n]),
    "places": lambda m, n: m.places(torch.arange(n)),
    "places, twice": lambda m, n: m.places(torch.arange(n)) * m.places.weight[:n],
    "places of one": lambda m, n: m.places(torch.arange(n)[None]),
    "places, layer": lambda m, n: m.layer(m.places(torch.arange(n))) + m.g,
    "gathered": lambda m, n: m.t.gather(0, torch.arange(n)[:, None].expand(n, D)),
    "transposed": lambda m, n: m.w.t()[:n],
    "grown": lambda m, n: m.g.expand(n, D) * m.s,
}
TABLE_MEETINGS = {
    "plus": lambda x, v: x + v,
    "times": lambda x, v: x * v + v,
    "expanded": lambda x, v: x + v.expand(len(x), -1, -1),
    "first": lambda x, v: (x + v)[:, :1],
}


class Generated(nn.Module):
    """Parameters (of its own or of a child) made into something, met by the batch, and a head."""

    def __init__(self, make, meet, *, below):
        super().__init__()
        self.held, self.make, self.meet = Parameters(), make, meet
        self.below = nn.Linear(D, D) if below else nn.Identity()
        self.head = nn.Linear(D, 2)

    def forward(self, x):
        v = self.make(self.held, x.shape[1]) if x.dim() == 3 else self.make(self.held)
        return self.head(self.meet(torch.tanh(self.below(x)), v))


def losses_of(model, x):
    flat = model(x).flatten(1)
    return (flat * torch.linspace(-1, 2, flat.shape[1])).square().mean(1) + flat.sum(1)


def outcomes(model, method, inputs):
    """For each batch 'right' or 'refused', by one engine; fails where a sum is neither."""
    exact, found = copy.deepcopy(model), []
    engine = Gradients(model, method)
    for x in inputs:
        expected = loop_clipped_sum(exact, losses_of, CLIP, x)
        try:
            sums = engine.clipped_sum(losses_of(model, x), CLIP).sums
        except (ModelNotPrivate, InvalidInput) as refusal:
            found.append(f"refused: {refusal}")
            engine.forget()
            continue
        for name, mine, truth in zip(engine.names, sums, expected, strict=True):
            told = f"{name}, {method}, batch of {len(x)}"
            torch.testing.assert_close(mine, truth, rtol=1e-3, atol=2e-5, msg=told)
        found.append("right")
    return found


UNKNOWN = ("einsum", "matrix product", "largest")  # no way back is known: may be refused


@pytest.mark.parametrize("meeting", MEETINGS)
@pytest.mark.parametrize("vector", VECTORS)
def test_vectors_made_of_parameters(vector, meeting):
    for below, method in zip((True, False), METHODS, strict=True):
        torch.manual_seed(0)
        model = Generated(VECTORS[vector], MEETINGS[meeting], below=below)
        found = outcomes(model, method, [torch.randn(n, D) for n in (D, 2, 1, 0, 5)])
        assert set(found) == {"right"} if meeting not in UNKNOWN else "right" in found


@pytest.mark.parametrize("meeting", TABLE_MEETINGS)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("first", [T, 2, D])
def test_tables_made_of_parameters(table, meeting, first):
    for below, method in zip((True, False), METHODS, strict=True):
        torch.manual_seed(0)
        model = Generated(TABLES[table], TABLE_MEETINGS[meeting], below=below)
        inputs = [torch.randn(n, T, D) for n in (first, T, 1, 0, D, T + 2, 2, T)]
        assert set(outcomes(model, method, inputs)) == {"right"}


@pytest.mark.parametrize("table", TABLES)
def test_a_quick_look_never_replaces_a_thorough_one(table, monkeypatch):
    """Only row 0 of a table of T rows has a gradient: a look at example 0 takes it for a batch."""
    monkeypatch.setattr(Probes, "half", lambda self, count: torch.eye(count)[0])
    monkeypatch.setattr(Probes, "due", lambda self, conclusive: True)
    for below, method in zip((True, False), METHODS, strict=True):
        torch.manual_seed(0)
        model = Generated(TABLES[table], TABLE_MEETINGS["first"], below=below)
        inputs = [torch.randn(n, T, D) for n in (2, T, T, 5, T)]
        assert set(outcomes(model, method, inputs)) == {"right"}


def test_one_example_at_a_time_is_right_for_all():
    for (vector, make), meet in product(VECTORS.items(), MEETINGS.values()):
        torch.manual_seed(1)
        model, x = Generated(make, meet, below=True), torch.randn(2, D)
        expected = loop_clipped_sum(model, losses_of, CLIP, x)
        engine = OneByOne(model)
        parts = [engine.clipped_sum(losses_of(model, x[[i]]), CLIP).sums for i in range(2)]
        for mine, truth in zip(zip(*parts, strict=True), expected, strict=True):
            torch.testing.assert_close(sum(mine), truth, rtol=1e-3, atol=1e-6, msg=vector)


class Mixture(nn.Module):
    """A module of one's own with arguments that have no batch, and one that may be as long."""

    def __init__(self):
        super().__init__()
        self.tensor = nn.Parameter(torch.randn(D, D))

    def forward(self, x, table, *, more=None):
        scores = x @ self.tensor @ table.t()  # (B, rows of the table)
        out = scores.softmax(1) @ table
        return out if more is None else out + (more @ self.tensor).sum(0)


class WithArguments(nn.Module):
    def __init__(self, named):
        super().__init__()
        self.below, self.mixture, self.named = nn.Linear(D, D), Mixture(), named
        self.register_buffer("table", torch.randn(T, D))

    def forward(self, x):
        more = {"more": self.table * 2} if self.named else {}
        return self.mixture(self.below(x), self.table, **more)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_arguments_without_batch_are_told_apart_at_every_size(method, named):
    """F2: wrong by 68 % where the batch was as long as the argument."""
    torch.manual_seed(0)
    inputs = [torch.randn(n, D) for n in (T, 2, 5, T, 1, 0)]
    assert set(outcomes(WithArguments(named), method, inputs)) == {"right"}
    inputs = [torch.randn(n, D) for n in (5, T, 5, T)]
    assert set(outcomes(WithArguments(named), method, inputs)) == {"right"}


def test_a_parameter_as_long_as_the_batch_is_never_taken_for_its_rows():
    class PerRow(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows, self.head = nn.Parameter(torch.randn(D, D)), nn.Linear(D, 2)

        def forward(self, x):
            return self.head(x + self.rows)

    model = PerRow()
    with pytest.raises(ModelNotPrivate):
        Gradients(model).clipped_sum(losses_of(model, torch.randn(D, D)), CLIP)


class EinsumFirst(nn.Module):
    """F3: nothing but the einsum's own parameter lies behind the layer that reads it."""

    def __init__(self, deeper):
        super().__init__()
        self.tensor, self.layer = nn.Parameter(torch.randn(D, D, D)), nn.Linear(D, D)
        self.norm = nn.LayerNorm(D) if deeper else nn.Identity()

    def forward(self, x):
        return self.layer(self.norm(torch.einsum("bi,bj,ijk->bk", x, x.tanh(), self.tensor)))


@pytest.mark.parametrize("deeper", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_layer_behind_an_einsum(method, deeper):
    torch.manual_seed(0)
    inputs = [torch.randn(n, D) for n in (3, D, 1, 0)]
    assert set(outcomes(EinsumFirst(deeper), method, inputs)) == {"right"}


class Child(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(D))

    def forward(self, x):
        return x * self.scale.exp() * self.scale


class Parent(nn.Module):
    """A parameter without rule around a child whose parameter is broadcast; another is both."""

    def __init__(self):
        super().__init__()
        self.matrix, self.shift = nn.Parameter(torch.randn(D, D)), nn.Parameter(torch.randn(D))
        self.child, self.layer = Child(), nn.Linear(D, D)

    def forward(self, x):
        return self.child(self.layer(x) @ self.matrix) + self.shift * self.shift


@pytest.mark.parametrize("method", METHODS)
def test_modules_of_ones_own_inside_each_other(method):
    torch.manual_seed(0)
    inputs = [torch.randn(n, D) for n in (3, D, 1, 0)]
    model = nn.Sequential(nn.Linear(D, D), Parent(), nn.Linear(D, 2))
    assert set(outcomes(model, method, inputs)) == {"right"}


class Hypernetwork(nn.Module):
    """The weight is made by a layer, out of a parameter without rule."""

    def __init__(self):
        super().__init__()
        self.code, self.maker = nn.Parameter(torch.randn(D)), nn.Linear(D, 2 * D)
        self.head = nn.Linear(D, 2)

    def forward(self, x):
        weight = self.maker(self.code).view(2, D)
        return nn.functional.linear(x, weight) + self.head(x)


class Borrower(nn.Module):
    """Uses a child's parameter beside the child, hidden behind a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.matrix, self.child = nn.Parameter(torch.randn(D, D)), Lender()

    def forward(self, x):
        return self.child(x) @ self.matrix + x @ self.child.matrix


class Lender(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(D, D))

    def forward(self, x):
        return x @ self.matrix


class Nested(nn.Module):
    """Tensors that come in a list, in which no example can be told."""

    def __init__(self):
        super().__init__()
        self.inner, self.scale = Pair(), nn.Parameter(torch.randn(D))

    def forward(self, x):
        return self.inner([x * self.scale, x * self.scale * self.scale])


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(D, D))

    def forward(self, both):
        return both[0] @ self.matrix + both[1]


@pytest.mark.parametrize("model", [Hypernetwork, Borrower, Nested])
@pytest.mark.parametrize("method", METHODS)
def test_what_a_module_of_ones_own_hides_is_right_or_refused(model, method):
    torch.manual_seed(0)
    found = outcomes(model(), method, [torch.randn(n, D) for n in (3, D, 2, 1, 0)])
    assert found[-2:] == ["right", "right"]


@pytest.mark.parametrize("late", ["twice", "functional"])
def test_a_use_that_begins_later_is_seen_at_once(late):
    """The plan of earlier batches does not hide what a batch does anew."""

    class Growing(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.scale, self.calls = nn.Linear(D, D), nn.Parameter(torch.ones(D)), 0

        def forward(self, x):
            self.calls += 1
            x = self.layer(x) * self.scale
            if self.calls > 3 and late == "twice":
                x = x + self.scale
            if self.calls > 3 and late == "functional":
                x = nn.functional.linear(x, self.layer.weight)
            return x

    torch.manual_seed(0)
    model, clip = Growing(), FlatClip(0.3)
    engine = Gradients(model)
    x = torch.randn(5, D)
    for _ in range(3):
        engine.clipped_sum(losses_of(model, x), clip)
    exact = copy.deepcopy(model)
    if late == "functional":
        with pytest.raises(ModelNotPrivate, match=r"layer\.weight"):
            engine.clipped_sum(losses_of(model, x), clip)
        return
    sums = engine.clipped_sum(losses_of(model, x), clip).sums
    for mine, truth in zip(sums, loop_clipped_sum(exact, losses_of, clip, x), strict=True):
        torch.testing.assert_close(mine, truth, rtol=1e-3, atol=1e-5)


def test_the_position_table_of_pvt():
    tf = pytest.importorskip("transformers")
    config = tf.PvtConfig(
        image_size=16, num_labels=3, depths=[1, 1], hidden_sizes=[8, 16], num_encoder_blocks=2,
        num_attention_heads=[1, 2], sequence_reduction_ratios=[2, 1], patch_sizes=[4, 2],
        strides=[4, 2], mlp_ratios=[2, 2], hidden_dropout_prob=0.0, drop_path_rate=0.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = tf.PvtForImageClassification(config).train()
    x = torch.randn(3, 3, 16, 16)

    def losses(inner, images):
        return inner(images).logits.square().sum(1)

    expected = loop_clipped_sum(copy.deepcopy(model), losses, CLIP, x)
    engine = Gradients(model)
    for name, mine, truth in zip(
        engine.names, engine.clipped_sum(losses(model, x), CLIP).sums, expected, strict=True
    ):
        torch.testing.assert_close(mine, truth, rtol=1e-3, atol=1e-5, msg=name)
