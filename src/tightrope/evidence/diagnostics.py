"""Diagnostics of training, as read back from a run folder for its owner.

They are functions of private data that no epsilon covers: NOT FOR PUBLICATION.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import final

from tightrope.errors import InvalidInput
from tightrope.evidence.files import open_ordinary

__all__ = ["FILE", "Diagnostic", "read_diagnostics"]

FILE = "diagnostics.jsonl"


@final
@dataclass(frozen=True)
class Diagnostic:
    """What one step saw: batch size, mean loss, mean gradient norm, share clipped, not finite."""

    step: int
    batch_size: int
    mean_loss: float | None
    mean_norm: float | None
    clipped_fraction: float
    nonfinite: int


def read_diagnostics(folder: str | Path) -> list[Diagnostic]:
    """Those kept in a run folder, one a step (the last where a step was computed again)."""
    path = Path(folder) / FILE
    if not path.is_file():
        return []
    try:
        with open_ordinary(path) as file:
            text = file.read().decode("utf-8")
        whole = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
        rows = [Diagnostic(**json.loads(line)) for line in whole]
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{path} is damaged: {error}.") from None
    return [row for _, row in sorted({row.step: row for row in rows}.items())]
