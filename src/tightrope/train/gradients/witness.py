"""Which first dimensions are the batch: those that grow when the batch grows.

A batch may happen to be as long as a sequence, and shapes alone cannot tell the two apart. The
model is then run once more with one example repeated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.graph import Node

from tightrope.train.feed import tensors_of, with_tensors
from tightrope.train.gradients.graph import Graph, explore, output_shape
from tightrope.train.gradients.junctions import Entry
from tightrope.train.gradients.owners import Owners
from tightrope.train.gradients.recorder import Calls, Recorder, Use

__all__ = ["Witness"]


@final
class Witness:
    """Runs the model's calls of this step again, when first asked."""

    def __init__(self, recorder: Recorder, calls: Calls, uses: list[Use], owners: Owners) -> None:
        self._recorder, self._calls, self._uses, self._rows = recorder, calls, uses, owners.rows
        # The model is called with rows, or with examples whose rows it lays side by side itself.
        in_rows = any(t.dim() > 0 and len(t) == owners.rows for t in tensors_of(calls))
        self._batch = owners.rows if in_rows else owners.examples
        self._more = owners.rows + (1 if in_rows else owners.each)  # rows of the longer batch
        self._asked = False
        self._longer: list[Use] | None = None
        self._total: Tensor | None = None

    @property
    def blind(self) -> bool:
        """Whether the model cannot be run with a longer batch."""
        return self._run() is None

    def use_is_flat(self, position: int) -> bool:
        """Whether a layer's output keeps its length when the batch grows."""
        longer = self._run()
        return longer is not None and longer[position].rows == self._uses[position].rows

    def use_grows(self, position: int, times: int) -> bool:
        """Whether a layer's output has so many rows for each row of a longer batch, too."""
        longer = self._run()
        return longer is not None and set(longer[position].rows) == {times * self._more}

    def entry_is_flat(self, *entry: Any) -> bool:
        """Whether the node at the end of the same way from the parameter keeps its length."""
        return self._length(*entry) == self._rows

    def entry_grows(self, *entry: Any, times: int) -> bool:
        """Whether it has so many rows for each row of a longer batch, too."""
        return self._length(*entry) == times * self._more

    def _length(self, entry: Entry, leaf: Any, graph: Graph, layers: Iterable[int]) -> int | None:
        """That of the node at the end of the same way from the parameter, in the longer batch.

        graph: that of this batch, explored around the `layers`.
        """
        longer = self._run()
        if longer is None or self._total is None:
            return None
        other = explore(self._total, [longer[i] for i in layers], {id(leaf.variable)})
        here = _walk(graph, leaf, entry)
        there = _walk(other, other.leaves.get(id(leaf.variable)), entry)
        if len(here) != len(there):
            return None
        return output_shape(there[here.index(entry.node)])[0]

    def _run(self) -> list[Use] | None:
        """The uses of a longer batch; None where the model takes none."""
        if not self._asked and self._calls:
            self._asked = True
            for left_out in self._choices():
                try:
                    self._longer = self._again(left_out)
                except (RuntimeError, ValueError, TypeError, IndexError):
                    continue
                if self._longer is not None:
                    break
        return self._longer

    def _choices(self) -> list[set[int]]:
        """Arguments that may be as long as the batch by chance: none, or one, or all but one."""
        given = tensors_of(self._calls)
        long = {i for i, t in enumerate(given) if t.dim() > 0 and len(t) == self._batch}
        if not long:
            return []  # nothing would grow
        return (
            [set(), *({i} for i in long), *(long - {i} for i in long)] if len(long) > 1 else [set()]
        )

    def _again(self, left_out: set[int]) -> list[Use] | None:
        calls = self._grown(left_out)
        with self._recorder.rerun() as longer:
            outs = [self._recorder.root(*args, **kwargs) for args, kwargs in calls]
        if [id(use.owner) for use in longer] != [id(use.owner) for use in self._uses]:
            return None
        ends = [t for t in tensors_of(outs) if t.requires_grad]
        self._total = torch.stack([t.sum().float() for t in ends]).sum() if ends else None
        return list(longer)

    def _grown(self, left_out: set[int]) -> Any:
        def longer(number: int, value: Tensor) -> Tensor:
            batched = number not in left_out and value.dim() > 0 and len(value) == self._batch
            return torch.cat([value, value[-1:]]).detach() if batched else value

        given = enumerate(tensors_of(self._calls))
        return with_tensors(self._calls, [longer(number, value) for number, value in given])


def _walk(graph: Graph, leaf: Node, entry: Entry) -> list[Any]:
    """Nodes at the end of an entry's way, in the order in which they ran."""
    slots: set[Any] = set() if leaf is None else {(leaf, 0)}
    nodes: set[Any] = set()
    for name, operand in zip(entry.path, entry.operands, strict=True):
        readers = [reader for slot in slots for reader in graph.consumers.get(slot, [])]
        nodes = {node for node, place in readers if place == operand and node.name() == name}
        slots = {(node, number) for node in nodes for number in graph.numbers.get(node, {0})}
    return sorted(nodes, key=lambda node: int(node._sequence_nr()))
