"""Adult census income in its LIBSVM form a9a: 32,561 and 16,281 people, 123 binary features."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tightrope.data.folder import Dataset, Split, find_folder, read_text
from tightrope.data.libsvm import parse_libsvm

__all__ = ["load_adult"]

FEATURES = 123


def load_adult(folder: str | Path | None = None) -> Dataset:
    """Features float32 (n, 123), labels int64 (n,): 1 for an income above 50K, else 0."""
    place = find_folder("adult", folder)
    train, test = (_split(read_text(place, name)) for name in ("a9a", "a9a.t"))
    return Dataset("adult", train, test, ("<=50K", ">50K"))


def _split(text: str) -> Split:
    rows = parse_libsvm(text, FEATURES)
    return Split(rows.x, (rows.y > 0).astype(np.int64))
