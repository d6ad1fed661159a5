"""What the local pages share: who may see them, and what a browser may do with them."""

from __future__ import annotations

import hmac
import ipaddress
from typing import final

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tightrope.errors import InvalidInput, TightropeError

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
            Middleware(_Guard, token=token, policy=policy),
        ],
        exception_handlers={TightropeError: _refused},
    )


async def _refused(request: Request, error: Exception) -> Response:
    return PlainTextResponse(str(error), 404 if isinstance(error, InvalidInput) else 500)


@final
class _Guard:
    """Asks for the token (a header, the link once, then a cookie) and adds the headers."""

    def __init__(self, app: ASGIApp, token: str | None, policy: str) -> None:
        self._app, self._token = app, token
        self._headers = _HEADERS | {"Content-Security-Policy": policy}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        answer = self._refusal(Request(scope)) or self._app
        return await answer(scope, receive, with_headers)

    def _refusal(self, request: Request) -> Response | None:
        """What comes instead of the page, where it may not be seen."""
        token, given = self._token, request.query_params.get("token")
        if _from_elsewhere(request):
            return PlainTextResponse("Pages elsewhere may not ask here.", 403)
        if token is None or _same(_carried(request), token):
            return None
        if given is None or not _same(given, token):
            return PlainTextResponse("This page needs its token: /?token=...", 401)
        answer = RedirectResponse("/")
        answer.set_cookie(_COOKIE, token, httponly=True, samesite="strict")
        return answer


def _from_elsewhere(request: Request) -> bool:
    """Does another page ask, unseen by the user? Links from other pages are followed."""
    place, mode = (request.headers.get(f"Sec-Fetch-{name}") for name in ("Site", "Mode"))
    return place in ("cross-site", "same-site") and (mode != "navigate" or request.method != "GET")


def _carried(request: Request) -> str:
    header = request.headers.get("Authorization", "").removeprefix("Bearer ")
    return header or request.cookies.get(_COOKIE, "")


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())
