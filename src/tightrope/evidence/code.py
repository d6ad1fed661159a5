"""A fingerprint of the code that wrote a certificate: every source file of this package."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import tightrope

__all__ = ["code_fingerprint", "library"]


_HERE = Path(tightrope.__file__).parent


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
