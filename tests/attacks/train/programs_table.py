"""Losses written against the rules of the proof, line by line: each must be refused.

Row numbers and sizes that are smuggled into values, labels of folded dimensions that differ, sizes
that coincide, arguments by keyword and negative dimensions, operators that only look as if they
worked element by element, views, and ways around the graph itself.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from programs import (
    ANY,
    MIXES,
    NOT_CAPTURED,
    UNKNOWN,
    B,
    C,
    Case,
    D,
    each,
    films,
    images,
    meets,
    of_one_line,
)
from torch import Tensor, nn
from torch.nn import functional as F

ops = torch.ops.aten
CASES: list[Case] = []


def attack(how: str, *refused: str, **parts: Any) -> Any:
    return meets(how, *refused, cases=CASES, **parts)


def to_losses(h: Tensor) -> Tensor:
    return h.flatten(1).square().mean(1)


# Row numbers.


@attack("others", MIXES, UNKNOWN, NOT_CAPTURED)
def row_numbers_in_another_order(m, x, y):
    return each(m, x[torch.arange(x.shape[0]).view(2, -1).t().reshape(-1)], y)


@attack("others", MIXES, UNKNOWN)
def row_numbers_of_columns(m, x, y):
    index = torch.arange(x.shape[0])
    square = x[:, :1] @ torch.ones(1, x.shape[0])  # row b holds x[b, 0] at every place
    return each(m, x + square[:, index].t()[:, :1], y)


@attack("place", MIXES, UNKNOWN)
def row_numbers_in_uint8(m, x, y):
    number = torch.arange(x.shape[0]).to(torch.uint8)
    return each(m, x, y) * (1 + number)


@attack("place", MIXES, UNKNOWN)
def row_numbers_read_from_the_rows(m, x, y):
    wide = torch.arange(64.0).expand(x.shape[0], 64)  # all rows alike: 0, 1, 2, ...
    index = torch.arange(x.shape[0])
    return each(m, x, y) * wide[index, index]


@attack("place", MIXES, UNKNOWN, NOT_CAPTURED)
def places_by_nonzero(m, x, y):
    return each(m, x, y) * torch.ones(x.shape[0]).nonzero()[:, 0]


@attack("place", MIXES, UNKNOWN)
def places_by_argsort_of_equal_numbers(m, x, y):
    order = torch.argsort(torch.zeros(x.shape[0]), stable=True)
    return each(m, x, y) * order


@attack("place", MIXES, UNKNOWN)
def places_by_a_square_of_ones(m, x, y):
    """Rows of ones(B, B) are the same, and so are its columns until one of them is summed up."""
    ones = torch.ones(x.shape[0], x.shape[0]).cumsum(1).t()
    return each(m, x, y) * ones[:, 0]


@attack("place", MIXES, UNKNOWN)
def first_row_set_to_zero(m, x, y):
    z = x.clone()
    z[0] = 0.0
    return each(m, z, y)


@attack("place", MIXES, UNKNOWN)
def every_second_row_turned(m, x, y):
    z = x.clone()
    z[::2] *= -1
    return each(m, z, y)


@attack("place", MIXES, UNKNOWN)
def first_number_of_the_flat_batch(m, x, y):
    z = x.clone()
    z.view(-1)[0] = 9.0
    return each(m, z, y)


@attack("place", MIXES, UNKNOWN, NOT_CAPTURED)
def rows_filled_by_number(m, x, y):
    return each(m, x.index_fill(0, torch.tensor([0, 2]), 0.0), y)


@attack("place", MIXES, UNKNOWN, NOT_CAPTURED, model=lambda: nn.Linear(D, B))
def weight_as_long_as_the_batch(m, x, y):
    return (x * m.weight).square().sum(1) if len(x) == B else x.square().sum(1)


@attack("place", MIXES, UNKNOWN)
def mean_of_a_padded_row(m, x, y):
    """Public rows behind the last one."""
    rows = torch.cat([x, torch.zeros(2, D)])
    return each(m, rows[: len(x)] - rows.roll(2, 0)[: len(x)], y)


# Labels of folded dimensions.


@attack("others")
def outer_times_inner(m, x, y):
    """(view, example) against (example, view): the same size, another order."""
    return (m(x.repeat(2, 1)) * m(x.repeat_interleave(2, 0))).view(-1, 2, C).mean((1, 2))


@attack("others", batch=films)
def folded_losses_in_another_order(m, x, y):
    rows = m(x.transpose(0, 1).flatten(0, 1))
    each_row = F.cross_entropy(rows, y.repeat_interleave(3), reduction="none")
    return each_row.view(len(y), 3).mean(1)


@attack("others", batch=films)
def folded_attention(m, x, y):
    q = x.flatten(0, 1).unflatten(1, (2, -1))
    k = x.transpose(0, 1).flatten(0, 1).unflatten(1, (2, -1))
    out = F.scaled_dot_product_attention(k, q, q).view(len(x), 3, D)
    return to_losses(m(out))


@attack("others", batch=films)
def folded_products(m, x, y):
    a, b = x.flatten(0, 1)[:, None], x.transpose(0, 1).flatten(0, 1)[:, :, None]
    return torch.bmm(a, b).view(len(x), 3).mean(1) + m(x).mean((1, 2))


@attack("others", MIXES, UNKNOWN, NOT_CAPTURED)
def views_of_pairs(m, x, y):
    return to_losses(m(x).view(-1, 2, C).softmax(1).reshape(-1, C))


@attack("others")
def flat_batch_pooled(m, x, y):
    flat = F.max_pool1d(x.flatten()[None, None], D + 1, stride=D, padding=1)
    return each(m, x + flat[0, 0, : len(x), None], y)


@attack("others", MIXES, UNKNOWN, NOT_CAPTURED)
def flat_batch_cut_and_put_together(m, x, y):
    flat = x.flatten()
    return each(m, torch.cat([flat[1:], flat[:1]]).view(-1, D), y)


# Square batches: as many numbers as examples.


class Square(nn.Module):
    """Takes batches of B rows of B numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(B, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def square(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, B), torch.randint(0, C, (n,))


SQUARES = {
    "plus transposed": lambda x: x + x.t(),
    "matrix power": lambda x: x @ x,
    "symmetric view": lambda x: x.mT.contiguous().view(x.shape) + x,
    "mean over dimension -2": lambda x: x - x.mean(-2),
    "mean over dimension -2, kept": lambda x: x - x.mean(dim=-2, keepdim=True),
    "swapped axes": lambda x: torch.swapaxes(x, 0, -1) * x,
    "moved": lambda x: torch.movedim(x, -1, 0) * x,
    "gathered by columns": lambda x: x.t().gather(1, x.argsort(1)),
    "sorted over columns": lambda x: x.sort(dim=-2).values,
    "permuted in place": lambda x: x.clone().transpose_(0, 1),
    "in a norm of columns": lambda x: F.layer_norm(x.t(), (B,)),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x),
    "diagonal": lambda x: x + x.diagonal(),
    "row of means": lambda x: x - x.mean(1),
}
for name, change in SQUARES.items():

    def of_squares(m, x, y, change=change):
        return each(m, change(x), y)

    CASES.append(
        Case(f"square batch: {name}", of_squares, "others", (MIXES, UNKNOWN, NOT_CAPTURED),
             model=Square, batch=square)
    )  # fmt: skip


