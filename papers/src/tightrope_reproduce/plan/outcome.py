"""What a plan says."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from tightrope.errors import InvalidInput
from tightrope.guarantee import gaussian as profile
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.compose import compose
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process.convex import SkipSGD, StopSGD
from tightrope.theorems.last_iterate.sampled import HiddenSkip, HiddenStop, HiddenStopRenyi
from tightrope.theorems.last_iterate.steps import step_mu
from tightrope.validate import FloatArray, check_count
from tightrope_reproduce.formulas.last_iterates import skip_mu_curve

__all__ = ["ConvexPlan"]


@final
@dataclass(frozen=True)
class ConvexPlan:
    """A process to run, and what is proved about its privacy and its error.

    `excess_loss` bounds E[F(W)] - min F over records drawn independently from one distribution, F
    the expected loss; the privacy statements need no such assumption. `smoothing_scale` > 0 means:
    run on the loss convolved with N(0, smoothing_scale^2 I).
    """

    process: SkipSGD | StopSGD
    epsilon: float
    delta: float
    excess_loss: float
    private_records: int
    tasks: int = 1
    smoothing_scale: float = 0.0

    @property
    def step_size(self) -> float:
        return self.process.step_size

    @property
    def noise_std(self) -> float:
        """Standard deviation of the noise on each gradient."""
        return self.process.noise_std

    def guarantee(self, index: int | None = None) -> Guarantee:
        """What holds for the private record at `index` (counted from 1); None: for all of them."""
        if isinstance(self.process, StopSGD):
            run = replace(self.process, index=index)
            if self.tasks == 1:
                return HiddenStop.guarantee(run)
            ways = (
                compose([HiddenStop.guarantee(run)], [self.tasks]),
                compose([HiddenStopRenyi.guarantee(run)], [self.tasks]),
                GaussianGuarantee(step_mu(run) * math.sqrt(self.tasks) * (1.0 + 1e-14)),
            )
            return min(ways, key=lambda found: found.epsilon(self.delta).upper)
        return HiddenSkip.guarantee(replace(self.process, index=self._private(index)))

    def epsilon_at(self, index: int) -> float:
        """Epsilon of the record at `index`, at the plan's delta."""
        return self.guarantee(index).epsilon(self.delta).upper

    def epsilon_curve(self) -> FloatArray:
        """Epsilon of every private record of a pass with a secret start, in the order of the pass.

        The record is used with probability p, so p delta(eps; mu) = delta.
        """
        if not isinstance(self.process, SkipSGD):
            raise InvalidInput("The curve is for SkipSGD; ask epsilon_at(index) for one record.")
        mus = skip_mu_curve(self.process)[: self.private_records]
        starts = self.process.records // 2 + 1
        used = np.minimum(np.arange(1, self.private_records + 1), starts) / starts
        budget = np.minimum(self.delta / used * (1.0 - 1e-11), 1.0)
        return np.asarray(profile.epsilon_bounds(budget, mus)[1])

    def _private(self, index: int | None) -> int:
        if index is None:
            return self.private_records
        number = check_count(index, "index", low=1)
        if number > self.private_records:
            raise InvalidInput(
                f"Record {number} is public (the private ones are 1 .. {self.private_records}); "
                "nothing is promised about it."
            )
        return number
