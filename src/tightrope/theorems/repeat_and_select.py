"""The best of a secret number of runs of any release whose Renyi divergences are known.

Statement: one trial (a result and its score) is (a, r(a))-Renyi DP for every order a, and (e, d)-DP
    with exp(e) <= 1 + 1/(a-1). The best of Poisson(m) trials is (a, g)-Renyi DP with
        g = ln( exp(-m) + m exp((a-1)(r(a) + m d)) ) / (a-1),
    and the best of K trials, K from the truncated negative binomial law (shape, gamma) of mean m,
    with, for every order b > 1,
        g = r(a) + (1 + shape) ( (1 - 1/b) r(b) + ln(1/gamma)/b ) + ln(m)/(a-1).
Conditions: trials independent and identically distributed, the score part of the release that is
    accounted for; the number of trials and the trials not chosen stay secret.
Validity: upper bound.
Source: Papernot, Steinke 2022 (arXiv:2110.03620), Theorems 2 and 6; proofs as on the pages of
    selection among Gaussian trials, which use nothing else of a trial.
Error: rounding of the formula, and that of the conversion.
Vectors: none; held against exact selections in tests/unit/theorems/test_given.py.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.compose import compose
from tightrope.guarantee.selection import binomial_selection, selection_guarantee
from tightrope.process import Process, RepeatAndSelect, parts_of
from tightrope.process.selection import mean_trials
from tightrope.theorems import (
    declared,
    discrete_gaussian_vector,
    exponential_mechanism_ddr20,
    gaussian_gdp_drs19,
    listed_laws,
    permute_and_flip,
    poisson_gaussian_exact_zdw22,
    poisson_releases_exact,
    poisson_replace_one_exact,
    single_releases_exact,
)
from tightrope.theorems.base import ONE_RECORD, Refusal, Source, foreign, other_neighbours, require

NAME = "Selection among a secret number of trials of any kind"
SOURCE = Source("Papernot, Steinke 2022", "Theorems 2 and 6", "ps22")
VALIDITY = Validity.BOUND
RELATIONS = ONE_RECORD

_TRIALS: tuple[ModuleType, ...] = (
    gaussian_gdp_drs19,
    single_releases_exact,
    declared,
    listed_laws,
    poisson_gaussian_exact_zdw22,
    poisson_replace_one_exact,
    exponential_mechanism_ddr20,
    permute_and_flip,
    poisson_releases_exact,
    discrete_gaussian_vector,
)


def applies(process: Process) -> Refusal | None:
    if not isinstance(process, RepeatAndSelect):
        return foreign(NAME, "RepeatAndSelect", process)
    unknown = [part for part in parts_of(process.trial) if _theorem(part) is None]
    if unknown:
        return Refusal(
            f"{NAME} needs trials of single releases, or of steps on Poisson or full batches; got "
            f"{unknown[0]!r:.200}. Declare what is proved about it (DeclaredRenyi).",
            "condition",
        )
    return other_neighbours(NAME, process, RELATIONS)


def guarantee(process: Process) -> Guarantee:
    require(applies(process))
    assert isinstance(process, RepeatAndSelect)
    parts = parts_of(process.trial)
    trial = compose([_theorem(part).guarantee(part) for part in parts], list(parts.values()))
    if process.shape is None:
        return selection_guarantee(trial, process.mean_trials)
    gamma = process.law.gamma
    mean = max(process.mean_trials, mean_trials(process.shape, gamma)) * (1.0 + 1e-12)
    return binomial_selection(trial, mean, process.shape, gamma)


def _theorem(part: Process) -> Any:
    return next((theorem for theorem in _TRIALS if theorem.applies(part) is None), None)
