"""A model's computation in float64, to tell rounding from what a model does.

In float32 a batch of another size may take another kernel, and where a number is close to a kink
(of ReLU, of a maximum) its rounding decides on which side it is: a gradient may move by per cents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tightrope.train.feed import tensors_of, with_tensors

__all__ = ["CANNOT", "Wide"]

CANNOT = (Exception,)  # what a model may raise in float64: it may assert its own precision


@final
class Wide:
    """The model with its weights and buffers in float64, beside the model itself.

    Autocast and tf32 do not touch float64, and where the model casts to something shorter it does
    not here. parameters: in the place of those that are trained.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        named = (*model.named_parameters(), *model.named_buffers())
        self._held = {f"model.{name}": _wide(value) for name, value in named}
        trained = [name for name, p in model.named_parameters() if p.requires_grad]
        self.parameters = [self._held[f"model.{name}"] for name in trained]

    def __call__(self, compute: Callable[[Any], Any], batch: Any) -> Any:
        """What `compute`, which calls the model, makes of the batch."""
        given = with_tensors(batch, [_wide(value) for value in tensors_of(batch)])
        with _NothingShorter():
            return torch.func.functional_call(_Called(self._model, compute), self._held, (given,))


class _Called(nn.Module):
    def __init__(self, model: nn.Module, compute: Callable[[Any], Any]) -> None:
        super().__init__()
        self.model, self._compute = model, compute

    def forward(self, batch: Any) -> Any:
        return self._compute(batch)


class _NothingShorter(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        kind = kwargs.get("dtype")
        if kind is not None and kind.is_floating_point:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def _wide(value: Tensor) -> Tensor:
    if not value.is_floating_point():
        return value
    return value.detach().double().requires_grad_(value.requires_grad)
