"""A release whose kind is drawn at random, independently of the record, and published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

import numpy as np
from numpy.typing import ArrayLike

from tightrope.errors import InvalidInput, NotCertified
from tightrope.guarantee.loss.abstract import AbstractLossPair, LogMasses, Side, as_losses
from tightrope.numerics.interval import Interval
from tightrope.numerics.inversion_law import LOG_MASS_SLACK, AbstractFamily, Decay, TiltedNodes
from tightrope.numerics.lattice import LatticeMeasure, check_size, normalised
from tightrope.numerics.quadrature import log_sum_exp
from tightrope.numerics.rounding import ULP, UNIT
from tightrope.validate import FloatArray, check_probability


@final
@dataclass(frozen=True)
class PublicMixturePair(AbstractLossPair):
    """A release that is `rare` with probability `share`, otherwise `usual`; which one is known.

    delta(eps) = (1 - share) delta_usual(eps) + share delta_rare(eps), and so are the masses. The
    share is taken to be right to 2 units.
    """

    share: float
    usual: AbstractLossPair
    rare: AbstractLossPair

    def __post_init__(self) -> None:
        share = check_probability(self.share, "share")
        if not 0.0 < share < 1.0:
            raise InvalidInput(
                f"share must lie between 0 and 1; got {share!r}. At either end one pair is enough."
            )
        object.__setattr__(self, "share", share)

    @property
    def has_rare_losses(self) -> bool:
        return any(part.has_rare_losses for _, part in self.parts)

    @property
    def parts(self) -> tuple[tuple[float, AbstractLossPair], ...]:
        """(weight, pair)."""
        return ((1.0 - self.share, self.usual), (self.share, self.rare))

    @property
    def infinite_mass(self) -> float:
        return math.fsum(weight * pair.infinite_mass for weight, pair in self.parts)

    @property
    def least_infinite_mass(self) -> float:
        return math.fsum(weight * pair.least_infinite_mass for weight, pair in self.parts)

    @property
    def support(self) -> tuple[float, float]:
        low, high = zip(self.usual.support, self.rare.support, strict=True)
        return min(low), max(high)

    @property
    def loss_units(self) -> float:
        return max(self.usual.loss_units, self.rare.loss_units)

    def reversed(self) -> PublicMixturePair:
        return PublicMixturePair(self.share, self.usual.reversed(), self.rare.reversed())

    def log_survival(self, loss: ArrayLike) -> LogMasses:
        return _mixed([(w, pair.log_survival(loss)) for w, pair in self.parts])

    def log_cdf(self, loss: ArrayLike) -> LogMasses:
        return _mixed([(w, pair.log_cdf(loss)) for w, pair in self.parts])

    def log_error(self, loss: ArrayLike) -> FloatArray:
        errors = [pair.log_error(loss) for _, pair in self.parts]
        return np.maximum(*errors) + 8.0 * ULP * (1.0 + np.abs(as_losses(loss)))

    def log_delta_single(self, epsilon: float) -> Interval:
        """delta is the mean of the parts' deltas."""
        parts = [(math.log(w), part.log_delta_single(epsilon)) for w, part in self.parts]
        lower = float(np.logaddexp.reduce([w + found.lower for w, found in parts]))
        upper = float(np.logaddexp.reduce([w + found.upper for w, found in parts]))
        low, high = (
            8.0 * ULP * (1.0 + (abs(end) if math.isfinite(end) else 0.0)) for end in (lower, upper)
        )
        return Interval(lower - low, min(0.0, upper + high))

    # ---------------------------------------------------------------------------- its cumulant
    def cumulant(self, count: int = 1) -> AbstractFamily:
        weights, pairs = zip(*self.parts, strict=True)
        return PublicCumulant(list(weights), [pair.cumulant() for pair in pairs], count)

    @classmethod
    def cut_cumulant(
        cls, pairs: Sequence[Self], counts: Sequence[int], nats: float
    ) -> tuple[AbstractFamily, float]:
        """Each part is cut where what it is passed by weighs e^-nats in the mixture."""
        weights, laws, logs = [], [], []
        for weight, part in pairs[0].parts:
            if part.has_rare_losses:
                room = max(nats + math.log(weight), _FEWEST_NATS)
                law, dropped = part.cut_cumulant([part], [1], room)
            else:
                law, dropped = part.cumulant(), -math.inf
            weights.append(weight)
            laws.append(law)
            logs.append(math.log(weight) + dropped)
        total = float(np.logaddexp.reduce(logs)) + math.log(counts[0]) + 1e-9
        return PublicCumulant(weights, laws, counts[0]), total

    # ------------------------------------------------------- on a lattice; its points are losses
    def loss_grid(self) -> tuple[FloatArray, FloatArray]:
        parts = [(math.log(w), *part.loss_grid()) for w, part in self.parts]
        losses = np.concatenate([part[1] for part in parts])
        order = np.argsort(losses, kind="stable")
        return losses[order], np.concatenate([w + logs for w, _, logs in parts])[order]

    def measure(self, side: Side, step: float, rate: float, cut: float) -> LatticeMeasure:
        laws = [part.measure(side, step, rate, _end(part, cut)) for _, part in self.parts]
        return public_measure([weight for weight, _ in self.parts], laws, side)

    @property
    def is_endless(self) -> bool:
        return any(part.is_endless for _, part in self.parts)

    def largest_up_to(self, point: float) -> float:
        return max(part.largest_up_to(_end(part, point)) for _, part in self.parts)

    def log_beyond(self, point: float) -> float:
        endless = [(weight, part) for weight, part in self.parts if part.is_endless]
        logs = [math.log(w) + part.log_beyond(_end(part, point)) for w, part in endless]
        return float(np.logaddexp.reduce(logs)) + 1e-12

    @property
    def log_left_out(self) -> float:
        return max(part.log_left_out for _, part in self.parts)


