"""The functionals of a trade-off function that its central limit theorem needs.

Statement: for f = T(P, Q) with finitely many pieces, P-masses p and Q-masses q,
    kl = -int ln|f'| = sum p ln(p/q)        kl~ = int |f'| ln|f'| = sum q ln(q/p)
    kappa_j = int |ln|f'||^j = sum p |ln(q/p)|^j,   kappa_j~ the same with q in front.
    Theorem 7 needs, of f_1, ..., f_n together: largest kl -> 0, sums of kl + kl~ -> K, of kappa_2
    and kappa_2~ -> s^2, of kappa_3 and kappa_3~ -> 0; then the limit is G_mu, mu = K/s.
    Renyi: lambda D_{lambda+1}(Q||P) = ln int |f'|^(lambda+1) = ln sum p (q/p)^(lambda+1).
Conditions: P and Q have the same points (no piece is flat or vertical); else a sum is infinite.
Source: Bu, Dong, Long, Su 2019, Appendix B.2 (and Lemma B.2 for f_p); Lemma B.5. Corrected: (11)
    prints |f'|^(alpha - 1) and |f'|^lambda, which for G_1 and order 2 is int |f'| = 1, so D_2 = 0
    where 1 is true; Lemma B.5 itself has the exponent lambda + 1.
Error: rounding of sums; of a curve that is not piecewise linear, that of the pieces put for it.
Vectors: tests/unit/reproduce/test_functionals.py, against closed forms and quadrature.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tightrope.errors import InvalidInput
from tightrope_reproduce.tradeoff.discrete import DiscreteTradeoff

__all__ = ["Functionals", "functionals", "log_moment", "limit"]


class Functionals(NamedTuple):
    kl: float
    kl_other: float  # with a tilde in the paper: weighted by |f'|
    kappa_2: float
    kappa_2_other: float
    kappa_3: float
    kappa_3_other: float


def functionals(curve: DiscreteTradeoff) -> Functionals:
    """All six."""
    ratio = _log_slopes(curve)
    sums = [float(curve.p @ -ratio), float(curve.q @ ratio)]
    for power in (2, 3):
        size = np.abs(ratio) ** power
        sums += [float(curve.p @ size), float(curve.q @ size)]
    return Functionals(*sums)


def limit(curve: DiscreteTradeoff, times: int) -> tuple[float, float]:
    """mu = K/s of Theorem 7 for `times` copies of f, and what its last condition sends to 0."""
    one = functionals(curve)
    k = times * (one.kl + one.kl_other)
    s = math.sqrt(0.5 * times * (one.kappa_2 + one.kappa_2_other))
    return k / s if s > 0.0 else 0.0, times * max(one.kappa_3, one.kappa_3_other)


def log_moment(curve: DiscreteTradeoff, power: float) -> float:
    """lambda D_{lambda+1}(Q||P) at lambda = `power` > 0."""
    if not power > 0.0:
        raise InvalidInput(f"power (lambda, the order minus 1) must be above 0; got {power!r}.")
    exponents = np.log(curve.p) + (power + 1.0) * _log_slopes(curve)
    return float(np.logaddexp.reduce(exponents))


def _log_slopes(curve: DiscreteTradeoff) -> np.ndarray:
    """ln|f'| of the pieces."""
    if not ((curve.p > 0.0) & (curve.q > 0.0)).all():
        raise InvalidInput(
            "The functionals of a trade-off function with a flat or a vertical piece are infinite. "
            "Take pieces whose masses are positive under both laws."
        )
    return np.asarray(np.log(curve.q) - np.log(curve.p))
