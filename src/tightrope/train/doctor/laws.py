"""Are noise and batches what a run declares? Statistical tests with one rate of false alarms.

A trial states how likely something at least as strange is in a sound run. Every law here is exact
(binomial, chi-square, normal, Kolmogorov), so the rate holds for small models and few steps too;
`judge` divides the rate among all trials of its group (Bonferroni). docs/doctor.md says what is
found.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import scipy  # which imports its stats when they are needed: that takes long
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln
from torch import Tensor

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
from tightrope.train.noise import BOUND, as_values

if TYPE_CHECKING:
    from tightrope.train.run import PrivateRun
    from tightrope.train.samplers import Indices


class Verdict(StrEnum):
    """GOOD: tested and in order. NOTE: worth knowing. FAULT: guarantee or training fails."""

    GOOD = "good"
    NOTE = "note"
    FAULT = "fault"


GOOD, NOTE, FAULT = Verdict


@final
class Finding(NamedTuple):
    """The outcome of one check, in words."""

    check: str
    verdict: Verdict
    text: str


@final
@dataclass(frozen=True)
class Diagnosis:
    """All findings. They describe private data: do not publish them.

    false_alarm: the largest chance that a sound run is accused, over all statistical tests.
    """

    findings: tuple[Finding, ...]
    false_alarm: float = 0.0

    @property
    def faults(self) -> tuple[Finding, ...]:
        """The findings that are faults."""
        return tuple(f for f in self.findings if f.verdict is FAULT)

    @property
    def healthy(self) -> bool:
        """Whether there is no fault."""
        return not self.faults

    def of(self, check: str) -> tuple[Finding, ...]:
        """The findings of one check."""
        return tuple(f for f in self.findings if f.check == check)

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON data."""
        rows = [finding._asdict() for finding in self.findings]
        return {"healthy": self.healthy, "false_alarm": self.false_alarm, "findings": rows}

    def __str__(self) -> str:
        marks = {GOOD: "ok   ", NOTE: "note ", FAULT: "FAULT"}
        return "\n".join(f"{marks[f.verdict]} {f.check}: {f.text}" for f in self.findings)


class Trial(NamedTuple):
    """p: the chance of something at least as strange in a sound run."""

    check: str
    p: float
    text: str


def judge(trials: Iterable[Trial], rate: float, blame: dict[str, str]) -> list[Finding]:
    """One finding for each check: a fault where a trial is stranger than its share of the rate."""
    trials, found = list(trials), []
    level = rate / max(len(trials), 1)
    for check, why in blame.items():
        mine = [trial for trial in trials if trial.check == check]
        if not mine:
            found.append(Finding(check, GOOD, "too few draws to test"))
            continue
        worst = min(mine, key=lambda trial: trial.p)
        text = f"{worst.text} (p = {worst.p:.2g}, the strangest of {len(mine)} tests)"
        if worst.p < level:
            found.append(Finding(check, FAULT, f"{text}: {why}"))
        else:
            found.append(Finding(check, GOOD, text))
    return found


def two_sided(law: Any, value: ArrayLike, *parameters: ArrayLike) -> Any:
    """The chance, under a law of scipy, of something as far out as a value; of each of several."""
    whole = isinstance(law, scipy.stats.rv_discrete)
    above = law.sf(np.asarray(value) - 1 if whole else value, *parameters)
    return np.minimum(1.0, 2 * np.minimum(law.cdf(value, *parameters), above))


def binomial(count: ArrayLike, trials: ArrayLike, chance: ArrayLike) -> Any:
    return two_sided(scipy.stats.binom, count, trials, chance)


def chi_square(squares: ArrayLike, degrees: ArrayLike) -> Any:
    return two_sided(scipy.stats.chi2, squares, degrees)


def normal(score: ArrayLike) -> Any:
    return 2 * scipy.special.ndtr(-np.abs(score))


def smallest(p: ArrayLike) -> float:
    """The p-value of the smallest of several."""
    values = np.asarray(p, dtype=np.float64)
    return float(min(1.0, values.min() * values.size)) if values.size else 1.0


def kolmogorov(uniform: ArrayLike) -> float:
    """Are these numbers uniform on [0, 1]?"""
    values = np.sort(np.asarray(uniform, dtype=np.float64))
    steps = np.arange(len(values) + 1) / len(values)
    distance = max(float((steps[1:] - values).max()), float((values - steps[:-1]).max()))
    return float(scipy.stats.kstwo.sf(min(distance, 1.0), len(values)))


