"""Networks of linear layers on vectors: what `book_keeping` does, in a straight line.

A step of such a network takes less time than the general machinery around it, so nothing is looked
up, merged or stacked here. Forms and factors are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tightrope.train.clip import Clip
from tightrope.train.gradients.batch import ClippedBatch, find_factors
from tightrope.train.gradients.chains import chained_sum, inside_product
from tightrope.train.gradients.forms.base import full_precision, short_squares, zero_examples
from tightrope.train.gradients.passes import Work
from tightrope.train.gradients.rounding import exact_products
from tightrope.train.gradients.rules.linear import linear

__all__ = ["only_vectors", "sum_of_vectors"]

Layers = list[tuple[dict[str, Any], Tensor, Tensor]]  # parameters, inputs, output gradients


def only_vectors(work: Work, clip: Clip) -> bool:
    """Whether every layer is linear, ran on one vector for each example, and trains as a whole."""
    if work.ways or work.shared or work.direct or clip.per_parameter or not work.owners.plain:
        return False
    for use in work.uses:
        own = use.owner._parameters
        if use.rule is not linear or use.inputs[0].dim() != 2 or own["bias"] is None:
            return False
        if use.rows[0] != work.owners.rows:  # several vectors for each example
            return False
        if not (own["weight"].requires_grad and own["bias"].requires_grad):
            return False
    return True


def sum_of_vectors(work: Work, clip: Clip) -> ClippedBatch:
    """One backward pass; norms, factors, sums."""
    grads = work.backward([use.edges[0] for use in work.uses], keep=False)
    found: Layers = []
    for use, g in zip(work.uses, grads, strict=True):
        if g is None:  # the losses do not depend on the layer
            continue
        use.check_unchanged()
        found.append((use.owner._parameters, full_precision(use.inputs[0]), full_precision(g)))
    with exact_products():  # once for all layers
        total = _squared_norms(work, found)
        factors = find_factors(total, clip, work.scale, work.chain, work.present)
        common = factors.common
        sums: dict[int, Tensor] = {}
        for own, a, g in found:
            if factors.bad is not None:
                a, g = zero_examples(a, factors.bad), zero_examples(g, factors.bad)
            scaled = g.t() * (common if common.dtype is g.dtype else common.to(g.dtype))
            weight, bias = _sums(scaled, a, work.chain)
            sums[work.rows[id(own["weight"])]], sums[work.rows[id(own["bias"])]] = weight, bias
    return factors.batch(work.in_order(sums))


def _sums(scaled: Tensor, a: Tensor, chain: int) -> tuple[Tensor, Tensor]:
    """Over the examples, for weight and bias, of output gradients (p, B) and inputs (B, d)."""
    if len(a) <= chain and scaled.dtype is torch.float32:
        return torch.mm(scaled, a), scaled.sum(1)
    return inside_product(scaled.t(), a, chain), chained_sum(scaled.t(), chain)


def _squared_norms(work: Work, found: Layers) -> Tensor:
    """(B,) sums over the layers of |g|^2 (|a|^2 + 1): weight and bias."""
    total: Tensor | None = None
    for _, a, g in found:
        more, squares = short_squares(a, more=1.0), short_squares(g)
        total = squares.mul_(more) if total is None else total.addcmul_(squares, more)
    return torch.zeros_like(full_precision(work.losses)) if total is None else total
