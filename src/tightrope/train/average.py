"""A running average of the weights: post-processing of what was released, so it costs nothing.

    average <- d average + (1 - d) weights,  d = min(decay, (1 + t) / (10 + t)) at step t

The average lies in the optimizer's state, so a run folder stores it with everything else.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from tightrope.errors import InvalidInput

__all__ = ["Average"]

_KEY = "average"


@final
class Average:
    """decay: from 0 to below 1, usually 0.999; smaller in the first steps."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, decay: float) -> None:
        if not (isinstance(decay, int | float) and 0 <= decay < 1):
            raise InvalidInput(f"average is the decay of a running mean, in [0, 1); got {decay!r}.")
        self._named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._optimizer, self._decay = optimizer, float(decay)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """To be called after each release, whose number is `step`."""
        decay = min(self._decay, (1 + step) / (10 + step))
        for _, parameter in self._named:
            state = self._optimizer.state[parameter]
            if _KEY not in state:  # after the first step: optimizers fill an empty state themselves
                state[_KEY] = parameter.detach().clone()
            else:
                state[_KEY].lerp_(parameter, 1 - decay)

    def weights(self) -> dict[str, Tensor]:
        """By name; the weights themselves before the first step."""
        state = self._optimizer.state
        return {name: state.get(p, {}).get(_KEY, p.detach()) for name, p in self._named}
