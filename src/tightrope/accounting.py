"""From a process to the best guarantee, with everything that was tried and refused.

>>> from tightrope import NoisySGD, PoissonSampling, account
>>> run = NoisySGD(PoissonSampling(256 / 60000), noise_multiplier=1.1, steps=14062)
>>> account(run).epsilon(delta=1e-5).upper
2.38...
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, cast, final

from tightrope.errors import ContradictoryMethods, DoesNotApply, NotCertified
from tightrope.guarantee.base import Guarantee, Validity, Views
from tightrope.guarantee.check import (
    SecondMethod,
    SecondVerdict,
    confirm_delta,
    confirm_epsilon,
    second_method,
)
from tightrope.guarantee.compose import compose
from tightrope.guarantee.estimate import Estimate, compose_estimates
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.kinds.renyi import RenyiGuarantee
from tightrope.guarantee.kinds.stopped import StoppedGuarantee
from tightrope.numerics.interval import Interval, IntervalArray
from tightrope.numerics.rounding import rounded_up
from tightrope.process import Process, UserLevel, parts_of
from tightrope.process.composite import check_process
from tightrope.theorems.base import Refusal, Source, Theorem
from tightrope.theorems.catalog import ANALYSES, Analysis
from tightrope.theorems.stopping_times import StoppingTimes, covering, covers
from tightrope.validate import FloatArray, check_delta, one_number

# Is an exact number held against the second method (the lattice) before it is returned?
# "quick": against a coarse lattice, some milliseconds; "full": against a fine one, up to seconds.
Check = Literal["quick", "full", "off"]
_SLACK = 1e-9  # of two certified numbers that should agree
_LONGEST = 300  # characters of a process in a repr
_CLOSE = 1e-3  # a wider Renyi divergence is held against the other analyses


@final
@dataclass(frozen=True)
class AnalysisResult:
    """One analysis of one process: its guarantee or estimate, or why it was refused."""

    analysis: Analysis
    outcome: Guarantee | Estimate | None
    reason: Refusal | None
    theorems: tuple[Theorem, ...]

    @property
    def name(self) -> str:
        return self.theorems[0].NAME if self.theorems else self.analysis.name

    @property
    def key(self) -> str:
        return self.analysis.key

    @property
    def applies(self) -> bool:
        return self.outcome is not None

    @property
    def is_certified(self) -> bool:
        return isinstance(self.outcome, Guarantee)

    @property
    def is_foreign(self) -> bool:
        """Refused because it speaks about another kind of process: nothing to learn from it."""
        return self.reason is not None and self.reason.kind == "foreign"

    @property
    def kind(self) -> Validity:
        return self.outcome.validity if self.outcome else self.analysis.lead.VALIDITY

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(theorem.SOURCE for theorem in self.theorems or (self.analysis.lead,))


@final
@dataclass(frozen=True)
class Account(Views):
    """Every analysis of a process; answers like the best certified one.

        >>> from tightrope import GaussianMechanism, account
        >>> result = account(GaussianMechanism(noise_multiplier=2.0))
        >>> print(result.delta(epsilon=1.0))
        [0.006829594983, 0.006829594984]
        >>> [finding.key for finding in result.certified][0]
        'exact'

    Both ends of an answer hold for the process; where only a bound is known, one end says nothing.
    Where two methods disagree about epsilon or delta, there is no answer but ContradictoryMethods.

    An analysis is made when it is asked for: where the first one is exact, no other need be.
    """

    process: Process
    analyses: tuple[Analysis, ...] = ANALYSES
    check: Check = "quick"

    def __repr__(self) -> str:
        """The process alone; `summary` has the numbers, which may take a moment."""
        process = repr(self.process)
        return f"Account({process if len(process) <= _LONGEST else process[:_LONGEST] + '...'})"

    def summary(self, delta: float = 1e-5) -> str:
        """The answer at one delta in a few lines: whose it is, and what other analyses say.

        >>> from tightrope import GaussianMechanism, account
        >>> print(account(GaussianMechanism(noise_multiplier=2.0)).summary())
        epsilon <= 1.9931 at delta = 1e-05: one record, add-or-remove neighbours
        by Gaussian mechanism (exact; Dong, Roth, Su 2019, Theorem 2.7)
        A formula gives it; no second method is needed.
        Central limit theorem (GDP): about 1.99309 (estimate)
        """
        best = self.best(lambda g: g.epsilon(delta).upper)
        guarantee, sources = _guarantee(best), "; ".join(map(str, best.sources))
        lines = [
            f"epsilon <= {rounded_up(self.epsilon(delta).upper, 6)} at delta = {delta:g}: "
            f"{guarantee.unit_of_privacy}, {guarantee.adjacency} neighbours",
            f"by {best.name} ({best.kind}; {sources})",
            self.second_method(delta).words,
        ]
        others = [f for f in self.findings if f.applies and f.name != best.name]
        return "\n".join([*lines, *(f"{f.name}: {_number(f, delta)} ({f.kind})" for f in others)])

    @cached_property
    def findings(self) -> tuple[AnalysisResult, ...]:
        return tuple(map(self._find, self.analyses))

    @cached_property
    def _found(self) -> dict[str, AnalysisResult]:
        return {}

    def _find(self, analysis: Analysis) -> AnalysisResult:
        if analysis.key not in self._found:
            self._found[analysis.key] = find(analysis, self.process)
        return self._found[analysis.key]

    @property
    def certified(self) -> tuple[AnalysisResult, ...]:
        return tuple(f for f in self.findings if f.is_certified)

    @property
    def estimates(self) -> tuple[AnalysisResult, ...]:
        return tuple(f for f in self.findings if isinstance(f.outcome, Estimate))

    @cached_property
    def _exact(self) -> AnalysisResult | None:
        """An exact finding cannot be beaten, so the others need not be asked."""
        found = map(self._find, self.analyses)
        return next((f for f in found if f.is_certified and f.kind is Validity.EXACT), None)

    def best(self, loss: Callable[[Guarantee], float]) -> AnalysisResult:
        """The certified finding with the smallest safe-side loss.

        An exact finding cannot be beaten; where its numbers cannot be certified, the best of the
        others answers, under its own name.
        """
        if self._exact is not None and _judged(self._exact, loss) < math.inf:
            return self._exact
        if not self.certified:
            near = [f for f in self.findings if not f.is_foreign] or self.findings
            reasons = "\n".join(dict.fromkeys(f"  - {f.reason}" for f in near))
            raise DoesNotApply(f"No certified analysis covers {self.process}:\n{reasons}")
        return min(self.certified, key=lambda f: _judged(f, loss))

    def guarantee(self, delta: float = 1e-5) -> Guarantee:
        """The best certified guarantee, judged by its epsilon at this delta."""
        delta = one_number(check_delta(delta), "delta")
        return _guarantee(self.best(lambda g: g.epsilon(delta).upper))

    def _one_epsilon(self, delta: float) -> Interval:
        guarantee, answer = self._epsilon(delta)
        self._confirm(guarantee, lambda g, full: confirm_epsilon(g.orders, delta, answer, full))
        return self._known(guarantee, answer, lambda g: g.epsilon(delta))

    def _one_delta(self, epsilon: float) -> Interval:
        guarantee, answer = self._answer(lambda g: g.delta(epsilon), lambda found: found.upper)
        self._confirm(guarantee, lambda g, full: confirm_delta(g.orders, epsilon, answer, full))
        return self._known(guarantee, answer, lambda g: g.delta(epsilon))

    def _known(
        self, guarantee: Guarantee, answer: Interval, view: Callable[[Guarantee], Interval]
    ) -> Interval:
        """The answer; the lower end of a bound is the best that another finding attains."""
        known = guarantee.loss_known(answer)
        if guarantee.two_sided:
            return known
        least = max((_known(f, view).lower for f in self.certified), default=0.0)
        if least > known.upper * (1.0 + _SLACK):
            return known.intersect(Interval(least, math.inf))  # refused: one of the two is wrong
        return Interval(min(max(least, known.lower), known.upper), known.upper)

    def _curve(self, type_i: FloatArray) -> IntervalArray | None:
        return None if self._exact is None else _guarantee(self._exact)._curve(type_i)

    def _one_tradeoff(self, type_i: float) -> Interval:
        guarantee, found = self._answer(lambda g: g.tradeoff(type_i), lambda found: -found.lower)
        return guarantee.error_known(found, type_i)

    def _one_renyi(self, order: float) -> Interval:
        guarantee, found = self._answer(lambda g: g.renyi(order), lambda found: found.upper)
        if found.width <= _CLOSE * found.upper:
            return guarantee.renyi_known(found)
        other = _guarantee(self.best(lambda g: g.renyi(order).upper)).renyi(order)
        least = guarantee.renyi_known(found).lower
        return Interval(min(least, other.upper), min(found.upper, other.upper))

    def second_method(self, delta: float) -> SecondMethod:
        """Whether a second, independent method proves epsilon(delta) too, and how closely.

        Says so too where there is none, or where it was not asked (check="off").
        """
        guarantee, answer = self._epsilon(one_number(check_delta(delta), "delta"))
        if isinstance(guarantee, GaussianGuarantee):
            words = "A formula gives it; no second method is needed."
            return SecondMethod(SecondVerdict.CLOSED_FORM, None, None, words)
        if not isinstance(guarantee, LossGuarantee):
            words = "One method only: there is no second one for a bound of this kind."
            return SecondMethod(SecondVerdict.ONE_METHOD, None, None, words)
        if self.check == "off":
            words = 'No second method was asked (check="off").'
            return SecondMethod(SecondVerdict.NOT_ASKED, None, None, words)
        return second_method(guarantee.orders, answer.upper, delta, self.check == "full")

    def compare(self, delta: float) -> None:
        """ContradictoryMethods where one finding's upper end lies below another's lower end."""
        delta = one_number(check_delta(delta), "delta")
        known = [(_known(f, lambda g: g.epsilon(delta)), f.name) for f in self.certified]
        if not known:
            return
        least, why = max(known, key=lambda one: one[0].lower)
        most, claim = min(known, key=lambda one: one[0].upper)
        if most.upper < least.lower * (1.0 - _SLACK):
            raise ContradictoryMethods(
                f"{claim} proves epsilon({delta:g}) <= {most.upper!r}, and {why} that it is at "
                f"least {least.lower!r}. One of them is wrong; please report this."
            )

    def _epsilon(self, delta: float) -> tuple[Guarantee, Interval]:
        return self._answer(lambda g: g.epsilon(delta), lambda found: found.upper)

    def estimate_error(self, finding: AnalysisResult, delta: float) -> Interval | None:
        """An estimate's epsilon less the true one, where that is known; negative claims too much.

        None for guarantees, and where no exact finding answers.
        """
        if not isinstance(finding.outcome, Estimate) or self._exact is None:
            return None
        estimate = finding.outcome.epsilon(delta)
        try:
            truth = _guarantee(self._exact).epsilon(delta)
        except NotCertified:
            return None
        if math.isinf(truth.upper) or math.isinf(estimate):
            return None
        return Interval(estimate - truth.upper, estimate - truth.lower)

    def _answer(
        self, view: Callable[[Guarantee], Interval], loss: Callable[[Interval], float]
    ) -> tuple[Guarantee, Interval]:
        """The exact finding's answer at once, otherwise the best of all, and whose it is."""
        if self._exact is not None:
            with suppress(NotCertified):
                guarantee = _guarantee(self._exact)
                return guarantee, view(guarantee)
        guarantee = _guarantee(self.best(lambda g: loss(view(g))))
        return guarantee, view(guarantee)

    def _confirm(
        self, guarantee: Guarantee, confirm: Callable[[LossGuarantee, bool], None]
    ) -> None:
        """Refuse what the lattice contradicts; `second_method` says what it left out."""
        if self.check != "off" and isinstance(guarantee, LossGuarantee):
            with suppress(NotCertified):  # out of the lattice's reach
                confirm(guarantee, self.check == "full")


