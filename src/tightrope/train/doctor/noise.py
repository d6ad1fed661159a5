"""Is the noise there in every step and coordinate, Gaussian, of the stated size, and fresh?

The tests read two tables of (noise / stated deviation), a row for each step: the noise of observed
steps, and many more draws of the noise object alone, which find what is rare or small. What they
find is stated in docs/doctor.md.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import scipy  # which imports its stats when they are needed: that takes long
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tightrope.train.discrete_noise import BOUND, as_values
from tightrope.train.doctor.findings import (
    Finding,
    Trial,
    binomial,
    chi_square,
    correlation,
    fault,
    judge,
    kolmogorov,
    likeliest,
    normal,
    phases,
)

if TYPE_CHECKING:
    from tightrope.train.run import PrivateRun

__all__ = ["Columns", "Released", "Table", "check_noise", "in_units", "set_seed"]

Table = NDArray[np.float64]  # steps x coordinates

SCALE, MEAN, LAW = "noise scale", "noise mean", "noise law"
WITHIN, FRESH, DATA = "noise independence", "noise freshness", "noise and data"
BLAME = {
    SCALE: "what is released is not what is accounted",
    MEAN: "noise that is accounted has mean zero",
    LAW: "the noise is not Gaussian, and only Gaussian noise is accounted",
    WITHIN: "the noise of one coordinate gives away another's",
    FRESH: "the noise repeats itself",
    DATA: "the noise follows the data",
}
MOST = 2**14  # coordinates that are written down, about
DRAWS = 2**19  # single numbers drawn from the noise object alone, about
PAIRS = 1024  # columns that are compared each with each
LAGS = 5


def in_units(sums: Sequence[Tensor], sensitivity: float) -> list[Tensor]:
    """Sums of a strict run are whole numbers: the same in the units of the gradients."""
    return as_values(sums, sensitivity) if sums[0].dtype is torch.int64 else list(sums)


def set_seed(device: torch.device, seed: int = 0) -> None:
    """The global generators begin at `seed`. The caller restores them."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also wait for other devices
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


