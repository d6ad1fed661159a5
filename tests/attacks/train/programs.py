"""Losses in which examples meet, as people write them: each must be refused before it runs.

A case is data: a model, a loss of a batch, a batch of n examples, and how the examples meet:

    "others"  another example's values change a loss or its gradient
    "place"   a loss depends on where in the batch its example stands
    "size"    a loss depends on how many examples there are
    "memory"  a loss depends on what the program was given before
    "part"    a loss depends on which others are in its part of a batch, by a draw that they share

`refused` names the ways in which it may be refused. What only follows the size of the batch may
also run: in a run the size is one public number. What only remembers may run where the graph
forgets. Both must then be shown to keep examples apart.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

B, D, C = 6, 8, 4
MIXES, UNKNOWN, NOT_CAPTURED = "Mixes", "Unknown", "NotCaptured"
ANY = (MIXES, UNKNOWN, NOT_CAPTURED)


@dataclass(frozen=True)
class Case:
    name: str
    loss: Callable[..., Tensor]
    how: str
    refused: tuple[str, ...] = (MIXES,)
    model: Callable[[], nn.Module] = lambda: nn.Linear(D, C)
    batch: Callable[[int], tuple[Any, ...]] = lambda n: (
        torch.randn(n, D),
        torch.randint(0, C, (n,)),
    )
    may_run: bool = False  # where the graph that runs keeps examples apart, by test
    shown: bool = True  # whether running the loss as it is shows that examples meet


CASES: list[Case] = []


def meets(how: str, *refused: str, cases: list[Case] = CASES, **parts: Any) -> Callable[..., Any]:
    """Registers a loss under the name of its function."""

    def register(loss: Callable[..., Tensor]) -> Callable[..., Tensor]:
        name = loss.__name__.replace("_", " ").strip()
        cases.append(Case(name, loss, how, refused or (MIXES,), **parts))
        return loss

    return register


def of_one_line(
    losses: dict[str, Callable[..., Tensor]],
    how: str,
    *refused: str,
    cases: list[Case] = CASES,
    **parts: Any,
) -> None:
    cases.extend(
        Case(name, loss, how, refused or (MIXES,), **parts) for name, loss in losses.items()
    )


def each(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def images(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 1, 8, 8), torch.randint(0, C, (n,))


def sequences(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 5, D), torch.randint(0, C, (n,))


class Around(nn.Module):
    """A linear layer behind something that is done to its input, or before."""

    def __init__(self, before: Any = None, after: Any = None) -> None:
        super().__init__()
        self.layer = nn.Linear(D, C)
        self.before, self.after = before, after

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x if self.before is None else self.before(x))
        return x if self.after is None else self.after(x)


# Statistics of the batch.

NORMS = {
    "batch norm": lambda: nn.Sequential(nn.Linear(D, D), nn.BatchNorm1d(D), nn.Linear(D, C)),
    "batch norm without affine": lambda: nn.Sequential(
        nn.BatchNorm1d(D, affine=False), nn.Linear(D, C)
    ),
    "batch norm with a cumulative average": lambda: nn.Sequential(
        nn.BatchNorm1d(D, momentum=None), nn.Linear(D, C)
    ),
    "synchronised batch norm": lambda: nn.Sequential(nn.SyncBatchNorm(D), nn.Linear(D, C)),
}
for name, make in NORMS.items():
    CASES.append(Case(name, each, "others", model=make, refused=(MIXES, NOT_CAPTURED)))
for name, norm in {
    "batch norm of images, no statistics kept": lambda: nn.BatchNorm2d(
        4, track_running_stats=False
    ),
    "batch norm of images": lambda: nn.BatchNorm2d(4),
    "instance norm that keeps statistics": lambda: nn.InstanceNorm2d(4, track_running_stats=True),
}.items():
    make = lambda norm=norm: nn.Sequential(  # noqa: E731
        nn.Conv2d(1, 4, 3), norm(), nn.Flatten(), nn.Linear(144, C)
    )
    how = "memory" if "instance" in name else "others"
    CASES.append(Case(name, each, how, model=make, batch=images, shown=how == "others"))


@meets("others")
def mean_under_no_grad(m, x, y):
    with torch.no_grad():
        mean = m(x).mean(0)
    return each(m, x, y) + mean.sum()


@meets("others")
def mean_under_inference_mode(m, x, y):
    with torch.inference_mode():
        mean = x.mean(0)
    return each(m, x - mean.clone(), y)


@meets("others")
def mean_under_autocast(m, x, y):
    with torch.autocast("cpu", torch.bfloat16):
        out = m(x)
        out = out - out.mean(0)
    return F.cross_entropy(out.float(), y, reduction="none")


@meets("others", model=lambda: Around(lambda x: (x - x.mean(0)) / (1 + x.square().mean(0))))
def model_that_standardises(m, x, y):
    return each(m, x, y)


@meets("others", model=lambda: Around(lambda x: x.sub_(1.0).div_(2.0) - x.mean(0)))
def model_that_writes_to_its_batch_and_standardises(m, x, y):
    return each(m, x.clone(), y)


@meets("others")
def largest_loss(m, x, y):
    losses = each(m, x, y)
    return losses / losses.detach().amax()


@meets("others", MIXES, NOT_CAPTURED)
def largest_loss_as_a_number(m, x, y):
    losses = each(m, x, y)
    return losses / losses.max().item()


@meets("others")
def centred_outputs(m, x, y):
    out = m(x)
    return F.cross_entropy(out - out.detach().mean(0), y, reduction="none")


@meets("others")
def one_minus_the_mean(m, x, y):
    losses = each(m, x, y)
    return losses - losses.mean()


@meets("others")
def scaled_gradients_alone(m, x, y):
    losses = each(m, x, y)
    scaled = losses * losses.detach().mean()
    return losses.detach() + scaled - scaled.detach()


@meets("others", model=lambda: Around(None, lambda h: h + (h.mean(0) - h.mean(0).detach())))
def gradients_that_mix_where_losses_do_not(m, x, y):
    return each(m, x, y)


@meets("others", MIXES, NOT_CAPTURED, shown=False)
def mean_loss(m, x, y):
    return F.cross_entropy(m(x), y)


@meets("others")
def median(m, x, y):
    losses = each(m, x, y)
    return losses.clamp(max=losses.detach().median())


@meets("others", MIXES, UNKNOWN, NOT_CAPTURED)
def quantile(m, x, y):
    losses = each(m, x, y)
    return losses.clamp(max=torch.quantile(losses.detach(), 0.9))


@meets("others", *ANY)
def covariance_penalty(m, x, y):
    return each(m, x, y) + torch.cov(m(x).T).square().sum()


@meets("others", MIXES, UNKNOWN, shown=False)
def whitening(m, x, y):
    u, _, v = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    return each(m, u @ v, y)


@meets("others", MIXES, UNKNOWN)
def spectrum_over_the_batch(m, x, y):
    return each(m, torch.fft.rfft(x, dim=0).abs().sum(0) + x, y)


@meets("others")
def one_scale_for_float8(m, x, y):
    out = m(x).bfloat16().float()
    scale = out.detach().abs().max() / 448
    short = (out / scale).to(torch.float8_e4m3fn).to(out.dtype) * scale
    return F.cross_entropy(out + (short - out).detach(), y, reduction="none")


def _lost_digits(h):
    far = torch.zeros_like(h)
    far[0] = 1e5
    sums = (h + far).cumsum(0)
    return torch.cat([sums[:1], sums[1:] - sums[:-1]]) - far


@meets("others", shown=False)
def sums_of_all_rows_before(m, x, y):
    return F.cross_entropy(_lost_digits(m(x)), y, reduction="none")


@meets("others")
def outputs_of_one_column_against_targets_of_none(m, x, y):
    return (m(x)[:, :1] - y.float()).square().mean(1)  # (B, 1) - (B,) is (B, B)


# Order, ranks, pairs.


@meets("others")
def sorted_by_length(m, x, y):
    order = (x > 0).sum(1).argsort()
    return each(m, x[order], y[order])


@meets("others", MIXES, NOT_CAPTURED)
def hardest_k(m, x, y):
    losses = each(m, x, y)
    return losses * (losses >= losses.detach().topk(3).values[-1])


@meets("others", NOT_CAPTURED)
def hardest_by_numpy(m, x, y):
    losses = each(m, x, y)
    order = np.argsort(losses.detach().numpy())
    weights = np.zeros(len(losses), dtype=np.float32)
    weights[order[len(order) // 2 :]] = 1.0
    return losses * torch.from_numpy(weights)


@meets("others")
def hard_examples_above_the_median(m, x, y):
    losses = each(m, x, y)
    return losses * (losses >= losses.detach().median())


@meets("others")
def rank_of_the_loss(m, x, y):
    losses = each(m, x, y)
    return losses * losses.detach().argsort().argsort()


@meets("others")
def sorted_and_sorted_back_with_neighbours(m, x, y):
    order = x[:, 0].argsort()
    h = m(x)[order]
    h = h + h.roll(1, 0)
    return F.cross_entropy(h[order.argsort()], y, reduction="none")


@meets("others")
def in_batch_negatives(m, x, y):
    z = F.normalize(m(x), dim=1)
    return F.cross_entropy(z @ z.T, torch.arange(x.shape[0]), reduction="none")


@meets("others", MIXES, NOT_CAPTURED, UNKNOWN)
def distances_of_all_pairs(m, x, y):
    return torch.cdist(m(x), m(x)).mean(1)


@meets("others", MIXES, UNKNOWN, NOT_CAPTURED)
def radius_graph(m, x, y):
    near = (torch.cdist(x, x) < 4.0).float() * (1 - torch.eye(len(x)))
    return each(m, x + near @ x, y)


@meets("others")
def softmax_of_the_scores_of_all(m, x, y):
    h = m(x)
    return F.cross_entropy((h @ h.t()).softmax(1) @ h, y, reduction="none")


@meets("others", MIXES, NOT_CAPTURED, model=lambda: Around(None, None))
def one_example_added_to_one_other(m, x, y):
    first, second = x[:, 0].topk(2).indices
    return each(m, x + torch.zeros_like(x).index_add(0, first[None], x[second][None]), y)


@meets("others")
def losses_times_their_softmax(m, x, y):
    losses = each(m, x, y)
    return losses * torch.softmax(losses.detach(), 0)


# Mixtures and shifts.


@meets("others")
def a_millionth_of_the_flipped(m, x, y):
    losses = each(m, x, y)
    return losses + 1e-6 * losses.flip(0)


@meets("others")
def mixup_by_permutation(m, x, y):
    order = torch.randperm(x.shape[0])
    return each(m, 0.7 * x + 0.3 * x[order], y)


@meets("others")
def mixup_with_a_random_partner(m, x, y):
    partner = torch.randint(0, x.shape[0], (x.shape[0],))
    return each(m, 0.7 * x + 0.3 * x[partner], y)


@meets("others")
def first_and_last_meet_behind_the_layer(m, x, y):
    out = m(x)
    out = torch.cat([out[:-1], out[-1:] + 1e-4 * out[:1]])
    return F.cross_entropy(out, y, reduction="none")


@meets("others")
def first_loss_with_the_last(m, x, y):
    losses = each(m, x, y)
    return torch.cat([losses[:1] + losses[-1:], losses[1:]])


@meets("others", MIXES, NOT_CAPTURED, shown=False)
def two_halves_together(m, x, y):
    a, b = x.chunk(2)
    return each(m, torch.cat([a + b, b]), y)


@meets("others", MIXES, NOT_CAPTURED)
def reshape_that_pairs_examples(m, x, y):
    pairs = x.reshape(-1, 2, D)
    return each(m, (pairs + pairs.flip(1)).reshape(-1, D), y)


@meets("others")
def row_written_into_another(m, x, y):
    z = x.clone()
    z[0] = z[1]
    return each(m, z, y)


@meets("others")
def rows_added_to_the_next(m, x, y):
    z = x.clone()
    z[1:] += x[:-1]
    return each(m, z, y)


@meets("others", MIXES, NOT_CAPTURED)
def batch_written_to(m, x, y):
    x.sub_(x.mean(0))
    return each(m, x, y)


@meets("others")
def targets_written_to(m, x, y):
    target = F.one_hot(y, C).float()
    target -= target.mean(0)
    return (m(x) - target).square().mean(1)


@meets("others", MIXES, UNKNOWN, NOT_CAPTURED)
def view_of_a_neighbour(m, x, y):
    return each(m, torch.as_strided(x.flip(0), (x.shape[0], D), (D, 1), 0), y)


@meets("others", MIXES, UNKNOWN)
def windows_over_the_batch(m, x, y):
    return each(m, F.pad(x, (0, 0, 1, 0)).unfold(0, 2, 1).sum(-1), y)


# What the data count.


@meets("others", NOT_CAPTURED, UNKNOWN, MIXES)
def number_of_labels_in_the_batch(m, x, y):
    return each(m, x, y) * y.unique().numel()


@meets("others", NOT_CAPTURED, UNKNOWN, MIXES, shown=False)
def examples_left_out_by_a_mask(m, x, y):
    return each(m, x[y > 0], y[y > 0])


@meets("others", MIXES, NOT_CAPTURED)
def scatter_into_the_batch(m, x, y):
    return each(m, x.scatter_add(0, y.unsqueeze(1).expand(-1, D), x), y)


@meets("others", MIXES, UNKNOWN, NOT_CAPTURED)
def prototypes_of_the_classes(m, x, y):
    prototypes = torch.zeros(C, C).index_add(0, y, m(x))
    return (m(x)[:, None] - prototypes).norm(dim=2).gather(1, y[:, None])[:, 0]


@meets("others", *ANY)
def class_weights_by_bincount(m, x, y):
    return each(m, x, y) / torch.bincount(y, minlength=C)[y]


@meets("others")
def class_weights_in_the_loss(m, x, y):
    counts = F.one_hot(y, C).sum(0).float()
    return F.cross_entropy(m(x), y, weight=1 / (1 + counts), reduction="none")


@meets("others", MIXES, UNKNOWN)
def place_among_all_values(m, x, y):
    return each(m, x, y) * (1 + torch.searchsorted(x[:, 0].sort().values, x[:, 0]))


@meets("others", MIXES, NOT_CAPTURED)
def sum_of_labels_as_a_number(m, x, y):
    return each(m, x, y) * y.sum().item()


@meets("others", NOT_CAPTURED)
def branch_on_the_data(m, x, y):
    return each(m, x, y) if x.sum() > 0 else each(m, -x, y)


@meets("others", *ANY)
def branch_by_cond(m, x, y):
    losses = each(m, x, y)
    return torch.cond(x.sum() > 0, lambda v: v + 0, lambda v: v * 2, (losses,))


@meets("others", NOT_CAPTURED)
def mean_by_numpy(m, x, y):
    return each(m, x - torch.as_tensor(x.detach().numpy().mean(0)), y)


@meets("others", NOT_CAPTURED, MIXES, UNKNOWN)
def longest_label_cuts_all(m, x, y):
    most = 1 + max(y.tolist())
    return each(m, x * (torch.arange(D) < most), y)


def _padded(n):
    return torch.randn(n, 7, D), torch.randint(1, 7, (n,))


@meets("others", NOT_CAPTURED, MIXES, UNKNOWN, batch=_padded)
def cut_to_the_longest(m, x, n):
    return m(x[:, : int(n.max())]).mean((1, 2))


@meets("others", MIXES, batch=_padded)
def masked_by_the_longest(m, x, n):
    inside = torch.arange(7) < n.max()
    return (m(x) * inside[:, None]).mean((1, 2))


@meets("others", *ANY)
def computed_in_a_thread(m, x, y):
    found = []
    thread = threading.Thread(target=lambda: found.append(x * x.mean()))
    thread.start()
    thread.join()
    return each(m, found[0], y)


# Layers that take the batch for something else.

recurrent = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN}
for name, kind in recurrent.items():

    def over_time(m, x, y):
        return F.cross_entropy(m(x)[0][:, -1], y, reduction="none")

    CASES.append(
        Case(f"{name} that takes the batch for time", over_time, "others",
             model=lambda kind=kind: kind(D, C), batch=sequences)
    )  # fmt: skip


@meets("others", model=lambda: nn.MultiheadAttention(D, 2), batch=sequences)
def attention_that_takes_the_batch_for_time(m, x, y):
    return F.cross_entropy(m(x, x, x)[0].mean(1)[:, :C], y, reduction="none")


@meets("others", model=lambda: nn.Conv1d(1, 1, 3, padding=1))
def convolution_over_the_batch(m, x, y):
    return m(x.t().unsqueeze(1))[:, 0].t().sum(1)


class Folded(nn.Module):
    """A mean over the batch behind a layer whose rows are not the examples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(1, 3), nn.Linear(3 * D, C)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x.reshape(-1, 1))
        return self.head((h - h.mean(0)).reshape(len(x), -1))


