"""The index: every claim, our number, the truth, the verdict; in Markdown and HTML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tightrope_reproduce.catalog import MODULES
from tightrope_reproduce.folder import RECORD, write_text
from tightrope_reproduce.index_markdown import markdown
from tightrope_reproduce.index_page import page

__all__ = ["write_index", "records_in"]


def write_index(out: Path) -> tuple[Path, Path]:
    """Both pages, from every record in the folder: running one item never drops the others."""
    records = records_in(out)
    write_text(out / "index.md", markdown(records))
    write_text(out / "index.html", page(records))
    return out / "index.md", out / "index.html"


def records_in(out: Path) -> list[dict[str, Any]]:
    """What is finished in this folder, in the order of the catalogue."""
    paths = (out / name / RECORD for name in MODULES)
    return [json.loads(path.read_text()) for path in paths if path.is_file()]
