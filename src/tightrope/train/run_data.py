"""The dataset of a run: pinned when it first comes, drawn from while it is what it was."""

from __future__ import annotations

from typing import final

from tightrope.errors import InvalidInput
from tightrope.train.distributed import check_shards, from_all_ranks
from tightrope.train.feed import Rows, Ticket, draw_ticket
from tightrope.train.fingerprint import fingerprint_of_shards
from tightrope.train.pinned import PinnedData
from tightrope.train.samplers import AbstractSampler, Indices

__all__ = ["Loops", "RunData"]


@final
class Loops:
    """Loops over batches that are still good: none whose batch was abandoned."""

    def __init__(self) -> None:
        self._abandoned = 0

    def begin(self) -> int:
        """The name of a loop."""
        return self._abandoned

    def abandon(self) -> None:
        """All loops end here: what was drawn for them is drawn again."""
        self._abandoned += 1

    def check(self, loop: int) -> None:
        if self._abandoned != loop:
            raise InvalidInput(
                "A batch of this loop was abandoned, and is drawn again by the next loop. Start a "
                "new loop over batches(...), and leave this one."
            )


@final
class RunData:
    """What a run knows of its data, once it has some.

    fingerprint: of the data of all ranks; see `evidence.commitment` for what is published of it.
    """

    def __init__(self) -> None:
        self.pinned: PinnedData | None = None
        self.fingerprint: str | None = None
        self.drawn = False  # is there a batch that no step was announced for?

    def watch(self, rows: Rows, name: str | None, *, within_epoch: bool) -> Rows:
        """Take these rows as the data of the run, or see that they still are."""
        if self.pinned is None:
            self._pin(PinnedData(rows, name))
        else:
            self.pinned.accept(rows, within_epoch=within_epoch)
        assert self.pinned is not None
        return self.pinned.rows

    def _pin(self, pinned: PinnedData) -> None:
        named = from_all_ranks(pinned.named)
        if any(named) and not all(named):
            raise InvalidInput(
                "Some ranks name their data (fingerprint=...) and others do not, so nobody can "
                "compare them. Give a name on all ranks, or on none."
            )
        if len(named) > 1 and not any(named):
            check_shards(pinned.rows)
        self.fingerprint = fingerprint_of_shards(from_all_ranks(pinned.fingerprint))
        self.pinned = pinned

    @property
    def rows(self) -> Rows | None:
        return None if self.pinned is None else self.pinned.rows

    @property
    def description(self) -> str:
        """How far the content was compared, for the certificate."""
        return "none were given" if self.pinned is None else self.pinned.description

    def draw(self, sampler: AbstractSampler) -> tuple[Indices, Ticket]:
        """The next batch and its announcement, of data that are still what they were."""
        if self.pinned is None:
            raise InvalidInput("This run has no data to draw from yet; call watch(data).")
        if self.drawn:
            raise InvalidInput(
                "A batch was drawn and no step announced for it. Drawing again until a batch "
                "pleases is not private: expect() every batch that is drawn, or abandon_batch()."
            )
        self.pinned.check_writes()
        self.drawn = True
        return draw_ticket(sampler, self.pinned.rows.length)

    def changed(self) -> bool:
        """Have the data changed since the run began? Reads arrays in whole."""
        return self.pinned is not None and self.pinned.look_again()
