"""Losses, gradient norms and batch sizes of some steps, kept in the private run folder."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import final

from tightrope.evidence.diagnostics import FILE, Diagnostic
from tightrope.train.record import StepReport
from tightrope.train.storage import open_private

__all__ = ["Diagnostics"]


@final
class Diagnostics:
    """Appends to `diagnostics.jsonl`. For the owner of the folder: no epsilon covers it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def add(self, report: StepReport) -> None:
        """Where a batch comes in parts, the numbers are those of its last part."""
        seen = report.sensitive
        row = Diagnostic(
            step=report.step,
            batch_size=seen.batch_size,
            mean_loss=_finite(seen.mean_loss),
            mean_norm=_finite(seen.mean_norm),
            clipped_fraction=seen.clipped_fraction,
            nonfinite=seen.nonfinite,
        )
        with open(open_private(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a") as file:
            file.write(json.dumps(asdict(row)) + "\n")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
