"""Does a certificate hold? Recomputed from the process alone, by both numerical methods.

Each claim is proved again by the method that answers first (closed form or contour), and an
independent one must not contradict it: the lattice for epsilons and type II errors, cells of the
loss for Renyi divergences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from tightrope.accounting import Account, account
from tightrope.errors import TightropeError
from tightrope.evidence.certificate import SCHEMA, SECTIONS, UNIT, analysis_of, chain_of
from tightrope.evidence.check import Check, holds
from tightrope.evidence.code import library
from tightrope.evidence.statement import statement
from tightrope.evidence.verify_run import run_checks
from tightrope.evidence.verify_second import second_method
from tightrope.evidence.verify_views import second_renyi, second_tradeoff
from tightrope.guarantee.base import Guarantee
from tightrope.numerics.interval import Interval
from tightrope.process.codec import from_json
from tightrope.validate import check_delta, check_real

__all__ = ["Check", "verify", "holds"]

# The same bound recomputed elsewhere may differ by this much (another machine's libm).
_SLACK = 1e-9


def verify(certificate: dict[str, Any]) -> list[Check]:
    """Every check, in order; a certificate is good when all of them hold."""
    checks = [_schema(certificate), *_chain(certificate), _library(certificate.get("library"))]
    try:
        process = from_json(certificate.get("process"))
        level = check_delta(certificate["setting"]["delta"])
        result = account(process)
        finding = result.best(lambda g: g.epsilon(level).upper)
    except (TightropeError, KeyError, TypeError, ValueError) as error:
        return [*checks, Check("process", False, f"cannot be analysed: {error}")]
    guarantee = finding.outcome
    assert isinstance(guarantee, Guarantee)
    checks.append(Check("process", True, f"read and analysed: {type(process).__name__}"))
    checks.extend(_setting(certificate["setting"], guarantee))
    checks.append(_analysis(certificate, analysis_of(finding, result, level), result))
    claims = certificate.get("claims")
    if not isinstance(claims, dict):
        return [*checks, Check("claims", False, "no claims are made")]
    checks.extend(_claims(claims, guarantee))
    checks.append(second_method(claims, guarantee, level))
    checks.extend((second_tradeoff(claims, guarantee), second_renyi(claims, guarantee)))
    checks.extend(run_checks(certificate.get("run"), process, level))
    checks.append(_statement(certificate))
    return checks


def _schema(certificate: dict[str, Any]) -> Check:
    said = certificate.get("schema")
    return Check("schema", said == SCHEMA, f"{said!r}; this library reads {SCHEMA!r}")


def _chain(certificate: dict[str, Any]) -> Iterator[Check]:
    """The first broken link names the section that was edited."""
    found = certificate.get("chain")
    if not isinstance(found, dict) or set(found) != set(SECTIONS):
        yield Check("hash chain", False, f"there must be one hash for each of {list(SECTIONS)}")
        return
    try:
        expected = chain_of(certificate)
    except (TypeError, ValueError) as error:
        yield Check("hash chain", False, f"the content cannot be hashed: {error}")
        return
    odd = set(certificate) ^ {*SECTIONS, "chain"}
    if odd:
        yield Check("hash chain", False, f"unknown or missing sections {sorted(odd)}")
        return
    for name in SECTIONS:
        if found[name] != expected[name]:
            yield Check("hash chain", False, f"section '{name}' was changed after it was written")
            return
    yield Check("hash chain", True, f"{len(SECTIONS)} sections intact")


def _setting(setting: dict[str, Any], guarantee: Guarantee) -> Iterator[Check]:
    said = setting.get("adjacency")
    same = said == str(guarantee.adjacency)
    yield Check("adjacency", same, f"claims {said}, the process has {guarantee.adjacency}")
    unit = setting.get("unit_of_privacy")
    yield Check("unit of privacy", unit == UNIT, f"claims {unit!r}, the analysis covers {UNIT!r}")


def _library(said: Any) -> Check:
    """Other source files are told, not refused: what they claim is recomputed here."""
    own = library()
    if not isinstance(said, dict) or set(said) != set(own) or said.get("name") != own["name"]:
        return Check("library", False, f"must hold {sorted(own)} of {own['name']}")
    if said["code"] == own["code"]:
        return Check("library", True, f"written by this very code, version {own['version']}")
    told = f"written by version {said['version']} with OTHER source files than this library's"
    return Check("library", True, told)


def _analysis(certificate: dict[str, Any], found: dict[str, Any], result: Account) -> Check:
    """Field by field when this code wrote it; another version may know other analyses."""
    said = certificate.get("analysis")
    if not isinstance(said, dict):
        return Check("analysis", False, "none is named")
    if certificate.get("library") == library():
        wrong = sorted(key for key in {*said, *found} if said.get(key) != found.get(key))
    else:
        known = {f.key for f in result.certified}
        wrong = [] if set(said) == set(found) and said["key"] in known else ["key"]
    told = f"differs in {wrong}" if wrong else str(said["name"])
    return Check("analysis", not wrong, told)


def _statement(certificate: dict[str, Any]) -> Check:
    said = certificate.get("statement")
    try:
        same = said == statement(certificate)
    except (KeyError, TypeError, ValueError, ArithmeticError):
        same = False
    return Check("statement", same, str(said) if same else "is not what the sections say")


def _claims(claims: dict[str, Any], guarantee: Guarantee) -> Iterator[Check]:
    """Every number claimed, against the same number recomputed."""
    kinds = (
        ("epsilon", "delta", guarantee.epsilon, "upper"),
        ("type_ii_error", "type_i", guarantee.tradeoff, "lower"),
        ("renyi", "order", guarantee.renyi, "upper"),
    )
    extra = sorted(set(claims) - {"advantage", *(kind[0] for kind in kinds)})
    if extra:
        yield Check("claims", False, f"nothing is known of {extra}")
    for name, argument, view, safe in kinds:
        rows = claims.get(name)
        if not isinstance(rows, list) or not rows:
            yield Check(name, False, "no such claims")
            continue
        false = [row for row in rows if not _row_holds(row, argument, view, safe)]
        at = false[0].get(argument) if false and isinstance(false[0], dict) else None
        told = f"false at {argument} = {at}" if false else f"{len(rows)} claims hold"
        yield Check(name, not false, told)
    held = _row_holds(claims.get("advantage"), None, lambda _: guarantee.advantage(), "upper")
    yield Check("advantage", held, "the claim holds" if held else "false or missing")


def _row_holds(row: Any, argument: str | None, view: Any, safe: str) -> bool:
    """A claim holds when its safe end is no better than the recomputed one.

    The other end must not contradict it: a reader may take it for the truth's other side.
    """
    wanted = {"lower", "upper", argument} if argument else {"lower", "upper"}
    if not isinstance(row, dict) or set(row) != wanted:
        return False
    try:
        truth: Interval = view(float(row[argument]) if argument else 0.0)
        lower, upper = _end(row["lower"], math.inf), _end(row["upper"], math.inf)
    except (TightropeError, TypeError, ValueError):
        return False
    largest = math.inf if argument in ("delta", "order") else 1.0  # losses, or probabilities
    if not 0.0 <= lower <= upper <= largest:
        return False
    slack = _SLACK * abs(truth.upper) if math.isfinite(truth.upper) else 0.0
    if safe == "upper":
        return upper >= truth.upper - slack and lower <= truth.upper + slack
    return lower <= truth.lower + slack + 1e-12 and upper >= truth.lower - slack - 1e-12


def _end(value: Any, absent: float) -> float:
    """A claimed end as a number; null claims nothing finite."""
    if value is None:
        return absent
    return float(check_real(value, "claim"))
