"""What an audit shows, how it stands against a claim, and how it is stored in a run folder.

`audit.json` stores scores and coins of made-up canaries, sums of squares of the noise where it was
watched, and the process that was attacked. No bound is stored: `audit_folder` computes them from
the scores, and the claim from the process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from tightrope.accounting import account
from tightrope.audit.many_runs import Rates, measure_rates, rates_of, run_scores
from tightrope.audit.noise_test import NoiseSeen, NoiseTest
from tightrope.audit.one_run import (
    Guessed,
    check_confidence,
    checked,
    count_correct,
    lines_of,
    real_array,
    roc_points,
)
from tightrope.errors import InvalidInput
from tightrope.evidence.files import read_most, why_unread, write_text
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import NoisySGD, Process, Sequence
from tightrope.process.codec import from_json, to_json
from tightrope.process.composite import steps_of, with_steps
from tightrope.validate import check_count, check_delta, check_real

# Shares of the canaries that are guessed. Each is a test of its own: the allowed miss is divided
# among them (Bonferroni), so the best of them is valid.
GUESSED = (1.0, 0.5, 0.2, 0.1, 0.04)
# What of the allowed miss a test of the noise gets, where there is one: it needs little.
_NOISE_SHARE = 0.1


@final
@dataclass(frozen=True)
class Audit:
    """Lower bounds on the privacy loss of what ran, each alone true with chance `confidence`.

    epsilon_lower: whatever the algorithm is, it is not (epsilon, delta)-DP for a smaller epsilon.
    mu_lower: it is not mu-GDP for a smaller mu. An algorithm can have a large mu_lower and a
    small epsilon at one delta: `epsilon_if_gaussian` reads one as the other for claims of GDP.
    epsilon_ceiling: what an attack with every guess right would have proved from these canaries (or
    runs) at this delta. evidence: every test made, for `contradicts`; noise: the test of the noise.
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
    epsilon_ceiling: float = math.inf
    evidence: tuple[Guessed | Rates, ...] = ()
    noise: NoiseTest | None = None

    @property
    def epsilon_if_gaussian(self) -> float:
        """The epsilon of mu_lower-GDP: a lower bound if the algorithm's curve is Gaussian."""
        return GaussianGuarantee(self.mu_lower).epsilon(self.delta).lower

    def contradicts(self, claim: Guarantee) -> bool:
        """Is the claim refuted? Then it or the code is wrong, or the audit one of the unlucky few.

        The claim's whole trade-off curve is compared with every test, and the noise found against
        the noise it needs: an honest claim is refuted with chance 1 - confidence at most. False
        says nothing: an attack may just be weak.
        """
        claimed = claim.epsilon(self.delta).upper
        if self.epsilon_lower > claimed or (
            self.noise is not None and self.noise.epsilon > claimed
        ):
            return True
        lines = lines_of(claim, self.delta)
        return any(test.refutes(lines) for test in self.evidence)


def audit_one_run(
    scores: Any | Mapping[str, Any],
    included: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    attack: str = "scores",
    guessed: Collection[float] = GUESSED,
    noise: tuple[NoiseSeen, NoisySGD] | None = None,
) -> Audit:
    """Bounds from one run with many canaries.

    scores: high where a canary seems present, computed from the output alone; or several kinds of
    score by name, among which the allowed miss is divided. guessed: shares of the canaries to
    guess, fixed beforehand. noise: what was seen of the noise, and the process that claims it.
    """
    kinds = dict(scores) if isinstance(scores, Mapping) else {attack: scores}
    if not kinds or not guessed:
        raise InvalidInput("An audit needs at least one kind of score and one share to guess.")
    shares = check_real(guessed, "guessed", low=0.0, high=1.0, open_low=True)
    d, level = float(check_delta(delta)), check_confidence(confidence)
    for_noise = (1.0 - level) * _NOISE_SHARE if noise is not None else 0.0
    miss = (1.0 - level - for_noise) / (len(kinds) * len(guessed))
    tried = []
    for name, values in kinds.items():
        found, bits = checked(values, included)
        for share in np.atleast_1d(shares).tolist():
            guesses = max(1, round(share * len(found)))
            correct = count_correct(found, bits, guesses)
            tried.append(Guessed(name, len(found), guesses, correct, miss))
    bounds = [test.bounds(d) for test in tried]
    best, (epsilon, _) = max(zip(tried, bounds, strict=True), key=lambda pair: pair[1])
    ranked, bits = checked(kinds[best.attack], included)
    most = bits.astype(np.float64)  # scores of the best attack there could be
    perfect = [replace(test, correct=count_correct(most, bits, test.guesses)) for test in tried]
    return Audit(
        runs=1,
        attack=best.attack,
        epsilon_lower=epsilon,
        mu_lower=max(mu for _, mu in bounds),
        delta=d,
        confidence=level,
        canaries=len(bits),
        guesses=best.guesses,
        correct=best.correct,
        roc=roc_points(ranked, bits),
        epsilon_ceiling=max(test.bounds(d)[0] for test in perfect),
        evidence=tuple(tried),
        noise=None if noise is None else noise[0].test(noise[1], for_noise, d),
    )


