from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tightrope.numerics.convolution_power import convolution_power


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
def test_power_is_right_to_the_stated_error(count: int) -> None:
    """Against exact rational arithmetic."""
    base = np.random.default_rng(count).random(9)
    exact = [Fraction(1)]
    for _ in range(count):
        longer = [Fraction(0)] * (len(exact) + len(base) - 1)
        for i, a in enumerate(exact):
            for j, b in enumerate(base):
                longer[i + j] += a * Fraction(float(b))
        exact = longer
    found, error = convolution_power(base, count)
    assert len(found) == len(exact)
    for value, truth in zip(found, exact, strict=True):
        assert abs(Fraction(float(value)) / truth - 1) <= Fraction(error)
    assert error < 1e-9
