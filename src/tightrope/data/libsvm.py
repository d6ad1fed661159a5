"""LIBSVM text: one example a line, `label index:value index:value ...`, indices from 1."""

from __future__ import annotations

import numpy as np

from tightrope.data.folder import Split
from tightrope.errors import InvalidInput

__all__ = ["parse_libsvm"]


def parse_libsvm(text: str, features: int) -> Split:
    """Dense float32 rows and int64 labels."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    x = np.zeros((len(lines), features), dtype=np.float32)
    y = np.empty(len(lines), dtype=np.int64)
    for row, (label, *entries) in enumerate(lines):
        y[row] = int(float(label))
        for entry in entries:
            index, value = entry.split(":")
            if not 1 <= int(index) <= features:
                raise InvalidInput(
                    f"Line {row + 1} has feature {index}; features 1 to {features} are expected."
                )
            x[row, int(index) - 1] = float(value)
    return Split(x, y)
