"""Operators that work entry by entry, and operators that make tensors.

Entry k of the result is a function of the entries k of the arguments and of numbers, so rows stay
where they are, and two arguments with rows must have them in the same place (labels.broadcast).

A tensor of equal numbers, or of independent draws, may have one row for each example wherever its
size follows the batch. Row numbers come from `arange(B)`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from tightrope.train.program.labels import PUBLIC, Index, Label, Mixes, Rows, Unknown
from tightrope.train.program.rules.slices import check_not_reduced
from tightrope.train.program.rules.table import RULES, along, overloads, rule

if TYPE_CHECKING:
    from tightrope.train.program.proof import Call

# Names that ATen itself tags as pointwise, and which the generated tests call. Left out on purpose:
# `equal` (reads all entries), `rrelu` (how much it draws depends on the data).
TAGGED = """
    __lshift__ __rshift__ __xor__ abs acos acosh add addcdiv addcmul angle asin asinh atan atan2
    atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor
    ceil celu clamp clamp_max clamp_min clip conj_physical copysign cos cosh deg2rad digamma div
    elu eq erf erfc erfinv exp exp2 expm1 float_power floor fmax fmin fmod frac frexp gcd ge gelu
    gelu_backward gt hardshrink hardsigmoid hardtanh heaviside hypot i0 igamma igammac isfinite
    isinf isnan isneginf isposinf lcm ldexp le leaky_relu lerp lgamma log log10 log1p log2
    logaddexp logaddexp2 logical_and logical_not logical_or logical_xor logit logit_backward lt
    masked_fill maximum minimum mish mul mvlgamma nan_to_num native_dropout_backward ne neg
    nextafter polygamma positive pow rad2deg reciprocal relu relu6 remainder round rsqrt rsub selu
    sgn sigmoid sigmoid_backward sign signbit silu silu_backward sin sinc sinh softplus softshrink
    special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
    special_entr special_erfcx special_i0e special_i1 special_i1e special_log_ndtr
    special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0
    special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0
    special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_xlog1py special_zeta sqrt
    square sub tan tanh tanh_backward threshold threshold_backward true_divide trunc where xlogy
"""
# Entry by entry as well, without the tag in this range of versions of torch.
UNTAGGED = """
    __and__ __or__ where.self where.ScalarSelf where.ScalarOther where.Scalar log_sigmoid_forward
    log_sigmoid_backward hardswish hardswish_backward hardsigmoid_backward hardtanh_backward
    elu_backward leaky_relu_backward softplus_backward mish_backward _prelu_kernel complex polar
    special_xlogy special_expit special_digamma special_gammaln special_erf special_erfc
    special_erfinv special_exp2 special_expm1 special_log1p special_sinc special_i0 special_psi
    special_ndtr special_logit special_polygamma special_round special_gammainc special_gammaincc
    special_multigammaln floor_divide divide multiply subtract isreal fix absolute arccos arcsin
    arctan arctan2 negative greater less greater_equal less_equal not_equal max.other min.other
