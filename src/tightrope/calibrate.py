"""The inverse questions: the smallest noise, the most steps, the largest rate for a budget.

Every answer is on the safe side: it was checked against the certified upper end itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, final

from tightrope.accounting import Account, AnalysisResult, account, find
from tightrope.correlated.sensitivity import column_norms
from tightrope.errors import InvalidInput, NotCertified, TightropeError
from tightrope.guarantee import gaussian
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.estimate import Estimate
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.numerics.roots import crossing, last_integer
from tightrope.process import (
    BallsInBinsSampling,
    CorrelatedSGD,
    NoisySGD,
    PoissonSampling,
    Process,
    UserLevel,
)
from tightrope.process.convex import GradientProcess, NoisyGradientDescent
from tightrope.target import Target, by_lines
from tightrope.theorems.catalog import ANALYSES, Analysis
from tightrope.validate import check_epsilon

__all__ = ["Target", "Calibrated", "find_noise", "find_steps", "find_rate", "find_delta"]

_LARGEST_NOISE, _SMALLEST_NOISE = 1e6, 1e-2
_MOST_STEPS = 10**12
_LARGE_EPSILON, _FAR = 1e3, 100.0
_ATTEMPTS, _LINES = 14, 8
_TOLERANCE, _NEAR = 1e-7, 1e-4  # of what is found, relative


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
    run: NoisySGD | CorrelatedSGD | UserLevel | GradientProcess,
    target: Target,
    analyses: tuple[Analysis, ...] = ANALYSES,
) -> Calibrated:
    """The smallest noise_multiplier that meets the target, certified, 1e-7 above the truth.

    Of a gradient method that releases its last iterate: the smallest noise_std.

        >>> from tightrope import NoisySGD, PoissonSampling, Target, find_noise
        >>> run = NoisySGD(PoissonSampling(0.01), noise_multiplier=1.0, steps=1000)
        >>> noise = find_noise(run, Target.approx_dp(epsilon=2.0, delta=1e-5))
        >>> round(noise.value, 6)
        0.959102

    Where the best analysis has no number near the answer, the best of the others is asked.
    """
    _check_target(target)
    if isinstance(run, UserLevel):
        return _noise_for_users(run, target, analyses)
    if isinstance(run, GradientProcess):
        return _noise_of_last_iterate(run, target, analyses)
    if isinstance(run, NoisySGD | CorrelatedSGD) and (run.steps == 0 or run.sampling.rate == 0.0):
        return Calibrated(
            "noise_multiplier", 0.0, replace(run, noise_multiplier=0.0), target, "none"
        )
    if isinstance(run, CorrelatedSGD):
        return _noise_of_correlated(run, target, analyses)
    judge = _judge(run, target, analyses)

    def with_noise(noise: float) -> NoisySGD:
        return replace(run, noise_multiplier=noise)

    guess = min(max(_noise_guess(run, target), _SMALLEST_NOISE), _LARGEST_NOISE)
    try:
        least = _least(judge, with_noise, guess, _SMALLEST_NOISE, _LARGEST_NOISE)
        value = _safe(least, lambda noise: judge.met_by(with_noise(noise)))
    except NotCertified:
        others = tuple(analysis for analysis in analyses if analysis is not judge.analysis)
        if not account(with_noise(1.0), others).certified:
            raise
        return find_noise(run, target, others)
    return Calibrated("noise_multiplier", value, with_noise(value), target, judge.key)


def _noise_of_correlated(
    run: CorrelatedSGD, target: Target, analyses: tuple[Analysis, ...]
) -> Calibrated:
    """Searched from the noise that columns need which are all equally long."""

    def with_noise(noise: float) -> CorrelatedSGD:
        return replace(run, noise_multiplier=noise)

    found = account(with_noise(1.0), analyses, check="off")
    chosen = found.best(lambda guarantee: 0.0)  # raises with every reason, where none is certified
    analysis, alone = chosen.analysis, chosen.outcome

    def guarantee(noise: float) -> Guarantee:
        outcome = find(analysis, with_noise(noise)).outcome
        assert isinstance(outcome, Guarantee)
        return outcome

    if isinstance(alone, GaussianGuarantee):
        guess = alone.mu / _target_mu(target)
    else:
        lengths = column_norms(run.strategy, run.steps)
        sampling = PoissonSampling(getattr(run.sampling, "join_rate", run.sampling.rate))
        turns = -(-run.steps // getattr(run.sampling, "cycle", 1))
        plain = NoisySGD(sampling, 1.0, turns, run.adjacency)
        guess = _noise_guess(plain, target) * float(lengths.max())
    limits = {"smallest": _SMALLEST_NOISE, "largest": _LARGEST_NOISE}
    guess = min(max(guess, _SMALLEST_NOISE), _LARGEST_NOISE)
    least = crossing(lambda x: target.excess(guarantee(x)), guess, **limits).below
    value = _safe(least, lambda noise: target.met_by(guarantee(noise)))
    return Calibrated("noise_multiplier", value, with_noise(value), target, analysis.key)


def _noise_of_last_iterate(
    run: GradientProcess, target: Target, analyses: tuple[Analysis, ...]
) -> Calibrated:
    """By whichever analysis is best at each noise: where one stops to apply, another is asked."""

    def with_noise(noise_std: float) -> GradientProcess:
        return replace(run, noise_std=noise_std)

    def guarantee(noise_std: float) -> Guarantee:
        return account(with_noise(noise_std), analyses, check="off").guarantee(target.delta)

    # The noise that one release of one mean gradient needs: a start, never an answer.
    size = {"batch_size": 1, "records": 1} | vars(run)
    batch = size["records"] if isinstance(run, NoisyGradientDescent) else size["batch_size"]
    unit = 2.0 * run.loss.lipschitz / batch
    limits = {"smallest": _SMALLEST_NOISE * unit, "largest": _LARGEST_NOISE * unit}
    guess = unit / _target_mu(target)
    least = crossing(lambda x: target.excess(guarantee(x)), guess, **limits).below
    value = _safe(least, lambda noise: target.met_by(guarantee(noise)))
    return Calibrated("noise_std", value, with_noise(value), target, "best")


def _noise_for_users(
    users: UserLevel, target: Target, analyses: tuple[Analysis, ...]
) -> Calibrated:
    """Searched from the noise for one record on."""
    alone = find_noise(users.run, target, analyses)

    def with_noise(noise: float) -> UserLevel:
        return replace(users, run=replace(users.run, noise_multiplier=noise))

    def guarantee(noise: float) -> Guarantee:
        return account(with_noise(noise), analyses, check="off").guarantee(target.delta)

    if users.together or alone.value == 0.0:
        return replace(alone, process=with_noise(alone.value))
    limits = {"smallest": _SMALLEST_NOISE, "largest": _LARGEST_NOISE}
    least = crossing(lambda x: target.excess(guarantee(x)), 1.5 * alone.value, **limits).below
    value = _safe(least, lambda noise: target.met_by(guarantee(noise)))
    return Calibrated("noise_multiplier", value, with_noise(value), target, alone.analysis)


def _least(
    judge: _Judge,
    make: Callable[[float], NoisySGD],
    guess: float,
    smallest: float,
    largest: float,
) -> float:
    """The least x whose run meets the target. For a hit rate line by line: x for the best line so
    far, then the best line of that x; a line is nearly the best for every x near its own."""
    rates = judge.target.hit_rates
    if rates is None or not judge.by_lines:
        limits = {"smallest": smallest, "largest": largest}
        return crossing(lambda x: judge.excess(make(x)), guess, **limits).below
    steep, best = rates.lower_half(), math.inf
    for _ in range(_LINES):
        at_guess = judge.profile(make(guess))
        line = steep.best_line(at_guess, 1e-3)
        guess = crossing(
            lambda x, eps=line: steep.excess(eps, judge.profile(make(x))(eps)),  # type: ignore[misc]
            guess,
            smallest=smallest,
            largest=largest,
            tolerance=_TOLERANCE if best < math.inf else 1e-3,
        ).below
        if guess >= best * (1.0 - _NEAR):  # the next line would win the square of that
            break
        best = guess
    return min(best, guess)


def _safe(value: float, met: Callable[[float], bool]) -> float:
    """The value, or one a little larger by which the target is met to the last digit."""
    for attempt in range(_ATTEMPTS):
        if met(value):
            return value
        value *= 1.0 + 1e-9 * 4.0**attempt
    raise NotCertified(
        f"The numerical error at {value:g} is too large to prove this target. Ask for a slightly "
        "larger epsilon or delta."
    )


def find_steps(
    run: NoisySGD, target: Target, analyses: tuple[Analysis, ...] = ANALYSES
) -> Calibrated:
    """The most steps that meet the target (Question Two of A Better Bound), up to 10^12.

    >>> from tightrope import NoisySGD, PoissonSampling, Target, find_steps
    >>> run = NoisySGD(PoissonSampling(0.01), noise_multiplier=1.0, steps=1)
    >>> find_steps(run, Target.approx_dp(epsilon=2.0, delta=1e-5)).value
    1202
    """
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
    """The largest sampling rate that meets the target, for a given number of steps.

    >>> from tightrope import NoisySGD, PoissonSampling, Target, find_rate
    >>> run = NoisySGD(PoissonSampling(0.01), noise_multiplier=1.0, steps=1000)
    >>> round(find_rate(run, Target.approx_dp(epsilon=2.0, delta=1e-5)).value, 6)
    0.010863
    """
    judge = _judge(run, target, analyses)
    make = type(run.sampling)
    try:
        make(0.5)  # type: ignore[call-arg]
    except (TypeError, InvalidInput):
        raise InvalidInput(
            f"{run.sampling} has no rate to choose; calibrate the noise or the steps instead."
        ) from None

    def with_rate(rate: float) -> NoisySGD:
        return replace(run, sampling=make(min(rate, 1.0)))  # type: ignore[call-arg]

    if judge.met_by(with_rate(1.0)):
        return Calibrated("rate", 1.0, with_rate(1.0), target, judge.key)
    # 1/rate plays the part of the noise: larger is more private
    least = _least(judge, lambda inverse: with_rate(1.0 / inverse), 100.0, 1.0, 1e12)
    rate = 1.0 / _safe(least, lambda inverse: judge.met_by(with_rate(1.0 / inverse)))
    return Calibrated("rate", rate, with_rate(rate), target, judge.key)


def find_delta(process: Process, epsilon: float) -> float:
    """The smallest certified delta at this epsilon.

    >>> from tightrope import GaussianMechanism, find_delta
    >>> find_delta(GaussianMechanism(noise_multiplier=2.0), epsilon=1.0)
    0.006829594983115006
    """
    return account(process).delta(float(check_epsilon(epsilon))).upper


@final
@dataclass(frozen=True)
class _Judge:
    """Holds runs against the target, by the analysis that is best for such runs."""

    target: Target
    analysis: Analysis
    by_lines: bool

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

    def profile(self, run: NoisySGD) -> Callable[[float], float]:
        """delta(epsilon) of a run, the safe end."""
        outcome = self._outcome(run)
        assert isinstance(outcome, Guarantee)
        return lambda epsilon: outcome.delta(epsilon).upper

    def met_by(self, run: NoisySGD) -> bool:
        return self.target.met_by(self._outcome(run))

    def _outcome(self, run: NoisySGD) -> Guarantee | Estimate:
        outcome = account(run, (self.analysis,)).findings[0].outcome
        assert outcome is not None
        return outcome


def _check_target(target: object) -> None:
    if not isinstance(target, Target):
        raise InvalidInput(
            f"target must be a Target, such as Target.approx_dp(epsilon=3.0, delta=1e-5); got "
            f"{target!r:.80}."
        )


def _judge(run: NoisySGD, target: Target, analyses: tuple[Analysis, ...]) -> _Judge:
    _check_target(target)
    if not isinstance(run, NoisySGD):
        raise InvalidInput(
            f"Only a NoisySGD run can be calibrated; got {type(run).__name__}. Calibrate the run "
            "alone, with what the other releases leave of the budget."
        )
    probe = replace(run, noise_multiplier=max(run.noise_multiplier, 1.0))
    covering = [f for f in account(probe, analyses).findings if f.applies]
    if not covering:
        account(probe, analyses).guarantee()  # raises with every reason
    chosen = _best_of(covering, target)
    return _Judge(target, chosen.analysis, by_lines(chosen.outcome))


def _best_of(covering: list[AnalysisResult], target: Target) -> AnalysisResult:
    """The first analysis; where that is not exact, the certified one nearest to the target."""
    certified = [f for f in covering if isinstance(f.outcome, Guarantee)]
    if covering[0].kind is Validity.EXACT or len(certified) < 2:
        return covering[0]
    return min(certified, key=lambda f: _excess(f, target))


def _excess(finding: AnalysisResult, target: Target) -> float:
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
        return target.hit_rates.mu if target.hit_rates is not None else 1.0
    return float(gaussian.mu(target.epsilon, target.delta))


def _noise_guess(run: NoisySGD, target: Target) -> float:
    """Where the central limit theorem puts it: a starting point, never an answer.

    A law of balls in bins takes long, and Poisson batches need nearly the same noise.
    """
    if isinstance(run.sampling, BallsInBinsSampling):
        with suppress(TightropeError):
            poisson = replace(run, sampling=PoissonSampling(run.sampling.rate))
            return find_noise(poisson, target).value
    per_step = _target_mu(target) / math.sqrt(run.steps)
    moved = run.step_mu * run.noise_multiplier if run.noise_multiplier > 0 else 1.0
    ratio = per_step / run.sampling.rate
    if ratio == 0.0:
        return _LARGEST_NOISE
    return moved / (math.sqrt(math.log1p(ratio * ratio)) or ratio)


def _step_mu_guess(run: NoisySGD) -> float:
    square = run.step_mu**2
    return run.sampling.rate * math.sqrt(math.expm1(min(square, 700.0)))
