"""Tuning with its cost: the guarantee reported is that of the whole search."""

from tightrope.search.selection import PrivateSelection, Selected
from tightrope.search.trials import PoissonTrials, TruncatedNegativeBinomial

__all__ = ["PrivateSelection", "Selected", "PoissonTrials", "TruncatedNegativeBinomial"]
