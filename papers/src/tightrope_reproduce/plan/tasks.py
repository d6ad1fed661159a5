"""Several convex tasks on the same records, one budget.

Feldman et al. 2018, Theorem 32: one Stop-PNSGD run for each of k tasks, all outputs released. The
printed noise 4 L sqrt(q ln(1/delta))/epsilon, q = max{2 k ln(n)/n, 2 ln(1/delta)}, inherits
Theorem 26's ln n for H_n, and the text's "noise grows by max{k/n, 1}" should be the root of
max{k ln(n)/n, 1}. Here the least noise is found for which what `account` says of the k runs, by
which the plan answers too, meets the budget; no condition on epsilon. Composed Renyi curves, which
are cheap, give the first guess; composed profiles need 10 to 20 % less noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tightrope.errors import InvalidInput, NotCertified
from tightrope.guarantee import gaussian as profile
from tightrope.guarantee.kinds.renyi import RenyiCurve, RenyiGuarantee
from tightrope.process.adjacency import Adjacency
from tightrope.process.convex import ConvexLoss, StopSGD
from tightrope.theorems.last_iterate.sampled import StopProfile, StopTerm
from tightrope.validate import check_count, check_epsilon, check_positive
from tightrope_reproduce.plan.outcome import ConvexPlan
from tightrope_reproduce.plan.per_person import check_positive_delta
from tightrope_reproduce.plan.utility import best_step

__all__ = ["many_tasks", "printed_noise"]

_ATTEMPTS = 14
_ROOM = 1e-4  # of the budget, left unspent


def many_tasks(
    loss: ConvexLoss,
    *,
    tasks: int,
    records: int,
    dimension: int,
    radius: float,
    epsilon: float,
    delta: float,
) -> ConvexPlan:
    """`tasks` runs of Stop-PNSGD, one for each loss (all with these constants)."""
    tasks = check_count(tasks, "tasks", low=1)
    records = check_count(records, "records", low=1)
    if math.isinf(loss.smoothness):
        raise InvalidInput(
            "Smooth each loss first (tightrope_reproduce.plan.smoothed); got smoothness inf."
        )
    step = _largest_step(tasks, records, check_epsilon(epsilon), check_positive_delta(delta))
    dimension = check_count(dimension, "dimension", low=1)
    largest = 2.0 / loss.smoothness if loss.smoothness > 0.0 else math.inf
    distance = 2.0 * check_positive(radius, "radius")

    def plan(step: float) -> ConvexPlan:
        noise = 2.0 * loss.lipschitz / step
        second = loss.lipschitz**2 + dimension * noise**2
        choice = best_step(distance, second, records, steps=records + 1, largest=largest)
        process = StopSGD(
            loss=loss,
            step_size=choice.step_size,
            noise_std=noise,
            records=records,
            diameter=distance,
        )
        excess = min(choice.excess_loss, distance * loss.lipschitz)
        return ConvexPlan(process, epsilon, delta, excess, records, tasks)

    made = _within_budget(plan, step)
    return made if tasks == 1 else _sharpened(plan, made)


def _sharpened(plan: Callable[[float], ConvexPlan], made: ConvexPlan) -> ConvexPlan:
    """A larger step while the budget leaves room: the secant of ln epsilon over ln step."""
    step, power = 2.0 * made.process.loss.lipschitz / made.noise_std, 1.0
    spent = made.guarantee().epsilon(made.delta).upper
    for _ in range(_ATTEMPTS):
        if (1.0 - _ROOM) * made.epsilon <= spent <= made.epsilon:
            break
        factor = ((1.0 - 0.5 * _ROOM) * made.epsilon / spent) ** (1.0 / power)
        trial = plan(step * factor)
        found = trial.guarantee().epsilon(made.delta).upper
        power = math.log(found / spent) / math.log(factor)
        step, spent = step * factor, found
        if found <= made.epsilon:
            made = trial
    return made


def _within_budget(plan: Callable[[float], ConvexPlan], step: float) -> ConvexPlan:
    """The plan of this step, or of one a little smaller whose own guarantee keeps the promise."""
    for attempt in range(_ATTEMPTS):
        made = plan(step)
        if made.guarantee().epsilon(made.delta).upper <= made.epsilon:
            return made
        step *= 1.0 - 1e-9 * 4.0**attempt
    raise NotCertified(
        f"No noise was found whose guarantee stays within epsilon = {made.epsilon:g} at delta = "
        f"{made.delta:g}. Ask for a larger budget or fewer tasks."
    )


def _largest_step(tasks: int, records: int, epsilon: float, delta: float) -> float:
    """The largest mu of one gradient (2 L / noise) that the budget allows."""
    low = float(profile.mu_bounds(epsilon, delta)[0]) / math.sqrt(tasks)  # a first guess
    high = 2.0 * low
    while not _fits(low, tasks, records, epsilon, delta):
        low, high = 0.5 * low, low
    while _fits(high, tasks, records, epsilon, delta):
        low, high = high, 2.0 * high
    while high - low > (1e-6 if tasks == 1 else 1e-2) * low:  # several: only a first guess
        middle = 0.5 * (low + high)
        low, high = (
            (middle, high) if _fits(middle, tasks, records, epsilon, delta) else (low, middle)
        )
    return low


def _fits(step: float, tasks: int, records: int, epsilon: float, delta: float) -> bool:
    if tasks == 1:  # the profile needs no composition and is sharper
        return StopProfile(step * (1.0 + 1e-12), 1.0, records)(epsilon) <= delta
    curve = RenyiCurve.of(StopTerm(step * (1.0 + 1e-14), 1.0, records)) * tasks
    found = RenyiGuarantee(curve, Adjacency.REPLACE_ONE).epsilon(delta)
    return found.upper <= epsilon


def printed_noise(
    lipschitz: float, tasks: int, records: int, epsilon: float, delta: float
) -> float:
    """Theorem 32's noise with H_n for ln n: valid for epsilon < 1, for comparison."""
    log = math.log(1.0 / delta)
    harmonic = math.fsum(1.0 / k for k in range(1, records + 1))
    q = max(2.0 * tasks * harmonic / records, 2.0 * log)
    return 4.0 * lipschitz * math.sqrt(q * log) / epsilon
