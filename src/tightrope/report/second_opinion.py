"""Somebody else's run, accounted here, and their epsilon held against what is certified.

Added to `tightrope.account/1`: `from` (`source`, `notes`), `said` (`epsilon`, `verdict`, `words`).
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from tightrope.accounting import Account, account
from tightrope.errors import InvalidInput
from tightrope.guarantee.base import Validity
from tightrope.interop import Reading, Setting
from tightrope.interop.numbers import parse_number
from tightrope.interop.setting import UNSAID, Level, level_of
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import rounded_down, rounded_up
from tightrope.report.account_view import account_view
from tightrope.validate import check_epsilon, no_promise

__all__ = ["opinion", "said_view", "level_for", "remarks_on"]


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
