"""What a trapezoidal sum leaves out: a bound on h sum over y = nh >= Y of |phi(y)| / y^2.

phi(y) = E e^{(c+iy)L} / E e^{cL} of the total, a product of powers of the steps' phi_j. Bounds:
    near  g = |phi_j|^2 is the transform of a symmetric law, |g''| <= 2 Var_j, so between two points
          a distance h apart g <= max of both + Var_j h^2 / 4 (error of linear interpolation)
    far   |phi_j| <= out + v/y, one integration by parts (`SampledStep.far`), for all larger y
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

from flint import acb, arb, ctx

from tightrope.errors import NotCertified
from tightrope.evidence.rigorous_advice import TOO_SLOW
from tightrope.evidence.rigorous_law import SampledStep, upper

__all__ = ["Tail"]

_MOST_BLOCKS = 3000
_BLOCK_BITS = 53  # blocks need few digits
_NEGLIGIBLE = 1e-60
_LOWS = (1, 0, -1, -2, -3, -5, -8)


def _gap(g: arb) -> float:
    return max(float((1 - g).mid()), 1e-14)


@final
class Tail:
    """Frequencies from some point on, cut into blocks and a last piece."""

    def __init__(
        self, steps: Sequence[tuple[SampledStep, int]], variance: arb, c: arb, step: arb
    ) -> None:
        self._steps, self._variance, self._c, self._step = steps, variance, c, step
        self._mass = [kind.transform(c).real for kind, _ in steps]
        self._far = [[kind.far(c, low) for low in _LOWS] for kind, _ in steps]
        self._spread = [self._spread_of(kind) for kind, _ in steps]

    def beyond(self, start: arb) -> Any:
        """h sum of |phi(y)| / y^2 over the points y >= start."""
        total, at, ends = arb(0), start, self._at(start, None)
        for _ in range(_MOST_BLOCKS):
            if self._last(at) < arb(_NEGLIGIBLE) or not self._useful(at, ends):
                return upper(total + self._last(at))
            after = arb(float((at + self._width(ends)).mid()))
            reached = self._at(after, ends)
            total += self._between(at, after, ends, reached) * self._share(at, after)
            at, ends = after, reached
        raise NotCertified(TOO_SLOW)

    # --- near ------------------------------------------------------------------------------------
    def _at(self, y: arb, before: Sequence[Any] | None) -> list[Any]:
        """|phi_j(y)|^2 of each step, from above; sharp compared with the gap 1 - g before it."""
        found = []
        for row, ((kind, _), mass) in enumerate(zip(self._steps, self._mass, strict=True)):
            wide = None if before is None else _gap(before[row]) * float(mass.mid()) / 100
            with ctx.workprec(_BLOCK_BITS):
                size = abs(kind.transform(acb(self._c, y), wide)) / mass
                found.append(upper(size**2).min(1))
        return found

    def _useful(self, at: arb, ends: Sequence[Any]) -> bool:
        """Do blocks still say more than the far bound does?"""
        near = self._gaussian(at)
        for (_, times), g in zip(self._steps, ends, strict=True):
            near *= upper(g + (1 - g) / 4) ** (times / arb(2))
        return bool(self._size_far(at) > near)

    def _width(self, ends: Sequence[Any]) -> float:
        """So that interpolation loses a quarter of each gap 1 - g."""
        rows = zip(ends, self._spread, strict=True)
        return min(math.sqrt(_gap(g)) / float(spread.mid()) for g, spread in rows)

    def _between(self, at: arb, after: arb, one: Sequence[Any], other: Sequence[Any]) -> Any:
        size, width = self._gaussian(at), after - at
        rows = zip(self._steps, self._spread, one, other, strict=True)
        for (_, times), spread, left, right in rows:
            most = left.max(right) + (spread * width) ** 2 / 4
            size *= upper(most).min(1) ** (times / arb(2))
        return upper(size)

    def _spread_of(self, kind: SampledStep) -> Any:
        """A bound on the standard deviation of the tilted loss."""
        c = float(self._c.mid())
        mean, curvature = kind.moments(c)
        reach = min(1.0, 0.1 / math.sqrt(curvature), c / 2)
        return kind.spread(self._c, mean, reach)

    # --- far -------------------------------------------------------------------------------------
    def _size_far(self, at: arb) -> Any:
        size = self._gaussian(at)
        for (_, times), ways in zip(self._steps, self._far, strict=True):
            best = arb(1)
            for out, v in ways:
                best = best.min(upper(out + v / at))
            size *= best**times
        return upper(size)

    def _last(self, at: arb) -> Any:
        return self._size_far(at) * (self._step / at**2 + 1 / at)

    def _gaussian(self, y: arb) -> Any:
        return (-self._variance * y**2 / 2).exp()

    def _share(self, at: arb, after: arb) -> Any:
        """h sum of 1/y^2 over the points of [at, after)."""
        return self._step / at**2 + 1 / at - 1 / after
