"""A run's privacy claims in one file that others can check.

Schema `tightrope.certificate/2` (certificate-2.schema.json beside this file); version 1 is still
read. The sections are chained by SHA-256, each hash covering its section and the one before, so an
edit is located. Anybody can write such hashes: `verify` recomputes the claims from the process, and
a signature shows who wrote the rest.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from functools import cache
from inspect import cleandoc
from pathlib import Path
from typing import Any, final

import tightrope
from tightrope.accounting import Account, AnalysisResult, account
from tightrope.errors import InvalidInput, NotCertified
from tightrope.evidence.files import FILE as FILE
from tightrope.evidence.files import check_plain, file_of, printable, read_json, write_text
from tightrope.evidence.form import SCHEMAS, fault_of, faults, schema_of
from tightrope.evidence.run_facts import RunFacts
from tightrope.evidence.statement import statement
from tightrope.guarantee.base import Guarantee
from tightrope.numerics.interval import Interval
from tightrope.process import Process
from tightrope.process.codec import to_json
from tightrope.validate import check_delta

_HERE = Path(tightrope.__file__).parent
SCHEMA = "tightrope.certificate/2"


@cache
def code_fingerprint(root: Path = _HERE) -> str:
    """SHA-256 over the names and contents of all Python files, whatever the line endings."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
        content = path.read_bytes().replace(b"\r\n", b"\n")
        name = path.relative_to(root).as_posix()
        digest.update(f"{len(name)} {name} {len(content)}\n".encode() + content)
    return f"sha256:{digest.hexdigest()}"


def library() -> dict[str, str]:
    """Name, version and code of this library, installed or run from its sources."""
    return {"name": "tightrope", "version": tightrope.__version__, "code": code_fingerprint()}


@final
@dataclass(frozen=True)
class Title:
    """None is not published. date: YYYY-MM-DD. people: how many the data are about."""

    organisation: str | None = None
    model: str | None = None
    data_set: str | None = None
    date: str | None = None
    people: int | None = None

    def __post_init__(self) -> None:
        wrong = next(faults(asdict(self), schema_of(SCHEMA)["properties"]["title"]), None)
        if wrong is not None:
            raise InvalidInput(f"This title cannot be written in a certificate. {wrong}.")
        check_plain(asdict(self))
        try:
            datetime.date.fromisoformat(self.date or "2000-01-01")
        except ValueError as error:
            raise InvalidInput(f"The date {self.date} is none: {error}.") from None

    @staticmethod
    def read(path: str | Path) -> Title:
        """From a JSON file with some of the fields."""
        data, known = read_json(Path(path)), [field.name for field in fields(Title)]
        if not isinstance(data, dict) or not set(data) <= set(known):
            raise InvalidInput(f"A title is a JSON object with some of {', '.join(known)}.")
        return Title(**data)


_UNTITLED = Title()
_SECTIONS_1 = ("schema", "library", "process", "setting", "analysis", "claims", "run", "statement")
SECTIONS = (*_SECTIONS_1[:-1], "title", "statement")

DELTAS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10, 1e-12)
TYPE_I_ERRORS = (1e-4, 1e-3, 1e-2, 0.05, 0.1, 0.25, 0.5)
ORDERS = (1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def certify(
    process: Process, delta: float = 1e-5, run: RunFacts | None = None, title: Title = _UNTITLED
) -> dict[str, Any]:
    """The certificate of a process; `run` describes what was really executed, if anything was."""
    level = check_delta(delta)
    result = account(process)
    finding = result.best(lambda g: g.epsilon(level).upper)
    guarantee = finding.outcome
    assert isinstance(guarantee, Guarantee)
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "library": library(),
        "process": to_json(process),
        "setting": {
            "adjacency": str(guarantee.adjacency),
            "unit_of_privacy": guarantee.unit_of_privacy,
            "delta": level,
        },
        "analysis": analysis_of(finding, result, level),
        "claims": claims_of(guarantee, level),
        "run": None if run is None else run.as_dict(),
        "title": asdict(title),
    }
    content["statement"] = statement(content)
    return {**content, "chain": chain_of(content)}


def analysis_of(finding: AnalysisResult, result: Account, delta: float) -> dict[str, Any]:
    second = result.second_method(delta)
    theorems: Any = finding.theorems
    return {
        "key": finding.key,
        "name": finding.name,
        "kind": str(finding.kind),
        "theorems": [
            {
                "name": theorem.NAME,
                "source": str(theorem.SOURCE),
                "module": f"{theorem.__module__}.{theorem.__name__}",
                "error": _error_of(theorem),
            }
            for theorem in theorems
        ],
        "refused": [f.name for f in result.findings if not f.applies],
        "second_method": {"verdict": str(second.verdict), "method": second.method},
    }


