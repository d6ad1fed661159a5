"""How much a per-example norm must be raised so that rounding can never release too much.

Statement. Let g be one example's gradient as the stored activations and output gradients define
it, and let the released contribution be what the hardware computes for factor * g. The forms
(`forms/`) return a number N with  ||computed contribution|| <= factor * N.

Error.
* A stored gradient (`Dense`, `Rows`): only the sum of squares and one product per value are
  rounded. Relative, far below clip.NORM_ERROR, which every clip takes off.
* An outer-product form sum_t g_t a_t^T: its released value is a matrix product. With
  S = sum_t |a_t||g_t| and Q = sum_t |a_t|^2 |g_t|^2 (both read off the Gram diagonals)
  - rounding the operands to the unit u of the product moves it by at most 2 u S (deterministic);
  - float32 accumulation of n terms moves it by at most LAMBDA sqrt(n) u32 sqrt(Q), and the squared
    norm by LAMBDA (sqrt(d) + sqrt(p) + sqrt(T)) u32 Q: the probabilistic bound of Higham and Mary
    (SIAM J. Sci. Comput. 41, 2019, Theorem 2.4), which assumes mean-independent rounding errors and
    fails with probability below 2 n exp(-LAMBDA^2 / 2). Worst cases are searched in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

UNIT_FLOAT32 = 2.0**-24
UNIT_TF32 = 2.0**-11
UNIT_BFLOAT16 = 2.0**-8
LAMBDA = 8.0
__all__ = [
    "LAMBDA",
    "UNIT_FLOAT32",
    "convolution_unit",
    "exact_products",
    "matmul_unit",
    "raised",
]


def matmul_unit(device: torch.device) -> float:
    """Unit to which a float32 matrix product rounds its operands under the current settings."""
    precision = torch.get_float32_matmul_precision()
    if precision == "highest":
        return UNIT_FLOAT32
    return UNIT_TF32 if precision == "high" and device.type == "cuda" else UNIT_BFLOAT16


def convolution_unit(device: torch.device) -> float:
    """The same for a float32 convolution, which has a switch of its own on CUDA."""
    if device.type == "cuda":
        return UNIT_TF32 if torch.backends.cudnn.allow_tf32 else UNIT_FLOAT32
    return matmul_unit(device)


@contextmanager
def exact_products() -> Iterator[None]:
    """Float32 matrix products in full precision, whatever the user allows elsewhere."""
    precision = torch.get_float32_matmul_precision()
    if precision == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)


def raised(
    squared: Tensor, q: Tensor, *, sizes: tuple[int, int], positions: int, unit: float
) -> Tensor:
    """Squared upper norm of sum_t g_t a_t^T from its computed square and Q, both (B,).

    `sizes` are the lengths (d, p) of the rows, `unit` what the releasing product rounds to. S is
    bounded by sqrt(T Q) (Cauchy-Schwarz).
    """
    root = math.sqrt(positions)
    gram = LAMBDA * UNIT_FLOAT32 * sum(math.sqrt(n) for n in (*sizes, positions))
    release = root * (LAMBDA * UNIT_FLOAT32 + 2 * max(unit, UNIT_FLOAT32))
    norm = torch.add(squared.clamp_min(0), q, alpha=gram).sqrt_()
    return norm.add_(q.sqrt(), alpha=release).square_()
