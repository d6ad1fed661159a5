"""One step at a time, in one process, each to its end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, final

from tightrope.entropy import here
from tightrope.errors import InvalidInput

if TYPE_CHECKING:
    from typing import SupportsIndex

__all__ = ["Turn", "NotCopied"]


@final
class Turn:
    """Belongs to one run, and to the process that takes its first step.

    A step begins and ends. One that was interrupted in between stays open: its batch has to be
    abandoned before another is drawn.
    """

    def __init__(self) -> None:
        self._busy = threading.Lock()
        self._home: tuple[int, int] | None = None

    @property
    def open(self) -> bool:
        """Is a step under way, or was one interrupted?"""
        return self._busy.locked()

    def begin(self) -> None:
        now = here()
        self._home = now if self._home is None else self._home
        if self._home != now:
            raise InvalidInput(
                "This run began in another process, and this is a forked copy of it: its releases "
                "would not be counted there. Make a run in each process, or fork before its first "
                "step."
            )
        if not self._busy.acquire(blocking=False):
            raise InvalidInput(
                "An earlier step of this run did not end well, or another thread is in one. If "
                "that had nothing to do with what is in the batch, call abandon_batch() and go on."
            )

    def end(self) -> None:
        if self._busy.locked():
            self._busy.release()


class NotCopied:
    """For what counts releases: those of a copy would not be counted."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        raise InvalidInput(
            "A private run cannot be copied or pickled: the copy's releases would not be counted "
            "in it. Store it with RunFolder, or begin another run with history=run.record()."
        )
