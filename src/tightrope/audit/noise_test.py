"""Is the noise of a run as large as it claims? A chi-square test of what was added to the sums.

Statement: the attacker knows the canaries and everybody else's part, so the released sums less what
    is known are the noise. Under the claim its coordinates (in canaries' directions and all others)
    are independent N(0, claimed^2) in units of what one canary moves the sum by; a sum of d of
    their squares over claimed^2 is chi-square with d degrees of freedom. Asked of all the noise, of
    each parameter, of each step and of each parameter in each step, with a quarter of the allowed
    miss for each of these families, divided evenly within it. If a part's sum of squares is S, its
    noise is at most sqrt(S / q), q the quantile of chi-square at the part's miss.
Conditions: Gaussian noise, independent of what it is added to.
Validity: bound, false alarm at most `miss`.
Source: Neyman and Pearson 1933, for the variance of a Gaussian; Bonferroni.
Error: rounding of the released sums adds to the squares, so it can hide but not cause an alarm.
    Noise at 0.7 of the claim is found with 95 % once there are 150 coordinates in all (miss 0.005).
Vectors: tests/attacks/test_audit_evidence.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import chi2

from tightrope.accounting import account
from tightrope.errors import DoesNotApply, InvalidInput, NotCertified
from tightrope.process import NoisySGD, Process, Sequence
from tightrope.validate import check_positive, check_real

_LEAST = 0.1  # noise multiplier
_LEAST_MISS = 1e-100  # quantiles at less are too small for a double


@final
@dataclass(frozen=True)
class NoiseSeen:
    """Sums of squares of the noise, (steps, parameters), and how many coordinates each has."""

    squares: tuple[tuple[float, ...], ...]
    coordinates: tuple[int, ...]

    def __post_init__(self) -> None:
        shape, count = np.shape(self.squares), np.asarray(self.coordinates)
        if len(shape) != 2 or 0 in shape or shape[1:] != count.shape or np.min(count) < 1:
            raise InvalidInput(
                f"squares must have the shape (steps, parameters), and there must be one number of "
                f"coordinates for each parameter; got shapes {shape} and {count.shape}."
            )
        if not (np.isfinite(self.squares).all() and np.min(self.squares) >= 0.0):
            raise InvalidInput("Sums of squares of noise must be finite and at least 0.")

    def most(self, miss: float) -> tuple[float, float]:
        """The most noise that all steps can have had (in all or one parameter), and one of them."""
        squares, sizes = np.array(self.squares), np.array(self.coordinates, dtype=np.float64)
        steps, size, each = len(squares), sizes.sum(), miss / 4.0
        whole = _most(squares.sum(), steps * size, each)
        in_parameter = _most(squares.sum(0), steps * sizes, each)
        in_step = _most(squares.sum(1), size, each)
        in_both = _most(squares, sizes, each)
        return min(whole, in_parameter), min(in_step, in_both)

    def test(self, process: NoisySGD, miss: float, delta: float) -> NoiseTest:
        """Hold what was seen against the noise that this process claims."""
        claimed = check_positive(process.noise_multiplier, "noise_multiplier")
        check_real(miss, "miss", low=_LEAST_MISS, high=1.0)
        always, once = self.most(miss)
        epsilon = 0.0
        if always < claimed:  # a record's gradient may lie in that parameter alone
            epsilon = _epsilon(replace(process, noise_multiplier=_reached(always)), delta)
        if once < claimed:
            one = replace(process, steps=1, noise_multiplier=_reached(once))
            rest = replace(process, steps=process.steps - 1)
            epsilon = max(epsilon, _epsilon(Sequence((rest, one)), delta))
        coordinates = len(self.squares) * sum(self.coordinates)
        return NoiseTest(claimed, min(always, once), coordinates, miss, epsilon)


def _most(squares: ArrayLike, degrees: ArrayLike, miss: float) -> float:
    """The largest noise multiplier that the least of these sums allows, all together at `miss`."""
    quantile = chi2.ppf(miss / np.size(squares), degrees)
    return float(np.sqrt(np.min(squares / quantile)))


def _reached(noise: float) -> float:
    """Noise that the exact analyses reach: with less of it a run loses no less."""
    return max(noise, _LEAST)


def _epsilon(process: Process, delta: float) -> float:
    """A lower bound; 0 where none is known: what was seen refutes the claim without one, too."""
    try:
        return account(process).epsilon(delta).lower
    except (DoesNotApply, NotCertified):
        return 0.0


@final
@dataclass(frozen=True)
class NoiseTest:
    """The least noise multiplier found, of all the noise, of a step or of a parameter.

    noise_upper: with chance 1 - miss, no more noise than this was there. epsilon: of the process
    with that little noise (what it loses where the analysis is exact, else what can be certified of
    it); 0 where the claim stands.
    """

    claimed: float
    noise_upper: float
    coordinates: int
    miss: float
    epsilon: float

    @property
    def refuted(self) -> bool:
        """Was there less noise than claimed?"""
        return self.noise_upper < self.claimed
