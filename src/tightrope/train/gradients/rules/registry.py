"""The table of layers, and the layers that are refused."""

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

__all__ = ["LayerRule", "layer_rule", "refusal", "replacement_forward"]

_RULES: dict[type[nn.Module], LayerRule] = {
    nn.Linear: linear.linear,
    nn.Conv1d: convolution.convolution,
    nn.Conv2d: convolution.convolution,
    nn.Conv3d: convolution.convolution,
    nn.Embedding: embedding.embedding,
    nn.EmbeddingBag: embedding.bag,
    nn.LayerNorm: normalisation.layer_norm,
    nn.RMSNorm: normalisation.rms_norm,
    nn.GroupNorm: normalisation.group_norm,
    nn.InstanceNorm1d: normalisation.instance_norm,
    nn.InstanceNorm2d: normalisation.instance_norm,
    nn.InstanceNorm3d: normalisation.instance_norm,
}
# Layers whose matrix products hide inside one call: their forward pass is done step by step.
_REPLACED: dict[type[nn.Module], Callable[[Any, Recorder], Callable[..., Any]]] = {
    nn.MultiheadAttention: attention.forward_of,
    nn.RNN: recurrent.forward_of,
    nn.LSTM: recurrent.forward_of,
    nn.GRU: recurrent.forward_of,
}
_HUGGING_FACE_CONV1D = ("transformers.pytorch_utils", "Conv1D")


def layer_rule(module: nn.Module) -> LayerRule | None:
    """The rule of a layer, or None. A subclass keeps it only if it keeps the forward pass."""
    if (type(module).__module__, type(module).__name__) == _HUGGING_FACE_CONV1D:
        return linear.transposed_linear
    if not set(module._parameters) <= {"weight", "bias"}:
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


def refusal(module: nn.Module) -> str | None:
    """Why a layer cannot be trained privately and what to use instead, or None."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return _batch_norm(module)
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
        return (
            "keeps running statistics of the data without noise; "
            "build it with track_running_stats=False"
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return _embedding(module)
    if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
        return "has parameters without a shape yet; run one forward pass before attaching"
    if isinstance(module, nn.LSTM) and module.proj_size:
        return "uses proj_size, which has no rule; put a Linear layer behind an LSTM without it"
    return None


def _batch_norm(module: nn.modules.batchnorm._BatchNorm) -> str | None:
    frozen = not any(p.requires_grad for p in module.parameters())
    if frozen and not module.training and module.track_running_stats:
        return None
    return (
        "normalises by statistics of the whole batch, so one example changes the gradients of all "
        "others (and its running statistics carry no noise); use GroupNorm, LayerNorm or "
        "InstanceNorm, or freeze it in evaluation mode"
    )


def _embedding(module: nn.Embedding | nn.EmbeddingBag) -> str | None:
    if module.max_norm is not None:
        return "rewrites its rows during the forward pass (max_norm), without noise; drop max_norm"
    if module.scale_grad_by_freq:
        return "divides by how often an id occurs in the batch (scale_grad_by_freq); switch it off"
    if isinstance(module, nn.EmbeddingBag) and module.mode == "max":
        return "takes a maximum over the bag, which has no rule; use mode='sum' or 'mean'"
    return None
