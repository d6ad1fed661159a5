"""Is the noise there in every step and coordinate, Gaussian, of the stated size, and fresh?

The tests look at two tables of (noise / stated deviation), a row for each step: the noise of the
rehearsed steps, and many more draws of the noise object alone, which find what is rare or small.
Stated power: `docs/training.md`, section on the doctor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import scipy  # which imports its stats when they are needed: that takes long
import torch
from numpy.typing import ArrayLike, NDArray

from tightrope.train.doctor.chance import same_chance
from tightrope.train.doctor.columns import Columns
from tightrope.train.doctor.rehearsal import Observed
from tightrope.train.doctor.trials import (
    Trial,
    binomial,
    chi_square,
    correlation,
    judge,
    kolmogorov,
    likeliest,
    normal,
    phases,
)
from tightrope.train.doctor.verdict import Finding, fault
from tightrope.train.optimizer import PrivateOptimizer

if TYPE_CHECKING:
    from tightrope.train.noise import Noise

__all__ = ["check_noise"]

Table = NDArray[np.float64]  # steps x coordinates

SCALE, MEAN, LAW = "noise scale", "noise mean", "noise law"
WITHIN, FRESH, DATA = "noise independence", "noise freshness", "noise and data"
BLAME = {
    SCALE: "what is released is not what is accounted",
    MEAN: "noise that is accounted has mean zero",
    LAW: "the noise is not Gaussian, and only Gaussian noise is accounted",
    WITHIN: "the noise of one coordinate tells about another's",
    FRESH: "the noise repeats itself",
    DATA: "the noise follows the data",
}
# coordinates drawn from the noise object alone, and calls of it
FEWEST_DRAWS, MOST_DRAWS = 2**14, 2**19
FEWEST, ENOUGH, MOST = 64, 512, 4096
PAIRS = 1024  # columns that are compared each with each
LAGS = 5


def check_noise(
    run: PrivateOptimizer, seen: list[Observed], columns: Columns, rate: float
) -> list[Finding]:
    """rate: the chance that any of these tests accuses sound noise."""
    if run.noise.noise_multiplier == 0:
        return [fault("noise", "the noise multiplier is 0: nothing is protected")]
    steps = [step for step in seen if step.noisy is not None]
    if not steps:
        return [fault("noise", "no noise was asked for in the rehearsal")]
    rehearsed = np.stack([_noise_of(run, step) for step in steps])
    alone = _alone(run, columns)
    trials = [
        *_trials(rehearsed, columns, "rehearsed steps"),
        *_trials(alone, columns, "further draws"),
        *_about_data(rehearsed, steps),
        _own_generator(run, columns),
        *_copies(run, columns),
    ]
    return judge(trials, rate, BLAME)


def _noise_of(run: PrivateOptimizer, step: Observed) -> NDArray[np.float64]:
    """In stated deviations: of the sensitivity that the noise was asked for."""
    assert step.noisy is not None and step.given is not None
    added: NDArray[np.float64] = (step.noisy - step.given).numpy()
    return added / (run.noise.noise_multiplier * step.sensitivity)


def _alone(run: PrivateOptimizer, columns: Columns) -> Table:
    """Draws of the noise object on sums that are zero; some coordinates of every tensor."""
    width = sum(columns.sizes)
    rows = max(min(MOST_DRAWS // width, ENOUGH), FEWEST, min(FEWEST_DRAWS // width, MOST))
    return np.stack([_draw(run, columns) for _ in range(rows)])


def _draw(
    run: PrivateOptimizer, columns: Columns, noise: Noise | None = None
) -> NDArray[np.float64]:
    sums = [torch.zeros(shape, device=run.device) for shape in columns.shapes]
    (run.noise if noise is None else noise).add_(sums, run.sensitivity_charged)
    drawn: NDArray[np.float64] = (
        torch.cat([total.reshape(-1) for total in sums]).double().cpu().numpy()
    )
    return drawn / (run.noise.noise_multiplier * run.sensitivity_charged)


def _trials(noise: Table, columns: Columns, where: str) -> Iterator[Trial]:
    tests: list[Callable[[Table, Columns], Iterator[Trial]]]
    tests = [_scale, _mean, _law, _within, _fresh]
    for test in tests:
        for trial in test(noise, columns):
            yield Trial(trial.check, trial.p, f"{trial.told}, {where}")


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
    place = int(np.argmin(p))
    size = float(np.asarray(mean_square).reshape(-1)[place]) ** 0.5
    return Trial(SCALE, likeliest(p), f"{what} has {size:.4f} times the stated deviation")


def _mean(noise: Table, columns: Columns) -> Iterator[Trial]:
    steps, sizes = len(noise), np.array(columns.sizes)
    total = noise.sum(0)  # over the steps
    by_tensor = np.add.reduceat(total, np.cumsum(sizes) - sizes)
    told = f"{noise.mean():.2g} stated deviations over {noise.size} draws"
    yield Trial(MEAN, float(normal(noise.sum() / noise.size**0.5)), told)
    p = normal(by_tensor / np.sqrt(steps * sizes))
    largest = float(np.abs(by_tensor / (steps * sizes)).max())
    yield Trial(MEAN, likeliest(p), f"at most {largest:.2g} deviations in a tensor")
    squares = float((total**2).sum() / steps)
    told = "means of single coordinates"
    yield Trial(MEAN, float(chi_square(squares, noise.shape[1])), told)


def _law(noise: Table, columns: Columns) -> Iterator[Trial]:
    values = noise.reshape(-1)
    told = f"Kolmogorov's test over {values.size} draws"
    yield Trial(LAW, kolmogorov(scipy.stats.norm.cdf(values)), told)
    for far in (2, 3, 4):
        beyond = int((np.abs(values) > far).sum())
        chance = 2 * float(scipy.stats.norm.sf(far))
        told = f"{beyond} draws beyond {far} deviations instead of {chance * values.size:.4g}"
        yield Trial(LAW, float(binomial(beyond, values.size, chance)), told)


def _within(noise: Table, columns: Columns) -> Iterator[Trial]:
    for lag in (1, 2):
        for left in phases(noise.shape[1], lag):
            yield _correlated(WITHIN, "neighbours", noise[:, left], noise[:, left + lag])
    together = float((noise.sum(1) ** 2).sum() / noise.shape[1])
    yield Trial(WITHIN, float(chi_square(together, len(noise))), "the sum over all coordinates")
    some = noise[:, columns.first_of_each(PAIRS)]
    yield _pairs(WITHIN, "two coordinates", some.T)


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
    norms = np.linalg.norm(rows, axis=1)
    unit = rows / np.where(norms > 0, norms, 1.0)[:, None]
    if count < 2 or width < 2:
        return Trial(check, 1.0, f"nothing to compare between {between}")
    matrix = np.abs(unit @ unit.T)
    np.fill_diagonal(matrix, 0.0)
    largest = float(matrix.max())
    p = scipy.stats.beta.sf(largest**2, 0.5, (width - 1) / 2) * count * (count - 1) / 2
    return Trial(check, min(1.0, float(p)), f"largest correlation {largest:.3f} of {between}")


def _about_data(noise: Table, steps: list[Observed]) -> Iterator[Trial]:
    """Does the size of the noise, or the noise itself, go with what the batch was?"""
    width = noise.shape[1]
    squares = (noise**2).sum(1)
    # each exactly standard Gaussian in a sound run
    score = np.where(
        squares < width,
        scipy.stats.norm.ppf(scipy.stats.chi2.cdf(squares, width)),
        scipy.stats.norm.isf(scipy.stats.chi2.sf(squares, width)),
    ).clip(-38, 38)
    given = np.stack([step.given.numpy() for step in steps if step.given is not None])
    known = {
        "the batch size": np.array([step.batch_size for step in steps], dtype=np.float64),
        "the size of the sum": np.linalg.norm(given, axis=1),
    }
    for name, values in known.items():
        away = values - values.mean()
        if away.any():
            p = float(normal(float(score @ away) / float(np.linalg.norm(away))))
            yield Trial(DATA, p, f"size of the noise against {name}")
    if given.any():
        size, p = correlation(given, noise)
        yield Trial(DATA, p, f"correlation {size:.4f} of noise and sum")


def _own_generator(run: PrivateOptimizer, columns: Columns) -> Trial:
    """Noise from a global generator repeats when anybody sets its seed."""
    draws = []
    for _ in range(2):
        with same_chance(run.device):
            draws.append(_draw(run, columns))
    size, p = correlation(*draws)
    return Trial(FRESH, p, f"correlation {size:.4f} after setting the global seeds twice")


def _copies(run: PrivateOptimizer, columns: Columns) -> Iterator[Trial]:
    """Two copies of the noise must not agree, as they do where a step's number is the seed."""
    try:
        copies = [copy.deepcopy(run.noise) for _ in range(2)]
        one, other = (_draw(run, columns, noise) for noise in copies)
    except Exception:  # a noise that cannot be copied cannot repeat itself so
        return
    size, p = correlation(one, other)
    yield Trial(FRESH, p if run.noise.private else 1.0, f"correlation {size:.4f} of two copies")
