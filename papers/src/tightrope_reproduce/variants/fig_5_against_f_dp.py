"""Three Variants, Fig. 5: the improved moments accountant against f-DP.

Noisy SGD with rate 0.003, noise 0.6, 10,000 steps. The paper's curve lies below that of f-DP (the
central limit theorem), because its Renyi rate is used outside the conditions of the lemma it comes
from. Beside both: Lemma 1 with the true divergences, and the exact accountant, for Poisson batches
with a record added or removed: the reading that favours the paper (see Fig. 4).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tightrope.guarantee.kinds.renyi import LinearTerm, RenyiCurve
from tightrope.guarantee.renyi import best_for_delta
from tightrope.numerics.interval import Interval
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.report.style import COLOURS
from tightrope.theorems.limits import SampledGaussianCltBdls19
from tightrope.theorems.poisson_renyi import renyi_guarantee
from tightrope_reproduce.formulas import improved_moments_accountant
from tightrope_reproduce.formulas.abadi_lemma3 import broken_conditions, claimed_renyi
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
from tightrope_reproduce.variants.noisy_sgd import (
    PAPERS,
    admissible_orders,
    equivalent_noise,
    poisson,
)

RATE, NOISE, STEPS = 0.003, 0.6, 10_000
PROCESS = NoisySGD(PoissonSampling(RATE), NOISE, STEPS)
CHECKED = (1e-3, 1e-5, 1e-7)


class Row(NamedTuple):
    delta: float
    printed: float
    f_dp: float
    valid_renyi: float
    exact_lower: float
    exact_upper: float

    @property
    def exact(self) -> Interval:
        return Interval(self.exact_lower, self.exact_upper)


def run(setting: Setting) -> Outcome:
    deltas = np.geomspace(1e-8, 1e-2, setting.points(full=61, quick=7))
    rows = [_row(float(delta)) for delta in sorted({*deltas, *CHECKED})]
    at = {row.delta: row for row in rows}
    orders = _orders(setting)
    tables = (
        Table("epsilon", Row._fields, rows),
        Table("divergence", ("order", "claimed", "exact", "ratio"), orders),
    )
    lines = (*(_printed(at[delta]) for delta in CHECKED), *_others(at[1e-5]))
    return Outcome(lines, tables, (_epsilons(rows), _divergences(orders)))


def _row(delta: float) -> Row:
    truth = poisson(RATE, NOISE, STEPS).epsilon(delta)
    return Row(
        delta,
        improved_moments_accountant.epsilon(equivalent_noise(RATE, NOISE), STEPS, delta),
        SampledGaussianCltBdls19.guarantee(PROCESS).epsilon(delta),
        renyi_guarantee(PROCESS, route="lemma1").epsilon(delta).upper,
        truth.lower,
        truth.upper,
    )


def _orders(setting: Setting) -> list[tuple[float, ...]]:
    """One step's divergence: claimed, true, and their ratio."""
    truth = poisson(RATE, NOISE, 1)
    found = []
    for order in {2.0, 3.0, 4.0, 5.0, 7.8, *np.linspace(1.5, 9.0, setting.points(61, 6))}:
        claim, exact = claimed_renyi(order, RATE, NOISE), truth.renyi(order).upper
        found.append((float(order), claim, exact, exact / claim))
    return sorted(found)


def _printed(row: Row) -> Line:
    return Line(
        f"epsilon at delta {row.delta:g}, improved moments accountant",
        claim="drawn",
        ours=row.printed,
        truth=row.exact,
        verdict=Verdict.INVALID,
        objection=Objection.LEMMA_3,
        because=f"the rate comes from Lemma 3 of Abadi et al., which is for noise at least 1; at "
        f"noise {NOISE:g} it can understate the divergence a thousandfold",
    )


