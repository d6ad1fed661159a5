"""For models that the layer rules do not cover: one backward pass for each example.

Exact for everything that autograd differentiates (folded batches, windows, experts, any adapter)
and slow: a batch of B takes B backward passes. Run it with `micro_batch=1`: through a graph of
several examples each pass touches all of them, and what is not finite spreads to the others.
"""

from __future__ import annotations

from collections import deque
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.clip import Clip
from tightrope.train.gradients.batch import ClippedBatch, empty_batch
from tightrope.train.gradients.forms.base import blocked_squares, full_precision
from tightrope.train.gradients.plan import refuse_mixing
from tightrope.train.gradients.rules import not_private

__all__ = ["OneByOne"]

_CHECK_EVERY = 50  # batches between two checks that examples are apart
_MOST_OUTPUTS = 64  # remembered for each module: older ones belong to no step


@final
class OneByOne:
    """The same answers as `Gradients`, from the definition: `gradients=OneByOne(model)`.

    Formal guarantee: that of `Gradients`. One example's contribution is the gradient of its own
    loss; that this loss depends on no other example is checked at every layer's output.
    """

    bounds_rounding = True  # as docs/arithmetic.md proves

    def __init__(self, model: nn.Module) -> None:
        _validate(model)
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise ModelNotPrivate("the model has no trainable parameter")
        self.names: list[str] = [name for name, _ in named]
        self.parameters: list[nn.Parameter] = [parameter for _, parameter in named]
        self._model, self._batches = model, 0
        modules = [module for module in model.modules() if not list(module.children())]
        self._outputs: deque[Output] = deque(maxlen=_MOST_OUTPUTS * len(modules))
        self._handles = [module.register_forward_hook(self._note) for module in modules]

    def detach(self) -> None:
        """Remove every hook; the model is as it was."""
        for handle in self._handles:
            handle.remove()
        self.forget()

    def forget(self) -> None:
        """Drop what forward passes left since the last clipped_sum."""
        self._outputs.clear()

    @torch.compiler.disable
    def _note(self, module: nn.Module, inputs: Any, out: Any) -> None:
        if isinstance(out, Tensor) and out.requires_grad and out.dim() and self._model.training:
            self._outputs.append((type(module).__name__, len(out), get_gradient_edge(out)))

    def clipped_sum(
        self,
        losses: Tensor,
        clip: Clip,
        *,
        present: Tensor | None = None,
        chain: int | None = None,
    ) -> ClippedBatch:
        """losses: (B,), one for each example, from a forward pass just run in training mode.

        Added in float64, so `chain` does not matter.
        """
        if present is not None:
            raise InvalidInput("OneByOne cannot be captured as a CUDA graph; use step(losses).")
        outputs = list(self._outputs)
        self.forget()
        if len(losses) == 0:
            return empty_batch(self.parameters)
        if self._batches % _CHECK_EVERY == 0:
            _check_apart(losses, outputs)
        self._batches += 1
        sums = [total.double() for total in empty_batch(self.parameters).sums]
        found = [self._add(sums, losses, i, clip) for i in range(len(losses))]
        squares, factors = (torch.cat(part, dim=-1) for part in zip(*found, strict=True))
        nonfinite = int((~squares.isfinite()).sum())
        if nonfinite and len(losses) > 1:
            raise InvalidInput(
                "An example of this batch has a gradient that is not finite, and in one graph it "
                "spoils the others'. Draw with micro_batch=1: then it alone contributes zero."
            )
        return ClippedBatch(tuple(sums), len(losses), squares, factors, nonfinite)

    def _add(self, sums: list[Tensor], losses: Tensor, i: int, clip: Clip) -> tuple[Tensor, Tensor]:
        """Add the clipped gradient of example i; its squared norm (1,) and factors (*, 1)."""
        grads = torch.autograd.grad(
            losses[i], self.parameters, retain_graph=i + 1 < len(losses), allow_unused=True
        )
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
                sums[row].add_(g.double() * factors[row if clip.per_parameter else 0])
        return total, factors


def _dense(g: Tensor) -> Tensor:
    return full_precision(g.to_dense() if g.is_sparse else g)


def _validate(model: nn.Module) -> None:
    for name, module in model.named_modules():
        reason = not_private(module)
        if reason is not None:
            raise ModelNotPrivate(f"{name or 'the model'} ({type(module).__name__}) {reason}")


Output = tuple[str, int, GradientEdge]  # name of a layer, rows of its output, where it lies


def _check_apart(losses: Tensor, outputs: list[Output]) -> None:
    """The loss of one example must not depend on another example's row of any layer's output."""
    rows = [(name, edge) for name, count, edge in outputs if count == len(losses)]
    refuse_mixing(losses, [edge for _, edge in rows], [name for name, _ in rows])
