"""Layers that keep their examples in one dimension: norms, pools, interpolation, losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx

from tightrope.train.program.labels import Label, Mixes, Rows, Unknown
from tightrope.train.program.rules.table import RULES, rule

if TYPE_CHECKING:
    from tightrope.train.program.proof import Call

_NONE = 'Use reduction="none", and average over the entries of each example by yourself.'


# Norms.


@rule("layer_norm native_layer_norm rms_norm _fused_rms_norm")
def layer_norm(c: Call) -> Label:
    """Over the last dimensions. Statistics have the sizes of the result, with ones at the end."""
    c.public(c["weight"], c.get("bias"), c["eps"], c.get("cudnn_enable"))
    x, count = c["input"], len(c.numbers(c["normalized_shape"]))
    rank = c.rank(x)
    return c.each(c.untouched(x, list(range(rank - count, rank)), "a normalisation"))


@rule("group_norm native_group_norm")
def group_norm(c: Call) -> Label:
    """Statistics for each entry of the first dimension and each group of channels."""
    for name in ("N", "C", "HxW"):
        if name in c:
            c.number(c[name])
    c.public(c["weight"], c["bias"], c["eps"])
    c.public(c.get("num_groups"), c.get("group"), c.get("cudnn_enabled"))
    label = c.rows(c["input"])
    if label.dim != 0:
        raise Mixes(
            "a group normalisation over the dimension that holds the examples",
            "Bring the examples to the first dimension.",
        )
    return c.each(label)


@rule(
    "batch_norm native_batch_norm _native_batch_norm_legit.no_stats cudnn_batch_norm "
    "_native_batch_norm_legit_no_training _native_batch_norm_legit_functional "
    "_batch_norm_with_update_functional"
)
def batch_norm(c: Call) -> Label:
    """Each channel (dimension 1) by its statistics, over all other dimensions.

    In evaluation mode the statistics are given, and each entry is worked on alone.
    """
    training = bool(c["training"]) if "training" in c else "no_training" not in c.name
    label = c.rows(c["input"])
    c.public(c["momentum"], c["eps"], c.get("cudnn_enabled"))
    names = [n for n in ("weight", "bias", "running_mean", "running_var") if n in c]
    if training:
        return _own_channels(c, label, names)
    if "running_mean" not in names or c["running_mean"] is None or c["running_var"] is None:
        raise Unknown("a batch normalisation in evaluation mode, without statistics")
    given = [c[name] for name in names if c[name] is not None]
    if label.dim == 1:
        # Examples lie in the channels: what each channel gets must be its own example's.
        if any(c.label(value) != label.at(0) for value in given):
            raise Mixes("public numbers that differ from row to row meet the rows")
    else:
        c.public(*given)
    value = c.value
    if isinstance(value, Tensor):
        return label
    return (label, *[None] * (len(value) - 1))  # statistics that went in, or none


def _own_channels(c: Call, label: Rows, names: list[str]) -> Label:
    """Statistics are taken over all but the channels. Instance norm puts the examples there."""
    if label.dim != 1:
        raise Mixes(
            "batch normalisation takes statistics over the examples",
            "Use group normalisation: model = tightrope.train.fix(model) replaces it; or put the "
            "layer into evaluation mode.",
        )
    for name in names:
        if c[name] is not None and c.label(c[name]) != label.at(0):
            raise Mixes("a normalisation of the examples' own channels with numbers of others")
    value = c.value
    if isinstance(value, Tensor):
        return label
    statistics = [label.at(0) if len(part.shape) == 1 else None for part in value[1:]]
    return (label, *statistics)


# Recurrent layers.


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


# Pools, pads and interpolation.


# How many of the last dimensions an operator works along; the number of dimensions stays.
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
def along_last(c: Call) -> Label:
    """Windows, ends and grids of the last dimensions."""
    x = c["self"] if "self" in c else c["input"]
    for name in _SIZES:
        value = c.get(name)
        if value is not None:
            c.numbers(value if isinstance(value, list | tuple) else [value])
    c.public_but("self", "input", *_SIZES)
    label = c.rows(x)
    inside = label.dim >= c.rank(x) - _LAST[c.name]
    if inside and _does_nothing(c):
        value = c.value  # places within the last dimensions are those of the examples themselves
        return label if isinstance(value, Tensor) else (label, *[None] * (len(value) - 1))
    if inside:
        raise Mixes(
            f"{c.name} over the dimension that holds the examples",
            "Bring the examples to the first dimension.",
        )
    return c.each(label)


def _does_nothing(c: Call) -> bool:
    """A window of one entry at each place."""
    if not c.name.startswith(("max_pool", "avg_pool")):
        return False
    ones = [1] * len(c["kernel_size"])
    steps = list(c["stride"]) or ones
    return list(c["kernel_size"]) == ones == steps and not any(c["padding"])


@rule("max_unpool2d max_unpool3d")
def unpool(c: Call) -> Label:
    """Entries go to places within their own plane; the others are zero."""
    c.numbers(c["output_size"])
    for name in ("stride", "padding"):
        if name in c:
            c.public(c[name])
    count = 2 if c.name == "max_unpool2d" else 3
    x = c["self"]
    label = c.untouched(x, list(range(c.rank(x) - count, c.rank(x))), c.name)
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


@rule("affine_grid_generator")
def affine_grid(c: Call) -> Label:
    """theta (N, 2, 3) to a grid (N, H, W, 2)."""
    c.numbers(c["size"])
    c.public(c["align_corners"])
    label = c.rows(c["theta"])
    if label.dim != 0:
        raise Mixes("an affine grid over the dimension that holds the examples")
    return label


# Losses.


def _not_reduced(c: Call) -> None:
    if c["reduction"] != 0:
        raise Mixes("the loss is averaged or summed over the examples", _NONE)


@rule("nll_loss_forward nll_loss2d_forward")
def nll(c: Call) -> Label:
    """Predictions (N, C, ...) with classes (N, ...)."""
    _not_reduced(c)
    c.public(c["weight"])
    c.public(c["ignore_index"])
    label = c.rows(c["self"])
    if label.dim != 0 or c.rank(c["self"]) == 1 or c.label(c["target"]) != label:
        raise Mixes(
            "predictions and classes do not have their examples in the first dimension",
            "Bring the examples to the first dimension of both.",
        )
    return (label, None)  # the sum of the weights is not computed


@rule(
    "mse_loss binary_cross_entropy binary_cross_entropy_with_logits smooth_l1_loss huber_loss "
    "soft_margin_loss"
)
def loss_of_entries(c: Call) -> Label:
    """One loss for each entry of broadcast predictions and targets."""
    _not_reduced(c)
    return c.broadcast(*[value for value in c.arguments if isinstance(value, fx.Node)])


@rule("multi_margin_loss multilabel_margin_loss_forward")
def margin_loss(c: Call) -> Label:
    """One loss for each row of (N, C); without N, one for all entries."""
    _not_reduced(c)
    c.public_but("self", "target")
    label = c.rows(c["self"])
    if label.dim != 0 or c.rank(c["self"]) != 2 or c.label(c["target"]) != label:
        raise Mixes("predictions and classes do not have their examples in the first dimension")
    return c.each(label)
