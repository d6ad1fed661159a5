"""Balls in bins: certified numbers against golden enclosures, laws, and a slow second method."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.fft import irfft, rfft
from scipy.special import ndtr

from tightrope.accounting import account
from tightrope.errors import NotCertified
from tightrope.evidence.certificate import certify
from tightrope.evidence.verify import verify
from tightrope.guarantee.loss import profile
from tightrope.guarantee.loss.curve import LossCurve
from tightrope.guarantee.loss.pairs import AllocationPair
from tightrope.process import (
    Adjacency,
    BallsInBinsSampling,
    DeclaredApproxDP,
    GaussianMechanism,
    NoisySGD,
    Sequence,
)
from tightrope.theorems.bins import BallsInBinsExact

CASES = json.loads((Path(__file__).parents[2] / "golden" / "allocation.json").read_text())
EPSILONS = [case for case in CASES if case["name"] == "balls_in_bins"]
DELTAS = [case for case in CASES if case["name"] == "balls_in_bins_delta"]


def orders(given) -> dict:
    batches, epochs = int(given["batches_per_epoch"]), int(given["epochs"])
    mu = 1.0 / float(given["noise_multiplier"])
    return {way: ((AllocationPair(batches, mu, way), epochs),) for way in ("remove", "add")}


def told(case, prefix: str) -> tuple[float, float]:
    return float(case["outputs"][f"{prefix}lower"]), float(case["outputs"][f"{prefix}upper"])


def overlaps(found, enclosure: tuple[float, float]) -> bool:
    return found.lower <= enclosure[1] and found.upper >= enclosure[0]


@pytest.mark.parametrize("case", EPSILONS, ids=lambda c: "-".join(c["inputs"].values()))
def test_golden_epsilons(case) -> None:
    delta = float(case["inputs"]["delta"])
    both = orders(case["inputs"])
    found = profile.worst_epsilon(tuple(both.values()), delta)
    assert overlaps(found, told(case, ""))
    assert found.relative_width < 5e-6
    if "add_lower" in case["outputs"]:
        assert overlaps(profile.epsilon(both["add"], delta), told(case, "add_"))


@pytest.mark.parametrize("case", DELTAS, ids=lambda c: "-".join(c["inputs"].values()))
@pytest.mark.parametrize("way", ["remove", "add"])
def test_golden_deltas(case, way) -> None:
    found = profile.delta(orders(case["inputs"])[way], float(case["inputs"]["epsilon"]))
    assert overlaps(found, told(case, f"{way}_"))
    assert found.relative_width < 5e-6


def epsilon(batches: int, noise: float, epochs: int, delta: float = 1e-5):
    return account(NoisySGD(BallsInBinsSampling(batches), noise, epochs * batches)).epsilon(delta)


def test_less_noise_and_more_epochs_cost_more() -> None:
    by_noise = [epsilon(50, noise, 3) for noise in (0.8, 0.81, 1.5, 4.0)]
    by_epochs = [epsilon(50, 1.5, epochs) for epochs in (1, 2, 3, 30)]
    for more, less in itertools.pairwise(by_noise):
        assert more.lower > less.upper
    for less, more in itertools.pairwise(by_epochs):
        assert less.upper < more.lower


def test_a_small_release_beside_it_costs_little() -> None:
    """It once raised 2.549 to 3.957."""
    run = NoisySGD(BallsInBinsSampling(100), 1.0, 1000)
    both = account(Sequence((run, DeclaredApproxDP(0.001, 0.0)))).guarantee(1e-5).epsilon(1e-5)
    alone = account(run).epsilon(1e-5)
    assert alone.lower < both.lower
    assert both.upper < alone.upper + 0.001


def test_a_cut_off_epoch_counts_as_a_whole_one() -> None:
    whole = epsilon(50, 1.5, 3)
    part = account(NoisySGD(BallsInBinsSampling(50), 1.5, 120))
    found, before = part.epsilon(1e-5), epsilon(50, 1.5, 2)
    assert found.upper == whole.upper  # that of whole epochs is a bound
    assert found.lower == pytest.approx(before.lower, rel=1e-6)  # and the epochs before show less
    assert part.certified[0].kind.value == "bound"


def test_a_replaced_record_is_two_of_them() -> None:
    """One removed and one added; beyond the reach of the law, epochs without the secret."""
    one, replaced = (
        account(NoisySGD(BallsInBinsSampling(50), 3.0, 150, adjacency))
        for adjacency in (Adjacency.ADD_OR_REMOVE, Adjacency.REPLACE_ONE)
    )
    assert replaced.epsilon(1e-5).upper > 1.5 * one.epsilon(1e-5).upper
    far = BallsInBinsExact.guarantee(NoisySGD(BallsInBinsSampling(50), 30.0, 150)).epsilon(1e-5)
    same = account(GaussianMechanism(30.0 / math.sqrt(3))).epsilon(1e-5)
    assert far.upper == pytest.approx(same.upper, rel=1e-9)


def test_the_removed_order_is_the_worse_one() -> None:
    both = orders({"batches_per_epoch": 50, "noise_multiplier": 1.5, "epochs": 3})
    remove = profile.epsilon(both["remove"], 1e-5)
    assert account(NoisySGD(BallsInBinsSampling(50), 1.5, 150)).epsilon(1e-5).meets(remove)


def test_both_orders_are_mirrors_of_each_other() -> None:
    """delta'(eps) = 1 - e^eps + e^eps delta(-eps)."""
    remove, add = orders({"batches_per_epoch": 6, "noise_multiplier": 1.2, "epochs": 2}).values()
    for eps in (0.2, 0.7):
        turned = profile.delta(remove, -eps)
        ends = [1.0 - math.exp(eps) + math.exp(eps) * end for end in (turned.lower, turned.upper)]
        found = profile.delta(add, eps)
        assert ends[0] - 1e-12 <= found.upper
        assert found.lower <= ends[1] + 1e-12


