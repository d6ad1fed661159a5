"""The record of a run: everything a reader needs to judge its guarantee, and nothing private."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from torch import Tensor

from tightrope.evidence.run_facts import RunFacts
from tightrope.process import Process
from tightrope.theorems.stopping_times import covering
from tightrope.train.arithmetic import Arithmetic

__all__ = ["RunRecord", "Sensitive", "StepReport"]


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
            **more,
        )


@final
class Sensitive(NamedTuple):
    """Facts about private data, for the trainer's eyes only: no epsilon covers publishing them.

    Computed when asked for, since asking waits for the device.
    """

    batch: Any  # its sums are used up by the step: noise is added to them in place
    losses: Tensor

    @property
    def batch_size(self) -> int:
        return len(self.losses)

    @property
    def clipped_fraction(self) -> float:
        return float(self.batch.clipped_fraction)

    @property
    def nonfinite(self) -> int:
        """Examples whose gradient was not finite; each contributed zero."""
        return int(self.batch.nonfinite)

    @property
    def mean_norm(self) -> float:
        return float(self.batch.norms.float().mean()) if self.batch_size else 0.0

    @property
    def mean_loss(self) -> float:
        return float(self.losses.float().mean()) if self.batch_size else 0.0


@final
class StepReport(NamedTuple):
    """What one call of step() did. `released` is False for all but the last micro-batch."""

    step: int
    released: bool
    sensitive: Sensitive
