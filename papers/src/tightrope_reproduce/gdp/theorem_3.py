"""Theorem 3 and Algorithm 1: dividing by the realised batch size shows that size.

Algorithm 1 divides sum and noise by |I_t|, so the noise's scale tells |I_t|: in many dimensions
exactly. The theorem accounts for the sum alone. One more person moves |I_t| from Binomial(n, p) to
Binomial(n + 1, p), which for few people is far easier to see than the theorem allows. Divided by a
public constant, as Tightrope does, the theorem holds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.stats import binom

from tightrope.accounting import account
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.report.style import COLOURS
from tightrope_reproduce.gdp.analyses import MNIST_RATE, Analyses, epochs_of
from tightrope_reproduce.gdp.table import PAPER
from tightrope_reproduce.item import (
    Item,
    Line,
    Objection,
    Outcome,
    Picture,
    Setting,
    Table,
    Verdict,
)

RATE, NOISE = 0.5, 10.0
PEOPLE, EPOCHS, MNIST_NOISE = 60_000, 60, 1.1


def run(setting: Setting) -> Outcome:
    people = np.unique(np.geomspace(1, 1e5, setting.points(full=60, quick=12)).astype(int))
    shown = [batch_size_advantage(int(n), RATE) for n in people]
    allowed = account(NoisySGD(PoissonSampling(RATE), NOISE, 1)).delta(0.0).upper
    rows = [(int(n), tv, allowed) for n, tv in zip(people, shown, strict=True)]
    table = Table("advantage", ("people", "advantage_from_batch_size", "theorem_3"), rows)
    return Outcome(_lines(allowed), (table,), (_picture(people, shown, allowed),))


def batch_size_advantage(people: int, rate: float) -> float:
    """Total variation between the batch sizes with and without one more person."""
    sizes = np.arange(people + 2)
    with_one, without = binom.pmf(sizes, people + 1, rate), binom.pmf(sizes, people, rate)
    return 0.5 * float(np.sum(np.abs(with_one - without)))


def _lines(allowed: float) -> tuple[Line, ...]:
    seen = batch_size_advantage(1, RATE)
    run = epochs_of(EPOCHS, MNIST_NOISE)
    leak = math.sqrt(run.steps * MNIST_RATE / (PEOPLE * (1.0 - MNIST_RATE)))
    mu = Analyses(run).mu
    return (
        Line(
            "largest advantage of an attacker, one step, two people or one, p = 1/2, noise 10",
            allowed,
            allowed,
            f"at least {seen:.4g}",
            Verdict.INVALID,
            "the scale of the noise shows the batch size; divide by a public constant instead",
            Objection.BATCH_SIZE,
        ),
        Line(
            "mu of the batch sizes alone, MNIST, 60 epochs, n = 60000",
            0.0,
            leak,
            None,
            Verdict.INVALID,
            f"mu {mu:.4f} becomes about {math.hypot(mu, leak):.4f}: small, because n is large",
            Objection.BATCH_SIZE,
        ),
    )


def _picture(people: Any, shown: list[float], allowed: float) -> Picture:
    def draw(axes: Any) -> None:
        axes.plot(people, shown, color=COLOURS["attack"], label="reading the batch size alone")
        axes.axhline(allowed, color=COLOURS["bound"], linestyle="--", label="Theorem 3 allows")
        axes.set(xscale="log", yscale="log", xlabel="people in the data")
        axes.set(ylabel="attacker's advantage (total variation)")
        axes.set_title("One step of Algorithm 1, p = 1/2, noise 10")
        axes.minorticks_off()
        axes.legend(fontsize=8)

    caption = (
        "Where the curve lies above the dashed line, Algorithm 1 as printed is not as private as "
        "Theorem 3 says."
    )
    return Picture("advantage", caption, draw)


ITEM = Item("gdp-theorem-3", PAPER, "Theorem 3 against Algorithm 1: the batch size shows", run)
