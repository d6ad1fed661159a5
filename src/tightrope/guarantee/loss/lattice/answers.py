"""What the lattice answers: delta(epsilon), and the smallest epsilon for a delta."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

from tightrope.errors import NotCertified
from tightrope.guarantee.loss.abstract import Components, infinite_log_mass, largest_loss, mirrored
from tightrope.guarantee.loss.lattice.best import best_plan, guesses
from tightrope.guarantee.loss.lattice.law import LatticeLaw, build
from tightrope.guarantee.loss.lattice.plan import LatticePlan
from tightrope.numerics.interval import Interval

_ROUGH = 0.05
_WIDER = 1e3  # times the mass of infinite losses: a delta at which they hardly count
_LARGEST = 1e6
_EXACT = 1e-10  # relative width where the lattice rounds no loss
_ATOMS = 1e-6  # and where an atom sits at the largest loss
_MODEST = 1e-4  # a width worth any work
_MOST_LAWS = 4
_MOST_WORK = 8e5  # of all laws after the first: about 0.3 s
_ONE_BY_ONE = 4e5  # of it, where jumps are followed one by one
_DEAR = 2e5  # work that is not done again where it won nothing
_HOPELESS = 1e3  # rounding that no plan is tried with; its estimate is often far too large


# ---- both sides, planned until they are as close as asked for
MAX_KINDS = 300
MANY_KINDS = 64  # more are followed coarsely
_A_SECOND = 2e6  # of work
_FINEST = 1e-9  # narrower is below the rounding that the bounds contain


def counted(components: Components) -> Components:
    """Equal pairs counted together; refuses too many kinds of them."""
    counts: dict[object, int] = {}
    for pair, count in components:
        counts[pair] = counts.get(pair, 0) + count
    if len(counts) > MAX_KINDS:
        raise NotCertified(
            f"The lattice method follows at most {MAX_KINDS} kinds of steps; got {len(counts)}. "
            "Use the inversion integral, or state several releases as one."
        )
    return tuple((pair, n) for pair, n in counts.items() if n > 0)  # type: ignore[misc]


def law_at(
    components: Components, epsilon: float, relative_width: float = 1e-4
) -> tuple[LatticeLaw, Interval]:
    """A law that gives ln delta(epsilon) to `relative_width` where that can be reached."""
    known, law, done = Interval(-math.inf, 0.0), None, None
    waiting = list(guesses(components, epsilon))
    for _ in range(6):  # cheap answers first: a good plan needs the size of delta
        guess = waiting.pop(0) if waiting else _middle(known)
        plan = best_plan(components, epsilon, guess, _ROUGH)
        if done is not None and plan.no_finer_than(done):
            continue
        del law  # one at a time in memory
        law, done = build(plan), plan
        known = known.intersect(law.log_delta(epsilon))
        if known.width <= 1.0:
            break
    assert law is not None
    if len(components) > MANY_KINDS:
        return law, known
    for target in (max(relative_width, _FINEST), max(relative_width, _MODEST)):
        if known.width > target:  # the modest width where the one asked for was too much
            law, known = _refined(components, epsilon, law, known, target)
    return law, known


def _refined(
    components: Components, epsilon: float, law: LatticeLaw, known: Interval, width: float
) -> tuple[LatticeLaw, Interval]:
    """Finer lattices until `width` is reached or nothing more is won."""
    finer = 1.0
    for _ in range(3):
        if known.width <= width:
            break
        plan = best_plan(components, epsilon, _middle(known), width, finer)
        dear = plan.work > _A_SECOND and known.width < 0.1
        if dear or plan.rounding > known.width or plan.no_finer_than(law.plan):
            break  # as fine as rounding and the work cap allow
        law = build(plan)
        found, before = law.log_delta(epsilon), known.width
        known = known.intersect(found)
        if known.width > 0.7 * before:
            break
        finer *= 0.8 * math.sqrt(min(1.0, max(0.02, width / max(found.width, 1e-300))))
    return law, known


def _middle(known: Interval) -> float:
    return known.upper if known.lower == -math.inf else 0.5 * (known.lower + known.upper)


def log_delta(components: Components, epsilon: float, relative_width: float = 1e-4) -> Interval:
    """Enclosure of ln delta(epsilon), as narrow as asked where that can be reached."""
    if epsilon < 0.0:  # delta(eps) = 1 - e^eps + e^eps delta_reversed(-eps)
        turned = tuple((pair.reversed(), count) for pair, count in components)
        return mirrored(log_delta(turned, -epsilon, relative_width), epsilon)
    components = counted(components)
    infinite = infinite_log_mass(components)
    # nothing composed, epsilon above all finite losses, or none finite: needs no lattice
    if epsilon >= largest_loss(components).upper or infinite.lower == 0.0:
        return infinite
    return law_at(components, epsilon, relative_width)[1]


# ---- the smallest epsilon with delta(epsilon) <= delta, bracketed by such laws
def smallest_epsilon(components: Components, delta: float, relative_width: float) -> Interval:
    """Both ends are verified: delta_upper(upper) <= delta and delta_lower(lower) >= delta."""
    if delta >= 1.0 or not components:
        return Interval.exact(0.0)
    highest = largest_loss(components).upper
    floor = infinite_log_mass(components)
    target = math.log(delta) if delta > 0.0 else -math.inf
    if target < floor.lower:
        return Interval.exact(math.inf)
    if target == floor.upper == -math.inf:
        return Interval(0.0, highest)
    if target <= floor.upper:  # too close to tell, or less than what was cut off
        wider = _WIDER * math.exp(floor.upper)
        least = 0.0 if wider >= 1.0 else smallest_epsilon(components, wider, relative_width).lower
        return Interval(least, math.inf)
    if _estimate(components, 0.0) < target + 3.0:
        at_zero = log_delta(components, 0.0, _ROUGH)
        if at_zero.upper <= target:
            return Interval.exact(0.0)
    if len(components) == 1 and components[0][0].on_one_lattice:
        relative_width = min(relative_width, _EXACT)
    elif highest < math.inf:
        below = _just_below(components, highest, target, relative_width)
        if below is not None:  # so close to the largest loss that the largest loss will do
            return Interval(below, highest)
    search = _Search(components, target, highest, relative_width)
    if len(components) <= MANY_KINDS:
        # sums of any number of jumps first, then jumps one by one: the latter cost more each
        search.refine(True, _MOST_WORK)
        search.refine(False, min(search.left, _ONE_BY_ONE))
    answer = search.answer
    if answer.relative_width > 10.0 * max(relative_width, _MODEST):
        for share in (1e-3, 1e-2, 0.1):  # where no lattice at the answer itself has a lower end
            below = min(answer.upper, _LARGEST) * (1.0 - share)
            if law_at(components, below, _ROUGH)[1].lower > target:
                return Interval(max(answer.lower, below), answer.upper)
    return answer


@final
class _Search:
    """The best of several laws: each bracket is valid, so what they have in common is."""

    def __init__(
        self, components: Components, target: float, highest: float, relative_width: float
    ) -> None:
        self.components, self.target, self.highest = components, target, highest
        self.wanted, self.left = relative_width, 0.0
        law, self.guess, self.slope = _near(components, target, min(highest, _LARGEST))
        self.done, self.answer = law.plan, self._bracket(law)

    def _bracket(self, law: LatticeLaw) -> Interval:
        near = (self.target, self.guess, self.highest, self.slope, self.wanted)
        upper = _crossing(law.above.log_upper, *near)[1]
        return Interval(min(_crossing(law.below.log_lower, *near)[0], upper), upper)

    def refine(self, compound: bool, work: float) -> None:
        """Finer laws, until the answer is narrow enough or nothing more is won."""
        failed, many, self.left = list[float](), False, work
        width = min(max(0.5 * self.wanted * self.guess * self.slope, 1e-8), _ROUGH)
        for _ in range(_MOST_LAWS):
            if self.answer.relative_width <= self.wanted:
                return
            plan = self._affordable(width, tuple(failed), many, compound)
            if plan.like(self.done) and not many:  # as fine as such a plan can be: another kind
                failed.append(plan.split.cut)
                many = True
                plan = self._affordable(width, tuple(failed), many, compound)
            before = self.answer.relative_width
            coarser = plan.goal.width > 2.0 * before * self.guess * self.slope
            dear = before <= _MODEST and (plan.work > self.left or coarser)
            idle = dear or plan.like(self.done) or plan.rounding > _HOPELESS
            if plan.compound != compound or idle:
                return
            law = build(plan)
            found = self._bracket(law)
            self.done, self.left = plan, self.left - plan.work
            self.answer = self.answer.intersect(found)
            if plan.work > _DEAR and self.answer.relative_width > 0.7 * before:
                return
            if law.rounding(self.guess) > width:  # the plan knew only its order of size
                failed.append(plan.split.cut)
            else:
                share = self.wanted / max(found.relative_width, self.wanted)
                width = max(width * (0.6 * share if found.upper < math.inf else 0.2), 1e-9)

    def _affordable(
        self, width: float, failed: tuple[float, ...], many: bool, compound: bool
    ) -> LatticePlan:
        """The best plan for `width`, or for what little more can be had for so much work."""

        def plan_for(width: float) -> LatticePlan:
            goal = (self.components, self.guess, self.target, width)
            return best_plan(*goal, failed=failed, many=many, compound=compound)

        plan = plan_for(width)
        for _ in range(2):
            if plan.work <= self.left or width >= _ROUGH:
                break
            width = min(width * max(2.0, 1.5 * (plan.work / max(self.left, 1e4)) ** 2), _ROUGH)
            plan = plan_for(width)
        return plan


def _just_below(
    components: Components, highest: float, target: float, relative_width: float
) -> float | None:
    """An epsilon next to the largest loss where delta is still above the target, if it is."""
    atoms = any(pair.spacing is not None for pair, _ in components)
    room = min(relative_width, _ATOMS) if atoms else relative_width
    below = highest * (1.0 - 0.95 * room)
    if _estimate(components, below) < target - 3.0:
        return None
    return below if law_at(components, below, _ROUGH)[1].lower > target else None


def _near(components: Components, target: float, highest: float) -> tuple[LatticeLaw, float, float]:
    """A law laid where ln delta is about `target`, that epsilon, and - d ln delta / d eps."""
    low, high = 0.0, 1.0
    while high < highest and _estimate(components, high) > target:
        low, high = high, 2.0 * high
    high = min(high, highest)
    for _ in range(25):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _estimate(components, middle) > target else (low, middle)
    guess = 0.5 * (low + high)
    low, high = 0.0, highest
    slope = 1.0
    law, known = law_at(components, guess, _ROUGH)
    for _ in range(8):  # certified values lead the rest of the way
        slope = _slope(law, guess, highest)
        centre = 0.5 * (known.lower + known.upper) if known.width < 2.0 else known.upper
        low, high = (max(low, guess), high) if centre > target else (low, min(high, guess))
        step = (centre - target) / slope
        if abs(centre - target) < 0.2:
            return law, max(guess + step, 0.0), slope
        guess = guess + step if low < guess + step < high else 0.5 * (low + high)
        known = law.log_delta(guess)  # a law is valid everywhere, and often good enough nearby
        if known.width > 2.0 * _ROUGH:
            law, known = law_at(components, guess, _ROUGH)
    return law, guess, slope


def _estimate(components: Components, epsilon: float) -> float:
    """The likelier guess at ln delta."""
    return guesses(components, epsilon)[0]


def _slope(law: LatticeLaw, epsilon: float, highest: float) -> float:
    move = max(1e-3 * epsilon, 1e-300)
    move = min(move, 0.25 * (highest - epsilon)) if epsilon < highest else move
    change = law.above.log_upper(epsilon) - law.above.log_upper(epsilon + move)
    return max(change / move, 1e-6) if math.isfinite(change) else 1.0


def _crossing(
    value_at: Callable[[float], float],
    target: float,
    guess: float,
    highest: float,
    slope: float,
    relative_width: float,
) -> tuple[float, float]:
    """(a, b) with value_at(a) > target (or a = 0) and value_at(b) <= target, close together."""
    low, high = 0.0, highest
    tolerance = 0.05 * relative_width
    x, hair = guess, 0.3 * tolerance * max(guess, 1e-300)
    before = math.nan, math.nan
    for _ in range(80):
        value = value_at(x)
        measured = (before[1] - value) / (x - before[0]) if x != before[0] else math.nan
        slope = measured if 0.0 < measured < math.inf else slope
        before = x, value
        low, high = (max(low, x), high) if value > target else (low, min(high, x))
        if math.isfinite(high) and high - low <= tolerance * high:
            break
        # aim a hair beyond the root, so that both ends close in on it
        aim = x + (value - target) / slope + (hair if value > target else -hair)
        top = high if math.isfinite(high) else 2.0 * low + 1.0
        x = aim if low < aim < top and math.isfinite(aim) else 0.5 * (low + top)
        hair *= 1.5
    return low, high


def epsilon(components: Components, delta: float, relative_width: float = 1e-6) -> Interval:
    """Enclosure of the smallest epsilon >= 0 with delta(epsilon) <= delta."""
    return smallest_epsilon(counted(components), delta, relative_width)
