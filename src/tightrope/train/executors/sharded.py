"""The program of a model in parts: weights are gathered before use, sums go to their owners.

The proved program's forward and backward pass are written as one graph of plain operators. A pass
over that graph puts a gathering before the first use of each weight, in the forward pass and again
in the backward pass; after the last use near it the whole weight is freed. Each sum of clipped
gradients is added up over the ranks and cut as soon as it is made. An example is on one rank, so
its norm counts all coordinates there, and needs no communication.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor, fx

from tightrope.errors import InvalidInput
from tightrope.train.clip import Clip
from tightrope.train.executors.compiled import TracedPasses
from tightrope.train.executors.plain import Parameters, Plain, filled_up, tensors_in
from tightrope.train.gradients.batch import ClippedBatch
from tightrope.train.gradients.sums import Passed
from tightrope.train.program.capture import Program
from tightrope.train.ranks import local
from tightrope.train.sharding import gather, most_over_ranks, reduce_to_part

aten = torch.ops.aten
_FAR = 40  # operators between two uses of a weight that are worth a second gathering
# What is made of one weight alone as quickly as it is read: done again after each gathering.
_COPIES = (
    aten.reshape.default, aten._unsafe_view.default, aten._to_copy.default, aten.clone.default,
    operator.getitem,
)  # fmt: skip


@final
class Sharded(Plain):
    """As `Plain`; made while `sharding.blank_weights` stand for the weights.

    All ranks call it together: one that has no rows gives a batch without any.
    """

    how = "sharded"

    def __init__(
        self, program: Program, labels: dict[fx.Node, Any], size: int, parameters: Parameters
    ) -> None:
        assert program.model is not None
        super().__init__(program, labels, size, parameters)
        self._model = program.model
        if self.sums.has_recurrent:
            raise InvalidInput(
                "The program has a recurrent layer, which is one operation after another for each "
                "position, so its weights would be gathered at each. Train it without shard(model)."
            )
        buffers = {node for _, node in program.updates}
        if buffers & _made_of_weights(program):
            raise InvalidInput(
                "The loss computes a buffer from weights (as spectral_norm does), and no rank has "
                "all of these. Train it without shard(model), or without that layer."
            )
        names = {id(p): name for name, p in self._model.named_parameters()}
        self._names = [names[id(p)] for p in self.sums.parameters]
        self.sums.keep = lambda row, total: reduce_to_part(total, self._weights[row])
        self.sums.weight = lambda row: gather(self._weights[row])
        self._traced = TracedPasses(self.sums, compiled=False)
        inputs = self._traced.graph.graph.find_nodes(op="placeholder")
        of_weights = [p.kind in ("parameter", "frozen") for p in self.sums.places]
        weights = [n for n, is_weight in zip(inputs, of_weights, strict=False) if is_weight]
        gather_before_use(self._traced.graph, weights)

    @cached_property
    def _weights(self) -> list[Tensor]:
        return [self._model.get_parameter(name) for name in self._names]

    @property
    def parameters(self) -> list[Tensor]:
        """This rank's rows."""
        return [local(p) for p in self._weights]

    def passes(self, leaves: list[Tensor]) -> Passed:
        return self._traced(leaves)

    def clipped_sum(
        self, batch: tuple[Any, ...], clip: Clip, chain: int
    ) -> tuple[ClippedBatch, Tensor]:
        """batch: the arguments of the loss, of n <= size rows; with the losses of its rows.

        The sums are those of all ranks, of the rows that this one owns.
        """
        leaves, rows = tensors_in(batch, self.size)
        present: Tensor | None = torch.zeros(self.size, dtype=torch.bool, device=leaves[0].device)
        if rows == 0:
            leaves = self.sums.blank_leaves()
        else:
            leaves, present = filled_up(leaves, rows, self.size)
        return self.sum_of(leaves, present, rows, clip, chain)


def _made_of_weights(program: Program) -> set[fx.Node]:
    found = {p.node for p in program.places if p.kind in ("parameter", "frozen")}
    for node in program.module.graph.nodes:
        if found.intersection(node.all_input_nodes):
            found.add(node)
    return found


def in_step(
    parts: Sequence[tuple[Any, Any]], executors: Sequence[Sharded], device: torch.device
) -> Iterator[tuple[Any, Any]]:
    """Parts of a batch with their executors, in an order and number that all ranks have in common.

    A rank with fewer parts gives empty ones.
    """
    own = [[part for each, part in parts if each is executor] for executor in executors]
    for executor, mine, most in zip(
        executors, own, most_over_ranks([len(p) for p in own], device), strict=True
    ):
        empty = tuple(leaf[:0] for leaf in executor.sums.blank_leaves())
        for number in range(most):
            yield executor, mine[number] if number < len(mine) else empty


def gather_before_use(module: fx.GraphModule, weights: Sequence[fx.Node]) -> None:
    """In place; those inputs of the graph become parts of weights."""
    graph = module.graph
    order = {node: at for at, node in enumerate(graph.nodes)}
    for weight in weights:
        family = _family(weight, order)
        users = {user for node in family for user in node.users}.difference(family)
        whole: dict[fx.Node, fx.Node] = {}
        last = 0
        for use in sorted(users, key=order.__getitem__):
            if order[use] - last > _FAR:
                whole = {}
            last = order[use]
            with graph.inserting_before(use):
                for old in [n for n in use.all_input_nodes if n in family]:
                    use.replace_input_with(old, _made_again(graph, old, weight, whole))
        for node in reversed(family[1:]):
            graph.erase_node(node)
    graph.lint()
    module.recompile()


def _family(weight: fx.Node, order: dict[fx.Node, int]) -> list[fx.Node]:
    """A weight and what is made of it alone by views and copies, in the graph's order."""
    found, waiting = {weight}, [weight]
    while waiting:
        for user in waiting.pop().users:
            light = getattr(user.target, "is_view", False) or user.target in _COPIES
            if light and len(user.all_input_nodes) == 1 and user not in found:
                found.add(user)
                waiting.append(user)
    return sorted(found, key=order.__getitem__)


def _made_again(
    graph: fx.Graph, node: fx.Node, weight: fx.Node, whole: dict[fx.Node, fx.Node]
) -> fx.Node:
    if node not in whole:
        if node is weight:
            whole[node] = graph.call_function(gather, (weight,))
        else:
            (source,) = node.all_input_nodes
            made = _made_again(graph, source, weight, whole)
            whole[node] = graph.node_copy(node, lambda _: made)
    return whole[node]
