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

import numpy as np

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
from tightrope.validate import FloatArray, check_count, check_positive

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
    smoothness = facts.curvature + strength
    wanted = round(math.sqrt(smoothness / max(facts.floor, 1e-12)))
    steps = options.steps or min(max(wanted, _FEWEST), _MOST)
    # 4/(3 beta) is where Nesterov's scheme with momentum near 1 stops being stable
    inner = AveragedDescent(steps, 4.0 / (3.0 * smoothness), radius=options.radius)
    if not options.centring:
        return inner
    return CentredDescent(inner, options.centring, options.row_reach)


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


def _one_pass_step(facts: Facts, strength: float) -> float:
    return _sgd_step_size(facts, strength, facts.records, facts.moved / facts.budget.mu)


def _poisson(facts: Facts, strength: float, options: Options) -> PoissonDescent:
    size = options.batch_size
    rate = min(1.0, size / facts.private) if size else max(_POISSON_RATE, 1 / facts.private)
    steps = options.steps or max(1, round(_POISSON_PASSES / rate))
    step_size = 1.0 / (facts.curvature + strength)
    return PoissonDescent(rate, steps, step_size, radius=options.radius)


ALGORITHMS: dict[str, Callable[[Facts, float, Options], Any]] = {
    "descent": _descent,
    "last-iterate": lambda f, s, o: LastIterateDescent(
        1.0 / (f.curvature + s), radius=o.radius, steps=o.steps or _MOST
    ),
    "cyclic": lambda f, s, o: _cyclic(
        f, s, o, o.batch_size or max(1, math.ceil(f.records / _CYCLE)), o.steps or _EPOCHS
    ),
    "pnsgd": lambda f, s, o: _cyclic(f, s, o, 1, 1),
    "multi-epoch": lambda f, s, o: _cyclic(f, s, o, 1, o.steps or 5),
    "skip": lambda f, s, o: SkipDescent(_one_pass_step(f, s), radius=o.radius),
    "stop": lambda f, s, o: StopDescent(_one_pass_step(f, s), radius=o.radius),
    "poisson": _poisson,
}


def build(name: str, facts: Facts, strength: float, options: Options) -> Algorithm:
    """The named algorithm with numbers for these facts; its noise is not calibrated yet."""
    if name not in ALGORITHMS:
        known = ", ".join(repr(key) for key in ("auto", *ALGORITHMS))
        raise InvalidInput(f"algorithm must be one of {known}; got {name!r}.")
    algorithm: Algorithm = ALGORITHMS[name](facts, strength, options)
    return algorithm


# ---- Which algorithm will lose least, predicted on a model problem ------------------------------
# The model is a quadratic whose Hessian has d eigenvalues h_i proportional to 1/i with sum beta
# (rows of norm at most 1 allow no larger sum); each direction holds an equal part of the loss
# `gain` to be gained. On it the expected excess loss is known, the sum over directions of
# gain bias_i^2/d + h_i variance_i/2 with
#
#     averaged iterates  ridge filter: bias k/(h+k), variance s^2/(h+k)^2, k = strength + 1/travel
#     last iterate       bias c^T and that of the strength,
#                        variance sigma^2 step^2 (1-c^2T)/(1-c^2)
#
# with c = 1 - step (h + strength), s the noise of one release with the whole budget, and `travel`
# how far noise-free descent moves per unit gradient: T step, or T^2 step / 8 with acceleration. It
# is a prediction of utility only: privacy is certified for whatever is chosen.

_LEFT_BY_MEAN = 0.5  # of the squared norm of rows: 0.44 to 0.55 in five public tables
_MOST_EIGENVALUES = 500


@final
@dataclass(frozen=True)
class Candidate:
    """An algorithm with its predicted excess loss, for the comparison in reports."""

    name: str
    excess: float
    why: str


def candidates(facts: Facts, strength: float, options: Options) -> tuple[Candidate, ...]:
    """The algorithms worth comparing, least predicted excess loss first."""
    predictions = (_predict_descent, _predict_last_iterate, _predict_cyclic, _predict_poisson)
    found = [predict(facts, strength, options) for predict in predictions]
    return tuple(sorted(found, key=lambda candidate: candidate.excess))


