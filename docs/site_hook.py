"""For the documentation site: links to files of the repository that are not pages become words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_DOCS = Path(__file__).parent
_LINK = re.compile(r"\[([^\]]*)\]\(((?!https?:|#)[^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    here = (_DOCS / page.file.src_path).parent

    def link(found: re.Match[str]) -> str:
        target = (here / found[2]).resolve()
        outside = target.exists() and _DOCS not in target.parents
        return found[1] if outside else found[0]

    return _LINK.sub(link, markdown)
