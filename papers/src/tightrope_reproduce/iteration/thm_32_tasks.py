"""Amplification by iteration, Theorem 32: k tasks on the same records for one budget.

Each task is one Stop-PNSGD run; all outputs are released. Drawn: noise on a gradient as k grows:
composed local guarantees (sqrt(k)), Theorem 32 with H_n for ln n, and the planner's least noise.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from tightrope.guarantee.gaussian import compose_mu
from tightrope.process.convex import ConvexLoss
from tightrope.report.style import COLOURS
from tightrope_reproduce.formulas.gaussian_noise import analytic_noise
from tightrope_reproduce.item import Item, Line, Outcome, Picture, Setting, Table, Verdict
from tightrope_reproduce.plan import ConvexPlan, many_tasks
from tightrope_reproduce.plan.tasks import printed_noise

RECORDS, EPSILON, DELTA = 1000, 0.9, 1e-5
LOSS = ConvexLoss(1.0, 0.25)


def run(setting: Setting) -> Outcome:
    counts = (1, 10, 100) if setting.quick else (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
    rows = []
    for count in counts:
        setting.tell(f"{count} task(s)")
        printed = printed_noise(LOSS.lipschitz, count, RECORDS, EPSILON, DELTA)
        rows.append((count, composed_noise(count), printed, _plan(count).noise_std))
    columns = ("tasks", "noise_composition", "noise_theorem_32", "noise_planned")
    lines = (_flat(rows), _text(), _less(rows), _certified(counts[-1]))
    return Outcome(lines, (Table("tasks", columns, rows),), (_picture(np.array(rows)),))


def composed_noise(tasks: int) -> float:
    """Every gradient locally private, all of them composed."""
    return float(analytic_noise(EPSILON, DELTA, compose_mu([2.0 * LOSS.lipschitz], [tasks])))


@cache
def _plan(tasks: int) -> ConvexPlan:
    return many_tasks(
        LOSS,
        tasks=tasks,
        records=RECORDS,
        dimension=10,
        radius=1.0,
        epsilon=EPSILON,
        delta=DELTA,
    )


def _flat(rows: Any) -> Line:
    """k H_n/n <= ln(1/delta) leaves the printed noise as it is."""
    first, hundred = rows[0], next(row for row in rows if row[0] == 100)
    return Line(
        "Theorem 32's noise for 100 tasks over that for one; ours: the planner's",
        claim=hundred[2] / first[2],
        ours=hundred[3] / first[3],
        truth=None,
        verdict=Verdict.BEYOND,
        because=f"the planner's noise grows, and is still {hundred[2] / hundred[3]:.1f} times "
        "smaller",
    )


def _text() -> Line:
    """Section 5.4 says that sigma grows by max{k/n, 1}; Theorem 32 has the root of k ln(n)/n."""
    many = 100 * RECORDS
    largest = [max(k * math.log(RECORDS) / RECORDS, math.log(1.0 / DELTA)) for k in (1, many)]
    return Line(
        f"growth of Theorem 32's noise for {many} tasks on {RECORDS} records",
        claim=many / RECORDS,
        ours=math.sqrt(largest[1] / largest[0]),  # sigma is the root of q, ln n as printed
        truth=None,
        verdict=Verdict.DIFFERS,
        because="Section 5.4 says max{O~(k/n), 1}; Theorem 32 itself grows like its root",
    )


def _less(rows: Any) -> Line:
    row = next(row for row in rows if row[0] == 100)
    return Line(
        f"noise for 100 tasks, n = {RECORDS}, ({EPSILON:g}, {DELTA:g})-DP",
        claim=row[2],
        ours=row[3],
        truth=None,
        verdict=Verdict.BEYOND,
        because=f"composed profiles of the mean over the end; composition needs {row[1]:.3g}",
    )


def _certified(tasks: int) -> Line:
    """The planner's promise, checked again from the process it returns."""
    spent = _plan(tasks).guarantee().epsilon(DELTA).upper
    return Line(
        f"epsilon of the planned noise for {tasks} tasks at delta {DELTA:g}",
        claim=EPSILON,
        ours=spent,
        truth=None,
        verdict=Verdict.HOLDS if spent <= EPSILON else Verdict.INVALID,
        because="certified from the planned process",
    )


def _picture(rows: Any) -> Picture:
    def draw(axes: Any) -> None:
        names = ("composition of local guarantees", "Theorem 32 (H_n for ln n)", "planner")
        looks = (("plain", ":s"), ("estimate", "--^"), ("exact", "-o"))
        for column, (name, (colour, style)) in enumerate(zip(names, looks, strict=True), start=1):
            axes.plot(rows[:, 0], rows[:, column], style, color=COLOURS[colour], label=name)
        axes.set(xscale="log", yscale="log", xlabel="tasks k on the same records")
        axes.set(ylabel="noise on a gradient (L = 1)")
        axes.set_title(f"({EPSILON:g}, {DELTA:g})-DP for all k outputs, n = {RECORDS}")
        axes.legend(fontsize=8)

    caption = (
        "Noise that each of k Stop-PNSGD runs needs. The planner's is certified: by the composed "
        "privacy profiles of the runs."
    )
    return Picture("tasks", caption, draw)


ITEM = Item(
    "iteration-thm-32",
    "Privacy Amplification by Iteration",
    "Theorem 32: many tasks for one budget",
    run,
)
