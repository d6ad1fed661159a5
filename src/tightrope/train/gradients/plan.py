"""Made at the first batch of a kind: is every use of every parameter seen, and are examples apart?

The plan is kept for later batches that ran the same layers in the same order, with as many
operations in all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, final

from torch import Tensor, nn

from tightrope.errors import ModelNotPrivate
from tightrope.train.gradients.apart import Seen, look
from tightrope.train.gradients.custom import custom_rule
from tightrope.train.gradients.custom_call import Batched
from tightrope.train.gradients.graph import leads_to, nodes_of, output_shape
from tightrope.train.gradients.junctions import (
    Entry,
    Junction,
    Landmark,
    follow,
    route_to,
)
from tightrope.train.gradients.owners import Owners
from tightrope.train.gradients.picks import picks_rows, regroups
from tightrope.train.gradients.recorder import Use
from tightrope.train.gradients.survey import Survey, survey
from tightrope.train.gradients.witness import Witness

__all__ = ["BatchPlan", "UseSource", "make_plan", "refuse_mixing", "resolve", "shared_parameters"]


@final
@dataclass(frozen=True)
class UseSource:
    """A parameter that enters the batch by broadcasting, and the ways it takes.

    Landmarks find them again without a walk through the whole graph.
    """

    parameter: nn.Parameter
    marks: tuple[Landmark, ...]


@final
@dataclass(frozen=True)
class BatchPlan:
    """uses: positions of the uses that count; sources: parameters found in the graph instead.

    times: how many rows each of these uses has for each row of the model.
    ends: positions of the uses behind which the backward pass has nothing more to find.
    shared: ids of the parameters that are used several times or found in the graph.
    conclusive: whether a gradient was seen everywhere when examples were looked for apart.
    finite: whether all of them were numbers; else the plan is for this batch alone.
    half: whether anything between the layers is computed in half precision.
    hooked: whether hooks of the user's change gradients on their way.
    picks: whether rows are chosen, so that another batch may have them in other places.
    choices: of the uses of modules of the user's own: which arguments were seen to carry the batch.
    """

    uses: tuple[int, ...]
    times: tuple[int, ...]
    ends: frozenset[int]
    sources: tuple[UseSource, ...]
    shared: frozenset[int]
    conclusive: bool
    finite: bool
    half: bool
    hooked: bool
    picks: bool
    choices: dict[int, set[Batched]] = field(default_factory=dict)

    @cached_property
    def lasts(self) -> bool:
        """Whether it may be kept for other batches.

        Where rows of an example are only known to be side by side, they must be seen to be, and
        numbers that come with the data must not choose them.
        """
        several = any(times > 1 for times in self.times) or any(
            mark.times > 1 for source in self.sources for mark in source.marks
        )
        return self.finite and not (several and (self.picks or not self.conclusive))

    def fits(self, uses: list[Use], batch: int) -> bool:
        """Whether the layers that count have the batch, in rows, as first dimension."""
        for i, times in zip(self.uses, self.times, strict=True):
            for rows in uses[i].rows:
                if rows != times * batch:
                    return False
        return True

    def counted(self, uses: list[Use]) -> list[Use]:
        """The uses that count, each with what is known of it."""
        for i in self.uses:
            if uses[i].rule is custom_rule:
                known = self.choices.setdefault(i, set())
                uses[i].rule = partial(custom_rule, known=known, kept=uses[i].kept)
        return list(map(uses.__getitem__, self.uses))

    def asked_again(self) -> BatchPlan:
        """The same, without what was found out about the user's own modules."""
        return replace(self, choices={})

    def same_ways(self, other: BatchPlan) -> bool:
        """Whether the same uses count and all other parameters enter at the same places."""
        same = (self.uses, self.times, self.hooked) == (other.uses, other.times, other.hooked)
        return same and self._marks() == other._marks()

    def _marks(self) -> dict[int, tuple[Landmark, ...]]:
        return {id(source.parameter): source.marks for source in self.sources}


def make_plan(
    losses: Tensor,
    uses: list[Use],
    names: dict[int, str],
    owners: Owners,
    weights: list[Tensor],
    witness: Witness,
) -> BatchPlan:
    """names: id of each trainable parameter -> its name; weights: of the losses in each look.

    What looks like the batch and is not apart is either mixed, or as long as the batch by chance:
    then the witness says so, and the survey is made again without it. It is asked too where numbers
    that are none hide whether examples are apart.

    Parameters that are not found so may be in layers that have several rows for each example
    (windows, frames, sentences), side by side: the witness must see them grow with the batch.
    """
    for several in (False, True):
        flat_uses: set[int] = set()
        flat_nodes: set[Any] = set()
        while True:
            seen = survey(losses, uses, names, flat_uses, flat_nodes, owners.rows, several=several)
            found = look(losses, seen.edges, seen.times, weights, owners)
            flat = _flat(seen, found, witness)
            if not flat:
                break
            for number in flat:
                position = seen.position(number)
                if position is None:
                    flat_nodes.add(seen.entry(number)[0].node)
                else:
                    flat_uses.add(position)
        if not seen.unseen:
            break
    seen.refuse_unseen(names)
    return _plan_of(losses, uses, seen, found, owners.rows)


