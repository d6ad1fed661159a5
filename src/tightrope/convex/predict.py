"""Which algorithm will lose least: predicted on a model problem, from public quantities only.

The model is a quadratic whose Hessian has d eigenvalues h_i proportional to 1/i with sum beta (rows
of norm at most 1 allow no larger sum); each direction holds an equal part of the loss `gain` to be
gained. On it the expected excess loss is known, the sum over directions of
gain bias_i^2/d + h_i variance_i/2 with

    averaged iterates   ridge filter: bias k/(h+k), variance s^2/(h+k)^2, k = strength + 1/travel
    last iterate        bias c^T and that of the strength, variance sigma^2 step^2 (1-c^2T)/(1-c^2)

with c = 1 - step (h + strength), s the noise of one release with the whole budget, and `travel` how
far noise-free descent moves per unit gradient: T step, or T^2 step / 8 with acceleration. It is a
prediction of utility only: privacy is certified for whatever is chosen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from tightrope.convex.choose import Facts, Options, build, cyclic_noise
from tightrope.validate import FloatArray

__all__ = ["Candidate", "candidates"]

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
    predictions = (_descent, _last_iterate, _cyclic, _poisson)
    found = [predict(facts, strength, options) for predict in predictions]
    return tuple(sorted(found, key=lambda candidate: candidate.excess))


def _spectrum(facts: Facts) -> FloatArray:
    inverse = 1.0 / np.arange(1, min(facts.weights, _MOST_EIGENVALUES) + 1)
    return np.asarray(facts.curvature * inverse / inverse.sum())


def _excess(facts: Facts, bias: FloatArray, variance: FloatArray) -> float:
    h = _spectrum(facts)
    return float(facts.expected.gain * np.mean(bias**2) + np.sum(h * variance) / 2.0)


def _averaged(facts: Facts, strength: float, travel: float, variance: float) -> float:
    h, k = _spectrum(facts), strength + 1.0 / travel
    return _excess(facts, k / (h + k), variance / (h + k) ** 2)


def _hidden(facts: Facts, strength: float, steps: int, step_size: float, variance: float) -> float:
    h = _spectrum(facts)
    shrink = 1.0 - step_size * (h + strength)
    left = np.abs(shrink) ** steps
    bias = left * h / (h + strength) + strength / (h + strength)
    gain = step_size**2 * (1.0 - left**2) / np.maximum(1.0 - shrink**2, 1e-300)
    return _excess(facts, bias, variance * gain)


def _descent(facts: Facts, strength: float, options: Options) -> Candidate:
    algorithm: Any = build("descent", facts, strength, options)
    step_size = 4.0 / (3.0 * (facts.curvature + strength))
    variance = facts.noise**2 * 4.0 / 3.0  # three quarters of the steps count
    if options.centring:
        variance *= _LEFT_BY_MEAN / (1.0 - options.centring)
    excess = _averaged(facts, strength, algorithm.steps**2 * step_size / 8.0, variance)
    centred = " on centred rows" if options.centring else ""
    why = f"{algorithm.steps} accelerated full-batch steps{centred}, averaged; composition"
    return Candidate("descent", excess, why)


def _last_iterate(facts: Facts, strength: float, options: Options) -> Candidate:
    algorithm: Any = build("last-iterate", facts, strength, options)
    steps, step_size = algorithm.steps, algorithm.step_size
    decay = 1.0 - step_size * strength
    # C.1: sigma = s sqrt((1+c)/(1-c) (1-c^T)/(1+c^T)), which composition has as s sqrt(T)
    gone = decay**steps
    spread = (1 + decay) / (1 - decay) * (1 - gone) / (1 + gone) if decay < 1.0 else steps
    excess = _hidden(facts, strength, steps, step_size, facts.noise**2 * min(spread, steps))
    why = f"{steps} full-batch steps, last iterate only; hidden-state bound"
    return Candidate("last-iterate", excess, why)


def _cyclic(facts: Facts, strength: float, options: Options) -> Candidate:
    algorithm: Any = build("cyclic", facts, strength, options)
    cycle = math.ceil(facts.records / algorithm.batch_size)
    noise = cyclic_noise(facts, cycle, algorithm.epochs) * facts.lipschitz / algorithm.batch_size
    steps = cycle * algorithm.epochs
    excess = _hidden(facts, strength, steps, algorithm.step_size, noise**2)
    why = f"{cycle} fixed batches, {algorithm.epochs} epochs, last iterate; hidden-state bound"
    return Candidate("cyclic", excess, why)


def _poisson(facts: Facts, strength: float, options: Options) -> Candidate:
    algorithm: Any = build("poisson", facts, strength, options)
    drawn = algorithm.rate * algorithm.steps * facts.private
    sampled = facts.lipschitz**2 * (1.0 - algorithm.rate) / drawn / facts.weights
    # q sqrt(T)/sigma bounds mu from below, so no accountant can give Poisson sampling less noise
    variance = 2.0 * (facts.noise**2 + sampled)  # half of the steps count
    travel = algorithm.steps * algorithm.step_size
    why = f"{algorithm.steps} Poisson batches at rate {algorithm.rate:g}; exact accountant"
    return Candidate("poisson", _averaged(facts, strength, travel, variance), why)