def _judged(finding: AnalysisResult, loss: Callable[[Guarantee], float]) -> float:
    """The loss of a finding; infinite where no number of it could be certified."""
    try:
        return loss(_guarantee(finding))
    except NotCertified:
        return math.inf


def _known(finding: AnalysisResult, view: Callable[[Guarantee], Interval]) -> Interval:
    """What a finding says of epsilon or delta; nothing where no number could be certified."""
    try:
        return _guarantee(finding).loss_known(view(_guarantee(finding)))
    except NotCertified:
        return Interval(0.0, math.inf)


def _number(finding: AnalysisResult, delta: float) -> str:
    """The epsilon of one finding, for people."""
    if isinstance(finding.outcome, Estimate):
        return f"about {finding.outcome.epsilon(delta):.6g}"
    return rounded_up(_guarantee(finding).epsilon(delta).upper, 6)


def _guarantee(finding: AnalysisResult) -> Guarantee:
    assert isinstance(finding.outcome, Guarantee)
    return finding.outcome


def account(
    process: Process, analyses: tuple[Analysis, ...] = ANALYSES, *, check: Check = "quick"
) -> Account:
    """Analyse a process by every analysis that applies to it.

        >>> from tightrope import NoisySGD, PoissonSampling, account
        >>> run = NoisySGD(PoissonSampling(256 / 60000), noise_multiplier=1.1, steps=14062)
        >>> print(account(run).epsilon(delta=1e-5))
        [2.381596921, 2.381596922]

    `check` says how exact numbers are compared with the second method before they are returned;
    `Account.second_method` says what that method proves, or why it was not asked.
    """
    check_process(process, "account()")
    return Account(process, analyses, check)


