"""Does the sampler draw what it declares, and does the run use what the sampler drew?

Exact tests of drawn batches against each declared sampling. Draws for the tests are thrown away and
the sampler is put back. A test gives trials, or a sentence where what was drawn is impossible.
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
    UserLevel,
)
from tightrope.process.sampling import AbstractSampling
from tightrope.train.doctor.findings import (
    Finding,
    Trial,
    binomial,
    fault,
    judge,
    kolmogorov,
    likeliest,
    normal,
    phases,
)

if TYPE_CHECKING:
    from tightrope.train.run import PrivateRun
    from tightrope.train.samplers import Indices

__all__ = ["check_observed", "check_sampler", "draw_batches"]

SAMPLER, OBSERVED = "sampler = accountant", "batches of the run"
WORK = 2**25  # draws for single records
FEWEST, MOST = 128, 4096  # batches that are drawn for the tests
TABLE = 2**22  # entries of the table of batches x records
BLOCKS, LAGS = 16, 8
TAILS = (1 / 4, 1 / 16, 1 / 64)
_DRAWN_ANEW = (PoissonSampling, FixedSizeSampling, TruncatedPoissonSampling)

Joined = NDArray[np.float32]  # batches x some records: 1 where the record is in the batch
Trials = list[Trial] | str


def check_sampler(run: PrivateRun, batches: list[Indices], rate: float) -> list[Finding]:
    """The declared sampling is the accounted one, and the batches follow it.

    rate: the chance that any of these tests accuses a sound sampler.
    """
    declared, process = run.sampler.sampling, run.ledger.process(1)
    process = process.run if isinstance(process, UserLevel) else process
    accounted: Any = getattr(process, "parts", (process,))[-1]
    if accounted.sampling != declared or accounted.adjacency != run.sampler.adjacency:
        return [fault(SAMPLER, f"runs {declared}, accounts {accounted.sampling}")]
    if accounted.noise_multiplier != run.noise.noise_multiplier:
        return [fault(SAMPLER, "the accounted noise multiplier is not the running one")]
    return _judged(SAMPLER, declared, batches, run.records.length, rate)


def check_observed(run: PrivateRun, batches: list[Indices], rate: float) -> list[Finding]:
    """The batches that the run itself used, where each is drawn anew: none may be repeated."""
    if not isinstance(run.sampler.sampling, _DRAWN_ANEW) or not batches:
        return []
    return _judged(OBSERVED, run.sampler.sampling, batches, run.records.length, rate)


def draw_batches(run: PrivateRun) -> list[Indices]:
    """Batches of the sampler alone; whole epochs where there are epochs. The caller restores it."""
    sampler, records = run.sampler, run.records.length
    epoch = getattr(sampler.sampling, "batches_per_epoch", 1)
    for _ in range(epoch - sampler.position if sampler.position else 0):
        sampler.draw(records)  # to the end of an epoch that is under way
    count = max(int(np.clip(WORK // max(records, 1), FEWEST, MOST)), 4 * epoch)
    return [sampler.draw(records) for _ in range(count // epoch * epoch)]


def _judged(check: str, declared: Any, batches: list[Indices], n: int, rate: float) -> Any:
    found = _trials_of(declared, batches, n)
    if isinstance(found, str):
        return [fault(check, f"declares {declared}, but {found}")]
    blame = f"what was drawn is not {declared}, which is accounted"
    return judge([trial._replace(check=check) for trial in found], rate, {check: blame})


def _trials_of(declared: AbstractSampling, batches: list[Indices], n: int) -> Trials:
    for batch in batches:
        if len(batch) and (batch.min() < 0 or batch.max() >= n):
            return f"draws records that the data do not have ({n} records)"
        if len(np.unique(batch)) != len(batch):
            return "a batch has the same record twice"
    found: Trials = _TESTS[type(declared)](declared, batches, n)
    return found


def _trial(p: float, text: str) -> Trial:
    return Trial(SAMPLER, float(p), text)


def _exactly(text: str) -> list[Trial]:
    return [_trial(1.0, text)]


# ---- batches that are drawn anew -----------------------------------------------------------------


def _poisson(declared: PoissonSampling, batches: list[Indices], n: int) -> Trials:
    rate = float(declared.rate)
    sizes = np.array([len(batch) for batch in batches])
    if rate in (0.0, 1.0):
        right = (sizes == n * rate).all()
        return _exactly("all records or none") if right else "batches have other sizes"
    joined = _joined(batches, n)
    text = f"mean batch of {sizes.mean():.2f}, declared {n * rate:.2f}"
    return [
        _trial(binomial(sizes.sum(), n * len(batches), rate), text),
        *_tails(sizes, scipy.stats.binom(n, rate)),
        *_anew(joined, batches, n, rate),
        *_each(joined, rate),
    ]


def _fixed(declared: FixedSizeSampling, batches: list[Indices], n: int) -> Trials:
    size = round(declared.rate * n)
    if any(len(batch) != size for batch in batches):
        return f"not every batch has {size} different records"
    if size in (0, n):
        return _exactly("every batch has every record or none")
    return list(_anew(_joined(batches, n), batches, n, size / n))


def _truncated(declared: TruncatedPoissonSampling, batches: list[Indices], n: int) -> Trials:
    """A record is kept with the declared chance in each step; sizes are binomial up to the cap."""
    sizes, most = np.array([len(batch) for batch in batches]), declared.largest_batch
    if n != declared.dataset_size or (sizes > most).any():
        return f"not every batch is of at most {most} of {declared.dataset_size} records"
    if declared.rate in (0.0, 1.0):
        right = (sizes == n * declared.rate).all()
        return _exactly("all records or none") if right else "batches have other sizes"
    law, full = scipy.stats.binom(n, declared.join_rate), int((sizes == most).sum())
    low = min(law.ppf(TAILS[0]) - 1, most - 1)
    few = int((sizes <= low).sum())
    return [
        _trial(binomial(full, len(sizes), law.sf(most - 1)), f"{full} batches are full"),
        _trial(binomial(few, len(sizes), law.cdf(low)), f"{few} batches are small"),
        *_anew(_joined(batches, n), batches, n, declared.rate),
    ]


def _joined(batches: list[Indices], n: int) -> Joined:
    """For some records, in neighbouring pairs, which batches they are in."""
    pairs = min(max(TABLE // len(batches) // 2, 1), (n + 1) // 2)
    starts = 2 * np.sort(np.random.default_rng().choice((n + 1) // 2, pairs, replace=False))
    records = np.unique(np.minimum(np.stack([starts, starts + 1], 1).reshape(-1), n - 1))
    column = np.full(n, len(records))  # the others share one column more
    column[records] = np.arange(len(records))
    table = np.zeros((len(batches), len(records) + 1), dtype=np.float32)
    for row, batch in zip(table, batches, strict=True):
        row[column[batch]] = 1.0
    return table[:, :-1]


def _tails(sizes: NDArray[Any], law: Any) -> Iterator[Trial]:
    """Very large and very small batches are as frequent as declared."""
    for tail in TAILS:
        high, low = law.isf(tail) + 1, law.ppf(tail) - 1
        large, small = int((sizes >= high).sum()), int((sizes <= low).sum())
        text = f"{large} of {len(sizes)} batches have at least {high:g} examples"
        yield _trial(binomial(large, len(sizes), law.sf(high - 1)), text)
        text = f"{small} of {len(sizes)} batches have at most {low:g} examples"
        yield _trial(binomial(small, len(sizes), law.cdf(low)), text)


def _anew(joined: Joined, batches: list[Indices], n: int, rate: float) -> Iterator[Trial]:
    """Each record joins by its rate; given the sizes, a batch is any set of so many records."""
    counts = joined.sum(0, dtype=np.float64)
    p = binomial(counts, len(joined), rate)
    worst = counts[int(np.argmin(p))]
    yield _trial(likeliest(p), f"a record joins {worst:g} of {len(joined)} batches")
    width, inside = joined.shape[1], joined.sum(1)
    blocks = np.array_split(np.arange(width), min(BLOCKS, width))
    hypergeom = scipy.stats.hypergeom
    p = [_together(joined[:, b].sum(1), hypergeom(width, inside, len(b))) for b in blocks]
    yield _trial(likeliest(p), f"how often each of {len(blocks)} blocks of records joins")
    for lag in range(1, LAGS + 1):
        for left in phases(len(joined), lag):
            shared = (joined[left] * joined[left + lag]).sum(1)
            law = hypergeom(width, inside[left], inside[left + lag])
            text = f"batches {lag} apart share {shared.mean():.2f} records on average"
            yield _trial(_together(shared, law), text)
    yield _repeats(batches, n)


def _together(counts: NDArray[Any], law: Any) -> float:
    """Counts turned into standard Gaussians, exactly, by a draw inside each count's step."""
    inside = np.random.default_rng().random(len(counts))
    place = law.cdf(counts - 1) + inside * law.pmf(counts)
    score = scipy.stats.norm.ppf(np.clip(place, 1e-300, 1 - 1e-16))
    return float(normal(score.sum() / len(counts) ** 0.5))


