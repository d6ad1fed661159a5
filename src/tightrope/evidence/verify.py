"""Does a certificate hold? Recomputed from the process alone, by both numerical methods.

Every line of the verdict is recomputed here, stated by the writer, or the reader's to check.

Each claim is proved again by the method that answers first (closed form or contour), and an
independent one must not contradict it: the lattice for epsilons and type II errors, cells of the
loss for Renyi divergences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from tightrope.accounting import Account, account
from tightrope.errors import InvalidInput, TightropeError
from tightrope.evidence.certificate import analysis_of, chain_of, claimed_renyi, sections_of
from tightrope.evidence.check import DECISIVE, Check, holds, stated, yours
from tightrope.evidence.code import library
from tightrope.evidence.form import SCHEMAS, faults, schema_of
from tightrope.evidence.signature import Trust, signature_line
from tightrope.evidence.statement import statement, statement_here
from tightrope.evidence.strict_json import check_plain
from tightrope.evidence.verify_run import run_checks, writer_lines
from tightrope.evidence.verify_second import second_method
from tightrope.evidence.verify_views import second_renyi, second_tradeoff
from tightrope.guarantee.base import Guarantee
from tightrope.numerics.interval import Interval
from tightrope.process.codec import from_json, to_json
from tightrope.validate import check_delta, check_real

__all__ = ["Check", "verify", "lines_of", "holds"]

# The same bound recomputed elsewhere may differ by this much (another machine's libm).
_SLACK = 1e-9
# What numbers at the edge of the doubles may do to an analysis: no claim holds by it.
_BREAKDOWN: tuple[type[Exception], ...] = (
    TightropeError,
    ArithmeticError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    RecursionError,
    MemoryError,
)


def verify(
    certificate: dict[str, Any],
    signatures: Sequence[dict[str, str]] = (),
    trust: Trust | None = None,
) -> list[Check]:
    """Every line of the verdict, in order. For files of strangers see also `--patience`.

    signatures: detached ones (`signature.read_detached`). trust: one of its keys must have signed.
    """
    return list(lines_of(certificate, signatures, trust))


def lines_of(
    certificate: dict[str, Any],
    signatures: Sequence[dict[str, str]] = (),
    trust: Trust | None = None,
) -> Iterator[Check]:
    """The lines as they are found; the statement comes last, and only where all others hold."""
    sound = True
    try:
        for line in _lines(certificate, signatures, trust):
            sound = sound and line.holds is not False
            if line.name == "signature" and trust is not None and line.holds is None:
                sound = False  # who signed was asked, and could not be checked here
            yield line
    except _BREAKDOWN as error:
        sound = False
        yield Check("computation", False, f"broke down: {type(error).__name__}: {error}"[:400])
    if sound:
        yield _statement(certificate)


def _lines(
    certificate: dict[str, Any], signatures: Sequence[dict[str, str]], trust: Trust | None
) -> Iterator[Check]:
    wrong = _fault(certificate)
    yield Check("form", wrong is None, wrong or f"every field is as {certificate['schema']} asks")
    if wrong is not None:
        return
    yield _chain(certificate)
    signature, by = signature_line(certificate, signatures, trust)
    yield signature
    yield from writer_lines(certificate, by)
    try:
        process = _process(certificate["process"])
        level = check_delta(certificate["setting"]["delta"])
        result = account(process)
        finding = result.best(lambda g: g.epsilon(level).upper)
    except _BREAKDOWN as error:
        yield Check("process", False, f"cannot be analysed: {error}")
        return
    guarantee = finding.outcome
    assert isinstance(guarantee, Guarantee)
    yield Check("process", True, f"read and analysed: {type(process).__name__}")
    yield from _setting(certificate["setting"], guarantee)
    yield from _analysis(certificate, analysis_of(finding, result, level), result, by)
    claims = certificate["claims"]
    yield from _claims(claims, guarantee)
    yield second_method(claims, guarantee, level)
    yield from (second_tradeoff(claims, guarantee), second_renyi(claims, guarantee))
    yield from run_checks(certificate, process, level, by)
    yield from _readers_part(certificate)


def _fault(certificate: Any) -> str | None:
    """The first thing that is not as the published schema has it."""
    try:
        check_plain(certificate)
    except InvalidInput as error:
        return str(error)
    said = certificate.get("schema") if isinstance(certificate, dict) else None
    if not isinstance(said, str) or said not in SCHEMAS:
        return f"its schema is {str(said)[:80]!r}; this library reads {', '.join(SCHEMAS)}"
    return next(faults(certificate, schema_of(said)), None)


def _process(data: Any) -> Any:
    """The process, if every word of the data is a word of it."""
    process = from_json(data)
    if not _within(data, to_json(process)):
        raise InvalidInput("it has fields that its process does not")
    return process


def _within(said: Any, read: Any) -> bool:
    if isinstance(said, dict) and isinstance(read, dict):
        return all(key in read and _within(value, read[key]) for key, value in said.items())
    if isinstance(said, list) and isinstance(read, list):
        return len(said) == len(read) and all(map(_within, said, read))
    return bool(said == read)


def _chain(certificate: dict[str, Any]) -> Check:
    """The first broken link names the section that was edited."""
    found, expected = certificate["chain"], chain_of(certificate)
    for name in sections_of(certificate):
        if found[name] != expected[name]:
            told = f"section '{name}' was changed after it was written"
            return Check("hash chain", False, told)
    return Check("hash chain", True, f"{len(expected)} sections fit together; anybody can do that")


def _setting(setting: dict[str, Any], guarantee: Guarantee) -> Iterator[Check]:
    said = setting.get("adjacency")
    same = said == str(guarantee.adjacency)
    yield Check("adjacency", same, f"claims {said}, the process has {guarantee.adjacency}")
    unit = setting.get("unit_of_privacy")
    covered = guarantee.unit_of_privacy
    yield Check("unit of privacy", unit == covered, f"claims {unit!r}, proved for {covered!r}")


def _analysis(
    certificate: dict[str, Any], found: dict[str, Any], result: Account, by: str
) -> Iterator[Check]:
    """Field by field when this code wrote it; another version may know other analyses."""
    said = certificate["analysis"]
    names = {finding.key: finding.name for finding in result.certified}
    if certificate["library"] == library():
        wrong = sorted(key for key in found if said[key] != found[key])
    else:
        wrong = [] if said["key"] in names else ["key"]
        yield stated("words of the theorems", "another version's; not compared", by)
    told = f"differs in {wrong}" if wrong else names[said["key"]]
    yield Check("analysis", not wrong, told)


def _readers_part(certificate: dict[str, Any]) -> Iterator[Check]:
    """What no file can show."""
    ran = "is what really ran" if certificate["run"] is not None else "is what will be run"
    yield yours("the process", f"that it {ran}: audits look for code that lies")
    unit = certificate["setting"]["unit_of_privacy"]
    yield yours("people", f"that one person is {unit}, and not more")
    yield yours("other releases", "what else these data went into: losses add up (`compose`)")


def _statement(certificate: dict[str, Any]) -> Check:
    """Composed here; the file's own must say the same in the words of its version."""
    try:
        same = certificate["statement"] == statement(certificate)
    except (KeyError, TypeError, ValueError, ArithmeticError):
        same = False
    told = statement_here(certificate) if same else "is not what the sections say"
    return Check(DECISIVE, same, told)


