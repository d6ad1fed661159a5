"""The page in a real browser: nothing to the side on a phone, whole pages on paper, axe-core.

Chromium is used where it is installed (Debian: apt-get install chromium), axe-core where npm put
it (`npm install axe-core` in the repository's root, or AXE_CORE=/path/to/axe.min.js).
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="figures are drawn with it")

from tightrope import FullBatch, NoisySGD
from tightrope.evidence.certificate import certify
from tightrope.evidence.title import Title
from tightrope.report.page import Page, html_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ROOT = Path(__file__).parents[3]
AXE = Path(os.environ.get("AXE_CORE", ROOT / "node_modules" / "axe-core" / "axe.min.js"))
QUIET = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
QUIET += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@lru_cache
def whole() -> str:
    title = Title("A" * 150, "Model-without-a-space-" * 6, "Data", "2026-11-01", 60_000)
    process = NoisySGD(FullBatch(), noise_multiplier=8.0, steps=10)
    return html_page(Page(json.loads(json.dumps(certify(process, 1e-5, title=title)))))


def text() -> str:
    """Without its policy: the probes of these tests are scripts."""
    return re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", whole())


def chromium(folder: Path, *words: str) -> str:
    command = [str(CHROMIUM), *QUIET, f"--user-data-dir={folder / 'profile'}", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def asked(folder: Path, script: str, width: int, *words: str) -> object:
    """What a script finds in the page, in a frame as wide as a phone."""
    probe = f"<script>{script}</script>"
    (folder / "page.html").write_text(text().replace("</body>", f"{probe}</body>"))
    frame = f'<iframe src="page.html" style="width:{width}px;height:900px;border:0"></iframe>'
    listen = "onmessage = e => document.body.textContent = e.data"
    (folder / "frame.html").write_text(f"<!doctype html><body>{frame}<script>{listen}</script>")
    flags = ("--allow-file-access-from-files", "--virtual-time-budget=20000", "--dump-dom", *words)
    shown = chromium(folder, *flags, f"file://{folder / 'frame.html'}")
    found = re.search(r"<body>(\{.*?\})</body>", shown, re.DOTALL)
    assert found, shown[:500]
    return json.loads(html.unescape(found.group(1)))


TELL = "parent.postMessage(JSON.stringify({0}), '*')"


@pytest.mark.parametrize("width", [320, 375, 1100])
def test_nothing_stands_out_to_the_side(width: int, tmp_path: Path) -> None:
    size = "(e => ({wide: e.scrollWidth, room: e.clientWidth}))(document.documentElement)"
    found = asked(tmp_path, f"onload = () => {TELL.format(size)}", width)
    assert isinstance(found, dict) and found["wide"] <= found["room"]


def test_no_script_runs_in_the_page(tmp_path: Path) -> None:
    """By the page's own policy, whatever got into it; without the policy it would."""
    probe = "<script>document.title = 'it ran'</script></body>"
    for page, ran in ((whole(), False), (text(), True)):
        (tmp_path / "page.html").write_text(page.replace("</body>", probe))
        shown = chromium(tmp_path, "--dump-dom", f"file://{tmp_path / 'page.html'}")
        assert ("<title>it ran</title>" in shown) == ran


def test_paper_has_whole_pages(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(text())
    target = tmp_path / "page.pdf"
    words = (f"--print-to-pdf={target}", "--no-pdf-header-footer")
    chromium(tmp_path, *words, f"file://{tmp_path / 'page.html'}")
    pages = len(re.findall(rb"/Type\s*/Page\b(?!s)", target.read_bytes()))
    assert 2 <= pages <= 9


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed (npm install axe-core)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1100])
def test_axe_finds_nothing(scheme: str, width: int, tmp_path: Path) -> None:
    found = "{n: r.violations.map(v => v.id + ': ' + v.nodes[0].html.slice(0, 200))}"
    then = f"axe.run().then(r => {TELL.format(found)})"
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    script = f"{AXE.read_text()}; onload = () => {then}"
    told = asked(tmp_path, script, width, *dark)
    assert told == {"n": []}
