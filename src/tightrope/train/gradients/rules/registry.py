"""The table of layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

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
    """The rule of a layer, or None. A subclass keeps it only if it keeps the forward pass.

    A parametrised layer (weight_norm) computes its weight from parameters of another name.
    """
    if (type(module).__module__, type(module).__name__) == _HUGGING_FACE_CONV1D:
        return linear.transposed_linear
    own = set(module._parameters)
    if "weight" not in own or not own <= {"weight", "bias"}:
        return None
    for layer, rule in _RULES.items():
        if isinstance(module, layer) and type(module).forward is layer.forward:
            return rule
    return None


def replacement_forward(module: nn.Module, recorder: Recorder) -> Callable[..., Any] | None:
    """A forward pass equal to the module's own that shows its matrix products, or None."""
    for layer, forward_of in _REPLACED.items():
        if isinstance(module, layer) and type(module).forward is layer.forward:
            return forward_of(module, recorder)
    return None
