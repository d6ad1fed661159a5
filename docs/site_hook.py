"""For the documentation site: links to files of the repository that are not pages become words.

Parts of the navigation get names of their own, so that a screen reader can tell them apart. What
the theme would load from elsewhere, for its search in files, is loaded from here. Sessions (>>> )
in docstrings are shown as code: to Markdown they look like quotations.
"""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

_DOCS = Path(__file__).parent
_ELSEWHERE = "https://unpkg.com/iframe-worker/shim"
_NAV = re.compile(r'(<nav class="md-nav"[^>]*?)aria-label(?:ledby)?="[^"]*"')
_LINK = re.compile(r"\[([^\]]*)\]\(((?!https?:|#)[^)#\s]+)(#[^)\s]*)?\)")


class _Sessions(Preprocessor):
    """A fence around every session that begins a paragraph, up to the next blank line."""

    def run(self, lines: list[str]) -> list[str]:
        made, inside, fenced = list[str](), False, False
        for line in [*lines, ""]:
            fenced ^= line.lstrip().startswith("```")
            if line.startswith(">>> ") and not inside and not fenced:
                made.append("```pycon")
                inside = True
            elif inside and not line.strip():
                made.append("```")
                inside = False
            made.append(line)
        return made[:-1]


class _SessionsAsCode(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802  (its name in Markdown)
        md.preprocessors.register(_Sessions(md), "sessions", 40)  # before fences are read


def on_config(config: Any) -> Any:
    config.markdown_extensions.append(_SessionsAsCode())
    return config


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
