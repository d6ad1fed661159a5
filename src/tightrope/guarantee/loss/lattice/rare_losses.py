"""Rare large losses ("jumps") summed directly, beside the lattice of the small ones.

Where T * rate << 1, or near the phase transition, the loss of one step is a narrow spike with a
heavy tail: no exponential tilt balances the two, and a lattice that resolves the spike cannot
reach the tail. So (small + jump)^T = sum_k C(T, k) jump^k small^(T-k): jumps live on grids of
their own, and every term is a sum of positive terms
    C(T, k) sum over the sum of k jumps of mass * E[(1 - e^{eps - jumps - small sum})_+],
whose last factor comes from the tables of the small part. Nothing is subtracted, so the result is
relatively accurate however small it is. More than K jumps have probability at most
C(T, K+1) p^{K+1} (docs/certificate_argument.md, 6.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tightrope.guarantee.loss.abstract import JumpLaw, Jumps, Side
from tightrope.numerics.lattice import LatticeMeasure
from tightrope.numerics.lattice_sums import compound
from tightrope.numerics.quadrature import log_sum_exp
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray

_CHUNK = 8192  # losses at a time: keeps the work space small


def log_jump_sum(
    law: JumpLaw,
    call: Callable[[FloatArray], tuple[FloatArray, FloatArray]],
    epsilon: float,
    side: Side,
) -> tuple[float, float]:
    """ln of sum of mass * E[(1 - e^{eps - loss - rest})_+], and ln of the bound on its error.

    Losses are off by a few ulp; the call function decreases, so moving them the safe way bounds
    what that does.
    """
    total = slack = rounding = -math.inf
    for start in range(0, len(law.losses), _CHUNK):
        losses, logs = (x[start : start + _CHUNK] for x in (law.losses, law.log_masses))
        slip = 8.0 * ULP * (abs(epsilon) + np.abs(losses))
        value, error = call(epsilon - losses + (-slip if side == "upper" else slip))
        total = float(np.logaddexp(total, log_sum_exp(logs + value)))
        slack = float(np.logaddexp(slack, log_sum_exp(logs + error)))
        if law.fft is not None:
            wrong = _log_fft_error(law.fft, losses, np.logaddexp(value, error))
            rounding = np.logaddexp(rounding, wrong)
    relative = total + math.log(law.relative_error + 8000.0 * ULP)
    return total, float(np.logaddexp.reduce([slack, rounding, relative]))


def _log_fft_error(fft: LatticeMeasure, losses: FloatArray, value: FloatArray) -> float:
    """ln of what errors of the weights do: each at most u, the sum of squares v^2, the sum e."""
    each = fft.log_scale - fft.rate * losses + value
    top = float(each.max())
    terms = np.exp(each - top)
    rounding = min(
        fft.uniform_error * float(terms.sum()), fft.square_error * float(np.linalg.norm(terms))
    )
    return top + math.log(1.01 * (rounding + fft.error) + 1e-300)


def compound_jumps(
    jumps: Jumps,
    count: int,
    begin: float,
    end: float,
    step: float,
    size: int,
    tilt: float,
    side: Side,
) -> JumpLaw:
    """The sum of any number of jumps but none, out of `count` steps."""
    one = jumps.measure(side, step, tilt, (begin, end), 0.0)
    law = compound(one, count, size)
    weights = law.weights.copy()
    if one.first > 0.5 * step or side == "lower":
        weights[0] = 0.0  # no jump at all
    losses = step * np.arange(len(weights), dtype=np.float64)
    with np.errstate(divide="ignore"):
        logs = np.log(weights) + law.log_scale - tilt * losses
    slack = 8.0 * ULP * (abs(law.log_scale) + tilt * float(losses[-1]) + 20.0)
    return JumpLaw(losses, logs, slack, replace(law, weights=np.empty(0)))