# Reductions and orders, with every way to say the dimension.

REDUCED = {
    "sum, no dimension": lambda x: x.sum(),
    "sum, empty dimensions": lambda x: x.sum(()),
    "mean, dimension None": lambda x: x.mean(None),
    "mean, all by numbers": lambda x: x.mean((-1, -2)),
    "amax by keyword": lambda x: torch.amax(x, dim=0),
    "aminmax": lambda x: torch.aminmax(x, dim=0).max,
    "max with indices": lambda x: x.max(dim=-2).values,
    "any": lambda x: (x > 2).any(0).float(),
    "all, no dimension": lambda x: (x > -9).all() * x.abs().max(),
    "count_nonzero": lambda x: (x > 0).count_nonzero(dim=0).float(),
    "prod": lambda x: x.prod(0),
    "std by correction": lambda x: torch.std(x, dim=0, correction=0),
    "var_mean": lambda x: torch.var_mean(x, dim=0)[0],
    "logsumexp": lambda x: x.logsumexp((0,)),
    "argmax": lambda x: x.argmax(0).float(),
    "argmin of all": lambda x: x.argmin().float(),
    "median of columns": lambda x: x.median(0).values,
    "median of what is a number": lambda x: x.nanmedian(dim=0).values,
    "mode": lambda x: x.round().mode(0).values,
    "kthvalue": lambda x: x.kthvalue(1, dim=0).values,
    "norm": lambda x: x.norm(),
    "norm by keyword": lambda x: torch.linalg.vector_norm(x, dim=0),
    "matrix norm": lambda x: torch.linalg.matrix_norm(x),
    "normalize": lambda x: F.normalize(x, dim=0),
    "softmax by keyword": lambda x: torch.softmax(x, dim=0, dtype=torch.float64).float(),
    "log softmax": lambda x: F.log_softmax(x, dim=-2),
    "cummax": lambda x: x.cummax(0).values,
    "logcumsumexp": lambda x: x.logcumsumexp(dim=-2),
    "cumprod": lambda x: x.cumprod(0),
    "stable sort by keyword": lambda x: torch.sort(x, stable=True, dim=0).values,
    "topk by keyword": lambda x: x.topk(2, dim=0).values.sum(0),
    "msort": lambda x: torch.msort(x),
    "diff": lambda x: torch.diff(x, dim=0, prepend=x[:1]),
    "renorm of columns": lambda x: torch.renorm(x, 2, 1, 0.5),
    "glu over the batch": lambda x: F.glu(x, dim=0).repeat(2, 1),
    "flip both": lambda x: x.flip(dims=[-1, -2]),
    "rotated": lambda x: torch.rot90(x, 2, (0, 1)),
    "rolled flat": lambda x: x.roll(3),
    "rolled, negative": lambda x: torch.roll(x, shifts=(1,), dims=(-2,)),
    "trapezoid": lambda x: torch.trapezoid(x, dim=0),
    "histogram": lambda x: torch.histc(x.detach(), 4).sum() * x.max(),
    "cosine with the mean": lambda x: F.cosine_similarity(x, x.mean(0), dim=1)[:, None],
    "sum to one row": lambda x: x.sum_to_size(1, D),
    "dist": lambda x: torch.dist(x, x.flip(1)),
    "einsum bi to i": lambda x: torch.einsum("bi,bi->i", x, x),
    "tensordot": lambda x: x @ torch.tensordot(x, x, dims=([0], [0])),
    "outer product": lambda x: torch.outer(x[:, 0], x[:, 1]).mean(1, keepdim=True),
    "addr": lambda x: torch.addr(torch.zeros(len(x), len(x)), x[:, 0], x[:, 1]).mean(1)[:, None],
    "kron": lambda x: torch.kron(x[:, :1], x[:, :1]).view(len(x), -1).mean(0)[:, None],
    "inner": lambda x: torch.inner(x, x).mean(0)[:, None],
    "vdot": lambda x: torch.vdot(x[:, 0], x[:, 1]),
    "addmm of transposed": lambda x: x + torch.addmm(torch.zeros(D), x.t(), x)[0],
    "cov": lambda x: torch.cov(x.t())[0],
    "meshgrid": lambda x: torch.meshgrid(x[:, 0], x[:, 0], indexing="ij")[1].mean(1)[:, None],
    "broadcast": lambda x: (x[:, None] * torch.ones(len(x), 1)).mean(0),
    "where by another": lambda x: torch.where(x > 0, x, x.roll(1, 0)),
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.5),
    "masked_fill by a mean": lambda x: x.masked_fill(x > 1, x.mean()),
    "nan_to_num by the largest": lambda x: torch.where(x.isnan(), x.max(), x) + x.isnan().any(),
    "take": lambda x: x.take(torch.arange(D)),
    "put": lambda x: x.put(torch.tensor([0]), x[1:2, 0]),
    "take_along_dim": lambda x: torch.take_along_dim(x, x.argsort(0), 0),
    "masked_scatter": lambda x: torch.zeros_like(x).masked_scatter(x > 0, x),
    "scatter_reduce": lambda x: x.scatter_reduce(0, x.argsort(0), x, "mean"),
    "index_add": lambda x: x.index_add(0, torch.arange(len(x)).flip(0), x),
    "index_copy": lambda x: x.index_copy(0, torch.tensor([0, 1]), x[2:4]),
    "index_put": lambda x: x.index_put((torch.tensor([0]),), x[1:2], accumulate=True),
    "narrow": lambda x: x - x.narrow(0, 1, 1),
    "select by -1": lambda x: x - x.select(-2, -1),
    "unbind": lambda x: x - torch.unbind(x)[0],
    "split": lambda x: x - torch.split(x, 1)[0],
    "tensor_split": lambda x: x - torch.tensor_split(x, 2)[0][:1],
    "hsplit of transposed": lambda x: x - torch.hsplit(x.t(), [1])[0].t(),
    "repeat_interleave and cut": lambda x: x.repeat_interleave(2, 0)[: len(x)],
    "unfold": lambda x: x - x.unfold(0, 2, 1).sum((0, -1)),
    "group norm of channels": lambda x: F.group_norm(x.t().unsqueeze(0), 1)[0].t(),
    "group norm of rows": lambda x: F.group_norm(x[None], 1)[0],
    "batch norm as a function": lambda x: F.batch_norm(x, None, None, training=True),
    "instance norm of columns": lambda x: F.instance_norm(x.t()[None])[0].t(),
    "response norm over rows": lambda x: F.local_response_norm(x[None], 3)[0],
    "pool over rows": lambda x: F.avg_pool2d(x[None], 3, 1, 1)[0],
    "interpolated over rows": lambda x: F.interpolate(
        F.interpolate(x[None, None], scale_factor=2, mode="bilinear"), x.shape, mode="bilinear"
    )[0, 0],
    "reflection over rows": lambda x: F.pad(x[None], (0, 0, 1, 1), mode="reflect")[0, :-2],
    "circular over rows": lambda x: F.pad(x[None], (0, 0, 1, 0), mode="circular")[0, :-1],
    "complex mean": lambda x: torch.complex(x, x).mean(0).real,
    "spectrum in two dimensions": lambda x: torch.fft.fft2(x).real,
    "softmax without a dimension": lambda x: x + ops.softmax.int(x[..., None], 0)[..., 0],
    "running mean by EWMA": lambda x: torch.stack(list(_running(x))),
    "whole batch in a list": lambda x: torch.stack([row - x[0] for row in x]),
    "python sum": lambda x: x - sum(x),
    "bilinear": lambda x: F.bilinear(x, x.flip(0), torch.ones(D, D, D)),
    "standardised by vmap": lambda x: torch.vmap(lambda c: c - c.mean(), 1, 1)(x),
    "product in double": lambda x: (x.double().t() @ x.double()).float()[0],
    "inverse of the gram matrix": lambda x: x @ torch.linalg.inv(x.t() @ x + torch.eye(D)),
    "solved": lambda x: torch.linalg.solve(x.t() @ x + torch.eye(D), x.t()).t(),
    "orthogonal": lambda x: torch.linalg.qr(x)[0] @ torch.ones(min(B, D), D),
}  # fmt: skip


