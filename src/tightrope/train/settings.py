"""What of a model's modules a recorded step takes for granted: whatever Python reads of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tightrope.train.gradients.attach import cast_input

__all__ = ["settings_of"]

_OWN = frozenset(nn.Module().__dict__)  # what every module holds
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
_PLAIN = (bool, int, float, str)
_SHORT = 16  # a list or a dictionary of settings, of which every entry is seen


def settings_of(model: nn.Module) -> list[Any]:
    """Equal as long as no module has changed: memory, modes, hooks and plain attributes."""
    return [_of_module(module) for module in model.modules()]


def _of_module(module: nn.Module) -> tuple[Any, ...]:
    """Of a module without its children."""
    own = module.__dict__
    tensors = [
        None if t is None else (t.data_ptr(), t.requires_grad, t._backward_hooks)
        for kind in (module._parameters, module._buffers)
        for t in kind.values()
    ]
    settings = [
        value if type(value) in _PLAIN else _mark(value)
        for key, value in own.items()
        if key not in _OWN
    ]
    hooks = [
        (kind, key)
        for kind in _HOOKS
        for key, hook in (own.get(kind) or {}).items()
        if hook is not cast_input  # of ours, which comes with the first batch under autocast
    ]
    return id(module), module.training, tensors, settings, hooks


def _mark(value: Any) -> Any:
    """What changes when a setting of a module does; None of what may hold values of a batch."""
    kind = type(value)
    if kind in (list, tuple, set) and len(value) <= _SHORT:
        return [part if type(part) in _PLAIN else None for part in value]
    if kind is dict and len(value) <= _SHORT:
        return [(key, v) for key, v in value.items() if type(v) in _PLAIN]
    return id(value) if callable(value) and kind is not Tensor else None
