"""Noisy counts that are bought before a fit, and one budget for them and the fit.

Counts are whole numbers and their noise is discrete Gaussian, so nothing is rounded. What is
released together is one Sequence; the noise of its parts is scaled until the account of the whole
meets the budget. The fit is one part of it, as a Gaussian mechanism: whoever fits checks afterwards
that what ran loses no more (`check_fit`), before anything leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from tightrope.accounting import account
from tightrope.convex.budget import Budget
from tightrope.convex.rows import row_norms
from tightrope.entropy import WordStream
from tightrope.errors import InvalidInput, NotCertified
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.numerics.discrete_gaussian import LARGEST_SCALE, DiscreteGaussian
from tightrope.process import (
    Adjacency,
    DeclaredZeroConcentrated,
    DiscreteGaussianVector,
    GaussianMechanism,
    Process,
    Sequence,
    UserLevel,
)

Whole = NDArray[np.int64]
_BELOW = 1.0 - 1e-9  # of mu: room for the last digits of a calibrated fit
_CLOSE = 1e-4  # to the most mu that meets the budget


def moved_by(columns: int, adjacency: Adjacency) -> float:
    """How far one row moves counts in which it has one cell for each column."""
    return math.sqrt(columns * adjacency.moved) * (1.0 + 1e-15)


def whole_scale(moved: float, mu: float) -> int:
    """The whole parameter of discrete noise that gives about mu-Gaussian DP."""
    most = moved / mu if mu > 0.0 else math.inf
    if not most < LARGEST_SCALE / 2:
        raise InvalidInput(
            "The budget is too small for what is not public. Raise epsilon, or make bounds and "
            "categories public."
        )
    return math.ceil(math.sqrt(most**2 + 4.0))


def noisy(counts: Whole, scale: int, stream: WordStream) -> Whole:
    """Whole numbers with discrete Gaussian noise on each."""
    drawn = DiscreteGaussian(scale).draw(counts.size, stream.words)
    return np.asarray(counts + drawn.reshape(counts.shape))


def whole_of(parts: tuple[Process, ...], rows: int = 1) -> Any:
    """All releases of one fit as one process, about units of at most so many rows."""
    process: Any = parts[0] if len(parts) == 1 else Sequence(parts)
    return process if rows == 1 else UserLevel(process, rows)


@final
@dataclass(frozen=True)
class Shared:
    """A budget that is divided. before: what is released ahead of the fit; mu: left for the fit."""

    before: tuple[Process, ...]
    mu: float
    mu_before: float
    adjacency: Adjacency
    rows: int = 1

    @property
    def planned(self) -> tuple[Process, ...]:
        """All of it, the fit as a Gaussian mechanism: what a ledger reserves."""
        return (*self.before, GaussianMechanism(1.0 / self.mu, self.adjacency))

    @property
    def booked(self) -> Process:
        """The same for a ledger, which adds up Renyi divergences: those of noise on whole numbers.

        Discrete Gaussian noise of parameter s on whole numbers that move by D is D^2/(2 s^2)-zCDP
        (theorems/discrete_gaussian_vector).
        """
        return Sequence(tuple(_zero_concentrated(part) for part in self.planned))

    @property
    def whole(self) -> Any:
        """The same as one process, about units of so many rows."""
        return whole_of(self.planned, self.rows)

    @property
    def share(self) -> float:
        """The part of the budget, as squared mu, that is spent ahead of the fit."""
        return self.mu_before**2 / (self.mu_before**2 + self.mu**2)


def _zero_concentrated(part: Any) -> Process:
    if not isinstance(part, DiscreteGaussianVector):
        return part  # type: ignore[no-any-return]
    rho = 0.5 * (part.sensitivity / part.sigma) ** 2 * (1.0 + 1e-14)
    return DeclaredZeroConcentrated(rho, part.adjacency)


def shared(
    before: Callable[[float], tuple[Process, ...]],
    budget: Budget,
    adjacency: Adjacency,
    *,
    share: float,
    rows: int = 1,
) -> Shared:
    """Noise such that `before(mu)` and a fit meet the budget together.

    share: of the budget (of mu^2) for what is before; all goes to the fit where nothing is.
    """
    share = share if before(budget.mu) else 0.0

    def at(mu: float) -> Shared:
        first = mu * math.sqrt(share)
        parts = before(first) if share else ()
        return Shared(parts, mu * math.sqrt(1.0 - share), first, adjacency, rows)

    def meets(mu: float) -> bool:
        return budget.met_by(account(at(mu).whole).guarantee(budget.delta))

    high = budget.mu
    low = high / rows
    while not meets(low):
        low, high = 0.8 * low, low
        if low < 1e-9 * budget.mu:
            raise NotCertified("No noise was certified for this budget; raise epsilon or delta.")
    while high > low * (1.0 + _CLOSE):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if meets(middle) else (low, middle)
    return at(low)


def budget_of(mu: float, delta: float) -> Budget:
    """The budget of a fit that is to lose no more than mu-Gaussian DP."""
    return Budget(GaussianGuarantee(mu * _BELOW).epsilon(delta).lower, delta)


def check_fit(share: Shared, process: Process, guarantee: Guarantee, budget: Budget) -> Any:
    """The whole process and its guarantee, or a refusal where the fit took more than its share."""
    whole = whole_of((*share.before, process), share.rows)
    found = account(whole).guarantee(budget.delta)
    try:
        within = guarantee.gaussian_mu().upper <= share.mu
    except NotCertified:
        within = False
    if within and guarantee.adjacency is share.adjacency and budget.met_by(found):
        return whole, found
    raise NotCertified(
        "This fit has no bound as Gaussian DP within its share of the budget, so nothing is "
        "released. Use algorithm='descent', or an estimator whose releases are all Gaussian."
    )


# ---- a bound on the length of rows ---------------------------------------------------------------

_LENGTHS: tuple[float, ...] = tuple((2.0 ** (np.arange(-80, 81) / 2.0)).tolist())  # half octaves
_REACHED = 0.9  # the share of rows that are not shortened


def norm_release(adjacency: Adjacency) -> Callable[[float], tuple[Process, ...]]:
    """Counts of rows by length, with the noise that a budget of mu buys."""
    moved = moved_by(1, adjacency)

    def of(mu: float) -> tuple[Process, ...]:
        scale = whole_scale(moved, mu)
        return (DiscreteGaussianVector(scale, moved, len(_LENGTHS) + 1, adjacency),)

    return of


def released_norm(features: Any, process: Any, stream: WordStream) -> float:
    """A length that about nine rows of ten do not pass, from noisy counts."""
    cells = np.searchsorted(_LENGTHS, row_norms(features), "left")
    counts = np.bincount(cells, minlength=len(_LENGTHS) + 1).astype(np.int64)
    released = noisy(counts, int(process.sigma), stream)
    clear = np.where(released > 3.0 * process.sigma, released, 0)
    below = np.cumsum(clear)
    if below[-1] <= 0:
        return _LENGTHS[min(int(released.argmax()), len(_LENGTHS) - 1)]
    return _LENGTHS[min(int(np.searchsorted(below, _REACHED * below[-1])), len(_LENGTHS) - 1)]