def _spectrum(facts: Facts) -> FloatArray:
    inverse = 1.0 / np.arange(1, min(facts.weights, _MOST_EIGENVALUES) + 1)
    return np.asarray(facts.curvature * inverse / inverse.sum())


def _excess(facts: Facts, bias: FloatArray, variance: FloatArray) -> float:
    h = _spectrum(facts)
    return float(facts.expected.gain * np.mean(bias**2) + np.sum(h * variance) / 2.0)


def _predict_averaged(facts: Facts, strength: float, travel: float, variance: float) -> float:
    h, k = _spectrum(facts), strength + 1.0 / travel
    return _excess(facts, k / (h + k), variance / (h + k) ** 2)


def _hidden(facts: Facts, strength: float, steps: int, step_size: float, variance: float) -> float:
    h = _spectrum(facts)
    shrink = 1.0 - step_size * (h + strength)
    left = np.abs(shrink) ** steps
    bias = left * h / (h + strength) + strength / (h + strength)
    gain = step_size**2 * (1.0 - left**2) / np.maximum(1.0 - shrink**2, 1e-300)
    return _excess(facts, bias, variance * gain)


def _predict_descent(facts: Facts, strength: float, options: Options) -> Candidate:
    algorithm: Any = build("descent", facts, strength, options)
    step_size = 4.0 / (3.0 * (facts.curvature + strength))
    variance = facts.noise**2 * 4.0 / 3.0  # three quarters of the steps count
    if options.centring:
        variance *= _LEFT_BY_MEAN / (1.0 - options.centring)
    excess = _predict_averaged(facts, strength, algorithm.steps**2 * step_size / 8.0, variance)
    centred = " on centred rows" if options.centring else ""
    why = f"{algorithm.steps} accelerated full-batch steps{centred}, averaged; composition"
    return Candidate("descent", excess, why)


def _predict_last_iterate(facts: Facts, strength: float, options: Options) -> Candidate:
    algorithm: Any = build("last-iterate", facts, strength, options)
    steps, step_size = algorithm.steps, algorithm.step_size
    decay = 1.0 - step_size * strength
    # C.1: sigma = s sqrt((1+c)/(1-c) (1-c^T)/(1+c^T)), which composition has as s sqrt(T)
    gone = decay**steps
    spread = (1 + decay) / (1 - decay) * (1 - gone) / (1 + gone) if decay < 1.0 else steps
    excess = _hidden(facts, strength, steps, step_size, facts.noise**2 * min(spread, steps))
    why = f"{steps} full-batch steps, last iterate only; hidden-state bound"
    return Candidate("last-iterate", excess, why)


def _predict_cyclic(facts: Facts, strength: float, options: Options) -> Candidate:
    algorithm: Any = build("cyclic", facts, strength, options)
    cycle = math.ceil(facts.records / algorithm.batch_size)
    noise = cyclic_noise(facts, cycle, algorithm.epochs) * facts.lipschitz / algorithm.batch_size
    steps = cycle * algorithm.epochs
    excess = _hidden(facts, strength, steps, algorithm.step_size, noise**2)
    why = f"{cycle} fixed batches, {algorithm.epochs} epochs, last iterate; hidden-state bound"
    return Candidate("cyclic", excess, why)


def _predict_poisson(facts: Facts, strength: float, options: Options) -> Candidate:
    algorithm: Any = build("poisson", facts, strength, options)
    drawn = algorithm.rate * algorithm.steps * facts.private
    sampled = facts.lipschitz**2 * (1.0 - algorithm.rate) / drawn / facts.weights
    # q sqrt(T)/sigma bounds mu from below, so no accountant can give Poisson sampling less noise
    variance = 2.0 * (facts.noise**2 + sampled)  # half of the steps count
    travel = algorithm.steps * algorithm.step_size
    why = f"{algorithm.steps} Poisson batches at rate {algorithm.rate:g}; exact accountant"
    return Candidate("poisson", _predict_averaged(facts, strength, travel, variance), why)
