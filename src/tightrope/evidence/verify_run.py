"""What can be checked about the section `run`: everything that the process decides.

Whether the process is what really ran, cannot be: that is the word of the code that wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tightrope.accounting import account
from tightrope.errors import TightropeError
from tightrope.evidence.certificate import library
from tightrope.evidence.check import Check, stated, yours
from tightrope.evidence.run_facts import isolation_words
from tightrope.evidence.statement import declared_in
from tightrope.numerics.rounding import rounded_up
from tightrope.process import Process, StoppedAtWill, UserLevel
from tightrope.process.composite import steps_of, with_steps

_SLACK = 1e-9
_FACTS = ("clip", "sensitivity", "noise", "sampling", "settings", "data", "measured")


def writer_lines(certificate: dict[str, Any], by: str) -> Iterator[Check]:
    """What only the writer knows, one line each."""
    own, claim = library(), certificate["library"]
    code = "the same source files as this library" if claim == own else "OTHER source files"
    yield stated("library", f"version {claim['version']}, {code}", by)
    title = certificate.get("title") or {}
    named = ", ".join(f"{key} {value}" for key, value in title.items() if value is not None)
    yield stated("title", named or "not published", by)
    run = certificate["run"]
    if run is None:
        yield stated("run", "nothing was run: the process is declared", by)
        return
    yield stated("run", f"a {run['kind']}", by)
    for name in _FACTS:
        if run[name] is not None:
            yield stated(name, _brief(run[name])[:400], by)
    if "isolation" in run:
        yield from (stated(*row, by) for row in isolation_words(run["isolation"]))


def _brief(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} = {item}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        named = {f" ({row['data']})" for row in value if "data" in row}
        words = f"{len(value)} on public data{''.join(sorted(named))}"
        for row in value[-1:]:
            words += f"; last {row['name']} {row['value']:g} after step {row['step']}"
        return words
    return str(value)


def run_checks(
    certificate: dict[str, Any], process: Process, delta: float, by: str
) -> Iterator[Check]:
    """What the process decides about the run."""
    run = certificate["run"]
    if run is None:
        return
    # Claims about the process are not claims about a run whose randomness is known.
    if run["private"] and not run["not_private_because"]:
        yield stated("secrecy", "noise and batches were secret", by)
    else:
        reasons = "; ".join(run["not_private_because"])
        yield Check("secrecy", False, f"the run says that it is not private: {reasons}")
    try:
        # Trainings have steps; a fit has a mechanism and does not declare its guarantee.
        kind, fit = run["kind"], run["kind"] == "convex fit"
        fits = not declared_in(certificate["process"]) if fit else steps_of(process) is not None
        can = f"{type(process).__name__} {'can' if fits else 'cannot'}"
        yield Check("kind", fits, f"{can} be the process of a {kind}")
        yield _steps(run, process)
        yield _length(run, process, by)
        yield _isolation(run)
        yield _history(run, process, delta)
        yield _budget(run, process)
    except (TightropeError, KeyError, TypeError, ValueError, AttributeError) as error:
        yield Check("run", False, f"cannot be recomputed: {error}")


def _steps(run: dict[str, Any], process: Process) -> Check:
    """Steps that are stated, against those accounted for."""
    taken, counted, length = run["steps"], steps_of(process), run.get("length")
    if run["kind"] != "training":
        return Check("steps", taken is None and length is None, "as the process says")
    if taken is None or counted is None:
        return Check("steps", False, "a training has steps, but none are stated or accounted")
    within = 0 < taken <= counted if length in ("planned", "budget") else taken == counted
    return Check("steps", within, f"{taken} stated, {counted} accounted")


def _length(run: dict[str, Any], process: Any, by: str) -> Check:
    """Where nothing fixed the length of the run, its process must be one that is stopped."""
    if "length" not in run:
        words = "that it was fixed before the first step: this old file does not say"
        return yours("length", words)
    ran = process.run if isinstance(process, UserLevel) else process
    length, stopped, wrong = run["length"], isinstance(ran, StoppedAtWill), None
    if length == "budget" and run["budget"] is None:
        wrong = "a budget is claimed, but none was set"
    elif run["kind"] == "training" and length is None:
        wrong = "a training must say what fixed its length"
    elif stopped != (length in ("asked", "at will")):
        wrong = f"{length}: the process {'is' * stopped or 'is not'} stopped"
    elif stopped and ran.within != (length == "asked"):
        wrong = f"{length}: {ran.first} steps were asked for, {run['steps']} taken"
    elif length == "planned":
        return stated("length", "fixed before the first step", by)
    elif length == "nothing released" and run["steps"] != 0:
        wrong = f"{length}, but {run['steps']} steps were taken"
    elif length == "budget":
        budget, longer = run["budget"], with_steps(process, (steps_of(process) or 0) + 1)
        if account(longer).epsilon(float(budget["delta"])).upper <= float(budget["epsilon"]):
            words = "held to its budget, which by today's analyses would allow more"
            return stated("length", words, by)
    words = wrong or f"{length or 'as the process says'}: the claims cover it"
    return Check("length", wrong is None, words)


def _isolation(run: dict[str, Any]) -> Check:
    """The periods must cover every step of a training, and proved ones name their programs."""
    name, section, steps = "isolation", run.get("isolation"), run["steps"]
    if section is None:
        if run["kind"] == "training":
            return yours(name, "how examples were kept apart: this file does not say")
        return Check(name, True, "no batches: a fit reads records one by one")
    first = [period["from_step"] for period in section["examples"]]
    if run["kind"] != "training" or steps is None:
        return Check(name, False, "a fit has no batches whose examples could meet")
    covered = first == sorted(set(first)) and (first[:1] or [1]) == [1]
    if not covered or bool(first) != bool(steps) or max(first, default=0) > steps:
        return Check(name, False, f"steps 1 to {steps}, but periods from {first}")
    for period in section["examples"]:
        if (period["how"] == "proved") != bool(period["programs"]):
            words = f"{period['how']}, with {len(period['programs'])} programs"
            return Check(name, False, words)
    return Check(name, True, "every step is in a period, and proved ones name programs")


def _history(run: dict[str, Any], process: Process, delta: float) -> Check:
    """Epsilon over training, recomputed step by step: never less than it was."""
    rows = run["history"]
    for row in rows:
        truth = account(with_steps(process, row["step"])).epsilon(delta)
        claim = float("inf") if row["epsilon"] is None else float(row["epsilon"])
        if claim < truth.upper * (1 - _SLACK):
            return Check("history", False, f"false at step {row['step']}")
    if run["steps"] is not None and any(row["step"] > run["steps"] for row in rows):
        return Check("history", False, f"has more steps than the {run['steps']} taken")
    return Check("history", True, f"{len(rows)} points hold")


def _budget(run: dict[str, Any], process: Process) -> Check:
    budget = run["budget"]
    if budget is None:
        return Check("budget", True, "none was set")
    spent = account(process).epsilon(float(budget["delta"])).upper
    kept = spent <= float(budget["epsilon"]) * (1 + _SLACK)
    words = f"{rounded_up(spent, 6)} spent of {budget['epsilon']} at delta = {budget['delta']}"
    return Check("budget", kept, words)
