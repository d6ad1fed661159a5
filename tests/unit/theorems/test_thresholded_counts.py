"""Counts above a threshold: a slow truth with every outcome listed, and what is refused."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tightrope import Adjacency, account
from tightrope.errors import InvalidInput
from tightrope.evidence.certificate import certify
from tightrope.evidence.check import holds
from tightrope.evidence.verify import verify
from tightrope.process import Sequence, ThresholdedCounts
from tightrope.process.codec import from_json, to_json
from tightrope.theorems.discrete_gaussian import chance_alone

BOTH = (Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE)


def law(count: int, sigma: float, threshold: int, reach: int) -> dict[object, float]:
    """Of what is shown of one category: its noisy count, or None."""
    if count == 0:
        return {None: 1.0}
    noise = np.arange(-reach, reach + 1)
    mass = np.exp(-(noise**2) / (2.0 * sigma**2))
    found: dict[object, float] = {None: 0.0}
    for value, weight in zip(noise + count, mass / mass.sum(), strict=True):
        key = int(value) if value >= threshold else None
        found[key] = found.get(key, 0.0) + float(weight)
    return found


def joint(counts: tuple[int, ...], sigma: float, threshold: int) -> dict[object, float]:
    alone = [law(count, sigma, threshold, 14) for count in counts]
    return {
        keys: math.prod(one[key] for one, key in zip(alone, keys, strict=True))
        for keys in itertools.product(*alone)
    }


def delta_of(first: dict[object, float], second: dict[object, float], epsilon: float) -> float:
    """The smallest delta that these two laws allow, in both orders."""
    outcomes = first.keys() | second.keys()
    ahead = (first.get(o, 0.0) - math.exp(epsilon) * second.get(o, 0.0) for o in outcomes)
    behind = (second.get(o, 0.0) - math.exp(epsilon) * first.get(o, 0.0) for o in outcomes)
    return max(sum(max(a, 0.0) for a in ahead), sum(max(b, 0.0) for b in behind))


@pytest.mark.parametrize("relation", BOTH)
@pytest.mark.parametrize("threshold", [2, 4, 9])
def test_no_two_neighbours_lose_more_than_is_accounted(relation: Adjacency, threshold: int) -> None:
    sigma = 2.0
    found = account(ThresholdedCounts(sigma, threshold, relation)).guarantee(1e-3)
    small = [(0, 0), (1, 0), (2, 0), (3, 0), (0, 1), (1, 1), (2, 1), (3, 2), (6, 5)]
    pairs = [(a, b) for a in small for b in small if neighbours(a, b, relation)]
    assert pairs
    for epsilon in (0.0, 0.2, 0.7, 1.5):
        allowed = found.delta(epsilon).upper
        for a, b in pairs:
            truth = delta_of(joint(a, sigma, threshold), joint(b, sigma, threshold), epsilon)
            assert truth <= allowed + 1e-12


def neighbours(a: tuple[int, ...], b: tuple[int, ...], relation: Adjacency) -> bool:
    moves = sorted(x - y for x, y in zip(a, b, strict=True))
    if relation is Adjacency.REPLACE_ONE:
        return moves == [-1, 1]
    return moves in ([-1, 0], [0, 1])


def test_the_chance_of_one_record_is_never_understated() -> None:
    for sigma, threshold in ((1.0, 3), (2.0, 9), (30.0, 150)):
        noise = np.arange(-40 * int(sigma) - 10, 40 * int(sigma) + 11)
        mass = np.exp(-(noise**2) / (2.0 * sigma**2))
        truth = mass[noise + 1 >= threshold].sum() / mass.sum()
        assert truth <= chance_alone(sigma, threshold)
    assert chance_alone(30.0, 150) < 1.2 * truth  # the bound is close where it is used


def test_it_composes_and_its_certificate_verifies() -> None:
    whole = Sequence((ThresholdedCounts(20.0, 110), ThresholdedCounts(30.0, 170)))
    assert from_json(to_json(whole)) == whole
    one = account(whole.parts[0]).epsilon(1e-5).upper
    assert one < account(whole).epsilon(1e-5).upper < 2.0 * one
    certificate = certify(whole, 1e-5)
    assert "rests on a declared" not in certificate["statement"]
    assert holds(verify(certificate))


def test_no_noise_is_no_privacy_and_bad_numbers_are_refused() -> None:
    assert math.isinf(account(ThresholdedCounts(0.0, 100)).epsilon(1e-5).upper)
    with pytest.raises(InvalidInput, match="threshold"):
        ThresholdedCounts(1.0, 1)
