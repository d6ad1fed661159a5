"""What a run is asked to achieve, and how far a guarantee misses it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

from tightrope.errors import InvalidInput
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.estimate import Estimate
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.tradeoff import HitRate
from tightrope.validate import check_delta, check_epsilon, check_probability

_FEW = 20  # steps


@final
@dataclass(frozen=True)
class Target:
    """What a guarantee must achieve: (epsilon, delta), an advantage, or a hit rate.

    >>> from tightrope import Target
    >>> Target.approx_dp(epsilon=3.0, delta=1e-5)
    Target(epsilon=3.0, delta=1e-05, true_positive_rate=None, false_positive_rate=0.0)
    """

    epsilon: float = 0.0
    delta: float = 1.0
    true_positive_rate: float | None = None
    false_positive_rate: float = 0.0

    @classmethod
    def approx_dp(cls, epsilon: float, delta: float) -> Target:
        if check_delta(delta) == 0.0:
            raise InvalidInput(
                "Gaussian noise cannot reach delta = 0: its privacy loss is unbounded. Choose a "
                "delta well below 1/(number of people), for instance 1e-6."
            )
        _require_below_one(delta, "delta")
        return cls(check_epsilon(epsilon), delta)

    @classmethod
    def advantage(cls, largest: float) -> Target:
        """Membership advantage at most `largest`: total variation, delta at epsilon 0."""
        _require_below_one(check_probability(largest, "advantage"), "advantage")
        if largest == 0.0:
            raise InvalidInput(
                "No finite noise brings the advantage down to 0. Ask for an advantage above 0."
            )
        return cls(0.0, largest)

    @classmethod
    def hit_rate(cls, true_positive_rate: float, false_positive_rate: float) -> Target:
        """No attack with this false positive rate finds more than `true_positive_rate`."""
        tpr = check_probability(true_positive_rate, "true_positive_rate")
        fpr = check_probability(false_positive_rate, "false_positive_rate")
        _require_below_one(tpr, "true_positive_rate")
        if tpr <= fpr:
            raise InvalidInput(
                f"Guessing at random finds {fpr:g} at a false positive rate of {fpr:g}; no noise "
                f"brings that down to {tpr:g}. Ask for a true_positive_rate above it."
            )
        return cls(true_positive_rate=tpr, false_positive_rate=fpr)

    @property
    def hit_rates(self) -> HitRate | None:
        """The target as one point of a trade-off curve; None without false alarms or hits."""
        if self.true_positive_rate is None or self.false_positive_rate == 0.0:
            return None
        return HitRate(self.false_positive_rate, self.true_positive_rate)

    def excess(self, guarantee: Guarantee | Estimate) -> float:
        """Positive where the target is missed; judged on the safe side of a guarantee."""
        if self.true_positive_rate is not None:
            if (
                self.hit_rates is not None
                and isinstance(guarantee, Guarantee)
                and by_lines(guarantee)
            ):
                return _line_excess(guarantee, self.hit_rates)
            type_ii = guarantee.tradeoff(self.false_positive_rate)
            miss = type_ii if isinstance(type_ii, float) else type_ii.lower
            return (1.0 - miss) - self.true_positive_rate
        spent = guarantee.delta(self.epsilon)
        delta = spent if isinstance(spent, float) else spent.upper
        return _log_odds(delta) - _log_odds(self.delta) if delta > 0 else -math.inf

    def met_by(self, guarantee: Guarantee | Estimate) -> bool:
        """Is every number that the target speaks of on its safe side? Their errors may differ."""
        if not isinstance(guarantee, Guarantee):
            return self.excess(guarantee) <= 0.0
        if self.true_positive_rate is not None:
            hits = guarantee.true_positive_rate(self.false_positive_rate)
            return hits.upper <= self.true_positive_rate
        spent, lost = guarantee.delta(self.epsilon), guarantee.epsilon(self.delta)
        return spent.upper <= self.delta and lost.upper <= self.epsilon


def _log_odds(delta: float) -> float:
    """A scale on which a search need not crawl where nearly everything is lost already."""
    return math.log(delta) - math.log(max(1.0 - delta, 1e-16))


def by_lines(guarantee: Any) -> bool:
    """Is one delta much cheaper than the trade-off curve? For few steps a law of all is kept."""
    return isinstance(guarantee, LossGuarantee) and all(
        sum(count for _, count in order) > _FEW for order in guarantee.orders
    )


def _line_excess(guarantee: Guarantee, rates: HitRate) -> float:
    """The excess of the best line: at most 0 where the target is met."""
    steep = rates.lower_half()

    def delta(epsilon: float) -> float:
        return guarantee.delta(epsilon).upper

    best = steep.best_line(delta)
    return steep.excess(best, delta(best))


def _require_below_one(value: float, name: str) -> None:
    if value >= 1.0:
        raise InvalidInput(
            f"{name} = 1 promises nothing: every run meets it, even without noise. Ask for less."
        )
