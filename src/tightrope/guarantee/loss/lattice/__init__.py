"""The lattice method: what other modules ask of it."""

from __future__ import annotations

from tightrope.guarantee.loss.lattice.inverse import epsilon
from tightrope.guarantee.loss.lattice.law import (
    Explanation,
    LatticeLaw,
    OneSide,
    build,
    explain,
    law_at,
    log_delta,
    one_side,
)

__all__ = [
    "Explanation",
    "LatticeLaw",
    "OneSide",
    "build",
    "epsilon",
    "explain",
    "law_at",
    "log_delta",
    "one_side",
]
