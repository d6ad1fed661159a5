"""The region through Kullback-Leibler divergences, weaker than that of any Renyi level.

Source: arXiv:2008.06529, (45) and (49); of a curve it needs only the smallest of its levels.
"""

from __future__ import annotations

import numpy as np

from tightrope.guarantee.renyi.kernel import checked_gamma, checked_type_i
from tightrope.guarantee.renyi.regions import boundary
from tightrope.numerics.arrays import Enclosure, elementwise
from tightrope.validate import FloatArray

__all__ = ["type_ii_kullback_leibler"]

_ORDER_ONE = 1e-200  # z so small that the Renyi divergence is Kullback-Leibler's in every digit


@elementwise(checked_gamma, checked_type_i)
def type_ii_kullback_leibler(gamma: FloatArray, type_i: FloatArray) -> Enclosure:
    """The smallest type II error where both divergences are at most gamma."""
    return boundary(np.full_like(gamma, _ORDER_ONE), gamma, type_i)
