"""The page and its answers, on loopback."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tightrope.errors import TightropeError
from tightrope.explore.answers import ANSWERS, setting_of
from tightrope.serving import local_app

__all__ = ["explore_app"]

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
            if await request.is_disconnected():  # the slider has moved on: nobody waits for it
                return Response(status_code=204)
            found = await run_in_threadpool(_found, what, words)
        return Response(json.dumps(found, allow_nan=False), media_type="application/json")

    routes = [Route("/answer/{what}", answer), *(Route(path, _file) for path in _FILES)]
    return local_app(routes, _ALLOWED, host, token)


def _file(request: Request) -> Response:
    name, kind = _FILES[request.url.path]
    return Response(Path(__file__).with_name(name).read_text("utf-8"), media_type=kind)


def _found(what: str, words: dict[str, str]) -> dict[str, Any]:
    """A refusal is an answer too: the page shows its words."""
    try:
        return ANSWERS[what](setting_of(words), words)
    except TightropeError as refusal:
        return {"refused": str(refusal)}
