"""What has been released so far, and what may still be released.

The ledger is the only place that counts steps. Its process is built from the sampler and the noise
that run, so what is accounted is what is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from tightrope.account import account
from tightrope.errors import InvalidInput
from tightrope.numerics.interval import Interval
from tightrope.process import NoisySGD, Process, Sequence
from tightrope.train.noise import Noise
from tightrope.train.samplers import AbstractSampler
from tightrope.validate import check_delta, check_epsilon

__all__ = ["Budget", "Ledger"]

# No run is longer; an infinite allowance is reported as this number of steps.
LONGEST_RUN = 2**40


@final
@dataclass(frozen=True)
class Budget:
    """The most privacy a run may spend: (epsilon, delta)."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", float(check_epsilon(self.epsilon)))
        object.__setattr__(self, "delta", float(check_delta(self.delta)))
        if self.delta >= 1.0:
            raise InvalidInput(
                f"A budget with delta = {self.delta} protects nobody. Choose delta far below one "
                "over the number of people in the data, for example 1e-5."
            )


@final
class Ledger:
    """Counts releases and turns the count into a process and its certified epsilon."""

    def __init__(
        self, sampler: AbstractSampler, noise: Noise, budget: Budget | None, history: Any | None
    ) -> None:
        self._sampler, self._noise, self._history = sampler, noise, history
        self.budget = budget
        self.released = 0
        self.lost = 0
        self._epsilons: dict[tuple[int, float], Interval] = {}
        self._allowed: int | None = None

    def number(self, step: int) -> int:
        """How many releases there have been once step number `step` of the weights is out.

        Larger than `step` when a crash lost weights whose release was already written down.
        """
        return step + self.lost

    def count(self, step: int) -> None:
        """Step number `step` is about to be released. A replayed release is the same release."""
        self.released = max(self.released, self.number(step))

    def process(self, steps: int | None = None) -> Process:
        """The process of `steps` steps (those released so far) and of the history before them."""
        run = NoisySGD(
            sampling=self._sampler.sampling,
            noise_multiplier=self._noise.noise_multiplier,
            steps=self.released if steps is None else steps,
            adjacency=self._sampler.adjacency,
        )
        return run if self._history is None else Sequence((self._history, run))

    def epsilon(self, delta: float, steps: int | None = None) -> Interval:
        """Certified epsilon of `steps` steps (those released so far)."""
        count = self.released if steps is None else steps
        if count == 0 and self._history is None:
            check_delta(delta)
            return Interval.exact(0.0)
        if (count, delta) not in self._epsilons:
            self._epsilons[count, delta] = account(self.process(count)).epsilon(delta)
        return self._epsilons[count, delta]

    @property
    def steps_allowed(self) -> int:
        """The largest number of steps whose certified upper epsilon is within the budget."""
        if self._allowed is None:
            self._allowed = LONGEST_RUN if self.budget is None else self._steps_within(self.budget)
        return self._allowed

    def forget_allowance(self) -> None:
        """The budget was changed; work the allowance out anew when it is needed."""
        self._allowed = None

    def _steps_within(self, budget: Budget) -> int:
        def within(steps: int) -> bool:
            return self.epsilon(budget.delta, steps).upper <= budget.epsilon

        if not within(0):
            return 0
        return _largest(within)


def _largest(holds: Callable[[int], bool]) -> int:
    """The largest whole number for which a property that once lost stays lost still holds."""
    bad = 1
    while bad < LONGEST_RUN and holds(bad):
        bad *= 2
    good = bad // 2
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return good
