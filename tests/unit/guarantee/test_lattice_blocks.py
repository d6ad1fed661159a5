"""Blocks of steps on coarser lattices: what a block does not follow is in its error."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tightrope.guarantee.loss.lattice.blocks import Blocks, _Level
from tightrope.guarantee.loss.lattice.sketch import sketch_of
from tightrope.guarantee.loss.pairs import SampledGaussianPair


@pytest.mark.parametrize("k", [2, 3])
def test_blocks_with_more_rare_losses_are_bounded_above_and_dropped_below(k: int) -> None:
    """sum over j >= k of C(n, j) B^j S^(n-j), the masses being those of the tilted steps."""
    pair, n = SampledGaussianPair(0.01, 1.5), 40
    step, rate, ends = 0.05, 0.5, (2.0, 4.0)
    single = pair.measure("upper", step, rate, ends[0])
    jump = pair.jumps.measure("upper", step, rate, ends, single.first)
    blocks = Blocks.__new__(Blocks)
    blocks.side = "upper"
    level = _Level(0, n, n, step)
    found = blocks._log_more_jumps(level, single, jump, k)
    s, b = math.exp(single.log_scale), math.exp(jump.log_scale)
    truth = math.fsum(math.comb(n, j) * b**j * s ** (n - j) for j in range(k, n + 1))
    assert truth <= 1.01 * math.exp(found) <= 3.0 * truth
    blocks.side = "lower"
    assert blocks._log_more_jumps(level, single, jump, k) == -math.inf


def test_levels_hold_every_step() -> None:
    pair, count = SampledGaussianPair(1e-4, 0.4), 50_000
    sketch = sketch_of(((pair, count),))
    blocks = Blocks(pair, "upper", 20.0, 6.0, sketch, 2e-5, 2, 0, 20.0)
    lengths = [level.length for level in blocks.levels]
    assert blocks.levels[0].singles == lengths[0]
    for before, level in zip(lengths, blocks.levels[1:], strict=False):
        assert level.blocks * before + level.singles == level.length
    assert blocks.blocks * lengths[-1] + blocks.rest == count
    assert np.isclose(float(blocks.block.weights.sum()), 1.0)
