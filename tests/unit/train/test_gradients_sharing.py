"""Parameters used several times, tied, broadcast into the batch, or owned by custom modules."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.clip import FlatClip
from tightrope.train.gradients import Gradients
from tightrope.train.gradients.reference import loop_clipped_sum


def losses_of(model, *inputs):
    flat = model(*inputs).flatten(1)
    weights = torch.linspace(-1, 2, flat.shape[1], dtype=flat.dtype)
    return (flat * weights).square().mean(1) + flat.sum(1)


def compare(model, *inputs, method="auto", clip=FlatClip(0.5)):  # noqa: B008
    exact = copy.deepcopy(model).double()
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    expected = loop_clipped_sum(exact, losses_of, clip, *wide)
    engine = Gradients(model, method)
    batch = engine.clipped_sum(losses_of(model, *inputs), clip)
    engine.detach()
    for name, mine, truth in zip(engine.names, batch.sums, expected, strict=True):
        torch.testing.assert_close(mine.double(), truth, rtol=3e-4, atol=2e-5, msg=name)
    return batch


class Twice(nn.Module):
    """One linear, one convolution and one norm layer, each used twice."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 4, 3, padding=1), nn.LayerNorm(6)
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        x = self.norm(torch.tanh(self.conv(torch.tanh(self.conv(x)))))
        return self.linear(torch.tanh(self.norm(self.linear(x))))


class TiedLanguageModel(nn.Module):
    """Token table tied to the output head; positions as in Hugging Face or as in nanoGPT."""

    def __init__(self, positions, *, functional_head=False):
        super().__init__()
        self.tokens, self.places = nn.Embedding(13, 6), nn.Embedding(9, 6)
        self.body = nn.Linear(6, 6)
        self.head = nn.Linear(6, 13, bias=False)
        self.head.weight = self.tokens.weight
        self.positions, self.functional_head = positions, functional_head

    def forward(self, ids):
        place = torch.arange(ids.shape[1])
        place = {
            "flat": lambda: self.places(place),
            "leading one": lambda: self.places(place[None]),
            "unsqueezed": lambda: self.places(place).unsqueeze(0),
            "expanded": lambda: self.places(place.expand(ids.shape)),
        }[self.positions]()
        x = torch.tanh(self.body(self.tokens(ids) + place))
        return self.head(x)


class Broadcast(nn.Module):
    """Bare parameters: class token, positions, a scale, a shift and a quotient."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 6))
        self.places = nn.Parameter(torch.randn(1, 5, 6))
        self.flat_places = nn.Parameter(torch.randn(5, 6))
        self.scale = nn.Parameter(torch.randn(6))
        self.gate = nn.Parameter(torch.randn(()))
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        x = torch.cat([self.token.expand(len(x), -1, -1), self.inner(x)], dim=1)
        x = x + self.places[:, : x.shape[1]] - 0.5 * self.flat_places
        x = torch.tanh(x) * torch.softmax(self.scale, 0) + self.scale.exp()
        return x * self.gate.sigmoid() / 2


class LowRank(nn.Module):
    """A LoRA layer as people write it: bare matrices in functional calls."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(6, 5)
        self.base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, 6))
        self.up = nn.Parameter(torch.randn(5, 2))

    def forward(self, x):
        return self.base(x) + 0.5 * functional.linear(functional.linear(x, self.down), self.up)


