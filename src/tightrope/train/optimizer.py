"""The private step: clip, add, noise, divide by a public constant, hand to any optimizer.

Formal guarantee: the released quantity of step t is

    (sum over the batch of clipped gradients + N(0, (noise_multiplier * sensitivity)^2)) / constant

with a constant that the user states and that is never read off the batch or the data. Everything
after it (momentum, Adam, weight decay, schedules) is post-processing. Dividing by the realised
batch size instead, as the papers' algorithms do, breaks the theorem they rely on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.evidence.commitment import new_key
from tightrope.process import Process
from tightrope.train.accounted import Accounted
from tightrope.train.adaptive_clip import AdaptiveClip
from tightrope.train.arithmetic import refuse_any_size
from tightrope.train.batch_scale import BatchScale
from tightrope.train.captured import CapturedStep, check_capturable
from tightrope.train.clip import OneNorm, as_tensor
from tightrope.train.company import Company
from tightrope.train.distributed import (
    agree,
    check_one_copy,
    check_ranks_stayed,
    check_splits,
    rank_and_size,
    start_together,
)
from tightrope.train.feed import NOT_STEPPED, Rows, Ticket, first_of, split_ticket, to_device
from tightrope.train.gradients import ClippedBatch
from tightrope.train.gradients.batch import empty_batch
from tightrope.train.gradients.rounding import no_graph
from tightrope.train.guard import Guard
from tightrope.train.ledger import Budget, Ledger, not_private_because
from tightrope.train.losses import check_losses
from tightrope.train.noise import Noise
from tightrope.train.packed import whole
from tightrope.train.parts import check_parts
from tightrope.train.protected import rows_each
from tightrope.train.record import Sensitive, StepReport
from tightrope.train.run_data import Loops, RunData
from tightrope.train.samplers import AbstractSampler, Indices
from tightrope.train.sharded import check_whole, local_part
from tightrope.train.sharding import sharding_of
from tightrope.train.strict import refuse
from tightrope.train.sums import sums_of
from tightrope.train.turn import NotCopied, Turn
from tightrope.train.users import rows_for
from tightrope.validate import check_count, check_positive

if TYPE_CHECKING:
    from tightrope.train.clip import Clip
    from tightrope.train.feed import Data
    from tightrope.train.gradients.batch import Engine
    from tightrope.train.record import RunRecord

__all__ = ["PrivateOptimizer", "WriteAhead"]

# Shown the step and its noisy sums before they are used; may refuse the release by raising.
WriteAhead = Callable[[int, Sequence[Tensor]], None]


@final
class PrivateOptimizer(Accounted, NotCopied):
    """A model, an optimizer, and the parts that make their steps private.

    expected_batch_size: the public constant the noisy sum is divided by, usually rate * (public
    size of the data). It only scales the learning rate; it never enters the privacy.
    gradients: a per-example gradient engine; made for the model when left out.
    history: what was already run on the same data, to be counted in the same budget: the record()
    of an earlier run, or a process.
    arithmetic: "bounded" (the rounding of the sums is bounded, and the noise made larger by it),
    "strict" (one example at a time, whole numbers, no rounding; slow) or "uncovered" (for engines
    and devices whose rounding nobody has bounded); docs/arithmetic.md.
    views: how many rows of the model each example has, such as K augmented copies side by side
    (De et al. 2022). step() then takes losses (B, K); the mean over the views of an example is
    clipped. The record is the example, so the account is the same.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        sampler: AbstractSampler,
        clip: Clip,
        noise: Noise,
        expected_batch_size: float,
        budget: Budget | None = None,
        gradients: Engine | None = None,
        history: Process | RunRecord | None = None,
        arithmetic: str = "bounded",
        views: int = 1,
    ) -> None:
        check_parts(model, optimizer, sampler=sampler, clip=clip, noise=noise, budget=budget)
        check_one_copy(model)
        sampler.check_free()
        self.expected_batch_size = float(check_positive(expected_batch_size, "expected_batch_size"))
        self.sharding = sharding_of(model, arithmetic, noise, gradients)
        self._stepped = [p for p in model.parameters() if p.requires_grad]
        self._held = [local_part(p) for p in self._stepped]
        self._shares = self.sharding.shares(self._stepped)
        beside = self.sharding.differentiated()
        self.sharding.gather()
        self.views = views = rows_each(views, sampler.users)
        self._sums_of = sums_of(
            arithmetic, model, clip, noise, gradients, self.expected_batch_size, views, self._shares
        )
        self.gradients, self.arithmetic = self._sums_of.gradients, self._sums_of.arithmetic
        check_whole(self.gradients.parameters)
        self.guard = Guard(optimizer, self._stepped, [*self.gradients.parameters, *beside])
        self.sharding.release()  # the model now shows whether it is sharded
        self.guard.watch(model, self._found_mixing, lambda: self.next_size if self._tickets else 0)
        self.model, self.optimizer, self.undone = model, optimizer, False
        self.sampler, self.clip, self.noise = sampler, clip, noise
        self.ledger = Ledger(sampler, noise, budget, history)
        self.data, self.data_key, self.loops = RunData(), new_key(), Loops()
        self.sampler_state = sampler.state()
        self.write_ahead: WriteAhead | None = None
        self._tickets: deque[Ticket] = deque()
        self._sums: list[Tensor] | None = None
        self.company = Company(
            model, optimizer, self.gradients.parameters, self._found_mixing,
            sampler=sampler, in_parts=self.sharding.in_parts, meet=self.sharding.finish,
        )  # fmt: skip
        self._scale, self._turn, self._norm = BatchScale(sampler.sampling), Turn(), OneNorm()
        self._rank, self._ranks = rank_and_size()
        if self._ranks > 1:
            check_splits(sampler, noise, self._sums_of.exact)
            sampler.for_rank(self._rank)
            self.sampler_state = sampler.state()
            private = not not_private_because(sampler, noise)
            start_together(model, self.settings() | {"private": private})
        sampler.belong_to(self)
        if isinstance(clip, AdaptiveClip):
            clip.belong_to_a_run()
        self.mark_weights()

    # ---- what runs ---------------------------------------------------------------------------
    def batches(
        self,
        data: Data,
        *,
        steps: int,
        micro_batch: int | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
    ) -> Iterator[Any]:
        """Batches for the next `steps` steps; ends early, and cleanly, when the budget is spent.

        micro_batch: yield at most that many examples at a time. The step is taken when the last
        part of a batch has come; the result is the same. In strict mode it is one.
        collate: makes a batch of a list of items.
        Now and again, and at first, a batch comes to be rehearsed: step() releases nothing then
        (`train.company`). A loop of one step is not rehearsed: nobody looks whether it mixes.
        """
        if micro_batch is not None:
            check_count(micro_batch, "micro_batch", low=1)
        micro_batch = self._sums_of.examples_at_a_time(micro_batch)
        rows = self.watch(data, collate)
        check_ranks_stayed(self._ranks)
        if self._unfinished:
            raise InvalidInput(
                "A batch drawn earlier was never stepped on: was the loop left or interrupted? If "
                "that had nothing to do with what is in the batch, call abandon_batch() and go on."
            )
        loop = self.loops.begin()
        self.ledger.ask(check_count(steps, "steps"))
        for _ in range(steps):
            if self.exhausted:
                return
            indices, whole = self.draw()
            parts = split_ticket(whole, micro_batch)
            looked = self.company.chosen(rows, steps, len(parts))
            for number, (part, ticket) in enumerate(parts):
                self.expect(ticket)
                if number == looked:
                    alive = partial(self.loops.check, loop)
                    yield from self.company.batches(rows, indices[part], self.device, alive)
                self._sums_of.begin()
                yield to_device(rows.take(indices[part]), self.device)
                self.loops.check(loop)
                if self._unfinished:
                    raise InvalidInput(NOT_STEPPED)

    def watch(
        self,
        data: Data,
        collate: Callable[[list[Any]], Any] | None = None,
        *,
        fingerprint: str | None = None,
    ) -> Rows:
        """Take `data` as the private dataset of this run, or see that they still are.

        fingerprint: your name for data that change when they are read, or are too many to read
        twice; the certificate then says that their content was not compared.
        """
        rows, under_way = rows_for(data, collate, self.sampler.users), self.sampler.position > 0
        return self.data.watch(rows, fingerprint, within_epoch=under_way)

    def draw(self) -> tuple[Indices, Ticket]:
        """The next batch and its announcement."""
        return self.data.draw(self.sampler)

    def expect(self, ticket: Ticket) -> None:
        """Announce a drawn part; step() takes announcements in order."""
        self.sharding.gather()
        self.data.drawn = False
        self._tickets.append(ticket)

    @property
    def _unfinished(self) -> bool:
        return bool(self._tickets) or self._turn.open

    @property
    def announced(self) -> int:
        """Steps taken, and those of batches that are drawn already."""
        return self.ledger.taken + sum(ticket.last for ticket in self._tickets)

    @property
    def next_is_empty(self) -> bool:
        """Did the sampler draw nobody for the part that comes next?"""
        return bool(self._tickets) and self._tickets[0].size == 0

    @property
    def next_size(self) -> int:
        """How many examples the part that comes next must have."""
        return self.next_ticket().size if self.company.size is None else self.company.size

    def split_next(self, size: int | None) -> list[slice]:
        """Announce the next batch in parts of at most `size`, each to be stepped on in order."""
        if self._sums_of.exact:
            raise refuse("Splitting a batch", "what is cut out of a batch is not an example alone")
        parts = split_ticket(self._tickets.popleft(), size)
        self._tickets.extendleft(reversed([ticket for _, ticket in parts]))
        return [part for part, _ in parts]

    def step_empty(self) -> StepReport:
        """The step of an empty batch, for models that cannot run on no examples."""
        return self.step(torch.zeros(0, device=self.device, requires_grad=True))

    @property
    def device(self) -> torch.device:
        return self.gradients.parameters[0].device

    def step(self, losses: Tensor) -> StepReport:
        """Take the private step on one loss per example (and view) of the batch that was drawn."""
        if self.company.size is not None:
            return self._rehearse(losses)
        losses = check_losses(losses, self.next_ticket().size, self.views)
        return self._take(lambda: self.checked(losses))

    def _rehearse(self, losses: Tensor) -> StepReport:
        """Nothing is released: an example alone is compared with the same in its batch."""
        losses = check_losses(losses, self.next_size, self.views)
        with self.guard.opened():
            self.company.take(losses)
        self.gradients.forget()
        nobody = empty_batch(self.gradients.parameters, self._shares)
        return StepReport(self.steps + 1, False, Sensitive(nobody, losses.detach()))

    def checked(self, losses: Tensor) -> tuple[ClippedBatch, Tensor]:
        self._scale.check(losses, last=self.next_ticket().last)
        return self.clipped(losses), losses.detach()

    def clipped(self, losses: Tensor, **how: Any) -> ClippedBatch:
        """The clipped sum of the part that comes next, in chains that its batch allows."""
        result = self.gradients.clipped_sum(losses, self.clip, **{"chain": self.chain()} | how)
        if "present" not in how and not self.undone:  # as many rows as were drawn, and it counts
            refuse_any_size(self.arithmetic, self.gradients)
        return result

    def chain(self, examples: int | None = None) -> int:
        """Examples that one float32 chain may add in a batch of so many, or in the next one."""
        whole = self.next_ticket().whole if examples is None else examples
        return self.arithmetic.chain(whole, self._ranks)

    def capture(self, losses: Callable[..., Tensor], *, size: int | None = None) -> CapturedStep:
        """A step that runs as one CUDA graph: `captured(*batch)` instead of `step(losses(*batch))`.

        losses: from a batch to one loss per example. It runs in Python a few times only, so what it
        and the model do must not depend on anything but tensors.
        size: examples computed at a time, always that many; batches are padded and split. By
        default room for nearly every Poisson batch.
        """
        check_capturable(self.clip, exact=self._sums_of.exact)
        return CapturedStep(self, losses, self._take, size)

    def compile(self, losses: Callable[..., Tensor], *, size: int | None = None) -> CapturedStep:
        """The same with forward and backward pass compiled by torch.compile's compiler first.

        It takes a minute or two. What cannot be compiled is captured as it is; a warning says why.
        """
        check_capturable(self.clip, exact=self._sums_of.exact)
        return CapturedStep(self, losses, self._take, size, compiled=True)

    def _found_mixing(self, why: str) -> None:
        """What was released before may have been mixed as well."""
        if self.ledger.released:
            self.ledger.forfeit([f"found after {self.ledger.released} steps: {why}"])

    def next_ticket(self) -> Ticket:
        return first_of(self._tickets)

    def _take(self, clipped: Callable[[], tuple[Any, Tensor]]) -> StepReport:
        """One part of a batch, whose clipped sum and losses are computed once all is checked."""
        ticket = self.next_ticket()
        if not self.model.training:
            raise InvalidInput("The model is in evaluation mode; call model.train() before step().")
        self._norm.check(self.clip, first=self._sums is None)
        if ticket.last:
            self._check_accounted(ticket.place)
            self.ledger.check_allowance()
        self._turn.begin()
        try:
            with self.guard.opened(), self.sharding.taking():
                batch, losses = clipped()
        except BaseException:
            self.sharding.failed()
            self._turn.end()  # nothing was taken: the batch still waits for its step
            raise
        self._tickets.popleft()
        report = StepReport(self.steps + 1, ticket.last, Sensitive(batch, losses))
        adaptive = isinstance(self.clip, AdaptiveClip)
        with no_graph():
            part = self.clip.counted(batch) if adaptive else batch.sums
            self._sums = self._sums_of.add(self._sums, part)
            if ticket.last:
                self._release(ticket, adaptive)
        self._turn.end()  # not if anything was raised: then the batch must be abandoned
        return report

    def _release(self, ticket: Ticket, adaptive: bool) -> None:
        self.sharding.finish()  # all ranks count the step, or none: their epochs go together
        facts = (self.steps, self._norm.bound, self.expected_batch_size)
        self.ledger.forfeit(agree(facts, self.ledger.forfeited, self.device))
        sums, self._sums = self._sums, None
        assert sums is not None
        self.ledger.forfeit(not_private_because(self.sampler, self.noise))
        step = self.steps + 1
        self.sampler_state = ticket.sampler_state  # even if it cannot be written down: it is spent
        self.ledger.count(step)  # before there is anything to see
        sums = self._sums_of.noisy(sums, self.noise, self._norm.bound, ticket.whole)
        if self.write_ahead is not None:
            self.write_ahead(step, sums)
        if adaptive:
            self.clip.follow(float(sums.pop()), self.expected_batch_size)
        self._apply(sums)

    def _apply(self, sums: list[Tensor]) -> None:
        torch._foreach_div_(whole(sums), as_tensor(self.expected_batch_size, sums[0].dtype))
        for parameter, mean in zip(self._stepped, sums, strict=True):
            mean = mean if mean.dtype is parameter.dtype else mean.to(parameter.dtype)
            parameter.grad = self.sharding.part(parameter, mean) if self.sharding else mean
        self.sharding.release()
        with self.guard.opened():
            self.optimizer.step()
        self._drop_gradients()
        self.mark_weights()
        if self._tickets:  # of batches that were drawn ahead
            self.sharding.gather()

    def _drop_gradients(self) -> None:
        for parameter in self._stepped:
            parameter.grad = None

    @property
    def pending(self) -> bool:
        """Is a batch half done? Then the run can be neither stored nor examined."""
        return self._sums is not None or self._turn.open

    def abandon_batch(self) -> None:
        """Forget what is left of a batch. If its release was begun, it stays counted."""
        self.loops.abandon()
        self._tickets.clear()
        self.data.drawn, self._sums = False, None
        self.company.forget()
        self._drop_gradients()
        self.sampler.restore(self.sampler_state)  # no place of an epoch may be skipped
        self.sharding.abandon()  # others that wait for this rank are told
        self.sharding.release()
        self._turn.end()

    def close(self) -> None:
        """Give model and optimizer back to ordinary training. The record stays readable."""
        self.settle()
        self.company.forget()
        self.guard.close()
        self.gradients.detach()
        self.sharding.close()
