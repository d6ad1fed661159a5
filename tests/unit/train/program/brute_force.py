"""Brute force for the table: random calls of an operator, and whether its labels are true.

For each operator: random arguments whose sizes often coincide with the batch, every label that its
tensors could carry, and for each call that the table accepts
  1. one example is changed: entries of other examples and public outputs stay, bit for bit;
  2. the examples change places: rows change places with them, public outputs stay;
  3. a number that is made from the number of examples changes: values stay, where shapes do;
  4. the gradients of examples keep to 1 and 2 as well, also where one has odd values.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx

from tightrope.train.program.labels import PUBLIC, SIZE, Index, Refusal, Rows, Unknown
from tightrope.train.program.proof import Call, Proof
from tightrope.train.program.rules.table import RULES

aten = torch.ops.aten

# What an operator raises for arguments that it does not take.
ODD = (
    RuntimeError,
    TypeError,
    IndexError,
    ValueError,
    NotImplementedError,
    UnboundLocalError,
    ZeroDivisionError,
)


class T:
    """A tensor argument: its shape and how to draw it."""

    def __init__(self, kind: str, shape: Any, high: int = 2) -> None:
        self.kind, self.shape, self.high = kind, tuple(shape), high

    def draw(self) -> Tensor:
        if self.kind == "int":
            return torch.randint(0, max(self.high, 1), self.shape)
        if self.kind == "bool":
            return torch.rand(self.shape) < 0.5
        if self.kind == "complex":
            return torch.randn(self.shape, dtype=torch.complex64)
        if self.kind == "unit":
            return torch.rand(self.shape)
        return torch.randn(self.shape)


class Size(int):
    """A number that the program made from the size of the batch."""


class Draw:
    """Random shapes and numbers; sizes often coincide with the batch."""

    def __init__(self, rng: random.Random) -> None:
        self.r, self.B = rng, rng.choice([2, 3, 3, 4])

    def n(self) -> int:
        return self.r.choice([1, 2, 3, self.B, self.B, self.B, 2 * self.B, 4])

    def shape(self, low: int = 0, high: int = 4) -> list[int]:
        return [self.n() for _ in range(self.r.randint(low, high))]

    def x(self, *shape: int, kind: str = "float") -> T:
        return T(kind, shape)

    def i(self, high: int, *shape: int) -> T:
        return T("int", shape, high)

    def dim(self, rank: int) -> int:
        return self.r.randint(-rank, rank - 1) if rank else self.r.choice([-1, 0])

    def dims(self, rank: int) -> list[int]:
        picked = self.r.sample(range(rank), self.r.randint(1, rank)) if rank else []
        return [d - rank if self.r.random() < 0.5 else d for d in picked]

    def fft_dims(self, shape: list[int]) -> list[int]:
        return [d % len(shape) for d in self.dims(len(shape))][:1]

    def flag(self) -> bool:
        return self.r.random() < 0.5

    def some(self, *values: Any) -> Any:
        return self.r.choice(values)

    def size(self, n: int) -> int:
        """In size arguments, what is a multiple of the batch may have come from it."""
        return Size(n) if n % self.B == 0 and self.r.random() < 0.5 else n

    def sub(self, shape: list[int]) -> list[int]:
        """A shape that broadcasts to this one."""
        cut = shape[self.r.randint(0, len(shape)) :] if self.r.random() < 0.3 else shape
        return [1 if self.r.random() < 0.25 else n for n in cut]

    def regroup(self, shape: list[int]) -> list[int]:
        """Another shape with as many entries."""
        primes: list[int] = []
        for n in shape:
            for q in (2, 3):
                while n % q == 0:
                    primes.append(q)
                    n //= q
        out: list[int] = []
        for q in primes:
            if out and self.r.random() < 0.5:
                out[-1] *= q
            else:
                out.append(q)
            if self.r.random() < 0.15:
                out.append(1)
        return out or [1]


def _conv(d: Draw, k: int, transposed: bool = False, general: bool = False) -> list[Any]:
    g, i, o = d.some(1, 1, 2), d.some(1, 2, d.B), d.some(1, 2, d.B)
    i, o = i * g, o * g
    w = [i, o // g] if transposed else [o, i // g]
    bias = d.some(None, d.x(o))
    x = d.x(*d.some([d.n()], [d.n()], []), i, *[d.some(3, 4, d.B) for _ in range(k)])
    args = [x, d.x(*w, *[d.some(1, 2)] * k), bias, [d.some(1, 2)] * k, [d.some(0, 1)] * k]
    if general:
        return [*args, [1] * k, transposed, [0] * k, g]
    return [*args, [0] * k, g, [1] * k] if transposed else [*args, [1] * k, g]


def _index(d: Draw) -> list[Any]:
    rank = d.some(1, 2, 3, 4, 4, 4)
    shape, lead = d.shape(rank, rank), d.shape(0, 2)
    which = [d.flag() for _ in range(d.some(rank, rank, d.r.randint(1, rank)))]
    if not any(which):
        which[-1] = True
    return [
        d.x(*shape),
        [d.i(shape[k], *d.sub(lead)) if on else None for k, on in enumerate(which)],
    ]


def _gather(d: Draw, src: str = "") -> list[Any]:
    shape = d.shape(1, 4)
    dim = d.dim(len(shape))
    idx = [d.r.randint(1, n) if d.r.random() < 0.3 else n for n in shape]
    if not src:
        idx[dim] = d.n()
    more = {
        "": [],
        "value": [0.5],
        "src": [d.x(*shape)],
        "reduce": [d.x(*shape), d.some("sum", "amax", "prod")],
    }[src]
    return [d.x(*shape), dim, d.i(shape[dim], *idx), *more]


def _broadcast(d: Draw, count: int, low: int = 0) -> list[T]:
    shape = d.shape(low, 4)
    return [d.x(*d.sub(shape)) for _ in range(count)]


def _pair(d: Draw, free: bool = True) -> tuple[list[int], list[int]]:
    """Two shapes that matmul takes."""
    n, k, m = d.n(), d.n(), d.n()
    lead = d.shape(0, 2)
    a, b = [*d.sub(lead), n, k], [*d.sub(lead), k, m]
    if d.r.random() < 0.2:
        a = [k]
    if d.r.random() < 0.2:
        b = [k]
    return a, b


def _sdpa(d: Draw) -> list[Any]:
    lead, t, s, e = [d.n(), d.n()][: d.some(1, 2, 2)], d.n(), d.n(), d.n()
    mask = d.some(None, d.x(*d.sub([*lead, t, s])), d.x(*d.sub([*lead, t, s]), kind="bool"))
    return [d.x(*d.sub(lead), t, e), d.x(*d.sub(lead), s, e), d.x(*d.sub(lead), s, d.n()), mask]


def _norm(d: Draw) -> list[Any]:
    shape = d.shape(1, 4)
    last = shape[d.r.randint(0, len(shape) - 1) :]
    weights = [d.some(None, d.x(*last)) for _ in range(2)]
    return [d.x(*shape), last, *weights, 1e-5]


def _group(d: Draw) -> list[Any]:
    g, c = d.some(1, 2, d.B), d.some(1, 2, d.B)
    weights = [d.some(None, d.x(g * c)) for _ in range(2)]
    return [d.x(d.n(), g * c, *d.shape(0, 2)), g, *weights, 1e-5]


def _batch(d: Draw) -> list[Any]:
    c = d.n()
    weights = [d.some(None, d.x(c)) for _ in range(2)]
    full = d.flag()
    return [
        d.x(d.n(), c, *d.shape(0, 2)),
        *weights,
        *([d.x(c), T("unit", [c])] if full else [None, None]),
    ]


def _wide(d: Draw, k: int) -> T:
    return d.x(*d.shape(0, 2), *[d.some(2, 3, 4, d.B) for _ in range(k)])


def _loss(d: Draw) -> list[Any]:
    shape = d.shape(0, 3)
    x, y = T("unit", d.sub(shape)), T("unit", d.sub(shape))
    return [x, y]


def _sizes(d: Draw) -> list[int]:
    return [d.size(n) for n in d.shape(1, 3)]


def _write(d: Draw, select: bool) -> list[Any]:
    shape = d.shape(1, 3)
    dim = d.dim(len(shape))
    src = list(shape)
    if select:
        at = d.r.randint(0, shape[dim] - 1)
        del src[dim]
        return [d.x(*shape), d.x(*d.sub(src) if d.flag() and not src else src), dim, at]
    a = d.r.randint(0, shape[dim] - 1)
    b = d.r.randint(a + 1, shape[dim])
    if d.flag():
        a, b = 0, shape[dim]
    src[dim] = b - a
    return [d.x(*shape), d.x(*src), dim, a, b]


def _after(d: Draw, low: int, f: Any, kind: str = "float") -> list[Any]:
    shape = d.shape(low, 4)
    return [d.x(*shape, kind=kind), *f(shape)]


def _slice(d: Draw, s: list[int]) -> list[Any]:
    dim = d.dim(len(s))
    if d.flag():
        return [dim, 0, d.some(s[dim], 9223372036854775807, Size(s[dim])), 1]
    return [dim, d.some(None, 0, 1, -1, -2), d.some(None, 1, 2, 3, -1), d.some(1, 1, 2)]


def _split(d: Draw, s: list[int], sizes: bool) -> list[Any]:
    dim = d.dim(len(s))
    if not sizes:
        return [d.some(1, 2, s[dim]), dim]
    a = d.r.randint(0, s[dim])
    return [[a, s[dim] - a], dim]


def _scale(d: Draw, k: int) -> list[Any]:
    x = d.x(*[d.n(), d.n()], *[d.some(2, 3, d.B)] * k)
    return [x, [d.some(2, 4)] * k, *([d.flag()] if d.flag() else [False])]


def _pool(d: Draw, k: int) -> list[Any]:
    x = _wide(d, k)
    return [x, [d.some(1, 2)] * k, [d.some(1, 2)] * k]


def _repeat(d: Draw, s: list[int]) -> list[Any]:
    return [[d.size(d.some(1, 1, 2, d.B)) for _ in range(len(s) + d.some(0, 0, 1))]]


def _expand(d: Draw) -> list[Any]:
    whole = d.shape(1, 4)
    x = d.sub(whole)
    lead = len(whole) - len(x)
    return [
        T("float", x),
        [d.size(n) if k < lead or x[k - lead] == 1 else d.some(n, -1) for k, n in enumerate(whole)],
    ]


def _nll(d: Draw, two: bool) -> list[Any]:
    n, c, rest = d.n(), d.n(), [d.n(), d.n()] if two else []
    return [
        d.x(n, c, *rest),
        d.i(c, n, *rest),
        d.some(None, T("unit", [c])),
        d.some(0, 0, 1, 2),
        d.some(-100, 0),
    ]


def _fft_back(d: Draw, shape: list[int]) -> list[Any]:
    (dim,) = d.fft_dims(shape)
    return [[dim], 0, 2 * shape[dim] - 1]


def _cross(d: Draw) -> list[Any]:
    shape = d.shape(1, 3)
    dim = d.dim(len(shape))
    shape[dim] = 3
    return [d.x(*shape), d.x(*shape), {"dim": dim}]


def _matrices(d: Draw) -> list[Any]:
    n = d.n()
    return [d.x(*d.shape(0, 2), n, n)]


REDUCE = [
    "sum.dim_IntList", "mean.dim", "amax", "amin", "any.dims", "all.dims", "logsumexp", "nansum",
    "nanmean",
]  # fmt: skip
REDUCE_ONE = [
    "any.dim", "all.dim", "prod.dim_int", "argmax", "argmin", "max.dim", "min.dim", "median.dim",
    "nanmedian.dim", "mode",
]  # fmt: skip
MATRIX = [
    "linalg_inv_ex", "inverse", "linalg_cholesky_ex", "cholesky", "linalg_det", "_linalg_det",
    "linalg_slogdet", "_linalg_slogdet", "linalg_svd", "linalg_svdvals", "linalg_matrix_exp",
    "linalg_pinv", "linalg_lu_factor_ex", "linalg_lu", "cholesky_inverse", "_linalg_eigvals",
    "linalg_eigvals", "linalg_eig",
]  # fmt: skip


def _cdist(d: Draw) -> list[Any]:
    lead, m = d.shape(0, 2), d.n()
    return [d.x(*d.sub(lead), d.n(), m), d.x(*d.sub(lead), d.n(), m), 2.0, None]


def _index_write(d: Draw) -> list[Any]:
    shape = d.shape(1, 3)
    dim, k = d.dim(len(shape)), d.n()
    source = list(shape)
    source[dim] = k
    return [d.x(*shape), dim, d.i(shape[dim], k), d.x(*source)]


def _index_put(d: Draw) -> list[Any]:
    if d.r.random() < 0.3:  # a mask
        shape = d.shape(1, 3)
        start = d.r.randrange(len(shape))
        end = d.r.randint(start + 1, len(shape))
        mask = T("bool", shape[start:end])
        return [d.x(*shape), [*[None] * start, mask], d.x(*d.some([], [1])), False]
    x, indices = _index(d)
    picked = [k for k, n in enumerate(indices) if n is not None]
    rank = max(len(indices[k].shape) for k in picked)
    lead = list(torch.broadcast_shapes(*[indices[k].shape for k in picked]))
    together = picked == list(range(picked[0], picked[-1] + 1))
    kept = [n for k, n in enumerate(x.shape) if k not in picked]
    at = picked[0] if together else 0
    result = [*kept[:at], *lead, *kept[at:]]
    assert len(lead) == rank
    return [x, indices, d.x(*d.sub(result)), d.flag()]


def _diagonal_scatter(d: Draw) -> list[Any]:
    shape = d.shape(2, 3)
    a, b = d.r.sample(range(len(shape)), 2)
    rest = [n for k, n in enumerate(shape) if k not in (a, b)]
    return [d.x(*shape), d.x(*rest, min(shape[a], shape[b])), 0, a, b]


def _trilinear(d: Draw) -> list[Any]:
    """Each of four dimensions is new in some of the tensors, never in all; some are summed over."""
    sizes = d.shape(4, 4)
    new = [[k for k in range(4) if d.flag()] for _ in range(3)]
    new[2] = [k for k in new[2] if k not in new[0] or k not in new[1]]
    tensors = [d.x(*(n for k, n in enumerate(sizes) if k not in one)) for one in new]
    return [*tensors, *new, sorted(d.r.sample(range(4), d.some(1, 2)))]


HINTS: dict[str, Any] = {
    "linear": lambda d: (lambda k, m: [d.x(*d.shape(0, 3), k), d.x(m, k), d.some(None, d.x(m))])(
        d.n(), d.n()
    ),
    "matmul": lambda d: [d.x(*s) for s in _pair(d)],
    "mm": lambda d: (lambda k: [d.x(d.n(), k), d.x(k, d.n())])(d.n()),
    "bmm": lambda d: (lambda b, k: [d.x(b, d.n(), k), d.x(b, k, d.n())])(d.n(), d.n()),
    "mv": lambda d: (lambda k: [d.x(d.n(), k), d.x(k)])(d.n()),
    "dot": lambda d: (lambda k: [d.x(k), d.x(k)])(d.n()),
    "addmm": lambda d: (lambda n, k, m: [d.x(*d.sub([n, m])), d.x(n, k), d.x(k, m)])(
        d.n(), d.n(), d.n()
    ),
    "addmv": lambda d: (lambda n, k: [d.x(*d.sub([n])), d.x(n, k), d.x(k)])(d.n(), d.n()),
    "baddbmm": lambda d: (lambda b, n, k, m: [d.x(*d.sub([b, n, m])), d.x(b, n, k), d.x(b, k, m)])(
        d.n(), d.n(), d.n(), d.n()
    ),
    "addbmm": lambda d: (lambda b, n, k, m: [d.x(n, m), d.x(b, n, k), d.x(b, k, m)])(
        d.n(), d.n(), d.n(), d.n()
    ),
    **{f"conv{k}d": (lambda d, k=k: _conv(d, k)) for k in (1, 2, 3)},
    **{f"conv_transpose{k}d": (lambda d, k=k: _conv(d, k, True)) for k in (1, 2, 3)},
    "convolution": lambda d: _conv(d, d.some(1, 2), d.flag(), True),
    "scaled_dot_product_attention": _sdpa,
    "embedding": lambda d: [
        *d.some(
            [d.x(d.n() + 1, d.n()), d.i(2, *d.shape(0, 3))],
            [d.x(d.B, d.n()), d.i(d.B, *d.some([d.B], [d.B, 1]))],
        ),
        *d.some([], [0], [1], [-1, False, True]),
    ],
    "one_hot": lambda d: [d.i(3, *d.shape(0, 3)), 3],
    "gather": _gather,
    "scatter.src": lambda d: _gather(d, "src"),
    "scatter_add": lambda d: _gather(d, "src"),
    "scatter.value": lambda d: _gather(d, "value"),
    "scatter_reduce": lambda d: _gather(d, "reduce"),
    "index_select": lambda d: (lambda s, k: [d.x(*s), k, d.i(s[k], d.n())])(
        *(lambda s: (s, d.dim(len(s))))(d.shape(1, 4))
    ),
    "index": _index,
    "_unsafe_index": _index,
    "searchsorted": lambda d: (lambda e, lead: [d.x(*lead, e), d.x(*lead, d.n())])(
        d.n(), d.some([], d.shape(0, 2))
    ),
    "bucketize": lambda d: [d.x(*d.shape(0, 3)), d.x(d.n())],
    "nll_loss_forward": lambda d: _nll(d, False),
    "nll_loss2d_forward": lambda d: _nll(d, True),
    "mse_loss": lambda d: [*_loss(d), d.some(0, 0, 1)],
    "smooth_l1_loss": lambda d: [*_loss(d), d.some(0, 0, 1), 1.0],
    "huber_loss": lambda d: [*_loss(d), d.some(0, 0, 1), 1.0],
    "soft_margin_loss": lambda d: [*_loss(d), d.some(0, 0, 1)],
    "binary_cross_entropy": lambda d: (
        lambda s: [T("unit", s), T("unit", s), d.some(None, T("unit", d.sub(s))), d.some(0, 0, 1)]
    )(d.shape(0, 3)),
    "binary_cross_entropy_with_logits": lambda d: (
        lambda s: [
            d.x(*s),
            T("unit", s),
            d.some(None, T("unit", d.sub(s))),
            d.some(None, T("unit", d.sub(s))),
            d.some(0, 0, 1),
        ]
    )(d.shape(0, 3)),
    "full": lambda d: [_sizes(d), d.some(0.5, 1, Size(d.B))],
    "zeros": lambda d: [_sizes(d)],
    "ones": lambda d: [_sizes(d)],
    "empty": lambda d: [_sizes(d)],
    "rand": lambda d: [_sizes(d)],
    "randn": lambda d: [_sizes(d)],
    **{f"new_{k}": (lambda d: [d.x(*d.shape()), _sizes(d)]) for k in ("zeros", "ones", "empty")},
    "new_full": lambda d: [d.x(*d.shape()), _sizes(d), d.some(0.5, Size(d.B))],
    "randint.low": lambda d: [0, d.some(5, Size(d.B)), _sizes(d)],
    "randint": lambda d: [d.some(5, Size(d.B)), _sizes(d)],
    "normal.float_float": lambda d: [0.0, 1.0, _sizes(d)],
    "arange": lambda d: [d.size(d.n())],
    "arange.start": lambda d: [d.some(0, 1), d.size(d.n() + 1)],
    "arange.start_step": lambda d: [d.some(0, 1), d.size(d.n() + 1), d.some(1, 2)],
    "scalar_tensor": lambda d: [d.some(2, Size(d.B))],
    "layer_norm": _norm,
    "native_layer_norm": _norm,
    "rms_norm": lambda d: _norm(d)[:3],
    "_fused_rms_norm": lambda d: [*_norm(d)[:3], 1e-5],
    "group_norm": _group,
    "native_group_norm": lambda d: (
        lambda n, g, c, hw: [
            d.x(n, g * c, hw),
            d.some(None, d.x(g * c)),
            d.some(None, d.x(g * c)),
            n,
            g * c,
            hw,
            g,
            1e-5,
        ]
    )(d.n(), d.some(1, 2, d.B), d.some(1, 2, d.B), d.n()),
    "batch_norm": lambda d: (
        lambda b: [*b, d.flag() if b[3] is not None else True, 0.1, 1e-5, False]
    )(_batch(d)),
    "native_batch_norm": lambda d: (
        lambda b: [*b, d.flag() if b[3] is not None else True, 0.1, 1e-5]
    )(_batch(d)),
    "_native_batch_norm_legit.no_stats": lambda d: [*_batch(d)[:3], True, 0.1, 1e-5],
    "_native_batch_norm_legit_no_training": lambda d: (
        lambda b: [*b[:3], d.x(b[0].shape[1]), T("unit", [b[0].shape[1]]), 0.1, 1e-5]
    )(_batch(d)),
    "_native_batch_norm_legit_functional": lambda d: (
        lambda b: [*b[:3], d.x(b[0].shape[1]), T("unit", [b[0].shape[1]]), d.flag(), 0.1, 1e-5]
    )(_batch(d)),
    "_batch_norm_with_update_functional": lambda d: (
        lambda b: [*b[:3], d.x(b[0].shape[1]), T("unit", [b[0].shape[1]]), 0.1, 1e-5]
    )(_batch(d)),
    **{
        f"{m}_pool{k}d{w}": (lambda d, k=k: _pool(d, k))
        for m in ("max", "avg")
        for k in (1, 2, 3)
        for w in ("", "_with_indices")
    },
    **{
        f"{u}adaptive_{m}_pool{k}d": (lambda d, k=k: [_wide(d, k), [d.some(1, 2)] * k])
        for u in ("", "_")
        for m in ("avg", "max")
        for k in (1, 2, 3)
    },
    **{f"upsample_nearest{k}d": (lambda d, k=k: _scale(d, k)[:2]) for k in (1, 2)},
    "upsample_linear1d": lambda d: _scale(d, 1),
    "upsample_bilinear2d": lambda d: _scale(d, 2),
    "upsample_bicubic2d": lambda d: _scale(d, 2),
    "_upsample_bilinear2d_aa": lambda d: _scale(d, 2),
    **{
        f"{m}_pad{k}d": (lambda d, k=k: [_wide(d, k), [d.some(0, 1) for _ in range(2 * k)]])
        for m in ("reflection", "replication")
        for k in (1, 2)
    },
    "tril": lambda d: [d.x(*d.shape(2, 4)), d.some(0, 1, -1)],
    "triu": lambda d: [d.x(*d.shape(2, 4)), d.some(0, 1, -1)],
    "pixel_shuffle": lambda d: [d.x(*d.shape(0, 2), d.some(4, 8), d.n(), d.n()), 2],
    "pixel_unshuffle": lambda d: [
        d.x(*d.shape(0, 2), d.n(), 2 * d.some(1, 2), 2 * d.some(1, 2)),
        2,
    ],
    "channel_shuffle": lambda d: [d.x(d.n(), d.some(2, 4), d.n(), d.n()), 2],
    "native_channel_shuffle": lambda d: [d.x(d.n(), d.some(2, 4), d.n(), d.n()), 2],
    "im2col": lambda d: [
        d.x(*d.some([d.n()], []), d.n(), 3, 4),
        [2, 2],
        [1, 1],
        [d.some(0, 1)] * 2,
        [1, 1],
    ],
    "col2im": lambda d: [
        d.x(*d.some([d.n()], []), 4 * d.n(), 6),
        [3, 4],
        [2, 2],
        [1, 1],
        [0, 0],
        [1, 1],
    ],
    "view": lambda d: _after(d, 1, lambda s: [d.regroup(s)]),
    "reshape": lambda d: _after(d, 1, lambda s: [d.regroup(s)]),
    "_unsafe_view": lambda d: _after(d, 1, lambda s: [d.regroup(s)]),
    "unflatten": lambda d: _after(
        d, 1, lambda s: (lambda k: [k, d.regroup([s[k]])])(d.dim(len(s)))
    ),
    "flatten": lambda d: _after(
        d, 1, lambda s: sorted([d.r.randrange(len(s)), d.r.randrange(len(s))])
    ),
    "squeeze.dims": lambda d: _after(d, 1, lambda s: [d.dims(len(s))]),
    "unsqueeze": lambda d: _after(d, 0, lambda s: [d.dim(len(s) + 1)]),
    "permute": lambda d: _after(
        d, 1, lambda s: [[k - d.some(0, len(s)) for k in d.r.sample(range(len(s)), len(s))]]
    ),
    "t": lambda d: [d.x(*d.shape(0, 2))],
    "expand": _expand,
    "repeat": lambda d: _after(d, 0, lambda s: _repeat(d, s)),
    "repeat_interleave": lambda d: _after(
        d, 1, lambda s: [d.some(1, 2, 3), d.some(d.dim(len(s)), d.dim(len(s)), None)]
    ),
    "select": lambda d: _after(
        d, 1, lambda s: (lambda k: [k, d.r.randint(-s[k], s[k] - 1)])(d.dim(len(s)))
    ),
    "slice": lambda d: _after(d, 1, lambda s: _slice(d, s)),
    **{
        k: (lambda d: _after(d, 1, lambda s: _split(d, s, False)))
        for k in ("split", "chunk", "unsafe_split", "unsafe_chunk", "tensor_split")
    },
    **{
        k: (lambda d: _after(d, 1, lambda s: _split(d, s, True)))
        for k in ("split_with_sizes", "split.sizes")
    },
    "unfold": lambda d: _after(
        d, 1, lambda s: (lambda k: [k, d.r.randint(1, s[k]), d.some(1, 2)])(d.dim(len(s)))
    ),
    "diagonal": lambda d: _after(
        d,
        2,
        lambda s: [
            d.some(0, 1, -1),
            *[k - d.some(0, len(s)) for k in d.r.sample(range(len(s)), 2)],
        ],
    ),
    "constant_pad_nd": lambda d: _after(
        d, 1, lambda s: [[d.some(0, 0, 1, -1) for _ in range(2 * d.r.randint(1, len(s)))]]
    ),
    "pad": lambda d: _after(
        d,
        1,
        lambda s: [
            [d.some(0, 0, 1) for _ in range(2 * d.r.randint(1, len(s)))],
            d.some("constant", "constant", "replicate", "circular"),
        ],
    ),
    "cat": lambda d: (
        lambda s: (
            lambda k: [
                [
                    d.x(*[d.n() if j == k % len(s) else n for j, n in enumerate(s)])
                    for _ in range(2)
                ],
                k,
            ]
        )(d.dim(len(s)))
    )(d.shape(1, 3)),
    "stack": lambda d: (lambda s: [[d.x(*s), d.x(*s)], d.dim(len(s) + 1)])(d.shape(0, 3)),
    "slice_scatter": lambda d: _write(d, False),
    "select_scatter": lambda d: _write(d, True),
    "flip": lambda d: _after(d, 1, lambda s: [d.dims(len(s))]),
    "roll": lambda d: _after(
        d, 1, lambda s: d.some([[1]], [[0]], (lambda k: [[1] * len(k), k])(d.dims(len(s))))
    ),
    "topk": lambda d: _after(d, 1, lambda s: (lambda k: [d.r.randint(1, s[k]), k])(d.dim(len(s)))),
    "kthvalue": lambda d: _after(
        d, 1, lambda s: (lambda k: [d.r.randint(1, s[k]), k, d.flag()])(d.dim(len(s)))
    ),
    "renorm": lambda d: _after(d, 2, lambda s: [2.0, d.dim(len(s)), 0.5]),
    **{k: lambda d: _after(d, 2, lambda s: [[d.dim(len(s))], d.flag()]) for k in REDUCE},
    **{k: lambda d: _after(d, 2, lambda s: [d.dim(len(s)), d.flag()]) for k in REDUCE_ONE},
    "norm": lambda d: _after(d, 1, lambda s: [2, d.dims(len(s)), d.flag()]),
    "linalg_vector_norm": lambda d: _after(
        d, 0, lambda s: [2, d.some(None, d.dims(len(s))), d.flag()]
    ),
    "prelu": lambda d: _after(d, 1, lambda s: [d.x(d.some(1, s[1] if len(s) > 1 else 1))]),
    "bernoulli": lambda d: [T("unit", d.shape())],
    "bernoulli.p": lambda d: [d.x(*d.shape()), 0.5],
    "where": lambda d: (lambda a, b, c: [T("bool", a.shape), b, c])(*_broadcast(d, 3)),
    "masked_fill": lambda d: (lambda s: [d.x(*s), T("bool", d.sub(s)), 0.5])(d.shape()),
    "masked_fill.Tensor": lambda d: (lambda s: [d.x(*s), T("bool", d.sub(s)), d.x()])(d.shape()),
    "clamp": lambda d: [d.x(*d.shape()), d.some(None, -0.5), 0.5],
    "clip": lambda d: [d.x(*d.shape()), d.some(None, -0.5), 0.5],
    "div.Tensor_mode": lambda d: [
        *_broadcast(d, 2),
        {"rounding_mode": d.some(None, "floor", "trunc")},
    ],
    "div.Scalar_mode": lambda d: [
        d.x(*d.shape()),
        0.5,
        {"rounding_mode": d.some(None, "floor", "trunc")},
    ],
    "sort.stable": lambda d: _after(
        d, 1, lambda s: [{"stable": True, "dim": d.dim(len(s)), "descending": d.flag()}]
    ),
    **{
        f"conv{k}d.padding": (lambda d, k=k: [*_conv(d, k)[:3], [1] * k, d.some("same", "valid")])
        for k in (1, 2, 3)
    },
    **{
        f"{m}.vec": (lambda d, k=k, a=a: (lambda v: [v[0], None, *a, [2.0] * k])(_scale(d, k)))
        for names, a in (
            ("upsample_nearest _upsample_nearest_exact", []),
            ("upsample_linear upsample_bilinear upsample_bicubic upsample_trilinear", [False]),
            ("_upsample_bilinear2d_aa _upsample_bicubic2d_aa", [False]),
        )
        for name in names.split()
        for k in (1, 2, 3)
        for m in (name if name.endswith("_aa") else f"{name}{k}d",)
        if not name.endswith("_aa") or k == 2
    },
    "_fft_r2c": lambda d: _after(d, 1, lambda s: [d.fft_dims(s), 0, d.flag()]),
    "_fft_c2c": lambda d: _after(d, 1, lambda s: [d.fft_dims(s), 0, d.flag()], "complex"),
    "_fft_c2r": lambda d: _after(d, 1, lambda s: _fft_back(d, s), "complex"),
    "fft_fftshift": lambda d: _after(d, 1, lambda s: [d.some(None, d.dims(len(s)))]),
    "view_as_complex": lambda d: [d.x(*d.shape(0, 2), 2)],
    "view_as_real": lambda d: [d.x(*d.shape(), kind="complex")],
    "real": lambda d: [d.x(*d.shape(), kind="complex")],
    "imag": lambda d: [d.x(*d.shape(), kind="complex")],
    "_conj": lambda d: [d.x(*d.shape(), kind="complex")],
    "complex": lambda d: _broadcast(d, 2),
    "_to_copy": lambda d: [
        d.x(*d.shape()),
        {"dtype": d.some(torch.bool, torch.int64, torch.int32)},
    ],
    "transpose": lambda d: _after(d, 1, lambda s: [d.dim(len(s)), d.dim(len(s))]),
    "transpose_copy": lambda d: _after(d, 1, lambda s: [d.dim(len(s)), d.dim(len(s))]),
    "tensor_split.indices": lambda d: _after(d, 1, lambda s: [[d.some(1, s[0])], d.dim(len(s))]),
    "diagonal_scatter": _diagonal_scatter,
    "diag_embed": lambda d: _after(
        d, 1, lambda s: [d.some(0, 1), *d.some([], [0, 1], [-1, 0], [0, 2])]
    ),
    "rot90": lambda d: _after(d, 2, lambda s: [d.some(1, 2), d.r.sample(range(len(s)), 2)]),
    "as_strided": lambda d: [d.x(2, 3), [2, 3], [3, 1]],
    "as_strided_copy": lambda d: [d.x(2, 3), [2, 3], [3, 1]],
    "as_strided_scatter": lambda d: [d.x(2, 3), d.x(2, 3), [2, 3], [3, 1]],
    "polar": lambda d: _broadcast(d, 2),
    "linalg_cross": _cross,
    "cross": _cross,
    "diff": lambda d: _after(d, 1, lambda s: [1, d.dim(len(s))]),
    "linalg_norm": lambda d: _after(
        d, 1, lambda s: [None, d.some(None, d.dims(len(s))[:2]), d.flag()]
    ),
    "linalg_norm.ord_str": lambda d: _after(
        d, 2, lambda s: ["fro", d.some([0, 1], [-1, -2]), d.flag()]
    ),
    "norm.ScalarOpt_dim_dtype": lambda d: _after(
        d, 1, lambda s: [2, d.dims(len(s)), d.flag(), {"dtype": torch.float64}]
    ),
    **{k: lambda d: _matrices(d) for k in MATRIX},
    "_linalg_eigh": lambda d: [*_matrices(d), "L", True],
    "linalg_eigh": lambda d: [*_matrices(d), "L"],
    "_linalg_svd": lambda d: [*_matrices(d), False, True],
    "linalg_qr": lambda d: [*_matrices(d), "reduced"],
    "bilinear": lambda d: (
        lambda s, a, b, o: [d.x(*s, a), d.x(*s, b), d.x(o, a, b), d.some(None, d.x(o))]
    )(d.shape(0, 2), d.n(), d.n(), d.n()),
    "_cdist_forward": _cdist,
    "cdist": _cdist,
    "grid_sampler_2d": lambda d: (
        lambda n: [d.x(n, d.n(), 3, 3), d.x(n, d.n(), d.n(), 2), 0, 0, d.flag()]
    )(d.n()),
    "grid_sampler_3d": lambda d: (
        lambda n: [d.x(n, d.n(), 2, 3, 2), d.x(n, 2, 2, 2, 3), 0, 0, d.flag()]
    )(d.n()),
    "affine_grid_generator": lambda d: (lambda n: [d.x(n, 2, 3), [d.size(n), 2, 3, 3], d.flag()])(
        d.n()
    ),
    "multi_margin_loss": lambda d: (
        lambda n, c: [d.x(n, c), d.i(c, n), 1, 1.0, d.some(None, d.x(c)), d.some(0, 0, 1)]
    )(d.n(), d.n()),
    "multilabel_margin_loss_forward": lambda d: (
        lambda n, c: [d.x(n, c), d.i(c, n, c), d.some(0, 0, 1)]
    )(d.n(), d.n()),
    "max_unpool2d": lambda d: (lambda s: [d.x(*s, 2, 2), d.i(4, *s, 2, 2), [3, 3]])(d.shape(1, 2)),
    "max_unpool3d": lambda d: (
        lambda s: [d.x(*s, 2, 2, 2), d.i(8, *s, 2, 2, 2), [3, 3, 3], [1, 1, 1], [0, 0, 0]]
    )(d.shape(1, 2)),
    "index_add": _index_write,
    "index_copy": _index_write,
    "index_reduce": lambda d: [*_index_write(d), d.some("prod", "amax")],
    "index_fill": lambda d: [*_index_write(d)[:3], 0.5],
    "index_put": _index_put,
    "_unsafe_index_put": _index_put,
    "scatter.reduce": lambda d: [*_gather(d, "src"), {"reduce": d.some("add", "multiply")}],
    "scatter.value_reduce": lambda d: [*_gather(d, "value"), {"reduce": d.some("add", "multiply")}],
    "multinomial": lambda d: [T("unit", d.shape(1, 2)), 1, d.flag()],
    "normal.Tensor_float": lambda d: [d.x(*d.shape()), 0.5],
    "normal.float_Tensor": lambda d: [0.5, T("unit", d.shape())],
    "normal.Tensor_Tensor": lambda d: (lambda s: [d.x(*d.sub(s)), T("unit", s)])(d.shape()),
    "normal_functional": lambda d: [d.x(*d.shape())],
    "randint_like": lambda d: [d.x(*d.shape()), 5],
    "randint_like.low_dtype": lambda d: [d.x(*d.shape()), 0, 5],
    "linspace": lambda d: [0.0, 1.0, d.size(d.n())],
    "logspace": lambda d: [0.0, 1.0, d.size(d.n())],
    "eye": lambda d: [d.size(d.n())],
    "eye.m": lambda d: [d.size(d.n()), d.size(d.n())],
    "randperm": lambda d: [d.size(d.n())],
    "reflection_pad3d": lambda d: [_wide(d, 3), [d.some(0, 1) for _ in range(6)]],
    "replication_pad3d": lambda d: [_wide(d, 3), [d.some(0, 1) for _ in range(6)]],
    "upsample_nearest3d": lambda d: _scale(d, 3)[:2],
    "upsample_trilinear3d": lambda d: [*_scale(d, 3)[:2], d.flag()],
    **{f"_upsample_nearest_exact{k}d": (lambda d, k=k: _scale(d, k)[:2]) for k in (1, 2, 3)},
    "_upsample_bicubic2d_aa": lambda d: _scale(d, 2),
    "feature_dropout": lambda d: [d.x(*d.shape(2, 4)), 0.5, d.flag()],
    "alpha_dropout": lambda d: [d.x(*d.shape()), 0.5, d.flag()],
    "feature_alpha_dropout": lambda d: [d.x(*d.shape(2, 4)), 0.5, d.flag()],
    "mvlgamma": lambda d: [T("unit", d.shape()), 1],
    "special_multigammaln": lambda d: [T("unit", d.shape()), 1],
    "polygamma": lambda d: [1, T("unit", d.shape())],
    "special_polygamma": lambda d: [1, T("unit", d.shape())],
    "clamp.Tensor": lambda d: _broadcast(d, 3),
    "clip.Tensor": lambda d: _broadcast(d, 3),
    "where.ScalarSelf": lambda d: [T("bool", d.shape()), 0.5, d.x()],
    "where.ScalarOther": lambda d: [T("bool", d.shape()), d.x(), 0.5],
    "where.Scalar": lambda d: [T("bool", d.shape()), 0.5, 1.5],
    "_index_put_impl": _index_put,
    "bernoulli.Tensor": lambda d: (lambda s: [d.x(*s), T("unit", d.sub(s))])(d.shape()),
    "norm.Scalar": lambda d: [d.x(*d.shape()), 2],
    "norm.ScalarOpt_dtype": lambda d: [d.x(*d.shape()), 2, {"dtype": torch.float64}],
    "_trilinear": _trilinear,
    "native_dropout": lambda d: [d.x(*d.shape()), 0.5, d.flag()],
    "dropout": lambda d: [d.x(*d.shape()), 0.5, d.flag()],
}
# Of one form.
HINTS |= {
    name: HINTS[of]
    for of, names in {
        "permute": "permute_copy",
        "unsqueeze": "unsqueeze_copy",
        "squeeze.dims": "squeeze_copy.dims",
        "view": "view_copy",
        "expand": "expand_copy",
        "slice": "slice_copy",
        "select": "select_copy",
        "split": "split_copy",
        "split.sizes": "split_with_sizes_copy unsafe_split_with_sizes",
        "unfold": "unfold_copy",
        "diagonal": "diagonal_copy",
        "cat": "concat concatenate",
        "div.Tensor_mode": "divide.Tensor_mode",
        "div.Scalar_mode": "divide.Scalar_mode",
        "view_as_real": "view_as_real_copy",
    }.items()
    for name in names.split()
}


def from_schema(op: Any, d: Draw) -> tuple[list[Any], dict[str, Any]]:
    """Arguments by type and name, for operators without a hint."""
    shape, args, kwargs, first = d.shape(), [], {}, True
    kind = d.some("float", "float", "float", "unit", "int", "bool")
    for a in op._schema.arguments:
        kind_of, name, value = str(a.type), a.name, None
        if kind_of == "Tensor" or (kind_of == "Optional[Tensor]" and d.flag()):
            one = shape if "dim" in [b.name for b in op._schema.arguments] else d.sub(shape)
            value = T(
                "bool" if name in ("condition", "mask") else kind,
                shape if first and d.flag() else one,
                4,
            )
            shape_of = value.shape
            first = False
        elif kind_of == "List[Tensor]":
            value = [T(kind, d.sub(shape)) for _ in range(2)]
        elif a.has_default_value() and (
            d.r.random() < 0.3 or name in ("dtype", "layout", "memory_format")
        ):
            continue
        elif name == "dim" and "List" in kind_of:
            value = (
                d.some(None, d.dims(len(shape_of)), d.dims(len(shape_of)))
                if "Optional" in kind_of
                else d.dims(len(shape_of))
            )
        elif name in ("dim", "dim0", "dim1"):
            value = (
                d.dim(len(shape_of))
                if "Optional" not in kind_of
                else d.some(None, d.dim(len(shape_of)))
            )
        elif name == "reduction":
            value = d.some(0, 0, 1, 2)
        elif kind_of == "bool":
            value = d.flag()
        elif kind_of in ("int", "SymInt"):
            value = d.some(1, 2, Size(d.B)) if kind_of == "SymInt" else d.some(1, 2)
        elif kind_of in ("float", "number"):
            value = d.some(0.5, 2, Size(d.B)) if kind_of == "number" else d.some(0.5, 1.5)
        elif "Optional" in kind_of or a.has_default_value():
            continue
        else:
            raise TypeError(kind_of)
        if a.kwarg_only:
            kwargs[name] = value
        elif len(args) == [b.name for b in op._schema.arguments].index(name):
            args.append(value)
        else:
            kwargs[name] = value
    return args, kwargs


# Labels and what they promise.


def labels_for(t: T, B: int) -> list[Any]:
    found: list[Any] = [PUBLIC]
    for dim, n in enumerate(t.shape):
        for inner in range(1, n // B + 1 if n % B == 0 else 0):
            if n % (B * inner) == 0:
                found.append(Rows(dim, n // (B * inner), inner))
        alone = n == B and all(m == 1 for k, m in enumerate(t.shape) if k != dim)
        if alone and (t.kind == "float" or (t.kind == "int" and t.high >= B)):
            found.append(Index(dim))
    return found


def places(shape: Any, label: Any, B: int) -> Tensor:
    """For each entry of a tensor, whose it is."""
    n = shape[label.dim]
    owner = (torch.arange(n) // label.inner) % B
    return owner.view([-1 if k == label.dim else 1 for k in range(len(shape))]).expand(shape)


def permuted(x: Tensor, label: Any, order: Tensor, B: int) -> Tensor:
    n = x.shape[label.dim]
    index = torch.arange(n).view(label.outer, B, label.inner)[:, order].reshape(-1)
    return x.index_select(label.dim, index)


def same(a: Tensor, b: Tensor, close: bool = False) -> Tensor:
    if a.shape != b.shape:
        return torch.zeros((), dtype=torch.bool)
    equal = (a == b) | ((a != a) & (b != b))
    if close and _has_gradient(a):
        return torch.isclose(a, b, 1e-3, 1e-4, equal_nan=True) | equal
    return equal


class Tester:
    """Calls operators with random arguments and checks accepted labels.

    bare: asks the rule alone, without the nets behind it (the check of sizes, and of arguments
    that a rule has not considered): planted faults must be noticed by the rule's own tests.
    """

    def __init__(self, seed: int = 0, *, bare: bool = False) -> None:
        self.rng, self.bare = random.Random(seed), bare
        torch.manual_seed(seed)
        self.count: dict[str, Counter[str]] = defaultdict(Counter)
        self.holes: list[str] = []
        self.broken: list[str] = []

    def one(self, op: Any, calls: int, combos: int) -> None:
        """Test one operator with so many calls and so many combinations of labels for each."""
        name = str(op).removeprefix("aten.")
        hint = HINTS.get(name) or HINTS.get(name.rpartition(".")[0])
        tries = made = 0
        while made < calls and tries < 6 * calls:
            tries += 1
            d = Draw(self.rng)
            try:
                args, kwargs = _named(hint(d)) if hint is not None else from_schema(op, d)
                self.op, self.B = op, d.B
                self.flat, self.spec = pytree.tree_flatten((args, kwargs))
                self.tensors = tensors = [a for a in self.flat if isinstance(a, T)]
                self.call([t.draw() for t in tensors])
            except ODD:
                continue
            made += 1
            options = [labels_for(t, d.B) for t in tensors]
            every = list(itertools.islice(itertools.product(*options), 4000))
            if len(every) > combos:  # half of them with the batch in one place, from either side
                lined = [c for c in every if _lined(c, tensors)]
                every = self.rng.sample(lined, min(combos // 2, len(lined)))
                every += self.rng.sample(
                    list(itertools.islice(itertools.product(*options), 4000)), combos // 2
                )
            for labels in every:
                sized = any(isinstance(a, Size) for a in self.flat)
                for symbolic in (True, False) if sized else (True,):
                    self.check(name, list(labels), symbolic)
                    if len(self.holes) > 20:
                        return
        self.count[name]["calls"] += made

    def call(self, values: list[Tensor], size: int = 0) -> list[Tensor]:
        """The operator's outputs, always with the same random draws."""
        it = iter(values)
        full = [
            next(it) if isinstance(a, T) else int(a) + size if isinstance(a, Size) else a
            for a in self.flat
        ]
        args, kwargs = pytree.tree_unflatten(full, self.spec)
        state = torch.get_rng_state()  # arguments are drawn on from where they were
        torch.manual_seed(7)
        try:
            out = self.op(*args, **kwargs)
        finally:
            torch.set_rng_state(state)
        out = list(out) if isinstance(out, tuple | list) else [out]
        if not all(isinstance(x, Tensor) for x in out):
            raise TypeError("not tensors")
        return out

    def check(self, name: str, labels: list[Any], symbolic: bool) -> None:
        op, flat, tensors, B = self.op, self.flat, self.tensors, self.B
        values = [
            torch.arange(B).view(t.shape) if isinstance(label, Index) else t.draw()
            for t, label in zip(tensors, labels, strict=True)
        ]
        proof = Proof(B, symbolic=symbolic)
        graph, full = fx.Graph(), []
        it = iter(zip(values, labels, strict=True))
        for a in flat:
            node: Any = int(a) if isinstance(a, Size) else a
            if isinstance(a, T):
                node = graph.placeholder("x")
                node.meta["val"], proof.labels[node] = next(it)
            elif isinstance(a, Size) and symbolic:
                node = graph.placeholder("n")
                node.meta["val"], proof.labels[node] = int(a), SIZE
            full.append(node)
        args, kwargs = pytree.tree_unflatten(full, self.spec)
        try:
            out = self.call(values)
        except ODD:
            return
        node = graph.call_function(op, tuple(args), kwargs)
        returns = op._schema.returns
        many = len(returns) > 1 or "List" in str(returns[0].type)
        node.meta["val"] = tuple(out) if many else out[0]
        text = (
            f"{name} B={B} {labels} {[tuple(t.shape) for t in tensors]} "
            f"{[a for a in flat if not isinstance(a, T)]} {'symbolic' if symbolic else 'fixed'}"
        )
        try:
            label = self.label(proof, node)
        except Refusal as refusal:
            self.count[name]["refused"] += 1
            if "does not cover this call" in refusal.why:
                self.broken.append(f"{refusal.why} {text}")
            return
        self.count[name]["accepted"] += 1
        self.count[name]["rows"] += any(isinstance(one, Rows) for one in labels)
        given = list(label) if isinstance(label, tuple) else [label] * len(out)
        wrong = self.wrong(labels, values, out, given, symbolic)
        if wrong:
            self.count[name]["holes"] += 1
            self.holes.append(f"{wrong}: {text} -> {label}")

    def label(self, proof: Proof, node: fx.Node) -> Any:
        if self.bare and node.target in RULES:
            if all(proof.labels[n] == PUBLIC for n in node.all_input_nodes):
                raise Unknown("not asked")
            try:
                return RULES[node.target](Call(proof, node))
            except (AssertionError, *ODD, LookupError, AttributeError) as error:
                if isinstance(error, Refusal):
                    raise
                raise Unknown("a fault that breaks the rule") from None
        # Numbers stand for symbols here, so sizes at another batch size are not known.
        proof.checked_at = (proof.batch,)
        proof.visit(node)
        return proof.labels[node]

    def wrong(
        self,
        labels: list[Any],
        values: list[Tensor],
        out: list[Tensor],
        given: list[Any],
        symbolic: bool,
    ) -> str | None:
        """None if the labels keep their promise, else what happened."""
        op, tensors, B = self.op, self.tensors, self.B
        for x, label in zip(out, given, strict=True):
            if isinstance(label, Rows) and x.numel():
                fits = 0 <= label.dim < x.dim()
                if not fits or x.shape[label.dim] != B * label.outer * label.inner:
                    return "the label does not fit the sizes"
            if isinstance(label, Index) and x.numel():
                shape = [-1 if k == label.dim else 1 for k in range(max(x.dim(), 1))]
                if x.dim() <= label.dim or x.shape[label.dim] != B:
                    return "not the numbers of the rows"
                if not bool((x == torch.arange(B).view(shape)).all()):
                    return "not the numbers of the rows"
        for j in range(B):
            for _ in range(2):
                changed = [
                    torch.where(places(t.shape, label, B) == j, t.draw(), value)
                    if isinstance(label, Rows)
                    else value
                    for t, value, label in zip(tensors, values, labels, strict=True)
                ]
                try:
                    new = self.call(changed)
                except (RuntimeError, IndexError):
                    return "fails for other data" if "fmod" not in str(op) else None
                for x, y, label in zip(out, new, given, strict=True):
                    if label is None:
                        continue
                    equal = same(x, y)
                    if isinstance(label, Rows) and x.numel() and x.shape == y.shape:
                        equal = equal | (places(x.shape, label, B) == j)
                    if not bool(equal.all()):
                        rows = isinstance(label, Rows)
                        return "another example changed" if rows else "public values changed"
        if torch.Tag.nondeterministic_seeded not in op.tags:
            order = torch.roll(torch.arange(B), 1)
            moved = [
                permuted(v, one, order, B) if isinstance(one, Rows) else v
                for v, one in zip(values, labels, strict=True)
            ]
            new = self.call(moved)
            for x, y, label in zip(out, new, given, strict=True):
                if isinstance(label, Rows) and x.numel() and x.shape[label.dim] % B == 0:
                    x = permuted(x, label, order, B)
                if label is not None and not bool(same(x, y, close=True).all()):
                    return "the order of the examples matters"
            if symbolic and any(isinstance(a, Size) for a in self.flat):
                seen = self._sees_size(values, out)
                if seen is not None:
                    return seen
        state = torch.get_rng_state()  # what is drawn next does not depend on this test
        try:
            return self._way_back(labels, values, out, given)
        finally:
            torch.set_rng_state(state)

    def _way_back(
        self, labels: list[Any], values: list[Tensor], out: list[Tensor], given: list[Any]
    ) -> str | None:
        """Gradients of rows, by gradients of rows; None where there are none."""
        op, tensors, B = self.op, self.tensors, self.B
        tops = [
            torch.randn_like(x) if isinstance(label, Rows) and _has_gradient(x) else None
            for x, label in zip(out, given, strict=True)
        ]

        def back(inputs: list[Tensor], tops: list[Tensor | None]) -> list[Tensor | None]:
            leaves = [
                x.clone().requires_grad_(isinstance(label, Rows) and _has_gradient(x))
                for x, label in zip(inputs, labels, strict=True)
            ]
            found = self.call(leaves)
            ends = [(y, g) for y, g in zip(found, tops, strict=True) if g is not None]
            ends = [(y, g) for y, g in ends if y.requires_grad]
            into = [x for x in leaves if x.requires_grad]
            if not ends or not into:
                return [None] * len(leaves)
            outputs, gradients = zip(*ends, strict=True)
            grads = iter(torch.autograd.grad(outputs, into, gradients, allow_unused=True))
            each = [next(grads) if x.requires_grad else None for x in leaves]
            return [g.to_dense() if g is not None and g.is_sparse else g for g in each]

        try:
            before = back(values, tops)
        except ODD:  # no derivative
            return None
        if all(g is None for g in before):
            return None
        for j in range(B):
            changed = [
                torch.where(places(t.shape, label, B) == j, self._odd(t), value)
                if isinstance(label, Rows)
                else value
                for t, value, label in zip(tensors, values, labels, strict=True)
            ]
            try:
                after = back(changed, tops)
            except ODD:  # a matrix without an inverse, say: the step ends in an error
                continue
            for x, y, label in zip(before, after, labels, strict=True):
                if x is not None and y is not None:
                    others = places(x.shape, label, B) != j
                    if not bool((same(x, y) | ~others).all()):
                        return "the gradient of another example changed"
        if torch.Tag.nondeterministic_seeded in op.tags:
            return None
        order = torch.roll(torch.arange(B), 1)

        def turned(x: Tensor | None, label: Any) -> Tensor | None:
            return permuted(x, label, order, B) if x is not None and label != PUBLIC else x

        values = [_double(v) for v in values]  # what is left is more than rounding
        tops = [g if g is None else _double(g) for g in tops]
        moved = [
            permuted(v, one, order, B) if isinstance(one, Rows) else v
            for v, one in zip(values, labels, strict=True)
        ]
        try:
            before = back(values, tops)
            after = back(moved, [turned(g, one) for g, one in zip(tops, given, strict=True)])
        except ODD:
            return None
        for x, y, label in zip(before, after, labels, strict=True):
            x = turned(x, label)
            if x is not None and y is not None and not bool(same(x, y, close=True).all()):
                return "gradients follow the order of the examples"
        return None

    def _odd(self, t: T) -> Tensor:
        """Values with zeros, very large and very small ones, and what is no number."""
        x = t.draw()
        if not x.is_floating_point():
            return x
        odd = torch.tensor([0.0, 0.0, 1.0, 1e30, 1e-30, float("inf"), float("nan")])
        chosen = odd[torch.randint(0, len(odd), x.shape)].to(x.dtype)
        return torch.where(torch.rand(x.shape) < 0.5, chosen, x)

    def _sees_size(self, values: list[Tensor], out: list[Tensor]) -> str | None:
        try:
            new = self.call(values, size=1)
        except (RuntimeError, TypeError, IndexError):
            return None
        for x, y in zip(out, new, strict=True):
            if x.shape == y.shape and not bool(same(x, y).all()):
                return "the number of examples is seen"
        return None


def _has_gradient(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x.cdouble() if x.is_complex() else x


def _lined(labels: Any, tensors: list[T]) -> bool:
    """Whether two or more tensors have their rows in one place, counted from either side."""
    given = [(o, len(t.shape)) for o, t in zip(labels, tensors, strict=True) if o != PUBLIC]
    if len(given) < 2 or not all(isinstance(o, Rows) for o, _ in given):
        return False
    from_right = {(o.dim - r, o.outer, o.inner) for o, r in given}
    return len({o for o, _ in given}) == 1 or len(from_right) == 1


def _named(args: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """A hint's last argument may be a dictionary of named ones."""
    return (args[:-1], args[-1]) if args and isinstance(args[-1], dict) else (args, {})
