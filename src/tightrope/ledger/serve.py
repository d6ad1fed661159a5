"""The ledger as a page: what is left for each data set, who spent it, how long it will last.

It only reads. On loopback anybody on this machine may look; anywhere else a token is asked for.
"""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from tightrope.ledger.office import BudgetLedger
from tightrope.ledger.views import forecast_view, history_view, standing_or_damage, standings
from tightrope.serving import local_app

__all__ = ["page_app"]

_PAGES = Path(__file__).with_name("pages")


def page_app(ledger: BudgetLedger, host: str = "127.0.0.1", token: str | None = None) -> Starlette:
    """The application; other names of this machine are refused, so no page elsewhere can ask."""
    pages = Environment(loader=FileSystemLoader(_PAGES), autoescape=True, undefined=StrictUndefined)

    async def index(request: Request) -> Response:
        rows = standings(ledger)
        return HTMLResponse(pages.get_template("index.html").render(rows=rows))

    async def dataset(request: Request) -> Response:
        name = request.query_params.get("name", "")
        row = standing_or_damage(ledger, name)
        if "damaged" in row:
            return HTMLResponse(pages.get_template("index.html").render(rows=[row]))
        history = history_view(ledger, name)
        forecast = forecast_view(ledger, name)
        page = pages.get_template("dataset.html")
        return HTMLResponse(page.render(row=row, history=history, forecast=forecast))

    async def style(request: Request) -> Response:
        return Response((_PAGES / "style.css").read_text(), media_type="text/css")

    routes = [Route("/", index), Route("/dataset", dataset), Route("/style.css", style)]
    return local_app(routes, "style-src 'self'", host, token)
