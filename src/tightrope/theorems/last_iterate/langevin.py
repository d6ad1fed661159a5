"""Last iterates on random batches as Langevin diffusions: a recursion of their divergence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.renyi import RenyiCurve, RenyiGuarantee
from tightrope.process.convex import SubsampledSGD
from tightrope.theorems.base import (
    Refusal,
    Source,
)
from tightrope.theorems.last_iterate.steps import (
    Contractive,
    contraction,
    step_mu,
)
from tightrope.validate import FloatArray


@final
class HiddenLangevinSampled(Contractive):
    """Noisy SGD on random batches as Langevin diffusion, last iterate (Renyi recursion).

    Statement: q = batch_size / records, 1/sigma = mu_1 = 2 L / (batch_size * noise_std), c = 1 -
        eta lambda. With S = 1 at the start and, at each step,
            S <- q e^{a(a-1)/(2 sigma^2)} S + (1 - q) S^(c^2),
        the last iterate satisfies D_a <= ln S / (a-1).
    Conditions: lambda-strongly convex, beta-smooth loss, step_size < 2 / (lambda + beta), batches
        of fixed size drawn WITHOUT replacement, a public start, replace-one neighbours, last
        iterate only, no clipping.
    Validity: upper bound. It conditions on the batches, so it is linear in q, not quadratic; plain
        composition of sampled Gaussians is smaller for the first thousands of steps.
    Source: Ye, Shokri 2022; Boninsegna's survey, Theorem VII.2. Corrected: the start is S_0^0 = 1
        (the printed "S_0^j = 1 for all j" contradicts the recursion); the sampling is without
        replacement (the text says with); "amplification O(1/n^2)" is not what it delivers.
    Error: relative rounding below 4 steps 2^-52, added.
    Vectors: thm_VII2.
    """

    NAME = "Langevin recursion for noisy SGD on random batches"
    SOURCE = Source("Ye, Shokri 2022", "survey Theorem VII.2", "ys22")
    OF = (SubsampledSGD,)

    @classmethod
    def condition(cls, process: Any) -> Refusal | None:
        reason = super().condition(process)
        if reason is not None:
            return reason
        loss = process.loss
        if loss.strong_convexity == 0.0:
            return Refusal(f"{cls.NAME} needs strong convexity; got 0. Add an l2 regulariser.")
        largest = 2.0 / (loss.strong_convexity + loss.smoothness)
        if process.step_size >= largest:
            return Refusal(
                f"{cls.NAME} needs step_size < 2 / (strong_convexity + smoothness) = {largest:g}; "
                f"got {process.step_size:g}."
            )
        return None

    @classmethod
    def proved(cls, process: SubsampledSGD) -> Guarantee:
        factor = contraction(process.loss, process.step_size)
        term = RecursionTerm(process.rate, step_mu(process), factor, process.steps)
        return RenyiGuarantee(RenyiCurve.of(term), process.adjacency, Validity.BOUND)


_HOPELESS = 1e4  # ln S: no epsilon worth stating follows


@dataclass(frozen=True)
class RecursionTerm:
    """The Renyi curve of the last iterate."""

    rate: float
    step: float
    factor: float
    steps: int

    def upper(self, orders: FloatArray) -> FloatArray:
        log_s = self.log_moments(orders)
        return (log_s + 4.0 * self.steps * 2.0**-52 * (1.0 + log_s)) / (orders - 1.0)

    def log_moments(self, orders: FloatArray) -> FloatArray:
        """ln S at each order, within 2e-13 relative from above; inf for hopeless orders.

        The step is an increasing map, so once it sends v to at most v no later value exceeds v.
        """
        hit = 0.5 * orders * (orders - 1.0) * self.step**2
        log_s = np.zeros(np.shape(orders))
        open_orders = np.ones(np.shape(orders), bool)
        for taken in range(self.steps):
            here, rate, square = open_orders, self.rate, self.factor**2
            log_s[here] = _step(log_s[here], hit[here], rate, square)
            if taken % 64 == 63:
                above = log_s * (1.0 + 1e-13)
                settled = here & (_step(np.where(here, above, 0.0), hit, rate, square) <= above)
                hopeless = here & (log_s > _HOPELESS)
                log_s[settled], log_s[hopeless] = above[settled], np.inf
                open_orders = here & ~settled & ~hopeless
                if not open_orders.any():
                    break
        return log_s


def _step(log_s: FloatArray, hit: FloatArray, rate: float, square: float) -> FloatArray:
    """ln(q e^(hit + ln S) + (1-q) e^(square ln S)), accurate for small and for large logarithms."""
    up, down = hit + log_s, square * log_s
    top = np.maximum(up, down)
    small = np.minimum(up, 1.0), np.minimum(down, 1.0)
    with np.errstate(divide="ignore"):
        large = top + np.log(rate * np.exp(up - top) + (1.0 - rate) * np.exp(down - top))
    near = np.log1p(rate * np.expm1(small[0]) + (1.0 - rate) * np.expm1(small[1]))
    return np.where(top < 1.0, near, large)
