"""Reading the autograd graph: what the layer rules did not see, and where it meets the batch.

A parameter that is added, multiplied or expanded into the batch (a position table, a class token, a
scale) loses its per-example gradient in the very operation that broadcasts it. That operation is a
node of the graph, its output gradient still has the batch dimension, and what lies between the
parameter and it can be differentiated once for each example.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from tightrope.train.gradients.recorder import Use

__all__ = [
    "Graph",
    "Junction",
    "Landmark",
    "explore",
    "follow",
    "gradients_at",
    "has_batch",
    "junctions",
    "output_shape",
    "route_to",
]

# What torch.autograd.grad ends in; not public, so the public function stands by.
_run_backward: Any = getattr(torch.autograd.graph, "_engine_run_backward", None)

Slot = tuple[Any, int]  # (node, number of its output)


@final
@dataclass(frozen=True)
class Graph:
    """Nodes reached from the losses without entering the parameters of recorded layers."""

    consumers: dict[Slot, list[Slot]]  # output -> (node that reads it, as which operand)
    leaves: dict[int, Any]  # id of a parameter -> its node, for parameters reached
    checkpointed: bool


def explore(losses: Tensor, uses: Iterable[Use], wanted: set[int]) -> Graph:
    """Walk the graph; at a recorded layer go on with the layer's inputs, not its parameters."""
    jumps: dict[Any, list[Slot]] = {}
    for use in uses:
        for edge in use.edges:
            jumps[edge.node] = [(e.node, e.output_nr) for e in use.input_edges]
    consumers: dict[Slot, list[Slot]] = defaultdict(list)
    leaves: dict[int, Any] = {}
    checkpointed = False
    stack, seen = [losses.grad_fn], {losses.grad_fn}
    while stack:
        node = stack.pop()
        jump = jumps.get(node)
        for index, slot in enumerate(node.next_functions if jump is None else jump):
            child = slot[0]
            if child is None:
                continue
            if jump is None:
                consumers[slot].append((node, index))
            if child not in seen:
                seen.add(child)
                stack.append(child)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) in wanted:
            leaves[id(variable)] = node
        checkpointed = checkpointed or node.name() == "CheckpointFunctionBackward"
    return Graph(consumers, leaves, checkpointed)


def gradients_at(
    losses: Tensor, inputs: list[Any], weights: Tensor, *, keep: bool
) -> tuple[Tensor | None, ...]:
    """torch.autograd.grad, whose checks of arguments take longer than a small network."""
    if _run_backward is None:
        return torch.autograd.grad(losses, inputs, weights, retain_graph=keep, allow_unused=True)
    result: tuple[Tensor | None, ...] = _run_backward(
        (losses,), (weights,), keep, False, tuple(inputs),
        allow_unreachable=True, accumulate_grad=False,
    )  # fmt: skip
    return result


def output_shape(node: Any, number: int = 0) -> torch.Size:
    """Shape of a node's output in the forward pass."""
    return torch.Size(node._input_metadata[number].shape)


def has_batch(use: Use, batch: int) -> bool:
    """Whether the outputs of a layer have the batch as first dimension."""
    shapes = [output_shape(edge.node, edge.output_nr) for edge in use.edges]
    return all(len(shape) > 0 and shape[0] == batch for shape in shapes)


@final
@dataclass(frozen=True)
class Landmark:
    """Where a junction lies, in terms that hold for the graphs of other batches too.

    route: operand numbers from the losses down to the junction; path and operands: names of the
    nodes from the parameter up to the junction, and as which operand each reads the one before.
    """

    route: tuple[int, ...]
    path: tuple[str, ...]
    operands: tuple[int, ...]


@final
@dataclass(frozen=True)
class Junction:
    """The operation at which a value without batch dimension enters the batch."""

    path: tuple[str, ...]
    operands: tuple[int, ...]
    edge: GradientEdge  # its output, whose gradient is per example
    before: GradientEdge  # the value that enters
    backward: Callable[[Tensor], Tensor]  # output gradient (B, ...) -> (B, *shape of `before`)

    def gradients(self, parameter: nn.Parameter, g: Tensor) -> Tensor:
        """(B, *parameter.shape)."""
        entering = self.backward(g)
        if getattr(self.before.node, "variable", None) is parameter:
            return entering
        (result,) = torch.autograd.grad(
            [self.before], [parameter], [entering], is_grads_batched=True, retain_graph=True
        )
        return result