def _mixed(parts: list[tuple[float, LogMasses]]) -> LogMasses:
    (one, first), (other, second) = parts
    p, q = (
        np.logaddexp(math.log(one) + a, math.log(other) + b)
        for a, b in zip(first, second, strict=True)
    )
    return p, q


# ---- The cumulant: M = (1 - share) M_usual + share M_rare
# The points of both laws, weighted, are points of their mixture. Error: each part's own, in units
# of its share of M; 8 units for the shares.
_NATS = 30.0
_FEWEST_NATS = 8.0


@final
class PublicCumulant(AbstractFamily):
    """K of a PublicMixturePair; `laws` are those of its parts, each taken once."""

    def __init__(self, weights: list[float], laws: list[AbstractFamily], count: int) -> None:
        self.counts = np.array([count], dtype=np.float64)
        self.laws, self.weights = laws, np.array(weights)
        self.log_weights = np.log(self.weights)

    @property
    def max_tilt(self) -> float:
        return min(law.max_tilt for law in self.laws)

    # ------------------------------------------------------------------ quick values for searching
    def values(self, tilts: FloatArray) -> FloatArray:
        logs = np.stack([law.values(tilts) for law in self.laws], axis=-1) + self.log_weights
        return np.asarray(self.counts[0] * log_sum_exp(logs))

    def moments(self, tilt: float) -> tuple[float, float, float]:
        logs, means, variances = np.array([law.moments(tilt) for law in self.laws]).T
        total = float(log_sum_exp(logs + self.log_weights))
        share = np.exp(logs + self.log_weights - total)
        mean = float(share @ means)
        n = float(self.counts[0])
        return n * total, n * mean, n * float(share @ (variances + (means - mean) ** 2))

    # ----------------------------------------------------------------------------- proved values
    def _mass(self, logs: FloatArray, errors: FloatArray) -> tuple[float, float]:
        """ln M and its error from those of the parts; near M = 1 by sum of weight (M_i - 1)."""
        value = float(log_sum_exp(logs + self.log_weights))
        if abs(value) > 0.5 or float(np.max(np.abs(logs))) > 0.5:
            return value, float(np.max(errors)) + 16.0 * UNIT * (1.0 + abs(value))
        terms = self.weights * np.expm1(logs)
        total = math.fsum(terms)
        size = float(np.abs(terms) @ (8.0 * UNIT + 0.0 * logs)) + float(self.weights @ errors) * 2.0
        return math.log1p(total), 1.1 * size / (1.0 + total) + 4.0 * UNIT * abs(total)

    def real(self, tilt: float, nats: float) -> tuple[FloatArray, FloatArray]:
        logs, errors = zip(*(law.real(tilt, nats) for law in self.laws), strict=True)
        value, error = self._mass(np.concatenate(logs), np.concatenate(errors))
        return np.array([value]), np.array([error])

    def fewest_points(self, tilt: float, frequency: float) -> float:
        return sum(law.fewest_points(tilt, frequency) for law in self.laws)

    def nodes(self, tilt: float, frequency: float, nats: float) -> TiltedNodes:
        parts = [law.nodes(tilt, frequency, nats) for law in self.laws]
        logs = np.concatenate([part.log_mass for part in parts])
        errors = np.concatenate([part.log_mass_error for part in parts])
        value, error = self._mass(logs, errors)
        # what each part holds of M, right to `doubt`, relative
        share = np.exp(logs + self.log_weights - value)
        doubt = errors + error + UNIT * (16.0 + 4.0 * np.abs(logs) + 4.0 * np.abs(self.log_weights))
        centres = np.concatenate([part.centre for part in parts])
        centre = float(share @ centres)
        moved = [part.deviations[0] + (c - centre) for part, c in zip(parts, centres, strict=True)]
        off = 4.0 * UNIT * (np.abs(centres) + abs(centre))
        each = list(zip(parts, share, doubt, off, strict=True))
        fixed = math.fsum(s * (1.0 + d) * float(part.fixed_error[0]) for part, s, d, _ in each)
        return TiltedNodes(
            log_mass=np.array([value]),
            log_mass_error=np.array([error]),
            centre=np.array([centre]),
            deviations=np.concatenate(moved)[None, :],
            weights=np.concatenate([s * part.weights[0] for part, s, _, _ in each])[None, :],
            relative=np.concatenate([p.relative[0] + d + p.common[0] for p, _, d, _ in each])[None],
            point_error=np.concatenate([p.point_error[0] + o for p, _, _, o in each])[None, :],
            common=np.array([2.0 * UNIT * (abs(value) + 4.0) + 1.01 * error]),
            fixed_error=np.array([fixed]),
        )

    def decay(self, tilt: float) -> Decay:
        """|M(c+iy)|/M is at most the sum of the parts' bounds, each times its share of M."""
        decays = [law.decay(tilt) for law in self.laws]
        proved = [law.real(tilt, _NATS) for law in self.laws]
        for part, (log, error) in zip(decays, proved, strict=True):
            off = np.inf if part.log_mass is None else float(abs(part.log_mass - log)[0])
            if part.log_mass is not None and off + float(error[0]) > LOG_MASS_SLACK:
                raise NotCertified("The quick estimate of a cumulant is off; use another method.")
        logs = np.array([float(log[0]) for log, _ in proved]) + self.log_weights
        share = np.exp(logs - float(log_sum_exp(logs)))

        def further(y: float) -> FloatArray:
            bounds = [s * part.bound(y) for s, part in zip(share.tolist(), decays, strict=True)]
            return np.asarray(np.minimum(sum(bounds) * (1.0 + 1e-6), 1.0))

        lengths = np.concatenate([part.lengths for part in decays])
        held = [s * part.masses for s, part in zip(share, decays, strict=True)]
        masses = np.concatenate(held) * (1.0 - 1e-6)
        return Decay.of([(lengths, masses)], np.array([np.inf]), None, further)


