"""The parameters that a run trains."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from tightrope.errors import ModelNotPrivate

__all__ = ["refuse_hooks", "trained"]


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Those that need a gradient, by name."""
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise ModelNotPrivate("the model has no trainable parameter")
    for name, parameter in found.items():
        if parameter.is_complex():
            raise ModelNotPrivate(
                f"the parameter {name} holds complex numbers, which no sum or noise here knows; "
                "keep real and imaginary parts in a real parameter (..., 2) and use "
                "torch.view_as_complex of it"
            )
    return found


def refuse_hooks(names: Iterable[str], parameters: Iterable[nn.Parameter]) -> None:
    """Layer rules form gradients that no hook is shown."""
    for name, parameter in zip(names, parameters, strict=True):
        if parameter._backward_hooks:
            raise ModelNotPrivate(
                f"the parameter {name} has a hook (register_hook), which would not be called; "
                "freeze with requires_grad_(False), change what is released in the optimizer, or "
                "pass gradients=OneByOne(model)"
            )
