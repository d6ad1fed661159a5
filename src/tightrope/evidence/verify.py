"""Does a certificate hold? Recomputed from the process alone, by both numerical methods.

Every line of the verdict is recomputed here, stated by the writer, or the reader's to check.

Each claim is proved again by the method that answers first (closed form or contour), and an
independent one must not contradict it: the lattice for epsilons and type II errors, cells of the
loss for Renyi divergences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tightrope.accounting import account
from tightrope.errors import InvalidInput, TightropeError
from tightrope.evidence.certificate import analysis_of, chain_of, library, sections_of
from tightrope.evidence.check import DECISIVE, NO_PROMISE, Check, stated, yours
from tightrope.evidence.check import holds as holds
from tightrope.evidence.form import fault_of
from tightrope.evidence.run_folder import folder_checks
from tightrope.evidence.signature import Trust, signature_line
from tightrope.evidence.statement import footnotes, main_claim, statement, statement_here
from tightrope.evidence.verify_claims import claims_checks, second_checks
from tightrope.evidence.verify_run import run_checks, writer_lines
from tightrope.guarantee.base import Guarantee
from tightrope.process.codec import from_json, to_json
from tightrope.validate import check_delta, no_promise

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
    folder: str | Path | None = None,
    ledger: str | None = None,
) -> list[Check]:
    """Every line of the verdict, in order. For files of strangers see also `--patience`.

    signatures: detached ones (`signature.read_detached`). trust: one of its keys must have signed.
    folder: the run folder that the certificate lies in, verified with it. ledger: that of the data
    set, which must have counted the releases of the folder.
    """
    return list(lines_of(certificate, signatures, trust, folder, ledger))


def lines_of(
    certificate: dict[str, Any],
    signatures: Sequence[dict[str, str]] = (),
    trust: Trust | None = None,
    folder: str | Path | None = None,
    ledger: str | None = None,
) -> Iterator[Check]:
    """The lines as they are found. The last one comes only where all others hold: the statement,
    or why what is stated promises nothing.
    """
    if ledger is not None and folder is None:
        raise InvalidInput(
            "A ledger is held against the journal of a run folder. Give the folder, not the "
            "certificate alone."
        )
    sound = length = True
    # What was asked for must have been checked here.
    asked = {name for name, of in (("signature", trust), ("ledger", ledger)) if of is not None}
    try:
        for line in _lines(certificate, signatures, trust, folder, ledger):
            sound = sound and line.holds is not False
            sound = sound and (line.name not in asked or line.holds is not None)
            length = length and (line.name != "length" or line.holds is True)
            yield line
    except _BREAKDOWN as error:
        sound = False
        yield Check("computation", False, f"broke down: {type(error).__name__}: {error}"[:400])
    if sound:
        yield _statement(certificate, length)


def _lines(
    certificate: dict[str, Any],
    signatures: Sequence[dict[str, str]],
    trust: Trust | None,
    folder: str | Path | None,
    ledger: str | None,
) -> Iterator[Check]:
    wrong = fault_of(certificate)
    yield Check("form", wrong is None, wrong or f"every field is as {certificate['schema']} asks")
    if wrong is not None:
        return
    yield _chain(certificate)
    signature, by = signature_line(certificate, signatures, trust)
    yield signature
    yield from writer_lines(certificate, by)
    setting = certificate["setting"]
    try:
        process = from_json(certificate["process"])
        if not _within(certificate["process"], to_json(process)):
            raise InvalidInput("it has fields that its process does not")
        level = check_delta(setting["delta"])
        result = account(process)
        finding = result.best(lambda g: g.epsilon(level).upper)
    except _BREAKDOWN as error:
        yield Check("process", False, f"cannot be analysed: {error}")
        return
    best = finding.outcome
    assert isinstance(best, Guarantee)
    yield Check("process", True, f"read and analysed: {type(process).__name__}")
    same, words = setting["adjacency"] == str(best.adjacency), f"claims {setting['adjacency']}"
    yield Check("adjacency", same, f"{words}, the process has {best.adjacency}")
    unit, covered = setting["unit_of_privacy"], best.unit_of_privacy
    yield Check("unit of privacy", unit == covered, f"claims {unit!r}, proved for {covered!r}")
    yield from _analysis(certificate, analysis_of(finding, result, level), by)
    yield from claims_checks(certificate, result, best)
    yield from second_checks(certificate["claims"], best, level)
    yield from run_checks(certificate, process, level, by)
    if folder is not None:
        yield from folder_checks(Path(folder), certificate, ledger)
    # What no file can show.
    ran = "is what really ran" if certificate["run"] is not None else "is what will be run"
    yield yours("the process", f"that it {ran}: audits look for code that lies")
    yield yours("people", f"that one person is {unit}, and not more")
    yield from (yours("the owner's word", note) for note in footnotes(certificate["run"]))
    yield yours("other releases", "what else these data went into: losses add up (`compose`)")


def _within(given: object, read: object) -> bool:
    """Is every word of the data a word of the process that was read from them?"""
    if isinstance(given, dict) and isinstance(read, dict):
        return all(key in read and _within(value, read[key]) for key, value in given.items())
    if isinstance(given, list) and isinstance(read, list):
        return len(given) == len(read) and all(map(_within, given, read))
    return bool(given == read)


def _chain(certificate: dict[str, Any]) -> Check:
    """The first broken link names the section that was edited."""
    found, expected = certificate["chain"], chain_of(certificate)
    for name in sections_of(certificate):
        if found[name] != expected[name]:
            return Check("hash chain", False, f"section '{name}' was changed after it was written")
    words = f"{len(expected)} sections fit together; no proof of who wrote them"
    return Check("hash chain", True, words)


def _analysis(certificate: dict[str, Any], found: dict[str, Any], by: str) -> Iterator[Check]:
    """Field by field when this code wrote it; another version may know other analyses."""
    claim = certificate["analysis"]
    if certificate["library"] == library():
        wrong = sorted(key for key in found if claim[key] != found[key])
        words = f"differs in {wrong}" if wrong else found["name"]
        yield Check("analysis", not wrong, words)
    else:
        yield stated("analysis", f"{claim['name'][:200]}, in the words of another version", by)
        yield Check("proof", True, f"by this version's {found['name']}")


def _statement(certificate: dict[str, Any], length: bool) -> Check:
    """Composed here; the file's own must say the same in the words of its version."""
    try:
        same = certificate["statement"] == statement(certificate)
    except (KeyError, TypeError, ValueError, ArithmeticError):
        same = False
    if not same:
        return Check(DECISIVE, False, "is not what the sections say")
    words = statement_here(certificate, length)
    delta = float(certificate["setting"]["delta"])
    claimed = main_claim(certificate["claims"], delta)
    if claimed is None:
        return Check(NO_PROMISE, True, words)
    people = (certificate.get("title") or {}).get("people")  # by the word of the writer
    why = no_promise(float(claimed), delta, people)
    if why is not None:
        return Check(NO_PROMISE, True, f"{why} What the file states: {words}")
    return Check(DECISIVE, True, words)
