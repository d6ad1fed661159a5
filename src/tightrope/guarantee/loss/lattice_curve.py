"""Upper bounds on a whole profile at once: a few lattice laws, each of them valid everywhere.

Error: none to the unsafe side. Next to an anchor a law is within 1e-4 of delta, further away or
where rare large losses decide it is looser.
"""

from __future__ import annotations

import math

import numpy as np

from tightrope.guarantee.loss.abstract import Components
from tightrope.guarantee.loss.lattice_law import one_side
from tightrope.guarantee.loss.lattice_plan import guesses, plain_plan
from tightrope.validate import FloatArray

__all__ = ["delta_upper"]

_ANCHORS = 12
_WIDTH = 1e-4


def delta_upper(components: Components, epsilons: FloatArray) -> FloatArray:
    """Upper bounds on delta at each of the epsilons >= 0."""
    highest = math.fsum(count * pair.support[1] for pair, count in components)
    last = min(float(epsilons.max()), 0.95 * highest)
    best = np.zeros(len(epsilons))
    for anchor in np.linspace(0.0, last, _ANCHORS):
        guess = min(guesses(components, float(anchor))[0], -1e-3)
        law = one_side(plain_plan(components, float(anchor), guess, _WIDTH), "upper")
        best = np.minimum(best, [law.log_upper(float(epsilon)) for epsilon in epsilons])
    return np.minimum(np.exp(best) * (1.0 + 1e-14), 1.0)
