"""Embedding tables."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tightrope.train.gradients.forms import Dense, TableRows
from tightrope.train.gradients.forms.base import full_precision
from tightrope.train.gradients.rules.base import Forms

__all__ = ["bag", "embedding"]


def embedding(module: nn.Embedding, ids: Tensor, g: Tensor) -> Forms:
    batch, width = g.shape[0], g.shape[-1]
    flat, g = ids.reshape(batch, -1).long(), g.reshape(batch, -1, width)
    if module.num_embeddings <= flat.shape[1]:
        return [(module.weight, _small_table(module, flat, g))]
    return [(module.weight, TableRows(flat, g, module.num_embeddings, module.padding_idx))]


def _small_table(module: nn.Embedding, ids: Tensor, g: Tensor) -> Dense:
    """Written out, where that is no more than the output gradient: kinds of tokens, say."""
    rows = torch.arange(module.num_embeddings, device=ids.device)
    read = ids[:, None, :] == rows[:, None]  # (B, rows, T)
    if module.padding_idx is not None:
        read &= (rows != module.padding_idx)[:, None]
    g = full_precision(g)
    return Dense(torch.bmm(read.to(g.dtype), g))


def bag(module: nn.EmbeddingBag, ids: Tensor, g: Tensor) -> Forms:
    """A bag of ids (B, T) whose rows are summed or averaged into (B, d)."""
    kept = ids.ne(-1 if module.padding_idx is None else module.padding_idx)  # (B, T)
    share = g if module.mode == "sum" else g / kept.sum(1, keepdim=True).clamp_min(1)
    spread = share[:, None, :].expand(-1, ids.shape[1], -1)
    table = TableRows(ids.long(), spread, module.num_embeddings, module.padding_idx)
    return [(module.weight, table)]
