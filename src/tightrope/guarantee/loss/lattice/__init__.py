"""The lattice method: what other modules ask of it."""

from __future__ import annotations

from tightrope.guarantee.loss.lattice.answers import epsilon, law_at, log_delta
from tightrope.guarantee.loss.lattice.law import LatticeLaw, OneSide, build, one_side

__all__ = ["LatticeLaw", "OneSide", "build", "epsilon", "law_at", "log_delta", "one_side"]