def _running(x):
    mean = torch.zeros(D)
    for row in x:
        mean = 0.9 * mean + 0.1 * row
        yield row - mean


for name, change in REDUCED.items():

    def reduced(m, x, y, change=change):
        return each(m, x + change(x), y)

    shown = "nan" not in name  # these have none
    CASES.append(Case(f"reduced: {name}", reduced, "others", ANY, shown=shown))


# Arguments that are read otherwise than they look.


@attack("others", MIXES, NOT_CAPTURED)
def beta_where_the_reduction_stands(m, x, y):
    loss = ops.smooth_l1_loss.default(m(x), F.one_hot(y, C).float(), beta=0)  # its mean
    return loss.expand(x.shape[0])


@attack("others", MIXES, NOT_CAPTURED)
def reduction_left_to_the_default(m, x, y):
    return each(m, x, y) + ops.mse_loss.default(m(x), F.one_hot(y, C).float())


@attack("others", MIXES, NOT_CAPTURED)
def reduction_of_batch_mean(m, x, y):
    log = m(x).log_softmax(1)
    return each(m, x, y) + F.kl_div(log, F.one_hot(y, C).float(), reduction="batchmean")


@attack("others", MIXES, UNKNOWN, shown=False,
        model=lambda: nn.Embedding(C, C, scale_grad_by_freq=True))  # fmt: skip
def frequencies_scale_the_gradient(m, x, y):
    return F.cross_entropy(m(y), y, reduction="none")


