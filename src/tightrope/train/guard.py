"""Makes it impossible to train on raw gradients by mistake.

Two doors are watched. The optimizer refuses `step()` unless the private step opened it; and no
trainable parameter accepts a raw `.grad`: an ordinary `loss.backward()` raises at once, so a second
optimizer on the same model finds nothing to train on either. `watch` closes a third: statistics of
the batch inside the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, final
from weakref import WeakSet

import torch
from torch import Tensor
from torch.optim import Optimizer

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.watch import Watch

__all__ = ["Guard"]

_guarded_optimizers: WeakSet[torch.optim.Optimizer] = WeakSet()


@final
class Guard:
    """Closed by default; `opened()` lets the private step through."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[Tensor],
        differentiated: Sequence[Tensor],
    ) -> None:
        """parameters: what is stepped; differentiated: the same as the backward pass sees them."""
        if optimizer in _guarded_optimizers:
            raise InvalidInput(
                "This optimizer already belongs to a private run; a second one would step it "
                "without counting. Close the first run with .close(), or build a new optimizer."
            )
        _check_same_parameters(optimizer, parameters)
        self._optimizer, self._open = optimizer, False
        self._watches: list[Watch] = []
        self._broken: Callable[[str], None] = lambda why: None
        self._handles: list[Any] = [optimizer.register_step_pre_hook(self._before_step)]
        for parameter in differentiated:
            register: Any = parameter.register_post_accumulate_grad_hook
            self._handles.append(register(self._raw_gradient))
        _guarded_optimizers.add(optimizer)

    def watch(
        self,
        model: torch.nn.Module,
        broken: Callable[[str], None] | None = None,
        drawn: Callable[[], int] = lambda: 0,
    ) -> None:
        """Also keep statistics of the batch and memory out of the model, as long as it stands.

        broken: told why, when the model or its losses turn out not to be private.
        drawn: how many examples a batch has that comes next; 0 where none does.
        """
        self._broken = self._broken if broken is None else broken
        self._watches.append(Watch(model, self._broken, drawn))
        self._handles.append(self._watches[-1])

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """For the doctor, who finds mixing by other means and tells more about it."""
        with ExitStack() as stack:
            for watch in self._watches:
                stack.enter_context(watch.silent())
            yield

    def opened(self) -> Guard:
        """For a with statement: open inside it."""
        return self

    def __enter__(self) -> None:
        self._open = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open = False
        if isinstance(error, ModelNotPrivate):
            self._broken(str(error))

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        _guarded_optimizers.discard(self._optimizer)

    def _before_step(
        self, optimizer: Optimizer, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        if not self._open:
            raise ModelNotPrivate(
                "This optimizer belongs to a private run; stepping it directly would train on "
                "gradients that are neither clipped nor noisy, and count no privacy. Call "
                "step(losses) of the private run instead."
            )

    def _raw_gradient(self, parameter: Tensor) -> None:
        if not self._open:
            parameter.grad = None
            raise ModelNotPrivate(
                "backward() was called on a model in private training: that writes raw gradients "
                "of private data into .grad. Pass one loss per example to step(losses) instead; "
                "to train in the open again, call .close() on the private run."
            )


def _check_same_parameters(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> None:
    stepped = {
        id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad
    }
    private = {id(p) for p in parameters}
    if stepped - private:
        raise ModelNotPrivate(
            f"The optimizer holds {len(stepped - private)} trainable parameters that are not the "
            "model's; they would be trained without clipping and noise. Build the optimizer from "
            "the parameters of this model only."
        )
    if private - stepped:
        raise InvalidInput(
            f"{len(private - stepped)} trainable parameters of the model are not in the optimizer. "
            "They would use up clip norm and never move. Freeze them with requires_grad_(False) "
            "before wrapping, or give them to the optimizer."
        )
