"""One look at a model: what does it answer, and what does it write, on these and on other data?"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from tightrope.train.answers import alike, any_half, difference, resized, same
from tightrope.train.feed import fresh, tensors_of, with_tensors
from tightrope.train.held import marks_of, traceless, values_of
from tightrope.train.modes import in_mode
from tightrope.train.wide import CANNOT, Wide

__all__ = ["Look"]

Answer = tuple[list[Tensor], dict[str, Any]]  # outputs, and what was written where


@final
class Look:
    """Runs the model as it is called, and again with some of the examples replaced.

    known: paths that were found harmless before; harmless: the same after this look.
    rows: how many the model answers for.
    """

    def __init__(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        chance: random.Random,
        known: frozenset[str] = frozenset(),
    ) -> None:
        self._model, self._call, self._known = model, (args, kwargs), known
        self._first = self._answer(self._call)
        told = self._first[0]
        self.rows = len(told[0]) if told else 0
        self._batched = [
            i for i, t in enumerate(tensors_of(self._call)) if t.dim() and len(t) == self.rows
        ]
        self._chance = chance
        self._replaced, self._kept = self._halves(1) if self._batched else ([], [])
        self.harmless, self.restless = known, False

    def _halves(self, each: int) -> tuple[list[int], list[int]]:
        """About half of the rows at random, and the others; groups of `each` stay together."""
        blocks = self.rows // each
        chosen = set(self._chance.sample(range(blocks), blocks // 2))
        first = [row for row in range(self.rows) if row // each in chosen]
        return first, [row for row in range(self.rows) if row // each not in chosen]

    def change(self) -> float | None:
        """How far the other examples' answers move, in units of what may be rounding.

        None where there are no two examples to compare, or the model answers the same batch in
        another way each time (`restless`): from draws or a memory that it keeps elsewhere.
        """
        if not self._replaced:
            return None
        moved = self._moved(self._batched)
        if moved <= 1:
            return moved
        if difference(self._first[0], self._answer(self._call)[0], []) > 1:
            self.restless = True
            return None
        self._batched = [i for i in self._batched if not self._is_shared(i)]
        return self._moved(self._batched) if self._batched else None

    def meet_in_groups(self, each: int) -> bool:
        """Whether nothing moves where rows are replaced in groups of `each` side by side."""
        halves = self._halves(each)
        for replaced, kept in (halves, halves[::-1]):
            self._replaced, self._kept = replaced, kept
            if not self._replaced or self._moved(self._batched) > 1:
                return False
        return True

    def _moved(self, batched: list[int]) -> float:
        others = self._answer(self._with_replaced(batched))[0]
        return difference(self._first[0], others, self._kept)

    def grown(self) -> float | None:
        """How far the answers move in a batch half as large again, in units of rounding.

        The last example comes more often. One time more is seen in float32 and small batches
        alone; a share of the batch shows in half precision too, however large the batch is.
        None where that cannot be asked: the model is random beside its dropout layers, or does not
        take such a batch.
        """
        for more in (max(1, self.rows // 2), 1) if self._batched else ():
            with in_mode(self._model, training=True), _no_dropout(self._model):
                try:
                    return self._grown(self._longer(self._batched, more))
                except CANNOT:
                    continue
        return None

    def _grown(self, call: Any) -> float | None:
        """What moves is asked again in float64, which neither autocast nor tf32 touch.

        Float64 must give what float32 gave. Halves may be off by more than a small answer itself.
        """
        told = self._answer(self._call)[0]
        if difference(told, self._answer(self._call, seed=1)[0], []) > 0:
            return None
        longer = self._answer(call)[0]
        moved = resized(told, longer)
        if moved <= 1:
            return moved
        half = self._in_half()
        with suppress(*CANNOT):
            wide = [self._answer(c, wide=True)[0] for c in (self._call, call)]
            if half or (alike(told, wide[0]) and alike(longer, wide[1])):
                return resized(*wide)
        return resized(told, longer, half=half)

    def _in_half(self) -> bool:
        """Does the model compute anything in half precision, whatever it answers in?"""
        with traceless(self._model, self._known):
            told = tensors_of(self._run(self._call))
            return any_half([*self._model.parameters(), *tensors_of(self._call), *told])

    def _run(self, call: Any) -> Any:
        args, kwargs = fresh(call)  # the model may write to them, and they are asked again
        return self._model(*args, **kwargs)

    def _longer(self, batched: list[int], more: int = 1) -> Any:
        given = enumerate(tensors_of(self._call))
        copies = [(t, t[-1:].expand(more, *t.shape[1:])) if i in batched else t for i, t in given]
        grown = [torch.cat(t).detach() if isinstance(t, tuple) else t for t in copies]
        return with_tensors(self._call, grown)

    def _is_shared(self, number: int) -> bool:
        """Is this argument as long as the batch by chance? Then the batch can grow without it."""
        try:
            told = self._answer(self._longer([i for i in self._batched if i != number]))[0]
        except (RuntimeError, ValueError, IndexError):
            return False
        return len(self._batched) > 1 and bool(told) and len(told[0]) == self.rows + 1

    def written(self) -> set[str]:
        """Paths of what depends on the data; the others become harmless."""
        here = self._first[1]
        if not here:
            return set()
        other = self._answer(self._with_all_changed())[1]
        different = {
            path
            for path in here.keys() | other.keys()
            if path not in here or path not in other or not same(here[path], other[path])
        }
        self.harmless = (self._known | here.keys()) - different
        return different

    def _with_replaced(self, batched: list[int]) -> Any:
        """Some examples become strongly changed copies of others."""
        given = tensors_of(self._call)
        source = [self._kept[k % len(self._kept)] for k in range(len(self._replaced))]
        new = list(given)
        for i in batched:
            changed = given[i].detach().clone()
            other = changed[source]
            changed[self._replaced] = other * 3 + 1 if changed.is_floating_point() else other
            new[i] = changed
        return with_tensors(self._call, new)

    def _with_all_changed(self) -> Any:
        """Other values of the same shapes: rows exchanged, and numbers moved."""

        def changed(value: Tensor) -> Tensor:
            value = value.detach()
            if value.is_floating_point():
                return value * 3 + 1
            if value.dim() == 0 or value.numel() == 0:
                return value
            return value[:1].expand_as(value).clone() if len(value) > 1 else value.flip(-1)

        return with_tensors(self._call, [changed(value) for value in tensors_of(self._call)])

    def _answer(self, call: Any, seed: int = 0, *, wide: bool = False) -> Answer:
        """With the same draws each time, and leaving no trace. wide: in float64."""
        with traceless(self._model, self._known, seed):
            before = marks_of(self._model)
            out = Wide(self._model)(self._run, call) if wide else self._run(call)
            told = [t.detach() for t in tensors_of(out) if t.dim() and t.numel()]
            return told, values_of(self._model, before)


@contextmanager
def _no_dropout(model: nn.Module) -> Iterator[None]:
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.training = False
    yield
