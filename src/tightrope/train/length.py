"""How long a run is, as far as that was said before its first step.

Who stops a run by looking at it, lets its length depend on the data: epsilon of the steps taken is
then too small. What may be claimed depends on what was fixed before the first step:
 - a plan or a budget, which the run keeps to: the claim is that of the longest run they allow;
 - a length that the first loop asked for: the claim is that of the length asked for, at 0.99 of
   delta, because nothing holds the run to it; once it is passed, the rest of delta has to do;
 - that it will be stopped at will: the claim holds at every stopping time, with all of delta
   (`theorems.stopping_times`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from tightrope.errors import InvalidInput
from tightrope.process import Process, StoppedAtWill
from tightrope.validate import check_count

__all__ = ["Length", "Claim"]


@final
@dataclass(frozen=True)
class Claim:
    """What a run may state, the guarantee of `process`, and why it is that process.

    length: "planned", "budget", "asked", "at will", or "nothing released".
    """

    process: Process
    length: str


@final
class Length:
    """What was said about the length of a run before its first step."""

    def __init__(self) -> None:
        self.planned: int | None = None
        self.at_will = False
        self.asked: int | None = None

    def plan(self, steps: int | None) -> None:
        """Keep to so many steps; None: stop at will."""
        self.planned = None if steps is None else check_count(steps, "steps", low=1)
        self.at_will = steps is None

    def ask(self, steps: int) -> None:
        """The last one before the first step counts."""
        self.asked = steps

    def state(self) -> dict[str, Any]:
        return {"planned": self.planned, "at_will": self.at_will, "asked": self.asked}

    def resume(self, state: dict[str, Any]) -> None:
        """What was said when the run began holds; nothing else can be said now."""
        said, before = (self.planned, self.at_will), (state["planned"], state["at_will"])
        if said not in ((None, False), before):
            raise InvalidInput(
                f"This run was begun with the plan {_told(*before)}, and now it is to be "
                f"{_told(*said)}. A plan holds only if it was made before the first step: resume "
                "without one, or with the same."
            )
        self.planned, self.at_will, self.asked = *before, state["asked"]

    def unbound(self, taken: Process) -> Claim:
        """The claim of a run that nothing holds to a length."""
        if self.at_will:
            return Claim(StoppedAtWill(taken), "at will")
        process = StoppedAtWill(taken, self.asked or 0)  # 0: a crash came before it was stored
        return Claim(process, "asked" if process.within else "at will")


def _told(planned: int | None, at_will: bool) -> str:
    return "to stop at will" if at_will else "none" if planned is None else f"{planned} steps"
