"""Signatures of a ledger's log: each new head, and with it everything before, by Ed25519."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tightrope.errors import LedgerDamaged
from tightrope.evidence.signature import Trust, signature_line, signature_of
from tightrope.ledger.log import LogEntry

__all__ = ["head_signer", "check_signatures"]


def head_signer(key: str | Path) -> Callable[[bytes], str]:
    """For `open_ledger(url, sign=head_signer("ann.key"))`."""
    return lambda content: json.dumps(signature_of(_signed(content), key), sort_keys=True)


def check_signatures(entries: Iterable[LogEntry], trust: Trust) -> None:
    """Refuse a log with an entry that nobody signed whom the reader trusts."""
    for entry in entries:
        found = _read(entry.signature)
        check, _ = signature_line({**_signed(entry.head.content), "signatures": found}, trust=trust)
        if not check.holds:
            raise LedgerDamaged(f"Entry {entry.head.number} of the log: signature: {check.said}.")


def _signed(content: bytes) -> dict[str, Any]:
    return {"head": content.decode()}


def _read(text: str | None) -> list[dict[str, str]]:
    """None where there is none; what cannot be read fits nothing."""
    if text is None:
        return []
    try:
        found = json.loads(text)
        return [{name: str(found[name]) for name in ("algorithm", "key", "signature")}]
    except (ValueError, TypeError, LookupError):
        return [{"algorithm": "", "key": "", "signature": ""}]
