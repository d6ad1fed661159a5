"""Rows that need no protection: where to start, what to shrink towards, where to centre.

With m public rows and noise s on the mean gradient of all rows, pooling already weighs the public
solution as m rows should be weighed. What noise adds in a direction of curvature h is (s/h)^2, what
the public solution lacks there is about 1/(m h) (its own sampling error: the Hessian of a logistic
loss is the variance of its slopes). Shrinking towards it with strength k leaves
    (k/(h+k))^2 / (m h) + s^2/(h+k)^2,    least at k = s^2 m for every h.
All of it is public or free: the public rows cost no budget.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from tightrope.convex.algorithms import AveragedDescent
from tightrope.convex.entropy import Entropy
from tightrope.convex.problem import Problem
from tightrope.convex.rows import Data, Scaling
from tightrope.validate import FloatArray

_STEPS = 500
_LEAST_SPREAD = 0.1


@final
@dataclass(frozen=True)
class PublicRows:
    """Rows and targets that need no protection, for `fit(..., public=)`.

    other_people: rows that equal private ones belong to other people. Otherwise such rows are
    refused.
    """

    features: Any
    targets: Any
    other_people: bool = False


def with_public_centre(problem: Problem, reach: float) -> Problem:
    """The problem on rows centred at the public mean."""
    assert problem.public is not None
    plain = problem.public.rescaled(Scaling(problem.data.scaling.data_norm, 0.0))
    mean, square = np.zeros(plain.width), 0.0
    for block in plain.blocks():
        mean += block.pull_back(np.ones(len(block.factors))) / plain.count
        square += float(block.squared_norms().sum()) / plain.count
    square -= float(mean @ mean)
    spread = math.sqrt(max(square, _LEAST_SPREAD**2))
    scaling = problem.data.scaling.centred(mean, min(reach * spread, 1.0))
    return replace(
        problem, data=problem.data.rescaled(scaling), public=problem.public.rescaled(scaling)
    )


def public_solution(problem: Problem) -> FloatArray:
    """The regularised minimum on the public rows alone, as far as 500 accelerated steps find it."""
    assert problem.public is not None
    scaling = problem.public.scaling
    strength = 1.0 / (problem.public.count * (scaling.data_norm * scaling.radius) ** 2)
    alone = Problem(problem.public, problem.loss, strength)
    descent = AveragedDescent(_STEPS, 1.0 / alone.smoothness, noise_multiplier=0.0)
    return descent.run(alone, Entropy(0), np.zeros(problem.shape)).weights


def shrinkage(noise: float, public_rows: int) -> float:
    """k = s^2 m."""
    return noise**2 * public_rows


def digest(public: Data) -> str:
    """SHA-256 of the public rows (float64, row by row) and their targets."""
    found = hashlib.sha256()
    for block in public.blocks():
        rows = block.features.toarray() if hasattr(block.features, "toarray") else block.features
        found.update(np.ascontiguousarray(rows, dtype=np.float64).tobytes())
        found.update(np.ascontiguousarray(block.targets, dtype=np.float64).tobytes())
    return found.hexdigest()