def _flat(seen: Survey, found: Seen, witness: Witness) -> set[int]:
    """Numbers of the edges that are no batch; of those with several rows all that are in doubt."""
    unsure = found.mixed | found.hidden
    several = {n for n, times in enumerate(seen.times) if times > 1}
    flat = {n for n in several if n in unsure or not _grows(seen, n, witness)}
    flat |= {n for n in unsure - several if _is_flat(seen, n, witness)}
    if found.mixed - flat:
        refuse_mixing(seen.owner(min(found.mixed - flat)))
    # One example that is dropped for another's gradient is no more than a record may move.
    if found.hidden - flat and witness.blind and len(found.lost) > 1:
        _refuse_hidden(seen.owner(min(found.hidden - flat)))
    return flat


def _is_flat(seen: Survey, number: int, witness: Witness) -> bool:
    """Whether what is not apart at an edge is no batch at all."""
    position = seen.position(number)
    if position is not None:
        return witness.use_is_flat(position)
    return witness.entry_is_flat(*seen.entry(number), seen.graph, seen.layers)


def _grows(seen: Survey, number: int, witness: Witness) -> bool:
    """Whether an edge has as many rows for each row of another batch."""
    position, times = seen.position(number), seen.times[number]
    if position is not None:
        return witness.use_grows(position, times)
    return witness.entry_grows(*seen.entry(number), seen.graph, seen.layers, times=times)


def _plan_of(losses: Tensor, uses: list[Use], seen: Survey, found: Seen, rows: int) -> BatchPlan:
    wanted = {edge.node for i in seen.kept for edge in uses[i].edges}
    wanted |= {entry.node for _, entries in seen.known() for entry in entries}
    leading = leads_to(losses, wanted)
    sources = tuple(
        UseSource(leaf.variable, tuple(_landmark(losses, e, leading, rows) for e in entries))
        for leaf, entries in seen.known()
    )
    ends = frozenset(i for i in seen.kept if uses[i].edges[0].node not in leading)
    shared = shared_parameters((uses[i] for i in seen.kept), (s.parameter for s in sources))
    times = tuple(uses[i].rows[0] // rows for i in seen.kept)
    several = {each * rows for each in seen.times if each > 1}
    nodes = list(nodes_of(losses))
    batched = {edge.node for edge in seen.edges}
    picks = picks_rows(nodes, rows, several=bool(several)) or regroups(nodes, several, batched)
    return BatchPlan(
        tuple(seen.kept), times, ends, sources, shared,
        found.conclusive, found.finite, seen.graph.half, found.hooked, picks,
    )  # fmt: skip


def _landmark(losses: Tensor, entry: Entry, leading: set[Any], rows: int) -> Landmark:
    route, times = route_to(losses, entry.node), output_shape(entry.node)[0] // rows
    return Landmark(route, entry.path, entry.operands, entry.node not in leading, times)


def shared_parameters(uses: Iterable[Use], others: Iterable[nn.Parameter]) -> frozenset[int]:
    """Ids of parameters used several times, or in a way beside their layers' rules."""
    seen: set[int] = set()
    shared = {id(parameter) for parameter in others}
    for use in uses:
        own = Counter(id(p) for p in use.owner._parameters.values() if p is not None)
        shared |= {key for key, times in own.items() if times > 1 or key in seen}
        seen |= own.keys()
    return frozenset(shared)


def resolve(plan: BatchPlan, losses: Tensor, rows: int) -> list[tuple[UseSource, Junction]] | None:
    """All junctions at the end of their routes, or None if one is not there."""
    result = []
    for source in plan.sources:
        for mark in source.marks:
            found = follow(losses, mark, source.parameter, rows)
            if found is None:
                return None
            result.append((source, found))
    return result


def _refuse_hidden(owner: str) -> None:
    raise ModelNotPrivate(
        f"gradients of this batch are NaN or infinite (at {owner}) although the losses of their "
        "examples are, so nobody can see whether the model mixes examples, and it cannot be run "
        "again with a longer batch to find out; fix what gives such gradients (a square root or a "
        "norm at zero, a record that is NaN), or pass gradients=OneByOne(model)"
    )


def refuse_mixing(owner: str) -> None:
    raise ModelNotPrivate(
        f"the loss of one example depends on the other examples (seen at {owner}): the "
        "model or the loss mixes the batch, or the batch is not the first dimension (of views: "
        "those of an example not side by side); use layers and a loss that act on each example "
        "alone, batch first"
    )
