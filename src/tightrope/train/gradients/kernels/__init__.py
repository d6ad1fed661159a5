"""Triton kernels for the places where plain torch would move the data several times.

Each has a plain equivalent in `forms/` or `rules/`; `usable` says which runs. Importing this
package needs no Triton.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

__all__ = ["plain_only", "usable"]

_INSTALLED = importlib.util.find_spec("triton") is not None
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own switch, for tests
_plain_only = [0]


@contextmanager
def plain_only() -> Iterator[None]:
    """No kernel runs inside: what is traced must show every operation."""
    _plain_only[0] += 1
    try:
        yield
    finally:
        _plain_only[0] -= 1


def usable(*values: Tensor) -> bool:
    """Whether the kernels can run on these tensors."""
    return _INSTALLED and not _plain_only[0] and all(v.is_cuda or _INTERPRETED for v in values)
