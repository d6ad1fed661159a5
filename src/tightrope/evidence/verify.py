"""Does a certificate hold? Recomputed from the process alone, by both numerical methods.

Each claim is proved again by the method that answers first (closed form or contour), and the
independent lattice method must not contradict it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from tightrope.account import account
from tightrope.errors import NotCertified, TightropeError
from tightrope.evidence.certificate import SECTIONS, chain_of
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.loss import lattice
from tightrope.numerics.interval import Interval
from tightrope.process.codec import from_json

__all__ = ["Check", "verify", "holds"]

# The same bound recomputed elsewhere may differ by this much (another machine's libm).
_SLACK = 1e-9


@final
@dataclass(frozen=True)
class Check:
    """One thing looked at."""

    name: str
    holds: bool
    said: str


def holds(checks: list[Check]) -> bool:
    return all(check.holds for check in checks)


def verify(certificate: dict[str, Any]) -> list[Check]:
    """Every check, in order; a certificate is good when all of them hold."""
    checks = list(_chain(certificate))
    try:
        process = from_json(certificate.get("process"))
        level = float(certificate["setting"]["delta"])
        guarantee = account(process).guarantee(level)
    except (TightropeError, KeyError, TypeError, ValueError) as error:
        return [*checks, Check("process", False, f"cannot be analysed: {error}")]
    checks.append(Check("process", True, f"read and analysed: {type(process).__name__}"))
    checks.append(_setting(certificate, guarantee))
    checks.extend(_claims(certificate, guarantee))
    checks.append(_independent(certificate, guarantee, level))
    return checks


def _chain(certificate: dict[str, Any]) -> Iterator[Check]:
    """The first broken link names the section that was edited."""
    try:
        expected, found = chain_of(certificate), certificate.get("chain") or {}
    except (TypeError, ValueError) as error:
        yield Check("hash chain", False, f"the content cannot be hashed: {error}")
        return
    extra = set(certificate) - {*SECTIONS, "chain"}
    if extra:
        yield Check("hash chain", False, f"unknown sections {sorted(extra)}")
        return
    for name in SECTIONS:
        if found.get(name) != expected[name]:
            yield Check("hash chain", False, f"section '{name}' was changed after it was written")
            return
    yield Check("hash chain", True, f"{len(SECTIONS)} sections intact")


def _setting(certificate: dict[str, Any], guarantee: Guarantee) -> Check:
    said = certificate["setting"].get("adjacency")
    same = said == str(guarantee.adjacency)
    return Check("adjacency", same, f"claims {said}, the process has {guarantee.adjacency}")


def _claims(certificate: dict[str, Any], guarantee: Guarantee) -> Iterator[Check]:
    """Every number claimed, against the same number recomputed."""
    claims = certificate.get("claims") or {}
    kinds = (
        ("epsilon", "delta", guarantee.epsilon, "upper"),
        ("type_ii_error", "type_i", guarantee.tradeoff, "lower"),
        ("renyi", "order", guarantee.renyi, "upper"),
    )
    for name, argument, view, safe in kinds:
        rows = claims.get(name)
        if not rows:
            yield Check(name, False, "no such claims")
            continue
        worst = [row for row in rows if not _row_holds(row, argument, view, safe)]
        told = (
            f"{len(rows)} claims hold"
            if not worst
            else f"false at {argument} = {worst[0].get(argument)}"
        )
        yield Check(name, not worst, told)


def _row_holds(row: dict[str, Any], argument: str, view: Any, safe: str) -> bool:
    """A claim holds when its safe end is no better than the recomputed one."""
    try:
        truth: Interval = view(float(row[argument]))
        claimed = row[safe]
    except (TightropeError, KeyError, TypeError, ValueError):
        return False
    if claimed is None:
        return True  # nothing finite is claimed
    if not isinstance(claimed, (int, float)) or not math.isfinite(claimed):
        return False
    if safe == "upper":
        return claimed >= truth.upper - _SLACK * abs(truth.upper)
    return claimed <= truth.lower + _SLACK * abs(truth.lower) + 1e-12


def _independent(certificate: dict[str, Any], guarantee: Guarantee, delta: float) -> Check:
    """The main claim by the lattice method, which shares no numerics with the first."""
    rows = [r for r in certificate["claims"].get("epsilon", []) if r.get("delta") == delta]
    directions = guarantee.directions()
    if not rows or rows[0].get("upper") is None or directions is None:
        return Check("second method", True, "nothing finite to compare by the lattice method")
    claimed = float(rows[0]["upper"])
    try:
        second = Interval.worst([lattice.epsilon(order, delta) for order in directions if order])
    except (NotCertified, ValueError) as error:
        return Check("second method", False, f"the lattice method gave no answer: {error}")
    agrees = claimed >= second.lower * (1 - _SLACK)
    return Check(
        "second method", agrees, f"lattice: epsilon in [{second.lower:.8g}, {second.upper:.8g}]"
    )
