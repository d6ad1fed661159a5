"""Very many small losses: blocks of steps on coarser and coarser lattices.

A block of 16 times more steps is spread 4 times wider, so it may live on a lattice 4 times coarser
with the same error per level; windows stay as short as that of 16 steps. Losses that are large on
the scale of a block but rare in it wait for the lattice that can hold them: with S the losses below
a cut and B those between it and the next one,
    (S + B)^n = S^n + n B S^(n-1) + C(n,2) B^2 S^(n-2) + at most C(n,3) B^3 (S + B)^(n-3),
or a few terms more; S^n, S^(n-1), ... are composed on the fine lattice, then moved to the coarse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np

from tightrope.guarantee.loss.abstract import AbstractLossPair, Side
from tightrope.guarantee.loss.lattice.plan import (
    COARSER,
    LONGER,
    MAX_SIZE,
    MOST_INSERTED,
    SHORT,
    Sketch,
    log_choose,
    rare_beyond,
)
from tightrope.numerics.lattice import LatticeMeasure, convolve, fast_size, fitted, support
from tightrope.numerics.lattice_sums import coarsened, mixed

_TRIES = (14, 15, 16, 17, 18)  # lengths close to it, whichever leaves the fewest steps over


@final
@dataclass(frozen=True)
class _Level:
    blocks: int  # of the level before
    singles: int  # steps added one by one
    length: int  # steps of the block made of them
    step: float  # of the lattice they are composed on


def _levels(count: int, levels: int, jumps: int, step: float) -> tuple[list[_Level], int, int]:
    """The levels, and how many last blocks and single steps (at least `jumps`) make `count`."""
    if levels == 0:
        return [], 0, count
    about = count // LONGER**levels
    blocks = min(range(about - about // 8, about + 1), key=lambda n: (count - jumps) % n)
    length = (count - jumps) // blocks
    rest = count - blocks * length
    found = []
    for level in range(levels - 1, 0, -1):
        here = length
        longer = min(_TRIES, key=lambda n, whole=here: (whole - MOST_INSERTED) % n)  # type: ignore[misc]
        length = (here - MOST_INSERTED) // longer
        found.append(_Level(longer, here - longer * length, here, step * COARSER**level))
    found.append(_Level(0, length, length, step))
    return found[::-1], blocks, rest


@final
class Blocks:
    """Compositions of one kind of step at one tilt, all losses below the point s = end."""

    def __init__(
        self,
        pair: AbstractLossPair,
        side: Side,
        rate: float,
        end: float,
        sketch: Sketch,
        step: float,
        levels: int,
        jumps: int,
        nats: float,
    ) -> None:
        """`sketch` has the one component, losses below the end; `jumps` steps may be left out.

        All windows together may miss e^-nats.
        """
        self.pair, self.side, self.rate, self.end, self.sketch = pair, side, rate, end, sketch
        self.nats = nats
        count = sketch.parts[0][2]
        self.levels, self.blocks, self.rest = _levels(count, levels, jumps, step)
        coarsest = step * COARSER**levels
        self.single = pair.measure(side, coarsest, rate, end)
        self.block = self._built() if levels else self.single

    def factors(self, skip: int) -> list[tuple[LatticeMeasure, int]]:
        """The measures that compose to all steps but `skip`."""
        parts = [(self.block, self.blocks), (self.single, self.rest - skip)]
        return [(measure, count) for measure, count in parts if count > 0]

    def _built(self) -> LatticeMeasure:
        block: LatticeMeasure | None = None
        cuts = [self._cut(level) for level in self.levels]
        # no block may hold losses that the steps added to it later do not
        ends = np.minimum.accumulate([end for end, _ in (*cuts, (self.end, 0))][::-1])[
            ::-1
        ].tolist()
        for level, (_, most), limits in zip(self.levels, cuts, pairwise(ends), strict=True):
            single = self.pair.measure(self.side, level.step, self.rate, limits[0])
            block = self._longer(level, block, single, limits, most)
        assert block is not None
        return block

    def _cut(self, level: _Level) -> tuple[float, int]:
        """The point where the losses followed on this level end, and how many larger ones are."""
        if not self.pair.has_jumps:
            return self.end, 0
        loss, most = rare_beyond(self.sketch, self.rate, level.length, level.step)
        return (
            (self.end, 0)
            if loss == math.inf
            else (self.pair.point_of(loss), min(most, MOST_INSERTED))
        )

    def _longer(
        self,
        level: _Level,
        block: LatticeMeasure | None,
        single: LatticeMeasure,
        ends: tuple[float, float],
        most: int,
    ) -> LatticeMeasure:
        """The block of this level on the coarser lattice, losses up to the second end."""
        wide = level.step * COARSER
        before = level.blocks * block.first if block is not None else 0.0
        nats = self.nats + math.log(max(1.0, self.sketch.parts[0][2] / level.length))
        width, thetas = self._part(level, ends[0]).window(self.rate, nats)

        def without(steps: int) -> LatticeMeasure:
            parts = [(block, level.blocks), (single, level.singles - steps)]
            factors = [(m, n) for m, n in parts if m is not None and n > 0]
            fine = fitted(factors, width, thetas, math.exp(3.0 - nats), MAX_SIZE)
            anchor = before + (level.singles - steps) * single.first
            return coarsened(fine, COARSER, self.side, anchor)

        whole = without(0)
        if ends[0] == ends[1]:
            return whole
        assert self.pair.jumps is not None  # others have no losses that wait
        jump = self.pair.jumps.measure(self.side, wide, self.rate, ends, single.first)
        parts = [(whole, 0.0)]
        for k in range(1, most + 1):
            total = _summed([(without(k), 1), (jump, k)])
            parts.append((total, log_choose(level.length, k)))
        return mixed(parts, self._log_more_jumps(level, single, jump, most + 1))

    def _log_more_jumps(
        self, level: _Level, single: LatticeMeasure, jump: LatticeMeasure, k: int
    ) -> float:
        """ln of the blocks with k or more rare losses: dropped below."""
        if self.side == "lower":
            return -math.inf
        both = float(np.logaddexp(single.log_scale, jump.log_scale))
        n = level.length
        return log_choose(n, k) + k * jump.log_scale + (n - k) * both

    def _part(self, level: _Level, end: float) -> Sketch:
        """A sketch of the block without its rare losses."""
        losses, logs, _ = self.sketch.parts[0]
        keep = len(losses)
        if end < self.end:
            keep = int(np.searchsorted(losses, self.pair.largest_up_to(end))) + 1
        return Sketch(((losses[:keep], logs[:keep], level.length),))


def _summed(factors: list[tuple[LatticeMeasure, int]]) -> LatticeMeasure:
    """Their product, on all of its support or on the part from its beginning that matters."""
    reach, step = support(factors), factors[0][0].step
    if reach <= SHORT * 4:
        return convolve(factors, fast_size(reach), (1.0, 1.0))
    options = []
    for theta in (x / (reach * step) for x in (10.0, 30.0, 100.0, 300.0, 1000.0)):
        options.append(((42.0 + sum(n * m.log_moment(theta) for m, n in factors)) / theta, theta))
    width, theta = min(options)
    return fitted(factors, width, (theta, 1.0 / step), 1e-16, MAX_SIZE)
