"""Operators along some dimensions: sums, extremes, norms, sorts, cumulative sums, transforms.

Each slice along the named dimensions is worked on alone. So rows stay apart as long as their
dimension is not among them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tightrope.train.program.labels import PUBLIC, Label, Mixes, Rows, Unknown, without
from tightrope.train.program.rules.table import never, rule

if TYPE_CHECKING:
    from tightrope.train.program.proof import Call

_PER_EXAMPLE = "Reduce over the other dimensions, so that one number is left for each example."


@rule(
    "sum.dim_IntList mean.dim amax amin any.dim any.dims all.dim all.dims "
    "logsumexp argmax argmin max.dim min.dim median.dim nanmedian.dim nansum var.correction "
    "std.correction var_mean.correction std_mean.correction var.dim std.dim mode.default "
    "count_nonzero.dim_IntList linalg_vector_norm norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype "
    "kthvalue aminmax nanmean special_logsumexp linalg_norm "
    "count_nonzero sum.default mean.default max.default min.default any.default all.default "
    "prod.default median.default nanmedian.default std.default var.default norm.Scalar "
    "norm.ScalarOpt_dtype std_mean.default var_mean.default"
)
def reduce(c: Call) -> Label:
    """One number for each slice; without dimensions, one number for all entries."""
    c.public_but("self")
    x = c["self"]
    given = c.get("dim")
    label = c.rows(x)
    dims = c.dims(x, given)
    if label.dim in dims:
        raise Mixes(
            f"{c.name} over the dimension that holds the examples (dimension {label.dim})",
            _PER_EXAMPLE,
        )
    return c.each(without(label, dims, keep=bool(c.get("keepdim"))))


@rule("prod.dim_int")
def product_along(c: Call) -> Label:
    """Captured as products of two numbers each: torch's own way back is another one for the whole
    batch as soon as any example has a zero."""
    c.public_but("self")
    c.untouched(c["self"], c["dim"], "prod")
    raise Unknown("the way back of prod depends on whether any example has a zero")


@rule(
    "cumsum cumprod logcumsumexp cummax cummin softmax.int log_softmax.int _softmax _log_softmax "
    "_safe_softmax softmin special_softmax special_log_softmax"
)
def along(c: Call) -> Label:
    """As many numbers as before, each made from its slice along one dimension."""
    c.public_but("self")
    return c.each(c.untouched(c["self"], c["dim"], c.name))


@rule("glu")
def glu(c: Call) -> Label:
    """One half along a dimension, times the sigmoid of the other half."""
    return c.untouched(c["self"], c["dim"], "glu")


@rule("sort argsort topk msort")
def sort(c: Call) -> Label:
    """Numbers and their places within each slice."""
    c.public_but("self")
    return c.each(c.untouched(c["self"], c.get("dim", 0), c.name))


@rule("diff")
def diff(c: Call) -> Label:
    """Differences of neighbours along a dimension, with optional ends."""
    label = c.untouched(c["self"], c["dim"], "diff")
    for end in ("prepend", "append"):
        if c[end] is not None and c.label(c[end]) != label:
            raise Mixes("the ends of a difference do not belong to the same examples")
    c.public(c["n"])
    return label


@rule("renorm")
def renorm(c: Call) -> Label:
    """Each slice *at* an index of `dim` gets a norm of its own, over all other dimensions."""
    c.public_but("self")
    label = c.rows(c["self"])
    if c.dim(c["self"], c["dim"]) != label.dim:
        raise Mixes("renorm takes norms over the dimension that holds the examples")
    return label


@rule("cross linalg_cross")
def cross(c: Call) -> Label:
    """A product of vectors of three entries along one dimension."""
    label = c.broadcast(c["self"], c["other"])
    dim = c["dim"]
    if dim is None or (isinstance(label, Rows) and label.dim == dim % len(c.result_sizes)):
        raise Mixes("a cross product over the dimension that holds the examples")
    return label


@rule("_fft_r2c _fft_c2c _fft_c2r")
def fft(c: Call) -> Label:
    """A transform along the named dimensions."""
    c.public(c["normalization"], c.get("onesided"), c.get("forward"))
    if c.name == "_fft_c2r":
        c.number(c["last_dim_size"])
    return c.untouched(c["self"], list(c["dim"]) or None, "a Fourier transform")


@rule("fft_fftshift fft_ifftshift")
def fft_shift(c: Call) -> Label:
    return c.untouched(c["self"], c["dim"], "a shift")


@rule("cosine_similarity")
def cosine_similarity(c: Call) -> Label:
    """Of two broadcast tensors, along one dimension, which goes."""
    rank = max(c.rank(c["x1"]), c.rank(c["x2"]))
    c.public(c["eps"])
    label = c.broadcast(c["x1"], c["x2"], rank=rank)
    return _one_dimension_less(label, c["dim"] % rank, "cosine similarity")


@rule("pairwise_distance")
def pairwise_distance(c: Call) -> Label:
    """Of two broadcast tensors, along the last dimension."""
    rank = max(c.rank(c["x1"]), c.rank(c["x2"]))
    c.public(c["p"], c["eps"])
    label = c.broadcast(c["x1"], c["x2"], rank=rank)
    if c["keepdim"] and isinstance(label, Rows) and label.dim != rank - 1:
        return label
    return _one_dimension_less(label, rank - 1, "a distance")


def _one_dimension_less(label: Label, dim: int, what: str) -> Label:
    if not isinstance(label, Rows):
        return label
    if label.dim == dim:
        raise Mixes(f"{what} over the dimension that holds the examples", _PER_EXAMPLE)
    return without(label, [dim])


@rule("_weight_norm_interface", makes=True)
def weight_norm(c: Call) -> Label:
    """Weights of a layer times g / norm, for the first or the last dimension.

    For others, or for g of other sizes, the operator returns memory as it was found.
    """
    c.public_but()
    if math.prod(c.sizes(c["g"])) != c.sizes(c["v"])[c["dim"]]:
        raise Unknown("weight norm with g of other sizes")
    if c["dim"] not in (0, c.rank(c["v"]) - 1):
        raise Unknown("weight norm along a dimension that is neither the first nor the last")
    return c.each(PUBLIC)


never(
    "_local_scalar_dense item nonzero nonzero_numpy argwhere masked_select unique_consecutive "
    "_unique _unique2 unique_dim where.default equal is_nonzero bincount",
    "a number or a size is read from the data",
    "Sizes and Python numbers must be public. Use masks and sums over each example instead.",
)
never(
    "dist histc trace _pdist_forward pdist cov corrcoef _euclidean_dist quantile nanquantile "
    "histogram.bin_ct",
    "a value is computed from all entries of its arguments",
    "Write it with operators that name the dimensions they work along.",
)
never(
    "rrelu rrelu_with_noise rrelu_with_noise_functional _standard_gamma _sample_dirichlet "
    "poisson binomial",
    "how many random numbers it draws depends on the data",
    "Use leaky_relu, or draws whose number is fixed: rand, randn, dropout.",
)
never(
    "_ctc_loss ctc_loss",
    "torch cannot say its sizes before it runs, and a part of its output is memory as it was found",
    "CTC losses cannot be captured.",
)
never(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided",
    "it returns memory as it was left, which may hold numbers of other examples",
    "Use torch.zeros.",
)