class Einsum(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.tensor = nn.Linear(6, 6), nn.Parameter(torch.randn(6, 6, 3))

    def forward(self, x):
        x = self.first(x)
        return torch.einsum("bi,bj,ijk->bk", x, torch.tanh(x), self.tensor)


MODELS = {
    "used twice": (Twice, lambda b: torch.randn(b, 4, 6)),
    "broadcast": (Broadcast, lambda b: torch.randn(b, 4, 6)),
    "low rank": (LowRank, lambda b: torch.randn(b, 3, 6)),
    "low rank inside": (
        lambda: nn.Sequential(nn.Linear(6, 6), LowRank(), nn.Tanh(), nn.Linear(5, 2)),
        lambda b: torch.randn(b, 6),
    ),
    "einsum": (Einsum, lambda b: torch.randn(b, 6)),
    **{
        f"tied, {p}": (lambda p=p: TiedLanguageModel(p), lambda b: torch.randint(0, 13, (b, 7)))
        for p in ("flat", "leading one", "unsqueezed", "expanded")
    },
}


@pytest.mark.parametrize("method", ["book-keeping", "two-pass"])
@pytest.mark.parametrize("batch", [0, 1, 2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_shared_parameters_equal_the_loop(name, batch, method):
    torch.manual_seed(batch)
    build, data = MODELS[name]
    compare(build(), data(batch), method=method)


def test_one_engine_serves_batches_of_changing_size():
    """A batch as large as another dimension must not be taken for that dimension later on."""
    torch.manual_seed(3)
    for build, data in (MODELS["tied, flat"], MODELS["broadcast"]):
        model, clip = build(), FlatClip(0.5)
        engine = Gradients(model)
        for size in (4, 7, 5, 6, 1, 0, 9, 13, 2):
            inputs = data(size)
            batch = engine.clipped_sum(losses_of(model, inputs), clip)
            expected = loop_clipped_sum(model, losses_of, clip, inputs)
            engine._recorder.take()
            for mine, truth in zip(batch.sums, expected, strict=True):
                torch.testing.assert_close(mine, truth, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", ["book-keeping", "two-pass"])
def test_a_batch_first_seen_at_an_ambiguous_size_is_right(method):
    """Seven positions, batch of seven, ids without batch dimension."""
    torch.manual_seed(0)
    compare(TiedLanguageModel("flat"), torch.randint(0, 13, (7, 7)), method=method)


def test_large_tied_table_has_the_norm_of_the_sum():
    """Peers add the squares of both uses: 5.36 times the bound."""
    torch.manual_seed(0)
    model = TiedLanguageModel("expanded")
    with torch.no_grad():
        model.tokens.weight.mul_(5)
    ids = torch.randint(0, 13, (1, 7)).repeat(2, 1)
    clip = FlatClip(0.01)
    engine = Gradients(model)
    batch = engine.clipped_sum(losses_of(model, ids), clip)
    norm = sum(float(total.square().sum()) for total in batch.sums) ** 0.5
    assert 0.0199 < norm <= 0.02


def test_unused_layer_gets_zero_and_comes_back():
    class Maybe(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.use = nn.Linear(3, 3), nn.Linear(3, 3), False

        def forward(self, x):
            return self.b(self.a(x)) if self.use else self.a(x)

    model, x = Maybe(), torch.randn(4, 3)
    engine = Gradients(model)
    first = engine.clipped_sum(losses_of(model, x), FlatClip(1.0))
    assert not first.sums[2].any()
    model.use = True
    second = engine.clipped_sum(losses_of(model, x), FlatClip(1.0))
    assert second.sums[2].any()


def test_functional_use_of_a_layers_weight_is_refused():
    class Functional(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x):
            return functional.linear(torch.tanh(self.a(x)), self.a.weight)

    model = Functional()
    engine = Gradients(model)
    with pytest.raises(ModelNotPrivate, match=r"a\.weight"):
        engine.clipped_sum(losses_of(model, torch.randn(3, 4)), FlatClip(1.0))


def test_custom_module_with_dropout_is_refused_where_it_must_run_again():
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.tensor, self.drop = nn.Parameter(torch.randn(4, 4)), nn.Dropout(0.5)

        def forward(self, x):
            return self.drop(x @ self.tensor)

    model = Noisy()
    engine = Gradients(model)
    with pytest.raises(ModelNotPrivate, match="dropout"):
        engine.clipped_sum(losses_of(model, torch.randn(3, 4)), FlatClip(1.0))


def test_an_input_changed_in_place_is_noticed():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Embedding(5, 4)

        def forward(self, x):
            out = self.b(x)
            x.add_(1)
            return self.a(out)

    model = InPlace()
    engine = Gradients(model)
    with pytest.raises(InvalidInput, match="in place"):
        engine.clipped_sum(losses_of(model, torch.zeros(3, 2, dtype=torch.long)), FlatClip(1.0))
