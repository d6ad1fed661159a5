"""Strict mode: one example at a time through the proved graph, counted in whole numbers.

The graph runs on two rows that are the same example, and the gradient of the first is taken. No
other example is there, so what comes out is a function of this example and the weights alone,
whoever else was drawn and in which order (docs/arithmetic.md). What is added are whole numbers.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, fx

from tightrope.entropy import open_stream
from tightrope.errors import InvalidInput
from tightrope.train.clip import Clip
from tightrope.train.executors.plain import Parameters, tensors_in
from tightrope.train.gradients.batch import ClippedBatch
from tightrope.train.gradients.forms import scratch_scope
from tightrope.train.gradients.rounding import full_precision, no_autocast, precision_of_products
from tightrope.train.gradients.sums import ClippedSums, losses_of
from tightrope.train.noise import BOUND, on_grid
from tightrope.train.program.capture import Program

ROWS = 2  # for which its program is captured and proved: a program of one row proves nothing


@final
class Strict:
    """Sums of whole numbers (see `grid`) of batches of up to `size` rows.

    program, labels: captured and proved for `ROWS` rows.
    seeds: gives a fresh 64-bit seed for the random draws of each example.

    Formal guarantee. The integer vector of one example has a norm of at most BOUND, checked in
    whole numbers, and depends on that example, its seed and the weights alone.
    """

    how = "strict"

    def __init__(
        self,
        program: Program,
        labels: dict[fx.Node, Any],
        size: int,
        parameters: Parameters,
        seeds: Callable[[], int],
    ) -> None:
        self.sums = ClippedSums(program, labels, ROWS, parameters)
        self.size, self.parameters = size, self.sums.parameters
        self._seeds = seeds
        self._deterministic = Deterministic(self.parameters[0].device)

    def clipped_sum(
        self, batch: tuple[Any, ...], clip: Clip, chain: int
    ) -> tuple[ClippedBatch, Tensor]:
        """Sums in int64, in units of the clip norm over BOUND; chain: of no meaning here."""
        self._deterministic.check()
        leaves, rows = tensors_in(batch, self.size)
        device = self.parameters[0].device
        totals = [torch.zeros_like(p, dtype=torch.int64) for p in self.parameters]
        count = len(self.parameters) if clip.per_parameter else 1
        squares = torch.full((rows,), torch.inf, dtype=torch.float64, device=device)
        factors = torch.zeros(count, rows, dtype=torch.float64, device=device)
        losses = list[Tensor]()
        for row in range(rows):
            start_draws(device, self._seeds())
            gradients, loss = self._alone([leaf[row : row + 1] for leaf in leaves])
            losses.append(loss)
            found = _counted(gradients, clip)
            if found is not None:
                whole, squares[row], factors[:, row] = found
                torch._foreach_add_(totals, whole)
        self._deterministic.check()
        dropped = int((~squares.isfinite()).sum())
        every = torch.cat(losses) if losses else torch.zeros(0, device=device)
        return ClippedBatch(tuple(totals), rows, squares, factors, dropped), every

    def _alone(self, one: list[Tensor]) -> tuple[list[Tensor], Tensor]:
        """The gradient of one example, and its loss."""
        twice = [leaf.expand(ROWS, *leaf.shape[1:]).contiguous() for leaf in one]
        with no_autocast(twice[0].device):
            passed = self.sums.passes(*self.sums.inputs(twice))
            losses = losses_of(passed)[:1]
            with torch.no_grad(), scratch_scope():
                forms = self.sums.forms(passed)
                gradients = [
                    full_precision(forms[row].dense()[0]).reshape(p.shape).clone()
                    if row in forms
                    else torch.zeros_like(p)
                    for row, p in enumerate(self.parameters)
                ]
        return gradients, losses


def start_draws(device: torch.device, seed: int) -> None:
    """The generators of the device and of the processor start at `seed`.

    `torch.manual_seed` would queue a seed for every kind of accelerator that was not used yet, to
    be set when it is used for the first time.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)
    elif device.type != "cpu":
        torch.manual_seed(seed)


@contextmanager
def own_draws(device: torch.device) -> Iterator[None]:
    """Dropout, and what a data set draws, come from fresh secret seeds; generators are put back.

    They are those of torch, and the global ones of Python and NumPy. With a seed that others know,
    one example more would change the masks of all that follow; and the state of a generator after
    a step would tell how many examples there were.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    before = [generator.get_state() for generator in generators]
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (the global one)
    seeds = open_stream("draws").words(3)
    start_draws(device, int(seeds[0]))
    random.seed(int(seeds[1]))
    np.random.seed(seeds[2:].view(np.uint32))  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


@torch.no_grad()
def _counted(gradients: list[Tensor], clip: Clip) -> tuple[list[Tensor], Tensor, Tensor] | None:
    """Whole units, squared norm and factors; None of an example that is not finite or too long."""
    squares = torch.stack([g.double().square().sum() for g in gradients]).unsqueeze(1)
    total = squares.sum(0)
    if not bool(total.isfinite()):
        return None
    factors = clip.factors(squares if clip.per_parameter else total[None])
    units = (factors[:, 0].double() * (BOUND / float(clip.sensitivity))).unbind()
    whole = on_grid(gradients, units if len(units) > 1 else units * len(gradients))
    return None if whole is None else (whole, total[0], factors[:, 0].double())


# ---- the same bits -------------------------------------------------------------------------------


_WORKSPACES = (":4096:8", ":16:8")


@final
class Deterministic:
    """Turns on deterministic algorithms, and finds out whether it is changed how is computed.

    They stay on in this process: what follows is slower at most.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda" and os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in _WORKSPACES:
            raise InvalidInput(
                "Strict mode needs the same bits from the same example. On CUDA, matrix products "
                "give them only if the environment says CUBLAS_WORKSPACE_CONFIG=:4096:8 before "
                "Python starts."
            )
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        self._wanted = _settings()

    def check(self) -> None:
        """Refuse to go on if they were changed."""
        now = _settings()
        if now != self._wanted:
            changed = {key: now[key] for key in now if now[key] != self._wanted[key]}
            raise InvalidInput(
                f"Strict mode fixed how PyTorch computes, and it was changed: {changed}. The same "
                "example could now give other bits than before. Leave these settings alone, or set "
                "them before the run is made."
            )


def _settings() -> dict[str, Any]:
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "only warns": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "threads": torch.get_num_threads(),
        "matrix products": precision_of_products(),
    }
