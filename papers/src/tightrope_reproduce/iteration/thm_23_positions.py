"""Amplification by iteration, Theorems 23 and 35: privacy of each position in the pass.

The record at position t of n is (a, 2 a L^2/(sigma^2 (n + 1 - t)))-Renyi DP after one pass; with
several epochs in the same order Theorem 35 adds (epochs - 1)/n. Through shifted interpolation the
same shifts give Gaussian DP. For the first person linear losses attain it, so it is exact. For
later ones it is a bound: with linear losses all noise of the pass adds up, whatever the position,
and what other losses can do is not known.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tightrope.guarantee import gaussian as profile
from tightrope.numerics.interval import Interval
from tightrope.process.convex import ConvexLoss, CyclicSGD
from tightrope.report.style import COLOURS
from tightrope.theorems.last_iterate.descent import HiddenComposition, HiddenCyclic
from tightrope_reproduce.formulas import moments_accountant
from tightrope_reproduce.item import Item, Line, Outcome, Picture, Setting, Table, Verdict, check

RECORDS, EPOCHS, ORDER = 1000, 10, 3.0
NOISE = 8.0  # on one gradient; L = 1
DELTA = 1e-6
LOSS = ConvexLoss(1.0, 1.0)
COLUMNS = (
    "position",
    "mu",
    "epsilon_theorem_23",
    "epsilon_gaussian_dp",
    "mu_10_epochs",
    "epsilon_10",
)


def run(setting: Setting) -> Outcome:
    after = np.unique(np.geomspace(1, RECORDS, setting.points(full=200, quick=25)).astype(int))
    position = RECORDS + 1 - after[::-1]
    one, many = (HiddenCyclic.mu_curve(_process(e))[position - 1] for e in (1, EPOCHS))
    printed = moments_accountant.epsilon(1.0 / one, 1, DELTA)  # Theorem 23 with Lemma 14
    gaussian, several = profile.epsilon(DELTA, one), profile.epsilon(DELTA, many)
    table = Table(
        "positions",
        COLUMNS,
        list(zip(position, one, printed, gaussian, many, several, strict=True)),
    )
    lines = (_first_over_last(), _middle(), _theorem_35(), _gain(printed[0]))
    curves = {"printed": printed, "gaussian": gaussian, "several": several}
    return Outcome(lines, (table,), (_picture(position, curves),))


def _process(epochs: int = 1, position: int | None = None) -> CyclicSGD:
    return CyclicSGD(
        loss=LOSS,
        step_size=1.0,
        noise_std=NOISE,
        batch_size=1,
        batches_per_epoch=RECORDS,
        epochs=epochs,
        index=position,
    )


def _first_over_last() -> Line:
    mus = HiddenCyclic.mu_curve(_process())
    what = f"Renyi loss of the first of {RECORDS} people over that of the last"
    return check(what, 1.0 / RECORDS, float((mus[0] / mus[-1]) ** 2), within=1e-12)


def _middle() -> Line:
    position = RECORDS // 2
    ours = HiddenCyclic.guarantee(_process(position=position)).renyi(ORDER)
    claim = ORDER * 2.0 / (NOISE**2 * (RECORDS + 1 - position))
    what = f"Theorem 23: D_{ORDER:g} at position {position} of {RECORDS}, noise {NOISE:g}"
    linear = 0.5 * ORDER * (2.0 * LOSS.lipschitz / NOISE) ** 2 / RECORDS  # all noises add up
    truth = Interval(linear, ours.upper)
    return check(what, claim, ours.upper, within=1e-12 * claim, truth=truth)


def _theorem_35() -> Line:
    """n epochs, worst position: the paper rounds 1 + (n-1)/n up to 2."""
    ours = HiddenCyclic.guarantee(_process(epochs=RECORDS)).renyi(ORDER).upper
    claim = 4.0 * ORDER / NOISE**2
    what = f"Theorem 35: D_{ORDER:g} after {RECORDS} epochs over {RECORDS} people"
    return check(what, claim, ours, within=claim * 2.0 / RECORDS)


def _gain(printed: float) -> Line:
    guarantee = HiddenCyclic.guarantee(_process(position=1))
    return Line(
        f"epsilon of the first person at delta {DELTA:g}",
        claim=float(printed),
        ours=guarantee.epsilon(DELTA).upper,
        truth=guarantee.epsilon(DELTA),
        verdict=Verdict.BEYOND,
        because="Gaussian DP in place of Renyi DP and Lemma 14; for the first person linear "
        "losses attain it",
    )


def _picture(position: Any, curves: dict[str, Any]) -> Picture:
    seen = HiddenComposition.guarantee(_process()).epsilon(DELTA).upper

    def draw(axes: Any) -> None:
        after = RECORDS + 1 - position
        axes.axhline(seen, color=COLOURS["plain"], linestyle=":", label="every iterate released")
        many = f"last iterate, {EPOCHS} epochs (Theorem 35, bound)"
        axes.plot(after, curves["several"], color=COLOURS["bound"], label=many)
        printed = "one epoch, Theorem 23 with Lemma 14"
        axes.plot(after, curves["printed"], "--", color=COLOURS["estimate"], label=printed)
        gaussian = "one epoch, Gaussian DP (bound; exact for the first person)"
        axes.plot(after, curves["gaussian"], color=COLOURS["exact"], label=gaussian)
        axes.set(xscale="log", yscale="log", xlabel="noisy steps from the record's use to the end")
        axes.set(ylabel=f"epsilon at delta = {DELTA:g}", title="Early people are protected most")
        axes.legend(fontsize=8)

    caption = (
        f"{RECORDS} people, one gradient each, noise {NOISE:g} on gradients of norm at most 1. "
        "All curves are upper bounds; the lowest one is attained at its left end only."
    )
    return Picture("positions", caption, draw)


ITEM = Item(
    "iteration-thm-23",
    "Privacy Amplification by Iteration",
    "Theorems 23 and 35: privacy of each position",
    run,
)
