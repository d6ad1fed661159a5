"""Several trainings on the same people, added up: one process, one epsilon, one budget.

Schema `tightrope.compose/1`: `delta`, `runs[]` (`run`, `source`, `epsilon`, `kind`), `together` (an
account, or `epsilon`, `kind` and why there is no more), `budget`, `remarks`.
"""

from __future__ import annotations

from typing import Any

from tightrope.accounting import Account, account
from tightrope.errors import AdjacencyMismatch, InvalidInput
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.compose import compose
from tightrope.interop import Reading
from tightrope.interop.setting import Level
from tightrope.numerics.interval import Interval
from tightrope.numerics.rounding import rounded_up
from tightrope.process import Sequence, StoppedAtWill
from tightrope.report.account_view import account_view, certified_view

__all__ = ["compose_view", "together"]

SCHEMA = "tightrope.compose/1"
_FIXED = (
    "This holds if the settings of each training were fixed without looking at what the others "
    "released."
)
_ALONE = "This is for one record; the groups of records that the files name are ignored."
_APART = "No single analysis covers these runs, so their guarantees were added up. No certificate."


def together(readings: list[Reading]) -> Sequence:
    """All of it as one process."""
    for reading in readings:
        if isinstance(reading.process, StoppedAtWill):
            raise InvalidInput(
                "The epsilon of a run that could be stopped at will holds for that run alone and "
                "does not add up with others. Fix the length before the first step (steps=), "
                "or give the run a budget; its certificate can then be composed."
            )
    found = sorted({reading.neighbours for reading in readings})
    if len(found) > 1:
        raise AdjacencyMismatch(
            f"These runs are about different neighbours ({' and '.join(found)}), so their losses "
            "do not add up. Account for all of them under the same neighbours first."
        )
    return Sequence(tuple(reading.process for reading in readings))


def compose_view(
    named: list[tuple[str, Reading]], level: Level, budget: float | None
) -> tuple[dict[str, Any], Account | None]:
    """Each run alone and all together; the account is None where only guarantees add up."""
    readings = [reading for _, reading in named]
    whole = account(together(readings), check="full")
    alone = [account(reading.process) for reading in readings]
    view: dict[str, Any] = {
        "schema": SCHEMA,
        "delta": level.delta,
        "runs": [
            {"run": name, "source": reading.source, **_epsilon(_best(found, level.delta), level)}
            for (name, reading), found in zip(named, alone, strict=True)
        ],
        "remarks": _remarks(readings, level),
    }
    if whole.certified:
        view["together"] = account_view(whole, level.delta, neighbours=readings[0].neighbours)
        reached = whole.epsilon(level.delta)
    else:
        added = compose([_best(found, level.delta) for found in alone])
        view["together"] = {**_epsilon(added, level), "words": _APART}
        reached = added.epsilon(level.delta)
    if budget is not None:
        view["budget"] = _budget(reached, budget)
    return view, whole if whole.certified else None


def _remarks(readings: list[Reading], level: Level) -> list[str]:
    alone = [_ALONE] if any(reading.group > 1 for reading in readings) else []
    notes = dict.fromkeys(note for reading in readings for note in reading.notes)
    return [*notes, *level.remarks, *alone, _FIXED]


def _best(found: Account, delta: float) -> Guarantee:
    return found.guarantee(delta)


def _epsilon(guarantee: Guarantee, level: Level) -> dict[str, Any]:
    told = certified_view(guarantee.epsilon(level.delta), guarantee.two_sided)
    return {"epsilon": told, "kind": str(guarantee.validity)}


def _budget(reached: Interval, budget: float) -> dict[str, Any]:
    fits = reached.upper <= budget
    said = f"{rounded_up(reached.upper, 6)} of epsilon = {budget:g}"
    words = f"Within the budget: {said}." if fits else f"Over the budget: {said}."
    return {"epsilon": budget, "fits": fits, "words": words}
