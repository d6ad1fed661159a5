"""Models that make several rows of an example: windows, frames, sentences.

Wrong is a sum that gives a row to another example; it must be refused, or right.
"""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tightrope.errors import ModelNotPrivate
from tightrope.train import FlatClip, GaussianNoise, Gradients, PoissonSampler, noisy_sgd
from tightrope.train.gradients.reference import loop_clipped_sum

CLIP = FlatClip(0.1)


def flat(tensors):
    return torch.cat([t.detach().double().reshape(-1) for t in tensors])


def losses_of(model, x):
    return model(x).square().flatten(1).mean(1)


class Places(nn.Module):
    """A table that is read without the batch."""

    def __init__(self):
        super().__init__()
        self.table, self.index = nn.Parameter(torch.randn(7)), torch.randint(0, 7, (4, 4))

    def forward(self):
        return self.table[self.index]


class Windows(nn.Module):
    """Attention inside windows of four positions, with a table of places added to it (Swin)."""

    def __init__(self, scale=True):
        super().__init__()
        self.before, self.qkv, self.after = nn.Linear(5, 4), nn.Linear(4, 12), nn.Linear(4, 3)
        self.places = Places()
        self.scale = nn.Parameter(torch.ones(4)) if scale else 1.0

    def forward(self, x):
        windows = self.before(x).unflatten(1, (-1, 4)).flatten(0, 1) * self.scale
        q, k, v = self.qkv(windows).chunk(3, -1)
        places = self.places().to(q.dtype)
        found = (q @ k.transpose(1, 2) + places).softmax(-1) @ v
        return self.after(found).unflatten(0, (len(x), -1))


class Frames(nn.Module):
    """A small network for each frame of a film."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.linear, self.out = nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x):
        each = self.norm(self.conv(x.flatten(0, 1))).relu().mean((2, 3))
        return self.out(self.linear(each).unflatten(0, (len(x), -1)).tanh().mean(1))


class Sentences(nn.Module):
    """Words to sentences, sentences to a text, by two recurrent layers; words from a table."""

    def __init__(self, kind=nn.LSTM):
        super().__init__()
        self.words, self.out = nn.Embedding(9, 4), nn.Linear(4, 2)
        self.inner, self.outer = kind(4, 4, batch_first=True), kind(4, 4, batch_first=True)

    def forward(self, x):
        sentences = self.inner(self.words(x.flatten(0, 1)))[0][:, -1]
        return self.out(self.outer(sentences.unflatten(0, (len(x), -1)))[0][:, -1])


class Powers(nn.Module):
    """A module of one's own, and rows of one number each."""

    def __init__(self):
        super().__init__()
        self.linear, self.inside = nn.Linear(1, 3), Power()

    def forward(self, x):
        return self.inside(self.linear(x.reshape(-1, 1))).view(len(x), -1, 3)


class Power(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x):
        return torch.matmul(x.sin(), self.weight.cos())


