"""The page in a real browser: axe-core, nothing to the side on a phone, whole pages on paper."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="figures are drawn with it")

from tightrope import FullBatch, NoisySGD
from tightrope.evidence.certificate import Title, certify
from tightrope.report.page import Page, html_page

NOISE = {"private": 8.0, "not at all": 0.0, "large": 0.02}


@lru_cache
def whole(kind: str = "private") -> str:
    title = Title("A" * 150, "Model-without-a-space-" * 6, "Data", "2026-11-01", 60_000)
    process = NoisySGD(FullBatch(), noise_multiplier=NOISE[kind], steps=10)
    return html_page(Page(json.loads(json.dumps(certify(process, 1e-5, title=title)))))


def unguarded() -> str:
    """Without its policy: the probes of these tests are scripts."""
    return re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", whole())


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Any:
    """A page from a file, as a reader opens it."""
    contexts = []

    def open_it(text: str, **options: Any) -> Any:
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        contexts.append(chromium.new_context(bypass_csp=True, **options))
        page = contexts[-1].new_page()
        page.goto(f"file://{tmp_path / 'page.html'}")
        return page

    yield open_it
    for context in contexts:
        context.close()


@pytest.mark.parametrize("kind", NOISE)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_nothing_stands_out(
    opened: Any, axe: Any, kind: str, scheme: str
) -> None:
    page = opened(whole(kind), color_scheme=scheme, viewport={"width": 1100, "height": 900})
    for width in (1100, 375, 320):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert axe(page) == []


def test_no_script_runs_in_the_page(chromium: Any, tmp_path: Path) -> None:
    """By the page's own policy, whatever got into it; without the policy it would."""
    probe = "<script>document.title = 'it ran'</script></body>"
    with chromium.new_context() as context:
        for text, ran in ((whole(), False), (unguarded(), True)):
            (tmp_path / "page.html").write_text(text.replace("</body>", probe), encoding="utf-8")
            page = context.new_page()
            page.goto(f"file://{tmp_path / 'page.html'}")
            assert (page.title() == "it ran") == ran


def test_paper_has_whole_pages(opened: Any) -> None:
    made = opened(whole()).pdf(format="A4")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b(?!s)", made)) <= 9
