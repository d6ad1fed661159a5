"""What the graph of gradients cannot show: mixing before the first trainable layer.

There the data have no gradient, so statistics of the batch (a standardisation in forward(), batch
norm of a frozen backbone) pass the engine's own check. Here the model itself is asked: its answer
for one example must not move when another example is replaced.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from tightrope.errors import ModelNotPrivate
from tightrope.train.feed import tensors_of, with_tensors
from tightrope.train.gradients.independence import check_examples_independent
from tightrope.train.gradients.recorder import unseen
from tightrope.train.sharded import is_sharded

__all__ = ["Watch"]

# Training forward passes between two checks; each check costs two passes.
CHECK_EVERY = 1000
# Relative: kernels may sum in another order.
ROUNDING = 1e-3


@final
class Watch:
    """Hooks on a model that keep batch statistics out, as long as they are not removed.

    Sharded models are not run again: that would have to wait for the other ranks.
    """

    def __init__(self, model: nn.Module) -> None:
        self._rows = _RowsApart()
        self._handles: list[Any] = []
        if not any(is_sharded(parameter) for parameter in model.parameters()):
            self._handles.append(model.register_forward_hook(self._rows, with_kwargs=True))
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
    """A forward hook that now and then replaces an example and looks at the others' rows."""

    def __init__(self) -> None:
        self._passes, self.busy = 0, False

    @unseen
    def __call__(self, model: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        if self.busy or not (model.training and torch.is_grad_enabled()):
            return
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return
        self._passes += 1
        if self._passes % CHECK_EVERY != 1:
            return
        self.busy = True
        try:
            if not _check(model, args, kwargs, out):
                self._passes -= 1  # nothing to compare yet: try the next pass
        finally:
            self.busy = False


def _check(model: nn.Module, args: Any, kwargs: Any, out: Any) -> bool:
    """Whether there were two rows to compare; raises where one depends on another."""
    answers = [value for value in tensors_of(out) if value.dim()]
    rows = len(answers[0]) if answers else 0
    given = tensors_of((args, kwargs))
    batched = [i for i, value in enumerate(given) if value.dim() and len(value) == rows]
    if rows < 2 or not batched:
        return False

    def answer(inner: nn.Module, *values: Tensor) -> Tensor:
        now = dict(zip(batched, values, strict=True))
        new_args, new_kwargs = with_tensors(
            (args, kwargs), [now.get(i, value) for i, value in enumerate(given)]
        )
        with _same_chance():
            told = tensors_of(inner(*new_args, **new_kwargs))
        flat = [t.flatten(1).float() for t in told if t.dim() and len(t) == rows]
        # an example that is no number to begin with stays so in both answers
        return torch.cat(flat, dim=1).nan_to_num(0.0, 0.0, 0.0)

    values = [given[i].detach() for i in batched]
    found = check_examples_independent(model, *values, losses_of=answer, tolerance=ROUNDING)
    if found.leaks and not _random(model, answer, values):
        raise ModelNotPrivate(
            "The model's output for one example changes when another example of the batch is "
            f"replaced (by {found.largest_change:.2g}), so it mixes examples, perhaps before its "
            "first trainable layer: by statistics of the batch? One example's influence is then "
            "not bounded. Standardise with public constants, and use GroupNorm or LayerNorm."
        )
    return True


def _random(model: nn.Module, answer: Callable[..., Tensor], values: list[Tensor]) -> bool:
    """Does the model draw from a generator of its own? Then it cannot be tested."""
    with torch.no_grad(), torch.random.fork_rng():
        first, second = (_seeded(answer, model, values) for _ in range(2))
    return not torch.allclose(first, second, equal_nan=True)


def _seeded(answer: Callable[..., Tensor], model: nn.Module, values: list[Tensor]) -> Tensor:
    torch.manual_seed(0)
    return answer(model, *values)


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
