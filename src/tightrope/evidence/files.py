"""Files of evidence: where a certificate lies, and files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["FILE", "file_of", "write_text"]

FILE = "certificate.json"


def file_of(path: str | Path) -> Path:
    """The certificate of a run folder, or the file itself."""
    return Path(path) / FILE if Path(path).is_dir() else Path(path)


def write_text(path: str | Path, text: str) -> Path:
    """A whole file or none."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return target
