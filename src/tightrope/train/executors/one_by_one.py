"""Without a proof and without a graph: the user's Python, on one example after another.

An example's gradient is that of its own loss, computed where no other example is. But Python that
keeps something from one call to the next could carry it over: only the user can say that it does
not, so this way is taken only when the user asks for it, and the certificate says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.clip import Clip
from tightrope.train.executors.plain import Parameters, tensors_in
from tightrope.train.gradients.batch import ClippedBatch, empty_batch
from tightrope.train.gradients.forms import blocked_squares
from tightrope.train.gradients.rounding import full_precision
from tightrope.train.program.capture import _flatten

__all__ = ["OneAtATime", "gradients_of_one"]


@final
class OneAtATime:
    """Clipped sums of batches of up to `size` rows; contributions are added in float64."""

    how = "one at a time"

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        size: int,
        parameters: list[nn.Parameter],
    ) -> None:
        self.size, self.parameters = size, list(parameters)
        self._model, self._loss = model, loss
        self._buffers = list(model.buffers())

    def clipped_sum(
        self, batch: tuple[Any, ...], clip: Clip, chain: int
    ) -> tuple[ClippedBatch, Tensor]:
        """batch: the arguments of the loss, of n <= size rows; with the losses of its rows."""
        leaves, rows = tensors_in(batch, self.size)
        build = _flatten(batch)[1]
        if rows == 0:
            return empty_batch(self.parameters), leaves[0].new_zeros(0, dtype=torch.float32)
        totals = [torch.zeros_like(p, dtype=torch.float64) for p in self.parameters]
        squares, factors, losses = list[Tensor](), list[Tensor](), list[Tensor]()
        for row in range(rows):
            one = build([leaf[row : row + 1] for leaf in leaves])
            versions = [buffer._version for buffer in self._buffers]
            loss, found = gradients_of_one(self._model, self._loss, one, self.parameters)
            if versions != [buffer._version for buffer in self._buffers]:
                raise ModelNotPrivate(
                    "The loss wrote to a buffer of the model, which carries something from one "
                    "example to the next. Freeze the layer that does it (evaluation mode), or use "
                    "one without buffers, such as GroupNorm or LayerNorm."
                )
            square, factor = _add(totals, found, clip)
            squares.append(square)
            factors.append(factor)
            losses.append(loss)
        whole = torch.cat(squares)
        sums = tuple(
            total.to(torch.promote_types(p.dtype, torch.float32))
            for total, p in zip(totals, self.parameters, strict=True)
        )
        dropped = int((~whole.isfinite()).sum())
        return ClippedBatch(sums, rows, whole, torch.cat(factors, 1), dropped), torch.cat(losses)


def gradients_of_one(
    model: nn.Module,
    loss: Callable[..., Any],
    one: tuple[Any, ...],
    parameters: Parameters,
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss (1,) of a batch of one example, and its gradients; None where it has none.

    Of several losses, each is differentiated by its own parameters, and the last is returned.
    """
    groups = parameters if isinstance(parameters, Mapping) else {"loss": parameters}
    gradients = list[Tensor | None]()
    with torch.enable_grad():
        found = loss(model, *one)
        if not isinstance(parameters, Mapping):
            found = {"loss": next(iter(found.values())) if isinstance(found, dict) else found}
        for name, own in groups.items():
            value = found[name]
            if not isinstance(value, Tensor) or value.shape != (1,):
                came = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise InvalidInput(
                    f"The loss of one example must be a tensor of shape (1,); got {came}. Return "
                    'one loss for each example, as with reduction="none".'
                )
            if not value.requires_grad:
                gradients += [None] * len(own)
                continue
            gradients += torch.autograd.grad(
                value.sum(), list(own), allow_unused=True, retain_graph=len(groups) > 1
            )
    return value.detach(), [
        None if g is None else g.to_dense() if g.is_sparse else g for g in gradients
    ]


@torch.no_grad()
def _add(totals: list[Tensor], found: list[Tensor | None], clip: Clip) -> tuple[Tensor, Tensor]:
    """Add the clipped gradient of an example; its squared norm (1,) and factors (*, 1)."""
    squares = torch.zeros(len(totals), 1, dtype=torch.float64, device=totals[0].device)
    for row, g in enumerate(found):
        if g is not None:
            squares[row] = blocked_squares(full_precision(g)[None]).double()
    total = squares.sum(0)
    if not bool(total.isfinite()):
        count = len(totals) if clip.per_parameter else 1
        return total.new_full((1,), torch.inf), total.new_zeros(count, 1)
    factors = clip.factors(squares if clip.per_parameter else total[None])
    for row, g in enumerate(found):
        if g is not None:
            totals[row].add_(g.double() * factors[row if clip.per_parameter else 0, 0])
    return total, factors