@meets("others", model=Folded)
def mean_over_folded_rows(m, x, y):
    return each(m, x, y)


class Frames(nn.Module):
    """Every row sees the one before it in its group of `frames`."""

    def __init__(self, frames: int, standardise: bool = False) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(D, D), nn.Linear(D, C)
        self.frames, self.standardise = frames, standardise

    def forward(self, rows: Tensor) -> Tensor:
        rows = rows - rows.mean(0) if self.standardise else rows
        films = self.first(rows).tanh().unflatten(0, (-1, self.frames))
        return self.last((films + films.roll(1, 1)).flatten(0, 1))


def films(n):
    return torch.randn(n, 3, D), torch.randint(0, C, (n,))


@meets("others", model=lambda: Frames(3), batch=films)
def frames_in_turns(m, x, y):
    out = m(x.transpose(0, 1).flatten(0, 1)).unflatten(0, (3, -1)).mean(0)
    return F.cross_entropy(out, y, reduction="none")


@meets("others", model=lambda: Frames(3, standardise=True), batch=films)
def frames_standardised_together(m, x, y):
    out = m(x.flatten(0, 1)).unflatten(0, (len(x), 3)).mean(1)
    return F.cross_entropy(out, y, reduction="none")


@meets("others", model=lambda: Frames(2), batch=films)
def frames_in_groups_of_another_length(m, x, y):
    out = m(x.flatten(0, 1)).unflatten(0, (len(x), 3)).mean(1)
    return F.cross_entropy(out, y, reduction="none")


