"""Losses in which examples do not meet: each must be proved, so that a refusal refuses something.

Here too another example is replaced, and nothing else may change by a bit.
"""

from __future__ import annotations

import torch
from programs import B, C, Case, D, each, films, function, images, meets
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

CASES: list[Case] = []


def apart(**parts):
    return meets("not", cases=CASES, **parts)


def to_losses(h: Tensor) -> Tensor:
    return h.flatten(1).square().mean(1)


def small_images():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, C)
    )


@apart()
def plain(m, x, y):
    return each(m, x, y)


@apart(model=lambda: nn.Sequential(nn.Dropout(0.3), nn.Linear(D, D), nn.Tanh(), nn.Linear(D, C)))
def dropout(m, x, y):
    return each(m, F.dropout(x, 0.2), y)


@apart()
def noise_for_each_example(m, x, y):
    return each(m, x + 0.1 * torch.randn_like(x), y)


@apart()
def divided_by_a_constant(m, x, y):
    return each(m, x, y) / 40


@apart(model=lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True),
                                   nn.Flatten(), nn.Linear(144, C)), batch=images)  # fmt: skip
def instance_norm(m, x, y):
    return each(m, x, y)


def frozen_norm():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, C))
    model[1].eval()
    return model


@apart(model=frozen_norm, batch=images)
def batch_norm_in_evaluation_mode(m, x, y):
    return each(m, x, y)


class Counter(nn.Module):
    """A counter, a schedule and a power iteration: the same whatever the data are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(D, C)
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("rate", torch.ones(()))
        self.register_buffer("direction", torch.ones(C) / 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.steps += 1
            self.rate.mul_(0.99)
            u = self.layer.weight @ (self.layer.weight.t() @ self.direction)
            self.direction.copy_(u / u.norm())
        return self.layer(x) * (1 + self.steps) * self.rate + self.direction


@apart(model=Counter)
def public_counters(m, x, y):
    return each(m, x, y)


@apart()
def written_row_by_row(m, x, y):
    z = x.clone()
    z[:, 0] = z[:, 1] * 2
    z += 1
    return each(m, z, y)


@apart()
def einsum_of_each(m, x, y):
    return torch.einsum("bi,bi->b", m(x), m(x))


@apart()
def picked_by_row_numbers(m, x, y):
    return each(m, x[torch.arange(x.shape[0])], y)


@apart(batch=films)
def last_valid_step(m, x, y):
    return each(m, x[torch.arange(x.shape[0]), y % 3], y)


@apart()
def repeated_and_back(m, x, y):
    return each(m, x.repeat_interleave(2, 0).view(x.shape[0], 2, D).sum(1), y)


@apart()
def class_weights_of_ones_own(m, x, y):
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    return F.cross_entropy(m(x), y, weight=weight, reduction="none", label_smoothing=0.1)


@apart(batch=films)
def views_folded_into_the_batch(m, x, y):
    losses = F.cross_entropy(m(x.flatten(0, 1)), y.repeat_interleave(3, 0), reduction="none")
    return losses.view(-1, 3).mean(1)


@apart(batch=films)
def views_in_turns_put_back(m, x, y):
    rows = m(x.transpose(0, 1).flatten(0, 1)).unflatten(0, (3, -1)).transpose(0, 1)
    return F.cross_entropy(rows.mean(1), y, reduction="none")


@apart(batch=films)
def frames_of_one_film_meet(m, x, y):
    return each(m, (x + x.roll(1, 1)).mean(1), y)


@apart(model=small_images, batch=images)
def convolutions(m, x, y):
    return each(m, x, y)


@apart(model=lambda: nn.TransformerEncoderLayer(D, 2, 16, batch_first=True), batch=films)
def transformer_layer(m, x, y):
    return to_losses(m(x))


@apart(model=lambda: nn.TransformerEncoderLayer(D, 2, 16), batch=films)
def transformer_layer_sequence_first(m, x, y):
    return to_losses(m(x.transpose(0, 1)).transpose(0, 1))


@apart(model=lambda: nn.MultiheadAttention(D, 2, batch_first=True), batch=films)
def attention_with_a_padding_mask(m, x, y):
    mask = torch.arange(3) > (y % 3)[:, None]
    return to_losses(m(x, x, x, key_padding_mask=mask)[0])


@apart(model=lambda: nn.LSTM(D, C, batch_first=True), batch=films)
def recurrent_layer(m, x, y):
    return F.cross_entropy(m(x)[0][:, -1], y, reduction="none")


@apart(model=lambda: nn.GRU(D, C), batch=films)
def recurrent_layer_sequence_first(m, x, y):
    return F.cross_entropy(m(x.transpose(0, 1))[0][-1], y, reduction="none")


@apart(batch=lambda n: (torch.randn(n, B, D), torch.randint(0, C, (n,))))
def as_many_positions_as_examples(m, x, y):
    places = torch.arange(B, dtype=x.dtype)[:, None]
    return each(m, (x + places).softmax(1).mean(1), y)


class Positions(nn.Module):
    """Tables of positions that are as long as the batch."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.places, self.head, self.how = nn.Embedding(B, D), nn.Linear(D, C), how

    def forward(self, x: Tensor) -> Tensor:
        table = self.places.weight
        place = {
            "embedding": lambda: self.places(torch.arange(x.shape[1])),
            "sliced": lambda: table[: x.shape[1]],
            "attention": lambda: (table @ table.t()).softmax(1) @ table,
        }[self.how]()
        return self.head((x + place).tanh().mean(1))


