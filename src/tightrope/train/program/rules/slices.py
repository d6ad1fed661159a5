"""Operators along some dimensions: sums, norms, sorts, transforms, pools, windows, losses.

Each slice along the named dimensions is worked on alone. So rows stay apart as long as their
dimension is not among them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tightrope.train.program.labels import PUBLIC, Label, Mixes, Rows, Unknown, without
from tightrope.train.program.rules.table import RULES, along, never, rule

if TYPE_CHECKING:
    from tightrope.train.program.proof import Call

_PER_EXAMPLE = "Reduce over the other dimensions, so that one number is left for each example."
_FIRST = "Bring the examples to the first dimension."


# One number for each slice; without dimensions, one number for all entries.
along(
    "sum.dim_IntList mean.dim amax amin any.dim any.dims all.dim all.dims "
    "logsumexp argmax argmin max.dim min.dim median.dim nanmedian.dim nansum var.correction "
    "std.correction var_mean.correction std_mean.correction var.dim std.dim mode.default "
    "count_nonzero.dim_IntList linalg_vector_norm norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype "
    "kthvalue aminmax nanmean special_logsumexp linalg_norm "
    "count_nonzero sum.default mean.default max.default min.default any.default all.default "
    "prod.default median.default nanmedian.default std.default var.default norm.Scalar "
    "norm.ScalarOpt_dtype std_mean.default var_mean.default",
    "dim",
    gone=True,
    do=_PER_EXAMPLE,
)
# Numbers that are each made from a slice along one dimension; transforms along several.
along(
    "cumsum cumprod logcumsumexp cummax cummin softmax.int log_softmax.int _softmax _log_softmax "
    "_safe_softmax softmin special_softmax special_log_softmax glu sort argsort topk "
    "_fft_r2c _fft_c2c _fft_c2r fft_fftshift fft_ifftshift",
    "dim",
    sizes="last_dim_size",
)
along("roll rot90", "dims")
along("flip", lambda c, x, rank: [c.dim(x, d) for d in c["dims"]])
along("unfold unfold_copy", "dimension")  # overlapping ranges, each in a new last dimension
along("msort", lambda c, x, rank: [0])
along("multinomial", lambda c, x, rank: [rank - 1])
# Each slice *at* an index of `dim` gets a norm of its own, over all other dimensions.
along("renorm", lambda c, x, rank: {*range(rank)} - {c.dim(x, c["dim"])})
# A function of each matrix in the last two dimensions.
along(
    "tril triu linalg_inv_ex inverse linalg_cholesky_ex cholesky linalg_det _linalg_det "
    "linalg_slogdet _linalg_slogdet _linalg_eigh linalg_eigh _linalg_svd linalg_svd "
    "linalg_svdvals linalg_qr linalg_matrix_exp linalg_pinv.atol_rtol_float linalg_lu_factor_ex "
    "linalg_lu cholesky_inverse _linalg_eigvals linalg_eigvals linalg_eig",
    lambda c, x, rank: range(rank - 2, rank),
)
# Over the last dimensions. Statistics have the sizes of the result, with ones at the end.
along(
    "layer_norm native_layer_norm rms_norm _fused_rms_norm",
    lambda c, x, rank: range(rank - len(c["normalized_shape"]), rank),
    sizes="normalized_shape",
)
# Statistics for each entry of the first dimension and each group of channels.
along("group_norm native_group_norm", lambda c, x, r: range(1, r), sizes="N C HxW", do=_FIRST)
# Input (N, C, ...) with weights (O, C / groups, ...): each entry of N alone. Without the first
# dimension there is none that is kept, so the numbers of dimensions must be equal.
along(
    "conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d conv_transpose3d "
    "conv1d.padding conv2d.padding conv3d.padding",
    lambda c, x, rank: range(rank == c.rank(c["weight"]), rank),
    do=_FIRST,
)
# The last three dimensions exchange entries; all but the first; theta (N, 2, 3) to (N, H, W, 2).
along(
    "pixel_shuffle pixel_unshuffle",
    lambda c, x, rank: range(rank - 3, rank) if c.arguments[1] != 1 else [],  # by a factor
)
along(
    "channel_shuffle native_channel_shuffle",
    lambda c, x, rank: range(1, rank) if c["groups"] != 1 else [],
)
along("affine_grid_generator", lambda c, x, rank: range(1, rank), of="theta", sizes="size")


@rule("prod.dim_int")
def product_along(c: Call) -> Label:
    """Captured as products of two numbers each: torch's own way back is another one for the whole
    batch as soon as any example has a zero."""
    c.public_but("self")
    c.untouched(c["self"], c.dims(c["self"], c["dim"]), _PER_EXAMPLE)
    raise Unknown("the way back of prod depends on whether any example has a zero")


@rule("diff")
def diff(c: Call) -> Label:
    """Differences of neighbours along a dimension, with optional ends."""
    label = c.untouched(c["self"], c.dims(c["self"], c["dim"]))
    for end in ("prepend", "append"):
        if c[end] is not None and c.label(c[end]) != label:
            raise Mixes("the ends of a difference do not belong to the same examples")
    c.public(c["n"])
    return label


@rule("cross linalg_cross")
def cross(c: Call) -> Label:
    """A product of vectors of three entries along one dimension."""
    label, dim = c.broadcast(c["self"], c["other"]), c["dim"]
    if dim is None or (isinstance(label, Rows) and label.dim == dim % len(c.result_sizes)):
        raise Mixes("a cross product over the dimension that holds the examples")
    return label


@rule("cosine_similarity pairwise_distance")
def of_pairs(c: Call) -> Label:
    """Of two broadcast tensors, along one dimension, which goes; of a distance it is the last."""
    rank = max(c.rank(c["x1"]), c.rank(c["x2"]))
    c.public(c.get("p"), c["eps"])
    label, dim = c.broadcast(c["x1"], c["x2"], rank=rank), c.get("dim", -1) % rank
    keep = bool(c.get("keepdim"))
    if not isinstance(label, Rows):
        return label
    if label.dim == dim:
        raise Mixes(f"{c.name} over the dimension that holds the examples", _PER_EXAMPLE)
    return without(label, [dim], keep)


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


@rule(
    "batch_norm native_batch_norm _native_batch_norm_legit.no_stats cudnn_batch_norm "
    "_native_batch_norm_legit_no_training _native_batch_norm_legit_functional "
    "_batch_norm_with_update_functional"
)
def batch_norm(c: Call) -> Label:
    """Each channel (dimension 1) by its statistics, over all other dimensions.

    In evaluation mode the statistics are given, and each entry is worked on alone. Instance norm
    puts the examples into the channels: what each channel gets must be its own example's.
    """
    training = bool(c["training"]) if "training" in c else "no_training" not in c.name
    label = c.rows(c["input"])
    c.public(c["momentum"], c["eps"], c.get("cudnn_enabled"))
    names = [n for n in ("weight", "bias", "running_mean", "running_var") if n in c]
    given = [c[name] for name in names if c[name] is not None]
    if training and label.dim != 1:
        raise Mixes(
            "batch normalisation takes statistics over the examples",
            "Use group normalisation: model = tightrope.train.fix(model) replaces it; or put the "
            "layer into evaluation mode.",
        )
    if not training and (c.get("running_mean") is None or c.get("running_var") is None):
        raise Unknown("a batch normalisation in evaluation mode, without statistics")
    if label.dim != 1:
        c.public(*given)
    elif any(c.label(value) != label.at(0) for value in given):
        raise Mixes("a normalisation of the examples' own channels with numbers of others")
    if isinstance(c.value, Tensor):
        return label
    rest = c.value[1:]  # statistics, which went in where they were given
    return (label, *(label.at(0) if training and len(s.shape) == 1 else None for s in rest))


def recurrent(c: Call) -> Label:
    """Sequences (N, T, d) or (T, N, d) and states (layers, N, h): each entry of N alone.

    First states of zeros are those of any example, whichever of their sizes is taken for the batch.
    """
    c.public_but("x", "hx")
    at = 0 if c["batch_first"] else 1
    label = c.rows(c["x"])
    if label.dim != at:
        raise Mixes(
            "a recurrent layer over the dimension that holds the examples",
            f"With batch_first={at == 0} they must lie in dimension {at}.",
        )
    zeros = torch.ops.aten.zeros.default
    if any(c.label(state) != label.at(1) and state.target is not zeros for state in c["hx"]):
        raise Unknown("a recurrent layer whose first states are not one for each example")
    return (label, *[label.at(1)] * len(c["hx"]))


RULES[torch.ops.tightrope.recurrent.default] = recurrent


# How many of the last dimensions a window, a pad or a grid works along; their number stays.
_LAST = {
    name: count
    for count, names in {
        1: "max_pool1d max_pool1d_with_indices avg_pool1d adaptive_avg_pool1d "
        "adaptive_max_pool1d upsample_nearest1d _upsample_nearest_exact1d upsample_linear1d "
        "reflection_pad1d replication_pad1d",
        # col2im: (N, C * kernel, places) or without N
        2: "max_pool2d max_pool2d_with_indices avg_pool2d adaptive_avg_pool2d "
        "_adaptive_avg_pool2d adaptive_max_pool2d upsample_nearest2d _upsample_nearest_exact2d "
        "upsample_bilinear2d upsample_bicubic2d reflection_pad2d replication_pad2d "
        "_upsample_bilinear2d_aa _upsample_bicubic2d_aa col2im",
        # im2col: (N, C, H, W) or without N
        3: "max_pool3d_with_indices avg_pool3d adaptive_avg_pool3d _adaptive_avg_pool3d "
        "adaptive_max_pool3d upsample_nearest3d _upsample_nearest_exact3d upsample_trilinear3d "
        "reflection_pad3d replication_pad3d im2col",
    }.items()
    for name in names.split()
}
_SIZES = ("output_size", "padding", "kernel_size", "stride", "dilation")


@rule(" ".join(_LAST))
def window(c: Call) -> Label:
    """Windows, ends and grids of the last dimensions."""
    x = c["self"] if "self" in c else c["input"]
    for name in _SIZES:
        c.numbers(c.get(name))
    c.public_but("self", "input", *_SIZES)
    label, last = c.rows(x), range(c.rank(x) - _LAST[c.name], c.rank(x))
    if label.dim in last and c.name.startswith(("max_pool", "avg_pool")):
        ones = [1] * len(c["kernel_size"])
        if [*c["kernel_size"]] == ones == ([*c["stride"]] or ones) and not any(c["padding"]):
            # A window of one entry. Places within the last dimensions are those of the examples.
            return label if isinstance(c.value, Tensor) else (label, *[None] * (len(c.value) - 1))
    return c.each(c.untouched(x, last, _FIRST))


@rule("max_unpool2d max_unpool3d")
def unpool(c: Call) -> Label:
    """Entries go to places within their own plane; the others are zero."""
    c.numbers(c["output_size"])
    c.public(c.get("stride"), c.get("padding"))
    x, count = c["self"], 2 if c.name == "max_unpool2d" else 3
    label = c.untouched(x, range(c.rank(x) - count, c.rank(x)))
    if c.label(c["indices"]) != label:
        raise Mixes("entries are put to places of other examples")
    return label


@rule("grid_sampler_2d grid_sampler_3d")
def grid_sampler(c: Call) -> Label:
    """input (N, C, ...) read at places grid (N, ..., 2 or 3): entry n at the places of entry n."""
    c.public_but("input", "grid")
    label = c.broadcast(c["input"], c["grid"], rank=c.rank(c["input"]))
    if not isinstance(label, Rows) or label.dim != 0 or c.label(c["input"]) != c.label(c["grid"]):
        raise Mixes("a grid and an image of different examples")
    return label


def check_not_reduced(c: Call) -> None:
    if c["reduction"] != 0:
        raise Mixes(
            "the loss is averaged or summed over the examples",
            'Use reduction="none", and average over the entries of each example by yourself.',
        )


@rule("nll_loss_forward nll_loss2d_forward multi_margin_loss multilabel_margin_loss_forward")
def loss_of_classes(c: Call) -> Label:
    """Predictions (N, C, ...) with classes (N, ...): one loss for each example and place.

    The second output of nll_loss, the sum of the weights, is not computed. Without N there is one
    loss for all entries.
    """
    check_not_reduced(c)
    c.public_but("self", "target")
    label = c.rows(c["self"])
    if label.dim != 0 or c.rank(c["self"]) == 1 or c.label(c["target"]) != label:
        raise Mixes(
            "predictions and classes do not have their examples in the first dimension",
            "Bring the examples to the first dimension of both.",
        )
    return (label, None) if c.name.startswith("nll") else c.each(label)


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
