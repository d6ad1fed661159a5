"""How the parameters of a model reach the losses of one batch."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from tightrope.errors import ModelNotPrivate
from tightrope.train.gradients.custom import custom_rule
from tightrope.train.gradients.graph import Graph, explore, nodes_of, output_shape, rows_each
from tightrope.train.gradients.junctions import Entry, junction_at, places_of_entry
from tightrope.train.gradients.recorder import Use
from tightrope.train.gradients.rules import recurrent

__all__ = ["Survey", "survey"]

_MOST_ROWS = 2**31  # for each row of the model: any number

Entries = dict[int, list[Entry] | None]  # id of a parameter -> where it enters the batch


@final
@dataclass(frozen=True)
class Survey:
    """kept: positions of the uses that count; found: where all other parameters enter the batch.

    layers: those of the uses that have a layer's rule, around which `graph` was explored.
    unknown: ids of parameters whose entries have no way back, and are left to their owners' rule.
    batch: its length, in rows of the model.
    """

    batch: int
    uses: list[Use]
    kept: list[int]
    layers: list[int]
    graph: Graph
    found: Entries
    unknown: set[int]
    unseen: set[int]

    def _entries(self) -> list[tuple[Entry, Any]]:
        return [(e, self.graph.leaves[key]) for key, es in self.found.items() for e in es or []]

    @property
    def edges(self) -> list[Any]:
        """All places with a batch dimension: outputs of layers, then entries of parameters."""
        layers = [edge for i in self.kept for edge in self.uses[i].edges]
        return layers + [entry.edge for entry, _ in self._entries()]

    @property
    def times(self) -> list[int]:
        """How many rows each of these places has for each row of the model."""
        layers = [self.uses[i].rows[0] for i in self.kept for _ in self.uses[i].edges]
        entries = [output_shape(entry.node)[0] for entry, _ in self._entries()]
        return [rows // self.batch for rows in layers + entries]

    def position(self, edge: int) -> int | None:
        """The use to which an edge belongs, or None for an entry."""
        owners = [i for i in self.kept for _ in self.uses[i].edges]
        return owners[edge] if edge < len(owners) else None

    def entry(self, edge: int) -> tuple[Entry, Any]:
        """An entry and the node of its parameter."""
        return self._entries()[edge - sum(len(self.uses[i].edges) for i in self.kept)]

    def owner(self, edge: int) -> str:
        position = self.position(edge)
        if position is None:
            return "a broadcast parameter"
        return type(self.uses[position].owner).__name__

    def known(self) -> Iterator[tuple[Any, list[Entry]]]:
        """Nodes of the parameters that enter by broadcasting, and where."""
        for key, entries in self.found.items():
            if key not in self.unknown:
                yield self.graph.leaves[key], entries or []

    def refuse_unseen(self, names: dict[int, str]) -> None:
        """Every use of every parameter must have been found."""
        if self.unseen:
            self._refuse_rows()
            told = sorted(names[key] for key in self.unseen)
            raise ModelNotPrivate(
                f"the parameters {told} are used outside of the layer that owns them, in a "
                "way that has no rule (a functional call, a parametrisation, an operation in place "
                "on what the layer gave, a recurrent layer that runs without the batch, or code "
                "compiled before Gradients was attached); call the layer itself, replace what "
                "works in place (ReLU(inplace=True), add_), attach before compiling, or pass "
                "gradients=OneByOne(model), which is exact for every model and slower"
            )

    def _refuse_rows(self) -> None:
        """Where layers ran on several rows for each loss, and nobody knows whose they are."""
        own = [u for u in self.uses if self.unseen & {id(p) for p in u.owner._parameters.values()}]
        most = max((rows_each(use, self.batch) for use in own), default=0)
        if most > 1:
            raise ModelNotPrivate(
                f"layers ran on {most} rows for each of the {self.batch} losses, and nothing says "
                "which of them belong together. Rows that the model makes of an example (windows, "
                "frames) are found where they lie side by side, x.flatten(0, 1) of (B, K, ...), "
                "where the model takes batches of any length. For views of each "
                f"example make the run with views={most}; else give the model one row for each "
                "example, or pass gradients=OneByOne(model), which is exact for every model and "
                "slower"
            )


def survey(
    losses: Tensor,
    uses: list[Use],
    wanted: dict[int, str],
    flat_uses: Container[int],
    flat_nodes: Container[Any],
    batch: int,
    *,
    several: bool = False,
) -> Survey:
    """flat_uses, flat_nodes: what has no batch, although it is as long as the batch by chance.

    batch: its length, in rows of the model. several: whether what has several rows for each of
    these counts as the batch too.
    """
    most = _MOST_ROWS if several else 1
    batched = [
        i for i, u in enumerate(uses) if i not in flat_uses and 1 <= rows_each(u, batch) <= most
    ]
    kept = layers = [i for i in batched if uses[i].rule is not custom_rule]
    graph = _checked(explore(losses, [uses[i] for i in layers], set(wanted)))
    found = {
        key: places_of_entry(graph, leaf, batch, flat_nodes, most=most)
        for key, leaf in graph.leaves.items()
    }
    unknown = {key for key, entries in found.items() if not _all_known(entries)}
    unseen = _hidden(losses, uses, kept) & set(wanted)
    if unknown:
        owners = _owners(uses, batched, unknown)
        unknown |= {id(p) for i in owners for p in uses[i].owner._parameters.values()} & set(found)
        kept = sorted(layers + owners)
        unseen |= _used_elsewhere(losses, uses, layers, owners, unknown)
    return Survey(batch, uses, kept, layers, graph, found, unknown, unseen)


def _hidden(losses: Tensor, uses: list[Use], kept: list[int]) -> set[int]:
    """Parameters that a recurrent layer without the batch has used where no graph shows it."""
    others = [u for i, u in enumerate(uses) if u.rule in recurrent.RULES and i not in kept]
    nodes = set(nodes_of(losses)) if others else set()
    reached = [use for use in others if use.edges[0].node in nodes]
    return {id(p) for use in reached for p in recurrent.not_shown(use)}


def _used_elsewhere(
    losses: Tensor, uses: list[Use], layers: list[int], owners: list[int], unknown: set[int]
) -> set[int]:
    """Which of the parameters reach the losses beside the calls of the modules that own them."""
    groups: dict[frozenset[int], set[int]] = {}
    for key in unknown:
        own = [i for i in owners if key in {id(p) for p in uses[i].owner._parameters.values()}]
        groups.setdefault(frozenset(own), set()).add(key)
    found = groups.pop(frozenset(), set())
    for own_uses, keys in groups.items():
        around = [uses[i] for i in (*layers, *own_uses)]
        found |= keys & explore(losses, around, keys).leaves.keys()
    return found


def _all_known(entries: list[Entry] | None) -> bool:
    if entries is None:
        return False
    return all(junction_at(e.slot, e.node, e.operands[-1]) is not None for e in entries)


def _owners(uses: list[Use], batched: list[int], unknown: set[int]) -> list[int]:
    """Uses of the custom modules that own one of the parameters, or share one with those that do.

    Their rule gives the gradients of all their parameters.
    """
    custom = [i for i in batched if uses[i].rule is custom_rule]
    own = {i: {id(p) for p in uses[i].owner._parameters.values() if p is not None} for i in custom}
    found: set[int] = set()
    reach = set(unknown)
    while more := {i for i in custom if i not in found and own[i] & reach}:
        found |= more
        reach |= {key for i in more for key in own[i]}
    return sorted(found)


def _checked(graph: Graph) -> Graph:
    if graph.checkpointed:
        raise ModelNotPrivate(
            "reentrant activation checkpointing hides the layers it covers; use "
            "torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
        )
    return graph