@attack("memory", MIXES, NOT_CAPTURED, UNKNOWN, shown=False,
        model=lambda: nn.Sequential(nn.Embedding(C, D, max_norm=0.5), nn.Linear(D, C)))  # fmt: skip
def words_of_the_batch_are_renormed_in_the_table(m, x, y):
    """The table is written to where the batch has a word: which words it has is seen in it."""
    return F.cross_entropy(m(y), y, reduction="none")


@attack("others", MIXES, UNKNOWN, NOT_CAPTURED, model=lambda: nn.EmbeddingBag(C, C))
def bags_that_cross_examples(m, x, y):
    offsets = torch.arange(0, len(y) * 2, 2)
    words = torch.stack([y, y], 1).flatten().roll(1)
    return F.cross_entropy(m(words, offsets), y, reduction="none")


@attack("others", MIXES, UNKNOWN, NOT_CAPTURED, model=lambda: nn.EmbeddingBag(C, C))
def bags_cut_by_the_data(m, x, y):
    words = torch.stack([y, y], 1).flatten()
    offsets = torch.arange(0, len(y) * 2, 2) + (y.sum() % 2)
    offsets[0] = 0
    return F.cross_entropy(m(words, offsets), y, reduction="none")


@attack("others", model=Square, batch=square)
def slopes_of_the_examples_in_prelu(m, x, y):
    """As many channels as examples: channel k takes the slope of example k."""
    return to_losses(F.prelu(x, x.mean(1))) + each(m, x, y)


@attack("others", MIXES, UNKNOWN, NOT_CAPTURED,
        batch=lambda n: (torch.randn(n, B, 5, D), torch.randn(n, 5, 5), torch.zeros(n).long())
        )  # fmt: skip
def mask_of_the_examples_taken_for_one_of_the_heads(m, x, mask, y):
    """As many heads as examples: (B, T, T) is broadcast against (B, H, T, T) from the right."""
    return to_losses(m(F.scaled_dot_product_attention(x, x, x, attn_mask=mask)))


@attack("others", batch=lambda n: (torch.randn(n, B, D), torch.randn(n, D), torch.zeros(n).long()))
def rows_broadcast_to_positions(m, x, z, y):
    """As many positions as examples: (B, D) is added along the positions."""
    return to_losses(m(x + z))


@attack("others", batch=lambda n: (torch.randn(n, B, D), torch.randn(n, D, 3), torch.zeros(n)))
def matrices_of_other_examples(m, x, z, y):
    return to_losses(torch.matmul(x.transpose(0, 1), z)) + m(x).mean((1, 2))


@attack("others", batch=lambda n: (torch.randn(n, 4, 4, 4), torch.randint(0, C, (n,))))
def images_taken_for_channels(m, x, y):
    across = F.conv2d(x.transpose(0, 1), torch.ones(1, x.shape[0], 1, 1))[:, 0]
    return to_losses(m(torch.cat([x.mean((1, 2)), across[:1].mean(1).expand(len(x), 4)], 1)))


@attack("others", batch=images, model=lambda: nn.Linear(64, C))
def statistics_of_an_unbatched_group_norm(m, x, y):
    return each(m, F.group_norm(x.transpose(0, 1), 1).transpose(0, 1).flatten(1), y)


@attack("others", MIXES, UNKNOWN, batch=images, model=lambda: nn.Linear(64, C))
def pixels_shuffled_into_other_examples(m, x, y):
    side = F.pixel_unshuffle(x.transpose(0, 1), 2)
    return each(m, F.pixel_shuffle(side.roll(1, 1), 2).transpose(0, 1).flatten(1), y)


@attack("others", MIXES, UNKNOWN, NOT_CAPTURED)
def probability_from_the_batch(m, x, y):
    keep = torch.bernoulli(x.mean(0, keepdim=True).sigmoid())
    return each(m, x * keep, y)


@attack("others", MIXES, UNKNOWN, NOT_CAPTURED)
def mask_drawn_with_the_rate_of_the_batch(m, x, y):
    return each(m, F.dropout(x, 0.5 * float(x.mean().sigmoid()), training=True), y)


# Ways around the graph.


# Export forgets hooks on nodes: the graph keeps examples apart, and is not what was written. The
# start of a run compares both, and refuses.
@attack("others", MIXES, NOT_CAPTURED, may_run=True)
def hook_on_a_node_of_the_graph(m, x, y):
    out = m(x)
    out.grad_fn.register_prehook(lambda g: (g[0] + g[0].mean(0),))
    return F.cross_entropy(out, y, reduction="none")


@attack("others", MIXES, NOT_CAPTURED, may_run=True)
def hook_behind_a_node_of_the_graph(m, x, y):
    h = m(x)
    out = h * 1.0
    out.grad_fn.register_hook(lambda gi, go: (gi[0] + gi[0].mean(0), *gi[1:]))
    return F.cross_entropy(out, y, reduction="none")


@attack("others", MIXES, NOT_CAPTURED)
def saved_values_exchanged_for_the_way_back(m, x, y):
    def pack(saved):
        return saved - saved.mean(0, keepdim=True) if saved.dim() == 2 else saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
        h = torch.sin(m(x))
    return F.cross_entropy(h, y, reduction="none")


@attack("others", MIXES, NOT_CAPTURED)
def hook_on_several_gradients(m, x, y):
    out = m(x)
    torch.autograd.graph.register_multi_grad_hook([out], lambda grads: out.grad_fn)
    out.register_hook(lambda g: g - g.mean(0))
    return F.cross_entropy(out, y, reduction="none")


