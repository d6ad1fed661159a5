"""The inverse questions: the smallest noise, the most steps, the largest rate for a budget.

Every answer is on the safe side: it was checked against the certified upper end itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

from scipy.special import ndtri

from tightrope.accounting import Account, Finding, account
from tightrope.errors import InvalidInput, NotCertified
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.estimate import Estimate
from tightrope.guarantee.gaussian import profile as gaussian
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.numerics.roots import crossing, last_integer
from tightrope.process import NoisySGD
from tightrope.theorems.catalog import ANALYSES, Analysis
from tightrope.validate import check_delta, check_epsilon, check_probability

__all__ = ["Target", "Calibrated", "find_noise", "find_steps", "find_rate", "find_delta"]

_LARGEST_NOISE, _SMALLEST_NOISE = 1e6, 1e-2
_MOST_STEPS = 10**12
_LARGE_EPSILON, _FAR = 1e3, 100.0
_FEW = 20  # steps
_ATTEMPTS = 14


@final
@dataclass(frozen=True)
class Target:
    """What a guarantee must achieve: (epsilon, delta), an advantage, or a hit rate."""

    epsilon: float = 0.0
    delta: float = 1.0
    true_positive_rate: float | None = None
    false_positive_rate: float = 0.0

    @classmethod
    def approx_dp(cls, epsilon: float, delta: float) -> Target:
        if check_delta(delta) == 0.0:
            raise InvalidInput(
                "Gaussian noise cannot reach delta = 0: its privacy loss is unbounded. Choose a "
                "delta well below 1/(number of people), for instance 1e-6."
            )
        _require_below_one(delta, "delta")
        return cls(check_epsilon(epsilon), delta)

    @classmethod
    def advantage(cls, largest: float) -> Target:
        """Membership advantage at most `largest`: total variation, delta at epsilon 0."""
        _require_below_one(check_probability(largest, "advantage"), "advantage")
        if largest == 0.0:
            raise InvalidInput("No finite noise brings the advantage down to 0; ask for more.")
        return cls(0.0, largest)

    @classmethod
    def hit_rate(cls, true_positive_rate: float, false_positive_rate: float) -> Target:
        """No attack with this false positive rate finds more than `true_positive_rate`."""
        tpr = check_probability(true_positive_rate, "true_positive_rate")
        fpr = check_probability(false_positive_rate, "false_positive_rate")
        _require_below_one(tpr, "true_positive_rate")
        if tpr <= fpr:
            raise InvalidInput(
                f"Guessing at random finds {fpr:g} at a false positive rate of {fpr:g}; no noise "
                f"brings that down to {tpr:g}. Ask for a true_positive_rate above it."
            )
        return cls(true_positive_rate=tpr, false_positive_rate=fpr)

    def excess(self, guarantee: Guarantee | Estimate) -> float:
        """Positive where the target is missed; judged on the safe side of a guarantee."""
        if self.true_positive_rate is not None:
            if isinstance(guarantee, LossGuarantee) and _is_long(guarantee):
                return _line_excess(guarantee, self.false_positive_rate, self.true_positive_rate)
            type_ii = guarantee.tradeoff(self.false_positive_rate)
            miss = type_ii if isinstance(type_ii, float) else type_ii.lower
            return (1.0 - miss) - self.true_positive_rate
        spent = guarantee.delta(self.epsilon)
        delta = spent if isinstance(spent, float) else spent.upper
        return math.log(delta / self.delta) if delta > 0 else -math.inf

    def met_by(self, guarantee: Guarantee | Estimate) -> bool:
        """Is every number that the target speaks of on its safe side? Their errors may differ."""
        if not isinstance(guarantee, Guarantee):
            return self.excess(guarantee) <= 0.0
        if self.true_positive_rate is not None:
            hits = guarantee.true_positive_rate(self.false_positive_rate)
            return hits.upper <= self.true_positive_rate
        spent, lost = guarantee.delta(self.epsilon), guarantee.epsilon(self.delta)
        return spent.upper <= self.delta and lost.upper <= self.epsilon


def _is_long(guarantee: LossGuarantee) -> bool:
    """So many steps that one delta is cheaper than a lattice law for the whole curve."""
    return all(sum(count for _, count in order) > _FEW for order in guarantee.orders)


def _line_excess(guarantee: LossGuarantee, type_i: float, hit_rate: float) -> float:
    """The smallest ln(delta(eps)/(hit_rate - e^eps type_i)): at most 0 where the target is met.

    f(type_i) >= 1 - hit_rate wherever one line 1 - delta(eps) - e^eps type_i is (theory A20), and
    f is its own mirror image. The ratio is quasi-convex in e^eps; the search starts where a
    Gaussian curve through the target has its line, and any epsilon is on the safe side.
    """
    from scipy.optimize import minimize_scalar  # slow to import, and seldom needed

    a, t = type_i, hit_rate
    if a > 1.0 - t:
        a, t = 1.0 - t, 1.0 - a
    if a == 0.0:  # the line of no epsilon: its room is the whole of the hit rate
        missed = 1.0 - guarantee.tradeoff(0.0).lower
        return math.log(missed / t) if missed > 0.0 else -math.inf
    last = math.log(t / a)

    def ratio(epsilon: float) -> float:
        room = t - math.exp(epsilon) * a if 0.0 <= epsilon < last else 0.0
        if room <= 0.0:
            return 1e6 + abs(epsilon)
        return math.log(max(guarantee.delta(epsilon).upper, 1e-300) / room)

    mu = _risk_mu(a, t)
    guess = min(max(-mu * float(ndtri(a)) - 0.5 * mu * mu, 0.01 * last), 0.9 * last)
    found = minimize_scalar(ratio, bracket=(0.95 * guess, guess), method="brent", tol=1e-4)
    return min(float(found.fun), ratio(0.0))


def _risk_mu(type_i: float, hit_rate: float) -> float:
    """The Gaussian curve through the target."""
    return float(ndtri(hit_rate) - ndtri(type_i)) if type_i > 0.0 else 1.0


def _require_below_one(value: float, name: str) -> None:
    if value >= 1.0:
        raise InvalidInput(
            f"{name} = 1 asks for nothing: every run meets it, even without noise. Ask for less."
        )


@final
@dataclass(frozen=True)
class Calibrated:
    """The parameter found, the process it makes, and that process's account."""

    quantity: str
    value: float
    process: Any
    target: Target
    analysis: str

    def account(self) -> Account:
        return account(self.process)


