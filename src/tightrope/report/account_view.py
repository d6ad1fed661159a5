"""An account as plain data: what the command prints with --json, and what reports are made of.

Schema `tightrope.account/1`. Numbers are JSON numbers; an infinite epsilon is the string
"infinity". A certified value is {"lower": x, "upper": y} with the truth between them (for an upper
bound, x is 0 unless some data are known to attain more); an estimate is {"estimate": x}, with
{"error": {"lower", "upper"}}, the estimate less the truth, where the truth is known.
"""

from __future__ import annotations

import math
from typing import Any

from tightrope.accounting import Account, AnalysisResult
from tightrope.errors import DoesNotApply
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.check import SecondLook
from tightrope.guarantee.estimate import Estimate
from tightrope.numerics.interval import Interval
from tightrope.process.codec import to_json
from tightrope.report.account_words import answer_words, claim_words, poisson_claim
from tightrope.theorems.shuffled_attained import least_epsilon

__all__ = ["account_view", "finding_view", "interval_view", "second_look_view", "number"]

SCHEMA = "tightrope.account/1"


def number(value: float) -> float | str:
    return "infinity" if math.isinf(value) else value


def interval_view(value: Interval) -> dict[str, float | str]:
    return {"lower": number(value.lower), "upper": number(value.upper)}


def certified_view(value: Interval, two_sided: bool) -> dict[str, float | str]:
    """Both ends hold the truth: where nothing is known below an upper bound, the lower end is 0."""
    bound = not two_sided and value.upper < math.inf
    return interval_view(Interval(0.0, value.upper) if bound else value)


def account_view(
    account: Account, delta: float, group: int = 1, neighbours: str | None = None
) -> dict[str, Any]:
    """Everything a reader of the answer may want: the answer, and every analysis with its fate.

    Also for a group of records that change together, such as those of one user. neighbours: what
    they are called, where that is not what the process says (`interop`).

    Nothing is answered where a second, independent numerical method contradicts (account's check).
    """
    return {
        "schema": SCHEMA,
        "process": to_json(account.process),
        "delta": delta,
        "answer": _answer_view(account, delta, group, neighbours),
        "analyses": [_with_error(account, finding, delta) for finding in account.findings],
    }


def _answer_view(
    account: Account, delta: float, group: int, neighbours: str | None
) -> dict[str, Any]:
    _require_an_analysis(account)
    account.compare(delta)
    best = account.best(lambda g: g.epsilon(delta).upper)
    assert isinstance(best.outcome, Guarantee)
    epsilon = account.epsilon(delta)
    least = least_epsilon(account.process, delta)
    told = certified_view(epsilon, best.outcome.two_sided)
    view = {
        "epsilon": {**told, **({"lower": least} if least else {})},
        "analysis": best.name,
        "kind": str(best.kind),
        "source": "; ".join(map(str, best.sources)),
        "adjacency": neighbours or str(best.outcome.adjacency),
        "membership_advantage": certified_view(best.outcome.advantage(), best.outcome.two_sided),
        "second_method": second_look_view(account.second_look(delta)),
    }
    view["words"] = answer_words(account.process, delta, view)
    if group > 1:
        together = best.outcome.group(group)
        shared = certified_view(together.epsilon(delta), together.two_sided)
        view["group"] = {"size": group, "epsilon": shared}
    claim = poisson_claim(account.process, delta)
    if claim is not None:
        words = claim_words(account.process, claim, epsilon)
        view["poisson_claim"] = {"epsilon": interval_view(claim), "applies": False, "words": words}
    return view


def second_look_view(look: SecondLook) -> dict[str, Any]:
    """`factor`: the second method proves delta(epsilon) <= factor * delta; null without one."""
    return {
        "verdict": str(look.verdict),
        "method": look.method,
        "factor": look.factor,
        "words": look.words,
    }


def _require_an_analysis(account: Account) -> None:
    """A refusal by what was nearest to answering, not by everything about other processes."""
    if account.certified:
        return
    reasons = [finding.reason for finding in account.findings if not finding.is_foreign]
    raise DoesNotApply(f"No certified analysis covers this run. {reasons[0] if reasons else ''}")


def _with_error(account: Account, finding: AnalysisResult, delta: float) -> dict[str, Any]:
    """A finding; for an estimate also by how much it misses the truth, where that is known."""
    view = finding_view(finding, delta)
    error = account.estimate_error(finding, delta)
    if error is not None:
        view["epsilon"]["error"] = interval_view(error)
    return view


def finding_view(finding: AnalysisResult, delta: float) -> dict[str, Any]:
    return {
        "name": finding.name,
        "key": finding.key,
        "kind": str(finding.kind),
        "applies": finding.applies,
        "foreign": finding.is_foreign,
        "reason": finding.reason,
        "epsilon": _epsilon_view(finding.outcome, delta),
        "source": "; ".join(map(str, finding.sources)),
    }


def _epsilon_view(outcome: Guarantee | Estimate | None, delta: float) -> Any:
    if isinstance(outcome, Guarantee):
        return certified_view(outcome.epsilon(delta), outcome.two_sided)
    return None if outcome is None else {"estimate": number(outcome.epsilon(delta))}
