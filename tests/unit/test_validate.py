from __future__ import annotations

import math

import numpy as np
import pytest

from tightrope import validate
from tightrope.errors import InvalidInput

BAD = [math.nan, math.inf, -math.inf, -1.0, "1", True, None, 1j, [], np.array([]), np.array(["a"])]


@pytest.mark.parametrize("bad", BAD, ids=repr)
@pytest.mark.parametrize(
    "check",
    [validate.check_epsilon, validate.check_delta, validate.check_order],
    ids=["epsilon", "delta", "order"],
)
def test_bad_numbers_are_refused_with_words(check, bad) -> None:
    with pytest.raises(InvalidInput, match=r"must|empty"):
        check(bad)


@pytest.mark.parametrize("good", [1, 1.0, np.float32(1), np.int64(1), np.array(1.0)])
def test_integers_and_numpy_scalars_are_floats(good) -> None:
    assert validate.check_delta(good) == 1.0
    assert isinstance(validate.check_delta(good), float)


def test_arrays_keep_their_shape() -> None:
    assert validate.check_epsilon([[1, 2], [3, 4]]).shape == (2, 2)


@pytest.mark.parametrize("bad", [1.5, -1, math.nan, [1, 2], "3"])
def test_counts_are_whole(bad) -> None:
    with pytest.raises(InvalidInput):
        validate.check_count(bad, "steps")


def test_a_whole_float_is_a_count() -> None:
    assert validate.check_count(60.0, "steps") == 60


def test_orders_above_one_only() -> None:
    with pytest.raises(InvalidInput, match="order"):
        validate.check_order(1.0)
    assert validate.check_order(1 + 1e-9) > 1