class HookedInForward(nn.Module):
    """Registers its hook on gradients while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(D, C)
        self.before = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        h = self.before(x * 1.0 + self.layer.bias.sum())
        h.register_hook(lambda g: g - g[:1])
        return self.layer(h)


@attack("others", MIXES, NOT_CAPTURED, model=HookedInForward)
def hook_registered_while_the_model_runs(m, x, y):
    return each(m, x, y)


def with_pre_hook_on_gradients():
    model = nn.Sequential(nn.Linear(D, D), nn.Linear(D, C))
    model[1].register_full_backward_pre_hook(lambda mod, g: (g[0] - g[0].mean(0),))
    return model


@attack("others", MIXES, NOT_CAPTURED, model=with_pre_hook_on_gradients)
def module_hook_before_the_way_back(m, x, y):
    return each(m, x, y)


def with_forward_hook():
    model = nn.Sequential(nn.Linear(D, D), nn.Linear(D, C))
    model[0].register_forward_hook(lambda mod, args, out: out - out.mean(0))
    return model


@attack("others", model=with_forward_hook)
def forward_hook_that_centres(m, x, y):
    return each(m, x, y)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        return 2 * g * (1 + 0 * g.mean()) + g.flip(0)


bound_before = Twice.apply


@attack("others", MIXES, NOT_CAPTURED)
def function_bound_before_with_a_context_of_its_own(m, x, y):
    return F.cross_entropy(bound_before(m(x)), y, reduction="none")


class InForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x - x.mean(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g


@attack("others", MIXES, NOT_CAPTURED)
def function_that_centres_forward(m, x, y):
    return F.cross_entropy(InForward.apply(m(x)), y, reduction="none")


class OfRowsAndWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w + x.mean(0) * g.sum(1, keepdim=True), g.t() @ x


@attack("others", MIXES, NOT_CAPTURED, UNKNOWN)
def function_of_rows_and_a_weight_that_mixes_rows(m, x, y):
    return F.cross_entropy(
        OfRowsAndWeights.apply(m.weight.sum() * x, m.weight), y, reduction="none"
    )


class Reads(torch.autograd.Function):
    """Takes a tensor of the batch from outside of its arguments."""

    other: Any = None

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * Reads.other.mean()


@attack("others", MIXES, NOT_CAPTURED, UNKNOWN)
def function_that_reads_the_batch_from_outside(m, x, y):
    Reads.other = x
    return F.cross_entropy(Reads.apply(m(x)), y, reduction="none")


@torch.library.custom_op("tightrope_tests::centre", mutates_args=())
def centre(x: Tensor) -> Tensor:
    return x - x.mean(0)


@centre.register_fake
def _(x):
    return torch.empty_like(x)


@torch.library.custom_op("tightrope_tests::same", mutates_args=())
def same(x: Tensor) -> Tensor:
    return x.clone()


@same.register_fake
def _(x):
    return torch.empty_like(x)


same.register_autograd(lambda ctx, g: g + g.mean(0))
centre.register_autograd(lambda ctx, g: g)


class AllAtOnce(torch.overrides.TorchFunctionMode):
    """Changes what `tanh` means while it is entered."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out - out.mean(0) if func in (torch.tanh, Tensor.tanh) else out


@attack("others", *ANY)
def mode_that_changes_a_function(m, x, y):
    with AllAtOnce():
        return F.cross_entropy(m(x).tanh(), y, reduction="none")


class Centred(Tensor):
    """A tensor that centres whatever it is multiplied with."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        if func in (torch.mul, Tensor.mul, operator.mul) and isinstance(out, Tensor):
            return out.as_subclass(Tensor) - out.as_subclass(Tensor).mean(0)
        return out


class Standardises(nn.Module):
    """A parametrization of a weight by the batch that was seen last."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Any = None

    def forward(self, weight: Tensor) -> Tensor:
        return weight if self.seen is None else weight * self.seen.mean(0)


def parametrized():
    layer = nn.Linear(D, C)
    nn.utils.parametrize.register_parametrization(layer, "weight", Standardises())
    layer.register_forward_pre_hook(
        lambda m, args: setattr(m.parametrizations.weight[0], "seen", args[0])
    )
    return layer


@attack("others", *ANY, model=parametrized)
def weight_parametrized_by_the_batch(m, x, y):
    return each(m, x, y)


@attack("others", *ANY)
def gradient_of_the_weights_in_the_loss(m, x, y):
    losses = each(m, x, y)
    grads = torch.autograd.grad(losses.sum(), m.weight, create_graph=True)[0]
    return losses + grads.square().sum()


@attack("others", *ANY, shown=False)
def gradient_of_the_mean_loss(m, x, y):
    x = x.detach().requires_grad_()
    losses = each(m, x, y)
    (grads,) = torch.autograd.grad((losses * losses.detach().mean()).sum(), x, create_graph=True)
    return losses + grads.square().sum(1)


@attack("others", *ANY)
def inner_step_on_the_whole_batch(m, x, y):
    def of(weight):
        return F.cross_entropy(F.linear(x, weight, m.bias), y)

    moved = m.weight - 0.1 * torch.func.grad(of)(m.weight)
    return F.cross_entropy(F.linear(x, moved, m.bias), y, reduction="none")


@attack("others", *ANY)
def scan_over_the_batch(m, x, y):
    from torch._higher_order_ops.scan import scan

    _, out = scan(lambda c, row: (c + row, c + row), torch.zeros(D), x, dim=0)
    return each(m, out, y)


@attack("others", *ANY)
def checkpointed_mean(m, x, y):
    from torch.utils.checkpoint import checkpoint

    return F.cross_entropy(
        checkpoint(lambda v: m(v) - m(v).mean(0), x, use_reentrant=False), y, reduction="none"
    )


