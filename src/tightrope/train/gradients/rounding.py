"""What float32 can do to a clipped sum, bounded for the worst case (docs/arithmetic.md).

Notation. u = 2^-24, gamma(k) = k u / (1 - k u): a sum of k rounded products, in any order, with or
without fused multiply-add, is off by at most gamma(k) times the sum of the terms' absolute values.

Sums over examples. Every example's gradient is formed on its own and stored; x_i is the stored
gradient times its stored factor, so |x_i| <= C by the clip. At most k examples are added in one
float32 chain, the chains' results in float64, and the total is rounded to float32 once. So

    | released sum - sum_i x_i |  <=  gamma(k + 5) n C        for a batch of n examples,

and two neighbouring batches are at most C (1 + rho) apart where rho >= 2 gamma(k + 5) n.
`longest_chain` gives the largest such k, and 0 where float32 will not do: float64 then.
"""

from __future__ import annotations

import importlib.util
import math
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any, final

import torch
from torch import Tensor

UNIT = 2.0**-24
TINY = 2.0**-126  # squares below it may be lost, one for each value
LARGEST_RHO = 1e-2
_ROUNDINGS = 5  # factor, scaled copy, float64 sums, rounding of the parts and of the whole


def gamma(terms: float) -> float:
    """Relative error of a float32 sum of so many products, in any order."""
    return terms * UNIT / (1.0 - terms * UNIT)


def rho_for(examples: float) -> float:
    """The share of the clip norm to charge where batches have about so many examples.

    One chain then holds every batch up to six deviations above the mean; larger batches take
    shorter chains. More than `LARGEST_RHO` is never charged.
    """
    reach = math.ceil(examples + 6 * math.sqrt(examples))
    if (reach + _ROUNDINGS) * UNIT >= 0.5:
        return LARGEST_RHO
    return min(LARGEST_RHO, 2 * gamma(reach + _ROUNDINGS) * reach)


@lru_cache(maxsize=1024)
def longest_chain(examples: int, rho: float) -> int:
    """Examples that may be added in one float32 chain, for a batch of so many; 0: use float64."""
    if examples <= 0:
        return 1
    allowed = rho / (2.0 * examples)  # gamma(k + _ROUNDINGS) <= allowed
    return max(0, math.floor(allowed / (UNIT * (1.0 + allowed)) - _ROUNDINGS))


_PRODUCTS = (("cuda", "matmul"), ("mkldnn", "matmul"))
_LAYERS = (("cuda", "conv"), ("cuda", "rnn"))
_FULL = ("ieee", "ieee")
_UNTOUCHED = frozenset(("none", *_FULL))
# One setting for all threads: none may put it back while another one counts on it.
_setting = threading.RLock()
# Answers sooner than a question about one device.
_any_autocast: Any = torch._C._is_any_autocast_enabled  # type: ignore[attr-defined]
_NOTHING: AbstractContextManager[None] = nullcontext()  # may be entered again and again
_precision = torch._C._get_fp32_precision_getter


@final
class exact_products:  # noqa: N801
    """Float32 matrix products in full precision, whatever the user allows elsewhere."""

    def __enter__(self) -> None:
        _setting.acquire()
        self._before = precision_of_products()
        self._lower = not _UNTOUCHED.issuperset(self._before)
        if self._lower:
            _set_precision(_PRODUCTS, _FULL)

    def __exit__(self, *_: object) -> None:
        if self._lower:
            _set_precision(_PRODUCTS, self._before)
        _setting.release()


@contextmanager
def exact_layers() -> Iterator[None]:
    """Convolutions and recurrent layers too: CUDA devices use tf32 there if nothing forbids it."""
    kinds = (*_LAYERS, *_PRODUCTS)
    before = [_precision(*kind) for kind in kinds]
    _set_precision(kinds, _FULL * 2)
    try:
        yield
    finally:
        _set_precision(kinds, before)


def _set_precision(kinds: Sequence[tuple[str, str]], wanted: Sequence[Any]) -> None:
    for kind, precision in zip(kinds, wanted, strict=True):
        torch._C._set_fp32_precision_setter(*kind, precision)


def precision_of_products() -> tuple[str, ...]:
    """How float32 matrix products are computed: on CUDA devices and on the CPU."""
    return _precision("cuda", "matmul"), _precision("mkldnn", "matmul")


def lower_products() -> bool:
    """Whether the user lets CUDA devices multiply float32 matrices in tf32."""
    return precision_of_products()[0] not in _UNTOUCHED


def lower_layers() -> bool:
    """Whether the user lets CUDA devices compute float32 convolutions in tf32, as is usual."""
    return _precision(*_LAYERS[0]) not in _UNTOUCHED


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Products in the types of their operands, also inside an autocast."""
    if _any_autocast() and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return _NOTHING


@final
class no_graph:  # noqa: N801
    """torch.no_grad(), in a third of its time."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *_: object) -> None:
        torch._C._set_grad_enabled(self._before)


_WIDE = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def full_precision(values: Tensor) -> Tensor:
    """float32 (or float64 where it is already): half precision never accumulates.

    Complex numbers stay complex: they come up on the way from a loss to real parameters.
    """
    if values.dtype in _WIDE:
        return values
    return values.to(torch.complex64) if values.is_complex() else values.float()


# Triton kernels stand in where plain torch would move the data several times. Nothing else needs
# Triton to be there.
_INSTALLED = importlib.util.find_spec("triton") is not None
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own switch, for tests
_plain_only = [0]


@contextmanager
def plain_only() -> Iterator[None]:
    """No kernel runs inside: what is traced must show every operation."""
    _plain_only[0] += 1
    try:
        yield
    finally:
        _plain_only[0] -= 1


def usable(*values: Tensor) -> bool:
    """Whether the kernels can run on these tensors."""
    return _INSTALLED and not _plain_only[0] and all(v.is_cuda or _INTERPRETED for v in values)
