"""Made at the first batch of a kind: is every use of every parameter seen, and are examples apart?

The plan is kept for later batches that ran the same layers in the same order, and made anew from
time to time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from tightrope.errors import ModelNotPrivate
from tightrope.train.gradients.custom import custom_rule
from tightrope.train.gradients.graph import (
    Graph,
    Junction,
    Landmark,
    explore,
    follow,
    has_batch,
    junctions,
    route_to,
)
from tightrope.train.gradients.recorder import Use

__all__ = ["Plan", "Source", "make_plan", "resolve", "shared_parameters"]


@final
@dataclass(frozen=True)
class Source:
    """A parameter that enters the batch by broadcasting, and the ways it takes.

    Landmarks find them again without a walk through the whole graph.
    """

    parameter: nn.Parameter
    marks: tuple[Landmark, ...]

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        return tuple(mark.path for mark in self.marks)


@final
@dataclass(frozen=True)
class Plan:
    """uses: positions of the uses that count; sources: parameters found in the graph instead.

    shared: ids of the parameters that are used several times or found in the graph.
    """

    uses: tuple[int, ...]
    sources: tuple[Source, ...]
    shared: frozenset[int]


def make_plan(losses: Tensor, uses: list[Use], names: dict[int, str]) -> Plan:
    """names: id of each trainable parameter -> its name."""
    batch = losses.shape[0]
    layers = [i for i, u in enumerate(uses) if u.rule is not custom_rule]
    kept = [i for i in layers if has_batch(uses[i], batch)]
    graph = _checked(explore(losses, [uses[i] for i in kept], set(names)))
    found = {key: junctions(graph, leaf, batch) for key, leaf in graph.leaves.items()}
    unknown = {key for key, ways in found.items() if ways is None}
    if unknown:
        kept = sorted(kept + _owners(uses, unknown))
        graph = _checked(explore(losses, [uses[i] for i in kept], set(names)))
        _refuse_unseen({names[key] for key in unknown & graph.leaves.keys()})
    ways = {key: found[key] or [] for key in graph.leaves}
    check_apart(losses, [uses[i] for i in kept], [j for js in ways.values() for j in js])
    sources = tuple(
        Source(
            graph.leaves[key].variable,
            tuple(Landmark(route_to(losses, j.edge.node), j.path, j.operands) for j in js),
        )
        for key, js in ways.items()
    )
    shared = shared_parameters((uses[i] for i in kept), (s.parameter for s in sources))
    return Plan(tuple(kept), sources, shared)


def shared_parameters(uses: Iterable[Use], others: Iterable[nn.Parameter]) -> frozenset[int]:
    """Ids of parameters used several times, or in a way beside their layers' rules."""
    seen: set[int] = set()
    shared = {id(parameter) for parameter in others}
    for use in uses:
        own = {id(p) for p in use.owner._parameters.values()}
        shared |= seen & own
        seen |= own
    return frozenset(shared)


def resolve(plan: Plan, losses: Tensor, uses: list[Use]) -> list[tuple[Source, Junction]] | None:
    """The junctions of this batch's graph, or None where the graph is not the planned one."""
    quick = _followed(plan, losses)
    if quick is not None:
        return quick
    wanted = {id(source.parameter) for source in plan.sources}
    graph = explore(losses, [uses[i] for i in plan.uses], wanted)
    result: list[tuple[Source, Junction]] = []
    for source in plan.sources:
        leaf = graph.leaves.get(id(source.parameter))
        if leaf is None:
            continue
        found = junctions(graph, leaf, losses.shape[0], source.paths)
        if found is None:
            return None
        result += [(source, junction) for junction in found]
    return result


def _followed(plan: Plan, losses: Tensor) -> list[tuple[Source, Junction]] | None:
    """All junctions at the end of their routes, or None if one is not there."""
    result = []
    for source in plan.sources:
        for mark in source.marks:
            found = follow(losses, mark, source.parameter)
            if found is None:
                return None
            result.append((source, found))
    return result


def _checked(graph: Graph) -> Graph:
    if graph.checkpointed:
        raise ModelNotPrivate(
            "reentrant activation checkpointing hides the layers it covers; use "
            "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
        )
    return graph


def _owners(uses: list[Use], unknown: set[int]) -> list[int]:
    """Uses of custom modules that own one of the unknown parameters."""
    return [
        i
        for i, use in enumerate(uses)
        if use.rule is custom_rule and any(id(p) in unknown for p in use.owner._parameters.values())
    ]


def _refuse_unseen(names: set[str]) -> None:
    if names:
        raise ModelNotPrivate(
            f"the parameters {sorted(names)} are used outside of the layer that owns them, in a "
            "way that has no rule (a functional call, a parametrisation, or code compiled before "
            "Gradients was attached); call the layer itself, attach before compiling, or pass "
            "gradients=OneByOne(model), which is exact for every model and slower"
        )


def check_apart(losses: Tensor, uses: list[Use], ways: list[Junction]) -> None:
    """The loss of one example must not depend on another example's activations.

    One backward pass from a single loss: everything outside that example's row must be zero.
    """
    edges = [edge for use in uses for edge in use.edges] + [way.edge for way in ways]
    owners = [type(use.owner).__name__ for use in uses for _ in use.edges]
    owners += ["a broadcast parameter"] * len(ways)
    refuse_mixing(losses, edges, owners)


def refuse_mixing(losses: Tensor, edges: list[Any], owners: list[str]) -> None:
    """One loss must not depend on other examples' rows at these places of the graph, so named."""
    probe = len(losses) // 2
    if len(losses) < 2 or not edges:
        return
    grads = torch.autograd.grad(losses[probe], edges, retain_graph=True, allow_unused=True)
    for owner, g in zip(owners, grads, strict=True):
        if g is None:
            continue
        touched = ((g != 0) & ~g.isnan()).flatten(1).any(1)
        touched[probe] = False
        if bool(touched.any()):
            raise ModelNotPrivate(
                f"the loss of one example depends on the other examples (seen at {owner}): the "
                "model or the loss mixes the batch, or the batch is not the first dimension; "
                "use layers and a loss that act on each example alone, batch first"
            )