class Masked(nn.Module):
    """Rows in turns, put back as if they were not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(D, D), nn.Linear(D, C)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.first(x.transpose(0, 1).flatten(0, 1)).tanh()
        return self.last(rows).unflatten(0, (len(x), 3)).sum(1)


@meets("others", model=Masked, batch=films)
def rows_put_back_in_another_order(m, x, y):
    return each(m, x, y)


class Routed(nn.Module):
    """Rows of the whole batch go to the expert that their first number says."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(D, C), nn.Linear(D, C)])

    def forward(self, x: Tensor) -> Tensor:
        found = x.new_zeros(len(x), C)
        for number, expert in enumerate(self.experts):
            mine = (x[:, 0] > 0) == bool(number)
            found = found.index_put((mine.nonzero()[:, 0],), expert(x[mine]))
        return found


@meets("others", *ANY, model=Routed, shown=False)
def rows_routed_by_their_values(m, x, y):
    return each(m, x, y)


BACK = {
    "split": lambda h, n: torch.stack([part.mean(0) for part in h.split(n.tolist())]),
    "index_add": lambda h, n: h.new_zeros(len(n), D).index_add(
        0, torch.arange(len(n)).repeat_interleave(n), h
    ),
}
for name, back in BACK.items():

    def bags(m, x, n, back=back):
        rows = torch.cat([one[:k] for one, k in zip(x, n, strict=True)])
        return m(back(rows.tanh(), n)).square().mean(1)

    CASES.append(
        Case(f"bags put together by {name}", bags, "others", ANY, batch=_padded, shown=False)
    )


