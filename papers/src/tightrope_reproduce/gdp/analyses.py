"""One run by every analysis the paper compares, and by the exact one.

The moments accountant here takes the orders of TensorFlow Privacy's table of tenths, which gives
all nine epsilons the paper prints; the coarser table of its footnote 13 would give 13.33 for the
printed 13.27.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from tightrope.accounting import Account, account
from tightrope.guarantee.estimate import Estimate
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.renyi import RenyiGuarantee
from tightrope.guarantee.renyi.closed_forms import classical_delta, classical_epsilon
from tightrope.numerics.interval import Interval
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.theorems.catalog import ANALYSES
from tightrope.validate import FloatArray

__all__ = ["Analyses", "MNIST_RATE", "ORDERS", "epochs_of"]

MNIST_RATE = 256 / 60_000
ORDERS = np.concatenate([1.0 + np.arange(1, 100) / 10.0, np.arange(12.0, 64.0)])
_COMPARED = tuple(a for a in ANALYSES if a.key in {"exact", "improved-moments", "moments", "clt"})


def epochs_of(epochs: float, noise_multiplier: float, rate: float = MNIST_RATE) -> NoisySGD:
    """So many epochs: steps = round(epochs / rate), at least one."""
    return NoisySGD(PoissonSampling(rate), noise_multiplier, max(round(epochs / rate), 1))


@final
@dataclass(frozen=True)
class Analyses:
    run: NoisySGD

    @cached_property
    def account(self) -> Account:
        return account(self.run, _COMPARED)

    def _outcome(self, key: str) -> Any:
        return next(f.outcome for f in self.account.findings if f.key == key)

    # --- the central limit theorem: an estimate, printed in the paper as a guarantee ------------
    @property
    def clt(self) -> Estimate:
        estimate: Estimate = self._outcome("clt")
        return estimate

    @property
    def mu(self) -> float:
        curve = self.clt.curve
        assert isinstance(curve, GaussianGuarantee)
        return curve.mu

    # --- the moments accountant: a bound --------------------------------------------------------
    @cached_property
    def _gammas(self) -> FloatArray:
        moments: RenyiGuarantee = self._outcome("moments")
        return np.asarray(moments.curve(ORDERS))

    def moments_epsilon(self, delta: float) -> float:
        return float(np.min(classical_epsilon(ORDERS, self._gammas, delta)))

    def moments_delta(self, epsilon: float) -> float:
        return float(np.min(classical_delta(ORDERS, self._gammas, epsilon)))

    def improved_epsilon(self, delta: float) -> float:
        """The same divergences, all real orders, the optimal conversion of A Better Bound."""
        improved: RenyiGuarantee = self._outcome("improved-moments")
        return improved.epsilon(delta).upper

    # --- the truth ------------------------------------------------------------------------------
    def epsilon(self, delta: float) -> Interval:
        return self.account.epsilon(delta)

    def delta(self, epsilon: float) -> Interval:
        return self.account.delta(epsilon)
