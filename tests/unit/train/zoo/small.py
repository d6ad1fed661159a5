"""Small networks: what people write by hand, with weights that are used in all kinds of ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from cases import EXAMPLES, SLOWER, ZOO, Entry, case, classes, energy, images, labels, words
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint


class Model(nn.Module):
    """Named parts, and a function of them and the inputs."""

    def __init__(self, parts: dict[str, Any], run: Callable[..., Tensor]) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.run = run

    def forward(self, *given: Any) -> Tensor:
        return self.run(self, *given)


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape))


def rows() -> Tensor:
    return torch.randn(EXAMPLES, 5)


def steps() -> Tensor:
    return torch.randn(EXAMPLES, 7, 4)


def lengths() -> Tensor:
    return torch.tensor([7, 3, 5, 2])


def add(name: str, parts: Callable[[], dict[str, Any]], run: Any, *inputs: Any, **how: Any) -> None:
    """A model that is written in one line; `inputs` make its batch."""

    def build() -> Any:
        return Model(parts(), run), tuple(make() for make in inputs), energy

    ZOO.append(Entry(name, build, **({"fast": True} | how)))


# Weights in all kinds of uses.


def tied() -> dict[str, nn.Module]:
    table = nn.Embedding(11, 4)
    head = nn.Linear(4, 11, bias=False)
    head.weight = table.weight
    return {"e": table, "o": head}


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).T


def symmetric() -> dict[str, nn.Module]:
    layer = nn.Linear(5, 5)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return {"a": layer}


def packed(m: Any, x: Tensor, n: Tensor) -> Tensor:
    given = pack_padded_sequence(x, n.cpu(), batch_first=True, enforce_sorted=False)
    return pad_packed_sequence(m.r(given)[0], batch_first=True, total_length=x.shape[1])[0].sum(1)


def cells(m: Any, x: Tensor) -> Tensor:
    state = None
    for t in range(x.shape[1]):
        state = m.r(x[:, t], state)
    return state[0] if isinstance(state, tuple) else state


def last(m: Any, x: Tensor, n: Tensor) -> Tensor:
    return m.r(x)[0][torch.arange(len(x)), n - 1]


def functional(m: Any, x: Tensor) -> Tensor:
    other = {"weight": m.a.weight * 2, "bias": m.a.bias}
    return torch.func.functional_call(m.a, other, (x,))


LAYER = lambda: {"a": nn.Linear(5, 3)}  # noqa: E731
SQUARE = lambda: {"a": nn.Linear(5, 5)}  # noqa: E731
LORA = lambda: {"a": nn.Linear(5, 4), "A": weight(2, 5), "B": weight(4, 2)}  # noqa: E731
CONV = lambda: {"a": nn.Conv1d(4, 4, 3, padding=1)}  # noqa: E731
HEADS = lambda: {"a": nn.MultiheadAttention(4, 2, batch_first=True)}  # noqa: E731

add("tied table", tied, lambda m, i: m.o(m.e(i).mean(1).tanh()), words)
add("tied table, every position", tied, lambda m, i: m.o(m.e(i).tanh()), words)
add("a layer and its weight", SQUARE, lambda m, x: F.linear(m.a(x).tanh(), m.a.weight), rows)
add("a weight turned around", LAYER, lambda m, x: m.a(x) @ m.a.weight, rows)
add("half of a weight", lambda: {"a": nn.Linear(5, 4)},
    lambda m, x: F.linear(x, m.a.weight[:2]) + F.linear(x, m.a.weight[2:]) ** 2, rows)  # fmt: skip
add("einsum twice", lambda: {"w": weight(5, 5)},
    lambda m, x: torch.einsum("bi,ij->bj", torch.einsum("bi,ij->bj", x, m.w).tanh(), m.w), rows)  # fmt: skip
add("einsum of three", lambda: {"w": weight(5, 5, 3)},
    lambda m, x: torch.einsum("bi,ijk,bj->bk", x, m.w, x), rows)  # fmt: skip
add("weight norm", lambda: {"a": parametrizations.weight_norm(nn.Linear(5, 3))},
    lambda m, x: m.a(x), rows)  # fmt: skip
add("symmetric weight", symmetric, lambda m, x: m.a(m.a(x).tanh()), rows)
add("low rank", LORA, lambda m, x: m.a(x) + F.linear(F.linear(x, m.A), m.B), rows)
add("low rank, merged", LORA, lambda m, x: F.linear(x, m.a.weight + m.B @ m.A, m.a.bias), rows)
add("a module twice", lambda: {"a": nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5))},
    lambda m, x: m.a(m.a(x)), rows)  # fmt: skip
add("a layer at two shapes", lambda: {"a": nn.Linear(4, 4)},
    lambda m, x: m.a(x).mean(1) + m.a(x[:, 0]), steps)  # fmt: skip
add("bag, mean", lambda: {"e": nn.EmbeddingBag(11, 4)}, lambda m, i: m.e(i), words)
add("bag, sum", lambda: {"e": nn.EmbeddingBag(11, 4, mode="sum")}, lambda m, i: m.e(i), words)
add(
    "bag, padding", lambda: {"e": nn.EmbeddingBag(11, 4, padding_idx=3)}, lambda m, i: m.e(i), words
)
add("bag with offsets", lambda: {"e": nn.EmbeddingBag(11, 4)},
    lambda m, i: m.e(i.reshape(-1), torch.arange(0, i.numel(), i.shape[1])), words,
    expected=SLOWER, why="offsets")  # fmt: skip
for kind, more in (("LSTM", {}), ("GRU", {"num_layers": 2}), ("RNN", {})):
    make = lambda kind=kind, more=more: {  # noqa: E731
        "r": getattr(nn, kind)(4, 3, bidirectional=True, batch_first=True, **more)
    }
    add(f"{kind}, packed", make, packed, steps, lengths, expected=SLOWER, why="lengths")
    add(f"{kind}", make, lambda m, x: m.r(x)[0], steps)
    add(f"{kind}, last valid step", make, last, steps, lengths, fast=kind == "GRU")
add("GRU with a trained first state",
    lambda: {"r": nn.GRU(4, 3, batch_first=True), "h": weight(1, 1, 3)},
    lambda m, x: m.r(x, m.h.expand(1, len(x), 3).contiguous())[0].sum(1), steps)  # fmt: skip
add("LSTM, sequence first", lambda: {"r": nn.LSTM(4, 3)},
    lambda m, x: m.r(x.transpose(0, 1))[0].transpose(0, 1), steps)  # fmt: skip
add("LSTM cell", lambda: {"r": nn.LSTMCell(4, 3)}, cells, steps)
add("GRU cell", lambda: {"r": nn.GRUCell(4, 3)}, cells, steps)
add("RNN cell", lambda: {"r": nn.RNNCell(4, 3, nonlinearity="relu")}, cells, steps)
add("LSTM with a projection", lambda: {"r": nn.LSTM(4, 6, proj_size=3, batch_first=True)},
    lambda m, x: m.r(x)[0], steps, fast=False)  # fmt: skip
add("LSTM and a penalty on its weights", lambda: {"r": nn.LSTM(4, 3, batch_first=True)},
    lambda m, x: m.r(x)[0].sum(1) + 0.1 * sum(p.square().sum() for p in m.r.parameters()), steps)  # fmt: skip
add("attention", HEADS, lambda m, x: m.a(x, x, x)[0], steps)
add("attention, masked", HEADS,
    lambda m, x, n: m.a(x, x, x, key_padding_mask=torch.arange(7) >= n[:, None])[0].mean(1),
    steps, lengths)  # fmt: skip
add("attention, other keys and a bias",
    lambda: {"a": nn.MultiheadAttention(4, 2, kdim=4, vdim=4, add_bias_kv=True, batch_first=True)},
    lambda m, x: m.a(x, x.flip(1), x.roll(1, 1))[0], steps)  # fmt: skip
add("encoder layer, masked",
    lambda: {"a": nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)},
    lambda m, x, n: m.a(x, src_key_padding_mask=torch.arange(7) >= n[:, None]).mean(1),
    steps, lengths)  # fmt: skip
add("encoder layer, norm first",
    lambda: {"a": nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True)},
    lambda m, x: m.a(x), steps)  # fmt: skip
add("encoder layer, sequence first",
    lambda: {"a": nn.TransformerEncoderLayer(4, 2, 8)},
    lambda m, x: m.a(x.transpose(0, 1)).transpose(0, 1), steps)  # fmt: skip
add("decoder layer", lambda: {"a": nn.TransformerDecoderLayer(4, 2, 8, batch_first=True)},
    lambda m, x: m.a(x, x.flip(1)), steps, fast=False)  # fmt: skip
add("transformer", lambda: {"a": nn.Transformer(4, 2, 1, 1, 8, batch_first=True)},
    lambda m, x: m.a(x, x[:, :3]), steps, fast=False)  # fmt: skip
add("functional call", LAYER, functional, rows)
add("functional call with its own weights", LAYER,
    lambda m, x: torch.func.functional_call(m.a, dict(m.a.named_parameters()), (x,)), rows)  # fmt: skip
add("a token before the others", lambda: {"c": weight(1, 1, 4), "a": nn.Linear(4, 3)},
    lambda m, x: m.a(torch.cat([m.c.expand(len(x), 1, 4), x], 1)).mean(1), steps)  # fmt: skip
add("a kernel turned around", CONV,
    lambda m, x: F.conv_transpose1d(m.a(x.mT), m.a.weight, padding=1).mean(2), steps)  # fmt: skip
add(
    "rows of a table", lambda: {"w": weight(11, 3)}, lambda m, i: m.w[i[:, 0]] * m.w[i[:, 1]], words
)
add("one weight for each example", lambda: {"w": weight(4, 3)},
    lambda m, x: torch.bmm(x, m.w.expand(len(x), 4, 3)).mean(1), steps)  # fmt: skip
add("weights made of the example", lambda: {"a": nn.Linear(5, 20)},
    lambda m, x: torch.bmm(m.a(x).view(-1, 4, 5), x[:, :, None])[:, :, 0], rows)  # fmt: skip
add("checkpoint", SQUARE,
    lambda m, x: m.a(checkpoint(lambda v: m.a(v).tanh() * 2, x, use_reentrant=False)), rows)  # fmt: skip
add("scalar weights", lambda: {"s": weight(), "t": weight(1)}, lambda m, x: x * m.s + m.t, rows)
add("a weight and its square", lambda: {"g": weight(5)}, lambda m, x: x * (m.g + m.g**2), rows)
add("a weight over its norm", lambda: {"g": weight(5)}, lambda m, x: x * m.g / m.g.norm(), rows)
add("softmax of a weight", lambda: {"g": weight(5)}, lambda m, x: x * m.g.softmax(0), rows)
add("matrix of weights and itself", lambda: {"w": weight(5, 5), "g": weight(5)},
    lambda m, x: x * (m.w @ m.g + m.g), rows)  # fmt: skip
add("weights by where", lambda: {"g": weight(5), "h": weight(5)},
    lambda m, x: torch.where(x > 0, m.g, m.h) * x, rows)  # fmt: skip
add("weights joined and cut", lambda: {"g": weight(4)},
    lambda m, x: x[:, :4] * torch.cat([m.g.chunk(2)[1], m.g.chunk(2)[0]]), rows)  # fmt: skip
add("a table, sliced", lambda: {"t": weight(9, 4)}, lambda m, x: x + m.t[: x.shape[1]], steps)
add("a table, attended", lambda: {"t": weight(9, 4)},
    lambda m, x: x + (m.t @ m.t.t()).softmax(1)[: x.shape[1]] @ m.t, steps)  # fmt: skip
add("a table as long as the batch", lambda: {"t": weight(EXAMPLES + 1, 5)},
    lambda m, x: x * m.t.sum(0), rows)  # fmt: skip
add("positions by an embedding", lambda: {"p": nn.Embedding(9, 4), "a": nn.Linear(4, 3)},
    lambda m, x: m.a(torch.tanh(x + m.p(torch.arange(x.shape[1])))), steps)  # fmt: skip
add("positions by an expanded embedding", lambda: {"p": nn.Embedding(9, 4)},
    lambda m, x: x + m.p(torch.arange(7)[None].expand(len(x), -1)), steps)  # fmt: skip
add("relative positions", lambda: {"p": weight(13), "a": nn.Linear(4, 4)},
    lambda m, x: (m.a(x) @ x.mT + m.p[torch.arange(7)[:, None] - torch.arange(7) + 6]).softmax(-1) @ x,
    steps)  # fmt: skip
add("rotary positions", lambda: {"a": nn.Linear(4, 4)},
    lambda m, x: (h := m.a(x)) * torch.arange(7.0)[:, None].cos()
    + torch.cat([-h[..., 2:], h[..., :2]], -1) * torch.arange(7.0)[:, None].sin(), steps)  # fmt: skip
add("alibi", lambda: {"a": nn.Linear(4, 4)},
    lambda m, x: ((h := m.a(x)) @ h.mT - (torch.arange(7.0)[:, None] - torch.arange(7)).abs()).softmax(-1) @ x,
    steps)  # fmt: skip
add("bilinear layer", lambda: {"a": nn.Bilinear(5, 5, 3)}, lambda m, x: m.a(x, x.flip(1)), rows)
add("prelu", lambda: {"a": nn.PReLU(5)}, lambda m, x: m.a(x), rows)
add("prelu with one slope", lambda: {"a": nn.PReLU()}, lambda m, x: m.a(x), rows)
add("spectral norm", lambda: {"a": parametrizations.spectral_norm(nn.Linear(5, 3))},
    lambda m, x: m.a(x), rows)  # fmt: skip
add("orthogonal weight", lambda: {"a": parametrizations.orthogonal(nn.Linear(5, 5))},
    lambda m, x: m.a(x), rows, fast=False)  # fmt: skip
add("complex filter", lambda: {"w": weight(4, 4, 2)},
    lambda m, x: torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.view_as_complex(m.w), n=7, dim=1),
    steps)  # fmt: skip
add("complex recurrence", lambda: {"s": weight(4), "t": weight(4)},
    lambda m, x: _recurrence(torch.exp(torch.complex(-m.s.exp(), m.t)), x), steps)  # fmt: skip
add("sorting inside the example", LAYER, lambda m, x: m.a(x.sort(1).values), rows)
add("top of the example", LAYER, lambda m, x: m.a(x).topk(2, 1).values, rows)
add("straight through", LAYER, lambda m, x: (h := m.a(x)) + (h.sign() - h).detach(), rows)
add("gumbel softmax without noise", LAYER, lambda m, x: F.softmax(m.a(x) / 0.3, 1), rows)
add("own activations", SQUARE, lambda m, x: F.mish(F.hardswish(F.silu(m.a(x)))), rows)
add("learned temperature", lambda: {"a": nn.Linear(5, 3), "t": weight()},
    lambda m, x: F.log_softmax(m.a(x) * m.t.exp(), 1), rows)  # fmt: skip
add("a layer that is not used", lambda: {"a": nn.Linear(5, 3), "b": nn.Linear(5, 3)},
    lambda m, x: m.a(x), rows)  # fmt: skip
add("one bias alone", lambda: {"b": weight(3)}, lambda m, x: m.b.expand(len(x), 3) * 1.0, rows)
add("scan by a loop", lambda: {"a": nn.Linear(4, 4)},
    lambda m, x: torch.stack(_states(m.a, x), 1), steps)  # fmt: skip
add("soft trees", lambda: {"a": nn.Linear(5, 3), "l": weight(8, 2)},
    lambda m, x: _leaves(m.a(x).sigmoid()) @ m.l, rows)  # fmt: skip
add("cosine head", lambda: {"w": weight(3, 5)},
    lambda m, x: F.linear(F.normalize(x, dim=1), F.normalize(m.w, dim=1)) * 4, rows)  # fmt: skip
add("writes into its input", LAYER, lambda m, x: m.a(x.clone().mul_(2).sub_(1)), rows)
add("vmap of a layer", LAYER, lambda m, x: torch.vmap(m.a)(x), rows, expected=SLOWER, why="func")


def _recurrence(factor: Tensor, x: Tensor) -> Tensor:
    h: Any = 0
    for t in range(x.shape[1]):
        h = factor * h + x[:, t]
    return h.real


def _states(layer: nn.Module, x: Tensor) -> list[Tensor]:
    h, found = x[:, 0], []
    for t in range(x.shape[1]):
        h = torch.tanh(layer(h) + x[:, t])
        found.append(h)
    return found


def _leaves(p: Tensor) -> Tensor:
    found = p.new_ones(len(p), 1)
    for k in range(p.shape[1]):
        found = torch.cat([found * p[:, k : k + 1], found * (1 - p[:, k : k + 1])], 1)
    return found


# Several rows of the model for each example.


class Windows(nn.Module):
    """Attention inside windows of four positions, with a table of places (Swin)."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.qkv, self.after = nn.Linear(5, 4), nn.Linear(4, 12), nn.Linear(4, 3)
        self.table, self.scale = weight(7), weight(4)
        self.register_buffer("index", torch.randint(0, 7, (4, 4)))

    def forward(self, x: Tensor) -> Tensor:
        windows = self.before(x).unflatten(1, (-1, 4)).flatten(0, 1) * self.scale
        q, k, v = self.qkv(windows).chunk(3, -1)
        found = (q @ k.transpose(1, 2) + self.table[self.index]).softmax(-1) @ v
        return self.after(found).unflatten(0, (len(x), -1))


