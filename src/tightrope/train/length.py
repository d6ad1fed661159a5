"""How long a run is, as far as that was said before its first step.

Who stops a run by looking at it, lets its length depend on the data: epsilon of the steps taken is
then too small. What may be claimed depends on what was fixed before the first step:
 - a plan or a budget, which the run keeps to: the claim is that of the longest run they allow;
 - that it will be stopped at will: the claim holds at every stopping time, with all of delta
   (`theorems.stopping_times`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from tightrope.errors import InvalidInput
from tightrope.process import Process
from tightrope.validate import check_count

__all__ = ["Length", "Claim"]


@final
@dataclass(frozen=True)
class Claim:
    """What a run may state, the guarantee of `process`, and why it is that process.

    length: "planned", "budget", "at will", or "nothing released".
    """

    process: Process
    length: str


@final
class Length:
    """What was said about the length of a run before its first step."""

    def __init__(self) -> None:
        self.planned: int | None = None
        self.at_will = False

    def plan(self, steps: int | None) -> None:
        """Keep to so many steps; None: stop at will."""
        self.planned = None if steps is None else check_count(steps, "steps", low=1)
        self.at_will = steps is None

    def state(self) -> dict[str, Any]:
        return {"planned": self.planned, "at_will": self.at_will}

    def resume(self, state: dict[str, Any]) -> None:
        """What was said when the run began holds; nothing else can be said now."""
        said, before = (self.planned, self.at_will), (state["planned"], state["at_will"])
        if said not in ((None, False), before):
            raise InvalidInput(
                f"This run was begun with the plan {_plan(*before)}, and now it is to be "
                f"{_plan(*said)}. A plan holds only if it was made before the first step: resume "
                "without one, or with the same."
            )
        self.planned, self.at_will = before


def _plan(planned: int | None, at_will: bool) -> str:
    return "to stop at will" if at_will else "none" if planned is None else f"{planned} steps"
