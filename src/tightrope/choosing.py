"""Which correlated noise for a budget: every candidate calibrated exactly, the least error first.

A candidate is a strategy with the way of drawing batches that its account knows: independent noise
with Poisson batches; C of b bands with cyclic Poisson batches, whose rate grows with b; and, with a
fixed cycle of batches, strategies whose C is full. Nothing here is a guarantee by itself: each
process is accounted for like any other.

>>> from tightrope import Target
>>> choice = choose(50_000, 512, 400, Target.approx_dp(epsilon=8.0, delta=1e-5))
>>> choice.best.name, choice.best.error < choice.white.error
('16 bands', True)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

from tightrope.calibrate import find_noise
from tightrope.correlated.factors import best_banded, best_buffers, best_inverse, best_matrix
from tightrope.correlated.sensitivity import Separated
from tightrope.correlated.strategies import (
    SquareRoot,
    Strategy,
    white,
)
from tightrope.correlated.workloads import PREFIX_SUMS, Workload, noise_left, root_mean_square
from tightrope.errors import InvalidInput
from tightrope.process import (
    Adjacency,
    CorrelatedSGD,
    CyclicPoissonSampling,
    CyclicSampling,
    NoisySGD,
    PoissonSampling,
)
from tightrope.target import Target
from tightrope.validate import check_count

_MOST_MATRIX = 256  # steps up to which every entry of C is searched
_MOST_STEPS = 20_000  # up to which buffers are searched


@final
@dataclass(frozen=True)
class Candidate:
    """A process that meets the target, and the noise that it leaves in the model.

    error: root mean square over the steps of the standard deviation of one coordinate of the summed
    mean gradients (weighed by the workload), in clip norms. buffers: arrays of the size of the
    model that the noise keeps.
    """

    name: str
    process: NoisySGD | CorrelatedSGD
    batch: float
    workload: Workload

    @cached_property
    def error(self) -> float:
        return root_mean_square(self.by_step)

    @property
    def buffers(self) -> int:
        return self.strategy.buffers(self.process.steps)

    @property
    def strategy(self) -> Strategy:
        return self.process.strategy if isinstance(self.process, CorrelatedSGD) else white()

    @property
    def noise_multiplier(self) -> float:
        return self.process.noise_multiplier

    @property
    def by_step(self) -> tuple[float, ...]:
        """The standard deviation after each step, in the unit of `error`."""
        scale = self.noise_multiplier / self.batch
        left = noise_left(self.strategy, self.process.steps, self.workload)
        return tuple(scale * one for one in left)


@final
@dataclass(frozen=True)
class Choice:
    """All candidates, the least error first."""

    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def white(self) -> Candidate:
        """Independent noise with Poisson batches."""
        return next(one for one in self.candidates if isinstance(one.process, NoisySGD))


def choose(
    records: int,
    batch: int,
    steps: int,
    target: Target,
    workload: Workload = PREFIX_SUMS,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE,
    most_buffers: int | None = None,
) -> Choice:
    """Candidates for batches of `batch` of `records` on average, over `steps` steps.

    most_buffers: the memory that the noise may take, in arrays of the size of the model.
    """
    for value, name in ((records, "records"), (batch, "batch"), (steps, "steps")):
        check_count(value, name, low=1)
    if batch > records:
        raise InvalidInput(
            f"A batch is at most all {records:,} records; got {batch:,}. Give a smaller batch."
        )
    room = steps if most_buffers is None else check_count(most_buffers, "most_buffers")
    rate, cycle = batch / records, -(-records // batch)
    # what Toeplitz strategies are searched for: the workload with one learning rate
    shape = workload if workload.toeplitz else replace(workload, rates=())

    def candidate(name: str, run: NoisySGD | CorrelatedSGD, size: float) -> Candidate:
        process = find_noise(run, target).process
        return Candidate(name, process, size, workload)

    def cyclic_poisson(name: str, strategy: Strategy, bands: int) -> Candidate:
        sampling = CyclicPoissonSampling(bands * rate, bands)
        return candidate(name, CorrelatedSGD(strategy, sampling, 1.0, steps, adjacency), batch)

    def with_bands(bands: int) -> Candidate:
        strategy = best_banded(steps, bands, workload=shape)
        return cyclic_poisson(f"{bands} bands", strategy, bands)

    plain = NoisySGD(PoissonSampling(rate), 1.0, steps, adjacency)
    found = [candidate("white, Poisson batches", plain, batch)]
    most = min(steps, records // batch, room + 1)
    tried = {2**i for i in range(1, most.bit_length())} | ({most} if most > 1 else set())
    banded = {bands: with_bands(bands) for bands in sorted(tried) if bands <= most}
    if banded:  # then between the best of them, and with every entry of the best one
        best = _best_of(banded)
        for bands in (math.isqrt(best * best // 2), math.isqrt(2 * best * best)):
            if 1 < bands <= most and bands not in banded:
                banded[bands] = with_bands(bands)
        if steps <= _MOST_MATRIX:
            best = _best_of(banded)
            whole = best_matrix(steps, best, workload)
            found.append(cyclic_poisson(f"{best} bands, every entry", whole, best))
    found += banded.values()
    for name, strategy in _in_cycles(steps, cycle, shape):
        if strategy.buffers(steps) <= room:
            run = CorrelatedSGD(strategy, CyclicSampling(cycle), 1.0, steps, adjacency)
            found.append(candidate(f"{name}, fixed cycle", run, records / cycle))
    return Choice(tuple(sorted(found, key=lambda one: one.error)))


def _best_of(banded: dict[int, Candidate]) -> int:
    return min(banded, key=lambda bands: banded[bands].error)


def _in_cycles(steps: int, cycle: int, shape: Workload) -> Iterator[tuple[str, Strategy]]:
    """For every record in each turn of a fixed cycle of batches, which nothing keeps secret."""
    pattern = Separated(-(-steps // cycle), cycle)
    yield "square root", SquareRoot()
    for bands in (2, 4):
        if bands == 2 or bands <= steps <= _MOST_STEPS // 5:
            yield f"{bands} draws", best_inverse(steps, bands, pattern, shape)
    if steps <= _MOST_STEPS:
        yield "1 buffer", best_buffers(steps, 1, pattern, shape)
        yield "2 buffers", best_buffers(steps, 2, pattern, shape)
