"""One self-contained page about a certificate: opens offline, prints, reads aloud.

`html_page` and `markdown_page` say the same things; the second without figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from tightrope.audit.folder import FILE as AUDIT
from tightrope.audit.folder import FolderAudit, audit_folder
from tightrope.errors import InvalidInput
from tightrope.evidence.certificate import read
from tightrope.evidence.run_folder import read_diagnostics
from tightrope.evidence.signature import Trust
from tightrope.report.blocks import Block, as_html, as_markdown
from tightrope.report.page_sections import Page, blocks_of

__all__ = ["Page", "page_of", "html_page", "markdown_page"]


def page_of(
    path: str | Path,
    *,
    with_diagnostics: bool = False,
    signatures: Sequence[dict[str, str]] = (),
    trust: Trust | None = None,
    ledger: str | None = None,
) -> Page:
    """The page about a certificate.json, or about a run folder with its attack.

    with_diagnostics: show losses and clipping too, which no epsilon covers; folders only.
    signatures: detached ones. trust: one of its keys must have signed the certificate. ledger: it
    must have counted the releases of the folder.
    """
    certificate, folder = read(path), Path(path)
    if with_diagnostics and not folder.is_dir():
        raise InvalidInput(
            "Diagnostics are kept in the run folder and never in a certificate; give the folder."
        )
    attack = _attack(folder, certificate) if (folder / AUDIT).is_file() else None
    seen = read_diagnostics(folder) if with_diagnostics else ()
    within = folder if folder.is_dir() else None
    return Page(certificate, attack, seen, signatures, trust, within, ledger)


def _attack(folder: Path, certificate: dict[str, Any]) -> FolderAudit | None:
    """The attack of the folder, if it was on the certificate's process."""
    found = audit_folder(folder)
    if found.process != certificate.get("process"):
        raise InvalidInput(
            f"{folder / AUDIT} attacked another process than the one certified here, so it says "
            "nothing about it. Attack a run with the same settings and steps, or move it away."
        )
    return found


def _blocks(page: Page) -> list[Block]:
    """A page needs a certificate of the right form, about a process that can be analysed."""
    broken = "; ".join(f"{c.name}: {c.said}" for c in page.checks if c.holds is False)
    if not (page.read and any(c.name == "process" and c.holds for c in page.checks)):
        raise InvalidInput(
            f"This certificate is too damaged for a report ({broken}). Ask for the original file, "
            "or certify the process again."
        )
    return blocks_of(page)


# Whatever a text of the file may try: no script runs, nothing is loaded.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_page(page: Page) -> str:
    style = files("tightrope.report").joinpath("page.css").read_text()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>Privacy report</title><style>{style}</style></head><body><main>\n"
        f"{as_html(_blocks(page))}\n</main></body></html>\n"
    )


def markdown_page(page: Page) -> str:
    return as_markdown(_blocks(page))