class Turns(Windows):
    """Window by window, in each all examples."""

    def forward(self, x: Tensor) -> Tensor:
        windows = self.before(x).unflatten(1, (-1, 4)).transpose(0, 1).flatten(0, 1)
        return self.after(self.qkv(windows)[..., :4]).unflatten(0, (-1, len(x))).transpose(0, 1)


class Films(nn.Module):
    """A small network for each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.linear, self.out = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        each = self.norm(self.conv(x.flatten(0, 1))).relu().mean((2, 3))
        return self.out(self.linear(each).unflatten(0, (len(x), -1)).tanh().mean(1))


class Sentences(nn.Module):
    """Words to sentences, sentences to a text, by two recurrent layers."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(9, 4), nn.Linear(4, 2)
        self.inner, self.outer = kind(4, 4, batch_first=True), kind(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found = self.inner(self.words(x.flatten(0, 1)))[0][:, -1]
        return self.out(self.outer(found.unflatten(0, (len(x), -1)))[0][:, -1])


@case("windows", fast=True)
def _():
    return Windows(), (torch.randn(EXAMPLES, 12, 5),), energy


@case("windows in turns", fast=True)
def _():
    return Turns(), (torch.randn(EXAMPLES, 12, 5),), energy


@case("films", fast=True)
def _():
    return Films(), (torch.randn(EXAMPLES, 3, 2, 4, 4),), energy


@case("sentences by an LSTM")
def _():
    return Sentences(nn.LSTM), (torch.randint(0, 9, (EXAMPLES, 3, 5)),), energy


@case("sentences by a GRU")
def _():
    return Sentences(nn.GRU), (torch.randint(0, 9, (EXAMPLES, 3, 5)),), energy


@case("views of an example", fast=True)
def _():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip

    def loss(m, x, y):
        k = x.shape[1]
        each = F.cross_entropy(m(x.flatten(0, 1)), y.repeat_interleave(k, 0), reduction="none")
        return each.view(-1, k).mean(1)

    return model, (torch.randn(EXAMPLES, 3, 3, 8, 8), labels()), loss


@case("users with several records and a mask", fast=True)
def _():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def loss(m, x, y, valid):
        each = F.cross_entropy(m(x).flatten(0, 1), y.flatten(), reduction="none").view(y.shape)
        return (each * valid).sum(1) / valid.sum(1).clamp(min=1)

    y, valid = torch.randint(0, 3, (EXAMPLES, 6)), (torch.rand(EXAMPLES, 6) > 0.3).float()
    return model, (torch.randn(EXAMPLES, 6, 8), y, valid), loss


# Whole small models.


@case("perceptron", fast=True)
def _():
    return nn.Sequential(nn.Linear(20, 32), nn.Tanh(), nn.Linear(32, 3)), (
        torch.randn(EXAMPLES, 20), labels()), classes  # fmt: skip


@case("perceptron with dropout everywhere", fast=True)
def _():
    model = nn.Sequential(
        nn.Dropout(0.2), nn.Linear(20, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 32),
        nn.AlphaDropout(0.1), nn.Linear(32, 3),
    )  # fmt: skip
    return model, (torch.randn(EXAMPLES, 20), labels()), classes


@case("convolutional network of the MNIST example", fast=True)
def _():
    model = nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, 2), nn.ReLU(inplace=True), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(),
        nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 3),
    )  # fmt: skip
    return model, images(28, 1), classes


