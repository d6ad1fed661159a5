"""What a fit tells about what it cannot know by itself: others on the same people, transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tightrope.convex.exact import Features
from tightrope.estimators.ledger import LEDGER
from tightrope.estimators.tuning import warn_if_searching
from tightrope.estimators.watch import (
    original_rows,
    warn_if_seeded,
    warn_of_learning_from_predictions,
    warn_of_longest_row,
    warn_of_transformers,
    warn_of_workers,
)
from tightrope.guarantee.base import Guarantee
from tightrope.validate import warn_if_it_promises_nothing

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

__all__ = ["tell", "tell_of_prediction"]


def tell_of_prediction() -> None:
    """Warn where a fit of something else asks; a search of ours adds noise to its scores."""
    if not LEDGER.quiet:
        warn_of_learning_from_predictions()


def tell(fitted: BaseEstimator, features: Features, guarantee: Guarantee, records: int) -> None:
    """Warn once for each fit, and not at all where a search speaks for all of its own.

    records: how many there are, which is public.
    """
    if LEDGER.quiet:  # the number of trials of a search is secret: so is that of its warnings
        return
    if isinstance(getattr(fitted, "data_norm", None), float):
        warn_of_longest_row(features, fitted.data_norm)
    warn_of_transformers()
    warn_of_workers()
    warn_if_searching(guarantee, fitted.delta_)
    epsilon = guarantee.epsilon(fitted.delta_).upper
    warn_if_it_promises_nothing(epsilon, fitted.delta_, records)
    if warn_if_seeded(fitted.random_state) or fitted.private_:
        LEDGER.enter(original_rows(features), guarantee, fitted.delta_)