for how in ("embedding", "sliced", "attention"):
    CASES.append(
        Case(f"positions by {how}", each, "not", model=lambda how=how: Positions(how),
             batch=lambda n: (torch.randn(n, B, D), torch.randint(0, C, (n,))))
    )  # fmt: skip


class Windows(nn.Module):
    """Attention inside windows of two positions, as in Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(D, 3 * D), nn.Linear(D, C)

    def forward(self, x: Tensor) -> Tensor:
        windows = x.unflatten(1, (-1, 2)).flatten(0, 1)
        q, k, v = self.qkv(windows).chunk(3, -1)
        out = (q @ k.transpose(1, 2)).softmax(-1) @ v
        return self.head(out.unflatten(0, (len(x), -1)).flatten(1, 2).mean(1))


@apart(model=Windows, batch=lambda n: (torch.randn(n, 4, D), torch.randint(0, C, (n,))))
def windows(m, x, y):
    return each(m, x, y)


@apart()
def sorted_within_the_example(m, x, y):
    order = x.argsort(1)
    return each(m, x.gather(1, order).cumsum(1).flip(1), y)


@apart()
def straight_through(m, x, y):
    h = m(x)
    return F.cross_entropy(h + (h.sign() - h).detach(), y, reduction="none")


Reversed = function("Reversed", lambda g: -g)
Normalised = function("Normalised", lambda g: g / (g.norm(dim=1, keepdim=True) + 1))


@apart()
def gradient_reversal(m, x, y):
    return F.cross_entropy(Reversed.apply(m(x)), y, reduction="none")


@apart()
def gradients_normalised_row_by_row(m, x, y):
    return F.cross_entropy(Normalised.apply(m(x)), y, reduction="none")


@apart()
def hook_that_clamps(m, x, y):
    out = m(x)
    out.register_hook(lambda g: g.clamp(-0.1, 0.1))
    return F.cross_entropy(out, y, reduction="none")


@apart()
def autocast(m, x, y):
    with torch.autocast("cpu", torch.bfloat16):
        out = m(x)
    return F.cross_entropy(out.float(), y, reduction="none")


@apart()
def checkpointed(m, x, y):
    h = checkpoint(lambda v: m(v).tanh() * 2, x, use_reentrant=False)
    return F.cross_entropy(h, y, reduction="none")


@apart(model=lambda: nn.utils.parametrizations.weight_norm(nn.Linear(D, C)))
def weight_norm(m, x, y):
    return each(m, x, y)


@apart(model=lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(D, C)))
def spectral_norm(m, x, y):
    return each(m, x, y)


@apart(model=lambda: nn.EmbeddingBag(C, C, mode="mean"))
def bag_of_words(m, x, y):
    return F.cross_entropy(m(torch.stack([y, (y + 1) % C], 1)), y, reduction="none")


@apart(batch=lambda n: (torch.randn(n, D, dtype=torch.complex64), torch.randint(0, C, (n,))))
def complex_numbers(m, x, y):
    return each(m, (x * x.conj()).real, y)


@apart(batch=lambda n: ({"x": torch.randn(n, D), "y": torch.randint(0, C, (n,))},))
def dictionary(m, batch):
    return each(m, batch["x"], batch["y"])


@apart()
def mean_absolute_and_huber(m, x, y):
    target = F.one_hot(y, C).float()
    return (
        F.huber_loss(m(x), target, reduction="none", delta=1.0)
        + F.smooth_l1_loss(m(x), target, reduction="none")
    ).mean(1)


@apart(model=lambda: nn.Bilinear(D, D, C))
def bilinear_layer(m, x, y):
    return F.cross_entropy(m(x, x.flip(1)), y, reduction="none")


@apart()
def triplet_within_the_example(m, x, y):
    a, p, n = m(x), m(x.roll(1, 1)), m(x.flip(1))
    return F.triplet_margin_loss(a, p, n, reduction="none")


@apart()
def centred_over_the_features(m, x, y):
    return each(m, x - x.mean(1, keepdim=True), y)


@apart()
def features_in_order_of_size(m, x, y):
    return each(m, x.sort(1).values, y)


@apart()
def largest_features_only(m, x, y):
    at = x.abs().topk(3, 1).indices
    return each(m, torch.zeros_like(x).scatter(1, at, x.gather(1, at)), y)


@apart(batch=lambda n: (torch.randn(n, 5, D), torch.randint(0, C, (n,))))
def running_sum_over_time(m, x, y):
    return each(m, x.cumsum(1)[:, -1], y)


@apart()
def similarity_of_two_halves(m, x, y):
    a, b = m(x).chunk(2, 1)
    return 1 - F.cosine_similarity(a, b)


@apart(batch=lambda n: (torch.randn(n, 5, D), torch.randint(0, C, (n,))))
def attention_over_time(m, x, y):
    h = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    return each(m, h.mean(1), y)


@apart()
def smoothed_labels(m, x, y):
    return F.cross_entropy(m(x), y, reduction="none", label_smoothing=0.1)


@apart()
def mean_under_autocast_over_the_features(m, x, y):
    with torch.autocast("cpu", torch.bfloat16):
        h = m(x)
        h = h - h.mean(1, keepdim=True)
    return F.cross_entropy(h.float(), y, reduction="none")
