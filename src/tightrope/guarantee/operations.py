"""What the methods of a guarantee ask for: nothing below imports what is built on it."""

from __future__ import annotations

from tightrope.guarantee.base import Guarantee, Operations
from tightrope.guarantee.compose import compose
from tightrope.guarantee.from_profile import gaussian_mu, tradeoff
from tightrope.guarantee.kinds.group import group, replaced

__all__: list[str] = []

Guarantee.operations = Operations(compose, group, replaced, tradeoff, gaussian_mu)
