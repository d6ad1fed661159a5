"""Random trees of events: what is certified is never below a slow truth made in another way.

The slow truth: the privacy loss of every release on a grid, each loss rounded down, what is beyond
the grid's end counted at that end or not at all. Every step loses only, so the delta that comes out
is below the true one.
"""

from __future__ import annotations

import math
import random
from functools import cache

import numpy as np
import pytest
from scipy.signal import fftconvolve
from scipy.special import ndtr

from tightrope import account
from tightrope.errors import NotCertified
from tightrope.guarantee.base import Validity
from tightrope.interop import read

STEP, REACH = 0.003, 30.0
BINS = round(2 * REACH / STEP) + 1
DELTA = 1e-4


def on_grid(losses, masses) -> np.ndarray:
    place = np.floor(np.asarray(losses) / STEP - 1e-9) + (BINS - 1) // 2
    kept = place >= 0
    law = np.zeros(BINS)
    np.add.at(law, np.minimum(place[kept], BINS - 1).astype(int), np.asarray(masses)[kept])
    return law


def convolved(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    full = np.maximum(fftconvolve(one, other), 0.0)
    half = (BINS - 1) // 2
    law = full[half : half + BINS].copy()
    law[-1] += full[half + BINS :].sum()  # a larger loss, counted as the largest of the grid
    return law


def power(law: np.ndarray, count: int) -> np.ndarray:
    result = on_grid([1e-12], [1.0])
    while count:
        if count & 1:
            result = convolved(result, law)
        law, count = convolved(law, law), count >> 1
    return result


# --- pairs: (cumulative distribution, density) of the two neighbours, or masses on points ---------
def gaussian(mean):
    return lambda x: ndtr(x - mean), lambda x: np.exp(-0.5 * (x - mean) ** 2)


def laplace(mean, scale):
    def cdf(x):
        z = (x - mean) / scale
        return np.where(z < 0, 0.5 * np.exp(np.minimum(z, 0)), 1 - 0.5 * np.exp(-np.maximum(z, 0)))

    return cdf, lambda x: np.exp(-np.abs(x - mean) / scale)


def mixed(rate, one, other):
    return tuple(lambda x, i=i: (1 - rate) * one[i](x) + rate * other[i](x) for i in (0, 1))


def continuous(p, q, width):
    """A loss that is monotone in the output: the smaller end of each cell."""
    x = np.linspace(-width, width, 60001)
    losses = np.log(p[1](x)) - np.log(q[1](x))
    return on_grid(np.minimum(losses[:-1], losses[1:]), np.diff(p[0](x)))


def discrete(p, q):
    p, q = np.asarray(p, float), np.asarray(q, float)
    with np.errstate(divide="ignore"):
        losses = np.where(q > 0, np.log(p / np.where(q > 0, q, 1)), REACH)
    return on_grid(losses[p > 0], p[p > 0])


def both(make, one, other):
    return make(one, other), make(other, one)


def approx_pair(epsilon, delta):
    high, low = math.exp(epsilon) / (1 + math.exp(epsilon)), 1 / (1 + math.exp(epsilon))
    return [delta, (1 - delta) * high, (1 - delta) * low, 0.0], [
        0.0, (1 - delta) * low, (1 - delta) * high, delta
    ]  # fmt: skip


@cache
def laws(name, values, replaced):
    """The loss of one release for either order of the neighbours: a pair it attains."""
    moved = 2.0 if replaced else 1.0
    if name == "gaussian":
        shift = moved / values[0]
        return both(lambda p, q: continuous(p, q, 12 + shift), gaussian(shift), gaussian(0))
    if name == "zcdp":
        shift = math.sqrt(2 * values[0])
        return both(lambda p, q: continuous(p, q, 12 + shift), gaussian(shift), gaussian(0))
    if name == "laplace":
        pair = laplace(moved, values[0]), laplace(0, values[0])
        return both(lambda p, q: continuous(p, q, 40 * values[0] + 2), *pair)
    if name == "approx":
        return both(discrete, *approx_pair(*values))
    if name == "response":
        flip, k = values
        truth, lie = 1 - flip + flip / k, flip / k
        return both(discrete, [truth, lie, flip - 2 * lie], [lie, truth, flip - 2 * lie])
    if name == "exponential":  # two candidates whose scores differ by one sensitivity, either way
        high = 1 / (1 + math.exp(-values[0] / 2))
        return both(discrete, [high, 1 - high], [1 - high, high])
    if name in ("discrete-gaussian", "discrete-laplace"):
        z = np.arange(-400, 401)
        size = values[1] * moved

        def mass(at):
            far = (z - at) ** 2 / (2 * values[0] ** 2)
            law = np.exp(-far) if name == "discrete-gaussian" else np.exp(-values[0] * abs(z - at))
            return law / law.sum()

        return both(discrete, mass(size), mass(0))
    rate, noise = values[0], values[1]
    if name == "poisson-laplace":
        pair = mixed(rate, laplace(0, noise), laplace(1, noise)), laplace(0, noise)
        return both(lambda p, q: continuous(p, q, 40 * noise + 2), *pair)
    if name == "poisson-approx":
        one, other = (np.asarray(law) for law in approx_pair(*values[1:]))
        return both(discrete, (1 - rate) * other + rate * one, other)
    if name == "poisson" and replaced:
        ends = [mixed(rate, gaussian(0), gaussian(side / noise)) for side in (1, -1)]
        return both(lambda p, q: continuous(p, q, 12 + 2 / noise), *ends)
    shift = (2.0 if name == "fixed-size" else 1.0) / noise
    pair = mixed(rate, gaussian(0), gaussian(shift)), gaussian(0)
    return both(lambda p, q: continuous(p, q, 12 + shift), *pair)


# --- trees ----------------------------------------------------------------------------------------
def event(name, **fields):
    return {"class_name": f"{name}DpEvent", **fields}


def leaf(draw, replaced):
    """An event, with the name of its truth and the numbers of it."""
    noise, rate = round(draw.uniform(0.7, 6), 3), round(10 ** draw.uniform(-3, -0.1), 4)
    epsilon, delta = round(draw.uniform(0.01, 0.8), 3), draw.choice([0.0, 1e-7, 1e-5])
    inner = event("Gaussian", noise_multiplier=noise)
    found = [
        (inner, "gaussian", (noise,)),
        (event("ZC", rho=epsilon / 10), "zcdp", (epsilon / 10,)),
        (event("Laplace", noise_multiplier=noise), "laplace", (noise,)),
        (event("EpsilonDelta", epsilon=epsilon, delta=delta), "approx", (epsilon, delta)),
        (event("ExponentialMechanism", epsilon=epsilon), "exponential", (epsilon,)),
        (event("DiscreteGaussian", sigma=3 * noise, dimension=draw.choice([1, None, 5])),
         "discrete-gaussian", (3 * noise, 1)),
        (event("DiscreteLaplace", noise_parameter=epsilon, sensitivity=2),
         "discrete-laplace", (epsilon, 2)),
        (event("PoissonSampled", sampling_probability=rate, event=inner), "poisson", (rate, noise)),
    ]  # fmt: skip
    if replaced:
        size, batch = 2000, max(1, round(2000 * rate))
        found += [
            (event("RandomizedResponse", noise_parameter=0.7, num_buckets=3), "response", (0.7, 3)),
            (event("SampledWithoutReplacement", source_dataset_size=size, sample_size=batch,
                   event=inner), "fixed-size", (batch / size, noise)),
        ]  # fmt: skip
    else:
        found += [
            (event("PoissonSampled", sampling_probability=rate, event=found[2][0]),
             "poisson-laplace", (rate, noise)),
            (event("PoissonSampled", sampling_probability=rate, event=found[3][0]),
             "poisson-approx", (rate, epsilon, delta)),
        ]  # fmt: skip
    return draw.choice(found)


def tree(draw, replaced, depth=0):
    """A random event and the releases it is made of, with their counts."""
    kind = draw.random()
    if depth == 3 or kind < 0.35:
        made, name, values = leaf(draw, replaced)
        return made, [(name, values, 1)]
    if kind < 0.65:
        inner, parts = tree(draw, replaced, depth + 1)
        count = draw.randint(1, 6)
        parts = [(name, values, count * times) for name, values, times in parts]
        return event("SelfComposed", event=inner, count=count), parts
    inside = [tree(draw, replaced, depth + 1) for _ in range(draw.randint(1, 3))]
    parts = [part for _, below in inside for part in below]
    return event("Composed", events=[made for made, _ in inside]), parts


def truth(parts, replaced, epsilon):
    """A lower end of delta(epsilon), the worse of the two orders of the neighbours."""
    found = []
    for order in (0, 1):
        whole = power(on_grid([0.0], [1.0]), 0)
        for name, values, count in parts:
            whole = convolved(whole, power(laws(name, values, replaced)[order], count))
        grid = (np.arange(BINS) - (BINS - 1) // 2) * STEP
        found.append(float(whole @ np.maximum(-np.expm1(np.minimum(epsilon - grid, 0)), 0)))
    return max(found)


def certified(given, replaced):
    relation = "REPLACE_ONE" if replaced else "ADD_OR_REMOVE_ONE"
    reading = read({"dp_event": given, "neighboring_relation": relation})
    result = account(reading.process)
    finding = result.best(lambda guarantee: guarantee.epsilon(DELTA).upper)
    return result.epsilon(DELTA).upper, finding.kind


def check(seeds, least_exact):
    exact = 0
    for seed in seeds:
        draw = random.Random(seed)
        replaced = draw.random() < 0.5
        given, parts = tree(draw, replaced)
        try:
            epsilon, kind = certified(given, replaced)
        except NotCertified:
            continue
        below = truth(parts, replaced, epsilon)
        said = f"certified: epsilon({DELTA}) <= {epsilon}; but delta there is at least {below}"
        assert below <= DELTA * (1 + 1e-6) + 1e-11, f"{said}; tree {seed}: {given}"
        if kind is Validity.EXACT and 0.3 < epsilon < 0.8 * REACH:
            exact += 1  # then the truth is as near as its grid: a smaller epsilon would be caught
            room = 0.05 + STEP * sum(count for _, _, count in parts)
            assert truth(parts, replaced, max(epsilon - room, 0.0)) > DELTA, (seed, given, epsilon)
    assert exact >= least_exact


def test_random_trees_are_never_below_the_truth() -> None:
    check(range(25), 2)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_a_thousand_random_trees_are_never_below_the_truth(block) -> None:
    first = 1000 + 50 * block
    check(range(first, first + 50), 1)


@pytest.mark.parametrize("replaced", [False, True])
def test_every_kind_of_event_is_drawn_and_never_below_the_truth(replaced) -> None:
    seen = set()
    for seed in range(120):
        given, name, values = leaf(random.Random(seed), replaced)
        if name in seen:
            continue
        seen.add(name)
        epsilon, _ = certified(event("SelfComposed", event=given, count=5), replaced)
        assert truth([(name, values, 5)], replaced, epsilon) <= DELTA * (1 + 1e-6) + 1e-11, given
    assert len(seen) == 10
