"""Last iterates as the papers print them: shifts, curves over positions, and misprints."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from tightrope.errors import DoesNotApply, InvalidInput
from tightrope.process.convex import SkipSGD
from tightrope.theorems.last_iterate.descent import cyclic_squared_mu
from tightrope.theorems.last_iterate.sampled import HiddenSkip, renyi_of_mixture, used_probability
from tightrope.theorems.last_iterate.steps import contraction, step_mu
from tightrope.validate import FloatArray

__all__ = [
    "printed_shifts",
    "skip_mu_curve",
    "skip_renyi",
    "printed_stop_renyi",
    "corrected_stop_renyi",
    "renyi_by_lemma_25",
    "rho_log_sobolev",
]


def printed_shifts(batches: int, epochs: int, position: int) -> FloatArray:
    """The papers' shifts over one step's sensitivity, for c = 1 (Theorem 35; VI-A corrected)."""
    steps = np.arange(1, batches * epochs + 1)
    last_use = batches * (epochs - 1) + position
    late = np.where(steps < last_use, 1.0 / batches, 1.0 / (batches - position + 1.0))
    return np.where(steps < position, 0.0, late)


def skip_mu_curve(process: SkipSGD) -> FloatArray:
    """mu_t of the plain pass for every index; the record is used with `used_probability`."""
    if (reason := HiddenSkip.applies(process)) is not None:
        raise DoesNotApply(reason)
    factor = contraction(process.loss, process.step_size)
    squares = cyclic_squared_mu(factor, process.records, 1, np.arange(1, process.records + 1))
    return np.asarray(step_mu(process) * np.sqrt(squares) * (1.0 + 1e-14))


def skip_renyi(order: float, records: int, index: int, step: float, factor: float = 1.0) -> float:
    """The Renyi form at one order; `step` is the mu of one step that uses the record."""
    square = np.array([step**2 * cyclic_squared_mu(factor, records, 1, index)])
    weight = np.array([used_probability(records, index)])
    return float(renyi_of_mixture(np.array([order]), square, weight)[0])


def printed_stop_renyi(order: float, records: int, step: float) -> float:
    """Theorem 26 as printed, a step^2 ln(n)/n: FALSE at n = 1; for comparison only."""
    return order * step**2 * math.log(records) / records


def corrected_stop_renyi(order: float, records: int, step: float) -> float:
    """a step^2 H_n/n, valid for (a-1) a step^2 <= 2: what the paper's own proof gives."""
    harmonic = math.fsum(1.0 / np.arange(1.0, records + 1.0))
    return order * step**2 * harmonic / records


def renyi_by_lemma_25(order: float, divergences: ArrayLike, weights: ArrayLike) -> float:
    """(1 + c) sum_i p_i D_i with c = (order - 1) max D_i, which must not exceed 1."""
    values, shares = np.asarray(divergences, float), np.asarray(weights, float)
    c = (order - 1.0) * float(values.max())
    if c > 1.0:
        raise InvalidInput(
            f"Lemma 25 needs (order - 1) * divergence <= 1 for each part; got {c:g}. Use "
            "renyi_of_mixture, which needs no condition."
        )
    return (1.0 + c) * float(values @ shares)


def rho_log_sobolev(
    sensitivity: float,
    records: int,
    constant: float,
    deviation: float,
    step_size: float,
    steps: int,
) -> float:
    """D_a / a where all laws on the way satisfy a log-Sobolev inequality with this constant.

    (S^2/(2 c s^4 n^2)) (1 - e^{-s^2 c eta K}) in the diffusion's convention (s = `deviation`), the
    survey's form before strong convexity is used; lambda-strong convexity gives c = lambda/(2 s^2).
    """
    rate = deviation**2 * constant
    scale = sensitivity**2 / (2.0 * rate * deviation**2 * records**2)
    return -scale * math.expm1(-rate * step_size * steps)