@final
class Columns:
    """Some coordinates of every tensor that gets noise: its beginning, and a stretch elsewhere.

    Tensors of one size are read in the same places, so that noise they share is seen.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        share, at = max(MOST // len(tensors), 16), np.random.default_rng().random()
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


class Released(NamedTuple):
    """One step: what noise was added to, the same with noise, and the size of the batch.

    sensitivity: what the noise should be scaled by.
    """

    given: Table
    noisy: Table
    sensitivity: float
    examples: int


def check_noise(
    run: PrivateRun, seen: list[Released], columns: Columns, rate: float
) -> list[Finding]:
    """rate: the chance that any of these tests accuses sound noise. The caller restores the run."""
    if run.noise.noise_multiplier == 0:
        return [fault("noise", "the noise multiplier is 0: nothing is protected")]
    if not seen:
        return [fault("noise", "no noise was asked for in the observed steps")]
    scale = run.noise.noise_multiplier
    observed = np.stack([(s.noisy - s.given) / (scale * s.sensitivity) for s in seen])
    further = np.stack([_draw(run, columns) for _ in range(_rows(sum(columns.sizes)))])
    trials = [
        *_trials(observed, columns, "observed steps"),
        *_trials(further, columns, "further draws"),
        *_about_data(observed, seen),
        *_again(run, columns),
    ]
    return judge(trials, rate, BLAME)


def _rows(width: int) -> int:
    """At least 16,000 numbers in all, and 64 draws; 512 where they are not too wide."""
    return max(min(DRAWS // width, 512), 64, min(2**14 // width, 4096))


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


def _trials(noise: Table, columns: Columns, where: str) -> Iterator[Trial]:
    for test in (_scale, _mean, _law, _within, _fresh):
        for trial in test(noise, columns):
            yield trial._replace(text=f"{trial.text}, {where}")


def _scale(noise: Table, columns: Columns) -> Iterator[Trial]:
    square = noise**2
    steps, width = noise.shape
    sizes = np.array(columns.sizes)
    by_tensor = np.add.reduceat(square, np.cumsum(sizes) - sizes, axis=1)  # steps x tensors
    measured = f"{np.sqrt(square.mean()):.4f} times the stated deviation over {noise.size} draws"
    yield Trial(SCALE, float(chi_square(square.sum(), noise.size)), measured)
    yield _worst("a step", chi_square(square.sum(1), width), square.mean(1))
    yield _worst("a tensor", chi_square(by_tensor.sum(0), steps * sizes), by_tensor.mean(0) / sizes)
    yield _worst("a coordinate", chi_square(square.sum(0), steps), square.mean(0))
    yield _worst("a tensor in a step", scipy.stats.chi2.cdf(by_tensor, sizes), by_tensor / sizes)


def _worst(what: str, p: ArrayLike, mean_square: ArrayLike) -> Trial:
    size = float(np.asarray(mean_square).reshape(-1)[int(np.argmin(p))]) ** 0.5
    return Trial(SCALE, likeliest(p), f"{what} has {size:.4f} times the stated deviation")


def _mean(noise: Table, columns: Columns) -> Iterator[Trial]:
    steps, sizes = len(noise), np.array(columns.sizes)
    total = noise.sum(0)  # over the steps
    by_tensor = np.add.reduceat(total, np.cumsum(sizes) - sizes)
    text = f"{noise.mean():.2g} stated deviations over {noise.size} draws"
    yield Trial(MEAN, float(normal(noise.sum() / noise.size**0.5)), text)
    largest = float(np.abs(by_tensor / (steps * sizes)).max())
    text = f"at most {largest:.2g} deviations in a tensor"
    yield Trial(MEAN, likeliest(normal(by_tensor / np.sqrt(steps * sizes))), text)
    squares = float((total**2).sum() / steps)
    yield Trial(MEAN, float(chi_square(squares, noise.shape[1])), "means of single coordinates")


def _law(noise: Table, columns: Columns) -> Iterator[Trial]:
    values = noise.reshape(-1)
    text = f"Kolmogorov's test over {values.size} draws"
    yield Trial(LAW, kolmogorov(scipy.stats.norm.cdf(values)), text)
    for far in (2, 3, 4):
        beyond = int((np.abs(values) > far).sum())
        chance = 2 * float(scipy.stats.norm.sf(far))
        text = f"{beyond} draws beyond {far} deviations instead of {chance * values.size:.4g}"
        yield Trial(LAW, float(binomial(beyond, values.size, chance)), text)


def _within(noise: Table, columns: Columns) -> Iterator[Trial]:
    for lag in (1, 2):
        for left in phases(noise.shape[1], lag):
            yield _correlated(WITHIN, "neighbours", noise[:, left], noise[:, left + lag])
    together = float((noise.sum(1) ** 2).sum() / noise.shape[1])
    yield Trial(WITHIN, float(chi_square(together, len(noise))), "the sum over all coordinates")
    yield _pairs(WITHIN, "two coordinates", noise[:, columns.first_of_each()].T)


def _fresh(noise: Table, columns: Columns) -> Iterator[Trial]:
    for lag in range(1, LAGS + 1):
        for left in phases(len(noise), lag):
            yield _correlated(FRESH, f"steps {lag} apart", noise[left], noise[left + lag])
    yield _pairs(FRESH, "two steps", noise[:PAIRS])


def _correlated(check: str, between: str, left: Table, right: Table) -> Trial:
    size, p = correlation(left, right)
    return Trial(check, p, f"correlation {size:.4f} between {between}")


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


def _about_data(noise: Table, seen: list[Released]) -> Iterator[Trial]:
    """Does the size of the noise, or the noise itself, go with what the batch was?"""
    width, squares = noise.shape[1], (noise**2).sum(1)
    # each exactly standard Gaussian in a sound run
    score = np.where(
        squares < width,
        scipy.stats.norm.ppf(scipy.stats.chi2.cdf(squares, width)),
        scipy.stats.norm.isf(scipy.stats.chi2.sf(squares, width)),
    ).clip(-38, 38)
    given = np.stack([step.given for step in seen])
    sizes = np.array([step.examples for step in seen], dtype=np.float64)
    known = {"the batch size": sizes, "the size of the sum": np.linalg.norm(given, axis=1)}
    for name, values in known.items():
        away = values - values.mean()
        if away.any():
            p = float(normal(float(score @ away) / float(np.linalg.norm(away))))
            yield Trial(DATA, p, f"size of the noise against {name}")
    if given.any():
        size, p = correlation(given, noise)
        yield Trial(DATA, p, f"correlation {size:.4f} of noise and sum")


def _again(run: PrivateRun, columns: Columns) -> Iterator[Trial]:
    """A global generator repeats when its seed is set; a step's number as seed, in two copies."""
    draws = []
    for _ in range(2):
        set_seed(run.device)
        draws.append(_draw(run, columns))
    size, p = correlation(*draws)
    yield Trial(FRESH, p, f"correlation {size:.4f} after setting the global seeds twice")
    try:
        one, other = (_draw(run, columns, copy.deepcopy(run.noise)) for _ in range(2))
    except Exception:  # a noise that cannot be copied cannot repeat itself so
        return
    size, p = correlation(one, other)
    yield Trial(FRESH, p if run.noise.private else 1.0, f"correlation {size:.4f} of two copies")