def _claims(claims: dict[str, Any], guarantee: Guarantee) -> Iterator[Check]:
    """Every number claimed, against the same number recomputed."""
    kinds = (
        ("epsilon", "delta", guarantee.epsilon, "upper"),
        ("type_ii_error", "type_i", guarantee.tradeoff, "lower"),
        ("renyi", "order", partial(claimed_renyi, guarantee), "upper"),
    )
    for name, argument, view, safe in kinds:
        rows = claims[name]
        false = [row for row in rows if not _row_holds(row, argument, view, safe)]
        told = f"false at {argument} = {false[0][argument]}" if false else f"{len(rows)} hold"
        yield Check(name, not false, told)
    held = _row_holds(claims["advantage"], None, lambda _: guarantee.advantage(), "upper")
    yield Check("advantage", held, "the claim holds" if held else "false")


def _row_holds(row: dict[str, Any], argument: str | None, view: Any, safe: str) -> bool:
    """A claim holds when its safe end is no better than the recomputed one.

    The other end must not contradict it: a reader may take it for the truth's other side.
    """
    try:
        truth: Interval = view(float(row[argument]) if argument else 0.0)
        lower, upper = _end(row["lower"], math.inf), _end(row["upper"], math.inf)
    except (TightropeError, TypeError, ValueError, ArithmeticError):
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