def made_uniform(law: Any, counts: NDArray[Any]) -> Any:
    """Counts of this law become uniform numbers, exactly, by a draw inside each count's step."""
    below = law.cdf(counts - 1)
    return below + np.random.default_rng().random(counts.shape) * law.pmf(counts)


def phases(count: int, lag: int) -> list[Any]:
    """Indices i such that the pairs (i, i + lag) have no member in common, in two turns."""
    first = np.arange(max(count - lag, 0))
    turn = first // lag % 2
    return [part for part in (first[turn == 0], first[turn == 1]) if len(part)]


# ---- noise: in every step and coordinate, Gaussian, of the stated size, and fresh? ---------------
# Tables of (noise / stated deviation) are read, a row for each step: the noise of observed steps,
# and many more draws of the noise object alone, which find what is rare or small.

Table = NDArray[np.float64]  # steps x coordinates

SCALE, MEAN, LAW = "noise scale", "noise mean", "noise law"
WITHIN, FRESH = "noise independence", "noise freshness"
BLAME = {
    SCALE: "what is released is not what is accounted",
    MEAN: "noise that is accounted has mean zero",
    LAW: "the noise is not Gaussian, and only Gaussian noise is accounted",
    WITHIN: "the noise of one coordinate gives away another's",
    FRESH: "the noise repeats itself",
}
COORDINATES = 2**14  # that are written down, about
DRAWS = 2**19  # single numbers drawn from the noise object alone, about
PAIRS = 1024  # rows that are compared each with each
LAGS = 5


def in_units(sums: Sequence[Tensor], sensitivity: float) -> list[Tensor]:
    """Sums of a strict run are whole numbers: the same in the units of the gradients."""
    return as_values(sums, sensitivity) if sums[0].dtype is torch.int64 else list(sums)