# What follows the size of the batch: a public number where the size is fixed.


def follows(name: str, loss: Callable[..., Tensor], **parts: Any) -> None:
    CASES.append(Case(f"size: {name}", loss, "size", ANY, may_run=True, **parts))


follows("divided by it", lambda m, x, y: each(m, x, y) / x.shape[0])
follows("divided by len", lambda m, x, y: each(m, x, y) / len(x) + 0)
follows("divided by it as a tensor", lambda m, x, y: each(m, x, y) / torch.tensor(x.shape[0]))
follows("root", lambda m, x, y: each(m, x, y) * len(x) ** -0.5)
follows("one more", lambda m, x, y: each(m, x, y) / (len(x) + 1))
follows("logarithm", lambda m, x, y: each(m, x, y) * np.log(len(x)))
follows("alpha", lambda m, x, y: torch.add(torch.zeros(len(x)), each(m, x, y), alpha=1 / len(x)))
follows("in a matrix", lambda m, x, y: each(m, x, y)[:, None] @ torch.tensor([1 / len(x)]))
follows("in the data", lambda m, x, y: each(m, x * 40 / len(x), y))
follows("in the labels", lambda m, x, y: -(m(x).log_softmax(1) * F.one_hot(y, C) / len(x)).sum(1))
follows("filled with it", lambda m, x, y: (e := each(m, x, y)) * torch.full_like(e, 1 / len(e)))
follows("counted by ones", lambda m, x, y: (e := each(m, x, y)) / torch.ones_like(e).sum().sqrt())
follows(
    "one by one",
    lambda m, x, y: torch.stack(
        [F.cross_entropy(m(a[None]), b[None]) / len(x) for a, b in zip(x, y, strict=True)]
    ),
)
follows(
    "only in large batches",
    lambda m, x, y: each(m, x, y) * (2.0 if len(x) >= 5 else 1.0),
)


