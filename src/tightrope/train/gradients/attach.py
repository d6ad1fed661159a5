"""Putting the hooks on a model, and taking them off."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.gradients.custom_call import own_parameters
from tightrope.train.gradients.custom_hooks import hook_custom, refuse_late
from tightrope.train.gradients.recorder import Recorder, autocast_input, unseen
from tightrope.train.gradients.rules import (
    LayerRule,
    layer_rule,
    refusal,
    replacement_forward,
)
from tightrope.train.gradients.rules.linear import transposed_linear

__all__ = ["attach", "cast_input", "validate"]

_ATTACHED = "_tightrope_gradients"
_CASTS_INPUT = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def validate(model: nn.Module) -> None:
    """Refuse layers that mix examples or write to themselves."""
    layers: dict[str, list[str]] = {}
    for name, module in model.named_modules():
        reason = refusal(module)
        if reason is not None:
            layers.setdefault(f"({type(module).__name__}) {reason}", []).append(name or "the model")
    if layers:
        raise ModelNotPrivate("; ".join(f"{_few(names)} {why}" for why, names in layers.items()))


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def attach(model: nn.Module, recorder: Recorder) -> Callable[[], None]:
    """Hook every layer with trainable parameters; the result removes all hooks."""
    validate(model)
    if any(_ATTACHED in module.__dict__ for module in model.modules()):
        raise InvalidInput(
            "This model already belongs to a private run (or to a Gradients object). Call close() "
            "on that run (detach() on the object) first, or make a new model"
        )
    undo: list[Callable[[], Any]] = []
    object.__setattr__(model, _ATTACHED, recorder)
    undo.append(lambda: model.__dict__.pop(_ATTACHED, None))
    undo.append(_hook_call(model, recorder))
    for module in model.modules():
        undo += _attach_one(module, recorder)

    _let_compiled_code_see_hooks()

    def remove() -> None:
        for step in undo:
            step()

    return remove


def _hook_call(model: nn.Module, recorder: Recorder) -> Callable[[], Any]:
    @unseen
    def called(caller: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if caller is model and recorder.active:  # a copy of the model is none of ours
            recorder.called(args, kwargs)

    return model.register_forward_pre_hook(called, with_kwargs=True, prepend=True).remove


def _let_compiled_code_see_hooks() -> None:
    """By default torch.compile reuses code of another model of the class, without the hooks."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and hasattr(dynamo.config, "skip_nnmodule_hook_guards"):
        dynamo.config.skip_nnmodule_hook_guards = False


def _attach_one(module: nn.Module, recorder: Recorder) -> list[Callable[[], Any]]:
    if not own_parameters(module) and not _replaced_child(module):
        return []
    rule = layer_rule(module)
    if rule is not None:
        return _hook_layer(module, rule, recorder)
    forward = replacement_forward(module, recorder)
    if forward is not None:
        # a method, not a function: a deep copy of the model (a running average of weights, say)
        # must run on its own weights
        method = MethodType(torch.compiler.disable(forward), module)
        module.forward = method  # type: ignore[method-assign]
        return [lambda: module.__dict__.pop("forward", None)]
    return hook_custom(module, recorder)


def _replaced_child(module: nn.Module) -> bool:
    """Attention also applies the parameters of its output layer itself."""
    return isinstance(module, nn.MultiheadAttention) and any(
        p.requires_grad for p in module.parameters()
    )


def _hook_layer(module: nn.Module, rule: LayerRule, recorder: Recorder) -> list[Callable[[], Any]]:
    casts = isinstance(module, _CASTS_INPUT) or rule is transposed_linear

    @unseen
    def cast_from_now_on(layer: nn.Module, x: Tensor) -> Tensor:
        """What the product read. Later batches are cast before the layer, so that it is not done
        twice; without autocast a hook that finds nothing to cast would only cost time."""
        read = autocast_input(x)
        if read is not x:
            removers.append(layer.register_forward_pre_hook(cast_input).remove)
        return read

    @unseen
    def record(
        layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: object
    ) -> None:
        if layer is module and recorder.active:  # a copy of the model is none of ours
            if "forward" in layer.__dict__ or next(iter(layer._forward_hooks)) != handle.id:
                refuse_late(layer)  # hooks may change what comes out: ours must be the first
            inputs = (*args, *kwargs.values()) if kwargs else args
            if not isinstance(out, Tensor) or len(inputs) != 1:
                raise InvalidInput(
                    f"{type(layer).__name__} was called with {len(inputs)} arguments; its rule "
                    "knows the call with the input alone"
                )
            if not out.requires_grad:
                _refuse_without_gradient(layer, out)
            if casts and out.dtype is not inputs[0].dtype:
                inputs = (cast_from_now_on(layer, inputs[0]),)
            recorder.note(layer, rule, inputs, (out,))

    handle = module.register_forward_hook(record, with_kwargs=True, prepend=True)
    removers = [handle.remove]
    return [lambda: [remove() for remove in removers]]


def _refuse_without_gradient(layer: nn.Module, out: Tensor) -> None:
    if torch._C._functorch.is_functorch_wrapped_tensor(out):
        raise ModelNotPrivate(
            f"{type(layer).__name__} ran inside a transformation of torch.func (vmap, jvp, grad), "
            "which hides what it read; call the model itself, or pass gradients=OneByOne(model)"
        )
    raise InvalidInput(
        f"{type(layer).__name__} was frozen after the run was made. Freeze layers first, then make "
        "the run"
    )


def cast_input(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The hook of a layer that was seen under autocast."""
    if args and isinstance(args[0], Tensor) and torch.is_autocast_enabled(args[0].device.type):
        return (autocast_input(args[0]), *args[1:])
    return None