def audit_many_runs(
    present: ArrayLike,
    absent: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    attack: str = "scores",
    seed: int | None = None,
) -> Audit:
    """Bounds from the scores of runs with one canary and of runs without it, in any order.

    Which runs choose the threshold and which measure is drawn at random; a seed draws it again.
    """
    d = float(check_delta(delta))
    level = check_confidence(confidence)
    random = np.random.default_rng(seed)
    with_it = random.permutation(run_scores(present, "present"))
    without = random.permutation(run_scores(absent, "absent"))
    rates = measure_rates(with_it, without, lambda rates: rates.epsilon_lower(d), level)
    fitted = measure_rates(with_it, without, lambda rates: rates.mu_lower(), level)
    scores = np.concatenate([with_it, without])
    bits = np.arange(len(scores)) < len(with_it)
    quiet, loud = (n - n // 2 for n in (len(without), len(with_it)))  # the runs that measure
    perfect = rates_of(0, quiet, loud, loud, level)
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
        epsilon_ceiling=perfect.epsilon_lower(d),
        evidence=(rates,),
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
    how: Any = {"delta": delta, "confidence": confidence, "attack": attack}
    return audit_many_runs(scores[::2], scores[1::2], **how)


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


SCHEMA = "tightrope.audit/1"
FILE = "audit.json"
_MOST_BYTES = 512_000_000


@final
@dataclass(frozen=True)
class FolderAudit:
    """An audit and the certified guarantee of the process it attacked."""

    audit: Audit
    claim: Guarantee
    process: dict[str, Any]

    @property
    def claimed_epsilon(self) -> float:
        return self.claim.epsilon(self.audit.delta).upper

    @property
    def contradicted(self) -> bool:
        """Is the claim refuted, or the noise that the process names?"""
        noise = self.audit.noise
        return (noise is not None and noise.refuted) or self.audit.contradicts(self.claim)

    def roc(self) -> RocComparison:
        return roc_against(self.audit, self.claim)


def save_audit(
    folder: str | Path,
    scores: Mapping[str, Any],
    included: ArrayLike,
    process: Process,
    *,
    delta: float,
    confidence: float = 0.95,
    noise: NoiseSeen | None = None,
) -> Path:
    """Store what a one-run attack saw on `process`."""
    if noise is not None:
        _watched(process, noise)
    content = {
        "schema": SCHEMA,
        "process": to_json(process),
        "delta": delta,
        "confidence": confidence,
        "included": np.asarray(included, dtype=bool).tolist(),
        "scores": {name: real_array(s, "scores").tolist() for name, s in scores.items()},
        "noise": None if noise is None else asdict(noise),
    }
    return write_text(Path(folder) / FILE, json.dumps(content, allow_nan=False) + "\n")


_FIRST = (
    "Train with canaries first: `with tightrope.audit.planted(run) as canaries: ...` and "
    "`canaries.save(folder, run.process, delta=...)`; then give that folder."
)


def audit_folder(folder: str | Path) -> FolderAudit:
    """The audit stored in a run folder, computed from its scores."""
    path = Path(folder) / FILE if Path(folder).is_dir() else Path(folder)
    try:
        data = json.loads(read_most(path, _MOST_BYTES).decode("utf-8"))
    except (InvalidInput, OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} cannot be read: {why_unread(error)}. {_FIRST}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise InvalidInput(f"{path} is not a {SCHEMA} file. {_FIRST}")
    try:
        included, stored, noise = data["included"], data["scores"], data.get("noise")
        if not isinstance(included, list) or not all(isinstance(one, bool) for one in included):
            raise ValueError("the coins in `included` are a list of true and false")
        if not isinstance(stored, dict):
            raise TypeError("`scores` holds a list of numbers for each kind of score")
        scores = {name: np.asarray(values, dtype=np.float64) for name, values in stored.items()}
        delta, confidence = data["delta"], data["confidence"]
        process, watched = from_json(data["process"]), None
        if noise is not None:
            squares = tuple(tuple(map(float, step)) for step in noise["squares"])
            seen = NoiseSeen(squares, tuple(map(int, noise["coordinates"])))
            watched = seen, _watched(process, seen)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"{path} is damaged: {error}.") from None
    audit = audit_one_run(scores, included, delta=delta, confidence=confidence, noise=watched)
    return FolderAudit(audit, account(process).guarantee(delta), to_json(process))


def _watched(process: Process, noise: NoiseSeen) -> NoisySGD:
    """The steps whose noise was watched: the first ones of what the process ends in."""
    steps = len(noise.squares)
    last = with_steps(process, steps) if (steps_of(process) or 0) >= steps else process
    last = last.parts[-1] if isinstance(last, Sequence) else last
    if not isinstance(last, NoisySGD) or last.steps != steps:
        raise InvalidInput(
            f"The noise of {steps} steps was watched, but the process is {process}. Save the audit "
            "with the process of the very run that it watched (run.process)."
        )
    return last
