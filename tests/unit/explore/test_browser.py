"""The explorer in a real browser: axe-core, keyboard, phone and dark, and no number of before."""

from __future__ import annotations

import socket
import threading
import time

import pytest

pytest.importorskip("uvicorn", reason="the page needs uvicorn")
pytest.importorskip("starlette", reason="the page needs Starlette")

import uvicorn

from tightrope.explore.serve import explore_app


@pytest.fixture(scope="module")
def address():
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        port = line.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(explore_app(), port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join()


@pytest.fixture
def opened(chromium, address):
    """A page, once all its answers are there."""
    contexts = []

    def open_it(setting="", **options):
        contexts.append(chromium.new_context(**options))
        page = contexts[-1].new_page()
        page.goto(f"{address}#{setting}")
        page.wait_for_selector(".slow:not(.waiting)")
        return page

    yield open_it
    for context in contexts:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1100])
def test_axe_finds_nothing_and_nothing_stands_out(opened, axe, scheme, width):
    page = opened(color_scheme=scheme, viewport={"width": width, "height": 900})
    assert axe(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
