"""Exact tests of drawn batches against each declared sampling.

A test answers with trials, or with a sentence where what was drawn is impossible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy  # which imports its stats when they are needed: that takes long
from numpy.typing import NDArray
from scipy.special import gammaln

from tightrope.process import (
    BallsInBinsSampling,
    CyclicSampling,
    FixedSizeSampling,
    FullBatch,
    PoissonSampling,
    ShuffledSampling,
    TruncatedPoissonSampling,
)
from tightrope.process.sampling import AbstractSampling
from tightrope.train.doctor.trials import Trial, binomial, kolmogorov, likeliest, normal, phases
from tightrope.train.samplers import Indices

if TYPE_CHECKING:
    from scipy.stats.distributions import rv_frozen

__all__ = ["SAMPLER", "trials_of"]

SAMPLER = "sampler = accountant"
TABLE = 2**22  # entries of the table of batches x records
BLOCKS, LAGS = 16, 8
PAIRS = 1024  # batches that are compared each with each
TAILS = (1 / 4, 1 / 16, 1 / 64)

Joined = NDArray[np.float32]  # batches x some records: 1 where the record is in the batch


def trials_of(
    declared: AbstractSampling, batches: list[Indices], population: int
) -> list[Trial] | str:
    for batch in batches:
        if len(batch) and (batch.min() < 0 or batch.max() >= population):
            return f"draws records that the data do not have ({population} records)"
        if len(np.unique(batch)) != len(batch):
            return "a batch has the same record twice"
    found: list[Trial] | str = _TESTS[type(declared)](declared, batches, population)
    return found


def _trial(p: float, told: str) -> Trial:
    return Trial(SAMPLER, float(p), told)


def _exactly(told: str) -> list[Trial]:
    return [_trial(1.0, told)]


def _joined(batches: list[Indices], n: int) -> Joined:
    """For some records, in neighbouring pairs, which batches they are in."""
    pairs = max(min(n, TABLE // len(batches)) // 2, 1)
    starts = np.sort(np.random.default_rng().choice((n + 1) // 2, min(pairs, (n + 1) // 2), False))
    records = np.unique(np.minimum(np.stack([2 * starts, 2 * starts + 1], 1).reshape(-1), n - 1))
    column = np.full(n, len(records))  # what is not looked at goes into one column more
    column[records] = np.arange(len(records))
    table = np.zeros((len(batches), len(records) + 1), dtype=np.float32)
    for row, batch in zip(table, batches, strict=True):
        row[column[batch]] = 1.0
    return table[:, :-1]


# ---- every record independently ------------------------------------------------------------------


def _poisson(declared: AbstractSampling, batches: list[Indices], n: int) -> list[Trial] | str:
    rate = float(declared.rate)
    sizes = np.array([len(batch) for batch in batches])
    if rate in (0.0, 1.0):
        right = (sizes == n * rate).all()
        return _exactly("all records or none") if right else "batches have other sizes"
    joined = _joined(batches, n)
    told = f"mean batch of {sizes.mean():.2f}, declared {n * rate:.2f}"
    return [
        _trial(binomial(sizes.sum(), n * len(batches), rate), told),
        *_sizes(sizes, scipy.stats.binom(n, rate)),
        *_records(joined, rate),
        *_overlaps(joined, rate),
        _repeats(batches, n * float(np.log(rate**2 + (1 - rate) ** 2))),
    ]


def _sizes(sizes: NDArray[Any], law: rv_frozen) -> Iterator[Trial]:
    """Very large and very small batches are as frequent as declared."""
    for tail in TAILS:
        high, low = law.isf(tail) + 1, law.ppf(tail) - 1
        large, small = int((sizes >= high).sum()), int((sizes <= low).sum())
        told = f"{large} of {len(sizes)} batches have at least {high:g} examples"
        yield _trial(binomial(large, len(sizes), law.sf(high - 1)), told)
        told = f"{small} of {len(sizes)} batches have at most {low:g} examples"
        yield _trial(binomial(small, len(sizes), law.cdf(low)), told)


def _records(joined: Joined, rate: float) -> Iterator[Trial]:
    """No record, and no stretch of records, is favoured."""
    steps, width = joined.shape
    counts = joined.sum(0, dtype=np.float64)
    p = binomial(counts, steps, rate)
    worst = counts[int(np.argmin(p))]
    yield _trial(likeliest(p), f"a record joins {worst:g} of {steps} batches")
    blocks = np.array_split(counts, min(BLOCKS, width))
    by_block = [binomial(b.sum(), steps * len(b), rate) for b in blocks]
    yield _trial(likeliest(by_block), f"how often each of {len(blocks)} blocks of records joins")
    if steps * rate * (1 - rate) > 5:
        yield _spread(counts, steps, rate)


def _spread(counts: NDArray[Any], steps: int, rate: float) -> Trial:
    """Sum of squares of standardised counts; its gamma law has the right mean and variance."""
    variance = steps * rate * (1 - rate)
    square = float((((counts - steps * rate) ** 2) / variance).sum())
    each = 2 + (1 - 6 * rate * (1 - rate)) / variance
    shape, scale = len(counts) / each, each
    law = scipy.stats.gamma(shape, scale=scale)
    p = 2 * min(law.sf(square), law.cdf(square))
    return _trial(min(p, 1.0), f"records differ {square / len(counts):.3f} times as much as chance")


def _overlaps(joined: Joined, rate: float) -> Iterator[Trial]:
    """Batches are independent of one another, and so are records inside a batch."""
    steps, width = joined.shape
    for lag in range(1, LAGS + 1):
        for left in phases(steps, lag):
            shared = int((joined[left] * joined[left + lag]).sum())
            told = f"batches {lag} apart share {shared} records, {len(left) * width * rate**2:.4g} "
            yield _trial(binomial(shared, len(left) * width, rate**2), told + "expected")
    for left in phases(width, 1):
        both = int((joined[:, left] * joined[:, left + 1]).sum())
        told = f"neighbours join together {both} times"
        yield _trial(binomial(both, steps * len(left), rate**2), told)
    yield _any_pair(joined, scipy.stats.binom(width, rate**2))


def _any_pair(joined: Joined, law: rv_frozen) -> Trial:
    joined = joined[:PAIRS]
    shared = joined @ joined.T
    np.fill_diagonal(shared, 0.0)
    pairs, most = len(joined) * (len(joined) - 1) / 2, float(shared.max())
    told = f"two batches share {most:g} of {joined.shape[1]} records"
    return _trial(min(1.0, float(law.sf(most - 1)) * pairs), told)


def _repeats(batches: list[Indices], log_chance: float) -> Trial:
    """log_chance: that two given batches are equal."""
    different = len({batch.tobytes() for batch in batches})
    pairs = len(batches) * (len(batches) - 1) / 2
    p = 1.0 if different == len(batches) else min(1.0, pairs * float(np.exp(log_chance)))
    return _trial(p, f"{different} different batches among {len(batches)}")


# ---- a fixed number of records -------------------------------------------------------------------


def _fixed(declared: AbstractSampling, batches: list[Indices], n: int) -> list[Trial] | str:
    size = round(declared.rate * n)
    if any(len(batch) != size for batch in batches):
        return f"not every batch has {size} different records"
    if size in (0, n):
        return _exactly("every batch has every record or none")
    joined = _joined(batches, n)
    p = binomial(joined.sum(0, dtype=np.float64), len(joined), size / n)
    log_choices = float(gammaln(n + 1) - gammaln(size + 1) - gammaln(n - size + 1))
    return [
        _trial(likeliest(p), "how often each record joins"),
        *_stretches(joined, n, size),
        *_shared(joined),
        _repeats(batches, -log_choices),
    ]


def _truncated(
    declared: TruncatedPoissonSampling, batches: list[Indices], n: int
) -> list[Trial] | str:
    """A record is kept with the declared chance in each step; sizes are binomial up to the cap."""
    sizes, most = np.array([len(batch) for batch in batches]), declared.largest_batch
    if n != declared.dataset_size or (sizes > most).any():
        return f"not every batch is of at most {most} of {declared.dataset_size} records"
    if declared.rate in (0.0, 1.0):
        right = (sizes == n * declared.rate).all()
        return _exactly("all records or none") if right else "batches have other sizes"
    law, joined = scipy.stats.binom(n, declared.join_rate), _joined(batches, n)
    low, full = law.ppf(TAILS[0]) - 1, int((sizes == most).sum())
    few = int((sizes <= min(low, most - 1)).sum())
    p = binomial(joined.sum(0, dtype=np.float64), len(joined), declared.rate)
    return [
        _trial(binomial(full, len(sizes), law.sf(most - 1)), f"{full} batches are full"),
        _trial(binomial(few, len(sizes), law.cdf(min(low, most - 1))), f"{few} batches are small"),
        _trial(likeliest(p), "how often each record joins"),
        *_shared(joined),
    ]


def _stretches(joined: Joined, n: int, size: int) -> Iterator[Trial]:
    p = []
    for block in np.array_split(np.arange(joined.shape[1]), min(BLOCKS, joined.shape[1])):
        counts = joined[:, block].sum(1)
        p.append(_together(counts, scipy.stats.hypergeom(n, len(block), size)))
    yield _trial(likeliest(p), f"how often each of {len(p)} blocks of records joins")


def _shared(joined: Joined) -> Iterator[Trial]:
    """Given how many of the records looked at are in each batch, the overlap is hypergeometric."""
    width, inside = joined.shape[1], joined.sum(1)
    for lag in range(1, LAGS + 1):
        for left in phases(len(joined), lag):
            shared = (joined[left] * joined[left + lag]).sum(1)
            overlap = scipy.stats.hypergeom(width, inside[left], inside[left + lag])
            p = _together(shared, overlap)
            yield _trial(p, f"batches {lag} apart share {shared.mean():.2f} records on average")


def _together(counts: NDArray[Any], law: rv_frozen) -> float:
    """Counts turned into standard Gaussians, exactly, by a draw inside each count's step."""
    inside = np.random.default_rng().random(len(counts))
    place = law.cdf(counts - 1) + inside * law.pmf(counts)
    score = scipy.stats.norm.ppf(np.clip(place, 1e-300, 1 - 1e-16))
    return float(normal(score.sum() / len(counts) ** 0.5))


