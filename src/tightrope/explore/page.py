"""The page with sliders, on loopback, and what it asks.

Each answer is plain data, made of the setting alone. `epsilon` is the quick one, asked at every
movement of a slider. The others follow when it rests.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tightrope.accounting import Account, account
from tightrope.calibrate import Target, find_noise
from tightrope.errors import InvalidInput, TightropeError
from tightrope.evidence.certificate import certify
from tightrope.interop import Setting
from tightrope.interop.setting import UNSAID, parse_number
from tightrope.report.account_view import certified_view, finding_view
from tightrope.report.views import sweep_view
from tightrope.serving import local_app

_LINES, _POINTS, _EPOCHS = 16, 80, 8
_NAMES = tuple(field.name for field in fields(Setting) if field.name != "group")
_STEEPEST = 700.0  # e to a larger power is no float; leaving such lines out is safe
# Beyond these an answer may take minutes, and no slider goes there.
_NOISES, _DELTAS, _STEPS, _BUDGETS = (0.1, 1000.0), (1e-15, 0.5), (0, 10**10), (1e-3, 1e3)


def setting_of(words: Mapping[str, str]) -> Setting:
    """The setting of the page's controls, within what the page answers."""
    unknown = sorted(set(words) - set(_NAMES) - {"budget"})
    if unknown:
        raise InvalidInput(f"A setting has the fields {', '.join(_NAMES)}; got {unknown[0]!r}.")
    setting = Setting(**{name: words[name] for name in _NAMES if name in words})
    run = setting.run()
    _within(run.noise_multiplier, "noise", _NOISES)
    _within(run.steps, "steps", _STEPS)
    _within(setting.level().delta, "delta", _DELTAS)
    return setting


def _within(value: float, name: str, ends: tuple[float, float]) -> float:
    if not ends[0] <= value <= ends[1]:
        raise InvalidInput(
            f"This page answers for {name} from {ends[0]:g} to {ends[1]:g}; got {value:g}. The "
            "command `tightrope account` takes more."
        )
    return value


def _best(setting: Setting, delta: float) -> tuple[Account, Any]:
    found = account(setting.run(), check="off")
    return found, found.best(lambda guarantee: guarantee.epsilon(delta).upper)


def epsilon(setting: Setting, words: Mapping[str, str]) -> dict[str, Any]:
    """The certified epsilon, and which analysis gave it; `second` checks it by another method."""
    level, run = setting.level(), setting.run()
    found, best = _best(setting, level.delta)
    value = found.epsilon(level.delta)
    return {
        "epsilon": certified_view(value, best.outcome.two_sided),
        "delta": level.delta,
        "analysis": best.name,
        "kind": str(best.kind),
        "steps": run.steps,
        "remarks": list(level.remarks),
        "python": _python(run, level.delta),
    }


def second(setting: Setting, words: Mapping[str, str]) -> dict[str, Any]:
    """Whether a second method proves the same epsilon; refused where the two contradict."""
    delta, found = setting.level().delta, account(setting.run())
    found.epsilon(delta)
    return {"words": found.second_method(delta).words}


def curve(setting: Setting, words: Mapping[str, str]) -> dict[str, Any]:
    """The best attack at every false alarm rate: the least of lines e^eps x + delta(eps)."""
    delta = setting.level().delta
    _, best = _best(setting, delta)
    top = best.outcome.epsilon(min(delta, 1e-9)).upper
    at = np.linspace(0.0, min(top, _STEEPEST), _LINES)
    lines = [(math.exp(e), best.outcome.delta(float(e)).upper) for e in at]
    rates = np.geomspace(1e-4, 1.0, _POINTS)
    hits = [min(1.0, *(slope * x + up for slope, up in lines)) for x in rates]
    mirrored = [1.0 - max(0.0, *((1.0 - up - x) / slope for slope, up in lines)) for x in rates]
    both = [min(a, b) for a, b in zip(hits, mirrored, strict=True)]
    found = min(1.0, *(0.01 * slope + up for slope, up in lines))
    return {"rates": rates.tolist(), "hits": both, "found_of_1000": math.ceil(1000 * found)}


def epochs(setting: Setting, words: Mapping[str, str]) -> dict[str, Any]:
    """Epsilon along the training."""
    run = setting.run()
    whole = run.steps
    values = sorted({max(1, round(whole * part / _EPOCHS)) for part in range(1, _EPOCHS + 1)})
    along = replace(setting, epochs=UNSAID, steps=str(whole))
    return sweep_view(along, "steps", ",".join(map(str, values)))


def analyses(setting: Setting, words: Mapping[str, str]) -> dict[str, Any]:
    """Every analysis that applies."""
    delta = setting.level().delta
    found = account(setting.run())
    rows = [finding_view(one, delta) for one in found.findings if one.outcome is not None]
    return {"analyses": rows}


def noise(setting: Setting, words: Mapping[str, str]) -> dict[str, Any]:
    """The least noise for a budget."""
    asked = _within(parse_number(words.get("budget", "3"), "budget"), "budget", _BUDGETS)
    target = Target.approx_dp(asked, setting.level().delta)
    return {"budget": asked, "noise": find_noise(setting.run(), target).value}


def certificate(setting: Setting, words: Mapping[str, str]) -> dict[str, Any]:
    return certify(setting.run(), setting.level().delta)


def _python(run: Any, delta: float) -> str:
    """Code that gives the same number."""
    sampling = type(run.sampling).__name__
    arguments = ", ".join(
        f"{field.name}={getattr(run.sampling, field.name)!r}" for field in fields(run.sampling)
    )
    return (
        f"from tightrope import Adjacency, {sampling}, NoisySGD, account\n\n"
        f"run = NoisySGD({sampling}({arguments}), noise_multiplier={run.noise_multiplier!r},\n"
        f"               steps={run.steps}, adjacency=Adjacency({str(run.adjacency)!r}))\n"
        f"print(account(run).epsilon(delta={delta!r}))"
    )


ANSWERS: dict[str, Callable[[Setting, Mapping[str, str]], dict[str, Any]]] = {
    one.__name__: one for one in (epsilon, second, curve, epochs, analyses, noise, certificate)
}


_FILES = {
    "/": ("explore.html", "text/html; charset=utf-8"),
    "/explore.css": ("explore.css", "text/css"),
    "/explore.js": ("explore.js", "text/javascript"),
}
_ALLOWED = "style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:"


def explore_app(host: str = "127.0.0.1", token: str | None = None) -> Starlette:
    """Three files and one question at a time; the quick one does not wait for the slow ones."""
    turns = {name: asyncio.Lock() for name in ("epsilon", "others")}

    async def answer(request: Request) -> Response:
        what, words = request.path_params["what"], dict(request.query_params)
        if what not in ANSWERS:
            return Response("There is no such answer.", 404)
        async with turns.get(what, turns["others"]):
            if await request.is_disconnected():  # the slider has moved on: the answer is not needed
                return Response(status_code=204)
            found = await run_in_threadpool(_answered, what, words)
        return Response(json.dumps(found, allow_nan=False), media_type="application/json")

    routes = [Route("/answer/{what}", answer), *(Route(path, _file) for path in _FILES)]
    return local_app(routes, _ALLOWED, host, token)


def _file(request: Request) -> Response:
    name, kind = _FILES[request.url.path]
    return Response(Path(__file__).with_name(name).read_text("utf-8"), media_type=kind)


def _answered(what: str, words: dict[str, str]) -> dict[str, Any]:
    """A refusal is an answer too: the page shows its words."""
    try:
        return ANSWERS[what](setting_of(words), words)
    except TightropeError as refusal:
        return {"refused": str(refusal)}