@case("recommender", fast=True)
def _():
    parts = {
        "u": nn.Embedding(20, 8), "i": nn.Embedding(30, 8), "b": nn.Embedding(20, 1),
        "m": nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)), "c": weight(),
    }  # fmt: skip

    def run(m, u, i):
        a, b = m.u(u), m.i(i)
        both = m.m(torch.cat([a, b], -1)).squeeze(-1)
        return (a * b).sum(-1) + m.b(u).squeeze(-1) + both + m.c

    def loss(m, u, i, r):
        return F.mse_loss(m(u, i), r, reduction="none")

    batch = (
        torch.randint(0, 20, (EXAMPLES,)),
        torch.randint(0, 30, (EXAMPLES,)),
        torch.rand(EXAMPLES),
    )
    return Model(parts, run), batch, loss


@case("autoencoder with tied weights", fast=True)
def _():
    model = Model(
        {"e": nn.Linear(20, 8), "b": weight(20)},
        lambda m, x: F.linear(torch.tanh(m.e(x)), m.e.weight.t(), m.b),
    )
    return model, (torch.randn(EXAMPLES, 20),), lambda m, x: (m(x) - x).square().mean(1)


@case("variational autoencoder", fast=True)
def _():
    model = Model({"e": nn.Linear(20, 8), "d": nn.Linear(4, 20)}, lambda m, x: m.e(x))

    def loss(m, x):
        mean, log = m(x).chunk(2, 1)
        out = m.d(mean + (0.5 * log).exp() * 0.1)
        return (out - x).square().sum(1) + 0.5 * (log.exp() + mean.square() - 1 - log).sum(1)

    return model, (torch.randn(EXAMPLES, 20),), loss