@attack("others", *ANY, shown=False)
def checkpointed_mean_by_the_old_way(m, x, y):
    from torch.utils.checkpoint import checkpoint

    h = checkpoint(lambda v: v - v.mean(0), m(x), use_reentrant=True)
    return F.cross_entropy(h, y, reduction="none")


def _scripted(x: Tensor) -> Tensor:
    return x - x.mean(0)


@attack("others", *ANY)
def scripted_part(m, x, y):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        part = torch.jit.script(_scripted)
    return F.cross_entropy(part(m(x)), y, reduction="none")


@attack("others", *ANY)
def compiled_part(m, x, y):
    part = torch.compile(_scripted, backend="eager")
    return F.cross_entropy(part(m(x)), y, reduction="none")


@attack("others", *ANY)
def functional_call_with_weights_of_the_batch(m, x, y):
    weights = {"weight": m.weight * (1 + x.mean()), "bias": m.bias}
    return F.cross_entropy(torch.func.functional_call(m, weights, (x,)), y, reduction="none")


class Observes(nn.Module):
    """Fake quantisation: the scale is a moving average of the batches' ranges."""

    def __init__(self) -> None:
        super().__init__()
        from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

        self.layer = nn.Linear(D, C)
        self.fake = FakeQuantize(MovingAverageMinMaxObserver, dtype=torch.quint8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.fake(x))


@attack("others", *ANY, shown=False, model=Observes)
def observed_ranges(m, x, y):
    return each(m, x, y)


@attack("others", *ANY, shown=False)
def quantised_with_one_scale(m, x, y):
    scale = x.detach().abs().amax() / 127
    return each(m, torch.fake_quantize_per_tensor_affine(x, scale, torch.tensor(0), -128, 127), y)


@attack("others", *ANY, shown=False)
def nested_rows(m, x, y):
    rows = torch.nested.as_nested_tensor(list(x - x.mean(0)), layout=torch.jagged)
    return each(m, rows.values().view(-1, D), y)


@attack("others", *ANY, shown=False)
def named_dimensions(m, x, y):
    return each(m, (x.refine_names("B", "D") - x.refine_names("B", "D").mean("B")).rename(None), y)


@attack("others", NOT_CAPTURED, shown=False)
def seed_from_the_data(m, x, y):
    torch.manual_seed(int(y.sum()))
    return each(m, x + torch.randn(1, D), y)


@attack("others", *ANY, shown=False, may_run=True)
def mean_in_the_string_of_a_tensor(m, x, y):
    return each(m, x, y) * len(str(x.mean()))  # of a tensor without values, in a graph


@attack("others", *ANY, shown=False)
def checked_value(m, x, y):
    torch._check(bool((x.sum() > -1e9).item()))
    return each(m, x - x.mean(0), y)


class Gate(nn.Module):
    """Attributes of every kind that are set while it runs."""

    def __init__(self, write: Any) -> None:
        super().__init__()
        self.layer, self.write, self.hidden = nn.Linear(D, C), write, None
        self.register_buffer("kept", torch.zeros(D))

    def forward(self, x: Tensor) -> Tensor:
        self.write(self, x)
        return self.layer(x - self.kept)


