"""The ledger as a page: what is left for each data set, who spent it, how long it will last.

It only reads. On loopback anybody on this machine may look; anywhere else a token is asked for.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from tightrope.errors import InvalidInput, TightropeError
from tightrope.ledger.office import BudgetLedger
from tightrope.ledger.views import forecast_view, history_view, standing_view

__all__ = ["page_app", "check_host"]

_PAGES = Path(__file__).with_name("pages")
_COOKIE = "tightrope-ledger"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def check_host(host: str, token: str | None) -> None:
    """Refuse to show a ledger to others without a token."""
    if not _is_loopback(host) and not token:
        raise InvalidInput(
            f"{host} can be reached from other machines, so the page needs a token there: give "
            "--token (20 characters or more), or serve on 127.0.0.1."
        )
    if token is not None and len(token) < 20:
        raise InvalidInput("A token of fewer than 20 characters can be guessed; take a longer one.")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def page_app(ledger: BudgetLedger, host: str = "127.0.0.1", token: str | None = None) -> Starlette:
    """The application; other names of this machine are refused, so no page elsewhere can ask."""
    check_host(host, token)
    pages = Environment(loader=FileSystemLoader(_PAGES), autoescape=True, undefined=StrictUndefined)

    async def index(request: Request) -> Response:
        rows = [standing_view(ledger, name) for name in ledger.names()]
        return HTMLResponse(pages.get_template("index.html").render(rows=rows))

    async def dataset(request: Request) -> Response:
        name = request.query_params.get("name", "")
        row, history = standing_view(ledger, name), history_view(ledger, name)
        forecast = forecast_view(ledger, name)
        page = pages.get_template("dataset.html")
        return HTMLResponse(page.render(row=row, history=history, forecast=forecast))

    async def style(request: Request) -> Response:
        return Response((_PAGES / "style.css").read_text(), media_type="text/css")

    async def refused(request: Request, error: Exception) -> Response:
        return PlainTextResponse(str(error), 404 if isinstance(error, InvalidInput) else 500)

    hosts = ["*"] if token else ["127.0.0.1", "localhost", "[::1]"]
    return Starlette(
        routes=[Route("/", index), Route("/dataset", dataset), Route("/style.css", style)],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts),
            Middleware(BaseHTTPMiddleware, dispatch=_guard(token)),
        ],
        exception_handlers={TightropeError: refused},
    )


def _guard(token: str | None) -> Callable[..., Awaitable[Response]]:
    """Asks for the token (a header, the link once, then a cookie) and adds the headers."""

    async def dispatch(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Any:
        given = request.query_params.get("token")
        if token is None or _same(_carried(request), token):
            answer = await go_on(request)
        elif given is not None and _same(given, token):
            answer = RedirectResponse("/")
            answer.set_cookie(_COOKIE, token, httponly=True, samesite="strict")
        else:
            answer = PlainTextResponse("This page needs its token: /?token=...", 401)
        answer.headers.update(_HEADERS)
        return answer

    return dispatch


def _carried(request: Request) -> str:
    header = request.headers.get("Authorization", "").removeprefix("Bearer ")
    return header or request.cookies.get(_COOKIE, "")


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())