def find_noise(
    run: NoisySGD, target: Target, analyses: tuple[Analysis, ...] = ANALYSES
) -> Calibrated:
    """The smallest noise_multiplier that meets the target, certified, 1e-7 above the truth."""
    if isinstance(run, NoisySGD) and (run.steps == 0 or run.sampling.rate == 0.0):
        return Calibrated(
            "noise_multiplier", 0.0, replace(run, noise_multiplier=0.0), target, "none"
        )
    judge = _judge(run, target, analyses)
    found = crossing(
        lambda noise: judge.excess(replace(run, noise_multiplier=noise)),
        _noise_guess(run, target),
        smallest=_SMALLEST_NOISE,
        largest=_LARGEST_NOISE,
    )
    value = _safe(found.below, lambda noise: judge.met_by(replace(run, noise_multiplier=noise)))
    safe = replace(run, noise_multiplier=value)
    return Calibrated("noise_multiplier", value, safe, target, judge.key)


def _safe(value: float, met: Callable[[float], bool]) -> float:
    """The value, or one a little larger by which the target is met to the last digit."""
    for attempt in range(_ATTEMPTS):
        if met(value):
            return value
        value *= 1.0 + 1e-9 * 4.0**attempt
    raise NotCertified(
        f"The numerical error at {value:g} is larger than what is asked for. Ask for a target that "
        "is a little looser."
    )


