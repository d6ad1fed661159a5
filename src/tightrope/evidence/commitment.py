"""The data's fingerprint in a certificate, without giving the data away.

A plain hash of private data is a function of private data that no epsilon covers: whoever guesses
the rows can confirm the guess. Published instead is HMAC-SHA256 of the hash under a fresh random
key of 256 bits. Without the key it looks like random bits (HMAC is a pseudo-random function), so it
says nothing about any row; with the key its holder can show later on which data the run was made,
and no other data fit (SHA-256 is collision resistant). The key stays with the private data.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path
from typing import Any

import numpy as np

from tightrope.errors import InvalidInput
from tightrope.evidence.files import read_most, write_text

KEY_BYTES = 32


def new_key() -> str:
    """256 random bits, as 64 hexadecimal digits. One for each run; never publish it."""
    return secrets.token_hex(KEY_BYTES)


def commit(fingerprint: str, key: str) -> str:
    """What may be published about a fingerprint of private data."""
    code = hmac.new(_bytes(key), fingerprint.encode(), hashlib.sha256)
    return f"hmac-sha256:{code.hexdigest()}"


def opens(published: str, key: str, fingerprint: str) -> bool:
    """Is this the data (by its fingerprint) that the commitment was made to?"""
    return hmac.compare_digest(published, commit(fingerprint, key))


def _bytes(key: str) -> bytes:
    try:
        raw = bytes.fromhex(key)
    except (TypeError, ValueError):
        raw = b""
    if len(raw) != KEY_BYTES:
        raise InvalidInput(
            "A key for data is 64 hexadecimal digits (256 random bits); make one with "
            "tightrope.evidence.commitment.new_key()."
        )
    return raw


def write_key(key: str, path: str | Path) -> Path:
    """Store a key where only its owner may read it."""
    _bytes(key)
    return write_text(path, key + "\n")


def read_key(path: str | Path) -> str:
    try:
        key = read_most(path, 1000).decode("utf-8").strip()
    except (InvalidInput, OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not a readable key: {error}") from None
    _bytes(key)
    return key


def fingerprint_of_arrays(*parts: Any) -> str:
    """SHA-256 over type, shape and every value of arrays (dense, sparse or lists)."""
    digest = hashlib.sha256()
    for part in parts:
        pieces = [part]
        if hasattr(part, "tocsr"):  # a sparse matrix: by rows, entries in order
            rows = part.tocsr(copy=True)
            rows.sum_duplicates()
            pieces = [np.array(rows.shape), rows.indptr, rows.indices, rows.data]
        for piece in pieces:
            array = np.asarray(piece)
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            if array.dtype.kind in "biufcSU":
                digest.update(np.ascontiguousarray(array).tobytes())
            else:  # values of no fixed size, such as text, one by one
                texts = map(repr, array.ravel().tolist())
                digest.update(b"".join(f"{len(text)} {text}".encode() for text in texts))
    return digest.hexdigest()
