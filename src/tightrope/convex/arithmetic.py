"""How far rounding lets one record move the values that noise is added to (docs/convex_arithmetic).

rho is proved from sizes, none of which is private: the sensitivity charged is L (1 + rho).
u = 2^-53 and gamma(k) = k u/(1 - k u), which bounds the rounding of k operations in any order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tightrope.convex.exact import GRID, weights_error
from tightrope.convex.rows import PIECE, SAFETY
from tightrope.errors import InvalidInput
from tightrope.process import Adjacency

if TYPE_CHECKING:
    from tightrope.convex.problem import Problem

MODE = "bounded"  # as training names sums whose rounding is bounded and charged
LARGEST = 1e-2
BALL = 1e3  # where iterates stay that no radius was given for: weights on rows of norm 1
MOST_ROWS = 1 << 26  # rows for which sums are bounded where their number is private
_REACH = 64.0  # weights (times curvature over slope) up to which scores are plain products,
_ROOM = 1e-3  # and what their rounding may take of rho
_UNIT = 2.0**-53


def gamma(operations: float) -> float:
    return operations * _UNIT / (1.0 - operations * _UNIT)


def of_sums(problem: Problem, radius: float = 1.0) -> float:
    """rho of one sum of gradients; rows are shortened to no less than `radius` around a centre."""
    radius = min(radius, problem.data.scaling.radius)
    weights_error(problem.data.width, (1.0 + 1e-3) / radius)  # refuses rows without exact scores
    drift = 2.0 * _sum_error(problem, _most_rows(problem), radius) / problem.moved
    each = _of_plain_scores(problem, radius)
    plain = min(_REACH * each, _ROOM)
    return _checked(_longer_rows(problem.data.width, radius) + drift + plain)


def plain_reach(problem: Problem) -> float:
    """The norm of weights up to which `of_sums` charges the rounding of plain scores."""
    each = _of_plain_scores(problem, problem.data.scaling.radius)
    return min(_REACH, _ROOM / each) * problem.loss.slope_bound / problem.loss.curvature_bound


def _of_plain_scores(problem: Problem, radius: float) -> float:
    """rho of scores that are plain products, for weights of norm L/beta."""
    return 2.0 * _most_rows(problem) * _score_error(problem.data.width, radius) / problem.moved


def _score_error(width: int, radius: float) -> float:
    """Of products with a row and a centre, and of their sum, over the norm of the weights."""
    return gamma(2.0 * width + 16.0) / radius


def of_moments(problem: Problem) -> float:
    """rho of the sum of rows and of their squared norms: one more coordinate of size at most 1."""
    rows = _most_rows(problem)
    return _checked(_longer_rows(problem.data.width, 1.0) + 4.0 * rows * gamma(PIECE + 8))


def of_iterates(
    problem: Problem, *, steps: int, size: int, step_size: float, radius: float | None
) -> float:
    """rho of a last iterate: a step as computed is no exact contraction.

    Its distance from one, in gradients of one record, is absorbed by the noise of the same step;
    mu grows by at most `steps` times it relative to the record's own mu (|w| <= radius or BALL).
    """
    ball = BALL if radius is None else radius
    lipschitz, width, scaling = problem.loss.slope_bound, problem.data.width, problem.data.scaling
    wrong = weights_error(width, scaling.longest) + _score_error(width, scaling.radius)
    each = size * problem.smoothness * wrong * ball / lipschitz
    each += _sum_error(problem, size, scaling.radius)
    each += 32.0 * _UNIT * ball * size / (step_size * lipschitz)
    longer = _longer_rows(width, scaling.radius)
    return _checked(longer + steps * 2.0 * each / problem.moved)


def _most_rows(problem: Problem) -> int:
    if problem.adjacency is Adjacency.REPLACE_ONE:
        return problem.data.count
    return MOST_ROWS


def _sum_error(problem: Problem, rows: int, radius: float) -> float:
    """Of a sum of slope * row over `rows` rows, in units of the Lipschitz constant.

    A row is summed in three terms (features, centre, intercept) of at most 1/radius; slopes are
    right to a few units in the last place.
    """
    slopes = gamma(problem.loss.outputs + 32) * max(1.0, 2.0 / problem.loss.slope_bound)
    return rows * ((2.0 / radius + 1.0) * gamma(PIECE + 8) + slopes)


def _longer_rows(width: int, radius: float) -> float:
    """How much longer than 1 a scaled row may be: rounding of its norm and its grid."""
    norms = (width + 8) * _UNIT * (1.0 + 4.0 / radius**2)
    grid = math.sqrt(width) * 2.0 ** -(GRID + 1)
    return max(0.0, SAFETY * (1.0 + norms) + grid - 1.0)


def _checked(rho: float) -> float:
    if rho <= LARGEST:
        return rho
    raise InvalidInput(
        f"Rounding could move what noise is added to by {rho:.2g} of the sensitivity, and at most "
        f"{LARGEST:g} is allowed: float64 is too coarse for sums of this size. Use "
        "algorithm='descent', fewer or longer steps, a smaller radius, or fewer rows in one fit."
    )