def _repeats(batches: list[Indices], n: int) -> Trial:
    """How likely are two equal batches among those that are as rarely equal as any that are?"""
    sizes = np.array([len(batch) for batch in batches])
    rarity = gammaln(n + 1) - gammaln(sizes + 1) - gammaln(n - sizes + 1)  # of two of this size
    keys, times = [batch.tobytes() for batch in batches], dict[bytes, int]()
    for key in keys:
        times[key] = times.get(key, 0) + 1
    again = [r for key, r in zip(keys, rarity, strict=True) if times[key] > 1]
    kinds, count = np.unique(sizes[rarity >= max(again, default=np.inf)], return_counts=True)
    log_chance = -(gammaln(n + 1) - gammaln(kinds + 1) - gammaln(n - kinds + 1))
    p = float((count * (count - 1) / 2 * np.exp(log_chance)).sum()) if again else 1.0
    return _trial(min(p, 1.0), f"{len(times)} different batches among {len(batches)}")


def _each(joined: Joined, rate: float) -> Iterator[Trial]:
    """Records join alike and each by itself. The law of their spread has the right two moments."""
    (steps, width), counts = joined.shape, joined.sum(0, dtype=np.float64)
    variance = steps * rate * (1 - rate)
    for left in phases(width, 1):
        both = int((joined[:, left] * joined[:, left + 1]).sum())
        text = f"neighbours join together {both} times"
        yield _trial(binomial(both, steps * len(left), rate**2), text)
    if variance > 5:
        square = float((((counts - steps * rate) ** 2) / variance).sum())
        each = 2 + (1 - 6 * rate * (1 - rate)) / variance
        law = scipy.stats.gamma(width / each, scale=each)
        p = 2 * min(law.sf(square), law.cdf(square))
        yield _trial(min(p, 1.0), f"records differ {square / width:.3f} times as much as chance")


