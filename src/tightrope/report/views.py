"""The commands' answers as plain data, each with its schema.

`tightrope.calibrate/1`: the answer carries the value under the name of what was sought
(`noise_multiplier`, `steps` or `rate`), and what the older analyses would have answered.
`tightrope.compose/1`: several trainings on the same people as one process: `delta`, `runs[]`
(`run`, `source`, `epsilon`, `kind`), `together` (an account, or `epsilon`, `kind` and why there is
no more), `budget`, `remarks`.
`tightrope.convert/1`: a notion in terms of others: every route with its name, side and source.
`tightrope.sweep/1`: epsilon along one quantity: `over`, `delta` (null where it is what varies),
`rows[]` with the value under the name of the quantity, `epsilon` and `kind`, or `error` and
`message`.
`tightrope.correlated/1`: candidates of correlated noise, each with its noise and its error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tightrope.accounting import Account, account
from tightrope.calibrate import Calibrated, Target
from tightrope.errors import AdjacencyMismatch, InvalidInput, TightropeError
from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.compose import compose
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.renyi.best import ROUTES
from tightrope.guarantee.renyi.closed_forms import theorem4_gamma
from tightrope.guarantee.renyi.optimal import one_sided_gamma, two_sided_gamma
from tightrope.interop import Reading, Setting
from tightrope.interop.setting import UNSAID, Level, parse_number, unknown
from tightrope.numerics.rounding import rounded_up
from tightrope.process import Process, Sequence, StoppedAtWill
from tightrope.process.codec import to_json
from tightrope.report.account_view import account_view, certified_view, interval_view, number
from tightrope.theorems.catalog import ANALYSES, Analysis

if TYPE_CHECKING:
    from tightrope.choosing import Candidate, Choice


_OLDER = ("improved-moments", "moments", "clt")

Search = Callable[..., Calibrated]


def calibrate_view(search: Search, run: Process, target: Target, delta: float) -> dict[str, Any]:
    """The safe answer with its epsilon at delta, then what the moments accountants and CLT find."""
    best = search(run, target)
    found = best.account()
    older = [a for a in ANALYSES if a.key in _OLDER]
    return {
        "schema": "tightrope.calibrate/1",
        "target": _target_view(target, delta),
        "answer": {
            best.quantity: best.value,
            "quantity": best.quantity,
            "analysis": best.analysis,
            "epsilon": _epsilon_view(found, delta),
            "delta": delta,
            "words": _certified_for(target, found, delta),
        },
        "process": to_json(best.process),
        "alternatives": [_older(search, run, target, best, a, delta) for a in older],
    }


def _epsilon_view(found: Account, delta: float) -> dict[str, float | str]:
    return certified_view(found.epsilon(delta), found.guarantee(delta).two_sided)


def _certified_for(target: Target, found: Account, delta: float) -> str:
    """What was asked for, as it is certified."""
    guarantee = found.guarantee(delta)
    if target.true_positive_rate is not None:
        alarms = target.false_positive_rate
        hits = rounded_up(guarantee.true_positive_rate(alarms).upper, 6)
        return f"no attack with a false alarm rate of {alarms:g} finds more than {hits}"
    if _by_advantage(target, delta):
        lead = rounded_up(guarantee.advantage().upper, 6)
        return f"no attack has a hit rate more than {lead} above its false alarm rate"
    return f"certified for epsilon = {target.epsilon:g} at delta = {target.delta:g}"


def _by_advantage(target: Target, delta: float) -> bool:
    """An advantage is a delta at epsilon 0, other than the one at which epsilon is stated."""
    return target.true_positive_rate is None and target.epsilon == 0.0 and target.delta != delta


def _target_view(target: Target, delta: float) -> dict[str, Any]:
    if target.true_positive_rate is None:
        more = {"advantage": target.delta} if _by_advantage(target, delta) else {}
        return {"epsilon": target.epsilon, "delta": target.delta, **more}
    return {
        "true_positive_rate": target.true_positive_rate,
        "false_positive_rate": target.false_positive_rate,
    }


def _older(
    search: Search, run: Process, target: Target, best: Calibrated, analysis: Analysis, delta: float
) -> dict[str, Any]:
    row: dict[str, Any] = {"analysis": analysis.name, "kind": str(analysis.lead.VALIDITY)}
    covers = account(run, (analysis,)).findings[0]
    if not covers.applies:
        return {**row, best.quantity: None, "reason": covers.reason}
    try:
        found = search(run, target, (analysis,))
    except TightropeError as refusal:
        return {**row, best.quantity: None, "reason": str(refusal)}
    row |= {best.quantity: found.value, "compared": _compared(best, found)}
    if analysis.lead.VALIDITY is Validity.ESTIMATE:
        row["true_epsilon"] = _epsilon_view(account(found.process), delta)
    return row


def _compared(best: Calibrated, other: Calibrated) -> str:
    """What the other answer costs, in words."""
    if best.quantity == "steps":
        gap = int(best.value - other.value)
        return f"{abs(gap)} rounds {'fewer' if gap >= 0 else 'more'}"
    if other.value == 0 or best.value == 0:
        return "the same"
    change = 100.0 * (other.value / best.value - 1.0)
    what = "noise" if best.quantity == "noise_multiplier" else best.quantity
    return f"{change:+.2f}% {what}"


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
    notes = dict.fromkeys(note for reading in readings for note in reading.notes)
    groups = [_ALONE] if any(reading.group > 1 for reading in readings) else []
    whole = account(together(readings), check="full")
    alone = [account(reading.process) for reading in readings]
    view: dict[str, Any] = {
        "schema": "tightrope.compose/1",
        "delta": level.delta,
        "runs": [
            {
                "run": name,
                "source": reading.source,
                **_alone_view(found.guarantee(level.delta), level),
            }
            for (name, reading), found in zip(named, alone, strict=True)
        ],
        "remarks": [*notes, *level.remarks, *groups, _FIXED],
    }
    if whole.certified:
        view["together"] = account_view(whole, level.delta, neighbours=readings[0].neighbours)
        reached = whole.epsilon(level.delta)
    else:
        added = compose([found.guarantee(level.delta) for found in alone])
        view["together"] = {**_alone_view(added, level), "words": _APART}
        reached = added.epsilon(level.delta)
    if budget is not None:
        fits, claim = (
            reached.upper <= budget,
            f"{rounded_up(reached.upper, 6)} of epsilon = {budget:g}",
        )
        words = f"Within the budget: {claim}." if fits else f"Over the budget: {claim}."
        view["budget"] = {"epsilon": budget, "fits": fits, "words": words}
    return view, whole if whole.certified else None


def _alone_view(guarantee: Guarantee, level: Level) -> dict[str, Any]:
    words = certified_view(guarantee.epsilon(level.delta), guarantee.two_sided)
    return {"epsilon": words, "kind": str(guarantee.validity)}


def renyi_view(
    order: float, gamma: float, delta: float | None, epsilon: float | None
) -> dict[str, Any]:
    """(order, gamma)-Renyi DP to epsilon at delta, or to delta at epsilon, by every route."""
    if (delta is None) == (epsilon is None):
        raise InvalidInput("Give either --delta (to get epsilon) or --epsilon (to get delta).")
    rows = []
    for key, route in ROUTES.items():
        value = (
            route.epsilon(order, gamma, delta)
            if delta is not None
            else route.delta(order, gamma, epsilon)
        )
        row = {"key": key, "name": route.name, "side": route.side, "source": route.source}
        rows.append({**row, "epsilon" if delta is not None else "delta": number(float(value))})
    asked = {"delta": delta} if delta is not None else {"epsilon": epsilon}
    return {
        "schema": "tightrope.convert/1",
        "from": {"notion": "renyi", "order": order, "gamma": gamma, **asked},
        "routes": rows,
    }


def to_renyi_view(epsilon: float, delta: float, order: float) -> dict[str, Any]:
    """The largest Renyi level that still forces (epsilon, delta)-DP: the budget of a filter."""
    two, one = two_sided_gamma(order, epsilon, delta), one_sided_gamma(order, epsilon, delta)
    closed = theorem4_gamma(order, epsilon, delta)
    rows = (
        ("two_sided", "optimum, both directions", "exact", "Theorem 3 made two-sided", two[0]),
        ("one_sided", "optimum, one direction", "lower bound", "Theorem 3", one[0]),
        ("theorem4", "closed form", "lower bound", "Theorem 4", closed),
    )
    names, paper = ("key", "name", "side", "source", "gamma"), "Asoodeh et al. 2021"
    routes = [
        dict(zip(names, (*row[:3], f"{paper}, {row[3]}", float(row[4])), strict=True))
        for row in rows
    ]
    asked = {"notion": "approx", "epsilon": epsilon, "delta": delta, "order": order}
    return {"schema": "tightrope.convert/1", "from": asked, "routes": routes}


def guarantee_view(
    guarantee: Guarantee, deltas: list[float], type_i_errors: list[float], orders: list[float]
) -> dict[str, Any]:
    """All views of one guarantee."""
    level = (
        {"notion": "gaussian", "mu": guarantee.mu}
        if isinstance(guarantee, GaussianGuarantee)
        else {"notion": "approx", "epsilon": guarantee.level, "delta": guarantee.failure}
        if isinstance(guarantee, ApproxGuarantee)
        else {"notion": type(guarantee).__name__}
    )
    return {
        "schema": "tightrope.convert/1",
        "from": level,
        "epsilon": [{"delta": d, **interval_view(guarantee.epsilon(d))} for d in deltas],
        "type_ii_error": [
            {"type_i": a, **interval_view(guarantee.tradeoff(a))} for a in type_i_errors
        ],
        "renyi": [{"order": a, **interval_view(guarantee.renyi(a))} for a in orders],
        "advantage": interval_view(guarantee.advantage()),
    }


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
        "schema": "tightrope.sweep/1",
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
        words = certified_view(found.epsilon(delta), best.two_sided)
        return {**row, "epsilon": words, "kind": str(best.validity)}
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


_UNIT = (
    "error: the standard deviation of the noise in one coordinate of the sum of all mean gradients "
    "so far, in clip norms; root mean square over the steps. Sizes of gradients are not in it."
)


def correlated_view(choice: Choice, target: Target, delta: float) -> dict[str, Any]:
    """Every candidate with its noise and its error; the process of the best one runs it."""
    found = [account(one.process).guarantee(delta) for one in choice.candidates]
    epsilons = [one.loss_known(one.epsilon(delta)) for one in found]
    worst = max(range(len(found)), key=lambda i: epsilons[i].upper)
    return {
        "schema": "tightrope.correlated/1",
        "target": {"epsilon": target.epsilon, "delta": target.delta},
        "delta": delta,
        "epsilon": certified_view(epsilons[worst], found[worst].two_sided),
        "candidates": [_candidate(one) for one in choice.candidates],
        "white": _candidate(choice.white),
        "unit": _UNIT,
    }


def _candidate(one: Candidate) -> dict[str, Any]:
    return {
        "name": one.name,
        "strategy": str(one.strategy),
        "noise_multiplier": one.noise_multiplier,
        "error": one.error,
        "buffers": one.buffers,
        "process": to_json(one.process),
    }
