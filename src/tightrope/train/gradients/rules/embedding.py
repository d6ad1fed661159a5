"""Embedding tables."""

from __future__ import annotations

from torch import Tensor, nn

from tightrope.train.gradients.forms import Rows
from tightrope.train.gradients.rules.base import Forms

__all__ = ["bag", "embedding"]


def embedding(module: nn.Embedding, ids: Tensor, g: Tensor) -> Forms:
    batch, width = g.shape[0], g.shape[-1]
    flat = ids.reshape(batch, -1).long()
    table = Rows(flat, g.reshape(batch, -1, width), module.num_embeddings, module.padding_idx)
    return [(module.weight, table)]


def bag(module: nn.EmbeddingBag, ids: Tensor, g: Tensor) -> Forms:
    """A bag of ids (B, T) whose rows are summed or averaged into (B, d)."""
    kept = ids.ne(-1 if module.padding_idx is None else module.padding_idx)  # (B, T)
    share = g if module.mode == "sum" else g / kept.sum(1, keepdim=True).clamp_min(1)
    spread = share[:, None, :].expand(-1, ids.shape[1], -1)
    table = Rows(ids.long(), spread, module.num_embeddings, module.padding_idx)
    return [(module.weight, table)]
