"""Beyond the survey: what is known today about the last iterate of noisy SGD.

Left: epsilon against the number of epochs at one noise, batches of n/10: every iterate released
(fixed batches, and Poisson sampling, exactly), and the last iterate alone, convex, projected,
strongly convex, with fixed and with random batches. Right: a record used once, then k common
projected steps: Theorem 23 through Gaussian DP, and the contraction of the hockey-stick divergence,
which decays exponentially and for clipped gradients needs no convexity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tightrope.accounting import account
from tightrope.process import NoisySGD, PoissonSampling, Released
from tightrope.process.convex import ClippedLoss, ConvexLoss, CyclicSGD
from tightrope.report.style import COLOURS
from tightrope.theorems.last_iterate.bounded import HiddenHockeyStick
from tightrope.theorems.last_iterate.descent import HiddenCyclic
from tightrope_reproduce.item import Item, Line, Outcome, Picture, Setting, Table, Verdict
from tightrope_reproduce.survey.techniques import CONVEX, STRONG, Setup, cyclic, sampled

RECORDS, BATCH, SIGMA, DELTA = 1000, 100, 6.0, 1e-6
DIAMETER = 0.5  # of the set projected on: 50 times what one step can move
ONE_USE, AT_EPSILON = {"lipschitz": 1.0, "noise": 4.0, "diameter": 0.2, "step": 0.1}, 1.0
Make = Callable[[Setup], Any]


def _fixed(**known: Any) -> Make:
    """Fixed batches in a fixed order; `known` changes what is known of the process."""
    return lambda setup: replace(cyclic(setup, SIGMA), **known)


def _random(**known: Any) -> Make:
    """Fresh random batches of the same size."""
    return lambda setup: replace(sampled(setup, SIGMA), **{"loss": CONVEX, **known})


def _poisson(setup: Setup) -> NoisySGD:
    return NoisySGD(PoissonSampling(1.0 / setup.batches), SIGMA, setup.iterations)


CURVES: dict[str, tuple[Make, str, str]] = {
    "fixed, every iterate": (_fixed(released=Released.EVERY_ITERATE), "plain", ":"),
    "Poisson, every iterate (exact)": (_poisson, "exact", ":"),
    "fixed, last, convex (FMTT18)": (_fixed(), "bound", "--"),
    "fixed, last, projected": (_fixed(diameter=DIAMETER), "bound", "-"),
    "fixed, last, strongly convex": (_fixed(loss=STRONG), "estimate", "-"),
    "random, last, projected": (_random(diameter=DIAMETER), "attack", "-"),
    "random, last, strongly convex": (_random(loss=STRONG), "other", "-"),
}


def run(setting: Setting) -> Outcome:
    epochs = np.unique(np.geomspace(1, 3000, setting.points(full=15, quick=3)).round().astype(int))
    values: dict[str, list[float]] = {}
    for name, (make, *_) in CURVES.items():
        setting.tell(name)
        values[name] = [_epsilon(make, int(count)) for count in epochs]
    later = np.unique(np.linspace(0, 30, setting.points(full=31, quick=7)).astype(int))
    once = [(int(k), *_one_use(int(k))) for k in later]
    tables = (
        Table("epochs", ("epochs", *values), list(zip(epochs, *values.values(), strict=True))),
        Table("one_use", ("later_steps", "gaussian", "contraction", "any_clipped"), once),
    )
    lines = (_plateau(values, epochs[-1]), _both(values, epochs[-1]), _contraction())
    return Outcome(lines, tables, (_picture(epochs, values, np.array(once)),))


def _epsilon(make: Make, epochs: int) -> float:
    """The best that any theorem proves."""
    process = make(Setup(RECORDS, BATCH, epochs, 1.0, DELTA))
    return account(process).epsilon(DELTA).upper


def _one_use(later: int) -> tuple[float, float, float]:
    """delta at AT_EPSILON of the record used `later` steps before the end."""
    run = CyclicSGD(
        loss=ConvexLoss(ONE_USE["lipschitz"], 1.0),
        step_size=ONE_USE["step"],
        noise_std=ONE_USE["noise"],
        diameter=ONE_USE["diameter"],
        batch_size=1,
        batches_per_epoch=later + 1,
        index=1,
    )
    clipped = replace(run, loss=ClippedLoss(ONE_USE["lipschitz"]))
    guarantees = (
        HiddenCyclic.guarantee(run),
        HiddenHockeyStick.guarantee(run),
        HiddenHockeyStick.guarantee(clipped),
    )
    gaussian, convex, free = (g.delta(AT_EPSILON).upper for g in guarantees)
    return gaussian, convex, free


def _plateau(values: dict[str, list[float]], epochs: int) -> Line:
    return Line(
        f"epsilon after {epochs} epochs of fixed batches, convex loss on a set of diameter "
        f"{DIAMETER:g}",
        claim=values["fixed, last, convex (FMTT18)"][-1],
        ours=values["fixed, last, projected"][-1],
        truth=None,
        verdict=Verdict.BEYOND,
        because="projection forgets the start (Altschuler, Talwar 2022; Bok, Su, Altschuler 2024)",
    )


def _both(values: dict[str, list[float]], epochs: int) -> Line:
    return Line(
        f"epsilon after {epochs} epochs of random batches, strongly convex",
        claim=values["Poisson, every iterate (exact)"][-1],
        ours=values["random, last, strongly convex"][-1],
        truth=None,
        verdict=Verdict.BEYOND,
        because="sampling and hidden iterates together; the claim is exact sampling alone",
    )


def _contraction() -> Line:
    later = 5
    gaussian, convex, free = _one_use(later)
    return Line(
        f"delta at epsilon {AT_EPSILON:g}, {later} common projected steps after the use",
        claim=gaussian,
        ours=min(gaussian, convex),
        truth=None,
        verdict=Verdict.BEYOND,
        because=f"hockey-stick contraction; {free:.2e} for any clipped loss, where Theorem 23 "
        "says nothing",
    )


def _picture(epochs: Any, values: dict[str, list[float]], once: Any) -> Picture:
    def draw(axes: Any) -> None:
        left, right = axes
        for name, (_, colour, line) in CURVES.items():
            left.plot(epochs, values[name], line, color=COLOURS[colour], label=name)
        left.set(xscale="log", yscale="log", xlabel="epochs", title=f"sigma = {SIGMA:g}, Q = 10")
        left.set_ylabel(f"epsilon at delta = {DELTA:g}")
        left.legend(fontsize=7, loc="upper left")
        names = ("Theorem 23 (Gaussian DP)", "contraction, convex", "contraction, any clipped loss")
        looks = (("bound", "--"), ("exact", "-"), ("attack", "-."))
        for column, (name, (colour, line)) in enumerate(zip(names, looks, strict=True), start=1):
            right.plot(once[:, 0], once[:, column], line, color=COLOURS[colour], label=name)
        right.set(yscale="log", xlabel="common steps after the record's use", title="one use")
        right.set_ylabel(f"delta at epsilon = {AT_EPSILON:g}")
        right.legend(fontsize=8)

    caption = (
        "Certified upper bounds (Poisson: exact). Fixed and random batches: replace-one "
        "neighbours; Poisson: add-or-remove, noise 2 sigma L as in the survey's Algorithm 1. "
        "Right: D/(eta noise) = 1/2."
    )
    return Picture("frontier", caption, draw, columns=2, width=5.6, height=4.6)


ITEM = Item(
    "survey-frontier",
    "The Privacy Analysis of DP-SGD (survey)",
    "Beyond: the last iterate today",
    run,
)
