"""Triton kernels for the places where plain torch would move the data several times.

Each has a plain equivalent in `forms/` or `rules/`; `usable` says which runs. Importing this
package needs no Triton.
"""

from __future__ import annotations

import importlib.util
import os

from torch import Tensor

__all__ = ["usable"]

_INSTALLED = importlib.util.find_spec("triton") is not None
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own switch, for tests


def usable(*values: Tensor) -> bool:
    """Whether the kernels can run on these tensors."""
    return _INSTALLED and all(v.is_cuda or _INTERPRETED for v in values)
