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

import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any, final

import torch

__all__ = [
    "LARGEST_RHO",
    "NOTHING",
    "TINY",
    "UNIT",
    "ExactLayers",
    "exact_layers",
    "exact_products",
    "gamma",
    "longest_chain",
    "lower_layers",
    "lower_products",
    "no_autocast",
    "no_graph",
    "precision_of_products",
    "rho_for",
]

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


_FULL = ("ieee", "ieee") if hasattr(torch._C, "_get_fp32_precision_getter") else ("highest",)
_UNTOUCHED = frozenset(("none", *_FULL))
# One setting for all threads: nobody may put it back while another one counts on it.
_setting = threading.RLock()
# Answers sooner than a question about one device.
_any_autocast: Any = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)
NOTHING: AbstractContextManager[None] = nullcontext()  # may be entered again and again


@final
class exact_products:  # noqa: N801
    """Float32 matrix products in full precision, whatever the user allows elsewhere."""

    def __enter__(self) -> None:
        _setting.acquire()
        self._before = precision_of_products()
        self._lower = not _UNTOUCHED.issuperset(self._before)
        if self._lower:
            _set_precision(_FULL)

    def __exit__(self, *_: object) -> None:
        if self._lower:
            _set_precision(self._before)
        _setting.release()


@contextmanager
def exact_layers() -> Iterator[None]:
    """Convolutions and recurrent layers too: CUDA devices use tf32 there if nobody forbids it."""
    held = ExactLayers()
    try:
        yield
    finally:
        held.end()


@final
class ExactLayers:
    """The same from its making to end(), where anybody's code runs in between.

    That code may wait for other threads, so nothing is locked meanwhile, and may ask for the
    settings in PyTorch's older words, which must agree with the newer ones. Several may begin and
    end in any order: the first one remembers the settings, the last one puts them back.
    """

    _holders = 0
    _before: tuple[list[Any], tuple[str, ...], list[Any]]

    def __init__(self) -> None:
        self._ended, kind = False, type(self)
        with _setting:
            if kind._holders == 0:
                kind._before = _precision_of_layers(), precision_of_products(), _in_older_words()
                _say_in_older_words([False, "highest"], kind._before[2])
                _set_precision(_FULL)
                _set_precision_of_layers([_FULL[0]] * 2 if len(_FULL) > 1 else [False])
            kind._holders += 1

    def end(self) -> None:
        """Once is enough; again is no harm."""
        kind = type(self)
        with _setting:
            if self._ended:
                return
            self._ended = True
            kind._holders -= 1
            if kind._holders == 0:
                layers, products, older = kind._before
                _say_in_older_words(older, older)
                _set_precision(products)
                _set_precision_of_layers(layers)


def _in_older_words() -> list[Any]:
    """None where PyTorch refuses to tell, since its two ways of saying it do not agree."""
    found: list[Any] = []
    for ask in (lambda: torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision):
        try:
            found.append(ask())
        except RuntimeError:
            found.append(None)
    return found


def _say_in_older_words(wanted: list[Any], told: list[Any]) -> None:
    """Only where they told something before."""
    if told[0] is not None:
        torch.backends.cudnn.allow_tf32 = wanted[0]
    if told[1] is not None:
        torch.set_float32_matmul_precision(wanted[1])


def lower_layers() -> bool:
    """Whether the user lets CUDA devices compute float32 convolutions in tf32, as is usual."""
    return _precision_of_layers()[0] not in (*_UNTOUCHED, False)


def _precision_of_layers() -> list[Any]:
    if len(_FULL) > 1:
        return [torch._C._get_fp32_precision_getter("cuda", kind) for kind in ("conv", "rnn")]
    return [torch.backends.cudnn.allow_tf32]


def _set_precision_of_layers(wanted: list[Any]) -> None:
    if len(_FULL) > 1:
        for kind, precision in zip(("conv", "rnn"), wanted, strict=True):
            torch._C._set_fp32_precision_setter("cuda", kind, precision)
    else:
        torch.backends.cudnn.allow_tf32 = wanted[0]


def precision_of_products() -> tuple[str, ...]:
    """How float32 matrix products are computed: on CUDA devices and on the CPU."""
    if len(_FULL) > 1:  # from PyTorch 2.9 on; what follows then fails where the two differ
        now = torch._C._get_fp32_precision_getter
        return now("cuda", "matmul"), now("mkldnn", "matmul")
    return (torch.get_float32_matmul_precision(),)


def lower_products() -> bool:
    """Whether the user lets CUDA devices multiply float32 matrices in tf32."""
    return precision_of_products()[0] not in _UNTOUCHED


def _set_precision(wanted: tuple[str, ...]) -> None:
    if len(_FULL) > 1:
        torch._C._set_fp32_precision_setter("cuda", "matmul", wanted[0])
        torch._C._set_fp32_precision_setter("mkldnn", "matmul", wanted[1])
    else:
        torch.set_float32_matmul_precision(wanted[0])


def no_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Products in the types of their operands, also where the loop is inside an autocast."""
    if _any_autocast() and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return NOTHING


@final
class no_graph:  # noqa: N801
    """torch.no_grad(), in a third of its time."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *_: object) -> None:
        torch._C._set_grad_enabled(self._before)
