"""From the scores of canaries to guesses, counts and ROC points."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tightrope.errors import InvalidInput
from tightrope.validate import FloatArray

__all__ = ["checked", "real_array", "count_correct", "most_correct", "log_likelihood_ratio"]
__all__ += ["roc_points"]

Bits = NDArray[np.bool_]


def checked(scores: ArrayLike, included: ArrayLike) -> tuple[FloatArray, Bits]:
    """One finite score and one coin for each canary."""
    values, bits = real_array(scores, "scores"), np.asarray(included)
    if values.ndim != 1 or values.shape != bits.shape or len(values) == 0:
        raise InvalidInput(
            f"Give one score and one coin for each canary; got shapes {values.shape} and "
            f"{bits.shape}."
        )
    if bits.dtype != np.bool_:
        raise InvalidInput(f"`included` holds True or False for each canary; got {bits.dtype}.")
    if np.isnan(values).any():
        raise InvalidInput("A score is NaN; a canary without a score cannot be ranked.")
    return values, bits


def real_array(values: ArrayLike, name: str) -> FloatArray:
    """As float64; what would lose something on the way is refused."""
    found = np.asarray(values)
    if found.dtype.kind not in "biuf":
        raise InvalidInput(
            f"{name} must hold real numbers; got {found.dtype}. For complex scores, give the "
            "part or the modulus by which they are ranked."
        )
    return np.asarray(found, dtype=np.float64)


def count_correct(scores: FloatArray, included: Bits, guesses: int) -> int:
    """Right guesses when the highest scores are called "in" and as many of the lowest "out".

    Equal scores are taken in the order that is worst for the attacker: present ones first, so that
    the lowest hold as many present and the highest as many absent canaries as they can. No order
    has fewer right guesses, so what these prove, guesses with ties broken by fresh coins prove too,
    whatever the order of the list knows.
    """
    order = np.lexsort((~included, scores))
    out, into = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    return int(np.sum(included[into]) + np.sum(~included[out]))


def most_correct(included: Bits, guesses: int) -> int:
    """Right guesses of the best attack there could be, on canaries with these coins."""
    return count_correct(included.astype(np.float64), included, guesses)


def roc_points(scores: FloatArray, included: Bits) -> tuple[tuple[float, float], ...]:
    """(false positive rate, true positive rate) at every threshold, from (0, 0) to (1, 1)."""
    order = np.argsort(-scores, kind="stable")
    hits, alarms = np.cumsum(included[order]), np.cumsum(~included[order])
    ranked = scores[order]
    last = np.append(ranked[1:] != ranked[:-1], True)  # tied scores pass a threshold together
    hits, alarms = hits[last], alarms[last]
    rates = zip(
        alarms / max(int(np.sum(~included)), 1), hits / max(int(np.sum(included)), 1), strict=True
    )
    return ((0.0, 0.0), *((float(a), float(h)) for a, h in rates))


def log_likelihood_ratio(
    releases: FloatArray, rate: float, noise_multiplier: float, *, replaced: bool = False
) -> FloatArray:
    """ln p_in/p_out of each canary, from releases (steps, canaries) in units of the sensitivity.

    Under the claim a release is N(b, noise_multiplier^2), b = 1 with probability `rate` and else 0;
    without the canary b = 0, or (replaced) b = -1 with probability `rate`. The best test of an
    honest run (Neyman and Pearson). Without claimed noise: the sum.
    """
    variance = noise_multiplier**2
    if variance == 0.0:
        return np.asarray(releases.sum(0))
    present = _log_mixture(rate, (releases - 0.5) / variance)
    absent = _log_mixture(rate, (-releases - 0.5) / variance) if replaced else 0.0
    return np.asarray((present - absent).sum(0))


def _log_mixture(rate: float, exponent: FloatArray) -> FloatArray:
    """ln(1 - rate + rate e^exponent)."""
    if rate == 1.0:
        return exponent
    return np.asarray(np.logaddexp(math.log1p(-rate), math.log(rate) + exponent))