class Numbers(nn.Module):
    """Nothing but vectors, several of each example."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(1, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.first(x.reshape(-1, 1)).tanh()).view(len(x), -1)


MODELS = {
    "vectors": (Numbers, lambda n: torch.randn(n, 4)),
    "windows": (Windows, lambda n: torch.randn(n, 12, 5)),
    "windows without a scale": (lambda: Windows(scale=False), lambda n: torch.randn(n, 12, 5)),
    "frames": (Frames, lambda n: torch.randn(n, 3, 2, 4, 4)),
    "sentences": (Sentences, lambda n: torch.randint(0, 9, (n, 3, 5))),
    "sentences by a GRU": (lambda: Sentences(nn.GRU), lambda n: torch.randint(0, 9, (n, 3, 5))),
    "a module of one's own": (Powers, lambda n: torch.randn(n, 4)),
}


@pytest.fixture(params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"], autouse=True)
def device(request, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    with torch.device(request.param):
        yield request.param


def same(found, truth):
    assert float((flat(found) - flat(truth)).norm()) < 1e-5 * float(flat(truth).norm())


@pytest.mark.parametrize("method", ["auto", "two-pass"])
@pytest.mark.parametrize("name", MODELS)
def test_rows_side_by_side_are_those_of_one_example(name, method):
    """Batches of several sizes, of one too, by one plan: each has the sum of the slow loop."""
    torch.manual_seed(0)
    build, data = MODELS[name]
    model = build()
    batches = [data(n) for n in (5, 4, 1, 7, 2)]
    truths = [loop_clipped_sum(model, losses_of, CLIP, x) for x in batches]
    engine = Gradients(model, method)
    for x, truth in zip(batches, truths, strict=True):
        same(engine.clipped_sum(losses_of(model, x), CLIP).sums, truth)


def test_views_of_models_that_make_rows():
    """Three rows of the model for each example, and three windows of each."""
    torch.manual_seed(0)
    model, x = Windows(), torch.randn(4, 3, 12, 5)

    def losses(model, x):
        return losses_of(model, x.flatten(0, 1)).view(-1, 3).mean(1)

    truth = loop_clipped_sum(model, losses, CLIP, x)
    same(Gradients(model, views=3).clipped_sum(losses(model, x), CLIP).sums, truth)


def test_windows_in_half_precision(device):
    """Run again with a longer batch, the model computes as it did."""
    torch.manual_seed(0)
    model, x = Windows(), torch.randn(5, 12, 5)

    def losses(model, x):
        with torch.autocast(device, torch.bfloat16):
            return losses_of(model, x).float()

    truth = flat(loop_clipped_sum(model, losses, CLIP, x))
    found = flat(Gradients(model).clipped_sum(losses(model, x), CLIP).sums)
    assert float((found - truth).norm()) < 3e-2 * float(truth.norm())


@pytest.mark.parametrize("name", MODELS)
def test_captured(name, device, request):
    """Filled up to a size that is no multiple of anything, and recorded with another batch."""
    if device == "cpu":
        request.getfixturevalue("cpu_graphs")
    torch.manual_seed(0)
    build, data = MODELS[name]
    model = build()
    plain = copy.deepcopy(model)
    run = noisy_sgd(
        model, learning_rate=0.0, sampler=PoissonSampler(0.5, seed=1), clip=CLIP,
        noise=GaussianNoise(0.0), expected_batch_size=1,
    )  # fmt: skip
    run.company.asleep = True
    step = run.capture(lambda x: losses_of(model, x), size=7)
    for batch in run.batches(data(9), steps=6):
        truth = loop_clipped_sum(plain, losses_of, CLIP, batch)
        same(step(batch).sensitive.batch.sums, truth)
    assert step.mode == "CUDA graph"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["windows", "frames", "a module of one's own"])
def test_compiled(name):
    torch.manual_seed(0)
    build, data = MODELS[name]
    model = build()
    run = noisy_sgd(
        model, learning_rate=0.0, sampler=PoissonSampler(0.5), clip=CLIP,
        noise=GaussianNoise(0.0), expected_batch_size=1,
    )  # fmt: skip
    run.company.asleep = True
    step = run.compile(lambda x: losses_of(model, x), size=16)
    for batch in run.batches(data(20), steps=4):
        truth = loop_clipped_sum(model, losses_of, CLIP, batch)
        run.gradients.forget()
        same(step(batch).sensitive.batch.sums, truth)
    assert "compiled" in step.mode


class Turns(Windows):
    """Window by window, in each all examples: the rows of one are not side by side."""

    def forward(self, x):
        windows = self.before(x).unflatten(1, (-1, 4)).transpose(0, 1).flatten(0, 1)
        return self.after(self.qkv(windows)[..., :4]).unflatten(0, (-1, len(x))).transpose(0, 1)


class Routed(nn.Module):
    """Positions go to the one of two networks that their first number says."""

    def __init__(self):
        super().__init__()
        self.networks = nn.ModuleList([nn.Linear(5, 3), nn.Linear(5, 3)])
        self.first = nn.Linear(5, 5)

    def forward(self, x):
        rows = self.first(x).flatten(0, 1)
        found = rows.new_zeros(len(rows), 3)
        for number, network in enumerate(self.networks):
            mine = (x.flatten(0, 1)[:, 0] > 0) == bool(number)
            found = found.index_put((mine.nonzero()[:, 0],), network(rows[mine]))
        return found.unflatten(0, (len(x), -1))


class Bags(nn.Module):
    """So many rows for each example as the data say, put together again in some way."""

    def __init__(self, back):
        super().__init__()
        self.first, self.last, self.back = nn.Linear(5, 4), nn.Linear(4, 3), back

    def forward(self, x, lengths):
        rows = torch.cat([one[:n] for one, n in zip(x, lengths, strict=True)])
        return self.last(self.back(self.first(rows).tanh(), lengths))


def by_split(h, lengths):
    return torch.stack([part.mean(0) for part in h.split(lengths.tolist())])


def by_product(h, lengths):
    owners = torch.arange(len(lengths)).repeat_interleave(lengths)
    return torch.nn.functional.one_hot(owners, len(lengths)).to(h).t() @ h


def by_adding(h, lengths):
    owners = torch.arange(len(lengths)).repeat_interleave(lengths)
    return h.new_zeros(len(lengths), 4).index_add(0, owners, h)


@pytest.mark.parametrize("back", [by_split, by_product, by_adding])
def test_bags_that_are_even_in_the_first_batch(back):
    """Two rows each, then three and one: one record must not be clipped as part of another."""
    torch.manual_seed(0)
    model, refused = Bags(back), 0
    engine = Gradients(model)
    for lengths in ([2, 2], [3, 1], [1, 3], [2, 2]):
        x, n = torch.randn(2, 4, 5), torch.tensor(lengths)
        try:
            found = engine.clipped_sum(model(x, n).square().mean(1), CLIP).sums
        except ModelNotPrivate:
            refused += 1
            continue
        other = Bags(back)
        other.load_state_dict(model.state_dict())
        same(found, loop_clipped_sum(other, lambda m, x, n: m(x, n).square().mean(1), CLIP, x, n))
    assert refused >= 2


def test_rows_whose_places_no_gradient_shows_at_first():
    """In turns, and masked so that those which count lie right by chance."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(5, 4), nn.Linear(4, 3)

        def forward(self, x, mask):
            rows = self.first(x.transpose(0, 1).flatten(0, 1)).tanh()
            return (self.last(rows).unflatten(0, (2, -1)).transpose(0, 1) * mask[..., None]).sum(1)

    torch.manual_seed(0)
    model = Masked()
    engine = Gradients(model)
    masks = torch.tensor([[[1.0, 0], [0, 1]], [[1, 1], [1, 1]]])
    x = torch.randn(2, 2, 5)
    engine.clipped_sum(model(x, masks[0]).square().mean(1), CLIP)
    with pytest.raises(ModelNotPrivate, match="2 rows for each"):
        engine.clipped_sum(model(x, masks[1]).square().mean(1), CLIP)


