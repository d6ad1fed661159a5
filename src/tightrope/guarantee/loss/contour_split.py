"""The hard regime: steps with a large loss ("jumps") are followed apart from the others.

Where T * rate << 1, or for a few steps, the loss is a narrow spike with a heavy tail of jumps.
Jumps begin at a size that makes it too unlikely to matter (Chernoff) that the loss exceeds epsilon
without any; what is left is the transform of "at least one jump" (numerics/inversion_split.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from tightrope.errors import NotCertified
from tightrope.guarantee.base import Components
from tightrope.guarantee.loss.cumulant import plain_mu, sum_law
from tightrope.guarantee.loss.cumulant_part import PartCumulant
from tightrope.guarantee.loss.cumulant_sampled import SampledCumulant
from tightrope.guarantee.loss.cumulant_window import Window, log_tail
from tightrope.guarantee.loss.gaussian import SampledGaussianPair, log_ratio
from tightrope.numerics.inversion_kernel import EXCESS
from tightrope.numerics.inversion_law import SumLaw
from tightrope.numerics.inversion_split import RestLaw, Split
from tightrope.numerics.quadrature import FloatArray

__all__ = ["Jumps"]

_HALVINGS, _FIRST = 9.0, -2.0  # log2 of the smallest jump over epsilon, and the one tried first
_MAX_KINDS = 32
_MORE = 20.0  # nats: jumps this much rarer are followed too where they are not much larger
_LARGE = 12.0  # times epsilon


@final
@dataclass(frozen=True)
class Jumps:
    """A composition, its ln delta, roughly, and the relative width wanted."""

    held: Components
    log_level: float
    relative_width: float

    @property
    def _log_enough(self) -> float:
        """ln of what may be left out."""
        return self.log_level + math.log(self.relative_width) - 4.0

    def _parts(self) -> tuple[list[tuple[SampledGaussianPair, int]], Components]:
        jumping = [(p, n) for p, n in self.held if isinstance(p, SampledGaussianPair) and _jumps(p)]
        others = tuple(
            (p, n) for p, n in self.held if not isinstance(p, SampledGaussianPair) or not _jumps(p)
        )
        return jumping, others

    def at(self, epsilon: float) -> tuple[RestLaw, float]:
        """The law with at least one jump, for this epsilon or more, and ln of all that it misses.

        Raises NotCertified where jumps would have to be so small that nothing is won.
        """
        jumping, others = self._parts()
        if not jumping or epsilon <= 0.0:
            raise NotCertified("There are no jumps to follow; use the lattice method.")
        if len(jumping) > _MAX_KINDS:
            raise NotCertified(
                f"Jumps of at most {_MAX_KINDS} kinds of steps are followed apart; got "
                f"{len(jumping)}. Use the lattice method, or group steps with nearly equal noise."
            )
        pairs, counts = [p for p, _ in jumping], [n for _, n in jumping]
        bulk, quiet = self._bulk(pairs, counts, sum_law(others), epsilon)
        window = bulk.strip.window
        assert window is not None and window.log_end is not None
        jump = PartCumulant(pairs, counts, self._last(pairs, counts, epsilon), window.log_end)
        missing = float(np.logaddexp(quiet, jump.log_dropped())) + 1e-9
        return RestLaw((Split(bulk, jump),), sum_law(others)), missing

    def none(self) -> tuple[SumLaw, float]:
        """The law without steps too large to matter, and ln of their probability.

        Without them the tilted law has no second mode: no phase transition (theory D(i)).
        """
        jumping, others = self._parts()
        if not jumping:
            raise NotCertified("There are no jumps to leave out; use the lattice method.")
        pairs, counts, rest = [p for p, _ in jumping], [n for _, n in jumping], sum_law(others)
        kept = PartCumulant(pairs, counts, _points(pairs, self._nats(counts)))
        law = SumLaw((kept, *rest.parts), rest.mean, rest.variance)
        return law, kept.log_dropped()

    def _nats(self, counts: list[int]) -> float:
        """Steps with a probability below e^-nats may be left out."""
        return math.log(sum(counts)) - self._log_enough

    def _last(
        self, pairs: list[SampledGaussianPair], counts: list[int], epsilon: float
    ) -> FloatArray:
        """The last s followed. A sharp end is seen in the transform, so a little more is better."""
        nats = self._nats(counts)
        end = _points(pairs, nats)
        rate, mu = np.array([p.rate for p in pairs]), np.array([p.mu for p in pairs])
        if float(np.max(log_ratio(end, rate, mu))) > _LARGE * epsilon:
            return end
        return _points(pairs, nats + _MORE)

    def _bulk(
        self, pairs: list[SampledGaussianPair], counts: list[int], others: SumLaw, epsilon: float
    ) -> tuple[SampledCumulant, float]:
        """The largest losses that are no jumps, and Chernoff's bound on ln delta without jumps.

        The bound falls about like the inverse of that loss, which tells where to look next.
        """
        low, high, best = -_HALVINGS, 1.0, None  # log2 of the loss over epsilon
        middle, enough = _FIRST, self._log_enough - 1.0
        while high - low > 0.34:
            bulk = _up_to(pairs, counts, epsilon * 2.0**middle)
            law = SumLaw((bulk, *others.parts), others.mean, others.variance)
            tilt, log_bound = _chernoff(law, epsilon)
            if log_bound <= enough:
                best, low = (bulk, law, tilt), middle
            else:
                high = middle
            better = middle + math.log2(log_bound / enough) - 0.1 if log_bound < 0.0 else low
            middle = better if low + 0.1 < better < high - 0.1 else 0.5 * (low + high)
            if best is not None and low < better < low + 0.34:
                break
        if best is None:
            raise NotCertified("Jumps do not stand apart from the other losses; use the lattice.")
        bulk, law, tilt = best
        value, error = law.real(tilt, math.log(max(law.steps, 1.0)) + 4.0)
        return bulk, value + error - tilt * epsilon + float(EXCESS.log_peak(np.array(tilt)))


def _jumps(pair: SampledGaussianPair) -> bool:
    return pair.direction == "remove" and plain_mu(pair) is None


def _points(pairs: list[SampledGaussianPair], nats: float) -> FloatArray:
    """The s that a step exceeds with probability about e^-nats."""
    rate, mu = np.array([p.rate for p in pairs]), np.array([p.mu for p in pairs])
    low, high = 0.0 * mu, mu + math.sqrt(2.0 * nats) + 1.0
    for _ in range(20):
        s = 0.5 * (low + high)
        rare = log_tail(s, np.log(rate), mu) < -nats
        low, high = np.where(rare, low, s), np.where(rare, s, high)
    return np.asarray(high)


def _up_to(pairs: list[SampledGaussianPair], counts: list[int], loss: float) -> SampledCumulant:
    """The steps with a loss below about `loss`."""
    rate = np.array([[p.rate] for p in pairs])
    log_b: FloatArray = np.log(math.expm1(min(loss, 600.0)) + rate)
    return SampledCumulant(pairs, counts, Window(log_end=log_b))


def _chernoff(law: SumLaw, epsilon: float) -> tuple[float, float]:
    """The best tilt and the estimate of Chernoff's bound on ln delta there."""
    tilts = np.geomspace(1e-3, 0.98, 24) * law.max_tilt
    logs = law.values(tilts) - tilts * epsilon + EXCESS.log_peak(tilts)
    best = int(np.argmin(logs))
    return float(tilts[best]), float(logs[best])
