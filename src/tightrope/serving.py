"""What the local pages share: who may look, and what a browser may do with them."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from tightrope.errors import InvalidInput, TightropeError

__all__ = ["check_host", "local_app"]

_COOKIE = "tightrope"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def check_host(host: str, token: str | None) -> None:
    """Refuse to show a page to others without a token."""
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


def local_app(routes: list[Route], allowed: str, host: str, token: str | None) -> Starlette:
    """The application; other names of this machine are refused, so no page elsewhere can ask.

    allowed: what the page may load, beside nothing (a Content-Security-Policy).
    """
    check_host(host, token)
    policy = f"default-src 'none'; {allowed}; frame-ancestors 'none'; base-uri 'none'"
    hosts = ["*"] if token else ["127.0.0.1", "localhost", "[::1]"]
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts),
            Middleware(BaseHTTPMiddleware, dispatch=_guard(token, policy)),
        ],
        exception_handlers={TightropeError: _refused},
    )


async def _refused(request: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), 404 if isinstance(error, InvalidInput) else 500)


def _guard(token: str | None, policy: str) -> Callable[..., Awaitable[Response]]:
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
        answer.headers.update(_HEADERS | {"Content-Security-Policy": policy})
        return answer

    return dispatch


def _carried(request: Request) -> str:
    header = request.headers.get("Authorization", "").removeprefix("Bearer ")
    return header or request.cookies.get(_COOKIE, "")


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())
