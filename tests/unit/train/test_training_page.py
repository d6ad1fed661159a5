"""The code on the training page runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "training.md"


def test_the_code_on_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 4
    first = {}
    exec(compile(blocks[0], "first block", "exec"), first)
    assert 0 < first["run"].epsilon(1e-4).upper <= 5.0
    exec(compile(blocks[2], "views", "exec"), first)
    assert first["several"].steps == 3
    exec(compile(blocks[3], "turns", "exec"), first)
    assert sum(p.numel() for p in first["turned"].parameters()) == 2_908
    assert first["turned"](first["pictures"]).shape[1] == 10
    # the second block stores a run that is about to start
    start = blocks[0].split("for x, y in", 1)[0]
    again = {}
    exec(compile(start, "its beginning", "exec"), again)
    exec(compile(blocks[1], "second block", "exec"), again)
    assert (tmp_path / "runs" / "digits" / "journal.jsonl").exists() and again["run"].steps > 50
