"""`Gradients`: clipped per-example gradients from one forward and one backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.clip import Clip
from tightrope.train.gradients.apart import Probes, halves
from tightrope.train.gradients.attach import attach
from tightrope.train.gradients.batch import ClippedBatch, Parts, empty_batch
from tightrope.train.gradients.buffers import keep_freed_memory, scratch_scope
from tightrope.train.gradients.graph import walk_of
from tightrope.train.gradients.junctions import Junction
from tightrope.train.gradients.owners import Owners
from tightrope.train.gradients.passes import Work, book_keeping, sum_of_found, two_pass
from tightrope.train.gradients.picks import moves_rows
from tightrope.train.gradients.plan import BatchPlan, UseSource, make_plan, resolve
from tightrope.train.gradients.recorder import Calls, Recorder, Use, stored_in_half
from tightrope.train.gradients.rounding import LARGEST_RHO, longest_chain, no_autocast, no_graph
from tightrope.train.gradients.single import single_example_work
from tightrope.train.gradients.survey import survey
from tightrope.train.gradients.traced import CannotTrace, Left, Traced, left_by, refuse_inside_trace
from tightrope.train.gradients.trained import refuse_hooks, trained
from tightrope.train.gradients.vectors import only_vectors, sum_of_vectors
from tightrope.train.gradients.witness import Witness
from tightrope.validate import check_count

__all__ = ["Gradients"]

_MOST_SCALE = 2.0**60  # the inverse of its square is an ordinary float32
_MOST_PLANS = 1000  # a model that never does the same twice must not fill the memory

_METHODS: dict[str, Callable[[Work, Clip], ClippedBatch]] = {
    "auto": book_keeping,
    "book-keeping": book_keeping,
    "two-pass": two_pass,
}


@final
class Gradients:
    """Attached to a model, turns its per-example losses into a clipped sum of gradients.

    method: "book-keeping" (one backward pass; "auto" is the same) or "two-pass" (a second backward
        pass instead of keeping the output gradients of all layers).
    loss_scale: a power of two (2^-60 to 2^60) by which losses are multiplied during the backward
        pass, against underflow in float16; it is taken out again before clipping.
    views: rows of the model for each example, side by side. Their gradients are added before
        clipping, so that the rows of an example count as one.
    parts: of a sharded model that stays in parts; its run makes it.

    Formal guarantee. With adjacency "add or remove one example", the sums move by at most
    `clip.sensitivity` times 1 + rho in Euclidean norm, for the rho that `chain` was chosen for, in
    float32, bfloat16 and float16 autocast alike (docs/arithmetic.md).

    Example
    -------
    >>> engine = Gradients(model)                                    # doctest: +SKIP
    >>> losses = F.cross_entropy(model(x), y, reduction="none")      # doctest: +SKIP
    >>> batch = engine.clipped_sum(losses, FlatClip(1.0))            # doctest: +SKIP
    """

    bounds_rounding = True  # as docs/arithmetic.md proves

    def __init__(
        self,
        model: nn.Module,
        method: str = "auto",
        *,
        loss_scale: float = 1.0,
        views: int = 1,
        parts: Parts | None = None,
    ) -> None:
        if method not in _METHODS:
            raise InvalidInput(f"method is {method!r}; it must be one of {sorted(_METHODS)}")
        if math.frexp(loss_scale)[0] != 0.5 or not 1 / _MOST_SCALE <= loss_scale <= _MOST_SCALE:
            raise InvalidInput(
                f"loss_scale is {loss_scale}; it must be a power of two from 2^-60 to 2^60, so "
                "that taking it out of squared norms again loses none of them"
            )
        named = trained(model)
        self.names, self.parameters = list(named), list(named.values())
        refuse_hooks(self.names, self.parameters)
        self.loss_scale, self.views = float(loss_scale), check_count(views, "views", low=1)
        self._run = _METHODS[method]
        self._rows = {id(p): i for i, p in enumerate(self.parameters)}
        self._names_by_id = {id(p): n for n, p in named.items()}
        self._half = any(map(stored_in_half, model.parameters()))  # also those that are frozen
        self.in_half = False  # whether the last pass ran in half precision on a GPU
        self.half_inside = False  # or anywhere
        self.lasts = True  # whether the last plan may be kept
        self.chooses_rows = False  # whether numbers that come with the data may have moved rows
        self._plans: dict[tuple[int, ...], BatchPlan] = {}
        self._probes = Probes()
        self._parts = parts
        self._recorder = Recorder(model, awake=None if parts is None else lambda: parts.open)
        self._remove = attach(model, self._recorder)
        keep_freed_memory()

    def detach(self) -> None:
        """Remove every hook; the model is as it was."""
        self._remove()
        self._recorder.take()

    def forget(self) -> None:
        """Drop what forward passes left since the last clipped_sum."""
        self._recorder.take()

    @contextmanager
    def anew(self) -> Iterator[None]:
        """Inside nothing is known of the model, and all is looked at; after it what was known."""
        before, self._plans = self._plans, {}
        try:
            yield
        finally:
            self._plans = before
            self.forget()

    def clipped_sum(
        self,
        losses: Tensor,
        clip: Clip,
        *,
        present: Tensor | None = None,
        chain: int | None = None,
        owners: Owners | None = None,
    ) -> ClippedBatch:
        """losses: (B,), one for each example, from a forward pass just run in training mode.

        owners: whose the rows of that pass were; by default `views` of each example, side by side.

        chain: how many examples one float32 chain may add (0: add in float64); by default so many
        that rounding stays within `rounding.LARGEST_RHO` of the clip norm for this batch alone.

        present: (B,) of a padded batch: True where a row is an example. The other rows contribute
        exactly zero. Nothing then waits for the device, so the caller must check `health`.
        """
        _check_losses(losses)
        chain = longest_chain(losses.shape[0], LARGEST_RHO) if chain is None else chain
        calls = self._recorder.calls
        uses = self._recorder.take()
        self.in_half = False
        if losses.shape[0] == 0:
            return empty_batch(self.parameters, self._parts)
        owners = Owners(losses.shape[0], self.views) if owners is None else owners
        self._check_ran(losses, uses, owners)
        self.in_half = _on_gpu(losses) and (
            self._half or stored_in_half(losses) or any(use.half for use in uses)
        )
        self._recorder.paused = True  # recomputation inside the backward pass is not a new use
        try:
            work = self._work(losses, uses, calls, owners, checked=present is None)
            work.present, work.chain, work.parts = present, chain, self._parts
            uses.clear()  # what a layer read is freed as soon as its gradient is formed
            with no_graph(), no_autocast(losses.device):
                if self._run is book_keeping and work.parts is None and only_vectors(work, clip):
                    return sum_of_vectors(work, clip)
                with scratch_scope():
                    batch = self._run(work, clip)
            if self._parts is not None:
                self._parts.look_at(batch)
            return batch
        finally:
            self._recorder.paused = False

    def traced(self, losses: Callable[..., Tensor], batch: tuple[Any, ...]) -> Traced:
        """Forward and backward pass on batches of these shapes as a graph that can be compiled.

        losses: from a batch to one loss for each example. A clipped_sum of such a batch must have
        gone before: it looks whether the model can be trained privately, and a trace cannot.
        """
        if self._run is not book_keeping:
            raise CannotTrace("two backward passes are not one graph")

        self.forget()
        try:
            held = {buffer.data_ptr() for buffer in self._recorder.root.buffers()}
            return Traced(losses, self._left_by, batch, held)
        finally:
            self.forget()

    def _left_by(self, losses: Tensor) -> list[Left]:
        calls, uses = self._recorder.calls, self._recorder.take()
        owners = Owners(len(losses), self.views)
        self._check_ran(losses, uses, owners)
        self._recorder.paused = True
        try:
            work = self._work(losses, uses, calls, owners, checked=False)
            with torch.no_grad(), no_autocast(losses.device):
                return left_by(work)
        finally:
            self._recorder.paused = False

    def clipped_sum_of(
        self, traced: Traced, batch: tuple[Any, ...], clip: Clip, *, present: Tensor, chain: int
    ) -> tuple[ClippedBatch, Tensor]:
        """clipped_sum by a traced pass, and the losses."""
        self._recorder.paused = True  # a rule may run a module again, which is not a new use
        try:
            with torch.no_grad(), no_autocast(self.parameters[0].device), scratch_scope():
                losses, found = traced(batch, self.views)
                owners = Owners(len(losses), self.views)
                work = Work(losses, self.parameters, self._rows, [], [], self.loss_scale, owners)
                work.present, work.chain = present, chain
                return sum_of_found(work, found, clip), losses
        finally:
            self._recorder.paused = False

    def _work(
        self, losses: Tensor, uses: list[Use], calls: Calls, owners: Owners, *, checked: bool
    ) -> Work:
        """checked: whether the plan may be made anew although one is there, which takes time."""
        if losses.shape[0] == 1:
            return single_example_work(self.parameters, losses, uses, self.loss_scale, owners)
        plan, ways = self._planned(losses, uses, calls, owners, checked)
        self.half_inside = plan.half or self._half or stored_in_half(losses)
        self.in_half = self.in_half or (_on_gpu(losses) and plan.half)
        self.chooses_rows, self.lasts = plan.picks, plan.lasts
        kept = plan.counted(uses)
        ends = frozenset(map(uses.__getitem__, plan.ends))
        return Work(
            losses, self.parameters, self._rows, kept, ways, self.loss_scale, owners, plan.shared,
            ends=ends, hooked=plan.hooked,
        )  # fmt: skip

    def _planned(
        self, losses: Tensor, uses: list[Use], calls: Calls, owners: Owners, checked: bool
    ) -> tuple[BatchPlan, list[tuple[UseSource, Junction]]]:
        key = self._kind_of(losses, uses, walk_of(losses) if checked else 0)
        plan = self._plans.get(key)
        if plan is not None and not (checked and self._due(plan, losses, owners.rows)):
            ways = resolve(plan, losses, owners.rows) if plan.fits(uses, owners.rows) else None
            if ways is not None:
                return plan, ways
        refuse_inside_trace()
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        plan = self._look(losses, uses, calls, owners, plan)
        if plan.lasts:
            self._plans[key] = plan
            self._plans[0, *key[1:]] = plan  # for a step that is recorded after it
        ways = resolve(plan, losses, owners.rows)
        assert ways is not None
        return plan, ways

    def _due(self, plan: BatchPlan, losses: Tensor, rows: int) -> bool:
        """Whether a batch is looked at although a plan is there."""
        return self._probes.due(plan.conclusive) or (plan.picks and moves_rows(losses, rows))

    def _kind_of(self, losses: Tensor, uses: list[Use], walk: int) -> tuple[int, ...]:
        """Which layers and operations ran: others need a plan of their own.

        walk: 0 in a step that is recorded, which runs the same operations whenever it is replayed.
        """
        assert losses.grad_fn is not None
        operations = losses.grad_fn._sequence_nr() - self._recorder.started
        return (walk, operations, *[id(use.owner) for use in uses])

    def _look(
        self, losses: Tensor, uses: list[Use], calls: Calls, owners: Owners, known: BatchPlan | None
    ) -> BatchPlan:
        """A plan for this batch; a quick look can confirm a known one, never make another."""
        batch = len(losses)
        made = partial(make_plan, losses, uses, self._names_by_id, owners)
        if known is not None and known.conclusive:
            witness = Witness(self._recorder, calls, uses, owners)
            with suppress(ModelNotPrivate):  # the thorough look decides, and says it
                if made([self._probes.half(batch)], witness).same_ways(known):
                    return known.asked_again()
        return made(halves(batch), Witness(self._recorder, calls, uses, owners))

    def _only_broadcast(self, losses: Tensor, rows: int) -> bool:
        """Do all parameters enter in ways that the graph shows, as those of an adapter may?"""
        seen = survey(losses, [], self._names_by_id, (), (), rows)
        return bool(seen.found) and not seen.unknown

    def _check_ran(self, losses: Tensor, uses: list[Use], owners: Owners) -> None:
        refuse_hooks(self.names, self.parameters)
        if self._parts is not None:
            self._parts.check(losses)
        if owners.examples != losses.shape[0]:
            raise InvalidInput(
                f"owners names {owners.examples} examples, but there are {len(losses)} losses."
            )
        if not owners.plain and uses and not any(owners.rows in use.rows for use in uses):
            raise InvalidInput(
                f"The model must run on {owners.rows} rows, all those of the {len(losses)} "
                f"examples side by side; no layer did ({type(uses[0].owner).__name__} ran on "
                f"{uses[0].rows[0]}). With views=K give it K rows for each example: "
                "x.flatten(0, 1) of a batch (B, K, ...), in one call."
            )
        if not uses and losses.requires_grad and not self._only_broadcast(losses, owners.rows):
            raise InvalidInput(
                "no layer was recorded: call the layers themselves (what uses their weights by "
                "functional calls is not seen), in model.train() and with gradients enabled, after "
                "Gradients was attached (a model compiled and run before that must be reset with "
                "torch.compiler.reset()), and once for each clipped_sum"
            )
        if not losses.requires_grad:
            raise InvalidInput(
                "the losses carry no gradient: the forward pass ran under torch.no_grad() or the "
                "losses were detached"
            )


def _on_gpu(losses: Tensor) -> bool:
    return losses.is_cuda


def _check_losses(losses: object) -> None:
    if not isinstance(losses, Tensor) or not losses.is_floating_point():
        raise InvalidInput(f"losses must be a floating tensor of shape (B,); got {type(losses)}")
    if losses.dim() == 1:
        return
    if losses.dim() == 0:
        raise InvalidInput(
            "losses is a single number: the loss was averaged or summed over the batch already. "
            "Per-example gradients need one loss for each example: use reduction='none'"
        )
    raise InvalidInput(
        f"losses has shape {tuple(losses.shape)}; it must be (B,). Sum or average the losses of "
        "one example over its positions, never over the batch"
    )
