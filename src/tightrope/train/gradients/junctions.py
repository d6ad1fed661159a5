"""Where a parameter that no layer rule saw meets the batch.

A parameter that is added, multiplied or expanded into the batch (a position table, a class token, a
scale) loses its per-example gradient in the very operation that broadcasts it. That operation is a
node of the graph, its output gradient still has the batch dimension, and what lies between the
parameter and it can be differentiated once for each example: all of it, so a place is counted once,
however many ways lead there.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from tightrope.train.gradients.broadcast import reads_rows, way_back, written_rows
from tightrope.train.gradients.forms.base import full_precision
from tightrope.train.gradients.graph import LAYER, Graph, Slot, output_shape

__all__ = ["Entry", "Junction", "Landmark", "follow", "junction_at", "places_of_entry", "route_to"]


@final
@dataclass(frozen=True)
class Entry:
    """A place where a value without batch dimension seems to enter the batch.

    path and operands: names of the nodes from the parameter up to it, and as which operand each
    reads the one before.
    """

    slot: Slot  # the value that enters
    node: Any
    path: tuple[str, ...]
    operands: tuple[int, ...]

    @property
    def edge(self) -> GradientEdge:
        return GradientEdge(self.node, 0)


@final
@dataclass(frozen=True)
class Landmark:
    """Where a junction lies, in terms that hold for the graphs of other batches too.

    route: operand numbers from the losses down to the junction.
    end: whether the backward pass has nothing more to find behind it.
    times: how many rows it has for each row of the model.
    """

    route: tuple[int, ...]
    path: tuple[str, ...]
    operands: tuple[int, ...]
    end: bool
    times: int


@final
@dataclass(frozen=True)
class Junction:
    """The operation at which a value without batch dimension enters the batch."""

    edge: GradientEdge  # its output, whose gradient is per example (or has several rows of each)
    before: GradientEdge  # the value that enters
    backward: Callable[[Tensor], Tensor]  # output gradient (B, ...) -> (B, *shape of `before`)
    end: bool  # whether the backward pass stops here
    times: int = 1  # rows for each row of the model

    @property
    def size(self) -> int:
        """Values of the output gradient."""
        return output_shape(self.edge.node).numel()

    @property
    def passed_through(self) -> bool:
        """Whether its node runs in the backward pass, and one operation leads to the parameter."""
        return not self.end and getattr(self.before.node, "variable", None) is not None

    def gradients(self, parameter: nn.Parameter, g: Tensor) -> Tensor:
        """(B, *parameter.shape)."""
        entering = self.backward(g)
        if self.times > 1:
            entering = full_precision(entering).unflatten(0, (-1, self.times)).sum(1)
        if getattr(self.before.node, "variable", None) is parameter:
            return entering
        if reads_rows(self.before.node, parameter):
            return written_rows(self.before.node, parameter, entering)
        (result,) = torch.autograd.grad(
            [self.before], [parameter], [entering], is_grads_batched=True, retain_graph=True
        )
        return result


def places_of_entry(
    graph: Graph, leaf: Node, batch: int, flat: Container[Any] = (), *, most: int = 1
) -> list[Entry] | None:
    """All places where a parameter enters the batch; None if a value of it reaches the end as is.

    flat: nodes that have no batch dimension although their first one is as long as the batch.
    most: rows of a place for each row of the batch.
    """
    found: list[Entry] = []
    queue: list[tuple[Slot, tuple[str, ...], tuple[int, ...]]] = [((leaf, 0), (), ())]
    seen = {queue[0][0]}
    for slot, path, way in queue:
        readers = graph.consumers.get(slot)
        if not readers:
            return None
        for node, operand in readers:
            if operand == LAYER:  # read by a layer that was recorded with the batch
                return None
            names, operands = (*path, node.name()), (*way, operand)
            if node not in flat and _enters(slot, node, batch, most):
                found.append(Entry(slot, node, names, operands))
                continue
            fresh = [(node, n) for n in graph.numbers.get(node, ()) if (node, n) not in seen]
            seen.update(fresh)
            queue += [(out, names, operands) for out in fresh]
            if not graph.numbers.get(node):
                return None
    return found


def _enters(slot: Slot, node: Node, batch: int, most: int) -> bool:
    before, after = output_shape(*slot), output_shape(node)
    if len(after) == 0 or after[0] % batch or not batch <= after[0] <= most * batch:
        return False
    return len(after) > len(before) or before[0] != after[0]


def junction_at(
    slot: Slot, node: Node, operand: int, *, end: bool = True, times: int = 1
) -> Junction | None:
    """None where the operation has no known way back."""
    backward = way_back(node, operand, output_shape(*slot), output_shape(node))
    if backward is None:
        return None
    return Junction(GradientEdge(node, 0), GradientEdge(*slot), backward, end, times)


def route_to(losses: Tensor, target: Node) -> tuple[int, ...]:
    """Operand numbers that lead from the losses' node down to another, the shortest way."""
    parents: dict[Any, tuple[Any, int]] = {}
    queue = [losses.grad_fn]
    for node in queue:
        if node is target:
            break
        for index, (child, _) in enumerate(node.next_functions):
            if child is not None and child not in parents:
                parents[child] = (node, index)
                queue.append(child)
    route, node = [], target
    while node is not losses.grad_fn:
        node, index = parents[node]
        route.append(index)
    return tuple(reversed(route))


def follow(losses: Tensor, mark: Landmark, parameter: nn.Parameter, rows: int) -> Junction | None:
    """The same junction in the graph of another batch, or None where the graph differs.

    rows: those of the model.
    """
    top: Any = losses.grad_fn
    for index in mark.route:
        top = _below(top, index)[0]
        if top is None:
            return None
    names: list[str] = []
    slots: list[Slot] = [(top, 0)]
    for operand in reversed(mark.operands):
        names.append(slots[-1][0].name())
        slots.append(_below(slots[-1][0], operand))
        if slots[-1][0] is None:
            return None
    arrived = getattr(slots[-1][0], "variable", None) is parameter
    if not arrived or tuple(reversed(names)) != mark.path:
        return None
    if output_shape(top)[:1] != (mark.times * rows,):
        return None
    return junction_at(slots[1], top, mark.operands[-1], end=mark.end, times=mark.times)


def _below(node: Node, operand: int) -> Slot:
    nodes = node.next_functions
    return nodes[operand] if operand < len(nodes) else (None, 0)