def find_steps(
    run: NoisySGD, target: Target, analyses: tuple[Analysis, ...] = ANALYSES
) -> Calibrated:
    """The most steps that meet the target (Question Two of A Better Bound), up to 10^12."""
    started = replace(run, steps=max(run.steps, 1)) if isinstance(run, NoisySGD) else run
    judge = _judge(started, target, analyses)
    mu = _step_mu_guess(run)
    guess = (_target_mu(target) / mu) ** 2 if mu > 0 else _MOST_STEPS
    steps = last_integer(
        lambda n: judge.excess(replace(run, steps=n)), int(min(guess, 1e11)) or 1, _MOST_STEPS
    )
    back = max(1, steps // 10**9)
    while steps > 0 and not judge.met_by(replace(run, steps=steps)):
        steps, back = max(steps - back, 0), 2 * back
    return Calibrated("steps", steps, replace(run, steps=steps), target, judge.key)


def find_rate(
    run: NoisySGD, target: Target, analyses: tuple[Analysis, ...] = ANALYSES
) -> Calibrated:
    """The largest sampling rate that meets the target, for a given number of steps."""
    make = type(run.sampling)
    try:
        make(0.5)  # type: ignore[call-arg]
    except (TypeError, InvalidInput):
        raise InvalidInput(
            f"{run.sampling} has no rate to choose; calibrate the noise or the steps instead."
        ) from None
    judge = _judge(run, target, analyses)

    def with_rate(rate: float) -> NoisySGD:
        return replace(run, sampling=make(min(rate, 1.0)))  # type: ignore[call-arg]

    if judge.met_by(with_rate(1.0)):
        return Calibrated("rate", 1.0, with_rate(1.0), target, judge.key)
    # 1/rate plays the part of the noise: larger is more private
    found = crossing(
        lambda inverse: judge.excess(with_rate(1.0 / inverse)), 100.0, smallest=1.0, largest=1e12
    )
    rate = 1.0 / _safe(found.below, lambda inverse: judge.met_by(with_rate(1.0 / inverse)))
    return Calibrated("rate", rate, with_rate(rate), target, judge.key)


def find_delta(process: Any, epsilon: float) -> float:
    """The smallest certified delta at this epsilon."""
    return account(process).delta(check_epsilon(epsilon)).upper


@final
@dataclass(frozen=True)
class _Judge:
    """Holds runs against the target, by the analysis that is best for such runs."""

    target: Target
    analysis: Analysis

    @property
    def key(self) -> str:
        return self.analysis.key

    def excess(self, run: NoisySGD) -> float:
        """How far a run misses the target."""
        if self.target.epsilon > _LARGE_EPSILON:
            plain = self.target.excess(_without_sampling(run))
            if plain < -_FAR:
                return plain  # so far within the target that the exact tail need not be found
        return self.target.excess(self._outcome(run))

    def met_by(self, run: NoisySGD) -> bool:
        return self.target.met_by(self._outcome(run))

    def _outcome(self, run: NoisySGD) -> Guarantee | Estimate:
        outcome = account(run, (self.analysis,)).findings[0].outcome
        assert outcome is not None
        return outcome


def _judge(run: NoisySGD, target: Target, analyses: tuple[Analysis, ...]) -> _Judge:
    if not isinstance(run, NoisySGD):
        raise InvalidInput(
            f"Only a NoisySGD run can be calibrated; got {type(run).__name__}. Calibrate the run "
            "alone, for what the other releases leave of the budget."
        )
    probe = replace(run, noise_multiplier=max(run.noise_multiplier, 1.0))
    covering = [f for f in account(probe, analyses).findings if f.applies]
    if not covering:
        account(probe, analyses).guarantee()  # raises with every reason
    return _Judge(target, _best_of(covering, target))


def _best_of(covering: list[Finding], target: Target) -> Analysis:
    """The first analysis; where that is not exact, the certified one nearest to the target."""
    certified = [f for f in covering if isinstance(f.outcome, Guarantee)]
    if covering[0].kind is Validity.EXACT or len(certified) < 2:
        return covering[0].analysis
    return min(certified, key=lambda f: _excess(f, target)).analysis


def _excess(finding: Finding, target: Target) -> float:
    assert isinstance(finding.outcome, Guarantee)
    try:
        return target.excess(finding.outcome)
    except NotCertified:
        return math.inf


def _without_sampling(run: NoisySGD) -> GaussianGuarantee:
    """A bound for every way of drawing batches: the record is in all of them."""
    return GaussianGuarantee(run.step_mu * math.sqrt(run.steps), run.adjacency, Validity.BOUND)


def _target_mu(target: Target) -> float:
    if target.true_positive_rate is not None:
        return _risk_mu(target.false_positive_rate, target.true_positive_rate)
    return float(gaussian.mu(target.epsilon, target.delta))


def _noise_guess(run: NoisySGD, target: Target) -> float:
    """Where the central limit theorem puts it: a starting point, never an answer."""
    per_step = _target_mu(target) / math.sqrt(run.steps)
    moved = run.step_mu * run.noise_multiplier if run.noise_multiplier > 0 else 1.0
    ratio = per_step / run.sampling.rate
    if ratio == 0.0:
        return _LARGEST_NOISE
    return moved / (math.sqrt(math.log1p(ratio * ratio)) or ratio)


def _step_mu_guess(run: NoisySGD) -> float:
    square = run.step_mu**2
    return run.sampling.rate * math.sqrt(math.expm1(min(square, 700.0)))
