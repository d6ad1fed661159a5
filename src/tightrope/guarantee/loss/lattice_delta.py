"""The profile of composed pairs by tilted, rigorously rounded lattice convolution.

docs/certificate_argument.md, 6.

delta(eps) lies between the profiles of two discrete laws: losses spread (connect-the-dots) and
losses gathered (lowered chords), both of second order in the lattice step. Rare large losses are
summed beside the lattice (lattice_jumps), which keeps the regime T * rate << 1 within reach.

Error: each bound contains the rounding of FFT and sums, the mass that wraps around, and, for the
upper one, the mass given away beyond the last loss and the last number of jumps; `explain` lists
them. What is left between the two bounds is discretisation, and shrinks with the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from tightrope.errors import ContradictoryMethods, NotCertified
from tightrope.guarantee.loss.abstract import Components, infinite_log_mass, largest_loss
from tightrope.guarantee.loss.closed_form import mirrored
from tightrope.guarantee.loss.lattice_law import OneSide, one_side
from tightrope.guarantee.loss.lattice_plan import LatticePlan, best_plan, guesses
from tightrope.numerics.interval import Interval

__all__ = [
    "LatticeLaw",
    "Explanation",
    "law_at",
    "build",
    "log_delta",
    "explain",
    "counted",
]

MAX_KINDS = 300
MANY_KINDS = 64  # more are followed coarsely
_ROUGH = 0.05  # width of the first, cheap answers
_MODEST = 1e-4
_MOST_WORK = 2e6  # a second
_FINEST = 1e-9  # narrower is below the rounding that the bounds contain


@final
@dataclass(frozen=True)
class Explanation:
    """ln delta and what its width is made of, each relative to delta."""

    log_delta: Interval
    width_asked: float
    discretisation: float
    rounding: float  # FFT, sums, wrap-around and masses, both sides together
    given_away: float  # losses and numbers of jumps not followed
    points: int  # largest window
    jumps: int

    @property
    def reached(self) -> bool:
        return self.log_delta.width <= self.width_asked


@final
@dataclass(frozen=True)
class LatticeLaw:
    """The composed law from above and below, planned for one epsilon, valid at every one."""

    plan: LatticePlan
    above: OneSide
    below: OneSide

    def log_delta(self, epsilon: float) -> Interval:
        lower, upper = self.below.log_lower(epsilon), self.above.log_upper(epsilon)
        if lower > upper:
            raise ContradictoryMethods(
                f"The lattice's bounds on ln delta({epsilon!r}) crossed: [{lower!r}, {upper!r}]. "
                "Neither is believed; please report this."
            )
        return Interval(lower, upper)

    def rounding(self, epsilon: float) -> float:
        """The numerical errors of both sides, relative to delta."""
        sides = (self.above.log_value(epsilon), self.below.log_value(epsilon))
        return sum(_share(error, value) for value, error in sides)

    def explain(self, epsilon: float, width: float) -> Explanation:
        up, up_error = self.above.log_value(epsilon)
        low, low_error = self.below.log_value(epsilon)
        return Explanation(
            self.log_delta(epsilon),
            width,
            max(0.0, up - low) if low > -math.inf else math.inf,
            _share(up_error, up) + _share(low_error, low),
            _share(self.above.log_given(epsilon), up),
            max(ladder.size for ladder in self.above.tables),
            self.plan.jumps,
        )


def _share(log_part: float, log_whole: float) -> float:
    return math.exp(min(log_part - log_whole, 700.0)) if log_part > -math.inf else 0.0


def build(plan: LatticePlan) -> LatticeLaw:
    """The law of a plan, from both sides."""
    return LatticeLaw(plan, one_side(plan, "upper"), one_side(plan, "lower"))


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
        dear = plan.work > _MOST_WORK and known.width < 0.1
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


def explain(components: Components, epsilon: float, relative_width: float = 1e-4) -> Explanation:
    """ln delta(epsilon), epsilon >= 0, with every part of its width."""
    components = counted(components)
    trivial = _trivial(components, epsilon)
    if trivial is not None:
        return Explanation(trivial, relative_width, 0.0, 0.0, 0.0, 0, 0)
    law, known = law_at(components, epsilon, relative_width)
    terms = law.explain(epsilon, relative_width)
    return Explanation(known, *(getattr(terms, n) for n in list(terms.__dict__)[1:]))


def log_delta(components: Components, epsilon: float, relative_width: float = 1e-4) -> Interval:
    """Enclosure of ln delta(epsilon), as narrow as asked where that can be reached."""
    if epsilon < 0.0:  # delta(eps) = 1 - e^eps + e^eps delta_reversed(-eps)
        turned = tuple((pair.reversed(), count) for pair, count in components)
        return mirrored(log_delta(turned, -epsilon, relative_width), epsilon)
    return explain(components, epsilon, relative_width).log_delta


def _trivial(components: Components, epsilon: float) -> Interval | None:
    """Needs no lattice: nothing composed, epsilon above all finite losses, or none finite."""
    infinite = infinite_log_mass(components)
    above = epsilon >= largest_loss(components).upper
    return infinite if above or infinite.lower == 0.0 else None
