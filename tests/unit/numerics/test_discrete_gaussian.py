"""The sampler of the discrete Gaussian: its law, and that no rounding enters it."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from mpmath import mp, mpf
from scipy import stats

from tightrope.errors import InvalidInput
from tightrope.numerics import discrete_gaussian as module
from tightrope.numerics.discrete_gaussian import LARGEST_SCALE, DiscreteGaussian, below, exp_bounds

FALSE_ALARM = 1e-6


@pytest.fixture(autouse=True)
def many_digits():
    with mp.workdps(120):
        yield


def source(seed):
    """A stream of words that can be repeated."""
    generator = np.random.Generator(np.random.PCG64DXSM(seed))
    return lambda count: generator.integers(0, 2**64 - 1, count, dtype=np.uint64, endpoint=True)


def scripted(*values):
    """A stream that gives the words of a script, and fails when it is read further."""
    left = [int(value) for value in values]

    def words(count):
        assert len(left) >= count, "the script is too short"
        return np.array([left.pop(0) for _ in range(count)], dtype=np.uint64)

    return words


def pmf(k, scale):
    reach = 20 * scale + 20
    weights = np.exp(-0.5 * (np.arange(-reach, reach + 1) / scale) ** 2)
    return np.exp(-0.5 * (k / scale) ** 2) / weights.sum()


# ---- bounds in whole numbers ------------------------------------------------------------------
@pytest.mark.parametrize("bits", [64, 128, 256])
def test_exp_bounds_hold_and_are_narrow(bits):
    generator = np.random.default_rng(1)
    fractions = [(int(n), int(d)) for n, d in generator.integers(1, 2**40, (40, 2))]
    for n, d in [*fractions, (1, 2**80), (2**80, 2**79 + 1), (700, 1), (10**6, 7)]:
        low, high = exp_bounds(n, d, bits)
        truth = mpmath.exp(-mpf(n) / d) * mpf(2) ** bits
        assert low <= truth <= high
        assert high - low <= 2
    assert exp_bounds(0, 5, bits) == (2**bits, 2**bits)


def bits_of(probability, shift, count):
    """The first words of a number that is `shift` units of 2^-256 above a probability."""
    value = int(mpmath.floor(probability * mpf(2) ** 256)) + shift
    return [(value >> (192 - 64 * i)) % 2**64 for i in range(count)]


@pytest.mark.parametrize("shift", [-(2**100), -3, 3, 2**100])
@pytest.mark.parametrize("fraction", [(1, 3), (7, 5), (12345, 2**30), (44, 1)])
def test_a_coin_is_decided_by_as_many_bits_as_it_takes(fraction, shift):
    n, d = fraction
    first, *rest = bits_of(mpmath.exp(-mpf(n) / d), shift, 4)
    more = iter(rest)
    said = below(first, lambda bits: exp_bounds(n, d, bits), lambda: next(more))
    assert said is (shift < 0)


# ---- step by step, next to the limits -----------------------------------------------------------
@pytest.mark.parametrize("scale", [1, 5, 8, 100, 2**24 + 3, LARGEST_SCALE])
def test_limits_of_the_blocks_enclose_the_truth(scale):
    law, width = DiscreteGaussian(scale), max(1, scale // 8)
    weights = [mpmath.exp(-((mpf(j) * width / scale) ** 2) / 2) for j in range(400)]
    total = mpmath.fsum(weights)
    for j, (low, high) in enumerate(zip(law._sure[::-1], law._possible[::-1], strict=True), 1):
        truth = mpmath.fsum(weights[j:]) / total * mpf(2) ** 64
        assert int(low) <= truth <= int(high)
        assert int(high) - int(low) <= 1
    assert law._sure[0] == 0 and law._possible[0] == 1


@pytest.mark.parametrize("shift", [-(2**90), -1000, 1000, 2**90])
@pytest.mark.parametrize("j", [1, 3, 20])
def test_a_block_next_to_its_limit_is_decided_exactly(j, shift):
    scale = 1000
    law = DiscreteGaussian(scale)
    weights = [mpmath.exp(-((mpf(i) * 125 / scale) ** 2) / 2) for i in range(400)]
    words = bits_of(mpmath.fsum(weights[j:]) / mpmath.fsum(weights), shift, 4)
    rest = iter(words[1:])
    found = law._blocks(np.array(words[:1], dtype=np.uint64), lambda: next(rest))
    assert found.tolist() == [j if shift < 0 else j - 1]


def test_the_far_tail_reads_more_bits():
    law = DiscreteGaussian(1000)
    rest = iter([2**63, 0])  # U = 2^-65: far out, and certain after 128 bits
    (block,) = law._blocks(np.zeros(1, dtype=np.uint64), lambda: next(rest)).tolist()
    weights = [mpmath.exp(-((mpf(i) / 8) ** 2) / 2) for i in range(400)]
    total = mpmath.fsum(weights)
    assert mpmath.fsum(weights[block:]) / total > mpf(2) ** -65
    assert mpmath.fsum(weights[block + 1 :]) / total < mpf(2) ** -65
    assert next(rest) == 0  # one more word was enough


@pytest.mark.parametrize("distance", [0, 1, -1, 2**20, -(2**20), 2**30, -(2**30)])
@pytest.mark.parametrize("block, place", [(0, 1), (0, 124), (7, 60), (40, 124)])
def test_keeping_is_decided_as_the_exact_probability_says(block, place, distance):
    """Words around the limit: in and out of the strip in which float64 is not trusted."""
    law = DiscreteGaussian(1000)
    chance = mpmath.exp(-mpf(place) * (2 * block * 125 + place) / (2 * mpf(1000) ** 2))
    first, second, *_ = bits_of(chance, 0, 4)
    word = first + distance
    for rest, tie in ((second + 1, False), (second - 1, True)):  # decides where distance is 0
        found = law._kept(
            np.array([block]),
            np.array([place]),
            np.array([word], dtype=np.uint64),
            iter([rest]).__next__,
        )
        assert found.tolist() == [tie if distance == 0 else distance < 0]


def test_the_margin_covers_the_error_of_the_series():
    x = np.concatenate([np.linspace(0, 2, 400), np.geomspace(1e-12, 2, 100)])
    with mp.workdps(40):
        errors = [abs(mpf(float(v)) - mpmath.exp(-mpf(float(t)))) for v, t in
                  zip(module._exp_minus(x), x, strict=True)]  # fmt: skip
    assert max(errors) < mpf(2) ** -44 < module._MARGIN / 8


def test_places_that_would_be_uneven_are_drawn_again():
    law = DiscreteGaussian(56)  # width 7, and 7 does not divide 2^64
    bad = 2**64 - 1
    assert bad > law._largest_place
    # block 5 of 10, bad place, kept, positive; then the same with a good place
    words = scripted(2**62, bad, 0, 0, *[2**62] * 8, *[14] * 8, *[0] * 8, 0)
    assert len(law._candidates(1, words)) == 0
    assert len(law._candidates(8, words)) == 8


def test_minus_zero_is_dropped_and_nothing_else():
    law = DiscreteGaussian(1)
    nothing = 2**64 - 1  # above every limit: block 0
    signs = np.unpackbits(np.array([0b01010101], dtype=np.uint8)).tolist()
    words = scripted(*[nothing] * 8, *[0] * 8, *[0] * 8, 0b01010101)
    assert law._candidates(8, words).tolist() == [0] * signs.count(0)


# ---- the law as a whole ------------------------------------------------------------------------
@pytest.mark.parametrize("scale", [1, 2, 3, 8, 13, 50])
def test_the_law_is_the_discrete_gaussian(scale):
    count = 200_000
    draws = DiscreteGaussian(scale).draw(count, source(scale))
    assert draws.dtype == np.int64 and len(draws) == count
    ends = np.arange(-3 * scale, 3 * scale + 1)
    expected = pmf(ends, scale) * count
    rest = count - expected.sum()
    seen = np.array([(draws == k).sum() for k in ends])
    statistic = ((seen - expected) ** 2 / expected).sum()
    statistic += (count - seen.sum() - rest) ** 2 / rest
    assert stats.chi2.sf(statistic, len(ends)) > FALSE_ALARM


@pytest.mark.parametrize("scale", [2**20, 3 * 2**24 + 1, LARGEST_SCALE])
def test_moments_and_tails_at_large_scales(scale):
    draws = DiscreteGaussian(scale).draw(400_000, source(7)) / scale
    assert stats.kstest(draws, "norm").pvalue > FALSE_ALARM
    square, count = (draws**2).sum(), draws.size
    assert 2 * min(stats.chi2.sf(square, count), stats.chi2.cdf(square, count)) > FALSE_ALARM
    far = int((abs(draws) > 4).sum())
    assert stats.binomtest(far, count, 2 * stats.norm.sf(4)).pvalue > FALSE_ALARM
    kurtosis = (draws**4).mean()
    assert abs(kurtosis - 3) / np.sqrt(96 / count) < 4.9


def test_last_bits_are_uniform_at_large_scales():
    draws = DiscreteGaussian(2**24).draw(200_000, source(3))
    seen = np.bincount(draws & 15, minlength=16)
    assert stats.chisquare(seen).pvalue > FALSE_ALARM


def test_nothing_asked_nothing_drawn():
    assert DiscreteGaussian(4).draw(0, scripted()).tolist() == []


@pytest.mark.parametrize("scale", [0, -1, 2.0, True, LARGEST_SCALE + 1])
def test_scales_that_are_not_whole_or_too_large_are_refused(scale):
    with pytest.raises(InvalidInput, match="whole number from 1"):
        DiscreteGaussian(scale)