def junctions(
    graph: Graph, leaf: Any, batch: int, planned: tuple[tuple[str, ...], ...] | None = None
) -> list[Junction] | None:
    """All junctions above a parameter's node, or None where one has an unknown kind.

    A plan made earlier says where they are by the names on the way; shapes alone could mislead when
    the batch happens to have the size of another dimension.
    """
    found: list[Junction] = []
    stack: list[tuple[Slot, tuple[str, ...], tuple[int, ...]]] = [((leaf, 0), (), ())]
    while stack:
        slot, path, way = stack.pop()
        readers = graph.consumers.get(slot, [])
        for node, operand in readers:
            names, operands = (*path, node.name()), (*way, operand)
            if _enters(slot, node, batch) if planned is None else names in planned:
                junction = _junction(slot, node, names, operands)
                if junction is None:
                    return None
                found.append(junction)
            elif planned is None or any(p[: len(names)] == names for p in planned):
                stack.append(((node, 0), names, operands))
            else:
                return None
        if not readers:
            return None
    return found


def _enters(slot: Slot, node: Any, batch: int) -> bool:
    before, after = output_shape(*slot), output_shape(node)
    if len(after) == 0 or after[0] != batch:
        return False
    return len(after) > len(before) or before[0] != batch


def route_to(losses: Tensor, target: Any) -> tuple[int, ...]:
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


def follow(losses: Tensor, mark: Landmark, parameter: nn.Parameter) -> Junction | None:
    """The same junction in the graph of another batch, or None where the graph differs."""
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
    return _junction(slots[1], top, mark.path, mark.operands)


def _below(node: Any, operand: int) -> Slot:
    nodes = node.next_functions
    return nodes[operand] if operand < len(nodes) else (None, 0)


def _junction(
    slot: Slot, node: Any, names: tuple[str, ...], operands: tuple[int, ...]
) -> Junction | None:
    kind = _KINDS.get(node.name())
    before, after = output_shape(*slot), output_shape(node)
    if kind is None or (len(before) == len(after) and before[0] != 1):
        return None
    scale = kind(node, operands[-1])
    if scale is None:
        return None

    def backward(g: Tensor) -> Tensor:
        return _sum_to(g if isinstance(scale, int) else g * scale, before)

    return Junction(names, operands, GradientEdge(node, 0), GradientEdge(*slot), backward)


def _sum_to(g: Tensor, shape: torch.Size) -> Tensor:
    """(B, *) -> (B, *shape): undo the broadcasting of `shape` inside each example."""
    aligned = (1,) * (g.dim() - len(shape)) + tuple(shape)
    over = [i for i in range(1, g.dim()) if aligned[i] == 1 and g.shape[i] != 1]
    total = g.sum(over, keepdim=True) if over else g
    return total.reshape(g.shape[0], *shape)


# Each kind gives the factor d output / d operand: 1, a number, a tensor, or None if not known.
def _one(node: Any, operand: int) -> Any:
    return 1


def _sum(node: Any, operand: int) -> Any:
    return 1 if operand == 0 or node._saved_alpha == 1 else float(node._saved_alpha)


def _difference(node: Any, operand: int) -> Any:
    return 1 if operand == 0 else -float(node._saved_alpha)


def _product(node: Any, operand: int) -> Any:
    return node._saved_other if operand == 0 else node._saved_self


def _quotient(node: Any, operand: int) -> Any:
    return node._saved_other.reciprocal() if operand == 0 else None


def _chosen(node: Any, operand: int) -> Any:
    return node._saved_condition if operand == 0 else ~node._saved_condition


_KINDS: dict[str, Callable[[Any, int], Any]] = {
    "ExpandBackward0": _one,
    "AddBackward0": _sum,
    "SubBackward0": _difference,
    "MulBackward0": _product,
    "DivBackward0": _quotient,
    "WhereBackward0": _chosen,
}