def find(analysis: Analysis, process: Process) -> AnalysisResult:
    """What one analysis says of a process."""
    if covers(process):
        whole, share = covering(process)
        return _stopped(share, find(analysis, whole))
    if isinstance(process, UserLevel):
        return _of_users(process, find(analysis, process.run))
    return _try(analysis, process)


def _of_users(process: UserLevel, one: AnalysisResult) -> AnalysisResult:
    """The guarantee of the run, for a user's records together."""
    missing = Refusal(
        "It is an estimate, and an estimate says nothing about several records together."
    )
    if process.together:  # the record of the run is a user: the same numbers, said of users
        if isinstance(one.outcome, GaussianGuarantee | LossGuarantee | RenyiGuarantee):
            users: Guarantee = replace(one.outcome, records=process.records)
            return AnalysisResult(one.analysis, users, None, one.theorems)
        missing = Refusal(
            "This bound is not proved for users who are drawn with all their records at once."
        )
    elif isinstance(one.outcome, Guarantee):
        users = one.outcome.group(process.records)
        return AnalysisResult(one.analysis, users, None, one.theorems)
    return AnalysisResult(one.analysis, None, one.reason or missing, ())


def _stopped(share: float, whole: AnalysisResult) -> AnalysisResult:
    """The guarantee of the length that is stated, for its share of delta."""
    if isinstance(whole.outcome, Guarantee):
        theorems = (*whole.theorems, cast(Theorem, StoppingTimes))
        return AnalysisResult(
            whole.analysis, StoppedGuarantee(whole.outcome, share), None, theorems
        )
    missing = Refusal(
        "It is an estimate, and an estimate says nothing about runs that are stopped at will."
    )
    return AnalysisResult(whole.analysis, None, whole.reason or missing, ())


