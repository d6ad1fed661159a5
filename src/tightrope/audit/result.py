"""What an audit found, and how it stands against a claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np

from tightrope.audit.many_runs import measure_rates
from tightrope.audit.one_run import check_confidence, epsilon_lower
from tightrope.audit.one_run_tradeoff import mu_lower
from tightrope.audit.scores import Bits, checked, count_correct, roc_points
from tightrope.errors import InvalidInput
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.validate import FloatArray, check_count, check_delta

__all__ = [
    "Audit",
    "RocComparison",
    "audit_one_run",
    "audit_many_runs",
    "audit_repeated",
    "roc_against",
]

# Shares of the canaries that are guessed. Each is a test of its own: the allowed miss is divided
# among them (Bonferroni), so the best of them is valid.
GUESSED = (1.0, 0.5, 0.2, 0.1, 0.04)


@final
@dataclass(frozen=True)
class Audit:
    """Lower bounds on the privacy loss of what ran, each alone true with chance `confidence`.

    epsilon_lower: whatever the algorithm is, it is not (epsilon, delta)-DP for a smaller epsilon.
    mu_lower: it is not mu-GDP for a smaller mu. An algorithm can have a large mu_lower and a
    small epsilon at one delta: `epsilon_if_gaussian` reads one as the other for claims of GDP.
    """

    runs: int
    attack: str
    epsilon_lower: float
    mu_lower: float
    delta: float
    confidence: float
    canaries: int
    guesses: int
    correct: int
    roc: tuple[tuple[float, float], ...]

    @property
    def epsilon_if_gaussian(self) -> float:
        """The epsilon of mu_lower-GDP: a lower bound if the algorithm's curve is Gaussian."""
        return GaussianGuarantee(self.mu_lower).epsilon(self.delta).lower

    def contradicts(self, claim: Guarantee) -> bool:
        """Is the claimed epsilon below what the attack proved? Then the claim or the code is wrong.

        False says nothing: an attack may just be weak.
        """
        return self.epsilon_lower > claim.epsilon(self.delta).upper

    def as_dict(self) -> dict[str, Any]:
        points = [{"false_positive_rate": a, "true_positive_rate": h} for a, h in self.roc]
        return {**asdict(self), "roc": points}


def audit_one_run(
    scores: Any | Mapping[str, Any],
    included: Any,
    *,
    delta: float,
    confidence: float = 0.95,
    attack: str = "scores",
    guessed: Sequence[float] = GUESSED,
) -> Audit:
    """Bounds from one run with many canaries.

    scores: high where a canary looks present; or several kinds of score by name, among which the
    allowed miss is divided. guessed: shares of the canaries to guess, fixed beforehand.
    """
    kinds = dict(scores) if isinstance(scores, Mapping) else {attack: scores}
    if not kinds or not guessed:
        raise InvalidInput("An audit needs at least one kind of score and one share to guess.")
    d, level = float(check_delta(delta)), check_confidence(confidence)
    each = 1.0 - (1.0 - level) / (len(kinds) * len(guessed))
    tried = []
    for name, values in kinds.items():
        ranked, bits = checked(values, included)
        for share in guessed:
            tried.append((name, *_try(ranked, bits, share, d, each)))
    name, epsilon, _, guesses, correct = max(tried, key=lambda row: (row[1], row[2]))
    ranked, bits = checked(kinds[name], included)
    mu, points = max(row[2] for row in tried), roc_points(ranked, bits)
    return Audit(1, name, epsilon, mu, d, level, len(ranked), guesses, correct, points)


def _try(
    scores: FloatArray, included: Bits, share: float, delta: float, confidence: float
) -> tuple[float, float, int, int]:
    guesses = max(1, round(share * len(scores)))
    correct = count_correct(scores, included, guesses)
    epsilon = epsilon_lower(len(scores), guesses, correct, delta, confidence)
    return epsilon, mu_lower(len(scores), guesses, correct, confidence), guesses, correct


def audit_many_runs(
    present: Any, absent: Any, *, delta: float, confidence: float = 0.95, attack: str = "scores"
) -> Audit:
    """Bounds from the scores of runs with one canary and of runs without it."""
    d = float(check_delta(delta))
    level = check_confidence(confidence)
    rates = measure_rates(present, absent, lambda rates: rates.epsilon_lower(d), level)
    fitted = measure_rates(present, absent, lambda rates: rates.mu_lower(), level)
    scores = np.concatenate([np.asarray(present, float), np.asarray(absent, float)])
    bits = np.arange(len(scores)) < len(np.asarray(present))
    return Audit(
        runs=len(scores),
        attack=attack,
        epsilon_lower=rates.epsilon_lower(d),
        mu_lower=fitted.mu_lower(),
        delta=d,
        confidence=level,
        canaries=1,
        guesses=len(scores),
        correct=count_correct(scores, bits, len(scores)),
        roc=roc_points(scores, bits),
    )


def audit_repeated(
    score_of_run: Callable[[bool], float],
    *,
    runs: int,
    delta: float,
    confidence: float = 0.95,
    attack: str = "scores",
) -> Audit:
    """Bounds from `runs` fresh runs, with the canary in every other one.

    score_of_run(included): train once, from the start and with fresh randomness, and score.
    """
    count = check_count(runs, "runs", low=8)
    scores = [float(score_of_run(run % 2 == 0)) for run in range(count)]
    return audit_many_runs(
        scores[::2], scores[1::2], delta=delta, confidence=confidence, attack=attack
    )


@final
@dataclass(frozen=True)
class RocComparison:
    """Data to draw: the attack's measured points under the curve that no attack passes.

    The points are frequencies, not bounds: a few canaries scatter above a tight curve by chance.
    """

    false_positive: tuple[float, ...]
    true_positive_upper: tuple[float, ...]
    attack: tuple[tuple[float, float], ...]


def roc_against(audit: Audit, claim: Guarantee, points: int = 41) -> RocComparison:
    """The attack's ROC and the certified limit 1 - f, at false positive rates from 1e-4 to 1."""
    rates = [0.0, *np.geomspace(1e-4, 1.0, points).tolist()]
    limit = tuple(claim.true_positive_rate(rate).upper for rate in rates)
    return RocComparison(tuple(rates), limit, audit.roc)
