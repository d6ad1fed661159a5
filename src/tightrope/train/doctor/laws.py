"""Are noise and batches what a run declares? Statistical tests with one rate of false alarms.

A trial states how likely something at least as strange is in a sound run. Every law here is exact
(binomial, chi-square, normal, Kolmogorov), so the rate holds for small models and few steps too;
`judge` divides the rate among all trials of its group (Bonferroni). docs/doctor.md says what is
found.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
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

__all__ = [
    "Columns", "Diagnosis", "Finding", "Table", "Verdict", "check_noise", "check_sampler",
    "draw_batches", "fault", "good", "in_units", "note",
]  # fmt: skip


class Verdict(Enum):
    """GOOD: tested and in order. NOTE: worth knowing. FAULT: guarantee or training fails."""

    GOOD = "good"
    NOTE = "note"
    FAULT = "fault"


@final
@dataclass(frozen=True)
class Finding:
    """The outcome of one check, in words."""

    check: str
    verdict: Verdict
    text: str


def good(check: str, text: str) -> Finding:
    """Tested and in order."""
    return Finding(check, Verdict.GOOD, text)


def note(check: str, text: str) -> Finding:
    """Worth knowing, and no fault."""
    return Finding(check, Verdict.NOTE, text)


def fault(check: str, text: str) -> Finding:
    """The guarantee or the training fails."""
    return Finding(check, Verdict.FAULT, text)


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
        return tuple(f for f in self.findings if f.verdict is Verdict.FAULT)

    @property
    def healthy(self) -> bool:
        """Whether there is no fault."""
        return not self.faults

    def of(self, check: str) -> tuple[Finding, ...]:
        """The findings of one check."""
        return tuple(f for f in self.findings if f.check == check)

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON data."""
        rows = [
            {"check": f.check, "verdict": f.verdict.value, "text": f.text} for f in self.findings
        ]
        return {"healthy": self.healthy, "false_alarm": self.false_alarm, "findings": rows}

    def __str__(self) -> str:
        marks = {Verdict.GOOD: "ok   ", Verdict.NOTE: "note ", Verdict.FAULT: "FAULT"}
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
            found.append(good(check, "too few draws to test"))
            continue
        worst = min(mine, key=lambda trial: trial.p)
        text = f"{worst.text} (p = {worst.p:.2g}, the strangest of {len(mine)} tests)"
        found.append(fault(check, f"{text}: {why}") if worst.p < level else good(check, text))
    return found


def likeliest(p: ArrayLike) -> float:
    """The p-value of the smallest of several."""
    values = np.asarray(p, dtype=np.float64)
    return float(min(1.0, values.min() * values.size)) if values.size else 1.0


def binomial(count: ArrayLike, trials: ArrayLike, chance: ArrayLike) -> Any:
    """Two-sided p-values of counts."""
    below = scipy.stats.binom.cdf(count, trials, chance)
    above = scipy.stats.binom.sf(np.asarray(count) - 1, trials, chance)
    return np.minimum(1.0, 2 * np.minimum(below, above))


def chi_square(squares: ArrayLike, degrees: ArrayLike) -> Any:
    """Two-sided p-values of sums of squares of standard Gaussians."""
    below, above = scipy.stats.chi2.cdf(squares, degrees), scipy.stats.chi2.sf(squares, degrees)
    return np.minimum(1.0, 2 * np.minimum(below, above))


def normal(score: ArrayLike) -> Any:
    """Two-sided p-values of standard Gaussians."""
    return 2 * scipy.stats.norm.sf(np.abs(score))


