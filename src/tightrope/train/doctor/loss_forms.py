"""How is the user's loss called? As loss(output, y), loss(x, y) or loss(model, x, y)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from tightrope.errors import InvalidInput, TightropeError
from tightrope.train.feed import Rows, to_device
from tightrope.train.losses import LossFunction, losses_on

if TYPE_CHECKING:
    from tightrope.train.feed import Batch
    from tightrope.train.gradients.batch import Engine

__all__ = ["loss_on_batches"]

LossesOf = Callable[[Any], Tensor]
FORMS = "loss(model(x), y), loss(x, y) or loss(model, x, y), for dictionaries loss(model, batch)"


def loss_on_batches(
    model: torch.nn.Module, loss: LossFunction, rows: Rows, engine: Engine, views: int = 1
) -> LossesOf:
    """From a batch to one loss per example, found by trying two examples.

    views: of each example; a loss for each of them is averaged here.
    loss(x, y) is told from loss(output, y) by what it does with raw inputs: it runs the model.
    """
    if not callable(loss):
        raise InvalidInput(f"The loss must be a function: {FORMS}; got {type(loss).__name__}.")
    count = min(2, rows.length)
    batch = _first(rows, count, engine.parameters[0].device)
    parts = _parts(batch)
    if _needs(loss) == len(parts) + 1 and not isinstance(batch, Mapping):
        losses_of: LossesOf = lambda b: loss(model, *_parts(b))  # noqa: E731
    elif _runs_the_model(model, loss, parts):
        losses_of = lambda b: loss(*_parts(b))  # noqa: E731
    else:
        losses_of = lambda b: losses_on(model, loss, b)  # noqa: E731
    losses_of = losses_of if views == 1 else partial(_averaged, losses_of, views)
    _check(losses_of, batch, count)
    getattr(engine, "forget", lambda: None)()
    return losses_of


def _averaged(losses_of: LossesOf, views: int, batch: Batch) -> Tensor:
    losses = losses_of(batch)
    return losses.mean(1) if losses.dim() == 2 and losses.shape[1] == views else losses


def _first(rows: Rows, count: int, device: torch.device) -> Any:
    try:
        return to_device(rows.take(np.arange(count, dtype=np.int64)), device)
    except TightropeError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"The first examples of the data cannot be read ({type(error).__name__}: {error}). "
            "Give a tuple of tensors with one row for each example, or a dataset whose items "
            "0, 1, ... are examples; collate= where they have different lengths."
        ) from error


def _parts(batch: Batch) -> tuple[Any, ...]:
    return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)


def _needs(loss: LossFunction) -> int | None:
    """How many arguments must be given by position; None where nobody can tell."""
    try:
        parameters = inspect.signature(loss).parameters.values()
    except (TypeError, ValueError):
        return None
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in by_place and p.default is inspect.Parameter.empty for p in parameters)


def _runs_the_model(model: torch.nn.Module, loss: LossFunction, parts: tuple[Any, ...]) -> bool:
    ran: list[bool] = []
    inner = getattr(model, "_orig_mod", model)  # of a compiled model
    handle = inner.register_forward_pre_hook(lambda *_: ran.append(True))
    try:
        loss(*parts)
    except TightropeError:
        raise
    except Exception:  # a loss of outputs may do anything when it gets inputs
        return False
    finally:
        handle.remove()
    return bool(ran)


def _check(losses_of: LossesOf, batch: Batch, count: int) -> None:
    try:
        losses = losses_of(batch)
    except TightropeError:
        raise
    except Exception as error:
        raise InvalidInput(
            f"The loss cannot be computed on the first {count} examples "
            f"({type(error).__name__}: {error}). It must be of the form {FORMS}, and answer one "
            "number per example."
        ) from error
    if not isinstance(losses, Tensor) or losses.shape != (count,):
        came = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise InvalidInput(
            f"The loss must give one number per example, shape ({count},) for {count} examples; "
            f"got {came}. Use reduction='none'; forms: {FORMS}."
        )