@meets("others", MIXES, NOT_CAPTURED)
def mean_in_large_batches_only(m, x, y):
    return each(m, x - x.mean(0) if len(x) >= 5 else x, y)


def _divides_gradients(m, x, y):
    out = m(x)
    out.register_hook(lambda g: g / len(g))
    return F.cross_entropy(out, y, reduction="none")


follows("gradients alone", _divides_gradients)


# What follows the place in the batch: one example less moves all others.


@meets("place")
def weighed_by_place(m, x, y):
    return each(m, x, y) * torch.arange(x.shape[0])


@meets("place", MIXES, UNKNOWN, NOT_CAPTURED)
def weighed_by_a_ramp(m, x, y):
    return each(m, x, y) * torch.linspace(0, 1, x.shape[0])


@meets("place", MIXES, NOT_CAPTURED)
def weighed_in_turns(m, x, y):
    return each(m, x, y) * torch.tensor([1.0, -1.0]).repeat(200)[: len(x)]


class PerRow(nn.Module):
    """A parameter for each place of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.head = nn.Parameter(torch.randn(B, D)), nn.Linear(D, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.rows)


@meets("place", MIXES, NOT_CAPTURED, model=PerRow)
def parameter_for_each_place(m, x, y):
    return each(m, x, y)


# What a program remembers.


class Remembers(nn.Module):
    """Writes something of its batch somewhere, and may read it later."""

    kept: Any = 0.0

    def __init__(self, keep: Any, write: Any, read: Any) -> None:
        super().__init__()
        self.layer, self.write, self.read = nn.Linear(D, C), write, read
        keep(self)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.write(self, x)
        return self.layer(x - self.read(self))


def _buffer(m, *sizes):
    m.register_buffer("past", torch.zeros(*(sizes or (D,))))


def _codes(m, x):
    nearest = (x[:, None] - m.past).norm(dim=2).argmin(1)
    for k in range(3):
        of = (nearest == k).float()[:, None]
        m.past[k] = 0.9 * m.past[k] + 0.1 * (of * x).sum(0)


def _as(past):
    """Keeps something under the name `past`."""
    return lambda m: setattr(m, "past", past())


def _set(name, value):
    return lambda m, x: setattr(m, name, value(m, x))


# For each: where it is kept, how it is written, and how it is read.
_PAST, _NOT_READ = lambda m: m.past, lambda m: 0.0
MEMORIES: dict[str, tuple[Any, Any, Any]] = {
    "running mean": (_buffer, lambda m, x: m.past.mul_(0.9).add_(0.1 * x.mean(0)), _PAST),
    "replaced": (_buffer, _set("past", lambda m, x: 0.9 * m.past + 0.1 * x.mean(0)), _PAST),
    "one row": (_buffer, lambda m, x: m.past.copy_(x[-1]), _PAST),
    "only once": (
        _buffer, lambda m, x: m.past.copy_(torch.where(m.past.any(), m.past, x.mean(0))), _PAST,
    ),
    "number of examples": (
        lambda m: _buffer(m, 1), lambda m, x: m.past.add_((x[:, 0] > 0).sum()), _PAST,
    ),
    "code book": (
        _as(lambda: nn.Parameter(torch.randn(3, D), requires_grad=False)), _codes,
        lambda m: m.past.sum(0),
    ),
    "parameter": (_buffer, lambda m, x: m.layer.bias.copy_(x.mean(0)[:C]), _NOT_READ),
    "parameter, unseen": (_buffer, lambda m, x: m.layer.bias.data.copy_(x.mean(0)[:C]), _NOT_READ),
    "new parameter": (
        _buffer, lambda m, x: setattr(m.layer, "bias", nn.Parameter(x.mean(0)[:C])), _NOT_READ,
    ),
    "attribute": (
        _as(lambda: torch.zeros(D)), _set("past", lambda m, x: 0.9 * m.past + 0.1 * x.mean(0)),
        _PAST,
    ),
    "list": (
        _as(lambda: [torch.zeros(D)]), lambda m, x: m.past.__setitem__(0, x.sum(0)),
        lambda m: m.past[0],
    ),
    "queue": (
        _as(lambda: deque([torch.zeros(D)], maxlen=5)), lambda m, x: m.past.append(x[0].clone()),
        lambda m: m.past[0],
    ),
    "dictionary": (
        _as(lambda: {"of": {"mean": torch.zeros(D)}}),
        lambda m, x: m.past["of"]["mean"].add_(x.mean(0)), lambda m: m.past["of"]["mean"],
    ),
    "object": (
        _as(lambda: SimpleNamespace(mean=torch.zeros(D))),
        lambda m, x: setattr(m.past, "mean", x.mean(0)), lambda m: m.past.mean,
    ),
    "number": (
        _as(float), _set("past", lambda m, x: max(m.past, float(x.max()))), _PAST,
    ),
    "array": (
        _as(lambda: np.zeros(D, dtype=np.float32)), lambda m, x: m.past.__iadd__(x.mean(0).numpy()),
        lambda m: torch.from_numpy(m.past),
    ),
    "set": (
        _as(set), lambda m, x: m.past.update(x[:, 0].tolist()), lambda m: len(m.past) / 60,
    ),
    "not read": (_buffer, lambda m, x: m.past.mul_(0.9).add_(0.1 * x.mean(0)), _NOT_READ),
}  # fmt: skip
for name, parts in MEMORIES.items():
    made = lambda parts=parts: Remembers(*parts)  # noqa: E731
    CASES.append(Case(f"memory: {name}", each, "memory", ANY, model=made, shown=False))


def in_class():
    def write(m, x):
        Remembers.kept = 0.9 * Remembers.kept + x.mean(0)

    return Remembers(_buffer, write, lambda m: Remembers.kept)


# What is kept beside the model, the graph forgets: refused, or no memory.
CASES.append(Case("memory: in the class", each, "memory", ANY, model=in_class, may_run=True))

_past: list[Tensor] = []
_bank: list[Tensor] = []
_kept = {"last": torch.zeros(C), "bank": torch.zeros(64, C), "scale": 1.0}


def _beside(name: str, loss: Callable[..., Tensor], **more: Any) -> None:
    CASES.append(Case(f"memory: {name}", loss, "memory", ANY, may_run=True, **more))


def _in_a_list(m, x, y):
    _past.append(x.detach().mean(0))
    return each(m, x - _past[-1], y)


def _older_in_a_list(m, x, y):
    past = _bank[-1] if _bank else torch.zeros(D)
    _bank.append(x.detach().mean(0))
    return each(m, x - past, y)


def _in_a_closure(m, x, y):
    out = m(x)
    before, _kept["last"] = _kept["last"], out.detach().mean(0)
    return F.cross_entropy(out - before, y, reduction="none")


def _rows_in_a_bank(m, x, y):
    out, bank = m(x), _kept["bank"].clone()
    _kept["bank"][: len(out)] = out.detach()
    return F.cross_entropy(out - bank.mean(0), y, reduction="none")


def _running_scale(m, x, y):
    losses = each(m, x, y)
    _kept["scale"] = 0.9 * _kept["scale"] + 0.1 * losses.detach().mean()
    return losses / _kept["scale"]


def forget() -> None:
    """Puts back what these losses keep beside their models."""
    _past.clear()
    _bank.clear()
    _kept.update(last=torch.zeros(C), bank=torch.zeros(64, C), scale=1.0)
    Remembers.kept = 0.0


CASES.append(
    Case("memory: the batch itself in a list", _in_a_list, "others", (MIXES, NOT_CAPTURED))
)
_beside("older batches in a list", _older_in_a_list)
_beside("in a closure", _in_a_closure)
CASES.append(Case("memory: a bank of rows", _rows_in_a_bank, "memory", ANY, shown=False))
CASES.append(Case("memory: a running scale", _running_scale, "others", ANY))

DATA = torch.randn(50, D), torch.randint(0, C, (50,))


@meets("memory", NOT_CAPTURED, shown=False)
def data_set_in_a_closure(m, x, y):
    return each(m, x - DATA[0].mean(0), y)


@meets("memory", NOT_CAPTURED, shown=False)
def class_weights_from_all_labels(m, x, y):
    return each(m, x, y) / torch.bincount(DATA[1], minlength=C)[y]


# Generators of one's own do not hide it.

TORCH, NUMPY, PYTHON = torch.Generator(), np.random.default_rng(), random.Random()
for name, draw in {
    "torch": lambda own=TORCH: torch.randn(D, generator=own),
    "numpy": lambda own=NUMPY: torch.tensor(own.normal(size=D)).float(),
    "python": lambda own=PYTHON: torch.tensor([own.gauss(0, 1)] * D),
}.items():

    def drawn(m, x, y, draw=draw):
        x = x + draw()
        return each(m, x - x.mean(0), y)

    CASES.append(Case(f"own generator of {name}", drawn, "others", (MIXES, NOT_CAPTURED)))


# The way back: gradients alone meet.


def function(name: str, back: Callable[[Tensor], Tensor]) -> Any:
    def forward(ctx, x):
        return x.clone()

    def backward(ctx, g):
        return back(g)

    parts = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (torch.autograd.Function,), parts)


def _int8(g):
    """One scale for the gradients of all examples."""
    scale = g.abs().max() / 127
    return (g / scale).round() * scale


WAYS_BACK = {
    "centres": lambda g: g - g.mean(0),
    "adds the mean": lambda g: g + g.mean(0),
    "normalises": lambda g: g / g.norm(),
    "divides by the spread": lambda g: g / (1 + g.std()),
    "flips": lambda g: g.flip(0),
    "sums": lambda g: g.cumsum(0),
    "one scale for int8": _int8,
    "first row for all": lambda g: g[:1].expand_as(g).clone(),
    "clips by the norm of all": lambda g: g * (1 / g.norm()).clamp(max=1.0),
}
for name, back in WAYS_BACK.items():
    made = function(name.title().replace(" ", ""), back)

    def by_function(m, x, y, made=made):
        return F.cross_entropy(made.apply(m(x)), y, reduction="none")

    def by_hook(m, x, y, back=back):
        out = m(x)
        out.register_hook(back)
        return F.cross_entropy(out, y, reduction="none")

    def hooked(back=back):
        model = nn.Sequential(nn.Linear(D, D), nn.Linear(D, C))
        model[1].register_full_backward_hook(lambda mod, gi, go: (back(gi[0]),))
        return model

    for kind, loss in (("function", by_function), ("hook", by_hook)):
        refused = (MIXES, NOT_CAPTURED)
        CASES.append(Case(f"way back, {kind}: {name}", loss, "others", refused))
    CASES.append(
        Case(f"way back, module: {name}", each, "others", (MIXES, NOT_CAPTURED), model=hooked)
    )


def _stochastic(g):
    scale = g.abs().max() / 127
    return (g / scale + torch.rand_like(g)).floor() * scale


@meets("others", MIXES, NOT_CAPTURED)
def way_back_rounds_at_random_with_one_scale(m, x, y):
    out = m(x)
    out.register_hook(_stochastic)
    return F.cross_entropy(out, y, reduction="none")


# A loss that trains by itself.


@meets("memory", *ANY, shown=False)
def weights_moved_within_the_loss(m, x, y):
    losses = each(m, x, y)
    grads = torch.autograd.grad(losses.sum(), list(m.parameters()), retain_graph=True)
    with torch.no_grad():
        for p, g in zip(m.parameters(), grads, strict=True):
            p.sub_(0.1 * g)
    return losses


class TrainsItself(nn.Linear):
    def __init__(self) -> None:
        super().__init__(D, C)
        self.second = [torch.optim.SGD(self.parameters(), lr=0.1)]


@meets("memory", NOT_CAPTURED, MIXES, UNKNOWN, model=TrainsItself, shown=False)
def second_optimizer_within_the_loss(m, x, y):
    losses = each(m, x, y)
    losses.sum().backward(retain_graph=True)
    m.second[0].step()
    return losses


@meets("memory", NOT_CAPTURED, model=TrainsItself, shown=False)
def learning_rate_by_a_record(m, x, y):
    m.second[0].param_groups[0]["lr"] = 5.0 if (y == 3).any() else 0.05
    return each(m, x, y)


@meets("memory", NOT_CAPTURED, model=TrainsItself, shown=False)
def schedule_by_the_training_loss(m, x, y):
    losses = each(m, x, y)
    torch.optim.lr_scheduler.ReduceLROnPlateau(m.second[0]).step(losses.detach().mean())
    return losses


@meets("memory", NOT_CAPTURED, MIXES, UNKNOWN, shown=False)
def gradients_left_in_the_weights(m, x, y):
    losses = each(m, x, y)
    losses.sum().backward(retain_graph=True)
    return losses


# Draws that all examples share. Made anew for each part of a batch, they tie an example's gradient
# to the others of its part, and one example more moves others from part to part.


class WithTable(nn.Linear):
    def __init__(self):
        super().__init__(D, C)
        self.places = nn.Parameter(torch.randn(D))
        self.register_buffer("chances", torch.rand(D))


@meets("part", UNKNOWN, model=WithTable, shown=False)
def dropout_of_a_weight(m, x, y):
    return each(m, x + F.dropout(m.places), y)


@meets("part", UNKNOWN, model=WithTable, shown=False)
def shared_draws_by_chances_of_a_buffer(m, x, y):
    return each(m, x * torch.bernoulli(m.chances), y)


# Losses of one line.

of_one_line(
    {
        "detached mean": lambda m, x, y: each(m, x - x.mean(0).detach(), y),
        "standardised data": lambda m, x, y: each(m, (x - x.mean(0)) / x.std(0), y),
        "largest entry": lambda m, x, y: each(m, x / x.abs().max(), y),
        "mean loss repeated": lambda m, x, y: F.cross_entropy(m(x), y).expand(x.shape[0]),
        "layer norm over the batch": lambda m, x, y: each(
            m, F.layer_norm(x.t(), (x.shape[0],)).t(), y
        ),
        "differences of all pairs": lambda m, x, y: (
            (m(x)[:, None] - m(x)[None]).square().sum((1, 2))
        ),
        "attention between examples": lambda m, x, y: each(
            m, F.scaled_dot_product_attention(x[None], x[None], x[None])[0], y
        ),
        "product of the batch with itself": lambda m, x, y: each(m, (x @ x.T) @ x, y),
        "einsum of all pairs": lambda m, x, y: torch.einsum("bi,ci->bc", m(x), m(x)).logsumexp(1),
        "softmax over the batch": lambda m, x, y: m(x).softmax(0)[:, 0],
        "cumulative sum": lambda m, x, y: each(m, x.cumsum(0), y),
        "mixup by roll": lambda m, x, y: each(m, 0.7 * x + 0.3 * x.roll(1, 0), y),
        "mixup by flip": lambda m, x, y: each(m, 0.7 * x + 0.3 * x.flip(0), y),
        "cut and paste between images": lambda m, x, y: each(
            m, torch.cat([x[:, :4], x.flip(0)[:, 4:]], 1), y
        ),
        "label of the example before": lambda m, x, y: each(m, x, y.roll(1)),
        "label of the example before by cat": lambda m, x, y: each(
            m, x, torch.cat([y[-1:], y[:-1]])
        ),
        "flipped rows and labels": lambda m, x, y: each(m, x.flip(0), y.flip(0)),
        "first example used by all": lambda m, x, y: each(m, x + x[0], y),
        "last example used by all": lambda m, x, y: each(m, x + x[-1:], y),
        "first and last meet before the layer": lambda m, x, y: each(
            m, torch.cat([x[:-1], x[-1:] + x[:1]]), y
        ),
        "reshape instead of transpose": lambda m, x, y: each(
            m, x.reshape(D, -1).sum(0).unsqueeze(1) * x, y
        ),
        "class weights by one hot": lambda m, x, y: each(m, x, y) / F.one_hot(y, C).sum(0)[y],
        "gathered from another row": lambda m, x, y: each(
            m, x.gather(0, y.unsqueeze(1).expand(-1, D)), y
        ),
        "rows picked by labels": lambda m, x, y: each(m, x[y], y),
    },
    "others",
)
of_one_line(
    {
        "shared permutation of columns": lambda m, x, y: each(m, x[:, torch.randperm(D)], y),
        "shared sign": lambda m, x, y: each(m, x, y) * torch.sign(torch.rand(()) - 0.5),
        "shared noise on the inputs": lambda m, x, y: each(m, x + 0.1 * torch.randn(D), y),
        "shared mask by torch dropout": lambda m, x, y: each(m, x * F.dropout(torch.ones(D)), y),
        "shared noise as long as the batch once more": lambda m, x, y: (
            each(m, x, y) * torch.rand(2)[0]
        ),
    },
    "part",
    UNKNOWN,
    shown=False,
)
