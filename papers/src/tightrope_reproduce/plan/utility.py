"""Expected excess loss of projected stochastic gradient descent, with its best step size.

Stochastic gradients g with E|g|^2 <= G^2, start within distance B of the minimiser, step size eta:
the mean over m consecutive iterates w_s, .., w_{s+m-1}, started anywhere within B, satisfies
    E F(w) - F* <= B^2/(2 eta m) + eta G^2/2,                  = B G/sqrt(m) at eta = B/(G sqrt(m)).
Feldman et al. 2018, Theorem 28, prints 4 R G/sqrt(T) with B = 2 R (the constant is 2), an ascent
sign in the update, and the mean of w_1 .. w_T where the proof gives w_0 .. w_{T-1}: for w_1 .. w_T
one more step enters the sum, B^2/(2 eta T) + eta G^2 (T+1)/(2 T).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

__all__ = ["StepChoice", "best_step"]


@final
@dataclass(frozen=True)
class StepChoice:
    step_size: float
    excess_loss: float


def best_step(
    distance: float, second_moment: float, averaged: int, *, steps: int, largest: float = math.inf
) -> StepChoice:
    """The step size <= `largest` with the least bound; `steps` gradients enter the sum."""
    eta = min(distance / math.sqrt(second_moment * steps), largest)
    loss = distance**2 / (2.0 * eta * averaged) + eta * second_moment * steps / (2.0 * averaged)
    return StepChoice(eta, loss * (1.0 + 1e-14))
