"""What the graph of gradients cannot show: mixing before the first trainable layer, and memory.

There the data have no gradient, so statistics of the batch (a standardisation in forward(), batch
norm of a frozen backbone) pass the engine's own check; and what a forward pass writes into the
model (a running mean, a codebook) reaches later steps and the published model without noise. Here
the model itself is asked, before the first training pass and at random ones later: with half of
the examples replaced, its answers for the others must not move, nor what it writes.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import nn

from tightrope.errors import ModelNotPrivate
from tightrope.train.cuda_graph import recording
from tightrope.train.gradients.recorder import unseen
from tightrope.train.held import untraced
from tightrope.train.look import Look
from tightrope.train.sharded import is_sharded

__all__ = ["CHANCE", "Watch"]

# A training pass is looked at with this probability, at the price of two forward passes.
CHANCE = 1 / 500
GROWN = 1 / 4  # of the later looks also change the size of the batch, for three passes more
MOST_TRIES = 100  # until a pass has two examples to compare


@final
class Watch:
    """Hooks on a model that keep batch statistics and memory out, until they are removed.

    broken: told why, when something is found. drawn: how many examples the pass is for, if known.
    Sharded models are not run again, which would have to wait for the other ranks: whatever they
    write into their buffers is refused.
    """

    def __init__(
        self,
        model: nn.Module,
        broken: Callable[[str], None] = lambda why: None,
        drawn: Callable[[], int] = lambda: 0,
    ) -> None:
        self._broken, self._drawn, self._busy = broken, drawn, False
        self._looks = not any(is_sharded(parameter) for parameter in model.parameters())
        self._chance = random.Random()  # seeded by the system
        self._tries, self._seen, self._told = 0, False, False
        self._harmless: frozenset[str] = frozenset()
        self._buffers = [
            (f"{name}.{key}".lstrip("."), module._buffers, key)
            for name, module in model.named_modules()
            for key, _ in module.named_buffers(recurse=False)
        ]
        self._versions: list[Any] = []
        self._handles: list[Any] = self._hooks(model)
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                self._handles.append(module.register_forward_pre_hook(_stay_frozen))

    def _hooks(self, model: nn.Module) -> list[Any]:
        """Functions, which stay the same in a copy of the model; the copy is none of ours."""

        @unseen
        def before(caller: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            due = self._due()  # first, since most passes are not looked at
            if (due or self._buffers) and caller is model and not self._idle(model):
                self._before(model, args, kwargs, due)

        @unseen
        def after(
            caller: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
        ) -> None:
            if caller is model and not self._idle(model):
                self._after(model, args, kwargs)

        handles: list[Any] = [model.register_forward_pre_hook(before, with_kwargs=True)]
        if self._buffers:
            handles.append(model.register_forward_hook(after, with_kwargs=True))
        return handles

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Let everything pass, for the doctor, who tells more about it."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    @unseen
    def _before(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], due: bool
    ) -> None:
        if due:
            self._tries += 1
            self._look(model, args, kwargs)
        if self._buffers:
            self._versions = self._marks()

    @unseen
    def _after(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A buffer that is written to for the first time is looked at, whenever that is."""
        if self._versions == (now := self._marks()):
            return
        pairs = zip(self._buffers, self._versions, now, strict=True)
        written = {path for (path, *_), a, b in pairs if a != b} - self._harmless
        if written and self._looks:
            self._look(model, args, kwargs)
        if written - self._harmless:
            self._refuse(_WRITTEN.format(", ".join(sorted(written - self._harmless))))

    def _marks(self) -> list[Any]:
        held = [holder[key] for _, holder, key in self._buffers]
        return [None if value is None else (id(value), value._version) for value in held]

    @unseen
    def _idle(self, model: nn.Module) -> bool:
        if self._busy or not (model.training and torch.is_grad_enabled()) or untraced():
            return True
        return recording()

    def _due(self) -> bool:
        """At first until two examples have been compared, then by chance."""
        early = not self._seen and self._tries < MOST_TRIES
        return self._looks and (early or self._chance.random() < CHANCE)

    @torch.compiler.disable  # with all that it calls
    def _look(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        look = Look(model, args, kwargs, self._chance, self._harmless)
        change, written = look.change(), look.written()
        if change is not None and change > 1:
            self._refuse(self._mixed(look))
        if look.restless and not self._told:
            self._told = True
            warnings.warn(_RESTLESS, stacklevel=2)
        if not self._seen or self._chance.random() < GROWN:
            grown = look.grown()
            if grown is not None and grown > 1:
                self._refuse(_SIZED)
        if written:
            self._refuse(_WRITTEN.format(", ".join(sorted(written))))
        self._seen = self._seen or change is not None
        self._harmless = look.harmless

    def _mixed(self, look: Look) -> str:
        """Why rows that meet are refused: they may be those of one example."""
        examples = self._drawn()
        each, rest = divmod(look.rows, examples) if examples > 1 else (1, 0)
        if rest or each < 2 or not look.meet_in_groups(each):
            return _MIXED
        return _ROWS.format(rows=look.rows, examples=examples, each=each)

    def _refuse(self, why: str) -> None:
        self._broken(why)
        raise ModelNotPrivate(why)


@unseen
def _stay_frozen(module: nn.Module, _: Any) -> None:
    """Batch norm was accepted frozen in evaluation mode; model.train() must not wake it up."""
    if module.training:
        module.eval()


_MIXED = (
    "The model's output for one example changes when other examples of the batch are replaced, so "
    "it mixes examples, perhaps before its first trainable layer: by statistics of the batch? One "
    "example's influence is then not bounded. Standardise with public constants, and use GroupNorm "
    "or LayerNorm."
)
_ROWS = (
    "The model ran on {rows} rows for {examples} examples, and rows meet in it, in groups of "
    "{each} side by side. These look like {each} rows for each example. If each group is one "
    "example, give the model whole examples, shape ({examples}, {each}, ...), and call "
    "x.flatten(0, 1) in forward(), where rows that meet are followed; or keep the rows of an "
    "example apart in the model, and make the run with views={each}. If not, the model mixes "
    "examples, and one example's influence is not bounded."
)
_RESTLESS = (
    "The model answers the same batch in another way each time, although PyTorch's, NumPy's and "
    "Python's generators and all that it holds are put back, so nobody can tell whether it mixes "
    "examples. If a global or a class keeps something of earlier batches (a memory bank, a running "
    "mean), the guarantee is void. Draw from torch's generators, or keep a generator as an "
    "attribute of the model."
)
_SIZED = (
    "The model's output for one example changes when the batch has an example more, so one "
    "example's influence on the others is not bounded. Do not divide by the size of the batch: the "
    "step divides by expected_batch_size."
)
_WRITTEN = (
    "A training forward pass writes to {} what depends on the data (or cannot be shown not to): "
    "neither clipped nor noisy, it reaches later steps and the published model. Fix such "
    "statistics beforehand on public data, make them parameters that are trained by gradients, or "
    "return the values instead of keeping them in the module. What changes in the same way "
    "whatever the data (a counter) may stay."
)