def _others(row: Row) -> tuple[Line, ...]:
    rho = claimed_renyi(2.0, RATE, NOISE) / 2.0
    used = best_for_delta(RenyiCurve.of(LinearTerm(rho)) * STEPS, row.delta, route="lemma1").order
    allowed, delta = admissible_orders(RATE, NOISE), poisson(RATE, NOISE, STEPS).delta(row.printed)
    return (
        Line(
            f"order that the printed epsilon rests on, delta {row.delta:g}",
            claim="every order above 1",
            ours=used,
            truth=f"{allowed[0]} to {allowed[-1]}, and noise at least 1",
            verdict=Verdict.INVALID,
            objection=Objection.LEMMA_3,
            because="; ".join(broken_conditions(used, RATE, NOISE)),
        ),
        Line(
            f"true delta at the drawn epsilon {row.printed:.4g}",
            claim=row.delta,
            ours=row.delta,
            truth=delta,
            verdict=Verdict.INVALID,
            objection=Objection.LEMMA_3,
            because=f"the true delta is {delta.lower / row.delta:.0f} times the claimed one",
        ),
        Line(
            f"epsilon at delta {row.delta:g}, f-DP (central limit theorem)",
            claim="drawn",
            ours=row.f_dp,
            truth=row.exact,
            verdict=Verdict.INVALID,
            objection=Objection.LIMIT,
            because="the central limit theorem is a limit, not a bound; here it claims too much",
        ),
        Line(
            f"improved moments accountant minus f-DP at delta {row.delta:g}",
            claim="negative (RDP beats f-DP)",
            ours=row.printed - row.f_dp,
            truth=row.valid_renyi - row.exact_upper,
            verdict=Verdict.INVALID,
            objection=Objection.LEMMA_3,
            because="an artefact of the rate outside its range: with true divergences no Renyi "
            "route beats exact composition of f-DP",
        ),
        Line(
            f"epsilon at delta {row.delta:g}, Lemma 1 with the true divergences",
            claim=None,
            ours=row.valid_renyi,
            truth=row.exact,
            verdict=Verdict.BEYOND,
            because="what the paper's method gives when its input is right",
        ),
    )


def _epsilons(rows: list[Row]) -> Picture:
    def draw(axes: Any) -> None:
        c = {name: np.array([getattr(row, name) for row in rows]) for name in Row._fields}
        x = c["delta"]
        axes.fill_between(x, c["exact_lower"], c["exact_upper"], color=COLOURS["exact"], alpha=0.4)
        axes.plot(x, c["valid_renyi"], "--", color=COLOURS["bound"], label="valid RDP (Lemma 1)")
        axes.plot(x, c["exact_upper"], color=COLOURS["exact"], label="exact")
        axes.plot(x, c["f_dp"], ":", color=COLOURS["estimate"], label="printed: f-DP (CLT)")
        axes.plot(x, c["printed"], "-.", color=COLOURS["attack"], label="printed: improved MA")
        axes.set(xscale="log", xlabel="delta", ylabel="epsilon", ylim=(0, None))
        axes.set_title("Rate 0.003, noise 0.6, 10,000 steps")
        axes.legend(fontsize=8)

    return Picture(
        "epsilon",
        "Both printed curves lie below the exact one, so neither is a bound here. The certified "
        "band of the exact curve is narrower than its line.",
        draw,
    )


def _divergences(orders: list[tuple[float, ...]]) -> Picture:
    def draw(axes: Any) -> None:
        order, claim, exact, _ = np.array(orders).T
        axes.plot(order, exact, color=COLOURS["exact"], label="exact")
        axes.plot(order, claim, "-.", color=COLOURS["attack"], label="claimed: order * rho")
        allowed = admissible_orders(RATE, NOISE)
        axes.axvspan(allowed[0], allowed[-1], color=COLOURS["plain"], alpha=0.15, linewidth=0)
        words = "grey: the lemma's orders\n(it also needs noise >= 1)"
        axes.text(allowed[-1] + 0.1, exact[-1] / 3, words, fontsize=8)
        axes.set(yscale="log", xlabel="order", ylabel="Renyi divergence of one step (nats)")
        axes.set_title("Why: the divergence jumps, the claim does not")
        axes.legend(fontsize=8, loc="center right")

    return Picture(
        "divergence",
        "The divergence that the paper puts in, and the true one: equal in shape up to order 3, "
        "four orders of magnitude apart where the printed epsilon takes it.",
        draw,
    )


ITEM = Item("variants-fig-5", PAPERS, "Fig. 5: improved moments accountant against f-DP", run)
