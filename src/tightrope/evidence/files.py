"""Files of evidence: where a certificate lies, files that are written whole or not at all, and
files of strangers that are opened without waiting for them.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

from tightrope.errors import InvalidInput

__all__ = ["FILE", "file_of", "write_text", "write_bytes", "open_ordinary", "read_most"]

FILE = "certificate.json"


def file_of(path: str | Path) -> Path:
    """The certificate of a run folder, or the file itself."""
    return Path(path) / FILE if Path(path).is_dir() else Path(path)


def open_ordinary(path: str | Path) -> BinaryIO:
    """A file to read. A pipe, a device or a folder is refused: one could wait or read for ever."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidInput("it is not an ordinary file")
    return os.fdopen(descriptor, "rb")


def read_most(path: str | Path, most: int) -> bytes:
    """An ordinary file of at most so many bytes."""
    with open_ordinary(path) as file:
        raw = file.read(most + 1)
    if len(raw) > most:
        raise InvalidInput(f"it is longer than {most:,} bytes")
    return raw


def write_text(path: str | Path, text: str) -> Path:
    """A whole file or none."""
    return write_bytes(path, text.encode("utf-8"))


def write_bytes(path: str | Path, content: bytes) -> Path:
    """A whole file or none; a link in its place is replaced, and what it led to stays as it is."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return target