# ---- epochs --------------------------------------------------------------------------------------


def _epochs(
    declared: ShuffledSampling | CyclicSampling | BallsInBinsSampling,
    batches: list[Indices],
    n: int,
) -> NDArray[np.int64] | str:
    """For every epoch and record the number of its batch; a sentence where that is not one."""
    b = declared.batches_per_epoch
    places = np.full((len(batches) // b, n), -1, dtype=np.int64)
    for number, batch in enumerate(batches[: len(places) * b]):
        row = places[number // b]
        if (row[batch] >= 0).any():
            return "an epoch uses a record twice"
        row[batch] = number % b
    return places if (places >= 0).all() else "an epoch does not use every record"


def _once(declared: ShuffledSampling, batches: list[Indices], n: int) -> list[Trial] | str:
    places = _epochs(declared, batches, n)
    return places if isinstance(places, str) else _exactly("every record once an epoch")


def _cyclic(declared: CyclicSampling, batches: list[Indices], n: int) -> list[Trial] | str:
    places = _epochs(declared, batches, n)
    if isinstance(places, str):
        return places
    if (places != places[0]).any():
        return "the partition changes from epoch to epoch"
    return _exactly("every record once an epoch, always in the same batch")


def _balls(declared: BallsInBinsSampling, batches: list[Indices], n: int) -> list[Trial] | str:
    places = _epochs(declared, batches, n)
    if isinstance(places, str):
        return places
    b = declared.batches_per_epoch
    return _exactly("all records, always") if b == 1 else list(_bins(places, b))


def _bins(places: NDArray[np.int64], b: int) -> Iterator[Trial]:
    epochs, n = places.shape
    sizes = np.stack([np.bincount(row, minlength=b) for row in places])
    yield _trial(kolmogorov(_sequential(sizes, n)), "sizes of the batches")
    for lag in (1, 2):
        for left in phases(epochs, lag):
            same = int((places[left] == places[left + lag]).sum())
            told = f"{same} records keep their batch from one epoch to another"
            yield _trial(binomial(same, len(left) * n, 1 / b), told)
    for left in phases(n, 1):
        same = int((places[:, left] == places[:, left + 1]).sum())
        yield _trial(binomial(same, epochs * len(left), 1 / b), "neighbours in the same batch")
    early = (places < b // 2).sum(0)
    blocks = np.array_split(early, min(BLOCKS, n))
    p = [binomial(block.sum(), epochs * len(block), (b // 2) / b) for block in blocks]
    yield _trial(likeliest(p), "how often each block of records comes early in an epoch")


def _sequential(sizes: NDArray[Any], n: int) -> Any:
    """Each batch's size given those before it is binomial: turned into uniform numbers."""
    before = np.cumsum(sizes, axis=1) - sizes
    b = sizes.shape[1]
    law = scipy.stats.binom((n - before)[:, :-1], 1 / (b - np.arange(b - 1)))
    counts = sizes[:, :-1]
    inside = np.random.default_rng().random(counts.shape)
    return (law.cdf(counts - 1) + inside * law.pmf(counts)).reshape(-1)


def _full(declared: AbstractSampling, batches: list[Indices], n: int) -> list[Trial] | str:
    whole = all(len(batch) == n for batch in batches)
    return _exactly("all records, always") if whole else "a batch leaves records out"


_TESTS: dict[type, Callable[[Any, list[Indices], int], list[Trial] | str]] = {
    PoissonSampling: _poisson,
    TruncatedPoissonSampling: _truncated,
    FixedSizeSampling: _fixed,
    ShuffledSampling: _once,
    CyclicSampling: _cyclic,
    BallsInBinsSampling: _balls,
    FullBatch: _full,
}
