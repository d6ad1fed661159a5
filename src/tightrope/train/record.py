"""The record of a run: everything a reader needs to judge its guarantee, and nothing private."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

from tightrope.evidence.run_facts import IsolationFacts, RunFacts
from tightrope.process import Process
from tightrope.theorems.stopping_times import covering
from tightrope.train.arithmetic import Arithmetic

__all__ = ["RunRecord"]


@final
@dataclass(frozen=True)
class RunRecord:
    """Public facts about a run, taken from the objects that ran.

    now: what the run claims at present, where it is in this process; a copy of a record has none.
    """

    process: Process
    steps: int
    private: bool
    not_private_because: tuple[str, ...]
    noise: str
    sampling: str
    clip: str
    sensitivity: float
    sensitivity_charged: float
    arithmetic: Arithmetic
    expected_batch_size: float
    optimizer: str
    parameters: int
    ranks: int
    views: int
    data: str
    isolation: IsolationFacts | None = None
    now: Callable[[], Process] | None = field(default=None, compare=False, repr=False)

    def is_current(self) -> bool:
        """Does the record still cover what its run has released?"""
        return self.now is None or covering(self.now()) == covering(self.process)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"now": None}

    def facts(self, **more: Any) -> RunFacts:
        """The section `run` of this run's certificate; `more` is what the record does not know."""
        return RunFacts(
            kind="training",
            private=self.private,
            not_private_because=self.not_private_because,
            steps=self.steps,
            clip=self.clip,
            sensitivity=self.sensitivity,
            noise=self.noise,
            sampling=self.sampling,
            settings={
                **self.arithmetic.facts(),
                "sensitivity_charged": self.sensitivity_charged,
                "expected_batch_size": self.expected_batch_size,
                "optimizer": self.optimizer,
                "parameters": self.parameters,
                "ranks": self.ranks,
                "views": self.views,
                "data": self.data,
            },
            isolation=self.isolation,
            **more,
        )