def _error_of(theorem: Any) -> str:
    """What its docstring says under "Error", in one line."""
    text = cleandoc(theorem.__doc__ or "")
    found = re.search(r"^Error: (.*?)(?=^\w[^:\n]*: |\Z)", text, re.MULTILINE | re.DOTALL)
    return " ".join(found.group(1).split()) if found else "not stated"


def claims_of(guarantee: Guarantee, delta: float) -> dict[str, Any]:
    """Epsilon at many deltas, points of the trade-off curve, Renyi divergences; safe ends."""
    of = guarantee

    def epsilon(delta: float) -> Interval:
        return of.loss_known(of.epsilon(delta))

    def error(type_i: float) -> Interval:
        return of.error_known(of.tradeoff(type_i), type_i)

    def renyi(order: float) -> Interval:
        return of.renyi_known(of.renyi(order))

    deltas = sorted({*DELTAS, delta}, reverse=True)
    return {
        "epsilon": [{"delta": d, **_certified(epsilon, d)} for d in deltas],
        "type_ii_error": [{"type_i": a, **_certified(error, a, 1 - a)} for a in TYPE_I_ERRORS],
        "renyi": [{"order": a, **_certified(renyi, a)} for a in ORDERS],
        "advantage": _certified(lambda _: of.loss_known(of.advantage()), 0.0, 1.0),
    }


def _certified(
    view: Callable[[float], Interval], at: float, most: float = math.inf
) -> dict[str, Any]:
    """Both ends; null, since JSON has no infinity, where nothing finite is certified."""
    try:
        found = view(at)
    except NotCertified:
        found = Interval(0.0, most)
    ends = {"lower": found.lower, "upper": found.upper}
    return {name: end if math.isfinite(end) else None for name, end in ends.items()}


def sections_of(content: dict[str, Any]) -> tuple[str, ...]:
    """The sections under the hashes, in their order."""
    return _SECTIONS_1 if content.get("schema") == "tightrope.certificate/1" else SECTIONS


def chain_of(content: dict[str, Any]) -> dict[str, str]:
    """One hash for each section, covering it and all before it."""
    links, previous = {}, ""
    for name in sections_of(content):
        body = json.dumps(content.get(name), sort_keys=True, separators=(",", ":"), allow_nan=False)
        previous = hashlib.sha256(f"{previous}\n{name}\n{body}".encode()).hexdigest()
        links[name] = previous
    return links


def unedited(certificate: dict[str, Any]) -> dict[str, Any]:
    """The certificate, if it has the right form and nothing in it was changed since."""
    wrong = fault_of(certificate)
    if wrong is not None:
        raise InvalidInput(f"This is not a certificate that this version reads: {wrong}.")
    if certificate["chain"] != chain_of(certificate):
        raise InvalidInput(
            "This certificate was changed after it was written: its hash chain is broken. "
            "`tightrope verify` says where; ask for the original."
        )
    return certificate


def titled(certificate: dict[str, Any], title: Title) -> dict[str, Any]:
    """The same certificate about a named model; what was signed before is signed no more.

    One that was edited is refused: its new hash chain would hide that.
    """
    if certificate.get("schema") != SCHEMA:
        raise InvalidInput(f"Only {SCHEMA} has a title; certify the process again.")
    unedited(certificate)
    kept = {name: certificate[name] for name in SECTIONS} | {"title": asdict(title)}
    return {**kept, "chain": chain_of(kept)}


def write(certificate: dict[str, Any], path: str | Path) -> Path:
    """Write atomically: a reader sees the old file or the new one, never half of it."""
    return write_text(path, json.dumps(certificate, indent=2, allow_nan=False) + "\n")


def read(path: str | Path) -> dict[str, Any]:
    """The certificate in a file or run folder; not believed until `verify` has seen it."""
    path = file_of(path)
    return known(read_json(path), path)


def known(data: Any, path: str | Path) -> dict[str, Any]:
    """The data, if they say that they are a certificate of a version that is known here."""
    found = data.get("schema") if isinstance(data, dict) else type(data).__name__
    if not isinstance(found, str) or found not in SCHEMAS:
        raise InvalidInput(
            f"{printable(path)} is not a certificate that this version reads. Its schema is "
            f"{str(found)[:80]!r}; known are {', '.join(SCHEMAS)}. `tightrope certify` writes one; "
            "a newer one needs a newer Tightrope."
        )
    return data  # type: ignore[no-any-return]
