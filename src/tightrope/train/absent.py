"""Parameters that are not there, and come when somebody reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from tightrope.train.gradients.recorder import unseen

__all__ = ["absent"]

# What says nothing about values.
_OF_VALUES = ("data", "T", "mT", "H", "mH", "real", "imag")
_OF_FORM = (
    Tensor.dim, Tensor.size, Tensor.stride, Tensor.numel, Tensor.is_floating_point,
    Tensor.__len__, Tensor.__hash__, Tensor.requires_grad_, Tensor.register_hook,
    Tensor.register_post_accumulate_grad_hook, torch.autograd.grad,
    torch.zeros_like, torch.empty_like, Tensor.new_zeros, Tensor.new_empty,
)  # fmt: skip


def absent(lent: Callable[[], AbstractContextManager[None]]) -> type[nn.Parameter]:
    """A class of parameters that are ordinary ones, with their values, inside of lent() only.

    Every operation on one of them goes inside first.
    """

    class Absent(nn.Parameter):
        @classmethod
        @unseen
        def __torch_function__(
            cls, func: Any, types: Iterable[type], args: Any = (), kwargs: Any = None
        ) -> Any:
            if _is_of_form(func):
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **(kwargs or {}))
            with lent():
                return func(*args, **(kwargs or {}))

    return Absent


def _is_of_form(func: Any) -> bool:
    """Whether it asks for no values: for a shape, a device, a gradient."""
    if getattr(func, "__name__", "") in ("__get__", "__set__", "__delete__"):
        return getattr(func.__self__, "__name__", "") not in _OF_VALUES
    return func in _OF_FORM
