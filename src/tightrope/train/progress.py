"""A progress bar that shows what matters: steps, certified epsilon, time left."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from tightrope.numerics.digits import rounded_up
from tightrope.train.optimizer import PrivateOptimizer

__all__ = ["ProgressBar"]

_WHOLE = Column(no_wrap=True)  # in a narrow terminal the bar gives way, not the numbers

# Epsilon is recomputed for the display at most this often, and for at most this share of the time.
SECONDS_BETWEEN_EPSILONS = 2.0
LARGEST_SHARE = 0.05


@final
class ProgressBar:
    """Rich bar with running epsilon and ETA; silent when `shown` is False."""

    def __init__(self, run: PrivateOptimizer, steps: int, delta: float, shown: bool) -> None:
        """steps: how many are asked for; the bar ends earlier where the budget does."""
        self._run, self._delta, self._shown = run, delta, shown
        self._next_epsilon, self._epsilon, self._measured = 0.0, "", ""
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
            MofNCompleteColumn(table_column=_WHOLE),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(table_column=_WHOLE),
            TextColumn("<"),
            TimeRemainingColumn(table_column=_WHOLE),
            console=Console(stderr=True),
            disable=not shown,
            expand=True,
        )
        record = run.record()
        name = "private" if record.private else "NOT PRIVATE (see record)"
        allowed = run.ledger.steps_allowed - run.ledger.released
        self._task = self._bar.add_task(name, total=min(steps, max(allowed, 0)), facts="")

    def __enter__(self) -> ProgressBar:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._shown:
            self._show_epsilon()
        self._bar.stop()

    def advance(self) -> None:
        if not self._shown:
            return
        now = time.monotonic()
        if now >= self._next_epsilon:
            self._show_epsilon()
            cost = time.monotonic() - now
            self._next_epsilon = now + max(SECONDS_BETWEEN_EPSILONS, cost / LARGEST_SHARE)
        self._bar.advance(self._task)

    def measured(self, name: str, value: float) -> None:
        """Show what was measured on public data."""
        self._measured = f" {name} {value:.3f}"
        self._show_facts()

    def _show_epsilon(self) -> None:
        """With the step it belongs to: between two updates the count runs ahead of it."""
        epsilon = self._run.spent(self._delta).upper
        told = f"ε ≤ {rounded_up(epsilon, 3)}" if math.isfinite(epsilon) else "ε unbounded"
        self._epsilon = f"step {self._run.steps}: {told}, δ {self._delta:g}"
        self._show_facts()

    def _show_facts(self) -> None:
        self._bar.update(self._task, facts=self._epsilon + self._measured)
