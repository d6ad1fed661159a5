"""Runs what a page shows, in order and in a folder of its own, and writes down what came out.

python docs/run_pages.py [PAGE ...]  # these pages again (or all), and the notebooks

A ```console block holds commands, each after "$ "; a ```python block's output is the ```text block
behind it. Blocks of one page share their folder and their names, as at a desk.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
TUTORIALS = [*sorted(DOCS.glob("tutorials/*.md")), DOCS / "from_opacus.md"]
WALKS = sorted(DOCS.glob("walks/*.md"))
GUIDES = [DOCS / f"{name}.md" for name in ("interop", "is_this_run_private", "json", "recipes")]
BLOCK = re.compile(r"^```(console|python)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.M | re.S)
_START = f'tightrope() {{ {sys.executable} -m tightrope "$@"; }}\n'


def run_page(page: Path) -> str:
    """The page as it would be written today."""
    names: dict[str, Any] = {"__name__": "__main__"}

    def again(found: re.Match[str]) -> str:
        kind, code = found[1], found[2]
        if kind == "console":
            text = "".join(f"$ {command}\n{_shell(command)}" for command in commands(code))
            return f"```console\n{text}```\n"
        if code.startswith(">>> "):  # a session is a test of its own
            return found[0]
        out = io.StringIO()
        with redirect_stdout(out):
            exec(compile(code, str(page), "exec"), names)
        text = out.getvalue()
        return f"```python\n{code}```\n" + (f"\n```text\n{text}```\n" if text else "")

    text = page.read_text("utf-8")
    if page.stem == "contributor":  # works in the repository; everybody else where their files are
        with chdir(DOCS.parent):
            return BLOCK.sub(again, text)
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        return BLOCK.sub(again, text)


def commands(block: str) -> list[str]:
    """What was typed: lines after "$ ", and those that a backslash continues."""
    return re.findall(r"^\$ ((?:.*\\\n)*.*)$", block, re.M)


def _shell(command: str) -> str:
    """What a person sees, both streams; an exit code that is not 0 is shown."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    spaced = plain | {"COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1", "PATH": path}
    done = subprocess.run(
        ["bash", "-c", _START + command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env=spaced, timeout=300, check=False,
    )  # fmt: skip
    text = "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())
    return text + (f"(exit code {done.returncode})\n" if done.returncode else "")


def notebook(text: str) -> str:
    """A page as a notebook: prose, and a cell for each block with its output."""
    cells, at = [], 0
    for found in BLOCK.finditer(text):
        cells += _prose(text[at : found.start()])
        cells.append(_cell(found))
        at = found.end()
    cells += _prose(text[at:])
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {
        "cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 4,
    }  # fmt: skip
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _prose(text: str) -> list[dict[str, Any]]:
    if not text.strip():
        return []
    return [{"cell_type": "markdown", "metadata": {}, "source": text.strip().splitlines(True)}]


def _cell(found: re.Match[str]) -> dict[str, Any]:
    kind, code, text = found.groups()
    if kind == "console":
        text = "".join(f"{line}\n" for line in re.sub(_TYPED, "", code).splitlines() if line)
        code = "\n".join(f"!{command}" for command in commands(code))
    shown = [{"name": "stdout", "output_type": "stream", "text": (text or "").splitlines(True)}]
    return {
        "cell_type": "code", "execution_count": None, "metadata": {},
        "outputs": shown if text else [], "source": code.rstrip().splitlines(True),
    }  # fmt: skip


_TYPED = re.compile(r"^\$ (?:.*\\\n)*.*$", re.M)


def main() -> None:
    chosen = sys.argv[1:]
    for page in [*WALKS, *GUIDES, *TUTORIALS]:
        if chosen and page.stem not in chosen:
            continue
        text = run_page(page)
        page.write_text(text, "utf-8")
        if page in TUTORIALS:
            page.with_suffix(".ipynb").write_text(notebook(text), "utf-8")
        print(page.relative_to(DOCS), flush=True)


if __name__ == "__main__":
    main()
