"""The gradient of one example, computed alone and counted in whole units: strict mode.

What other examples are in the batch, how many, and in which order they come cannot change a bit of
it: nothing of them is there when it is computed. Any model that autograd differentiates will do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.clip import Clip
from tightrope.train.gradients.batch import ClippedBatch
from tightrope.train.gradients.forms.base import full_precision
from tightrope.train.gradients.rules import not_private
from tightrope.train.gradients.trained import trained
from tightrope.train.grid import BOUND, on_grid

__all__ = ["Alone"]

# Nodes of the backward graph that stand for compiled code.
_COMPILED = ("CompiledFunction", "torch::jit")


@final
class Alone:
    """Takes batches of one example (or none), and gives sums of whole numbers (see `grid`).

    Formal guarantee. The integer vector of one example has a norm of at most BOUND, checked in
    whole numbers, and depends on that example and the weights alone.
    """

    def __init__(self, model: nn.Module) -> None:
        for name, module in model.named_modules():
            reason = not_private(module)
            if reason is not None:
                raise ModelNotPrivate(f"{name or 'the model'} ({type(module).__name__}) {reason}")
        named = trained(model)
        self.names, self.parameters = list(named), list(named.values())
        self._buffers = list(model.buffers())
        self._versions: list[int] | None = None

    def detach(self) -> None:
        """Nothing was attached to the model."""

    def forget(self) -> None:
        """Nothing is kept of a forward pass."""

    def begin(self) -> None:
        """The forward pass of an example comes next."""
        self._versions = [buffer._version for buffer in self._buffers]

    def clipped_sum(self, losses: Tensor, clip: Clip, *, chain: int = 1) -> ClippedBatch:
        """losses: (1,) of one example, from a forward pass of it alone; or (0,).

        chain: of no meaning here, as there is nothing to add.
        """
        if len(losses) > 1:
            raise InvalidInput(
                f"Strict mode computes every example alone; got {len(losses)} losses at once. Loop "
                "over run.batches(...), which hands out one example at a time."
            )
        self._check_buffers()
        if len(losses) == 0:
            return self._nothing(losses.new_zeros(0), losses.new_zeros(1, 0), 0)
        _refuse_compiled(losses)
        found = torch.autograd.grad(losses[0], self.parameters, allow_unused=True)
        with torch.no_grad():
            return self._counted(found, clip)

    def _counted(self, found: Sequence[Tensor | None], clip: Clip) -> ClippedBatch:
        """Clip, round to whole units, and check the bound."""
        pairs = zip(found, self.parameters, strict=True)
        gradients = [torch.zeros_like(p) if g is None else _dense(g) for g, p in pairs]
        squares = torch.stack([g.double().square().sum() for g in gradients]).unsqueeze(1)
        total = squares.sum(0)
        factors = clip.factors(squares if clip.per_parameter else total[None])
        units = (factors[:, 0].double() * (BOUND / float(clip.sensitivity))).unbind()
        whole = None
        if bool(total.isfinite()):
            whole = on_grid(gradients, units if len(units) > 1 else units * len(gradients))
        if whole is None:
            return self._nothing(torch.full_like(total, torch.inf), torch.zeros_like(factors), 1)
        return ClippedBatch(tuple(whole), 1, total, factors, 0)

    def _nothing(self, squares: Tensor, factors: Tensor, examples: int) -> ClippedBatch:
        """Exactly zero, of no example or of one that is dropped."""
        zeros = tuple(torch.zeros_like(p, dtype=torch.int64) for p in self.parameters)
        return ClippedBatch(zeros, examples, squares, factors, examples)

    def _check_buffers(self) -> None:
        """What one example writes into the model, the next would read."""
        if self._versions not in (None, [buffer._version for buffer in self._buffers]):
            raise ModelNotPrivate(
                "A buffer of the model was written to during training. In strict mode an example's "
                "gradient may depend on the example and the weights alone, and a buffer carries "
                "something from one example to the next. Freeze the layer that writes it "
                "(evaluation mode), or use one without buffers, such as GroupNorm or LayerNorm."
            )


def _dense(g: Tensor) -> Tensor:
    return full_precision(g.to_dense() if g.is_sparse else g)


def _refuse_compiled(losses: Tensor) -> None:
    """Compiled code is made, and made anew, for the shapes that examples before had."""
    waiting, seen = [losses.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().startswith(_COMPILED):
            raise InvalidInput(
                "The model, or a part of it, runs compiled (torch.compile or TorchScript). Which "
                "code computes an example then depends on the examples that came before, and so "
                "may its last bits. Strict mode needs the model as it is, uncompiled."
            )
        waiting += [following for following, _ in node.next_functions]