# ---- epochs --------------------------------------------------------------------------------------


def _epochs(declared: Any, batches: list[Indices], n: int) -> NDArray[np.int64] | str:
    """For every epoch and record the number of its batch; a sentence where that is not one."""
    b = declared.batches_per_epoch
    places = np.full((len(batches) // b, n), -1, dtype=np.int64)
    for number, batch in enumerate(batches[: len(places) * b]):
        row = places[number // b]
        if (row[batch] >= 0).any():
            return "an epoch uses a record twice"
        row[batch] = number % b
    return places if (places >= 0).all() else "an epoch does not use every record"


def _once(declared: ShuffledSampling, batches: list[Indices], n: int) -> Trials:
    places = _epochs(declared, batches, n)
    return places if isinstance(places, str) else _exactly("every record once an epoch")


def _cyclic(declared: CyclicSampling, batches: list[Indices], n: int) -> Trials:
    places = _epochs(declared, batches, n)
    if isinstance(places, str):
        return places
    if (places != places[0]).any():
        return "the partition changes from epoch to epoch"
    return _exactly("every record once an epoch, always in the same batch")


def _balls(declared: BallsInBinsSampling, batches: list[Indices], n: int) -> Trials:
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
            text = f"{same} records keep their batch from one epoch to another"
            yield _trial(binomial(same, len(left) * n, 1 / b), text)
    for left in phases(n, 1):
        same = int((places[:, left] == places[:, left + 1]).sum())
        yield _trial(binomial(same, epochs * len(left), 1 / b), "neighbours in the same batch")
    blocks = np.array_split((places < b // 2).sum(0), min(BLOCKS, n))
    p = [binomial(block.sum(), epochs * len(block), (b // 2) / b) for block in blocks]
    yield _trial(likeliest(p), "how often each block of records comes early in an epoch")


def _sequential(sizes: NDArray[Any], n: int) -> Any:
    """Each batch's size given those before it is binomial: turned into uniform numbers."""
    counts, before = sizes[:, :-1], (np.cumsum(sizes, axis=1) - sizes)[:, :-1]
    law = scipy.stats.binom(n - before, 1 / (sizes.shape[1] - np.arange(counts.shape[1])))
    inside = np.random.default_rng().random(counts.shape)
    return (law.cdf(counts - 1) + inside * law.pmf(counts)).reshape(-1)


def _full(declared: FullBatch, batches: list[Indices], n: int) -> Trials:
    whole = all(len(batch) == n for batch in batches)
    return _exactly("all records, always") if whole else "a batch leaves records out"


_TESTS: dict[type, Callable[[Any, list[Indices], int], Trials]] = {
    PoissonSampling: _poisson,
    TruncatedPoissonSampling: _truncated,
    FixedSizeSampling: _fixed,
    ShuffledSampling: _once,
    CyclicSampling: _cyclic,
    BallsInBinsSampling: _balls,
    FullBatch: _full,
}