@final
class Columns:
    """Some coordinates of every tensor that gets noise: its beginning, and a stretch elsewhere.

    Tensors of one size are read in the same places, so that noise they share is seen.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        share, at = max(COORDINATES // len(tensors), 16), np.random.default_rng().random()
        self.places, self.zeros = list[Tensor](), list[Tensor]()
        for tensor in tensors:
            size, half = tensor.numel(), share // 2
            places = torch.arange(min(size, share), device="cpu")
            if size > share:
                places[half:] += int(at * (size - share))
            self.places.append(places)
            few = size <= share
            self.zeros.append(torch.zeros_like(tensor) if few else tensor.new_zeros(share))
        self.sizes = [len(places) for places in self.places]

    def of(self, tensors: Sequence[Tensor]) -> Table:
        """The values at the chosen places; of the first tensors if there are fewer."""
        pairs = zip(tensors, self.places, strict=False)
        parts = [t.detach().reshape(-1)[places.to(t.device)].double().cpu() for t, places in pairs]
        values: Table = torch.cat(parts).numpy()
        return values


def check_noise(
    run: PrivateRun, observed: Sequence[Table], columns: Columns, rate: float
) -> list[Finding]:
    """observed: the noise of steps of the run, in units of its stated deviation.

    rate: the chance that any of these tests accuses sound noise. The caller restores the run.
    """
    if run.noise.noise_multiplier == 0:
        return [Finding("noise", FAULT, "the noise multiplier is 0: nothing is protected")]
    width = sum(columns.sizes)
    # At least 16,000 numbers in all, and 64 draws; 512 where they are not too wide.
    rows = max(min(DRAWS // width, 512), 64, min(2**14 // width, 4096))
    trials = [*_again(run, columns)]
    further = np.stack([_draw(run, columns) for _ in range(rows)])
    for noise, where in ((np.stack(observed), "observed steps"), (further, "further draws")):
        for test in (_scale, _law, _apart):
            trials += [t._replace(text=f"{t.text}, {where}") for t in test(noise, columns.sizes)]
    return judge(trials, rate, BLAME)


def _draw(run: PrivateRun, columns: Columns, noise: Any = None) -> Table:
    """The noise object alone, on sums that are zero."""
    own: Any = run.noise if noise is None else noise
    charged = run.sensitivity_charged
    if run.arithmetic.name == "strict":
        whole = [torch.zeros_like(zeros, dtype=torch.int64) for zeros in columns.zeros]
        own.add_whole_(whole, BOUND)
        sums = as_values(whole, charged)
    else:
        sums = [zeros.clone() for zeros in columns.zeros]
        own.add_(sums, charged)
    drawn: Table = torch.cat([total.reshape(-1).double().cpu() for total in sums]).numpy()
    return drawn / (run.noise.noise_multiplier * charged)


def _scale(noise: Table, sizes: list[int]) -> Iterator[Trial]:
    """Size and mean, in all, of a step, of a tensor and of a coordinate."""
    square, (steps, width), each = noise**2, noise.shape, np.array(sizes)
    by_tensor = np.add.reduceat(square, np.cumsum(each) - each, axis=1)  # steps x tensors
    text = f"{np.sqrt(square.mean()):.4f} times the stated deviation over {noise.size} draws"
    yield Trial(SCALE, float(chi_square(square.sum(), noise.size)), text)
    for what, squares, degrees in (
        ("a step", square.sum(1), width),
        ("a coordinate", square.sum(0), steps),
        ("a tensor", by_tensor.sum(0), steps * each),
        ("a tensor in a step", by_tensor, each),
    ):
        p = chi_square(squares, degrees)
        size = float((squares / degrees).reshape(-1)[int(np.argmin(p))]) ** 0.5
        yield Trial(SCALE, smallest(p), f"{what} has {size:.4f} times the stated deviation")
    text = f"{noise.mean():.2g} stated deviations over {noise.size} draws"
    yield Trial(MEAN, float(normal(noise.sum() / noise.size**0.5)), text)
    squares = float((noise.sum(0) ** 2).sum() / steps)
    yield Trial(MEAN, float(chi_square(squares, width)), "means of single coordinates")


def _law(noise: Table, sizes: list[int]) -> Iterator[Trial]:
    text = f"Kolmogorov's test over {noise.size} draws"
    yield Trial(LAW, kolmogorov(scipy.special.ndtr(noise.reshape(-1))), text)
    for far in (2, 3, 4):
        beyond = int((np.abs(noise) > far).sum())
        chance = float(normal(far))
        text = f"{beyond} draws beyond {far} deviations instead of {chance * noise.size:.4g}"
        yield Trial(LAW, float(binomial(beyond, noise.size, chance)), text)


def _apart(noise: Table, sizes: list[int]) -> Iterator[Trial]:
    """No coordinate goes with another one, and no step with another one."""
    together = float((noise.sum(1) ** 2).sum() / noise.shape[1])
    yield Trial(WITHIN, float(chi_square(together, len(noise))), "the sum over all coordinates")
    # About PAIRS columns, the same places of every tensor.
    place = np.concatenate([np.arange(size) for size in sizes])
    chosen = np.flatnonzero(place < max(PAIRS // len(sizes), 1))
    yield _pairs(WITHIN, "two coordinates", noise[:, chosen].T)
    for lag in range(1, LAGS + 1):
        for left in phases(len(noise), lag):
            yield _correlated(f"between steps {lag} apart", noise[left], noise[left + lag])
    yield _pairs(FRESH, "two steps", noise[:PAIRS])


def _correlated(where: str, left: Table, right: Table) -> Trial:
    """The correlation of rows of independent standard Gaussians, and its law given one side."""
    size, product = float((left**2).sum()), float((left * right).sum())
    other = float((right**2).sum())
    found, p = 0.0, 1.0
    if size and other:
        found, p = product / (size * other) ** 0.5, float(normal(product / size**0.5))
    return Trial(FRESH, p, f"correlation {found:.4f} {where}")


def _pairs(check: str, between: str, rows: Table) -> Trial:
    """The largest correlation of two rows; its square has a beta law."""
    count, width = rows.shape
    if count < 2 or width < 2:
        return Trial(check, 1.0, f"nothing to compare between {between}")
    norms = np.linalg.norm(rows, axis=1)
    unit = rows / np.where(norms > 0, norms, 1.0)[:, None]
    matrix = np.abs(unit @ unit.T)
    np.fill_diagonal(matrix, 0.0)
    largest = float(matrix.max())
    p = scipy.stats.beta.sf(largest**2, 0.5, (width - 1) / 2) * count * (count - 1) / 2
    return Trial(check, min(1.0, float(p)), f"largest correlation {largest:.3f} of {between}")


def _again(run: PrivateRun, columns: Columns) -> Iterator[Trial]:
    """A global generator repeats when its seed is set; a step's number as seed, in two copies."""
    draws = []
    for _ in range(2):
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002
        torch.default_generator.manual_seed(0)  # torch.manual_seed would wait for other devices
        if run.device.type == "cuda":
            torch.cuda.default_generators[run.device.index or 0].manual_seed(0)
        draws.append(_draw(run, columns))
    yield _correlated("after setting the global seeds twice", *draws)
    try:
        copies = [_draw(run, columns, copy.deepcopy(run.noise)) for _ in range(2)]
    except Exception:  # a noise that cannot be copied cannot repeat itself so
        return
    if run.noise.private:
        yield _correlated("of two copies", *copies)


