"""The log of one data set: entries that are only ever added, each chained to the one before.

chain = SHA-256 of the chain before it and of the entry as canonical JSON. Whoever keeps the last
chain (a head) notices later if anything before it was changed, lost or rolled back.

`Heads` keeps the last heads that this machine saw in a file: what a store must still lead to.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from tightrope.errors import InvalidInput

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


@final
class Heads:
    """Of every data set the last head. path: None keeps nothing."""

    def __init__(self, path: str | Path | None) -> None:
        self._path = None if path is None else Path(path)
        if self._path is not None and not self._path.parent.is_dir():
            raise InvalidInput(f"There is no folder {self._path.parent} to keep the heads in.")
        if self._path is not None and self._path.exists() and not self._path.is_file():
            raise InvalidInput(f"{self._path} is not an ordinary file. Give the name of one.")
        self.read()

    def read(self) -> dict[str, Head]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            stored = json.loads(self._path.read_text())
            return {str(name): Head(int(n), str(chain)) for name, (n, chain) in stored.items()}
        except (ValueError, TypeError, AttributeError):
            raise InvalidInput(
                f"{self._path} is not a file of heads. Give another file, or a new name."
            ) from None

    def keep(self, dataset: str, head: Head) -> None:
        """Remember a head, unless a later one is known."""
        if self._path is None or self.read().get(dataset) == head:
            return
        try:
            self._write(self._path, dataset, head)
        except OSError as error:
            raise InvalidInput(
                f"The ledger was written, but {self._path} was not ({error}), so no one would "
                "notice if the ledger were set back to before this entry. Make that file writable."
            ) from error

    def _write(self, path: Path, dataset: str, head: Head) -> None:
        import fcntl  # not on every system

        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        with os.fdopen(os.open(path.with_name(f"{path.name}.lock"), flags, 0o666), "r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self.read()
            if known.get(dataset, START).number < head.number:
                known[dataset] = head
            # A name that no other account can foresee: what waits there may be a link elsewhere.
            fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
            handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                with os.fdopen(handle, "w") as file:
                    json.dump({name: list(head) for name, head in known.items()}, file)
                    file.flush()
                    os.fsync(file.fileno())
                if path.exists():
                    os.chmod(fresh, stat.S_IMODE(path.stat().st_mode))
                os.replace(fresh, path)
            except BaseException:
                fresh.unlink(missing_ok=True)
                raise
