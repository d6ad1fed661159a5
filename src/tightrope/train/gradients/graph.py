"""Reading the autograd graph from the losses down to the parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from tightrope.train.gradients.recorder import Use

__all__ = [
    "LAYER",
    "Graph",
    "Slot",
    "explore",
    "gradients_at",
    "handed_over",
    "leads_to",
    "nodes_of",
    "output_shape",
    "rows_each",
    "walk_of",
]

# What torch.autograd.grad ends in; not public, so the public function stands by.
_run_backward: Any = getattr(torch.autograd.graph, "_engine_run_backward", None)
# What that ends in: it only adds what is for the threads of other devices, and for a debugger.
_run_here: Any = getattr(torch.autograd.Variable._execution_engine, "run_backward", None)

# The kind of node at which a graph ends in a parameter.
_one: Any = torch.zeros(1, requires_grad=True, device="cpu").view(1)
_LEAF: Any = type(_one.grad_fn.next_functions[0][0])

Slot = tuple[Any, int]  # (node, number of its output)
LAYER = -1  # as which operand a recorded layer reads its inputs


@final
@dataclass(frozen=True)
class Graph:
    """Nodes reached from the losses without entering the parameters of recorded layers."""

    consumers: dict[Slot, list[Slot]]  # output -> (node that reads it, as which operand)
    numbers: dict[Any, set[int]]  # node -> which of its outputs are read
    leaves: dict[int, Any]  # id of a parameter -> its node, for parameters reached
    checkpointed: bool

    @property
    def half(self) -> bool:
        """Does any of the nodes compute in half precision?"""
        metas = (node._input_metadata[i] for node, outs in self.numbers.items() for i in outs)
        return any(meta.dtype.itemsize < 4 for meta in metas)


def explore(losses: Tensor, uses: Iterable[Use], wanted: set[int]) -> Graph:
    """Walk the graph; at a recorded layer go on with the layer's inputs, not its parameters."""
    jumps: dict[Any, list[Slot]] = {}
    for use in uses:
        for edge in use.edges:
            jumps[edge.node] = list(use.entered)
    consumers: dict[Slot, list[Slot]] = defaultdict(list)
    numbers: dict[Any, set[int]] = defaultdict(set)
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
            consumers[slot].append((node, index if jump is None else LAYER))
            numbers[child].add(slot[1])
            if child not in seen:
                seen.add(child)
                stack.append(child)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) in wanted:
            leaves[id(variable)] = node
        checkpointed = checkpointed or node.name() == "CheckpointFunctionBackward"
    return Graph(consumers, numbers, leaves, checkpointed)


def walk_of(losses: Tensor) -> int:
    """One number for all operations of a graph and for what each of them reads.

    Graphs of one number are the same but for shapes, so what was found out about one holds for all.
    """
    numbers, stack, told = {losses.grad_fn: 0}, [losses.grad_fn], list[Any]()
    while stack:
        node: Any = stack.pop()
        kind = type(node)
        told.append(kind)
        if kind is _LEAF:
            told.append(id(node.variable))
            continue
        for slot in node.next_functions:
            child = slot[0]
            if child is not None and child not in numbers:
                numbers[child] = len(numbers)
                stack.append(child)
            told.append((numbers.get(child), slot[1]))
    return hash(tuple(told))


def nodes_of(losses: Tensor) -> Iterator[Any]:
    """All operations of a graph."""
    seen, stack = {losses.grad_fn}, [losses.grad_fn]
    while stack:
        node = stack.pop()
        yield node
        assert node is not None
        new = {child for child, _ in node.next_functions if child is not None} - seen
        seen |= new
        stack += new


def leads_to(losses: Tensor, targets: set[Any]) -> set[Any]:
    """The nodes of the whole graph behind which one of the targets lies."""
    parents: dict[Any, list[Any]] = {losses.grad_fn: []}
    stack = [losses.grad_fn]
    while stack:
        node = stack.pop()
        for child, _ in node.next_functions:
            if child is not None and child not in parents:
                parents[child] = []
                stack.append(child)
            if child is not None:
                parents[child].append(node)
    leading: set[Any] = set()
    stack = [node for node in targets if node in parents]
    while stack:
        above = [node for node in parents[stack.pop()] if node not in leading]
        leading.update(above)
        stack += above
    return leading


def gradients_at(
    losses: Tensor, inputs: list[Any], weights: Tensor, *, keep: bool
) -> tuple[Tensor | None, ...]:
    """torch.autograd.grad, whose checks of arguments take longer than a small network."""
    if _run_backward is None:
        return torch.autograd.grad(losses, inputs, weights, retain_graph=keep, allow_unused=True)
    run = _run_here if losses.is_cpu and _run_here is not None else _run_backward
    result: tuple[Tensor | None, ...] = run(
        (losses,), (weights,), keep, False, tuple(inputs),
        allow_unreachable=True, accumulate_grad=False,
    )  # fmt: skip
    return result


@contextmanager
def handed_over(edges: Iterable[Any]) -> Iterator[dict[int, Tensor | None]]:
    """Number of an edge -> what its node is given in a backward pass inside, if it runs.

    That is after hooks of the user's, which may change it. PyTorch runs them on what it returns for
    nodes at which a pass ends, but not for those behind which it goes on.
    """
    given: dict[int, Tensor | None] = {}

    def note(number: int, output: int, grads: tuple[Tensor | None, ...]) -> None:
        given[number] = grads[output]

    hooks = [
        edge.node.register_prehook(partial(note, number, edge.output_nr))
        for number, edge in enumerate(edges)
        if isinstance(edge, GradientEdge)
    ]
    try:
        yield given
    finally:
        for hook in hooks:
            hook.remove()


def output_shape(node: Node, number: int = 0) -> torch.Size:
    """Shape of a node's output in the forward pass."""
    return torch.Size(node._input_metadata[number].shape)


def rows_each(use: Use, batch: int) -> int:
    """How many rows a layer's outputs have for each of the batch; 0 if there is no such number."""
    if len(set(use.rows)) != 1:
        return 0
    times, rest = divmod(use.rows[0], batch)
    return 0 if rest else times
