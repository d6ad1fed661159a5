"""What can be checked about the section `run`: everything that the process decides.

Whether the process is what really ran, cannot be: that is the word of the code that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from tightrope.accounting import account
from tightrope.errors import TightropeError
from tightrope.evidence.check import Check
from tightrope.evidence.run_facts import RunFacts
from tightrope.numerics.digits import rounded_up
from tightrope.process import StoppedAtWill
from tightrope.process.stopping import steps_of, with_steps

__all__ = ["run_checks"]

_LENGTHS = {"planned", "budget", "asked", "at will", "nothing released"}
_SLACK = 1e-9
_FIELDS = {field.name for field in fields(RunFacts)}


def run_checks(run: Any, process: Any, delta: float) -> Iterator[Check]:
    """One check, or more where there is something to recompute."""
    if run is None:
        yield Check("run", True, "nothing was run: the process is declared")
        return
    if not isinstance(run, dict) or set(run) != _FIELDS:
        yield Check("run", False, f"must hold exactly {sorted(_FIELDS)}")
        return
    try:
        yield _private(run)
        yield _steps(run, process)
        yield _length(run, process)
        yield _history(run, process, delta)
        yield _budget(run, process)
    except (TightropeError, KeyError, TypeError, ValueError, AttributeError) as error:
        yield Check("run", False, f"cannot be read: {error}")


def _private(run: dict[str, Any]) -> Check:
    """Claims about the process are not claims about a run whose randomness is known."""
    reasons = run["not_private_because"]
    if run["private"] is True and reasons == []:
        return Check("run", True, f"{run['kind']}; its noise and batches were secret")
    return Check("run", False, f"the run is not private: {'; '.join(map(str, reasons))}")


def _steps(run: dict[str, Any], process: Any) -> Check:
    """Steps really taken, against those accounted for."""
    taken, counted, length = run["steps"], steps_of(process), run["length"]
    if run["kind"] != "training":
        return Check("steps", taken is None and length is None, "as the process says")
    told = f"{taken} taken, {counted} accounted: {length}"
    if length not in _LENGTHS or not isinstance(taken, int) or counted is None:
        return Check("steps", False, f"{told}; length must be one of {sorted(_LENGTHS)}")
    exact = length in ("asked", "at will", "nothing released")
    return Check("steps", taken == counted if exact else 0 < taken <= counted, told)


def _length(run: dict[str, Any], process: Any) -> Check:
    """Where nothing held the run to its length, the process must say so."""
    length, stopped = run["length"], isinstance(process, StoppedAtWill)
    if length == "budget" and run["budget"] is None:
        return Check("length", False, "a budget is claimed, but none was set")
    if stopped != (length in ("asked", "at will")):
        return Check("length", False, f"{length}: the process {'is' * stopped or 'is not'} stopped")
    if stopped and process.within != (length == "asked"):
        told = f"{length}: {process.first} steps were asked for, {run['steps']} taken"
        return Check("length", False, told)
    return Check("length", True, f"{length}: the process says what is claimed")


def _history(run: dict[str, Any], process: Any, delta: float) -> Check:
    """Epsilon over training, recomputed step by step."""
    rows = run["history"]
    for row in rows:
        if set(row) != {"step", "epsilon"}:
            return Check("history", False, f"a row must hold step and epsilon; got {sorted(row)}")
        truth = account(with_steps(process, row["step"])).epsilon(delta)
        said = float("inf") if row["epsilon"] is None else float(row["epsilon"])
        if not truth.lower * (1 - _SLACK) <= said <= truth.upper * (1 + _SLACK):
            return Check("history", False, f"false at step {row['step']}")
    if run["steps"] is not None and any(row["step"] > run["steps"] for row in rows):
        return Check("history", False, f"speaks of more steps than the {run['steps']} taken")
    return Check("history", True, f"{len(rows)} points hold")


def _budget(run: dict[str, Any], process: Any) -> Check:
    budget = run["budget"]
    if budget is None:
        return Check("budget", True, "none was set")
    spent = account(process).epsilon(float(budget["delta"])).upper
    kept = spent <= float(budget["epsilon"]) * (1 + _SLACK) and len(budget) == 2
    told = f"{rounded_up(spent, 6)} spent of {budget['epsilon']} at delta = {budget['delta']}"
    return Check("budget", kept, told)
