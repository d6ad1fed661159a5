"""The log of one data set: entries that are only ever added, each chained to the one before.

chain = SHA-256 of the chain before it and of the entry as canonical JSON. Whoever keeps the last
chain (a head) notices later if anything before it was changed, lost or rolled back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

__all__ = ["LogEntry", "Head", "Sign", "START", "next_entry", "canonical", "is_next"]

# Makes a signature of a head's bytes, and says whether one is genuine (tightrope.evidence).
Sign = Callable[[bytes], str]


@final
class Head(NamedTuple):
    """A place in a log: how many entries there are, and the hash that they chain up to."""

    number: int
    chain: str

    def __str__(self) -> str:
        return f"{self.number}:{self.chain}"

    @property
    def content(self) -> bytes:
        """What is signed."""
        return f"tightrope ledger {self}".encode()


START = Head(0, "")


@final
@dataclass(frozen=True)
class LogEntry:
    """One line of the log as it is stored: content is canonical JSON."""

    head: Head
    content: str
    signature: str | None = None

    @property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.content)
        return body


def canonical(body: dict[str, Any]) -> str:
    """The same text for the same content, from any writer; NaN and infinity are refused."""
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def next_entry(before: Head, body: dict[str, Any], sign: Sign | None = None) -> LogEntry:
    content = canonical(body)
    head = _after(before, content)
    return LogEntry(head, content, None if sign is None else sign(head.content))


def is_next(before: Head, entry: LogEntry) -> bool:
    return entry.head == _after(before, entry.content)


def _after(before: Head, content: str) -> Head:
    return Head(before.number + 1, hashlib.sha256(f"{before}\n{content}".encode()).hexdigest())