@case("u-net")
def _():
    def block(a, b):
        return nn.Sequential(
            nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(2, b), nn.SiLU(),
            nn.Conv2d(b, b, 3, padding=1), nn.GroupNorm(2, b), nn.SiLU(),
        )  # fmt: skip

    parts = {
        "a": block(3, 8), "b": block(8, 16), "c": block(16, 8),
        "up": nn.ConvTranspose2d(16, 8, 2, 2), "o": nn.Conv2d(8, 2, 1),
    }  # fmt: skip

    def run(m, x):
        a = m.a(x)
        b = m.b(F.max_pool2d(a, 2))
        side = F.interpolate(F.avg_pool2d(a, 2), scale_factor=2, mode="bilinear")
        return m.o(m.c(torch.cat([m.up(b), side], 1)))

    def loss(m, x, y):
        return F.cross_entropy(m(x), y, reduction="none").mean((1, 2))

    batch = torch.randn(EXAMPLES, 3, 16, 16), torch.randint(0, 2, (EXAMPLES, 16, 16))
    return Model(parts, run), batch, loss


@case("soft mixture of experts", fast=True)
def _():
    model = Model(
        {"w": weight(3, 16, 8), "r": nn.Linear(16, 3), "o": nn.Linear(8, 3)},
        lambda m, x: m.o(torch.einsum("be,bi,eij->bj", m.r(x).softmax(-1), x, m.w).tanh()),
    )
    return model, (torch.randn(EXAMPLES, 16), labels()), classes


