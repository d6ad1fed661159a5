"""A run's privacy claims in one file that others can check.

Schema `tightrope.certificate/1` (docs/certificate.schema.json). The sections are chained by
SHA-256, each hash covering its section and the one before, so an edit is found and located. A hash
alone proves nothing about the claims: `verify` recomputes them from the process.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

from tightrope.accounting import Account, Finding, account
from tightrope.errors import InvalidInput
from tightrope.guarantee.base import Guarantee
from tightrope.numerics.interval import Interval
from tightrope.process.codec import to_json
from tightrope.validate import check_delta

__all__ = ["SCHEMA", "SECTIONS", "certify", "chain_of", "read", "write"]

SCHEMA = "tightrope.certificate/1"
UNIT = "one record"
SECTIONS = ("schema", "library", "process", "setting", "analysis", "claims", "run")

DELTAS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10, 1e-12)
TYPE_I_ERRORS = (1e-4, 1e-3, 1e-2, 0.05, 0.1, 0.25, 0.5)
ORDERS = (1.5, 2.0, 3.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def certify(process: Any, delta: float = 1e-5, run: dict[str, Any] | None = None) -> dict[str, Any]:
    """The certificate of a process; `run` describes what was really executed, if anything was."""
    level = check_delta(delta)
    result = account(process)
    finding = result.best(lambda g: g.epsilon(level).upper)
    guarantee = finding.outcome
    assert isinstance(guarantee, Guarantee)
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "library": {"name": "tightrope", "version": _version()},
        "process": to_json(process),
        "setting": {
            "adjacency": str(guarantee.adjacency),
            "unit_of_privacy": UNIT,
            "delta": level,
        },
        "analysis": analysis_of(finding, result),
        "claims": claims_of(guarantee, level),
        "run": run,
    }
    return {**content, "chain": chain_of(content)}


def _version() -> str:
    from importlib.metadata import version

    return version("tightrope")


def analysis_of(finding: Finding, result: Account) -> dict[str, Any]:
    return {
        "key": finding.key,
        "name": finding.name,
        "kind": str(finding.kind),
        "sources": [str(source) for source in finding.sources],
        "refused": [f.name for f in result.findings if not f.applies],
    }


def claims_of(guarantee: Guarantee, delta: float) -> dict[str, Any]:
    """Epsilon at many deltas, points of the trade-off curve, Renyi divergences; safe ends."""
    deltas = sorted({*DELTAS, delta}, reverse=True)
    return {
        "epsilon": [_claim("delta", d, guarantee.epsilon(d)) for d in deltas],
        "type_ii_error": [_claim("type_i", a, guarantee.tradeoff(a)) for a in TYPE_I_ERRORS],
        "renyi": [_claim("order", a, guarantee.renyi(a)) for a in ORDERS],
        "advantage": _ends(guarantee.advantage()),
    }


def _claim(name: str, at: float, value: Interval) -> dict[str, Any]:
    return {name: at, **_ends(value)}


def _ends(value: Interval) -> dict[str, Any]:
    return {"lower": _finite(value.lower), "upper": _finite(value.upper)}


def _finite(value: float) -> float | None:
    """JSON has no infinity: null says that nothing finite is claimed."""
    return value if math.isfinite(value) else None


def chain_of(content: dict[str, Any]) -> dict[str, str]:
    """One hash for each section, covering it and all before it."""
    links, previous = {}, ""
    for name in SECTIONS:
        body = json.dumps(content.get(name), sort_keys=True, separators=(",", ":"), allow_nan=False)
        previous = hashlib.sha256(f"{previous}\n{name}\n{body}".encode()).hexdigest()
        links[name] = previous
    return links


def write(certificate: dict[str, Any], path: str | Path) -> Path:
    """Write atomically: a reader sees the old file or the new one, never half of it."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(certificate, indent=2, allow_nan=False) + "\n"
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=".part")
    with os.fdopen(handle, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(name, target)
    return target


def read(path: str | Path) -> dict[str, Any]:
    """The certificate in a file; its claims are not believed until `verify` has seen them."""
    try:
        data = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} is not a readable certificate: {error}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise InvalidInput(f"{path} is not a {SCHEMA} certificate; its schema is {found!r}.")
    return data
