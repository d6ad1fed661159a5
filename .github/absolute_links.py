"""Before a release: links of the README and of the package lead to the repository.

    python .github/absolute_links.py https://github.com/OWNER/NAME v0.2.0

A package index shows the README without the files beside it. The repository's address stands
nowhere else: the release workflow takes it from GitHub.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|#|mailto:)([^)\s]+)\)")


def absolute(text: str, address: str, tag: str) -> str:
    """The same text, its relative links leading to files of that tag."""

    def one(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        kind = "raw" if mark else "blob"
        return f"{mark}[{words}]({address}/{kind}/{tag}/{target})"

    return _LINK.sub(one, text)


def with_addresses(project: str, address: str) -> str:
    """pyproject.toml with the addresses that a package index shows."""
    lines = [
        "[project.urls]",
        f'Source = "{address}"',
        f'Documentation = "{address}/tree/main/docs"',
        f'Changelog = "{address}/blob/main/CHANGELOG.md"',
        f'Issues = "{address}/issues"',
        "",
        "[project.scripts]",
    ]
    return project.replace("[project.scripts]", "\n".join(lines), 1)


def main() -> None:
    address, tag = sys.argv[1].rstrip("/"), sys.argv[2]
    readme, project = ROOT / "README.md", ROOT / "pyproject.toml"
    readme.write_text(absolute(readme.read_text(), address, tag))
    project.write_text(with_addresses(project.read_text(), address))


if __name__ == "__main__":
    main()
