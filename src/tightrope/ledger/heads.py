"""The last heads that this machine saw, in a file: what a store must still lead to.

One file for each ledger. Writers take turns by a lock on a file beside it, so that none of them
puts an older head over a newer one.
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from pathlib import Path
from typing import final

from tightrope.errors import InvalidInput
from tightrope.ledger.log import START, Head

__all__ = ["Heads"]


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
                f"The ledger was written, but {self._path} was not ({error}), so nobody would "
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