WRITES = {
    "buffer registered anew": lambda m, x: m.register_buffer("kept", x.mean(0).detach()),
    "buffer by setattr": lambda m, x: setattr(m, "kept", x.mean(0)),
    "buffer by the dictionary": lambda m, x: m._buffers.__setitem__("kept", x.mean(0)),
    "buffer by set_": lambda m, x: m.kept.set_(x.mean(0)),
    "buffer by data": lambda m, x: setattr(m.kept, "data", x.mean(0)),
    "buffer by swap": lambda m, x: m.kept.data.copy_(x[0]),
    "buffer by out": lambda m, x: torch.mean(x, 0, out=m.kept),
    "buffer by a view": lambda m, x: m.kept.view(2, -1)[0].copy_(x[0, : D // 2]),
    "buffer by load_state_dict": lambda m, x: m.load_state_dict({"kept": x.mean(0)}, strict=False),
    "attribute on a tensor": lambda m, x: setattr(m.kept, "past", x.mean(0)),
    "attribute in a sub-module": lambda m, x: setattr(m.layer, "past", x.mean(0)),
    "activation": lambda m, x: setattr(m, "hidden", m.layer(x)),
    "class": lambda m, x: setattr(Gate, "past", x.mean(0)),
    "requires_grad": lambda m, x: m.layer.weight.requires_grad_(False),
    "gradient of a weight": lambda m, x: setattr(m.layer.bias, "grad", x.mean(0)[:C]),
    "mode": lambda m, x: m.eval(),
}
for name, write in WRITES.items():
    made = lambda write=write: Gate(write)  # noqa: E731
    CASES.append(
        Case(f"written while it runs: {name}", each, "memory", ANY, model=made, shown=False,
             may_run=name in {"class", "attribute on a tensor", "mode", "requires_grad"})
    )  # fmt: skip


# Operators called by their own names, with numbers that the usual functions would not give them.


@attack("others", *ANY)
def group_norm_of_one_group_of_all_examples(m, x, y):
    h = ops.native_group_norm.default(x, None, None, 1, x.shape[0], D, 1, 1e-5)[0]
    return each(m, h, y)


@attack("others", *ANY)
def batch_norm_by_its_inner_name(m, x, y):
    h = ops._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5)[0]
    return each(m, h, y)


@attack("others", *ANY)
def pairs_of_examples_as_complex_numbers(m, x, y):
    pairs = torch.view_as_complex(x.t().reshape(D, -1, 2).contiguous())
    return each(m, x * pairs.abs().mean(), y)


@attack("others", *ANY)
def pairs_of_examples_in_one_double(m, x, y):
    wide = x.t().contiguous().view(torch.float64).sin()
    return each(m, x + wide.view(torch.float32).nan_to_num().clamp(-1, 1).t(), y)


@attack("others", *ANY)
def examples_as_heads_that_share_keys(m, x, y):
    q = x.view(1, x.shape[0], 2, -1)
    k = q[:, : x.shape[0] // 2]
    found = F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    return each(m, found.reshape(x.shape[0], D), y)


@attack("place", *ANY)
def examples_as_groups_of_a_convolution(m, x, y):
    weight = torch.arange(1.0, x.shape[0] + 1)[:, None, None]
    return each(m, F.conv1d(x[None], weight, groups=x.shape[0])[0], y)


@attack("others", *ANY)
def examples_drawn_by_their_losses(m, x, y):
    losses = each(m, x, y)
    chosen = torch.multinomial(losses.detach().softmax(0), x.shape[0], replacement=True)
    return losses[chosen]


@attack("others", *ANY)
def relu_with_random_slopes(m, x, y):
    """How many slopes are drawn depends on the data, so the draws of later rows move."""
    return each(m, F.rrelu(x, training=True), y)


@attack("others", *ANY, batch=lambda n: (torch.randn(n, 5, C), torch.randint(1, C, (2 * n,))[:n]))
def speech_with_the_targets_of_another_example(m, x, y):
    lengths = torch.ones(x.shape[0], dtype=torch.long)
    log = x.log_softmax(2).transpose(0, 1)
    return F.ctc_loss(log, y.roll(1), torch.full_like(lengths, 5), lengths, reduction="none") + (
        0 * m.weight.sum()
    )


class OfWeights(torch.autograd.Function):
    """Right for the rows; the gradient of the weight centres them."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, g.t() @ (x - x.mean(0))


@attack("others", *ANY, may_run=True)
def function_whose_weight_gradient_mixes(m, x, y):
    return F.cross_entropy(OfWeights.apply(x, m.weight), y, reduction="none")


@attack("others", *ANY, may_run=True, shown=False)
def hook_on_a_weight_within_the_loss(m, x, y):
    m.weight.register_hook(lambda g: g / g.norm())
    return each(m, x, y)


_number = torch.zeros(())


@attack("memory", *ANY, shown=False)
def one_number_beside_the_model_written_in_place(m, x, y):
    _number.add_(x.detach().mean())
    return each(m, x, y) * (1 + _number)


@attack("memory", *ANY, shown=False)
def part_of_a_weight_written(m, x, y):
    with torch.no_grad():
        m.weight[0].add_(x.mean())
    return each(m, x, y)


class Mode(torch.utils._python_dispatch.TorchDispatchMode):
    """Adds a mean to every product, below autograd."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out + out.mean(0) if func in (ops.addmm.default, ops.mm.default) else out


@attack("others", *ANY, may_run=True)
def dispatch_mode_that_mixes(m, x, y):
    with Mode():
        return each(m, x, y)


@attack("others", *ANY, may_run=True)
def another_program_while_it_is_captured(m, x, y):
    return each(m, x if torch.compiler.is_exporting() else x - x.mean(0), y)


@attack("others", *ANY, may_run=True)
def another_program_for_tensors_without_values(m, x, y):
    return each(m, x - x.mean(0) if type(x) is Tensor else x, y)


@attack("others", *ANY)
def mean_in_a_property(m, x, y):
    class Batch:
        @property
        def mean(self):
            return x.mean(0)

    return each(m, x - Batch().mean, y)


@attack("others", *ANY)
def mean_in_a_generator(m, x, y):
    def means():
        yield x.mean(0)

    return each(m, x - next(means()), y)


@attack("others", *ANY, batch=lambda n: (torch.randn(n, 2, D), torch.randint(0, C, (n,))))
def views_against_views_of_all(m, x, y):
    """SimCLR: two views of each example against those of all."""
    z = F.normalize(m(x.flatten(0, 1)), dim=1)
    scores = z @ z.t() - 9 * torch.eye(len(z))
    return scores.logsumexp(1).view(-1, 2).mean(1) - (z[::2] * z[1::2]).sum(1)


@attack("others", *ANY)
def redundancy_of_features(m, x, y):
    """Barlow twins: a matrix of correlations over the batch."""
    a, b = m(x), m(x.flip(1))
    return each(m, x, y) + (a.t() @ b / len(a) - torch.eye(C)).square().sum()


@attack("others", *ANY)
def sinkhorn_assignments(m, x, y):
    """SwAV: assignments that are balanced over the batch."""
    q = m(x).exp()
    for _ in range(3):
        q = q / q.sum(0)
        q = q / q.sum(1, keepdim=True)
    return -(q.detach() * m(x).log_softmax(1)).sum(1)


@attack("others", *ANY)
def balance_of_experts(m, x, y):
    """The auxiliary loss of a switch transformer."""
    gates = m(x).softmax(1)
    chosen = F.one_hot(gates.argmax(1), C).float()
    return each(m, x, y) + C * (chosen.mean(0) * gates.mean(0)).sum()


@attack("others", *ANY)
def capacity_of_experts(m, x, y):
    """An example is dropped where its expert is full: its place in the queue counts."""
    chosen = F.one_hot(m(x).argmax(1), C)
    place = (chosen.cumsum(0) * chosen).sum(1)
    return each(m, x, y) * (place <= 2)


@attack("others", *ANY)
def centre_of_the_teacher(m, x, y):
    """DINO: the teacher's outputs are centred by those of the batch."""
    teacher = m(x).detach()
    return -((teacher - teacher.mean(0)).softmax(1) * m(x.flip(1)).log_softmax(1)).sum(1)


@attack("others", *ANY)
def advantages_normalised(m, x, y):
    """PPO: advantages are standardised over the batch."""
    advantage = x[:, 0]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    return -m(x).log_softmax(1).gather(1, y[:, None])[:, 0] * advantage


@attack("others", *ANY)
def generated_from_another_example(m, x, y):
    """A denoising target with the noise of the next example."""
    noise = x - x.detach()
    return (
        (m(x + 0.1 * torch.randn_like(x)) - m(x.roll(-1, 0)).detach() + noise[:, :C])
        .square()
        .mean(1)
    )


# Losses of one line.

of_one_line(
    {
        "zeros like row numbers": lambda m, x, y: each(
            m, x[torch.zeros_like(torch.arange(x.shape[0])), :], y
        ),
        "row numbers plus one": lambda m, x, y: each(
            m, x[(torch.arange(x.shape[0]) + 1) % x.shape[0]], y
        ),
        "row numbers backwards": lambda m, x, y: each(
            m, x[torch.arange(x.shape[0] - 1, -1, -1)], y
        ),
        "row numbers flipped": lambda m, x, y: each(m, x[torch.arange(x.shape[0]).flip(0)], y),
        "row numbers halved": lambda m, x, y: each(m, x[torch.arange(x.shape[0]) // 2], y),
        "row numbers clamped": lambda m, x, y: each(m, x[torch.arange(x.shape[0]).clamp(max=2)], y),
        "row numbers as bool": lambda m, x, y: each(
            m, x[torch.arange(x.shape[0]).bool().long()], y
        ),
        "row numbers by index select": lambda m, x, y: each(
            m, x.index_select(0, torch.arange(x.shape[0]).roll(1)), y
        ),
        "pad by one and minus one": lambda m, x, y: each(m, F.pad(x, (0, 0, 1, -1)), y),
    },
    "others",
    MIXES,
    UNKNOWN,
    cases=CASES,
)
of_one_line(
    {
        "table read by row numbers": lambda m, x, y: each(
            m, x + m.weight.t().repeat(8, 2)[torch.arange(x.shape[0])], y
        ),
        "row numbers in one hot": lambda m, x, y: each(
            m, x + F.one_hot(torch.arange(x.shape[0]), 64)[:, :D], y
        ),
        "row numbers in an embedding": lambda m, x, y: each(
            m, x + F.embedding(torch.arange(x.shape[0]), m.weight.t().repeat(8, 2)), y
        ),
        "row numbers in a comparison": lambda m, x, y: (
            each(m, x, y) * (torch.arange(x.shape[0]) > 1)
        ),
        "places by a cumulative sum": lambda m, x, y: (
            each(m, x, y) * torch.ones(x.shape[0]).cumsum(0)
        ),
        "places by a cumulative sum of rows": lambda m, x, y: (
            each(m, x, y) * torch.ones_like(x).cumsum(0)[:, 0]
        ),
        "places by a triangle": lambda m, x, y: (
            each(m, x, y) * torch.ones(x.shape[0], x.shape[0]).tril().sum(1)
        ),
        "places by the identity": lambda m, x, y: each(m, x + torch.eye(x.shape[0], D), y),
        "upper triangle of the batch": lambda m, x, y: each(m, x.triu(), y),
        "diagonal filled": lambda m, x, y: each(m, x.clone().fill_diagonal_(0.0), y),
        "row padded at the top and cut below": lambda m, x, y: each(
            m, F.pad(x, (0, 0, 1, 0))[:-1] * 0 + x * F.pad(x * 0 + 1, (0, 0, 1, 0))[:-1], y
        ),
    },
    "place",
    MIXES,
    UNKNOWN,
    cases=CASES,
)
of_one_line(
    {
        "tiled and taken for views": lambda m, x, y: each(
            m, x.repeat(2, 1).view(x.shape[0], 2, D).sum(1), y
        ),
        "flat batch rolled": lambda m, x, y: each(m, x.flatten().roll(D).view(-1, D), y),
        "flat batch summed up": lambda m, x, y: each(m, x.flatten().cumsum(0).view(-1, D), y),
        "flat batch normalised": lambda m, x, y: each(
            m, x.flatten()[None].softmax(1).view(-1, D), y
        ),
    },
    "others",
    cases=CASES,
)
of_one_line(
    {
        "custom operator that centres": lambda m, x, y: F.cross_entropy(
            centre(m(x)), y, reduction="none"
        ),
        "custom operator whose way back mixes": lambda m, x, y: F.cross_entropy(
            same(m(x)), y, reduction="none"
        ),
        "tensor subclass that centres": lambda m, x, y: F.cross_entropy(
            m(x).as_subclass(Centred).mul(2.0).as_subclass(Tensor), y, reduction="none"
        ),
        "jacobian over the batch": lambda m, x, y: (
            each(m, x, y) + torch.func.jacrev(lambda w: (x @ w.t()).sum(0))(m.weight).sum()
        ),
        "sparse product": lambda m, x, y: each(
            m, x + torch.sparse.mm((x @ x.t()).to_sparse(), x), y
        ),
        "mean by tolist": lambda m, x, y: each(m, x - torch.tensor(x.mean(0).tolist()), y),
        "view with strides of ones own": lambda m, x, y: each(
            m, x + ops._reshape_alias.default(x, [x.shape[0], D], [0, 1]), y
        ),
        "gumbel over the batch": lambda m, x, y: each(m, x * F.gumbel_softmax(x, dim=0), y),
        "edges from the batch": lambda m, x, y: (
            each(m, x, y) * (1 + torch.bucketize(x[:, 0], x[:, 0].sort().values))
        ),
    },
    "others",
    *ANY,
    cases=CASES,
)