# ---- batches: does the sampler draw what it declares? --------------------------------------------
# A test gives trials, or a sentence where what was drawn is impossible.

SAMPLER = "sampler = accountant"
WORK = 2**25  # draws for single records
FEWEST, MOST = 128, 4096  # batches that are drawn for the tests
TABLE = 2**22  # entries of the table of batches x records
TAILS = (1 / 4, 1 / 16, 1 / 64)

Joined = NDArray[np.float32]  # batches x some records: 1 where the record is in the batch
Trials = Iterable[Trial] | str


def check_sampler(run: PrivateRun, batches: list[Indices], rate: float) -> list[Finding]:
    """The declared sampling is the accounted one, and the batches follow it.

    rate: the chance that any of these tests accuses a sound sampler.
    """
    declared, process = run.sampler.sampling, run.ledger.process(1)
    process = process.run if isinstance(process, UserLevel) else process
    accounted: Any = getattr(process, "parts", (process,))[-1]
    found: Trials
    if accounted.sampling != declared or accounted.adjacency != run.sampler.adjacency:
        found = f"accounts {accounted.sampling}"
    elif accounted.noise_multiplier != run.noise.noise_multiplier:
        found = "the accounted noise multiplier is not the running one"
    else:
        found = _trials_of(declared, batches, run.records.length)
    if isinstance(found, str):
        return [Finding(SAMPLER, FAULT, f"declares {declared}, but {found}")]
    return judge(found, rate, {SAMPLER: f"what was drawn is not {declared}, which is accounted"})


