"""What of a model's modules a recorded step takes for granted: whatever Python reads of them."""

from __future__ import annotations

from typing import Any

from torch import nn

from tightrope.train.gradients.attach import cast_input
from tightrope.train.gradients.state import plain_settings

__all__ = ["settings_of"]

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")


def settings_of(model: nn.Module) -> list[Any]:
    """Equal as long as no module has changed: memory, modes, hooks and plain attributes."""
    return [_of_module(module) for module in model.modules()]


def _of_module(module: nn.Module) -> tuple[Any, ...]:
    """Of a module without its children."""
    own = module.__dict__
    tensors = [
        None
        if t is None
        else (t.data_ptr(), t.shape, t.stride(), t.dtype, t.requires_grad, t._backward_hooks)
        for kind in (module._parameters, module._buffers)
        for t in kind.values()
    ]
    settings = plain_settings(module)
    hooks = [
        (kind, key)
        for kind in _HOOKS
        for key, hook in (own.get(kind) or {}).items()
        if hook is not cast_input  # of ours, which comes with the first batch under autocast
    ]
    return id(module), module.training, tensors, settings, hooks
