"""Numbers for an algorithm, from public quantities only.

Notation (rows of norm at most 1): L Lipschitz constant, beta smoothness, d number of weights,
n records, mu the budget as Gaussian DP, and

    s = (2L or L)/(n mu)     noise of one release of the mean gradient with the whole budget
    h = s sqrt(d) / reach    curvature below which noise outweighs a weight vector of norm `reach`

Directions of curvature below h cannot be learnt at this budget. Acceleration with step 4/(3 beta)
learns curvature h in about sqrt(beta/h) steps, so that is the number of steps; 2h is the
regularisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from tightrope.convex.algorithms import Algorithm, AveragedDescent, PoissonDescent
from tightrope.convex.budget import Budget
from tightrope.convex.centred import CentredDescent
from tightrope.convex.last_iterate import (
    CyclicDescent,
    LastIterateDescent,
    SkipDescent,
    StopDescent,
)
from tightrope.convex.public import shrinkage
from tightrope.errors import InvalidInput
from tightrope.validate import check_count, check_positive

__all__ = [
    "Expected",
    "CLASSIFICATION",
    "REGRESSION",
    "Facts",
    "Options",
    "ALGORITHMS",
    "build",
    "cyclic_noise",
    "regularisation",
]

_FEWEST, _MOST = 4, 250
_CYCLE, _EPOCHS = 10, 20  # hidden-state cyclic descent: batches in an epoch, epochs
_POISSON_RATE, _POISSON_PASSES = 0.05, 20


@final
@dataclass(frozen=True)
class Expected:
    """What a kind of problem is expected to need; it moves utility, never privacy.

    `reach` is the norm of the weights on rows of norm 1, `gain` the loss to be gained over zero
    weights, both in units of the score. Chosen on public and simulated tables.
    """

    reach: float
    gain: float


CLASSIFICATION = Expected(reach=100.0, gain=0.12)
REGRESSION = Expected(reach=10.0, gain=0.02)  # targets are scaled to [-1, 1]


@final
@dataclass(frozen=True)
class Facts:
    """All that the choice may look at: nothing here is read off a private row."""

    records: int
    private: int
    weights: int
    lipschitz: float
    curvature: float
    moved: float
    public: int
    expected: Expected
    budget: Budget

    @property
    def noise(self) -> float:
        """s: standard deviation of one release with the whole budget."""
        return self.moved * self.lipschitz / (self.records * self.budget.mu)

    @property
    def floor(self) -> float:
        """h: the smallest curvature worth learning (beyond what public rows tell)."""
        if self.public:
            return shrinkage(self.noise, self.public) / 2.0
        return self.noise * math.sqrt(self.weights) / self.expected.reach


@final
@dataclass(frozen=True)
class Options:
    """What a user may fix; None is chosen from the facts."""

    steps: int | None = None
    batch_size: int | None = None
    radius: float | None = None
    # share of the budget (of mu^2) that buys the mean of the rows, and where rows are shortened
    # around it in root mean squared distances; 0 leaves rows where they are
    centring: float = 0.0
    row_reach: float = 1.0

    def __post_init__(self) -> None:
        for name, said in (("steps", "steps (max_iter)"), ("batch_size", "batch_size")):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, check_count(given, said, low=1))
        if self.radius is not None:
            object.__setattr__(self, "radius", check_positive(self.radius, "radius"))


def regularisation(facts: Facts) -> float:
    """L2 strength when the user gives none; towards the public solution, if there is one."""
    return 2.0 * facts.floor


def _descent(facts: Facts, strength: float, options: Options) -> Algorithm:
    inner = _averaged(facts, strength, options)
    if not options.centring:
        return inner
    return CentredDescent(inner, options.centring, options.row_reach)


def _averaged(facts: Facts, strength: float, options: Options) -> AveragedDescent:
    smoothness = facts.curvature + strength
    wanted = round(math.sqrt(smoothness / max(facts.floor, 1e-12)))
    steps = options.steps or min(max(wanted, _FEWEST), _MOST)
    # 4/(3 beta) is where Nesterov's scheme with momentum near 1 stops being stable
    return AveragedDescent(steps, 4.0 / (3.0 * smoothness), radius=options.radius)


def _last_iterate(facts: Facts, strength: float, options: Options) -> LastIterateDescent:
    smoothness = facts.curvature + strength
    return LastIterateDescent(1.0 / smoothness, radius=options.radius, steps=options.steps or _MOST)


def _sgd_step_size(facts: Facts, strength: float, steps: float, noise: float) -> float:
    """reach / (G sqrt(T)), the step of the standard bound, within the contraction limit."""
    spread = facts.lipschitz * math.sqrt(1.0 + facts.weights * noise**2)
    return min(
        facts.expected.reach / (spread * math.sqrt(steps)), 2.0 / (facts.curvature + strength)
    )


def _cyclic(
    facts: Facts, strength: float, options: Options, size: int, epochs: int
) -> CyclicDescent:
    cycle = math.ceil(facts.records / size)
    noise = cyclic_noise(facts, cycle, epochs) / size
    step_size = _sgd_step_size(facts, strength, cycle * epochs, noise)
    return CyclicDescent(step_size, radius=options.radius, batch_size=size, epochs=epochs)


def cyclic_noise(facts: Facts, cycle: int, epochs: int) -> float:
    """Noise multiplier of convex cyclic descent: the basis of step sizes only."""
    return facts.moved / facts.budget.mu * math.sqrt((epochs - 1) / cycle + 1.0)


def _batches(facts: Facts, strength: float, options: Options) -> CyclicDescent:
    size = options.batch_size or max(1, math.ceil(facts.records / _CYCLE))
    return _cyclic(facts, strength, options, size, options.steps or _EPOCHS)


def _one_pass(facts: Facts, strength: float, options: Options) -> CyclicDescent:
    return _cyclic(facts, strength, options, 1, 1)


def _multi_epoch(facts: Facts, strength: float, options: Options) -> CyclicDescent:
    return _cyclic(facts, strength, options, 1, options.steps or 5)


def _skip(facts: Facts, strength: float, options: Options) -> SkipDescent:
    step_size = _sgd_step_size(facts, strength, facts.records, facts.moved / facts.budget.mu)
    return SkipDescent(step_size, radius=options.radius)


def _stop(facts: Facts, strength: float, options: Options) -> StopDescent:
    step_size = _sgd_step_size(facts, strength, facts.records, facts.moved / facts.budget.mu)
    return StopDescent(step_size, radius=options.radius)


def _poisson(facts: Facts, strength: float, options: Options) -> PoissonDescent:
    size = options.batch_size
    rate = min(1.0, size / facts.private) if size else max(_POISSON_RATE, 1 / facts.private)
    steps = options.steps or max(1, round(_POISSON_PASSES / rate))
    step_size = 1.0 / (facts.curvature + strength)
    return PoissonDescent(rate, steps, step_size, radius=options.radius)


_Builder = Callable[[Facts, float, Options], Any]
ALGORITHMS: dict[str, _Builder] = {
    "descent": _descent,
    "last-iterate": _last_iterate,
    "cyclic": _batches,
    "pnsgd": _one_pass,
    "multi-epoch": _multi_epoch,
    "skip": _skip,
    "stop": _stop,
    "poisson": _poisson,
}


def build(name: str, facts: Facts, strength: float, options: Options) -> Algorithm:
    """The named algorithm with numbers for these facts; its noise is not calibrated yet."""
    if name not in ALGORITHMS:
        known = ", ".join(repr(key) for key in ("auto", *ALGORITHMS))
        raise InvalidInput(f"algorithm must be one of {known}; got {name!r}.")
    algorithm: Algorithm = ALGORITHMS[name](facts, strength, options)
    return algorithm
