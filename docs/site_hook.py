"""For the documentation site: links to files of the repository that are not pages become words.

Parts of the navigation get names of their own, so that a screen reader can tell them apart. What
the theme would load from elsewhere, for its search in files, is loaded from here.
"""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import Any

_DOCS = Path(__file__).parent
_ELSEWHERE = "https://unpkg.com/iframe-worker/shim"
_NAV = re.compile(r'(<nav class="md-nav"[^>]*?)aria-label(?:ledby)?="[^"]*"')
_LINK = re.compile(r"\[([^\]]*)\]\(((?!https?:|#)[^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    here = (_DOCS / page.file.src_path).parent

    def link(found: re.Match[str]) -> str:
        target = (here / found[2]).resolve()
        outside = target.exists() and _DOCS not in target.parents
        return found[1] if outside else found[0]

    return _LINK.sub(link, markdown)


def on_post_page(output: str, page: Any, **_: Any) -> str:
    numbers = count(1)
    output = output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
    output = output.replace(_ELSEWHERE, "../" * page.url.count("/") + "iframe_worker.js")
    return _NAV.sub(
        lambda found: f'{found[1]}aria-label="Part {next(numbers)} of the list"', output
    )
