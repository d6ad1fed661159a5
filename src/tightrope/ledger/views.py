"""What people see of a ledger: plain data for the command and its JSON, and a page made of them.

The page only reads. On loopback anybody on this machine may read it; elsewhere it asks for a token.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightrope.errors import InvalidInput, LedgerDamaged
from tightrope.ledger.office import BudgetLedger
from tightrope.ledger.terms import IN_ADVANCE, check_name
from tightrope.process.codec import to_json

if TYPE_CHECKING:
    from starlette.applications import Starlette


_MOST_REPEATS = 10_000
_DAY_S = 86400.0


def standing_view(ledger: BudgetLedger, dataset: str) -> dict[str, Any]:
    found = ledger.standing(dataset)
    return {
        "dataset": dataset,
        "unit": found.terms.unit,
        "records": found.terms.records,
        "neighbours": str(found.terms.adjacency),
        "total": found.terms.total.numbers(),
        "chosen": found.terms.choices,
        "spenders": list(found.terms.spenders),
        "measured": found.unit,
        "used": "infinity" if math.isinf(found.used) else found.used,
        "limit": found.limit,
        "share": min(found.share, 1.0),
        "overspent": found.used > found.limit,
        "open": found.open,
        "settled": found.settled,
        "head": str(found.head),
    }


def standing_or_damage(ledger: BudgetLedger, dataset: str) -> dict[str, Any]:
    """The same, or what is wrong with its log: that of another data set still stands."""
    try:
        return standing_view(ledger, dataset)
    except LedgerDamaged as error:
        return {"dataset": dataset, "damaged": str(error)}


def standings(ledger: BudgetLedger) -> list[dict[str, Any]]:
    """All data sets, also those whose name this program would not have written."""
    rows = []
    for name in ledger.names():
        try:
            check_name(name, "the name")
            rows.append(standing_or_damage(ledger, name))
        except InvalidInput as error:
            text = f"Tightrope would not have written this name ({error}) The store was edited."
            shown = name.encode("unicode_escape").decode("ascii")
            rows.append({"dataset": shown, "damaged": text})
    return rows


def history_view(ledger: BudgetLedger, dataset: str) -> list[dict[str, Any]]:
    """The reservations, oldest first: what, by whom, when, and how it ended."""
    return [
        {
            "id": one.id,
            "who": one.who,
            "at": moment(one.at),
            "note": one.note,
            "process": to_json(one.process),
            "words": words(to_json(one.process)),
            "reserved": one.steps,
            "spent": one.spent if one.settled is None else one.settled,
            "settled": one.settled,
            "state": "open" if one.open else "settled",
            "certificate": one.certificate,
        }
        for one in ledger.book(dataset).reservations.values()
    ]


def forecast_view(ledger: BudgetLedger, dataset: str) -> dict[str, Any]:
    """How long what is left will last: in runs like the last one, and in days at this pace."""
    book = ledger.book(dataset)
    bodies = ledger.history(dataset)
    view: dict[str, Any] = {"dataset": dataset, "share": min(book.used() / book.meter.limit, 1.0)}
    if book.reservations:
        last = list(book.reservations.values())[-1]
        counts = range(1, _MOST_REPEATS + 1)
        more = bisect_left(counts, True, key=lambda n: not book.fits(last.process, n))
        view |= {"last": words(to_json(last.process)), "more_like_the_last": more}
    days: float | None = None
    why: str | None = "it does not grow evenly where releases are chosen in advance"
    if book.terms.choices != IN_ADVANCE:
        days, why = _days_left([float(body["at"]) for body in bodies], view["share"])
    return view | {"days_left": days, "no_date_because": why}


def _days_left(times: list[float], share: float) -> tuple[float | None, str | None]:
    if any(after < before for before, after in pairwise(times)):
        return None, "a clock went back between two entries"
    elapsed = times[-1] - times[0]
    if share == 0.0 or elapsed < 1.0:
        return None, "too little was spent so far to see a pace"
    return (1.0 - share) / share * elapsed / _DAY_S, None


def export_view(ledger: BudgetLedger) -> dict[str, Any]:
    """Every log as it is stored, with its chain: whoever has it can check all of it.

    A damaged log is not handed on; `damaged` says which and why.
    """
    rows = standings(ledger)
    logs = {
        name: [
            {
                "number": entry.head.number,
                "content": entry.content,
                "chain": entry.head.chain,
                "signature": entry.signature,
            }
            for entry in ledger.store.entries(name)
        ]
        for name in (row["dataset"] for row in rows if "damaged" not in row)
    }
    damaged = {row["dataset"]: row["damaged"] for row in rows if "damaged" in row}
    return {"format": "tightrope ledger 1", "logs": logs, "damaged": damaged}


def words(data: object) -> str:
    """A process as to_json has it, for people; the neighbours are those of the data set."""
    if isinstance(data, list):
        return ", ".join(map(words, data))
    if not isinstance(data, dict):
        return f"{data:g}" if isinstance(data, float) else str(data)
    parts = [
        f"{name.replace('_', ' ')} {words(value)}"
        for name, value in data.items()
        if name not in ("type", "adjacency")
    ]
    return f"{data['type']} ({', '.join(parts)})" if parts else str(data["type"])


def moment(seconds: float) -> str:
    """UTC, to the second; a clock that was far off is shown as it was."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g} s"


_PAGES = Path(__file__).with_name("pages")


def page_app(ledger: BudgetLedger, host: str = "127.0.0.1", token: str | None = None) -> Starlette:
    """The application; other names of this machine are refused, so no page elsewhere can ask."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from starlette.responses import HTMLResponse, Response
    from starlette.routing import Route

    from tightrope.serving import local_app

    pages = Environment(loader=FileSystemLoader(_PAGES), autoescape=True, undefined=StrictUndefined)

    async def index(request: Any) -> Response:
        rows = standings(ledger)
        return HTMLResponse(pages.get_template("index.html").render(rows=rows))

    async def dataset(request: Any) -> Response:
        name = request.query_params.get("name", "")
        row = standing_or_damage(ledger, name)
        if "damaged" in row:
            return HTMLResponse(pages.get_template("index.html").render(rows=[row]))
        history, forecast = history_view(ledger, name), forecast_view(ledger, name)
        page = pages.get_template("dataset.html")
        return HTMLResponse(page.render(row=row, history=history, forecast=forecast))

    async def style(request: Any) -> Response:
        return Response((_PAGES / "style.css").read_text(), media_type="text/css")

    routes = [Route("/", index), Route("/dataset", dataset), Route("/style.css", style)]
    return local_app(routes, "style-src 'self'", host, token)
