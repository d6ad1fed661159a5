"""Public numbers of a run for TensorBoard: `Trainer(..., log=TensorBoardLog("logs/mnist"))`."""

from __future__ import annotations

from pathlib import Path
from typing import final

from torch.utils.tensorboard import SummaryWriter

__all__ = ["TensorBoardLog"]


@final
class TensorBoardLog:
    """Writes each (name, value, step) it is told; nothing about single batches reaches it."""

    def __init__(self, folder: str | Path) -> None:
        self._writer = SummaryWriter(str(folder))

    def __call__(self, name: str, value: float, step: int) -> None:
        self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
