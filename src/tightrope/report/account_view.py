"""An account as plain data: what the command prints with --json, and what reports are made of.

Schema `tightrope.account/1`. Numbers are JSON numbers; an infinite epsilon is the string
"infinity". A certified value is {"lower": x, "upper": y} with the truth between them (for an upper
bound, x is 0 unless some data are known to attain more); an estimate is {"estimate": x}, with
{"error": {"lower", "upper"}}, the estimate less the truth, where the truth is known.

A run from elsewhere (`opinion`) adds `from` (`source`, `notes`) and `said`: the epsilon that its
library claimed, beside what is certified (`epsilon`, `verdict`, `words`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from tightrope.accounting import Account, AnalysisResult, account
from tightrope.errors import DoesNotApply, InvalidInput
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.check import SecondMethod
from tightrope.guarantee.estimate import Estimate
from tightrope.interop import Reading, Setting
from tightrope.interop.setting import UNSAID, Level, level_of, parse_number
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import rounded_down, rounded_up
from tightrope.process.codec import to_json
from tightrope.report.words import answer_words, claim_words, poisson_claim
from tightrope.theorems.epochs import least_epsilon
from tightrope.validate import check_epsilon, no_promise

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
    text = certified_view(epsilon, best.outcome.two_sided)
    view = {
        "epsilon": {**text, **({"lower": least} if least else {})},
        "analysis": best.name,
        "kind": str(best.kind),
        "source": "; ".join(map(str, best.sources)),
        "adjacency": neighbours or str(best.outcome.adjacency),
        "membership_advantage": certified_view(best.outcome.advantage(), best.outcome.two_sided),
        "second_method": second_method_view(account.second_method(delta)),
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


def second_method_view(second: SecondMethod) -> dict[str, Any]:
    """`factor`: the second method proves delta(epsilon) <= factor * delta; null without one."""
    return {
        "verdict": str(second.verdict),
        "method": second.method,
        "factor": second.factor,
        "words": second.words,
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


def opinion(
    reading: Reading, setting: Setting, said: str | None = None
) -> tuple[dict[str, Any], Account]:
    """The account of what was read, with its remarks, and what their number is worth."""
    level = level_for(setting, [reading])
    group = reading.group if setting.group == UNSAID else setting.group_size()
    result = account(reading.process, check="full")
    view = account_view(result, level.delta, group, reading.neighbours)
    view["remarks"] = [*reading.notes, *level.remarks, *remarks_on(view)]
    if reading.source != "options":
        view["from"] = {"source": reading.source, "notes": list(reading.notes)}
    claim = reading.said if said is None else said
    if claim is not None:
        truth, kind = result.epsilon(level.delta), Validity(view["answer"]["kind"])
        if group > 1:
            together = result.guarantee(level.delta).group(group)
            truth, kind = together.epsilon(level.delta), together.validity
        view["said"] = said_view(claim, truth, kind, reading.suspects, group)
    return view, result


def remarks_on(view: dict[str, Any]) -> list[str]:
    """That an epsilon protects no one; of an infinite one the answer's own words speak."""
    epsilon = view["answer"]["epsilon"]["upper"]
    why = None if epsilon == "infinity" else no_promise(epsilon, 0.0)
    return [] if why is None else [why]


def level_for(setting: Setting, readings: Iterable[Reading]) -> Level:
    """The delta that was asked for, or else the one that all the files are about."""
    found = sorted({reading.delta for reading in readings if reading.delta is not None})
    if setting.delta != UNSAID or not found:
        return setting.level()
    if len(found) > 1:
        raise InvalidInput(
            f"These runs are stated at different deltas ({', '.join(map(str, found))}). Choose one "
            "for all of them with --delta."
        )
    return level_of(found[0], setting.records)


def said_view(
    claim: str, truth: Interval, kind: Validity, suspects: tuple[str, ...] = (), group: int = 1
) -> dict[str, Any]:
    """Is an epsilon that someone printed on the safe side, for all records of a group together?

    `verdict`: "safe", "rounded" (less than the truth, by no more than its last digit), "too small",
    or "not proved" (only an upper bound is known here, and it is above).
    """
    epsilon = float(check_epsilon(parse_number(claim, "said")))
    verdict = _verdict(claim, epsilon, truth, kind)
    whom = "" if group == 1 else f" for {group} records together"
    why = f": {'; '.join(suspects)}" if suspects and verdict not in ("safe", "rounded") else ""
    certified, least = (
        f"{number}{whom}" for number in (rounded_up(truth.upper, 6), rounded_down(truth.lower, 6))
    )
    over = f", {_percent(epsilon / truth.upper - 1)} above it" if truth.upper > 0 else ""
    both = f"Your library said {claim}; certified {certified}"
    words = {
        "safe": f"{both}: safe{over}.",
        "rounded": f"{both}: rounded down. State {certified}.",
        "too small": f"Too small: your library said {claim}, the truth is at least {least}{why}.",
        "not proved": f"Your library said {claim}; only {certified} is proved here{why}.",
    }
    return {"epsilon": epsilon, "verdict": verdict, "words": words[verdict]}


def _verdict(claim: str, epsilon: float, truth: Interval, kind: Validity) -> str:
    if epsilon >= truth.upper:
        return "safe"
    if kind is not Validity.EXACT:
        return "not proved"
    return "rounded" if epsilon + _last_digit(claim) >= truth.upper else "too small"


def _percent(share: float) -> str:
    """Two digits where they fit, no power of ten."""
    return f"{100 * share:.2g} %" if share < 1.0 else f"{100 * share:,.0f} %"


def _last_digit(claim: str) -> float:
    """One unit of the last digit of a number as it was printed; 0 where it is no plain number."""
    text = claim.strip()
    if not text.replace(".", "", 1).isdecimal():
        return 0.0
    exponent = Decimal(text).as_tuple().exponent
    return 10.0**exponent if isinstance(exponent, int) and exponent < 0 else 0.0
