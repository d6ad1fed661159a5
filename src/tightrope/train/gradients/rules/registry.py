"""The table of layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from inspect import isfunction
from typing import Any

from torch import nn
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from tightrope.train.gradients.recorder import Recorder
from tightrope.train.gradients.rules import (
    attention,
    convolution,
    embedding,
    linear,
    normalisation,
    recurrent,
)
from tightrope.train.gradients.rules.base import LayerRule
from tightrope.train.standard_convolution import StandardConv2d
from tightrope.train.symmetric_convolution import SymmetricConv2d

__all__ = ["WITHOUT_WEIGHTS", "LayerRule", "layer_rule", "replacement_forward"]

_RULES: dict[type[nn.Module], LayerRule] = {
    nn.Linear: linear.linear,
    nn.Conv1d: convolution.convolution,
    nn.Conv2d: convolution.convolution,
    nn.Conv3d: convolution.convolution,
    StandardConv2d: convolution.standard_convolution,
    SymmetricConv2d: convolution.symmetric_convolution,
    nn.Embedding: embedding.embedding,
    nn.EmbeddingBag: embedding.bag,
    nn.LayerNorm: normalisation.layer_norm,
    nn.RMSNorm: normalisation.rms_norm,
    nn.GroupNorm: normalisation.group_norm,
    nn.InstanceNorm1d: normalisation.instance_norm,
    nn.InstanceNorm2d: normalisation.instance_norm,
    nn.InstanceNorm3d: normalisation.instance_norm,
}
# Rules that ask a weight for its shape at most: its values need not be there.
WITHOUT_WEIGHTS = frozenset(
    {*_RULES.values(), linear.transposed_linear, *attention.RULES, *recurrent.RULES}
    - {convolution.standard_convolution, convolution.symmetric_convolution}
)
# Layers whose matrix products hide inside one call: their forward pass is done step by step.
_REPLACED: dict[type[nn.Module], Callable[[Any, Recorder], Callable[..., Any]]] = {
    nn.MultiheadAttention: attention.forward_of,
    nn.RNN: recurrent.forward_of,
    nn.LSTM: recurrent.forward_of,
    nn.GRU: recurrent.forward_of,
    nn.RNNCell: recurrent.forward_of_cell,
    nn.LSTMCell: recurrent.forward_of_cell,
    nn.GRUCell: recurrent.forward_of_cell,
}
_HUGGING_FACE_CONV1D = ("transformers.pytorch_utils", "Conv1D")


def layer_rule(module: nn.Module) -> LayerRule | None:
    """The rule of a layer, or None where it computes something of its own (`_keeps`).

    A parametrised layer (weight_norm) computes its weight from parameters of another name.
    """
    if (type(module).__module__, type(module).__name__) == _HUGGING_FACE_CONV1D:
        return None if "forward" in module.__dict__ else linear.transposed_linear
    own = set(module._parameters)
    if "weight" not in own or not own <= {"weight", "bias"}:
        return None
    for layer, rule in _RULES.items():
        if isinstance(module, layer) and _keeps(module, layer):
            return rule
    return None


def replacement_forward(module: nn.Module, recorder: Recorder) -> Callable[..., Any] | None:
    """A forward pass equal to the module's own that shows its matrix products, or None."""
    for layer, forward_of in _REPLACED.items():
        if isinstance(module, layer) and _keeps(module, layer) and _own_weights(module):
            return forward_of(module, recorder)
    return None


def _keeps(module: nn.Module, layer: type[nn.Module]) -> bool:
    """Whether an object runs the forward pass of its layer's class, and all methods it calls."""
    methods = _methods(layer)
    same = all(getattr(type(module), name) is getattr(layer, name) for name in methods)
    return same and methods.isdisjoint(module.__dict__)


@lru_cache(maxsize=64)
def _methods(layer: type[nn.Module]) -> frozenset[str]:
    """`forward`, and those methods that it calls itself or by others."""
    found, left = {"__call__"}, ["forward"]
    while left:
        name = left.pop()
        found.add(name)
        code = getattr(getattr(layer, name), "__code__", None)
        names = () if code is None else code.co_names
        left += [n for n in names if n not in found and _is_own(layer, n)]
    return frozenset(found)


def _is_own(layer: type[nn.Module], name: str) -> bool:
    """Whether it is a method that not every module has."""
    return isfunction(getattr(layer, name, None)) and not hasattr(nn.Module, name)


def _own_weights(module: nn.Module) -> bool:
    """Whether no weight is computed from others, as the weight_norm of old does."""
    hooks = module._forward_pre_hooks.values()
    return not any(isinstance(hook, WeightNorm | SpectralNorm) for hook in hooks)
