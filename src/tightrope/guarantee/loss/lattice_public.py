"""A public mixture on the lattice: the measures of its parts, brought onto one lattice.

The points l_k of the rare part lie between those of the usual one, all by the same offset o < h.
Above, each of its masses goes to both neighbours so that P and Q keep theirs. Below, a share b_k of
the mass p_k (under P) goes up to the point that the rest of p_{k+1} goes down to. Merging the two
only loses information, and their common loss is not below that point if
    b_k p_k (e^{h-o} - 1) <= (1 - b_{k+1}) p_{k+1} (1 - e^{-o}).
With b = (1 - e^{-o})/(e^{h-o} - e^{-o}), the largest share, it is enough that
    b_k = min(b, (1 - b) p_{k+1} (1 - e^{-o})/(p_k (e^{h-o} - 1))).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tightrope.guarantee.loss.abstract import AbstractLossPair
from tightrope.guarantee.loss.lattice_branch import far_point, is_cut, point_of
from tightrope.guarantee.loss.public_mixture import PublicMixturePair
from tightrope.numerics.lattice import LatticeMeasure, check_size, normalised
from tightrope.numerics.rounding import ULP
from tightrope.validate import FloatArray

__all__ = ["public_measure", "part_end"]

_SLACK = 1.0 - 1e-9  # rounding of neighbouring weights


def part_end(part: AbstractLossPair, loss: float) -> float:
    """Where a part of a mixture that is cut at this loss ends."""
    return point_of(part, loss) if is_cut(part) else far_point(part)


def public_measure(
    pair: PublicMixturePair,
    upper: bool,
    cut: float,
    measure_of: Callable[[AbstractLossPair, float], LatticeMeasure],
) -> LatticeMeasure:
    """The tilted measure of L under P up to the loss `cut`; measure_of: that of a part."""
    usual, rare = (measure_of(part, part_end(part, cut)) for _, part in pair.parts)
    step, rate = usual.step, usual.rate
    check_size(abs(rare.first - usual.first) / step)
    places = math.floor((rare.first - usual.first) / step)
    offset = min(max(rare.first - usual.first - places * step, 0.0), step)
    moved = _moved(rare, offset, upper)
    start = min(0, places)
    masses = np.zeros(max(len(usual.weights), places + len(moved)) - start)
    logs = [math.log(w) + m.log_scale for (w, _), m in zip(pair.parts, (usual, rare), strict=True)]
    scale = max(logs)
    shares = [math.exp(log - scale) for log in logs]
    masses[-start : len(usual.weights) - start] += shares[0] * usual.weights
    masses[places - start : places - start + len(moved)] += shares[1] * moved
    lost = shares[0] * usual.error + 2.0 * shares[1] * rare.error * math.exp(abs(rate) * step)
    largest = max(abs(m.first) + step * len(m.weights) for m in (usual, rare))
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
