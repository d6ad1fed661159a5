"""Does any example's loss depend on another example?

If it does (batch statistics, contrastive losses, a mean hidden in the loss, padding that is taken
for data), clipping one example's gradient does not bound that example's influence, and the
guarantee is void. So an example alone, collated by itself, must have the loss and the gradient that
it has within a batch.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor

from tightrope.errors import ModelNotPrivate
from tightrope.train.answers import any_half
from tightrope.train.feed import Rows, fresh, rows_at, slice_rows, tensors_of, to_device
from tightrope.train.gradients.rounding import exact_layers
from tightrope.train.held import traceless
from tightrope.train.modes import in_mode
from tightrope.train.wide import CANNOT, Wide

if TYPE_CHECKING:
    from tightrope.train.feed import Batch
    from tightrope.train.optimizer import PrivateOptimizer

__all__ = [
    "EXAMPLES",
    "ROUNDING",
    "SAME_SHAPES",
    "Recheck",
    "change_of",
    "change_of_losses",
    "check_independent_losses",
    "collated_apart",
    "is_half",
    "mixing_of_losses",
    "refuse_mixing",
]

LossesOf = Callable[[Any], Tensor]  # from a batch to one loss per example
Gradient = Sequence[Tensor | None]

# Batches of different sizes may take different float32 kernels: up to this it is rounding.
ROUNDING = 1e-3
SAME_SHAPES = 10.0  # times less rounding between batches of one shape
_OF_GRADIENTS = 10.0  # times as much for gradients
_OF_HALVES = 30.0  # and in half precision
EXAMPLES = 8
DIFFERENTIATED = 3
# A step is checked again with this probability, on other examples.
CHANCE = 1 / 1000


def mixing_of_losses(
    model: torch.nn.Module, losses_of: LossesOf, rows: Rows, device: torch.device
) -> float:
    """Largest change of one example's loss or gradient, relative to its size, when it is alone.

    Gradients count a tenth, and half precision less: up to `ROUNDING` it is rounding. What is more
    is looked at again in float64, which tells a kink from mixing. Looks at a few examples, drawn at
    random, in evaluation mode (dropout off); never touches the weights.
    """
    count = min(EXAMPLES, rows.length)
    if count < 2:
        return 0.0
    chosen = np.random.default_rng().choice(rows.length, count, replace=False)
    batches = collated_apart(rows, chosen, device)
    # Batches of different sizes in tf32 differ by per cents in deep networks: no tf32 here.
    with traceless(model), in_mode(model, training=False), torch.enable_grad(), exact_layers():
        several = torch.distributed.is_initialized()  # ranks would wait for each other's gradients
        trained = [] if several else [p for p in model.parameters() if p.requires_grad]
        mixing, losses = _mixing(losses_of, trained, *batches)
        if mixing > ROUNDING and not several:
            with suppress(*CANNOT):  # then float32 alone decides
                if not _follows_others(losses_of, trained, batches[0], count):
                    return _in_float64(model, losses_of, batches, losses)
        return mixing


def _mixing(
    losses_of: LossesOf, trained: Sequence[Tensor], whole: Any, parts: list[Any]
) -> tuple[float, Tensor]:
    """And the losses of the batch, followed by those of its examples alone."""
    together = losses_of(fresh(whole))
    alone = [losses_of(fresh(part)) for part in parts]
    losses = torch.cat([each.reshape(-1) for each in (together, *alone)])
    if together.ndim != 1 or any(one.shape != (1,) for one in alone):
        return 0.0, losses  # not one loss per example: step() explains that better
    return _change(trained, together, torch.cat(alone)), losses


def _in_float64(model: torch.nn.Module, losses_of: LossesOf, batches: Any, short: Tensor) -> float:
    """Raises where the losses are not the `short` ones of float32: then it says nothing of them."""
    wide = Wide(model)
    mixing, losses = _mixing(partial(wide, losses_of), wide.parameters, *batches)
    half = is_half(short) or any_half([short])
    if losses.shape != short.shape or change_of_losses(losses, short, half=half) > ROUNDING:
        raise ValueError("another computation")
    return mixing


def _follows_others(losses_of: LossesOf, trained: Sequence[Tensor], whole: Any, count: int) -> bool:
    """Do the values of others move an example? In batches of one size no kink does."""
    together, places = losses_of(fresh(whole)), list(range(count))
    for kept in (places[: count // 2], places[count // 2 :]):
        source = [place if place in kept else kept[0] for place in places]
        others = losses_of(fresh(rows_at(whole, count, source)))
        if _change(trained, together[kept], others[kept]) > ROUNDING / SAME_SHAPES:
            return True
    return False


def _change(trained: Sequence[Tensor], losses: Tensor, others: Tensor) -> float:
    change = change_of_losses(losses, others, half=is_half(losses))
    some = range(min(DIFFERENTIATED, len(losses)) if trained else 0)
    return max([change, *(_of_one(trained, losses[i], others[i]) for i in some)])


def collated_apart(rows: Rows, chosen: Any, device: torch.device) -> tuple[Any, list[Any]]:
    """A batch, and each of its examples collated by itself.

    The items are read once: they may change from one reading to the next. Where collating itself
    is random (tokens masked by chance), the examples are cut out of the batch instead.
    """
    batch = None
    if rows.items is not None:
        items = [rows.items[int(i)] for i in chosen]
        batch = rows.collate(items)
        if _equal(batch, rows.collate(items)):
            parts = [rows.collate([item]) for item in items]
            return to_device(batch, device), [to_device(part, device) for part in parts]
    batch = to_device(rows.take(chosen) if batch is None else batch, device)
    return batch, [slice_rows(batch, slice(i, i + 1)) for i in range(len(chosen))]


def _equal(one: Batch, other: Batch) -> bool:
    pairs = list(zip(tensors_of(one), tensors_of(other), strict=True))
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


def _of_one(trained: Sequence[Tensor], together: Tensor, alone: Tensor) -> float:
    if not (together.requires_grad and alone.requires_grad):
        return 0.0
    pair = [
        torch.autograd.grad(loss, trained, retain_graph=True, allow_unused=True)
        for loss in (together, alone)
    ]
    return change_of(*pair, half=is_half(together))


def change_of(together: Gradient, alone: Gradient, *, half: bool) -> float:
    """Difference of two gradients relative to the larger; up to `ROUNDING` it is rounding."""
    squares = [0.0, 0.0, 0.0]
    for a, b in zip(together, alone, strict=True):
        a, b = (torch.zeros((), device="cpu") if g is None else g.detach().double() for g in (a, b))
        if not (bool(a.isfinite().all()) and bool(b.isfinite().all())):
            continue
        for k, value in enumerate((a.to(b.device) - b, a, b)):
            squares[k] += float(value.square().sum())
    scale = math.sqrt(max(squares[1:]))
    relative = math.sqrt(squares[0]) / scale if scale > 0 else 0.0
    return relative / _OF_GRADIENTS / (_OF_HALVES if half else 1.0)


def is_half(value: Tensor) -> bool:
    """Was it computed in half precision?"""
    kind = value.device.type
    return value.dtype.itemsize < 4 or torch.is_autocast_enabled(kind)


def change_of_losses(together: Tensor, apart: Tensor, *, half: bool) -> float:
    """Largest change of a loss relative to its size; up to `ROUNDING` it is rounding."""
    together, apart = together.detach().double(), apart.detach().double()
    finite = apart.isfinite()
    if bool((finite != together.isfinite()).any()):
        return math.inf  # as when a batch of one has no standard deviation
    if not bool(finite.any()):
        return 0.0
    together, apart = together[finite], apart[finite]
    scale = apart.abs() + apart.abs().mean() + 1e-12
    return float(((together - apart).abs() / scale).max()) / (_OF_HALVES if half else 1.0)


def check_independent_losses(
    model: torch.nn.Module, losses_of: LossesOf, rows: Rows, device: torch.device
) -> None:
    """Refuse a loss, a model or a collation that mixes examples."""
    mixing = mixing_of_losses(model, losses_of, rows, device)
    if mixing > ROUNDING:
        refuse_mixing(mixing)


def refuse_mixing(mixing: float) -> None:
    raise ModelNotPrivate(
        f"The loss of an example, or its gradient, changes (by {100 * mixing:.2g} %, where "
        "gradients count a tenth) when the other examples of the batch are left out or replaced, "
        "so examples are mixed and one example's influence is not bounded. Use a loss and layers "
        "that look at one example at a time (reduction='none', GroupNorm or LayerNorm instead of "
        "BatchNorm). If examples are "
        "padded to the longest of the batch, the padding must not count: pass the lengths and use "
        "pack_padded_sequence, pass an attention mask, average over the example's own positions, "
        "or pad all examples to one public length."
    )


@final
class Recheck:
    """The same check at random steps, for a run whose losses are known as a function."""

    def __init__(self, losses_of: LossesOf) -> None:
        self._losses_of, self._chance = losses_of, random.Random()

    def by_chance(self, run: PrivateOptimizer) -> None:
        """To be called at each step, before it; the run is marked where something is found."""
        if run.sharding.gathered:  # for steps alone
            return
        if run.rows is not None and self._chance.random() < CHANCE:
            with run.guard.opened():
                check_independent_losses(run.model, self._losses_of, run.rows, run.device)
