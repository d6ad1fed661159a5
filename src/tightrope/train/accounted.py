"""The face of a run that answers what was released, and what may be said about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tightrope.errors import ModelNotPrivate
from tightrope.numerics.interval import Interval
from tightrope.process import Process
from tightrope.train.describe import certificate_of, record_of, settings_of
from tightrope.train.feed import Rows
from tightrope.train.ledger import Ledger
from tightrope.train.noise import Noise
from tightrope.train.record import RunRecord
from tightrope.train.run_data import RunData
from tightrope.train.samplers import AbstractSampler
from tightrope.validate import check_delta

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

    from tightrope.train.gradients.batch import Engine

__all__ = ["Accounted"]


class Accounted:
    """Answers from the ledger of the objects that run."""

    ledger: Ledger
    data: RunData
    arithmetic: Any
    clip: Any
    sampler: AbstractSampler
    noise: Noise
    gradients: Engine
    optimizer: Optimizer
    expected_batch_size: float
    views: int
    data_key: str
    _held: list[Tensor]  # what this rank has of the weights

    @property
    def process(self) -> Process:
        """What is claimed, from the very objects that ran: of the length that was fixed before."""
        return self.ledger.claim().process

    def epsilon(self, delta: float) -> Interval:
        """Certified epsilon at `delta` that may be stated if the run ends now, for whatever reason.

        That of the plan, the budget, or the length that was asked for before the first step; the
        run can be stopped by looking without making it false. `spent` is smaller.
        """
        return self.ledger.claimed_epsilon(delta)

    def spent(self, delta: float) -> Interval:
        """Certified epsilon of the steps so far, were their number fixed beforehand.

        For a display. A run that is stopped by looking at it may not state it.
        """
        return self.ledger.epsilon(float(check_delta(delta)))

    def odometer(self, delta: float) -> Interval:
        """Certified epsilon that holds at every stopping time, whatever was planned.

        State it if you decided before the first step to state it (`plan(None)`); which of two
        numbers to state must not depend on what they are.
        """
        return self.ledger.odometer(delta)

    def plan(self, steps: int | None) -> None:
        """Fix the length before the first step: the run ends there. None: it is stopped at will.

        Without a plan the claim is that of the budget, or of the length the first loop asks for.
        """
        self.ledger.plan(steps)

    def settle(self, certificate: str | None = None) -> None:
        """The run is over: what it reserved in a ledger and did not use is free again.

        certificate: the SHA-256 of the run's certificate, for the ledger. A Trainer does all this.
        """
        self.ledger.settle(certificate)

    @property
    def steps(self) -> int:
        """The number of the last release that went into the weights.

        After a crash that lost weights, their numbers are spent and the count goes on.
        """
        return self.ledger.taken

    @property
    def exhausted(self) -> bool:
        """Would one more step exceed the budget or the plan?"""
        return self.ledger.exhausted

    def _check_accounted(self, place: int | None) -> None:
        """Before a release, of the sampler's batch `place`."""
        own = self.sampler.belongs_to(self)
        if not own or not self.ledger.accounts_for(self.sampler, self.noise):
            raise ModelNotPrivate(
                "The sampler of this run was exchanged, or its noise for one with other "
                "parameters, which is not what is accounted. Start a new run with "
                "history=run.record() instead."
            )
        if place not in (None, self.steps):
            raise ModelNotPrivate(
                f"This is batch {place} of the sampler, and {self.steps} were released before it: "
                "batches of an epoch were drawn elsewhere, so records could join twice in what "
                "counts as one epoch. Call abandon_batch(), and draw by batches(...) alone."
            )

    @property
    def sensitivity_charged(self) -> float:
        """How far one record moves the sums, rounding included: what the noise is scaled by."""
        charged: float = self.arithmetic.charged(float(self.clip.sensitivity))
        return charged

    @property
    def rows(self) -> Rows | None:
        """The rows of the dataset of this run, once it has one."""
        return self.data.rows

    def mark_weights(self) -> None:
        """Remember the weights as they are now as the outcome of the private steps."""
        self._versions = [part._version for part in self._held]

    @property
    def weights_touched(self) -> bool:
        """Have weights been written to since the last private step?"""
        return self._versions != [part._version for part in self._held]

    def settings(self) -> dict[str, Any]:
        """The settings that privacy rests on, as plain text and numbers."""
        return settings_of(self)

    def record(self) -> RunRecord:
        """Public facts about the run so far."""
        return record_of(self)

    def certificate(self, delta: float) -> dict[str, Any]:
        """The chained certificate of everything released so far; `evidence.certificate.write` it.

        It commits to the data under `data_key`, which stays with the data (RunFolder keeps it).
        """
        return certificate_of(self, delta)
