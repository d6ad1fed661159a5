"""For models that the layer rules do not cover: one forward and backward pass for each example.

Exact for everything that autograd differentiates (folded batches, windows, experts, any adapter)
and slow. Examples come one at a time (`micro_batch=1`): in a graph of several, layers whose outputs
are not one row for each example could mix them unseen, and what is not finite would spread.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.clip import Clip
from tightrope.train.gradients.batch import ClippedBatch, empty_batch
from tightrope.train.gradients.forms.base import blocked_squares, full_precision
from tightrope.train.gradients.rules import not_private
from tightrope.train.gradients.trained import trained

__all__ = ["OneByOne"]


@final
class OneByOne:
    """The same answers as `Gradients`, from the definition: `gradients=OneByOne(model)`.

    Formal guarantee: that of `Gradients`. One example's contribution is the gradient of its own
    loss, computed where no other example is.
    """

    bounds_rounding = True  # as docs/arithmetic.md proves
    micro_batch = 1  # the most examples that it takes at a time
    views = None  # rows of an example: any, since its gradient is that of its loss

    def __init__(self, model: nn.Module) -> None:
        _validate(model)
        named = trained(model)
        self.names, self.parameters = list(named), list(named.values())

    def detach(self) -> None:
        """Nothing: there are no hooks."""

    def forget(self) -> None:
        """Nothing: forward passes leave nothing behind."""

    def clipped_sum(
        self,
        losses: Tensor,
        clip: Clip,
        *,
        present: Tensor | None = None,
        chain: int | None = None,
    ) -> ClippedBatch:
        """losses: (1,), from a forward pass just run in training mode; or (0,) for nobody.

        Contributions stay as they are and are added in float64, so `chain` does not matter.
        """
        if present is not None:
            raise InvalidInput("OneByOne cannot be captured as a CUDA graph; use step(losses).")
        if len(losses) > 1:
            raise InvalidInput(
                f"OneByOne got {len(losses)} examples at once; it takes one at a time, so that "
                "nothing can mix them. Draw with micro_batch=1: run.batches(data, steps=..., "
                "micro_batch=1), or Trainer(..., micro_batch=1)."
            )
        sums = list(empty_batch(self.parameters).sums)
        if len(losses) == 0:
            return empty_batch(self.parameters)
        squares, factors = self._add(sums, losses, clip)
        return ClippedBatch(tuple(sums), 1, squares, factors, int((~squares.isfinite()).sum()))

    def _add(self, sums: list[Tensor], losses: Tensor, clip: Clip) -> tuple[Tensor, Tensor]:
        """Add the clipped gradient of the example; its squared norm (1,) and factors (*, 1)."""
        grads = torch.autograd.grad(losses.sum(), self.parameters, allow_unused=True)
        used = [(row, _dense(g)) for row, g in enumerate(grads) if g is not None]
        with torch.no_grad():
            squares = torch.zeros(len(sums), 1, device=losses.device, dtype=torch.float64)
            for row, g in used:
                squares[row] = blocked_squares(g[None]).double()
            total = squares.sum(0)
            if not bool(total.isfinite()):
                count = len(sums) if clip.per_parameter else 1
                return total.new_full((1,), torch.inf), total.new_zeros(count, 1)
            factors = clip.factors(squares if clip.per_parameter else total[None])
            for row, g in used:
                sums[row].add_(g.double() * factors[row if clip.per_parameter else 0, 0])
        return total, factors


def _dense(g: Tensor) -> Tensor:
    return full_precision(g.to_dense() if g.is_sparse else g)


def _validate(model: nn.Module) -> None:
    for name, module in model.named_modules():
        reason = not_private(module)
        if reason is not None:
            raise ModelNotPrivate(f"{name or 'the model'} ({type(module).__name__}) {reason}")
