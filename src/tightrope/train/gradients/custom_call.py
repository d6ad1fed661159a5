"""A call of a module of the user's own, to be done again: for each example, and for a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from tightrope.train.feed import tensors_of, with_tensors

__all__ = ["Batched", "Call", "own_parameters"]

Batched = tuple[bool, ...]  # for each tensor among the arguments: does it carry the batch?


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters that belong to the module itself, not to a child."""
    return {n: p for n, p in module._parameters.items() if p is not None and p.requires_grad}


@final
@dataclass(frozen=True)
class Call:
    """A module and what it was called with."""

    module: nn.Module
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    wanted: tuple[int, ...]
    autocast: tuple[str, bool, torch.dtype]

    @cached_property
    def tensors(self) -> list[Tensor]:
        return tensors_of((self.arguments, self.named))

    def choices(self, batch: int) -> Iterator[Batched]:
        """Which arguments may carry the batch: first all that are as long, then fewer."""
        long = [i for i, x in enumerate(self.tensors) if x.dim() > 0 and len(x) == batch]
        for left_out in range(len(long)):
            for without in combinations(long, left_out):
                yield tuple(i in long and i not in without for i in range(len(self.tensors)))

    def of_each(self, choice: Batched, grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """(B, *shape) for each parameter."""
        flat = [x.detach() for x, taken in zip(self.tensors, choice, strict=True) if taken]

        def one(*parts: Tensor) -> tuple[Tensor, ...]:
            inputs = iter(parts[: len(flat)])
            mine = [
                next(inputs)[None] if taken else x.detach()
                for x, taken in zip(self.tensors, choice, strict=True)
            ]
            _, back = vjp(self._run(mine, only=True), *self._parameters())
            return back(tuple(parts[len(flat) :]))  # type: ignore[no-any-return]

        return vmap(one)(*flat, *grads)  # type: ignore[no-any-return]

    def of_all(self, tensors: list[Tensor], grads: list[Tensor]) -> tuple[Tensor, ...]:
        """The gradient of a whole batch, as the module itself computes it."""
        whole = [x.detach() for x in tensors]
        _, back = vjp(self._run(whole, only=False), *self._parameters())
        return back(tuple(grads))  # type: ignore[no-any-return]

    def outputs(self) -> tuple[Tensor, ...]:
        """What the module gives to the whole batch by now."""
        return self._run([x.detach() for x in self.tensors], only=False)(*self._parameters())

    def _parameters(self) -> list[Tensor]:
        return [p.detach() for p in own_parameters(self.module).values()]

    def _run(self, tensors: list[Tensor], *, only: bool) -> Callable[..., tuple[Tensor, ...]]:
        """only: whether there is one example, whose outputs are wanted without the batch."""
        names = list(own_parameters(self.module))
        args, kwargs = with_tensors((self.arguments, self.named), tensors)
        kind, enabled, dtype = self.autocast[0], self.autocast[1], self.autocast[2]

        def run(*params: Tensor) -> tuple[Tensor, ...]:
            mine = dict(zip(names, params, strict=True))
            with torch.autocast(kind, dtype, enabled=enabled):
                out = functional_call(self.module, mine, args, kwargs, tie_weights=False)
            outs = tensors_of(out)
            if only and any(len(outs[i]) != 1 for i in self.wanted):
                raise ValueError("one example gives several rows")
            return tuple(outs[i][0] if only else outs[i] for i in self.wanted)

        return run
