"""The same example and the same weights must give the same bits: what PyTorch is told for that."""

from __future__ import annotations

import os
from typing import Any, final

import torch

from tightrope.errors import InvalidInput
from tightrope.train.gradients.rounding import precision_of_products

__all__ = ["Deterministic"]

_WORKSPACES = (":4096:8", ":16:8")


@final
class Deterministic:
    """Turns on deterministic algorithms, and finds out whether somebody changes how is computed.

    They stay on in this process: what follows is slower at most.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda" and os.environ.get("CUBLAS_WORKSPACE_CONFIG") not in _WORKSPACES:
            raise InvalidInput(
                "Strict mode needs the same bits from the same example. On CUDA, matrix products "
                "give them only if the environment says CUBLAS_WORKSPACE_CONFIG=:4096:8 before "
                "Python starts."
            )
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        self._wanted = _settings()

    def check(self) -> None:
        """Refuse to go on if somebody has changed them."""
        now = _settings()
        if now != self._wanted:
            changed = {key: now[key] for key in now if now[key] != self._wanted[key]}
            raise InvalidInput(
                f"Strict mode fixed how PyTorch computes, and it was changed: {changed}. The same "
                "example could now give other bits than before. Leave these settings alone, or set "
                "them before the run is made."
            )


def _settings() -> dict[str, Any]:
    return {
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "only warns": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "threads": torch.get_num_threads(),
        "matrix products": precision_of_products(),
    }