def test_out_of_reach_is_refused_and_another_analysis_answers() -> None:
    pair = AllocationPair(234, 1.0, "remove")
    with pytest.raises(NotCertified):
        profile.epsilon(((pair, 60),), 1e-60)
    with pytest.raises(NotCertified, match="lattice"):
        pair.log_survival(0.0)
    run = NoisySGD(BallsInBinsSampling(234), 1.0, 234 * 60)
    assert math.isfinite(account(run).epsilon(1e-60).upper)


def test_the_tradeoff_curve_needs_no_lattice() -> None:
    both = tuple(orders({"batches_per_epoch": 6, "noise_multiplier": 1.2, "epochs": 2}).values())
    curve = LossCurve(both, lambda eps: profile.worst_delta(both, eps))
    assert curve.near(0.5, 1e-9).relative_width < 1e-6


# ---- a second method: linear grid, FFT, no certificate; a finer grid tells how far it is off
def _epoch(batches: int, mu: float, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Values of S and their masses under Q, every cell split to its ends: never below the truth."""
    largest = math.exp(mu * (7.2 + mu) - 0.5 * mu * mu)  # beyond, E X is 3e-13
    step = 2.0 * (largest + batches + 8.0 * math.sqrt(batches) * math.exp(mu)) / size
    edges = step * np.arange(size // 2)
    with np.errstate(divide="ignore"):
        z = (np.log(edges) + 0.5 * mu * mu) / mu
    above = np.append(ndtr(-z), 0.0), np.append(ndtr(-(z - mu)), 0.0)
    mass, mean = -np.diff(above[0]), -np.diff(above[1])
    right = np.clip((mean[:-1] - edges[:-1] * mass[:-1]) / step, 0.0, mass[:-1])
    split = np.zeros(size // 2)
    split[:-1] += mass[:-1] - right
    split[1:] += right
    total = np.maximum(irfft(rfft(split, size) ** batches, size), 0.0)
    return step / batches * np.arange(size), total


def _slow_deltas(batches, mu, epochs, epsilon, size) -> dict[str, float]:
    s, mass = _epoch(batches, mu, size)
    if epochs == 1:
        k = math.exp(epsilon)
        remove = float(np.maximum(s - k, 0.0) @ mass)
        return {"remove": remove, "add": float(np.maximum(1.0 - k * s, 0.0) @ mass)}
    step = 64.0 * mu / math.sqrt(batches) / size
    low = math.log(max(s[np.argmax(np.cumsum(mass) > 1e-18)], s[1]))
    low = step * math.floor(low / step)
    place = np.clip((np.log(np.maximum(s, s[1])) - low) / step, 0.0, None)
    cell = np.floor(place).astype(np.int64)
    right = np.clip(np.expm1((place - cell) * step) / math.expm1(step), 0.0, 1.0)
    points = int(cell.max()) + 2
    under_q = np.bincount(cell, mass * (1.0 - right), points)
    under_q += np.bincount(cell + 1, mass * right, points)
    losses = low + step * np.arange(points)
    found = {}
    for way, law, sign in (("remove", under_q * np.exp(losses), 1.0), ("add", under_q, -1.0)):
        length = 1 << math.ceil(math.log2(epochs * points + 1))
        power = np.maximum(irfft(rfft(law, length) ** epochs, length), 0.0)
        total = sign * (epochs * low + step * np.arange(length))
        found[way] = float(np.maximum(-np.expm1(epsilon - total), 0.0) @ power)
    return found


def _random_setting(seed: int) -> tuple[int, float, int, float]:
    rng = np.random.default_rng(seed)
    batches = int(np.exp(rng.uniform(math.log(2), math.log(300))))
    mu = float(rng.uniform(0.35, 1.25))
    return batches, mu, int(rng.integers(1, 5)), float(rng.uniform(0.05, 1.5))


def _agrees(seed: int) -> None:
    batches, mu, epochs, eps = _random_setting(seed)
    coarse, fine = (_slow_deltas(batches, mu, epochs, eps, 1 << bits) for bits in (17, 18))
    for way in ("remove", "add"):
        if fine[way] < 1e-8:
            continue
        found = profile.delta(((AllocationPair(batches, mu, way), epochs),), eps)
        slack = abs(coarse[way] - fine[way]) + 1e-11
        assert found.lower <= fine[way] + 1e-11
        assert found.upper >= fine[way] - slack
        assert found.relative_width < 1e-2


@pytest.mark.parametrize("seed", range(5))
def test_random_settings_against_a_slow_method(seed: int) -> None:
    _agrees(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(50))
def test_five_hundred_random_settings(block: int) -> None:
    for seed in range(1000 + 10 * block, 1010 + 10 * block):
        _agrees(seed)


def test_certificates_of_few_batches_are_made_and_hold() -> None:
    """Beyond the reach of the law less is claimed, and nothing is refused."""
    certificate = certify(NoisySGD(BallsInBinsSampling(3), 1.5, 6), 1e-5)
    assert not [check for check in verify(certificate) if check.holds is False]
    rare = certificate["claims"]["type_ii_error"][0]
    assert 1.0 - 20.0 * rare["type_i"] < rare["lower"] <= rare["upper"] <= 1.0 - rare["type_i"]
    assert certificate["claims"]["renyi"][-1]["upper"] is None