def draw_batches(run: PrivateRun) -> list[Indices]:
    """Batches of the sampler alone; whole epochs where there are epochs. The caller restores it."""
    sampler, records = run.sampler, run.records.length
    epoch = getattr(sampler.sampling, "batches_per_epoch", 1)
    for _ in range(epoch - sampler.position if sampler.position else 0):
        sampler.draw(records)  # to the end of an epoch that is under way
    count = max(int(np.clip(WORK // max(records, 1), FEWEST, MOST)), 4 * epoch)
    return [sampler.draw(records) for _ in range(count // epoch * epoch)]


def _trial(p: Any, text: str) -> Trial:
    return Trial(SAMPLER, min(float(p), 1.0), text)


def _trials_of(declared: Any, batches: list[Indices], n: int) -> Trials:
    for batch in batches:
        if len(batch) and (batch.min() < 0 or batch.max() >= n):
            return f"draws records that the data do not have ({n} records)"
        if len(np.unique(batch)) != len(batch):
            return "a batch has the same record twice"
    if isinstance(declared, ShuffledSampling | CyclicSampling | BallsInBinsSampling):
        return _epochs(declared, batches, n)
    sizes, rate = np.array([len(batch) for batch in batches]), float(declared.rate)
    if isinstance(declared, FixedSizeSampling):
        size = round(rate * n)
        rate = size / n
        if (sizes != size).any():
            return f"not every batch has {size} different records"
    if isinstance(declared, TruncatedPoissonSampling):
        most = declared.largest_batch
        if n != declared.dataset_size or (sizes > most).any():
            return f"not every batch is of at most {most} of {declared.dataset_size} records"
    if isinstance(declared, FullBatch) or rate in (0.0, 1.0):
        words = "all records or none" if (sizes == n * rate).all() else None
        return [_trial(1.0, words)] if words else "batches have other sizes"
    joined = _joined(batches, n)
    trials = [*_anew(joined, batches, n, rate)]
    if isinstance(declared, PoissonSampling):
        law, every = scipy.stats.binom(n, rate), n * len(batches)
        text = f"mean batch of {sizes.mean():.2f}, declared {n * rate:.2f}"
        trials += [_trial(binomial(sizes.sum(), every, rate), text), *_each(joined, rate)]
        for tail in TAILS:  # very large and very small batches are as frequent as declared
            trials += [_tail(sizes, law, law.isf(tail) + 1, True)]
            trials += [_tail(sizes, law, law.ppf(tail) - 1, False)]
    elif isinstance(declared, TruncatedPoissonSampling):  # binomial up to the largest size
        law = scipy.stats.binom(n, declared.join_rate)
        trials += [_tail(sizes, law, most, True)]
        trials += [_tail(sizes, law, min(law.ppf(TAILS[0]) - 1, most - 1), False)]
    return trials


def _tail(sizes: NDArray[Any], law: Any, end: float, large: bool) -> Trial:
    count = int((sizes >= end).sum() if large else (sizes <= end).sum())
    text = f"{count} of {len(sizes)} batches have at {'least' if large else 'most'} {end:g} records"
    chance = law.sf(end - 1) if large else law.cdf(end)
    return _trial(binomial(count, len(sizes), chance), text)


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


def _anew(joined: Joined, batches: list[Indices], n: int, rate: float) -> Iterator[Trial]:
    """Each record joins by its rate; given the sizes, a batch is any set of so many records."""
    counts = joined.sum(0, dtype=np.float64)
    p = binomial(counts, len(joined), rate)
    worst = counts[int(np.argmin(p))]
    yield _trial(smallest(p), f"a record joins {worst:g} of {len(joined)} batches")
    inside = joined.sum(1)
    for lag in range(1, LAGS + 1):
        for left in phases(len(joined), lag):
            shared = (joined[left] * joined[left + lag]).sum(1)
            law = scipy.stats.hypergeom(joined.shape[1], inside[left], inside[left + lag])
            score = scipy.special.ndtri(np.clip(made_uniform(law, shared), 1e-300, 1 - 1e-16))
            text = f"batches {lag} apart share {shared.mean():.2f} records on average"
            yield _trial(normal(score.sum() / len(shared) ** 0.5), text)
    # How likely are two equal batches among those that are as rarely equal as any that are?
    sizes = np.array([len(batch) for batch in batches])
    rarity = _log_sets(n, sizes)
    keys = [batch.tobytes() for batch in batches]
    times = Counter(keys)
    again = [r for key, r in zip(keys, rarity, strict=True) if times[key] > 1]
    kinds, count = np.unique(sizes[rarity >= max(again, default=np.inf)], return_counts=True)
    p = float((count * (count - 1) / 2 * np.exp(-_log_sets(n, kinds))).sum()) if again else 1.0
    yield _trial(p, f"{len(times)} different batches among {len(batches)}")


def _log_sets(n: int, sizes: NDArray[Any]) -> Any:
    """The logarithm of how many sets of so many records there are."""
    return gammaln(n + 1) - gammaln(sizes + 1) - gammaln(n - sizes + 1)


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
        p = two_sided(scipy.stats.gamma, square, width / each, 0, each)
        yield _trial(p, f"records differ {square / width:.3f} times as much as chance")


def _epochs(declared: Any, batches: list[Indices], n: int) -> Trials:
    """Every record once an epoch; in the same batch always, or in one drawn at random."""
    b = declared.batches_per_epoch
    places = np.full((len(batches) // b, n), -1, dtype=np.int64)  # of each record in each epoch
    for number, batch in enumerate(batches[: len(places) * b]):
        row = places[number // b]
        if (row[batch] >= 0).any():
            return "an epoch uses a record twice"
        row[batch] = number % b
    if (places < 0).any():
        return "an epoch does not use every record"
    if isinstance(declared, CyclicSampling) and (places != places[0]).any():
        return "the partition changes from epoch to epoch"
    if not isinstance(declared, BallsInBinsSampling) or b == 1:
        return [_trial(1.0, "every record once an epoch")]
    return _bins(places, b)


def _bins(places: NDArray[np.int64], b: int) -> Iterator[Trial]:
    epochs, n = places.shape
    sizes = np.stack([np.bincount(row, minlength=b) for row in places])
    # Each batch's size given those before it is binomial.
    counts, before = sizes[:, :-1], (np.cumsum(sizes, axis=1) - sizes)[:, :-1]
    law = scipy.stats.binom(n - before, 1 / (b - np.arange(b - 1)))
    yield _trial(kolmogorov(made_uniform(law, counts).reshape(-1)), "sizes of the batches")
    for left in phases(epochs, 1):
        same = int((places[left] == places[left + 1]).sum())
        text = f"{same} records keep their batch from one epoch to the next"
        yield _trial(binomial(same, len(left) * n, 1 / b), text)
    for left in phases(n, 1):
        same = int((places[:, left] == places[:, left + 1]).sum())
        yield _trial(binomial(same, epochs * len(left), 1 / b), "neighbours in the same batch")