def _try(analysis: Analysis, process: Process) -> AnalysisResult:
    whole = _first(analysis, process)
    if isinstance(whole, Refusal) and analysis.by_parts:
        return _by_parts(analysis, process, whole)
    if isinstance(whole, Refusal):
        return AnalysisResult(analysis, None, whole, ())
    return _unless_idle(
        analysis, process, AnalysisResult(analysis, whole.guarantee(process), None, (whole,))
    )


def _unless_idle(analysis: Analysis, process: Process, finding: AnalysisResult) -> AnalysisResult:
    """An analysis whose own theorem covers no part only repeats the general one: refused."""
    if analysis.general or analysis.lead in finding.theorems:
        return finding
    reason = analysis.lead.applies(next(iter(parts_of(process)), process))
    return AnalysisResult(analysis, None, reason, ())


def _first(analysis: Analysis, part: Process) -> Theorem | Refusal:
    """The first theorem that applies, or the refusal of the one closest to the process."""
    reasons = []
    for theorem in analysis.theorems:
        reason = theorem.applies(part)
        if reason is None:
            return theorem
        reasons.append(reason)
    # neighbours are the last condition checked: such a refusal means that all else matched
    closest = [r for r in reasons if r.kind == "neighbours"]
    closest += [r for r in reasons if r.kind != "foreign"] if reasons[0].kind == "foreign" else []
    return closest[0] if closest else reasons[0]


def _by_parts(analysis: Analysis, process: Process, reason: Refusal) -> AnalysisResult:
    parts = parts_of(process)
    if list(parts) == [process]:
        return AnalysisResult(analysis, None, reason, ())
    chosen: list[Theorem] = []
    for part in parts:
        theorem = _first(analysis, part)
        if isinstance(theorem, Refusal):
            return AnalysisResult(analysis, None, theorem, ())
        chosen.append(theorem)
    outcomes = [theorem.guarantee(part) for theorem, part in zip(chosen, parts, strict=True)]
    try:
        composed = _add_up(outcomes, list(parts.values()))
    except DoesNotApply as refusal:
        return AnalysisResult(analysis, None, Refusal(str(refusal)), ())
    distinct = tuple(dict.fromkeys(chosen))
    return _unless_idle(analysis, process, AnalysisResult(analysis, composed, None, distinct))


def _add_up(outcomes: list[Any], times: list[int]) -> Guarantee | Estimate:
    if isinstance(outcomes[0], Estimate):
        return compose_estimates(outcomes, times)
    return compose(outcomes, times)
