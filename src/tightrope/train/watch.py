"""What the graph of gradients cannot show: mixing before the first trainable layer.

There the data have no gradient, so statistics of the batch (a standardisation in forward(), batch
norm of a frozen backbone) pass the engine's own check. Here the model itself is asked: its answer
for one example must not move when another example is replaced.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from tightrope.errors import ModelNotPrivate
from tightrope.train.feed import tensors_of, with_tensors
from tightrope.train.gradients.recorder import unseen
from tightrope.train.sharded import is_sharded

__all__ = ["Watch"]

# Relative: kernels may sum in another order.
ROUNDING = 1e-3
MOST_TRIES = 100


@final
class Watch:
    """Hooks on a model that keep batch statistics out, as long as they are not removed.

    Sharded models are not run again: that would have to wait for the other ranks.
    """

    def __init__(self, model: nn.Module) -> None:
        self._rows = _RowsApart()
        self._handles: list[Any] = []
        if not any(is_sharded(parameter) for parameter in model.parameters()):
            self._rows.handle = model.register_forward_pre_hook(self._rows, with_kwargs=True)
            self._handles.append(self._rows.handle)
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                self._handles.append(module.register_forward_pre_hook(_stay_frozen))

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Let a mixing model pass, for the doctor, who tells more about it."""
        self._rows.busy = True
        try:
            yield
        finally:
            self._rows.busy = False

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


@unseen
def _stay_frozen(module: nn.Module, _: Any) -> None:
    """Batch norm was accepted frozen in evaluation mode; model.train() must not wake it up."""
    if module.training:
        module.eval()


@final
class _RowsApart:
    """Before the first training pass of two examples, replaces one and looks at the others' rows.

    Once is enough: what a model does with its batch lies in its code. Then the hook goes. It also
    goes where examples always come one by one.
    """

    def __init__(self) -> None:
        self.busy, self._tries = False, 0
        self.handle: Any = None

    @unseen
    def __call__(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if self.busy or not (model.training and torch.is_grad_enabled()):
            return
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return
        self.busy = True
        try:
            self._tries += 1
            if _check(model, args, kwargs) or self._tries == MOST_TRIES:
                self.handle.remove()
        finally:
            self.busy = False


@torch.compiler.disable  # with all that it calls
def _check(model: nn.Module, args: Any, kwargs: Any) -> bool:
    """Whether there were two rows to compare; raises where one depends on another."""
    given = tensors_of((args, kwargs))
    rows = max((len(value) for value in given if value.dim()), default=0)
    first = _answer(model, args, kwargs) if rows > 1 else []
    rows = len(first[0]) if first else 0
    if rows < 2 or not any(value.dim() and len(value) == rows for value in given):
        return False
    others = with_tensors((args, kwargs), [_last_replaced(value, rows) for value in given])
    change = _largest_change(first, _answer(model, *others), rows)
    # A model with a generator of its own cannot be tested.
    if change > ROUNDING and _largest_change(first, _answer(model, args, kwargs), rows) == 0:
        raise ModelNotPrivate(
            "The model's output for one example changes when another example of the batch is "
            f"replaced (by {change:.2g} of its size), so it mixes examples, perhaps before its "
            "first trainable layer: by statistics of the batch? One example's influence is then "
            "not bounded. Standardise with public constants, and use GroupNorm or LayerNorm."
        )
    return True


def _last_replaced(value: Tensor, rows: int) -> Tensor:
    """The last example becomes a strongly changed copy of the first."""
    if value.dim() == 0 or len(value) != rows:
        return value
    changed = value.detach().clone()
    changed[-1] = value[0] * 3 + 1 if value.is_floating_point() else value[0]
    return changed


def _largest_change(before: list[Tensor], after: list[Tensor], rows: int) -> float:
    """Relative to the largest value, over all rows but the last."""
    changes = []
    for a, b in zip(before, after, strict=True):
        if len(a) == rows and a.shape == b.shape:
            # an example that is no number to begin with stays so in both answers
            a, b = (t[:-1].double().nan_to_num(0.0, 0.0, 0.0) for t in (a, b))
            changes.append(float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)))
    return max(changes, default=0.0)


def _answer(model: nn.Module, args: Any, kwargs: Any) -> list[Tensor]:
    """What the model says, with the same draws each time, and leaving no trace."""
    buffers = [(value, value.clone()) for value in model.buffers()]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.is_cuda})
    with torch.random.fork_rng(devices=devices), torch.no_grad(), _same_chance():
        torch.manual_seed(0)
        told = [t for t in tensors_of(model(*args, **kwargs)) if t.dim() and t.numel()]
        for value, before in buffers:
            if not torch.equal(value, before):  # a graph may hold it, and would notice a write
                value.copy_(before)
    return told


@contextmanager
def _same_chance() -> Iterator[None]:
    """The generators of Python and NumPy, which some models use, at a common start."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
