"""One backward pass, and who is handed a gradient when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, final

from torch import Tensor
from torch.autograd.graph import GradientEdge

from tightrope.errors import InvalidInput
from tightrope.train.gradients.graph import explore
from tightrope.train.gradients.junctions import Junction
from tightrope.train.gradients.plan import UseSource
from tightrope.train.gradients.recorder import Use

if TYPE_CHECKING:
    from tightrope.train.gradients.passes import Work

__all__ = ["Early", "Way", "backward_pass"]

Way = tuple[UseSource, Junction]
Early = Callable[[Use | Junction], bool]  # whether one should not wait for the end of a pass


def backward_pass(
    work: Work,
    arrived: Callable[..., None],
    entered: Callable[[Way, Tensor | None], None],
    *,
    early: Early,
    keep: bool,
) -> list[Tensor | None]:
    """Calls `arrived` with every use and its gradients, and `entered` with every junction and its.

    What is marked `early` is handed over as soon as its gradient is there, which is then let go;
    the others wait for the end of the pass. Returns the gradients of `work.direct`.
    """
    through = [use for use in work.uses if early(use) and _passed_through(work, use)]
    first = [use for use in work.uses if use not in through] if through else work.uses
    ways, now = _parted(work.ways, early)
    arrivals = [_Arrival(use.edges[0], partial(arrived, use)) for use in through]
    arrivals += [_Arrival(way[1].edge, partial(entered, way)) for way in now]
    if not keep:  # a junction holds what its parameter met, and goes when it is done
        work.ways = []
    del now
    try:
        edges: list[Any] = [edge for use in first for edge in use.edges]
        edges += [way.edge for _, way in ways] + list(work.direct)
        grads = deque(work.backward(edges, keep=keep))
    finally:
        for arrival in arrivals:
            arrival.remove()
    _refuse_unreached(work, [arrival for arrival in arrivals if arrival.waiting])
    for use in first:
        arrived(use, *[grads.popleft() for _ in use.edges])
    for way in ways:
        entered(way, grads.popleft())
    return list(grads)


def _parted(ways: list[Way], early: Early) -> tuple[list[Way], list[Way]]:
    """Those that wait for the end, and those that do not."""
    late, now = list[Way](), list[Way]()
    for way in ways:
        (now if way[1].passed_through and early(way[1]) else late).append(way)
    return late, now


def _passed_through(work: Work, use: Use) -> bool:
    """Whether the backward pass goes on behind the layer, so that its node runs."""
    if len(use.edges) != 1 or not use.entered or use in work.ends:
        return False
    return all(getattr(node, "variable", None) is None for node, _ in use.entered)


def _refuse_unreached(work: Work, waiting: list[_Arrival]) -> None:
    """What got no gradient must be something that the losses do not depend on."""
    if not waiting:
        return
    reached = {slot[0] for slot in explore(work.losses, [], set()).consumers}
    reached.add(work.losses.grad_fn)  # which nothing reads
    if any(arrival.node in reached for arrival in waiting):
        raise InvalidInput(
            "a layer got no gradient although the losses depend on it: the model's input requires "
            "gradients itself (pass it detached, x.detach()), or what a layer reads was detached "
            "in this batch and not in one before"
        )


@final
class _Arrival:
    """A gradient that is handled when it comes; what waited for it is let go then."""

    def __init__(self, edge: GradientEdge, handle: Callable[[Tensor | None], None]) -> None:
        self.node, self._number = edge.node, edge.output_nr
        self._handle: Callable[[Tensor | None], None] | None = handle
        self._hook = edge.node.register_prehook(self._come)

    @property
    def waiting(self) -> bool:
        return self._handle is not None

    def remove(self) -> None:
        self._hook.remove()

    def _come(self, grad_outputs: tuple[Tensor, ...]) -> None:
        handle, self._handle = self._handle, None
        assert handle is not None
        handle(grad_outputs[self._number])
