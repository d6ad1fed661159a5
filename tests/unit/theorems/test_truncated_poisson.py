"""Poisson batches cut at a largest size: golden values, brute force on few records, refusals."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import combinations, product
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import binom

from tightrope import Adjacency, FullBatch, NoisySGD, PoissonSampling, Validity, account
from tightrope.errors import ContradictoryMethods, InvalidInput
from tightrope.evidence.certificate import certify
from tightrope.evidence.check import holds
from tightrope.evidence.verify import verify
from tightrope.guarantee.check import SecondVerdict, confirm_epsilon
from tightrope.guarantee.loss import contour, lattice
from tightrope.guarantee.loss.pairs import PublicMixturePair, SampledGaussianPair
from tightrope.guarantee.loss.renyi import renyi_by_cells
from tightrope.numerics.binomial_tail import binomial_tail
from tightrope.numerics.interval import Interval
from tightrope.process import TruncatedPoissonSampling
from tightrope.theorems.sampling import LossGuarantee, _cut_attained, _half_noise, cut

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "mechanisms.json").read_text())
CASES = [case for case in GOLDEN if case["name"] == "truncated_poisson"]


def run(inputs: dict[str, Any]) -> NoisySGD:
    sampling = TruncatedPoissonSampling(inputs["rate"], inputs["largest_batch"], inputs["records"])
    return NoisySGD(sampling, inputs["noise_multiplier"], inputs["steps"])


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"B{c['inputs']['largest_batch']}")
def test_golden_enclosures_hold_the_bound_and_its_attained_end(case: dict[str, Any]) -> None:
    found = account(run(case["inputs"])).epsilon(case["inputs"]["delta"])
    assert case["lower"] * (1 - 1e-9) <= found.upper <= case["upper"] * (1 + 1e-9)
    assert found.lower == pytest.approx(case["truth_at_least"], rel=1e-6)


@pytest.mark.parametrize(
    ("n", "q", "k"), [(10, 0.3, 4), (9999, 0.02, 220), (49999, 0.01, 300), (10**6, 1e-3, 1400)]
)
def test_binomial_tails_agree_with_the_incomplete_beta_function(n: int, q: float, k: int) -> None:
    with mpmath.workdps(40):
        truth = mpmath.betainc(k, n - k + 1, 0, mpmath.mpf(q), regularized=True)
        assert abs(mpmath.mpf(str(binomial_tail(n, q, k))) / truth - 1) < 1e-24
    assert binomial_tail(n, q, 0) == 1 and binomial_tail(n, q, n + 1) == 0


def kept_batches(n: int, q: float, most: int, size: int) -> dict[tuple[int, ...], float]:
    """The chance of each kept batch of `size` records, all subsets enumerated."""
    found: dict[tuple[int, ...], float] = {}
    for drawn in product((0, 1), repeat=size):
        members = tuple(i for i in range(size) if drawn[i])
        chance = q ** len(members) * (1 - q) ** (size - len(members))
        subsets = list(combinations(members, most)) if len(members) > most else [members]
        for subset in subsets:
            found[subset] = found.get(subset, 0.0) + chance / len(subsets)
    return found


def density(values: tuple[float, ...], q: float, most: int, sigma: float, x: Any) -> Any:
    total = np.zeros_like(x)
    for batch, chance in kept_batches(len(values), q, most, len(values)).items():
        centre = sum(values[i] for i in batch)
        total += chance * np.exp(-0.5 * ((x - centre) / sigma) ** 2)
    return total / (sigma * math.sqrt(2 * math.pi))


IN_ITS_PLACE: dict[Adjacency, tuple[float, ...]] = {
    Adjacency.ADD_OR_REMOVE: (),
    Adjacency.REPLACE_ONE: (-1.0,),
    Adjacency.ZERO_OUT: (0.0,),
}


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize(
    ("q", "most", "sigma"),
    [(0.5, 2, 1.0), (0.3, 1, 0.7), (0.8, 3, 2.0), (1.0, 2, 1.0), (1.0, 1, 0.7)],
)
def test_no_small_data_set_loses_more(
    adjacency: Adjacency, q: float, most: int, sigma: float
) -> None:
    x = np.linspace(-14.0 - 4 * sigma, 14.0 + 4 * sigma, 80_001)
    others, largest = (-1.0, 1.0, -1.0, -1.0), 5
    sampling = TruncatedPoissonSampling(q, most, largest)
    bound = account(NoisySGD(sampling, sigma, 1, adjacency))
    most_at = {eps: bound.delta(eps).upper for eps in (0.0, 0.3, 1.0, 2.0)}
    for rest in {others, (0.0,) * 4, (-1.0,) * 4, (1.0, 1.0, -1.0, -1.0)}:
        with_it = density((*rest, 1.0), q, most, sigma, x)
        without = density((*rest, *IN_ITS_PLACE[adjacency]), q, most, sigma, x)
        for eps, promised in most_at.items():
            for p, other in ((with_it, without), (without, with_it)):
                truth = float(np.sum(np.maximum(p - math.exp(eps) * other, 0.0)) * (x[1] - x[0]))
                assert truth <= promised + 1e-8  # of the sum; at rate 1 the bound is attained
    plain = tuple(density(v, q, most, sigma, x) for v in ((0.0,) * 4 + (1.0,), (0.0,) * 4))
    if adjacency is Adjacency.ADD_OR_REMOVE:
        truth = float(np.sum(np.maximum(plain[0] - math.e * plain[1], 0.0)) * (x[1] - x[0]))
        assert bound.delta(1.0).lower == pytest.approx(truth, rel=1e-5)


def test_the_rate_is_the_chance_of_being_kept() -> None:
    sampling = TruncatedPoissonSampling(0.3, 4, 10)
    mean = sum(min(k, 4) * binom.pmf(k, 10, 0.3) for k in range(11))
    assert sampling.rate == pytest.approx(mean / 10, rel=1e-12)
    assert TruncatedPoissonSampling(1.0, 4, 10).rate == 0.4
    chances = kept_batches(5, 0.6, 2, 5)
    kept = sum(chance for batch, chance in chances.items() if 0 in batch)
    assert TruncatedPoissonSampling(0.6, 2, 5).rate == pytest.approx(kept, rel=1e-12)


@pytest.mark.parametrize(
    ("n", "q", "most"), [(10, 0.3, 4), (30, 0.2, 9), (25, 0.7, 3), (7, 0.9, 6)]
)
def test_the_chance_of_being_kept_is_rounded_to_the_safe_side(n: int, q: float, most: int) -> None:
    """p from above and the rate of the attained end from below, against fractions."""
    rate = Fraction(q)

    def tail(records: int, least: int) -> Fraction:
        chances = (math.comb(records, k) * rate**k * (1 - rate) ** (records - k)
                   for k in range(least, records + 1))  # fmt: skip
        return sum(chances, Fraction(0))

    tau = tail(n - 1, most)
    exact = tail(n, most + 1) * most / (n * tau)
    found, kept = cut(q, most, n)
    assert found == pytest.approx(float(tau), rel=1e-15)
    assert exact <= Fraction(kept) <= exact * (1 + Fraction(1e-14))
    whole = (1 - tau) * rate + tau * exact
    run = NoisySGD(TruncatedPoissonSampling(q, most, n), 1.0, 1)
    for ((pair, _),) in _cut_attained(run):
        assert whole * (1 - Fraction(1e-13)) <= Fraction(pair.rate) <= whole


def test_a_cut_too_rare_for_a_double_is_still_a_bound() -> None:
    assert 0.0 < cut(1e-4, 1000, 2000)[0] <= 1e-300
    rare = NoisySGD(TruncatedPoissonSampling(1e-4, 1000, 2000), 1.0, 1)
    assert account(rare).certified[0].kind is Validity.BOUND


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_a_cap_that_never_cuts_is_plain_poisson(adjacency: Adjacency) -> None:
    cut = NoisySGD(TruncatedPoissonSampling(0.1, 50, 50), 1.0, 20, adjacency)
    plain = NoisySGD(PoissonSampling(0.1), 1.0, 20, adjacency)
    assert account(cut).epsilon(1e-5) == account(plain).epsilon(1e-5)


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_every_draw_cut_is_not_a_full_batch(adjacency: Adjacency) -> None:
    """At rate 1 each batch is a uniform subset; a record gives way to another."""
    cut = NoisySGD(TruncatedPoissonSampling(1.0, 5, 10), 1.0, 4, adjacency)
    plain = NoisySGD(PoissonSampling(0.5), 0.5, 4)  # attained by opposite gradients
    found = account(cut)
    assert found.epsilon(1e-5).upper >= account(plain).epsilon(1e-5).lower
    assert found.certified[0].kind is Validity.BOUND


def test_half_the_noise_is_a_bound_and_no_record_attains_it() -> None:
    coarse = _half_noise(NoisySGD(TruncatedPoissonSampling(0.1, 5, 10), 1.0, 4))
    assert isinstance(coarse, LossGuarantee)
    assert coarse.validity is Validity.BOUND and not coarse.by_record
    plain = account(NoisySGD(PoissonSampling(0.1), 0.5, 4)).epsilon(1e-5)
    assert coarse.epsilon(1e-5).upper >= plain.lower


def test_nothing_is_released_of_empty_batches() -> None:
    assert account(NoisySGD(TruncatedPoissonSampling(0.1, 0, 10), 1.0, 9)).epsilon(0.0).upper == 0
    bare = NoisySGD(TruncatedPoissonSampling(0.1, 2, 10), 0.0, 9)
    assert account(bare).epsilon(1e-5).upper == math.inf


def test_renyi_divergences_agree_with_the_cells() -> None:
    usual, rare = SampledGaussianPair(0.1, 0.7, "remove"), SampledGaussianPair(0.05, 1.4, "remove")
    pair = PublicMixturePair(0.2, usual, rare)
    cells = renyi_by_cells(pair, 5.0)
    orders = LossGuarantee((((pair, 1),),))
    found = orders.renyi(5.0)
    assert cells.lower <= found.upper and found.lower <= cells.upper
    assert cells.upper < cells.lower * (1 + 1e-3)


def test_it_goes_into_a_certificate_and_back() -> None:
    process = NoisySGD(TruncatedPoissonSampling(0.05, 12, 100), 2.0, 1)
    assert holds(verify(certify(process, 1e-5)))


@pytest.mark.parametrize(
    "given", [(1.5, 3, 10), (0.1, -1, 10), (0.1, 3, 0), (0.1, 2.5, 10)], ids=str
)
def test_bad_numbers_are_refused(given: tuple[Any, Any, Any]) -> None:
    with pytest.raises(InvalidInput):
        TruncatedPoissonSampling(*given)


def test_a_share_is_neither_nothing_nor_everything() -> None:
    pair = SampledGaussianPair(0.1, 0.7, "remove")
    with pytest.raises(InvalidInput, match="one pair is enough"):
        PublicMixturePair(0.0, pair, pair)


# ---- the second method
def pairs_of(who: Adjacency, run: tuple[float, int, int, float, int]) -> Any:
    q, most, records, noise, steps = run
    sampling = TruncatedPoissonSampling(q, most, records)
    return account(NoisySGD(sampling, noise, steps, who), check="off").guarantee().orders


@pytest.mark.parametrize("who", list(Adjacency))
@pytest.mark.parametrize("run", [(0.1, 12, 100, 2.0, 20), (0.0043, 300, 60_000, 1.1, 1000)])
def test_lattice_and_contour_agree_about_cut_batches(who: Adjacency, run: Any) -> None:
    for order in pairs_of(who, run):
        for eps in (0.3, 1.0, 2.0):
            one, other = contour.log_delta(order, eps), lattice.log_delta(order, eps, 0.02)
            assert other.lower <= one.lower + 1e-9 and one.upper <= other.upper + 1e-9
            assert other.width < 0.05


def one_step(pair: Any, x: Any) -> tuple[Any, Any]:
    """Masses of cells of one sampled Gaussian step, under both laws."""
    away, joined = (np.diff(ndtr(x - at)) for at in (0.0, pair.mu))
    mixed = (1 - pair.rate) * away + pair.rate * joined
    return (mixed, away) if pair.direction == "remove" else (away, mixed)


@pytest.mark.parametrize("noise", [0.5, 1.0])
def test_two_cut_batches_against_all_they_can_be(noise: float) -> None:
    """Both usual, one of the two rare, or both: which is public, so the deltas are averaged."""
    x = np.linspace(-9.0, 13.0, 901)
    for order in pairs_of(Adjacency.ADD_OR_REMOVE, (0.2, 5, 20, noise, 2)):
        ((mixture, _),) = order
        (one, usual), (other, rare) = ((w, one_step(pair, x)) for w, pair in mixture.parts)
        for eps in (0.1, 0.7, 1.5):
            truth = 0.0
            for first, second in product(((one, usual), (other, rare)), repeat=2):
                p, q = (np.multiply.outer(a, b) for a, b in zip(first[1], second[1], strict=True))
                over = float(np.maximum(p - math.exp(eps) * q, 0.0).sum())
                truth += first[0] * second[0] * over
            if truth == 0.0:
                continue
            found = lattice.log_delta(order, eps, 0.01)
            assert math.log(truth) <= found.upper + 1e-12
            assert found.lower <= math.log(truth) + 2e-3  # cells lose a little


def test_a_wrong_answer_about_cut_batches_is_contradicted() -> None:
    sampling = TruncatedPoissonSampling(0.0043, 300, 60_000)
    found = account(NoisySGD(sampling, 1.1, 1000))
    orders, epsilon = found.guarantee().directions(), found.epsilon(1e-5).upper
    assert found.second_method(1e-5).verdict is SecondVerdict.CONFIRMED
    for wrong in (0.8 * epsilon, 1.25 * epsilon):
        with pytest.raises(ContradictoryMethods):
            confirm_epsilon(orders, 1e-5, Interval.exact(wrong))


def test_few_cut_batches_with_little_noise_are_answered_by_their_pairs() -> None:
    """The contour has no answer; twice the shift in every batch gave 14.01."""
    run = NoisySGD(TruncatedPoissonSampling(256 / 60_000, 290, 60_000), 0.6, 30)
    assert 8.16 < account(run).epsilon(1e-5).upper < 8.18


@pytest.mark.parametrize("who", list(Adjacency))
@pytest.mark.parametrize(
    ("most", "records", "noise", "steps"), [(100, 1000, 1.0, 100), (3, 4, 1, 1)]
)
def test_nothing_happens_where_every_record_is_drawn_for_certain(
    who: Adjacency, most: int, records: int, noise: float, steps: int
) -> None:
    """At join_rate 1 the bound was 284 where that of 0.999 is 31."""
    rates = (1.0 - 1e-9, 1.0 - 2.0**-53, 1.0)
    runs = [NoisySGD(TruncatedPoissonSampling(q, most, records), noise, steps, who) for q in rates]
    before, nearly, certain = (account(run).epsilon(1e-5) for run in runs)
    assert certain.upper == pytest.approx(nearly.upper, rel=1e-9)
    assert certain.upper == pytest.approx(before.upper, rel=1e-6)
    # the record is kept with probability most / records, and then the sum moves by two
    if steps == 1 and who is Adjacency.ADD_OR_REMOVE:
        pair = SampledGaussianPair(most / records, 2.0 / noise)
        own = math.exp(pair.log_delta_single(1.0).lower)
        assert account(runs[2]).delta(1.0).upper >= own


def test_users_of_batches_that_are_always_cut() -> None:
    """Smaller data sets in between keep a record more often: all of it is counted."""
    always = account(NoisySGD(TruncatedPoissonSampling(1.0, 10, 20), 8.0, 5).group(2))
    whole = account(NoisySGD(FullBatch(), 4.0, 5).group(2))
    assert always.epsilon(1e-5).upper >= whole.epsilon(1e-5).lower


@pytest.mark.parametrize(
    "n, q, k", [(10**12, 0.01, 10**9), (10**12, 1e-9, 10**9), (10**15, 0.5, 3)]
)
def test_tails_below_every_number_are_none(n: int, q: float, k: int) -> None:
    """The sum of nothing went on for 1e9 terms."""
    assert binomial_tail(n, q, k) == (0 if n * q < k else 1)


def test_a_replaced_record_of_rare_steps_keeps_the_lower_end_of_a_removed_one() -> None:
    """It was 0 where the pair of a replaced record could not be composed."""
    rare = TruncatedPoissonSampling(2e-5, 100, 10_000)
    removed, replaced = (
        account(NoisySGD(rare, 0.3, 200, who)).epsilon(1e-5)
        for who in (Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE)
    )
    assert removed.lower * (1.0 - 1e-9) <= replaced.lower <= replaced.upper
    assert replaced.lower > 0.99 * replaced.upper
