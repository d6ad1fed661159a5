"""Tuning with its cost: the best of a secret random number of private trials, for any trial.

The guarantee reported is that of the whole search. The bounds and their proofs:
`guarantee.selection`, `theorems.negative_binomial_selection_ps22`. The laws of the number of trials
are sampled to 2^-53.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, final

from tightrope.entropy import open_stream
from tightrope.errors import InvalidInput, NotCertified
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.kinds.renyi import RenyiGuarantee
from tightrope.guarantee.selection import binomial_selection, selection_guarantee
from tightrope.ledger.spending import reserved
from tightrope.process.selection import mean_trials
from tightrope.validate import check_positive, check_real

__all__ = ["PrivateSelection", "Selected", "PoissonTrials", "TruncatedNegativeBinomial"]


@final
@dataclass(frozen=True)
class TruncatedNegativeBinomial:
    """P(K = k) proportional to (1-gamma)^k prod_{l<k} (l+shape)/(l+1), k >= 1.

    shape 1 is the geometric law, shape 0 the logarithmic one; smaller gamma means more trials.
    """

    shape: float = 0.0
    gamma: float = 0.05

    def __post_init__(self) -> None:
        shape = check_real(self.shape, "shape", low=-1.0, open_low=True)
        gamma = check_real(self.gamma, "gamma", low=0.0, high=1.0, open_low=True)
        if gamma >= 1.0:
            raise InvalidInput(f"gamma must be in (0, 1); got {gamma}: 1 leaves no second trial.")
        object.__setattr__(self, "shape", float(shape))
        object.__setattr__(self, "gamma", float(gamma))

    @property
    def mean(self) -> float:
        return mean_trials(self.shape, self.gamma)

    def chance(self, count: int) -> float:
        """P(K = count)."""
        if count < 1:
            return 0.0
        return math.exp(self._log_first + math.fsum(map(self._log_growth, range(1, count))))

    @property
    def _log_first(self) -> float:
        """ln P(K = 1); f'(0) = mean gamma^(1 + shape)."""
        return math.log(self.mean) + (1.0 + self.shape) * math.log(self.gamma)

    def _log_growth(self, count: int) -> float:
        """ln of P(K = count + 1) / P(K = count) = (1-gamma)(count+shape)/(count+1)."""
        return math.log1p(-self.gamma) + math.log((count + self.shape) / (count + 1))

    def draw(self, uniform: Callable[[], float]) -> int:
        """One secret number of trials, by inversion; in logarithms, as P(K = 1) may be below all
        floats. It ends where the chances fall and what is left of them is below 1e-17."""
        level, count, log_value = uniform(), 1, self._log_first
        reached, least = math.exp(log_value), math.log(1e-18 * self.gamma)
        growth = self._log_growth(count)
        while reached < level and (growth >= 0.0 or log_value > least):
            log_value, count = log_value + growth, count + 1
            reached, growth = reached + math.exp(log_value), self._log_growth(count)
        return count

    def guarantee(self, trial: Guarantee) -> RenyiGuarantee:
        """The guarantee of releasing the best of K trials."""
        return binomial_selection(trial, self.mean, self.shape, self.gamma)


@final
@dataclass(frozen=True)
class PoissonTrials:
    """K ~ Poisson(mean); with K = 0 nothing is released. Often the cheapest for many trials."""

    mean: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", float(check_positive(self.mean, "mean")))

    def draw(self, uniform: Callable[[], float]) -> int:
        """Unit-rate waiting times that fit into the mean."""
        count, waited = 0, -math.log1p(-uniform())
        while waited < self.mean:
            count += 1
            waited -= math.log1p(-uniform())
        return count

    def guarantee(self, trial: Guarantee) -> RenyiGuarantee:
        return selection_guarantee(trial, self.mean)


class Trials(Protocol):
    """A law for the number of trials."""

    def draw(self, uniform: Callable[[], float]) -> int: ...
    def guarantee(self, trial: Guarantee) -> Guarantee: ...


@final
@dataclass(frozen=True)
class Selected:
    """What a search releases. The number of trials is secret and not kept."""

    score: float
    result: Any
    guarantee: Guarantee
    private: bool


@final
@dataclass(frozen=True)
class PrivateSelection:
    """Run `trial` a secret number of times and keep the best.

    trial(): one private run with settings it draws at random itself; returns (score, result). The
    score must be private too: computed on public data, or with noise that `one_trial` covers.
    one_trial: the guarantee of (score, result) together.
    """

    trial: Callable[[], tuple[float, Any]]
    one_trial: Guarantee
    trials: Trials

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the whole search."""
        return self.trials.guarantee(self.one_trial)

    def run(self, seed: int | None = None) -> Selected:
        """Search once. A seed makes the number of trials known: then nothing is private."""
        source = open_stream("search", seed=seed, cryptographic=True)
        with reserved(self.guarantee, "search", private=source.private):
            best = self._best(self.trials.draw(source.uniform))
        if best is None:
            raise NotCertified(
                "The secret number of trials was 0: nothing is released. Run again "
                "and compose the two guarantees, or take a larger mean."
            )
        return Selected(*best, self.guarantee, source.private)

    def _best(self, trials: int) -> tuple[float, Any] | None:
        best: tuple[float, Any] | None = None
        for _ in range(trials):
            score, result = self.trial()
            if score != score:
                raise InvalidInput("A trial scored NaN, which cannot be ranked.")
            if best is None or score > best[0]:
                best = (float(score), result)
        return best
