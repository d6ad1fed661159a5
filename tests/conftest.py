"""Laws are checked on the same examples each time; HYPOTHESIS_PROFILE=explore finds new ones."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.fixture(autouse=True)
def _a_ledger_of_its_own() -> Iterator[None]:
    """Fits of one test are no fits of another."""
    yield
    module = sys.modules.get("tightrope.estimators.ledger")
    if module is not None:
        module.LEDGER._fits.clear()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The system's Chromium, driven by Playwright; its pages are made with chromium.new_page().

    One for each module: Playwright keeps an event loop running for as long as it lives.
    """
    drive = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    flags = ["--no-sandbox", "--disable-gpu"]
    with drive.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def axe() -> Callable[[Any], list[str]]:
    """What axe-core finds in a page of Playwright: a rule and the first place for each finding."""
    tool = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")

    def found(page: Any) -> list[str]:
        violations = tool.Axe().run(page).response["violations"]
        return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in violations]

    return found