def kolmogorov(uniform: ArrayLike) -> float:
    """Are these numbers uniform on [0, 1]?"""
    values = np.sort(np.asarray(uniform, dtype=np.float64))
    steps = np.arange(len(values) + 1) / len(values)
    distance = max(float((steps[1:] - values).max()), float((values - steps[:-1]).max()))
    return float(scipy.stats.kstwo.sf(min(distance, 1.0), len(values)))


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
        self.places = [_places(tensor.numel(), share, at) for tensor in tensors]
        self.sizes = [len(places) for places in self.places]
        self.zeros = [
            torch.zeros_like(t) if t.numel() <= share else t.new_zeros(size)
            for t, size in zip(tensors, self.sizes, strict=True)
        ]

    def of(self, tensors: Sequence[Tensor]) -> Table:
        """The values at the chosen places; of the first tensors if there are fewer."""
        pairs = zip(tensors, self.places, strict=False)
        parts = [t.detach().reshape(-1)[places.to(t.device)].double().cpu() for t, places in pairs]
        values: Table = torch.cat(parts).numpy()
        return values

    def first_of_each(self) -> Any:
        """About PAIRS columns, the same places of every tensor."""
        place = np.concatenate([np.arange(size) for size in self.sizes])
        return np.flatnonzero(place < max(PAIRS // len(self.sizes), 1))


def _places(size: int, share: int, at: float) -> Tensor:
    if size <= share:
        return torch.arange(size, device="cpu")
    half = share // 2
    start = half + int(at * (size - share))
    later = torch.arange(start, start + share - half, device="cpu")
    return torch.cat([torch.arange(half, device="cpu"), later])


def check_noise(
    run: PrivateRun, observed: Sequence[Table], columns: Columns, rate: float
) -> list[Finding]:
    """observed: the noise of steps of the run, in units of its stated deviation.

    rate: the chance that any of these tests accuses sound noise. The caller restores the run.
    """
    if run.noise.noise_multiplier == 0:
        return [fault("noise", "the noise multiplier is 0: nothing is protected")]
    if not observed:
        return [fault("noise", "no noise was asked for in the observed steps")]
    width = sum(columns.sizes)
    # At least 16,000 numbers in all, and 64 draws; 512 where they are not too wide.
    rows = max(min(DRAWS // width, 512), 64, min(2**14 // width, 4096))
    further = np.stack([_draw(run, columns) for _ in range(rows)])
    trials = [*_again(run, columns)]
    for noise, where in ((np.stack(observed), "observed steps"), (further, "further draws")):
        for test in (_scale, _law, _apart):
            trials += [t._replace(text=f"{t.text}, {where}") for t in test(noise, columns)]
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


def _scale(noise: Table, columns: Columns) -> Iterator[Trial]:
    """Size and mean, in all, of a step, of a tensor and of a coordinate."""
    square, (steps, width) = noise**2, noise.shape
    sizes = np.array(columns.sizes)
    by_tensor = np.add.reduceat(square, np.cumsum(sizes) - sizes, axis=1)  # steps x tensors
    text = f"{np.sqrt(square.mean()):.4f} times the stated deviation over {noise.size} draws"
    yield Trial(SCALE, float(chi_square(square.sum(), noise.size)), text)
    for what, squares, degrees in (
        ("a step", square.sum(1), width),
        ("a coordinate", square.sum(0), steps),
        ("a tensor", by_tensor.sum(0), steps * sizes),
        ("a tensor in a step", by_tensor, sizes),
    ):
        p = chi_square(squares, degrees)
        size = float((squares / degrees).reshape(-1)[int(np.argmin(p))]) ** 0.5
        yield Trial(SCALE, likeliest(p), f"{what} has {size:.4f} times the stated deviation")
    text = f"{noise.mean():.2g} stated deviations over {noise.size} draws"
    yield Trial(MEAN, float(normal(noise.sum() / noise.size**0.5)), text)
    squares = float((noise.sum(0) ** 2).sum() / steps)
    yield Trial(MEAN, float(chi_square(squares, width)), "means of single coordinates")


def _law(noise: Table, columns: Columns) -> Iterator[Trial]:
    values = noise.reshape(-1)
    text = f"Kolmogorov's test over {values.size} draws"
    yield Trial(LAW, kolmogorov(scipy.stats.norm.cdf(values)), text)
    for far in (2, 3, 4):
        beyond = int((np.abs(values) > far).sum())
        chance = 2 * float(scipy.stats.norm.sf(far))
        text = f"{beyond} draws beyond {far} deviations instead of {chance * values.size:.4g}"
        yield Trial(LAW, float(binomial(beyond, values.size, chance)), text)


def _apart(noise: Table, columns: Columns) -> Iterator[Trial]:
    """No coordinate goes with another one, and no step with another one."""
    together = float((noise.sum(1) ** 2).sum() / noise.shape[1])
    yield Trial(WITHIN, float(chi_square(together, len(noise))), "the sum over all coordinates")
    yield _pairs(WITHIN, "two coordinates", noise[:, columns.first_of_each()].T)
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
    if accounted.sampling != declared or accounted.adjacency != run.sampler.adjacency:
        return [fault(SAMPLER, f"runs {declared}, accounts {accounted.sampling}")]
    if accounted.noise_multiplier != run.noise.noise_multiplier:
        return [fault(SAMPLER, "the accounted noise multiplier is not the running one")]
    found = _trials_of(declared, batches, run.records.length)
    if isinstance(found, str):
        return [fault(SAMPLER, f"declares {declared}, but {found}")]
    return judge(found, rate, {SAMPLER: f"what was drawn is not {declared}, which is accounted"})


def draw_batches(run: PrivateRun) -> list[Indices]:
    """Batches of the sampler alone; whole epochs where there are epochs. The caller restores it."""
    sampler, records = run.sampler, run.records.length
    epoch = getattr(sampler.sampling, "batches_per_epoch", 1)
    for _ in range(epoch - sampler.position if sampler.position else 0):
        sampler.draw(records)  # to the end of an epoch that is under way
    count = max(int(np.clip(WORK // max(records, 1), FEWEST, MOST)), 4 * epoch)
    return [sampler.draw(records) for _ in range(count // epoch * epoch)]


def _trials_of(declared: Any, batches: list[Indices], n: int) -> Trials:
    for batch in batches:
        if len(batch) and (batch.min() < 0 or batch.max() >= n):
            return f"draws records that the data do not have ({n} records)"
        if len(np.unique(batch)) != len(batch):
            return "a batch has the same record twice"
    if isinstance(declared, FullBatch):
        whole = all(len(batch) == n for batch in batches)
        return _exactly("all records, always") if whole else "a batch leaves records out"
    return _TESTS[type(declared)](declared, batches, n)


def _trial(p: Any, text: str) -> Trial:
    return Trial(SAMPLER, min(float(p), 1.0), text)


def _exactly(text: str) -> list[Trial]:
    return [_trial(1.0, text)]


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
    return _anew(_joined(batches, n), batches, n, size / n)


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
    inside = joined.sum(1)
    for lag in range(1, LAGS + 1):
        for left in phases(len(joined), lag):
            shared = (joined[left] * joined[left + lag]).sum(1)
            law = scipy.stats.hypergeom(joined.shape[1], inside[left], inside[left + lag])
            # Counts become standard Gaussians, exactly, by a draw inside each count's step.
            place = law.cdf(shared - 1) + np.random.default_rng().random(len(shared)) * law.pmf(
                shared
            )
            score = scipy.stats.norm.ppf(np.clip(place, 1e-300, 1 - 1e-16))
            text = f"batches {lag} apart share {shared.mean():.2f} records on average"
            yield _trial(normal(score.sum() / len(shared) ** 0.5), text)
    yield _repeats(batches, n)


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
    return _trial(p, f"{len(times)} different batches among {len(batches)}")


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
        return _exactly("every record once an epoch")
    return _bins(places, b)


def _bins(places: NDArray[np.int64], b: int) -> Iterator[Trial]:
    epochs, n = places.shape
    sizes = np.stack([np.bincount(row, minlength=b) for row in places])
    # Each batch's size given those before it is binomial: turned into uniform numbers.
    counts, before = sizes[:, :-1], (np.cumsum(sizes, axis=1) - sizes)[:, :-1]
    law = scipy.stats.binom(n - before, 1 / (b - np.arange(b - 1)))
    inside = np.random.default_rng().random(counts.shape)
    uniform = (law.cdf(counts - 1) + inside * law.pmf(counts)).reshape(-1)
    yield _trial(kolmogorov(uniform), "sizes of the batches")
    for left in phases(epochs, 1):
        same = int((places[left] == places[left + 1]).sum())
        text = f"{same} records keep their batch from one epoch to the next"
        yield _trial(binomial(same, len(left) * n, 1 / b), text)
    for left in phases(n, 1):
        same = int((places[:, left] == places[:, left + 1]).sum())
        yield _trial(binomial(same, epochs * len(left), 1 / b), "neighbours in the same batch")


_TESTS: dict[type, Callable[[Any, list[Indices], int], Trials]] = {
    PoissonSampling: _poisson,
    TruncatedPoissonSampling: _truncated,
    FixedSizeSampling: _fixed,
    ShuffledSampling: _epochs,
    CyclicSampling: _epochs,
    BallsInBinsSampling: _epochs,
}
