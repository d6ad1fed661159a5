"""A numerical test that examples do not see each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from tightrope.errors import InvalidInput
from tightrope.train.gradients.draws import same_draws

__all__ = ["Leak", "check_examples_independent"]


@final
@dataclass(frozen=True)
class Leak:
    """What the test found. `leaks` is True when another example's value moved."""

    leaks: bool
    largest_change: float
    tolerance: float

    def __bool__(self) -> bool:
        return not self.leaks


def check_examples_independent(
    model: nn.Module,
    *inputs: Any,
    losses_of: Callable[..., Tensor] | None = None,
    tolerance: float = 1e-5,
) -> Leak:
    """Replace one example by another; the outputs (or losses) of the others must not move.

    inputs: what the model (or `losses_of(model, *inputs)`) is called with, batch first, with two
        examples or more. Random layers are made equal by the same seed in both runs; the generator
        states, buffers and gradients are left as they were.
    Error: a change below `tolerance` relative to the largest value counts as rounding, so a leak
    weaker than that is not seen; a change above it is a leak.
    """
    batch = _batch_size(inputs)
    run = losses_of or (lambda m, *args: m(*args))
    replaced = tuple(_with_last_replaced(x, batch) for x in inputs)
    before = _rows(_quietly(model, run, inputs), batch)
    after = _rows(_quietly(model, run, replaced), batch)
    change = (before - after)[: batch - 1].abs().max().item()
    largest = max(1e-30, before.abs().max().item())
    return Leak(not change <= tolerance * largest, change, tolerance * largest)


def _batch_size(inputs: tuple[Any, ...]) -> int:
    sizes = {x.shape[0] for x in inputs if isinstance(x, Tensor) and x.dim() > 0}
    if len(sizes) != 1 or min(sizes) < 2:
        raise InvalidInput(
            f"the inputs must share a first dimension of at least 2 examples; got {sorted(sizes)}"
        )
    return int(sizes.pop())


def _with_last_replaced(x: object, batch: int) -> Any:
    """The last example becomes a strongly changed copy of the first."""
    if not isinstance(x, Tensor) or x.dim() == 0:
        return x
    changed = x.clone()
    changed[-1] = x[0] * 3 + 1 if x.is_floating_point() else x[0]
    return changed


def _rows(values: object, batch: int) -> Tensor:
    if isinstance(values, tuple | list):
        values = values[0]
    if not isinstance(values, Tensor) or values.dim() == 0 or values.shape[0] != batch:
        raise InvalidInput("the model or loss must return one row for each example")
    return values.detach().reshape(batch, -1).double()


def _quietly(model: nn.Module, run: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
    """Run without leaving a trace in the model or the random generators."""
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    with same_draws(p.device for p in model.parameters()), torch.no_grad():
        result = run(model, *inputs)
        for name, value in model.named_buffers():
            value.copy_(buffers[name])
    return result