"""


def entries(c: Call) -> Label:
    return c.each(c.broadcast(*c.arguments))


def _is_pointwise(op: torch._ops.OpOverload) -> bool:
    return torch.Tag.pointwise in op.tags and "Tensor[]" not in str(op._schema)


# `where(condition)` alone returns as many entries as the data say; `max()` reduces.
_NOT = {torch.ops.aten.where.default}
for _op in [*overloads(TAGGED, _is_pointwise), *overloads(UNTAGGED)]:
    if _op not in _NOT:
        RULES[_op] = entries

# Entries of the second argument replace those of the first; draws with numbers of each entry.
rule(
    "fill copy bernoulli.default bernoulli.Tensor normal.Tensor_float normal.float_Tensor "
    "normal.Tensor_Tensor"
)(entries)


@rule(
    "mse_loss binary_cross_entropy binary_cross_entropy_with_logits smooth_l1_loss huber_loss "
    "soft_margin_loss"
)
def loss_of_entries(c: Call) -> Label:
    """One loss for each entry of broadcast predictions and targets."""
    check_not_reduced(c)
    return entries(c)


@rule(
    "clone detach alias _to_copy contiguous lift_fresh_copy lift view_as_real "
    "view_as_complex _conj real imag resolve_conj resolve_neg to.dtype to.device "
    "to.dtype_layout detach_copy alias_copy view_as_real_copy",
    keeps_index=True,
)
def copy(c: Call) -> Label:
    """The same entries, possibly of another type. A complex number is two entries at the end."""
    label = c.exact(c["self"])
    c.public_but("self")
    if isinstance(label, Index):
        # A type with few digits may merge two numbers.
        wanted = c.get("dtype")
        exact = wanted in (None, torch.int64, torch.int32) and c.name in _KEEPS_NUMBERS
        return label if exact else PUBLIC
    pairs = c.name == "view_as_complex"
    if pairs and isinstance(label, Rows) and label.dim == c.rank(c["self"]) - 1:
        raise Mixes("two examples become the parts of one complex number")
    return label


_KEEPS_NUMBERS = {"clone", "detach", "alias", "_to_copy", "contiguous", "lift_fresh_copy", "to"}


@rule("prelu")
def prelu(c: Call) -> Label:
    """One weight for all, or one for each entry of dimension 1: not broadcast from the right."""
    c.public(c["weight"])
    label = c.rows(c["self"])
    if label.dim == 1 and math.prod(c.sizes(c["weight"])) != 1:
        raise Mixes("each row gets a weight of its own, by its place in the batch")
    return label


@rule("native_dropout dropout feature_dropout alpha_dropout feature_alpha_dropout")
def dropout(c: Call) -> Label:
    """Each entry has a draw of its own; with `feature_`, each channel of each entry of N."""
    c.public_but("input")
    label = c.rows(c["input"])
    if c.name.startswith("feature") and label.dim != 0:
        raise Unknown("a mask for whole channels, where the examples are not the first dimension")
    return c.each(label)


# Made here.

# What does not decide which numbers a tensor is filled with.
_KIND = ("dtype", "layout", "device", "pin_memory", "memory_format", "generator")

# With the sizes of another tensor: equal numbers, or draws; nothing of its values is taken. Places
# of numbers among public edges.
along(
    "zeros_like ones_like full_like rand_like randn_like randint_like randint_like.low_dtype "
    "uniform normal_functional exponential geometric cauchy log_normal bernoulli.p random "
    "bucketize.Tensor",
    lambda c, x, rank: [],
)


@rule(
    "full zeros ones rand randn randint randint.low normal.float_float new_zeros new_ones new_full "
    "scalar_tensor randperm",
    makes=True,
)
def made(c: Call) -> Label:
    """Equal numbers, or one draw for each entry; one number, or 0 .. n-1 in a random order.

    The first dimension whose size follows the batch holds a row for each example.
    """
    c.public(*map(c.get, _KIND))
    for name in ("fill_value", "low", "high", "mean", "std", "s", "n"):
        if name in c and c.label(c[name]) != PUBLIC:
            raise Mixes(
                "a tensor is filled with a number that follows the batch",
                "The run itself divides the noisy sum by the batch size.",
            )
    if "self" in c:
        c.label(c["self"])  # only its type is taken
    for dim, number in enumerate(c.numbers(c.get("size"))):
        if c.follows_batch(c["size"][dim]) and number % c.batch == 0:
            return Rows(dim, 1, number // c.batch)
    return PUBLIC


@rule("arange.default arange.start arange.start_step", makes=True)
def arange(c: Call) -> Label:
    """start, start + step, ...: the numbers of the rows if they are 0 .. B-1."""
    c.public(*map(c.get, _KIND))
    start, step, end = c.get("start", 0), c.get("step", 1), c["end"]
    whole = c.value.dtype in (torch.int64, torch.int32)
    if c.follows_batch(end) and whole and start == 0 and step == 1 and c.number(end) == c.batch:
        return Index(0)
    c.public(start, step)
    return PUBLIC


@rule("linspace logspace linspace.Tensor_Tensor eye eye.m", makes=True)
def of_public_numbers(c: Call) -> Label:
    """A line of numbers; ones on the diagonal: as long as the batch, each row knew its place."""
    c.public_but()
    return PUBLIC
