"""Are weights, buffers and optimizer a function of what was released, and of nothing else?

Given the same noisy sum, a step on other examples must leave the same weights, buffers, optimizer
state and learning rate: post-processing knows no data. And without gradient and weights there is
nothing to move by: what then moves is something of the optimizer's own, such as a statistic of the
data as a whole, which does not change with the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from tightrope.train.doctor.chance import same_chance
from tightrope.train.doctor.rehearsal import Spied, restored
from tightrope.train.doctor.subject import Subject
from tightrope.train.doctor.verdict import Finding, fault, good, note
from tightrope.train.feed import Ticket
from tightrope.train.optimizer import PrivateOptimizer

if TYPE_CHECKING:
    from tightrope.train.samplers import Indices

__all__ = ["check_outcomes"]

BUFFERS, RULE = "buffers", "post-processing"
LARGEST = 16  # examples in a batch
TURNS = 21  # steps, for what happens only now and then
LASTING = 0.98  # the part of a movement that is left in the second half of them

Outcome = dict[tuple[str, str], Any]


def check_outcomes(run: PrivateOptimizer, subject: Subject) -> list[Finding]:
    return [*_given_the_release(run, subject), *_at_rest(run)]


def _given_the_release(run: PrivateOptimizer, subject: Subject) -> list[Finding]:
    count = min(LARGEST, subject.reach, subject.rows.length // 2)
    if count < 1:
        return [note(RULE, "fewer than two examples to look at")]
    index = subject.some(2 * count)
    first, again, other = (
        _outcome(run, subject, part) for part in (index[:count], index[:count], index[count:])
    )
    chance = _differing(first, again)
    found = _differing(first, other) - chance
    if not found and not chance and not _draws(run, subject, index[:count]):
        found = _differing(first, _outcome(run, subject, index[: (count + 1) // 2]))
    buffers = sorted(name for kind, name in found if kind == BUFFERS)
    moved = sorted({name for kind, name in found if kind == RULE})
    return [_told_buffers(buffers), _told_rule(moved)]


def _told_buffers(names: list[str]) -> Finding:
    if not names:
        return good(BUFFERS, "none depends on the examples of a batch")
    return fault(
        BUFFERS,
        f"{', '.join(names[:5])} depend on the examples of the batch, with neither clipping nor "
        "noise, and are stored with the weights; keep no running statistics of private data",
    )


def _told_rule(names: list[str]) -> Finding:
    if not names:
        return good(RULE, "given the noisy sum, the step does not depend on the batch")
    return fault(
        RULE,
        f"given the same noisy sum, {', '.join(names[:5])} differ with the examples of the batch: "
        "the optimizer, a hook or the loss brings data past the noise",
    )


def _outcome(run: PrivateOptimizer, subject: Subject, indices: Indices) -> Outcome:
    """All that some steps leave, when the noise answers with sums fixed beforehand."""
    batch, noise = subject.read(indices), run.noise
    with restored(run), same_chance(run.device):
        run.noise = _FixedRelease(noise, None)
        try:
            for _ in range(TURNS):
                run.expect(Ticket(len(indices), True, len(indices), run.sampler.state()))
                run.step(subject.losses_of(batch))
        finally:
            run.noise = noise
        return _left(run)


@final
class _FixedRelease(Spied):
    def add_(self, sums: Sequence[Tensor], sensitivity: float) -> None:
        generator = torch.Generator().manual_seed(1)
        for total in sums:
            drawn = torch.randn(total.shape, generator=generator, device="cpu")
            total.copy_(drawn.to(total.device, total.dtype) * sensitivity)


def _left(run: PrivateOptimizer) -> Outcome:
    left: Outcome = {}
    for name, parameter in run.model.named_parameters():
        left[RULE, name] = parameter.detach().clone()
    for name, buffer in run.model.named_buffers():
        left[BUFFERS, name] = buffer.detach().clone()
    for name, value in _leaves("optimizer", run.optimizer.state_dict()):
        left[RULE, name] = value.detach().clone() if isinstance(value, Tensor) else value
    return left


def _leaves(name: str, value: object) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [leaf for k, v in value.items() for leaf in _leaves(f"{name}.{k}", v)]
    if isinstance(value, (list, tuple)):
        return [leaf for k, v in enumerate(value) for leaf in _leaves(f"{name}.{k}", v)]
    return [(name, value)]


def _differing(one: Outcome, other: Outcome) -> set[tuple[str, str]]:
    names = one.keys() | other.keys()
    return {name for name in names if not _equal(one.get(name), other.get(name))}


def _equal(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and bool(torch.equal(a.nan_to_num(), b.nan_to_num()))
    return type(a) is type(b) and (a == b or a is b or a != a)


def _draws(run: PrivateOptimizer, subject: Subject, indices: Indices) -> bool:
    """Does the model draw at random? Then batches of other sizes find it in another state."""
    with restored(run), run.guard.opened(), same_chance(subject.device):
        before = torch.get_rng_state()
        subject.answer(subject.read(indices))
        return not torch.equal(before, torch.get_rng_state())


def _at_rest(run: PrivateOptimizer) -> list[Finding]:
    """Weights, gradients and the optimizer's memory are zero: no step may move anything."""
    with restored(run), same_chance(run.device):
        for kept in run.optimizer.state.values():
            kept.update({k: torch.zeros_like(v) for k, v in kept.items() if torch.is_tensor(v)})
        moves = [_zero_step(run) for _ in range(2 * TURNS)]
    early, late = max(moves[:TURNS]), max(moves[TURNS:])
    if not late > LASTING * early or late == 0:  # a hidden momentum dies out
        return []
    return [
        fault(
            RULE,
            f"where weights and gradients are zero the optimizer still moves the weights by "
            f"{late:.2g} a step: by something of its own, such as a statistic of the data",
        )
    ]


def _zero_step(run: PrivateOptimizer) -> float:
    parameters = run.gradients.parameters
    with torch.no_grad():
        for parameter in parameters:
            parameter.zero_()
            parameter.grad = torch.zeros_like(parameter)
        with run.guard.opened():
            run.optimizer.step()
        moved = max(float(p.detach().abs().max()) if p.numel() else 0.0 for p in parameters)
    for parameter in parameters:
        parameter.grad = None
    return moved
