"""At the start of a run: the executor's clipped sum against one example at a time, on made data.

Nothing of the user's data is read. Both sides draw the same constants wherever they draw at random.
What differs by more than rounding is refused: what runs would not be what the user wrote.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode  # documented, in a private place

from tightrope.errors import InvalidInput
from tightrope.train.clip import FlatClip
from tightrope.train.executors.one_by_one import gradients_of_one
from tightrope.train.executors.plain import Parameters
from tightrope.train.gradients.rounding import exact_layers, full_precision
from tightrope.train.program.capture import _flatten

__all__ = ["ConstantDraws", "compare", "made_data"]

aten = torch.ops.aten
_ROWS = 3
# By which sums of one program may differ, in float32 and in half precision.
_ROUNDING, _HALF_ROUNDING = 2e-3, 5e-2


def compare(
    executor: Any,
    model: nn.Module,
    loss: Callable[..., Any],
    example: tuple[Any, ...],
    parameters: Parameters,
) -> None:
    """example: a batch of the shapes that will come; none of its values is used."""
    rows = min(_ROWS, executor.size)
    batch = made_data(example, rows)
    leaves, build = _flatten(batch)
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    with exact_layers(), ConstantDraws():
        found, _ = executor.clipped_sum(batch, FlatClip(1e12), 1)
        wanted = [torch.zeros_like(p, dtype=torch.float64) for p in executor.parameters]
        for row in range(rows):
            one = build([leaf[row : row + 1] for leaf in leaves])
            _, gradients = gradients_of_one(model, loss, one, parameters)
            for total, g in zip(wanted, gradients, strict=True):
                if g is not None:
                    total += g.double()
            with torch.no_grad():  # each example finds them as the program does
                for name, value in model.named_buffers():
                    value.copy_(buffers[name])
    if found.nonfinite or not all(bool(total.isfinite().all()) for total in wanted):
        return  # made data show nothing: a logarithm of zero, say
    half = any(full_precision(p).dtype is not p.dtype for p in model.parameters())
    off = _length([a.double() - b for a, b in zip(found.sums, wanted, strict=True)])
    size = _length(wanted)
    if off > (_HALF_ROUNDING if half else _ROUNDING) * size + 1e-12:
        raise InvalidInput(
            f"On made data the {executor.how} executor's sum of gradients differs from that of one "
            f"example at a time by {off:.3g}, where the sum is {size:.3g} long. The program that "
            "was captured does not do what the loss does in Python; please open an issue with the "
            'model. Until then give isolation="one at a time".'
        )


def _length(values: list[Tensor]) -> float:
    return math.sqrt(sum(float(v.square().sum()) for v in values))


def made_data(example: tuple[Any, ...], rows: int) -> tuple[Any, ...]:
    """Rows of the same form: random numbers, zeros and ones for whole numbers and truth values."""
    leaves, build = _flatten(example)
    chance = torch.Generator(device="cpu").manual_seed(0)
    made = []
    for leaf in leaves:
        shape = (rows, *leaf.shape[1:])
        if leaf.is_floating_point() or leaf.is_complex():
            value = torch.rand(shape, generator=chance, device="cpu")
        else:
            value = torch.randint(0, 2, shape, generator=chance, device="cpu")
        made.append(value.to(device=leaf.device, dtype=leaf.dtype))
    built: tuple[Any, ...] = build(made)
    return built


@final
class ConstantDraws(TorchDispatchMode):
    """Inside, random operators give constants that depend on nothing but their arguments."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **named)
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            x, p, train = args
            if train is False or p == 0:
                return x.clone(), torch.ones_like(x, dtype=torch.bool)
            kept = torch.full_like(x, p < 1, dtype=torch.bool)
            return x * kept / (1.0 - p if p < 1 else 1.0), kept
        if name in ("bernoulli_", "bernoulli"):
            out = args[0] if name.endswith("_") else torch.empty_like(args[0])
            return out.fill_(1)
        if "scaled_dot_product" in name or name == "rrelu_with_noise":
            return func(*args, **named)
        out = func(*args, **named)
        return out.fill_(0.5 if out.is_floating_point() else 0) if isinstance(out, Tensor) else out
