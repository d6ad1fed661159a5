"""Epsilon along one quantity: after each epoch, against noise, rate, steps or delta.

Schema `tightrope.sweep/1`: `over`, `delta` (null where it is what varies), `rows[]` with the value
under the name of the quantity, `epsilon` and `kind`, or `error` and `message`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tightrope.accounting import account
from tightrope.errors import InvalidInput, TightropeError
from tightrope.interop import Setting
from tightrope.interop.numbers import parse_number
from tightrope.interop.setting import UNSAID, unknown
from tightrope.report.account_view import certified_view

__all__ = ["sweep_view", "OVER"]

SCHEMA = "tightrope.sweep/1"
OVER = ["epochs", "noise", "steps", "rate", "batch-size", "delta"]
_MOST = 1000  # rows
# what stands for the same thing must give way
_OTHER = {"epochs": "steps", "steps": "epochs", "rate": "batch_size", "batch_size": "rate"}
_DELTAS = tuple(f"1e-{digits}" for digits in range(3, 13))
_FACTORS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 2.0)


def sweep_view(setting: Setting, over: str, values: str | None) -> dict[str, Any]:
    """One certified epsilon for each value; what cannot be answered says why in its row."""
    if over not in OVER:
        raise InvalidInput(unknown("--over", over, OVER))
    name = over.replace("-", "_")
    chosen = _defaults(setting, name) if values is None else values.split(",")
    if len(chosen) > _MOST:
        raise InvalidInput(
            f"At most {_MOST} values can be tried; got {len(chosen)}. Choose some with --values."
        )
    level = None if name == "delta" else setting.level()
    return {
        "schema": SCHEMA,
        "over": over,
        "delta": None if level is None else level.delta,
        "remarks": [] if level is None else list(level.remarks),
        "rows": [_row(setting, name, value) for value in chosen],
    }


def _row(setting: Setting, name: str, value: object) -> dict[str, Any]:
    one = replace(setting, **{name: value, **({_OTHER[name]: UNSAID} if name in _OTHER else {})})
    row = {name: parse_number(value, name)}
    try:
        delta = one.level().delta
        found = account(one.run())
        best = found.guarantee(delta)
        told = certified_view(found.epsilon(delta), best.two_sided)
        return {**row, "epsilon": told, "kind": str(best.validity)}
    except TightropeError as refusal:
        return {**row, "error": type(refusal).__name__, "message": str(refusal)}


def _defaults(setting: Setting, name: str) -> list[Any]:
    """The end of each epoch and of the run, noises around the given one, usual deltas."""
    if name == "delta":
        return list(_DELTAS)
    if name == "epochs":
        run = setting.run()
        passes = run.steps * run.sampling.rate
        whole = math.floor(passes * (1 + 1e-12))
        rest = [passes] if passes > whole * (1 + 1e-12) else []
        return [*range(1, min(whole, _MOST) + 1), *rest]
    if name == "noise":
        given = parse_number(setting.noise, "noise")
        return [float(f"{given * factor:.6g}") for factor in _FACTORS]
    raise InvalidInput(
        f"Say which values of {name} to try, with commas between them: --values 1,2,3."
    )
