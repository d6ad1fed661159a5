"""A progress bar that shows what matters: steps, certified epsilon, time left."""

from __future__ import annotations

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

from tightrope.train.optimizer import PrivateOptimizer

__all__ = ["ProgressBar"]

# Epsilon is recomputed for the display at most this often, and for at most this share of the time.
SECONDS_BETWEEN_EPSILONS = 2.0
LARGEST_SHARE = 0.05


@final
class ProgressBar:
    """Rich bar with running epsilon and ETA; silent when `shown` is False."""

    def __init__(self, run: PrivateOptimizer, steps: int, delta: float, shown: bool) -> None:
        self._run, self._delta, self._shown = run, delta, shown
        self._next_epsilon = 0.0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        record = run.record()
        name = "private training" if record.private else "NOT PRIVATE (see record)"
        self._task = self._bar.add_task(name, total=steps, facts="")

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

    def _show_epsilon(self) -> None:
        """With the step it belongs to: between two updates the count runs ahead of it."""
        epsilon = self._run.epsilon(self._delta).upper
        facts = f"step {self._run.steps}: ε ≤ {epsilon:.4g} at δ = {self._delta:g}"
        self._bar.update(self._task, facts=facts)