# ---- On the lattice: the measures of its parts, brought onto one lattice
# The points l_k of the rare part lie between those of the usual one, all by the same offset o < h.
# Above, each of its masses goes to both neighbours so that P and Q keep theirs. Below, a share b_k
# of the mass p_k (under P) goes up to the point that the rest of p_{k+1} goes down to. Merging the
# two only loses information, and their common loss is not below that point if
#     b_k p_k (e^{h-o} - 1) <= (1 - b_{k+1}) p_{k+1} (1 - e^{-o}).
# With b = (1 - e^{-o})/(e^{h-o} - e^{-o}), the largest share, it is enough that
#     b_k = min(b, (1 - b) p_{k+1} (1 - e^{-o})/(p_k (e^{h-o} - 1))).
_SLACK = 1.0 - 1e-9  # rounding of neighbouring weights


def _end(part: AbstractLossPair, loss: float) -> float:
    """The point where a part of a mixture that is cut at this loss ends."""
    return part.point_of(loss) if part.is_endless else part.far_point


def public_measure(
    weights: Sequence[float], laws: Sequence[LatticeMeasure], side: Side
) -> LatticeMeasure:
    """The mixture of the measures of its parts."""
    usual, rare = laws
    step, rate = usual.step, usual.rate
    check_size(abs(rare.first - usual.first) / step)
    places = math.floor((rare.first - usual.first) / step)
    offset = min(max(rare.first - usual.first - places * step, 0.0), step)
    moved = _moved(rare, offset, side == "upper")
    start = min(0, places)
    masses = np.zeros(max(len(usual.weights), places + len(moved)) - start)
    logs = [math.log(w) + m.log_scale for w, m in zip(weights, laws, strict=True)]
    scale = max(logs)
    shares = [math.exp(log - scale) for log in logs]
    masses[-start : len(usual.weights) - start] += shares[0] * usual.weights
    masses[places - start : places - start + len(moved)] += shares[1] * moved
    lost = shares[0] * usual.error + 2.0 * shares[1] * rare.error * math.exp(abs(rate) * step)
    largest = max(abs(m.first) + step * len(m.weights) for m in laws)
    slip = max(usual.slip, rare.slip) + 8.0 * ULP * largest
    closed = usual.closed and rare.closed
    first = usual.first + start * step
    relative = 16.0 * ULP * (1.0 + abs(rate) * step)
    return normalised(first, step, masses, scale, rate, lost, relative, slip=slip, closed=closed)


def _moved(measure: LatticeMeasure, offset: float, upper: bool) -> FloatArray:
    """Tilted weights at the points `offset` left of the measure's own, and one more."""
    step, rate = measure.step, measure.rate
    to_right = math.expm1(-offset) / math.expm1(-step) if upper else _raised(measure, offset)
    found = np.zeros(len(measure.weights) + 1)
    found[:-1] = (1.0 - to_right) * math.exp(-rate * offset) * measure.weights
    found[1:] += to_right * math.exp(rate * (step - offset)) * measure.weights
    return found


def _raised(measure: LatticeMeasure, offset: float) -> FloatArray:
    """The shares b_k, a little smaller than they may be."""
    down, up = -math.expm1(-offset), math.expm1(measure.step - offset)
    largest = down / (down + up)
    after = np.append(measure.weights[1:], 0.0) * math.exp(-measure.rate * measure.step)
    room = (1.0 - largest) * down * after
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(
            up * largest * measure.weights > room, room / (up * measure.weights), largest
        )
    return np.asarray(shares * _SLACK)
