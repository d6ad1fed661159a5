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
from tightrope.train.gradients.forms.base import blocked_squares, full_precision, zero_examples
from tightrope.train.gradients.forms.rank_one import rank_one_squares
from tightrope.train.gradients.passes import Work
from tightrope.train.gradients.rounding import exact_products
from tightrope.train.gradients.rules.linear import linear

__all__ = ["only_vectors", "sum_of_vectors"]


def only_vectors(work: Work, clip: Clip) -> bool:
    """Whether every layer is linear, ran on one vector for each example, and trains as a whole."""
    if work.ways or work.shared or work.direct or clip.per_parameter or not work.owners.plain:
        return False
    for use in work.uses:
        own = use.owner._parameters
        if use.rule is not linear or use.inputs[0].dim() != 2 or own["bias"] is None:
            return False
        if not (own["weight"].requires_grad and own["bias"].requires_grad):
            return False
    return True


def sum_of_vectors(work: Work, clip: Clip) -> ClippedBatch:
    """One backward pass; norms, factors, sums."""
    grads = work.backward([use.edges[0] for use in work.uses], keep=False)
    found: list[tuple[dict[str, Any], Tensor, Tensor]] = []
    total: Tensor | None = None
    for use, g in zip(work.uses, grads, strict=True):
        if g is None:  # the losses do not depend on the layer
            continue
        use.check_unchanged()
        a, g = full_precision(use.inputs[0]), full_precision(g)
        found.append((use.owner._parameters, a, g))
        squares = rank_one_squares(a, blocked_squares(g), shifted=True)
        total = squares if total is None else total.add_(squares)
    if total is None:
        total = torch.zeros_like(full_precision(work.losses))
    factors = find_factors(total, clip, work.scale, work.chain, work.present)
    column, sums = factors.column(), dict[int, Tensor]()
    with exact_products():  # once for all layers
        for own, a, g in found:
            if factors.bad is not None:
                a, g = zero_examples(a, factors.bad), zero_examples(g, factors.bad)
            scaled = g * (column if column.dtype is g.dtype else column.to(g.dtype))
            sums[work.rows[id(own["weight"])]] = inside_product(scaled, a, work.chain)
            sums[work.rows[id(own["bias"])]] = chained_sum(scaled, work.chain)
    return factors.batch(work.in_order(sums))
