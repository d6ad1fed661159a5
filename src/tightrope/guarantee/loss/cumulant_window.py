"""Smooth windows on the points s of a sampled Gaussian: which steps a part of a law is made of.

Phi(k s) is entire. Shifting the path of the integral that defines it, its modulus on s + id is at
most e^{(kd)^2/2} Phi(k s); written as 1 - Phi(-k s), it is also at most 1 + e^{(kd)^2/2} Phi(-k s).
Its logarithm is concave, with a second derivative >= -k^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import log_ndtr, ndtr

from tightrope.numerics.quadrature import FloatArray

__all__ = ["Window"]


@final
@dataclass(frozen=True)
class Window:
    """The share Phi(rise (s - start)) Phi(-fall (s - end)) of each s; one row for each law.

    rise = 0: all small s are kept in full; fall = 0: all large ones.
    """

    start: FloatArray | None = None  # (rows, 1)
    rise: float = 0.0
    end: FloatArray | None = None
    fall: float = 0.0

    @classmethod
    def up_to(cls, end: FloatArray, fall: float) -> Window:
        return cls(end=end, fall=fall)

    def repeated(self, times: int) -> Window:
        """The rows, `times` times one after the other."""
        start, end = (
            None if at is None else np.tile(at, (times, 1)) for at in (self.start, self.end)
        )
        return Window(start, self.rise, end, self.fall)

    @property
    def sharpness(self) -> float:
        return max(self.rise, self.fall)

    @property
    def bend(self) -> float:
        """The largest -(ln share)''."""
        return self.rise**2 + self.fall**2

    def log_rising(self, s: FloatArray) -> FloatArray:
        return np.zeros_like(s) if self.start is None else log_ndtr(self.rise * (s - self.start))

    def log_falling(self, s: FloatArray) -> FloatArray:
        return np.zeros_like(s) if self.end is None else log_ndtr(self.fall * (self.end - s))

    def log_share(self, s: FloatArray) -> FloatArray:
        return np.asarray(self.log_rising(s) + self.log_falling(s))

    def dropped(self, s: FloatArray) -> FloatArray:
        """1 - share, for a window without a start."""
        assert self.start is None and self.end is not None
        return np.asarray(ndtr(self.fall * (s - self.end)))

    def log_dropped(self, log_rate: FloatArray, mu: FloatArray) -> FloatArray:
        """ln of the mass of (1-q) N(0,1) + q N(mu,1) beyond the end: E_mix Phi(fall (s - end))."""
        assert self.end is not None
        scale = self.fall / math.sqrt(1.0 + self.fall**2)
        base, shifted = log_ndtr(-scale * self.end), log_ndtr(-scale * (self.end - mu))
        return np.asarray(np.logaddexp(base, log_rate + shifted)[:, 0] + 1e-9)

    def log_cells(self, edges: FloatArray, f: FloatArray, depths: FloatArray) -> FloatArray:
        """ln of bounds on |e^f share| in each cell, (rows, depths, cells), f given on the edges.

        f'' >= -1. Either f + ln share is at most its larger end plus width^2/8 times -(f + ln
        share)'', or the share is bounded on its own; the better one for each of the two ends.
        """
        square = 0.125 * np.diff(edges, axis=1) ** 2
        best = None
        for rising in self._ways(edges, self.start, self.rise, 1.0, depths):
            for falling in self._ways(edges, self.end, -self.fall, -1.0, depths):
                g = f + rising[0] + falling[0]
                cells = np.maximum(g[:, :-1], g[:, 1:]) + square * (1.0 + rising[1] + falling[1])
                value = cells[:, None, :] + rising[2] + falling[2]
                best = value if best is None else np.minimum(best, value)
        assert best is not None
        return best

    @staticmethod
    def _ways(
        edges: FloatArray, at: FloatArray | None, k: float, side: float, depths: FloatArray
    ) -> list[tuple[FloatArray, float, FloatArray]]:
        """(ln share on the edges, its bend, what the depth adds) in two ways."""
        nothing = np.zeros((1, 1, 1))
        if at is None:
            return [(nothing[0], 0.0, nothing)]
        x = k * (edges - at)
        growth = 0.5 * (k * depths[:, :, None]) ** 2
        # 1 + e^growth Phi(-x) is largest where x is smallest
        low = (x[:, :-1] if side > 0 else x[:, 1:])[:, None, :]
        alone = np.logaddexp(0.0, growth + log_ndtr(-low))
        return [(log_ndtr(x), k * k, growth), (nothing[0], 0.0, alone)]
