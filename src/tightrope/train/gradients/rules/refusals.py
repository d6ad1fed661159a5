"""Layers that cannot be trained privately, and layers that only have no rule."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

__all__ = ["not_private", "refusal"]


def refusal(module: nn.Module) -> str | None:
    """Why the rules cannot take a layer and what to use instead, or None."""
    return not_private(module) or _without_rule(module)


def not_private(module: nn.Module) -> str | None:
    """Why a layer cannot be trained privately in any way, or None."""
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
    return None


def _batch_norm(module: nn.modules.batchnorm._BatchNorm) -> str | None:
    frozen = not any(p.requires_grad for p in module.parameters())
    if frozen and not module.training and module.track_running_stats:
        return None
    return (
        "normalises by statistics of the whole batch, so one example changes the gradients of all "
        "others (and its running statistics carry no noise); tightrope.train.fix(model) puts "
        "GroupNorm in its place (make the optimizer afterwards), or freeze it in evaluation mode"
    )


def _embedding(module: nn.Embedding | nn.EmbeddingBag) -> str | None:
    if module.max_norm is not None:
        return "rewrites its rows during the forward pass (max_norm), without noise; drop max_norm"
    if module.scale_grad_by_freq:
        return "divides by how often an id occurs in the batch (scale_grad_by_freq); switch it off"
    return None


def _without_rule(module: nn.Module) -> str | None:
    if isinstance(module, nn.LSTM | nn.LSTMCell) and getattr(module, "proj_size", 0):
        return (
            "uses proj_size, which has no rule; put a Linear layer behind an LSTM without it, or "
            "pass gradients=OneByOne(model)"
        )
    if isinstance(module, nn.EmbeddingBag) and module.mode == "max":
        return (
            "takes a maximum over the bag, which has no rule; use mode='sum' or 'mean', or pass "
            "gradients=OneByOne(model)"
        )
    if is_parametrized(module) and any(p.requires_grad for p in module.parameters()):
        return (
            "computes its weight from other parameters (a parametrisation such as weight_norm), "
            "which has no rule; remove it with torch.nn.utils.parametrize.remove_parametrizations "
            "before training, or pass gradients=OneByOne(model)"
        )
    return None
