"""The ledger's pages in a real browser: axe-core, phone and dark, hostile names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("uvicorn", reason="the page needs uvicorn")
pytest.importorskip("starlette", reason="the page needs Starlette")

import uvicorn

from tightrope.ledger import Terms, Total, create_ledger
from tightrope.ledger.views import page_app
from tightrope.process import FullBatch, NoisySGD

RUN = NoisySGD(FullBatch(), 50.0, 100)
HOSTILE = "</title><script>document.title='hit'</script>\"'><img src=x onerror=\"alert(1)\">{{7*7}}"
LONG = "x" * 200  # without a place to break


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    ledger = create_ledger(tmp_path_factory.mktemp("pages") / "ledger.db", who="<b>ann</b>")
    ledger.add(Terms("people", Total(epsilon=3.0, delta=1e-5)))
    for name in (HOSTILE, LONG):
        ledger.add(
            Terms(name, Total(mu=1.0), unit="<i>person</i>", spenders=(HOSTILE, "<b>ann</b>"))
        )
        held = ledger.reserve(name, RUN, note=name)
        ledger.settle(name, held.id, 50, certificate="ab" * 32)
        ledger.reserve(name, RUN, note=HOSTILE)
    server = uvicorn.Server(uvicorn.Config(page_app(ledger), port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        thread.join(0.05)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1100])
def test_axe_finds_nothing_and_nothing_stands_out(
    chromium: Any, axe: Callable[[Any], list[Any]], address: str, scheme: str, width: int
) -> None:
    page = chromium.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    for path in ("/", *(f"/dataset?{urlencode({'name': n})}" for n in ("people", HOSTILE, LONG))):
        page.goto(address + path)
        assert axe(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.locator("strong", has_text="% left").count() >= 1
    page.close()


def test_names_are_shown_as_they_are_and_do_nothing(chromium: Any, address: str) -> None:
    page = chromium.new_page()
    errors: list[str] = []
    page.on("dialog", lambda dialog: errors.append(dialog.message))
    page.goto(address)
    page.get_by_role("link", name=HOSTILE, exact=True).click()
    assert page.get_by_role("heading", level=1).inner_text() == HOSTILE
    assert page.title() == f"{HOSTILE}: privacy ledger"
    assert page.locator("script, img, main b, main i").count() == 0
    assert page.locator("tbody tr").count() == 2
    assert page.locator("td em").first.inner_text() == HOSTILE
    page.get_by_role("link", name="All data sets").click()
    assert page.get_by_role("heading", level=2).count() == 3
    assert errors == []
    page.close()