@pytest.mark.parametrize("batch", [2, 3, 5])
def test_rows_in_turns_are_refused(batch):
    model, x = Turns(), torch.randn(batch, 12, 5)
    with pytest.raises(ModelNotPrivate, match="3 rows for each"):
        Gradients(model).clipped_sum(losses_of(model, x), CLIP)


def test_rows_that_the_data_choose_are_looked_at_in_every_batch():
    """Two of four rows of each example to each network, then three and one: refused, or right."""
    torch.manual_seed(0)
    model = Routed()
    engine, even, refused = Gradients(model), torch.tensor([1.0, -1.0, 1.0, -1.0]), 0
    for signs in (even.repeat(2), torch.tensor([1.0, 1, 1, -1, 1, -1, -1, -1])) * 3:
        x = torch.randn(2, 4, 5)
        x[..., 0] = x[..., 0].abs() * signs.view(2, 4)
        try:
            found = engine.clipped_sum(losses_of(model, x), CLIP).sums
        except ModelNotPrivate:
            refused += 1
        else:
            other = Routed()
            other.load_state_dict(model.state_dict())
            same(found, loop_clipped_sum(other, losses_of, CLIP, x))
    assert refused >= 3


def test_a_table_of_twice_the_batch_is_no_row_of_anybody():
    """Eight places for a batch of four; nothing else is there to find its projection by."""

    class Placed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.project = nn.Parameter(torch.randn(8, 5)), nn.Linear(5, 5)
            self.windows = Windows(scale=False)

        def forward(self, x):
            return self.windows(x + self.project(self.table).mean(0))

    torch.manual_seed(0)
    model, x = Placed(), torch.randn(4, 12, 5)
    truth = loop_clipped_sum(model, losses_of, CLIP, x)
    same(Gradients(model).clipped_sum(losses_of(model, x), CLIP).sums, truth)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_recurrent_layer_without_the_batch(kind, frozen):
    """Its hidden weights are in no graph: lost in silence, they would not be trained."""

    class Prompt(nn.Module):
        def __init__(self):
            super().__init__()
            self.prompt, self.layer = nn.Parameter(torch.randn(3, 5, 4)), kind(4, 4)
            self.out = nn.Linear(4, 2)
            if frozen:
                self.layer.weight_ih_l0.requires_grad_(False)
                self.layer.bias_ih_l0.requires_grad_(False)
                self.prompt.requires_grad_(False)

        def forward(self, x):
            return self.out(torch.tanh(x + self.layer(self.prompt)[0].mean((0, 1))))

    torch.manual_seed(0)
    model, x = Prompt(), torch.randn(2, 4)
    truth = loop_clipped_sum(model, losses_of, CLIP, x[:1])
    engine = Gradients(model)
    same(engine.clipped_sum(losses_of(model, x[:1]), CLIP).sums, truth)
    with pytest.raises(ModelNotPrivate, match="hh_l0"):
        engine.clipped_sum(losses_of(model, x), CLIP)
