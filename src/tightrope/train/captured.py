"""The private step as one CUDA graph: recorded once, then started by a single call.

A small network's step is hundreds of short kernels, and starting each from Python takes longer than
running it. A graph has a fixed shape, and batches have not: a batch is filled up to `size` rows, a
larger one is done in parts. Rows that fill up have factor zero: they add exactly zero to the sum.

What is recorded: forward and backward pass, norms, clip factors and the clipped sums. Noise,
accounting and the update stay outside, one for each batch, as in the ordinary step.

Compiled, the forward and the backward pass are traced as one graph first (`gradients.traced`),
compared with the eager step on the batch at hand, and given to torch's compiler.

Inside a graph nothing can react to a value. If any gradient is not finite, which is read off one
number after the replay, the graph runs again without the examples whose gradients are not.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.adaptive_clip import AdaptiveClip
from tightrope.train.aside import Calm
from tightrope.train.compiled import check_told, compiled_passes
from tightrope.train.cuda_graph import can_record
from tightrope.train.feed import slice_rows, tensors_of
from tightrope.train.gradients import ClippedBatch
from tightrope.train.gradients.traced import (
    CannotTrace,
    Traced,
    capture_unseen,
    said_to_compile,
)
from tightrope.train.held import as_it_was, tensors_held, traceless
from tightrope.train.losses import check_losses
from tightrope.train.padded import AskAgain, PaddedBatch, Program, TextsRead
from tightrope.train.record import StepReport
from tightrope.train.row_places import OutOfPlace, places, refuse_places
from tightrope.train.settings import settings_of
from tightrope.train.strict import refuse
from tightrope.validate import check_count

if TYPE_CHECKING:
    from tightrope.train.clip import Clip
    from tightrope.train.optimizer import PrivateOptimizer

__all__ = ["CapturedStep", "check_capturable"]

Clipped = tuple[ClippedBatch, Tensor]
_MOST_CHANGES = 8  # each takes as long as the first recording
_MOVED = (
    "losses do not come in the order of the rows of the batch, or rows are moved on the way, so "
    "rows that fill up a batch would be counted"
)
_ALIKE = (
    "no batch so far showed whether losses come in the order of the rows: without dropout they are "
    "nearly the same for all rows"
)
_MOST_WAITS = 50  # batches that show too little to record a step with them


def check_capturable(clip: Clip, *, exact: bool) -> None:
    """Refuse what cannot be recorded once. exact: is the run in strict mode?"""
    if exact:
        raise refuse("A captured step", "it computes whole batches")
    if isinstance(clip, AdaptiveClip):
        raise InvalidInput(
            "A captured step has the clip norm recorded in it, and AdaptiveClip changes it at "
            "every step. Leave capture out, or use FlatClip."
        )


@final
class CapturedStep:
    """Call it with the batch that was drawn; see PrivateOptimizer.capture and compile.

    mode: "CUDA graph", "compiled CUDA graph", "compiled", "not captured yet", or "eager: ..." with
        the reason why.
    """

    def __init__(
        self,
        run: PrivateOptimizer,
        losses: Callable[..., Tensor],
        take: Callable[[Callable[[], Clipped]], StepReport],
        size: int | None,
        *,
        compiled: bool = False,
    ) -> None:
        self._run, self._losses, self._take = run, losses, take
        self.size = _room(run.expected_batch_size) if size is None else size
        check_count(self.size, "size", low=2)
        self._chain = run.chain(self.size)
        self._program: Program | None = None
        self._to_look = False  # whether places are to be compared, see `refuse_places`
        self._told = False  # that a batch does not fit
        self._changes = self._waited = 0  # what it takes for granted changed; a batch said little
        self._to_compile = compiled
        self._passes: Traced | None = None  # once they are compiled
        self._surroundings: list[Any] = []
        self.mode = "not captured yet"
        if run.sharding:
            self._stay_eager("parameters that are gathered for each step lie elsewhere each time")
        elif not can_record(run.device) and not compiled:
            self._stay_eager(f"CUDA graphs need a CUDA device, and the model is on {run.device}")

    def __call__(self, *batch: Any) -> StepReport:
        """Take the private step; eagerly where the loop that called is rehearsed."""
        if self._run.company.size is not None:
            return self._run.step(self._losses(*batch))
        _check_rows(batch, self._run.next_size)
        for part in self._run.split_next(self.size):
            ticket = self._run.next_ticket()
            alone = ticket.size == ticket.whole  # else its sums wait for those of other parts
            clipped = partial(self._clipped, slice_rows(batch, part), alone=alone)
            report = self._take(clipped)
        return report

    def _clipped(self, batch: tuple[Any, ...], *, alone: bool) -> Clipped:
        rows = len(tensors_of(batch)[0])
        if rows == 0 or not self._ready(batch):
            return self._eagerly(batch, rows)
        assert self._program is not None
        if self._to_look and rows > 1:
            charged = self._run.arithmetic.charged(self._run.clip.sensitivity)
            with as_it_was(self._run.model):
                refuse_places(self._program, batch, charged)
            self._to_look = False
        try:
            return self._program.run(batch, alone=alone)
        except OutOfPlace:
            self._program = self._passes = None
            self._stay_eager(_MOVED)
            return self._eagerly(batch, rows)

    def _eagerly(self, batch: tuple[Any, ...], rows: int) -> Clipped:
        run = self._run
        if rows == 0:
            losses = torch.zeros(0, device=run.device, requires_grad=True)
        else:
            losses = check_losses(self._losses(*batch), rows, run.views)
        return run.checked(losses)

    def _ready(self, batch: tuple[Any, ...]) -> bool:
        """Whether the graph computes what this batch needs; recorded if there is none yet."""
        if self.mode.startswith("eager"):
            return False
        if self._run.chain() < self._chain:  # room for batches twice as large
            self._chain = self._run.chain() // 2
        here = self._surroundings_now()
        if self._program is None or here != self._surroundings:
            self._changes += self._program is not None
            if self._changes > _MOST_CHANGES:
                self._stay_eager("the model, its settings or the clip change again and again")
                return False
            self._record(batch)
            self._surroundings = here
            half = getattr(self._run.gradients, "in_half", False)
            self._to_look = half and self._run.arithmetic.name == "bounded"
        if self._program is None or self._program.fits(batch):
            return self._program is not None
        if not self._told:
            self._told = True
            warnings.warn("A batch has other shapes, names or values than the one that was "
                          "recorded; such batches run eagerly, with the same result",
                          stacklevel=5)  # fmt: skip
        return False

    def _surroundings_now(self) -> list[Any]:
        """Everything outside the batch that a recorded graph has taken for granted."""
        clip = self._run.clip  # its sensitivity too: the object may have changed inside
        modules = settings_of(self._run.model)
        kind = self._run.device.type
        precision = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        return [clip, float(clip.sensitivity), modules, self._chain, precision]

    def _record(self, batch: tuple[Any, ...]) -> None:
        self._program = self._passes = None  # their memory is free for the next
        padded = PaddedBatch(batch, self.size)
        program = Program(self._compute, padded, tensors_held(self._run.model))
        try:
            with as_it_was(self._run.model):  # a counter counts steps, not these passes
                self._prepare(program, padded)
        except AskAgain:
            self._passes = None  # this batch runs eagerly: where its rows go was not seen
        except TextsRead:
            self._stay_eager("the losses read texts of the batch, which cannot be filled up")

    def _prepare(self, program: Program, batch: PaddedBatch) -> None:
        if not program.settle(partial(settings_of, self._run.model)):  # or the model is refused
            self._stay_eager(
                "the model changes a setting of its own (a counter in Python?) in every forward "
                "pass, and a recorded step would leave it as it is; keep it in a buffer instead"
            )
            return
        # Python may read values of it, or the fillers of a random model be elsewhere
        alike = (self._to_compile or not program.steady) and batch.all_alike
        if alike or not getattr(self._run.gradients, "lasts", True):
            self._wait()
            self._stay_eager(
                "no batch so far showed enough of the model to record it (its rows are all equal, "
                "or rows that it makes of an example have no gradient)"
            )
            return
        if getattr(self._run.gradients, "chooses_rows", False):
            self._stay_eager(
                "the model chooses rows of the batch by numbers that come with the data, and only "
                "an eager step can check where they go"
            )
            return
        trouble = self._compile(program, batch) if self._to_compile else None
        recorded = can_record(self._run.device)
        if trouble is not None and not recorded:
            self._stay_eager(trouble)
        elif (moved := self._moved(program, batch)) is not None:
            self._passes = None
            self._stay_eager(moved)
        elif recorded:
            if trouble is not None:
                warnings.warn(f"{trouble}; it is captured as it is, with the same result",
                              stacklevel=5)  # fmt: skip
            self._capture(program)
        else:
            self._program, self.mode = program, "compiled"

    def _moved(self, program: Program, batch: PaddedBatch) -> str | None:
        """Why rows that fill up may be counted; None: they are not."""
        found = places(self._calm_losses, batch)
        if found in ("random", "alike") and (program.steady or self._passes is not None):
            return None  # every run shows where they are, or the trace did
        if found == "alike":
            self._wait()
            return _ALIKE
        if found == "random":
            return (
                "the model is random beside its dropout layers, so nobody sees whether losses come "
                "in the order of the rows; draw in a layer that does not in evaluation mode"
            )
        return None if found == "kept" else _MOVED

    def _wait(self) -> None:
        """Another batch may show more; not for ever."""
        self._waited += 1
        if self._waited < _MOST_WAITS:
            raise AskAgain

    def _compile(self, program: Program, batch: PaddedBatch) -> str | None:
        """Why not, where that fails: anything may go wrong in a compiler."""
        try:
            self._passes = compiled_passes(self._run, self._each, self._compute, batch)
        except AskAgain:
            raise
        except Exception as error:
            self._to_compile = False
            self._run.gradients.forget()
            return f"the step could not be compiled ({_first_line(error)})"
        return None

    def _capture(self, program: Program) -> None:
        try:
            self._try_to_capture(program)
        except RuntimeError as error:
            self._run.gradients.forget()
            self._stay_eager(f"the step could not be captured ({_first_line(error)})")
        else:
            compiled = "" if self._passes is None else "compiled "
            self._program, self.mode = program, f"{compiled}CUDA graph"

    def _try_to_capture(self, program: Program) -> None:
        try:
            with capture_unseen():  # else a model may go ways that no warm-up went
                program.capture()
            return
        except RuntimeError as error:  # whose frames hold memory as long as it is here
            why = _first_line(error)
        self._run.gradients.forget()
        self._check_told(program, why)
        with said_to_compile():  # it may ask for no values then
            program.capture()

    def _check_told(self, program: Program, why: str) -> None:
        """Raise `why` unless the model gives the same once it is told that it is compiled."""
        if self._passes is not None:  # it does not run again
            raise RuntimeError(why)
        try:
            check_told(self._run, program.once)
        except (CannotTrace, ModelNotPrivate, RuntimeError):
            self._run.gradients.forget()
            raise RuntimeError(why) from None

    def _each(self, *batch: Any) -> Tensor:
        return check_losses(self._losses(*batch), self.size, self._run.views)

    def _calm_losses(self, batch: tuple[Any, ...], seed: int) -> Tensor:
        """Without dropout, and leaving no trace."""
        calm = Calm(self._run.model)
        try:
            torch.clear_autocast_cache()
            with traceless(self._run.model, seed=seed):
                return self._each(*batch)
        finally:
            calm.end()

    def _compute(self, batch: tuple[Any, ...], present: Tensor) -> Clipped:
        how: Any = {"present": present, "chain": self._chain}
        if self._passes is not None:
            engine: Any = self._run.gradients  # the one whose passes they are
            found: Clipped = engine.clipped_sum_of(self._passes, batch, self._run.clip, **how)
            return found
        torch.clear_autocast_cache()  # weights are cast in every run, as in the one recorded
        losses = self._each(*batch)
        return self._run.clipped(losses, **how), losses.detach()

    def _stay_eager(self, reason: str) -> None:
        self.mode = f"eager: {reason}"
        warnings.warn(f"{reason}; every step runs eagerly instead, with the same result",
                      stacklevel=4)  # fmt: skip


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _room(expected: float) -> int:
    """Three deviations above the mean of a Poisson batch, in multiples of 16."""
    return 16 * math.ceil((expected + 3 * math.sqrt(expected)) / 16)


def _check_rows(batch: tuple[Any, ...], rows: int) -> None:
    tensors = tensors_of(batch)
    if not tensors or any(t.dim() == 0 or len(t) != rows for t in tensors):
        raise InvalidInput(
            f"The sampler drew {rows} examples for this step, and the batch has tensors of shapes "
            f"{[tuple(t.shape) for t in tensors]}. Pass the batch as it came, with the examples "
            "as first dimension of every tensor; if a step on it was interrupted, call "
            "abandon_batch() and go on with the next."
        )
