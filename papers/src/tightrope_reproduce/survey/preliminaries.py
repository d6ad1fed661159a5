"""Survey, Sections II to V and Theorem A.1: the classical tools, and where they hold.

Left: Theorem II.3's advanced composition of k mechanisms, the shortcut 2 epsilon sqrt(2 k ln(1/d'))
that the survey gives "for epsilon < 1", and the optimal composition. Right: Theorem A.1's closed
Renyi bound 2 q^2 alpha/sigma^2 over the exact divergence, at the orders its conditions allow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tightrope.accounting import account
from tightrope.guarantee.approx import advanced, amplified
from tightrope.numerics.interval import Interval
from tightrope.process import Adjacency, FullBatch, NoisySGD, PoissonSampling
from tightrope.report.style import COLOURS
from tightrope.theorems.poisson_renyi import ClosedFormTerm
from tightrope_reproduce.formulas.optimal_composition import epsilon_optimal
from tightrope_reproduce.formulas.simple_composition import shortcut
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

EPSILON, SLACK, COUNT = 0.9, 1e-5, 1000
CLOSED = ((0.01, 4.0), (0.001, 4.0), (0.01, 16.0))  # rate, noise multiplier
_SMALL = 1e-6  # an epsilon at which the shortcut is a bound for every k drawn


def run(setting: Setting) -> Outcome:
    counts = np.unique(np.geomspace(1, COUNT, setting.points(full=40, quick=10)).astype(int))
    composed = [(int(k), printed(int(k)), _advanced(int(k)), *_optimal(int(k))) for k in counts]
    ratios = [row for pair in CLOSED for row in _ratios(*pair, setting)]
    tables = (
        Table("composition", ("k", "shortcut", "advanced", "least", "least_upper"), composed),
        Table("closed_form", ("rate", "sigma", "order", "bound", "exact"), ratios),
    )
    lines = (_shortcut(), _sampled(), _closed(ratios), _large_epsilon())
    return Outcome(lines, tables, (_picture(np.array(composed), np.array(ratios)),))


def printed(count: int) -> float:
    """The shortcut at any epsilon: it is linear, and refused where it is no bound."""
    return shortcut(_SMALL, SLACK, count) * EPSILON / _SMALL


def _advanced(count: int) -> float:
    return advanced([(EPSILON, 0.0)], SLACK, [count])[0]


def _optimal(count: int) -> tuple[float, float]:
    least = epsilon_optimal(SLACK, EPSILON, 0.0, count)
    return least.lower, least.upper


def _shortcut() -> Line:
    truth = Interval(*_optimal(COUNT))
    return Line(
        f"{COUNT} mechanisms of epsilon {EPSILON:g}, delta' = {SLACK:g}: composed epsilon",
        claim=printed(COUNT),
        ours=_advanced(COUNT),
        truth=truth,
        verdict=Verdict.INVALID if truth.lower > printed(COUNT) else Verdict.DIFFERS,
        objection=Objection.ADVANCED,
        because="epsilon < 1 is not enough; it needs e^epsilon - 1 <= sqrt(2 ln(1/delta')/k)",
    )


def _sampled() -> Line:
    """Section III-A: '(q epsilon, q delta)' after sampling; Theorem II.4 is tight."""
    epsilon, rate = 1.0, 0.01
    ours = amplified(epsilon, 0.0, rate, Adjacency.ADD_OR_REMOVE)[0]
    return Line(
        f"epsilon {epsilon:g} after Poisson sampling at rate {rate:g}",
        claim=rate * epsilon,
        ours=ours,
        truth=ours,
        verdict=Verdict.INVALID,
        objection=Objection.SAMPLED_ONCE,
        because="ln(1 + q (e^epsilon - 1)) is about 1.7 q epsilon at epsilon = 1",
    )


def _ratios(rate: float, sigma: float, setting: Setting) -> list[tuple[float, ...]]:
    orders = np.geomspace(1.1, 200.0, setting.points(full=60, quick=16))
    term = ClosedFormTerm(rate, sigma)
    kept = orders[term.covers(orders)]
    one = account(NoisySGD(PoissonSampling(rate), sigma, 1))
    exact = [one.renyi(float(order)).upper for order in kept]
    return [
        (rate, sigma, float(a), float(bound), e)
        for a, bound, e in zip(kept, term.upper(kept), exact, strict=True)
    ]


def _closed(ratios: list[tuple[float, ...]]) -> Line:
    shares = np.array([row[4] / row[3] for row in ratios])
    return Line(
        "largest exact divergence over Theorem A.1's bound",
        claim=1.0,
        ours=float(shares.max()),
        truth=None,
        verdict=Verdict.HOLDS if shares.max() <= 1.0 else Verdict.INVALID,
        because="a valid bound, about four times too large",
    )


def _large_epsilon() -> Line:
    """'We only get amplification in the high privacy regime, not allowing epsilon > 1.'"""
    rate, sigma, steps, delta = 0.01, 0.7, 1000, 1e-6
    with_sampling = account(NoisySGD(PoissonSampling(rate), sigma, steps)).epsilon(delta)
    without = account(NoisySGD(FullBatch(), sigma, steps)).epsilon(delta)
    return Line(
        f"epsilon by sampling at q = {rate:g}, sigma {sigma:g}, {steps} steps, over no sampling",
        claim="no amplification for epsilon > 1",
        ours=with_sampling.upper / without.lower,
        truth=with_sampling,
        verdict=Verdict.INVALID,
        objection=Objection.SAMPLED_OFTEN,
        because=f"epsilon {with_sampling.upper:.3g} against {without.upper:.4g}: sampling "
        "amplifies at every epsilon",
    )


def _picture(composed: Any, ratios: Any) -> Picture:
    def draw(axes: Any) -> None:
        left, right = axes
        names = ("shortcut, as printed", "advanced composition", "optimal composition (exact)")
        looks = (("attack", "--"), ("bound", "-."), ("exact", "-"))
        for column, (name, (colour, line)) in enumerate(zip(names, looks, strict=True), start=1):
            left.plot(composed[:, 0], composed[:, column], line, color=COLOURS[colour], label=name)
        left.set(xscale="log", yscale="log", xlabel="mechanisms k", ylabel="composed epsilon")
        left.set_title(f"k times epsilon {EPSILON:g}, delta' = {SLACK:g}")
        styles = (("bound", "-"), ("estimate", "--"), ("other", ":"))
        for (rate, sigma), (colour, style) in zip(CLOSED, styles, strict=True):
            rows = ratios[(ratios[:, 0] == rate) & (ratios[:, 1] == sigma)]
            label = f"q = {rate:g}, sigma = {sigma:g}"
            loose = rows[:, 3] / rows[:, 4]
            right.plot(rows[:, 2], loose, style, color=COLOURS[colour], label=label)
        right.set(xscale="log", xlabel="order", ylabel="bound / exact divergence", ylim=(0, 5.5))
        right.axhline(1.0, color=COLOURS["exact"], linewidth=1, label="exact")
        right.set_title("Theorem A.1 at its orders")
        for panel in axes:
            panel.legend(fontsize=8)

    caption = (
        "Left: below the exact curve a claim is false; its certified band is narrower than the "
        "line. Right: how loose the closed Renyi bound is."
    )
    return Picture("tools", caption, draw, columns=2, width=5.2)


ITEM = Item(
    "survey-preliminaries",
    "The Privacy Analysis of DP-SGD (survey)",
    "Sections II to V, Theorem A.1: classical tools",
    run,
)
