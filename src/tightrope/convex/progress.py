"""Progress of a fit, told by the data themselves: algorithms need not know of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import final

from tightrope.convex.rows import Block, Data, Scaling

__all__ = ["WatchedData"]


@final
class WatchedData:
    """Rows that call `on_pass()` before each pass over them."""

    def __init__(self, inner: Data, on_pass: Callable[[], None]) -> None:
        self._inner, self._on_pass = inner, on_pass
        self.width, self.divisible = inner.width, inner.divisible

    @property
    def count(self) -> int:
        return self._inner.count

    @property
    def scaling(self) -> Scaling:
        return self._inner.scaling

    def blocks(self) -> Iterator[Block]:
        self._on_pass()
        return self._inner.blocks()

    def rescaled(self, scaling: Scaling) -> WatchedData:
        return WatchedData(self._inner.rescaled(scaling), self._on_pass)

    def part(self, at: slice) -> Block:
        if at.start == 0:
            self._on_pass()
        return self._inner.part(at)