@case("hypernetwork", fast=True)
def _():
    model = Model(
        {"h": nn.Linear(4, 16 * 8), "o": nn.Linear(8, 3)},
        lambda m, x, z: m.o(torch.bmm(m.h(z).view(-1, 8, 16), x[..., None])[..., 0].tanh()),
    )

    def loss(m, x, z, y):
        return F.cross_entropy(m(x, z), y, reduction="none")

    return model, (torch.randn(EXAMPLES, 16), torch.randn(EXAMPLES, 4), labels()), loss


@case("two towers with negatives of each example", fast=True)
def _():
    model = Model(
        {"q": nn.Linear(8, 8), "d": nn.Linear(8, 8)},
        lambda m, q, d: torch.einsum(
            "bi,bki->bk", F.normalize(m.q(q), dim=-1), F.normalize(m.d(d), dim=-1)
        ) / 0.1,
    )  # fmt: skip

    def loss(m, q, d):
        return F.cross_entropy(m(q, d), torch.zeros(len(q), dtype=torch.long), reduction="none")

    return model, (torch.randn(EXAMPLES, 8), torch.randn(EXAMPLES, 4, 8)), loss


@case("graph network on padded graphs", fast=True)
def _():
    model = Model(
        {"a": nn.Linear(4, 8), "b": nn.Linear(8, 8), "o": nn.Linear(8, 3)},
        lambda m, x, e: m.o(torch.relu(e @ m.b(torch.relu(e @ m.a(x)))).mean(1)),
    )

    def loss(m, x, e, y):
        return F.cross_entropy(m(x, e), y, reduction="none")

    edges = (torch.rand(EXAMPLES, 6, 6) > 0.5).float()
    return model, (torch.randn(EXAMPLES, 6, 4), edges, labels()), loss


@case("physics-informed network", fast=True, expected=SLOWER, why="computes gradients by itself")
def _():
    """The loss holds derivatives of the network by its inputs."""
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def loss(m, x):
        x = x.detach().requires_grad_()
        u = m(x)
        (du,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return (du - u).square().sum(1)

    return model, (torch.randn(EXAMPLES, 1),), loss


@case("dictionary of inputs and of outputs", fast=True)
def _():
    model = Model({"a": nn.Linear(5, 3)}, lambda m, d: {"logits": m.a(d["x"])})

    def loss(m, batch):
        return F.cross_entropy(m(batch)["logits"], batch["y"], reduction="none")

    return model, ({"x": rows(), "y": labels()},), loss


@case("frozen layers and batch norm in evaluation mode", fast=True)
def _():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3)
    )
    model[0].requires_grad_(False)
    model[1].eval()
    return model, images(8), classes


@case("bfloat16 inside autocast", fast=True, tolerance=0.1)
def _():
    model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 3))

    def loss(m, x, y):
        with torch.autocast("cpu", torch.bfloat16):
            out = m(x)
        return F.cross_entropy(out.float(), y, reduction="none")

    return model, (torch.randn(EXAMPLES, 20), labels()), loss
