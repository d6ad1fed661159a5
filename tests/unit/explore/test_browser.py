"""The explorer in a real browser: axe-core, keyboard, phone and dark, and no number of before."""

from __future__ import annotations

import json
import socket
import threading
import time

import pytest

pytest.importorskip("uvicorn", reason="the page needs uvicorn")
pytest.importorskip("starlette", reason="the page needs Starlette")

import uvicorn

from tightrope.evidence.verify import holds, verify
from tightrope.explore.page import explore_app

# What the page says of itself in the very moment in which a slider has moved.
AT_ONCE = """() => document.activeElement.addEventListener("input", () => {
    const [copy, certificate] = ["copy", "certificate"].map((id) => document.getElementById(id));
    const busy = document.getElementById("results").getAttribute("aria-busy");
    window.atOnce = [busy, copy.disabled, certificate.disabled];
})"""


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


def test_a_slider_moved_by_keys_answers_and_the_address_holds_it(opened):
    page = opened("noise=2&batch_size=256&dataset_size=60000&epochs=60&delta=1e-5")
    before = page.inner_text("#epsilon")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Noise")
    page.evaluate(AT_ONCE)
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#results[aria-busy=false]")
    assert page.evaluate("window.atOnce") == ["true", True, True]  # the number is of before
    assert page.inner_text("#epsilon") != before
    noise = page.input_value("#noise")
    assert f"noise={noise}" in page.url and f"noise_multiplier={noise}" in page.inner_text(
        "#python"
    )


def test_the_numbers_are_those_of_the_library(opened):
    page = opened("noise=1.1&batch_size=256&dataset_size=60000&epochs=60&delta=1e-5&budget=3")
    assert page.inner_text("#epsilon") == "\u2264 2.3816"
    assert "finds at most 41" in page.inner_text("#people")
    assert "must be at least 0.96841" in page.inner_text("#noise_for")
    assert page.locator("#dots .found").count() == 31


def test_what_is_refused_leaves_no_number_code_or_certificate(opened):
    page = opened("noise=1.1")
    page.fill("#noise", "-1")
    page.wait_for_selector("#results[aria-busy=false]")
    assert "noise" in page.inner_text("#refused")
    assert page.inner_text("#epsilon") == "-" and page.inner_text("#python") == ""
    assert page.is_disabled("#certificate") and page.is_disabled("#copy")


def test_a_number_that_the_second_method_contradicts_is_withdrawn(opened):
    page = opened("noise=1.1")
    assert "Proved twice" in page.inner_text("#second")
    told = {"content_type": "application/json", "body": json.dumps({"refused": "Contradicted."})}
    page.route("**/answer/second*", lambda route: route.fulfill(**told))
    page.fill("#noise", "3")
    page.wait_for_selector("#refused:text('Contradicted.')")
    assert page.inner_text("#epsilon") == "-" and page.inner_text("#python") == ""
    assert page.is_disabled("#certificate")


def test_late_answers_are_thrown_away(opened):
    """The answer to the first movement comes after that to the second."""
    page = opened("noise=1.1")
    page.route(
        "**/answer/epsilon*noise=3*",
        lambda route: (page.wait_for_timeout(300), route.continue_()),
    )
    page.fill("#noise", "3")
    page.wait_for_timeout(60)
    page.fill("#noise", "5")
    page.wait_for_selector("#results[aria-busy=false]")
    told = page.inner_text("#epsilon")
    page.wait_for_timeout(600)
    assert page.inner_text("#epsilon") == told and "noise=5" in page.url


def test_a_pinned_run_stays_beside_the_next_one(opened):
    page = opened("noise=1.1")
    page.click("#pin")
    page.fill("#noise", "3")
    page.wait_for_selector(".slow:not(.waiting) .before")
    assert "noise 1.1" in page.inner_text("#pinned")


def test_the_certificate_that_is_saved_is_checked(opened, tmp_path):
    page = opened("sampling=full&noise=8&dataset_size=100&batch_size=100&epochs=3&delta=1e-3")
    with page.expect_download() as saved:
        page.click("#certificate")
    saved.value.save_as(tmp_path / "certificate.json")
    found = json.loads((tmp_path / "certificate.json").read_text())
    assert holds(verify(found))


def test_axe_would_find_something(opened, axe):
    page = opened()
    page.evaluate("document.querySelector('label').remove()")
    assert any(found.startswith("label") for found in axe(page))
