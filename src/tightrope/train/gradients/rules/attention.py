"""nn.MultiheadAttention: its projections shown as linear layers, the rest as torch does it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tightrope.errors import InvalidInput
from tightrope.train.gradients.forms import Dense, Outer, Stacked
from tightrope.train.gradients.recorder import Recorder, autocast_input
from tightrope.train.gradients.rules.base import Forms, show, shows, trainable
from tightrope.train.gradients.rules.linear import bias_form, linear

__all__ = ["RULES", "forward_of"]


def forward_of(module: nn.MultiheadAttention, recorder: Recorder) -> Callable[..., Any]:
    """The replacement for `module.forward`, as a method; a copy of the module keeps its own."""
    mine = module

    def forward(
        module: nn.MultiheadAttention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if module is not mine or not shows(recorder):
            return nn.MultiheadAttention.forward(
                module, query, key, value, key_padding_mask, need_weights, attn_mask,
                average_attn_weights, is_causal,
            )  # fmt: skip
        if query.dim() != 3:
            raise InvalidInput("MultiheadAttention needs a batch: inputs of three dimensions")
        flip = (lambda x: x) if module.batch_first else (lambda x: x.transpose(0, 1))
        same = query is key and key is value
        q = flip(query)
        k, v = (q, q) if same else (flip(key), flip(value))
        q, k, v = _project(module, recorder, q, k, v)
        mask = _mask(module, q, k, attn_mask, key_padding_mask)
        out, weights = _attend(module, *_extended(module, k, v, mask), q, need_weights)
        out = _shown_linear(recorder, module.out_proj, out)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        return flip(out), weights

    return forward


def _shown_linear(recorder: Recorder, layer: nn.Linear, x: Tensor) -> Tensor:
    x = autocast_input(x)
    out = functional.linear(x, layer.weight, layer.bias)
    if trainable(layer.weight) or trainable(layer.bias):
        show(recorder, layer, linear, (x,), (out,))
    return out


def _project(
    module: nn.MultiheadAttention, recorder: Recorder, q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values; one product where all three read the same values."""
    if module._qkv_same_embed_dim and q is k and k is v:
        x = autocast_input(q)
        out = functional.linear(x, module.in_proj_weight, module.in_proj_bias)
        show(recorder, module, _packed, (x,), (out,))
        return out.chunk(3, dim=-1)  # type: ignore[return-value]
    weights = (
        module.in_proj_weight.chunk(3)
        if module._qkv_same_embed_dim
        else (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    )
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    inputs = tuple(autocast_input(x) for x in (q, k, v))
    outs = tuple(
        functional.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)
    )
    show(recorder, module, _apart, inputs, outs)
    return outs  # type: ignore[return-value]


def _packed(module: nn.MultiheadAttention, x: Tensor, g: Tensor) -> Forms:
    forms: Forms = []
    if trainable(module.in_proj_weight):
        forms.append((module.in_proj_weight, Outer(x, g)))
    if trainable(module.in_proj_bias):
        forms.append((module.in_proj_bias, bias_form(g)))
    return forms


def _apart(module: nn.MultiheadAttention, *values: Tensor) -> Forms:
    inputs, grads = values[:3], values[3:]
    forms: Forms = []
    outers = [Outer(x, g) for x, g in zip(inputs, grads, strict=True)]
    if not module._qkv_same_embed_dim:
        for name, outer in zip(("q_proj_weight", "k_proj_weight", "v_proj_weight"), outers,
                               strict=True):  # fmt: skip
            if trainable(module._parameters[name]):
                forms.append((getattr(module, name), outer))
    elif trainable(module.in_proj_weight):
        forms.append((module.in_proj_weight, Stacked(tuple(outers))))
    if trainable(module.in_proj_bias):
        sums = [bias_form(g).values for g in grads]
        forms.append((module.in_proj_bias, Dense(torch.cat(sums, dim=1))))
    return forms


RULES = (_packed, _apart)


def _mask(
    module: nn.MultiheadAttention,
    q: Tensor,
    k: Tensor,
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
) -> Tensor | None:
    """What is added to the scores, (B or 1, heads or 1, L, S)."""
    total = None
    if attn_mask is not None:
        total = _additive(attn_mask, q)
        shape = (-1, module.num_heads, *total.shape[-2:])
        total = total.view(shape) if total.dim() == 3 else total[None, None]
    if key_padding_mask is not None:
        padding = _additive(key_padding_mask, q)[:, None, None, :]
        total = padding if total is None else total + padding
    return total


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, -math.inf)


def _extended(
    module: nn.MultiheadAttention, k: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys and values with the learned and the zero position that the module may add."""
    batch, _, width = k.shape
    if module.bias_k is not None and module.bias_v is not None:
        k = torch.cat([k, module.bias_k.expand(batch, 1, width).to(k.dtype)], dim=1)
        v = torch.cat([v, module.bias_v.expand(batch, 1, width).to(v.dtype)], dim=1)
        mask = None if mask is None else functional.pad(mask, (0, 1))
    if module.add_zero_attn:
        k, v = (torch.cat([x, x.new_zeros(batch, 1, width)], dim=1) for x in (k, v))
        mask = None if mask is None else functional.pad(mask, (0, 1))
    return k, v, mask


def _attend(
    module: nn.MultiheadAttention,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    q: Tensor,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    dropout = module.dropout if module.training else 0.0
    q, k, v = (x.unflatten(2, (module.num_heads, -1)).transpose(1, 2) for x in (q, k, v))
    weights = None
    if need_weights:
        scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)  # (B, H, L, S)
        weights = (scores if mask is None else scores + mask).softmax(-1)
        weights = functional.dropout(weights, dropout) if dropout > 0 else weights
        out = weights @ v
    else:
        out = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
    return out.transpose(1, 2).flatten(2), weights
