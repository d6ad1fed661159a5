"""A clip norm that follows a quantile of the gradients' norms (Andrew et al. 2021, Algorithm 1).

Each step also releases how many examples were not clipped. With C the clip norm, b_i = 1 where
example i was not clipped and 0 where it was, and a = `share`, one noise is added to the sum of

    v_i = (x_i, (b_i - 1/2) 2 S sqrt(a)),   S = C / sqrt(1 - a),   so |v_i|^2 <= C^2 + a S^2 = S^2.

The step is one Gaussian release of sensitivity S with the noise multiplier of the run. So the
account is that of a fixed clip norm, exactly, and the gradients carry 1 / sqrt(1 - a) times the
noise that they would have otherwise. The next norm is computed from released numbers alone:

    C <- C exp(-rate (released count / (2 S sqrt(a)) / expected batch size + 1/2 - quantile)).

The count of a part is a whole number below 2^24, exact in float32, and multiplied once: rho covers
it as it covers a coordinate of the gradients (docs/arithmetic.md).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.train.clip import Clip, FlatClip

if TYPE_CHECKING:
    from tightrope.train.gradients.batch import ClippedBatch

__all__ = ["AdaptiveClip"]


@final
class AdaptiveClip(Clip):
    """clip_norm: the first; quantile: the share of examples that should not be clipped.

    rate: how fast the norm follows. share: of each step's privacy, what the count takes.
    """

    def __init__(
        self,
        clip_norm: float = 1.0,
        *,
        quantile: float = 0.5,
        rate: float = 0.2,
        share: float = 0.01,
    ) -> None:
        FlatClip(clip_norm)  # refuses what is no norm
        for name, value in (("quantile", quantile), ("rate", rate), ("share", share)):
            if not (isinstance(value, int | float) and 0 < value < 1):
                raise InvalidInput(f"{name} must lie between 0 and 1; got {value!r}.")
        self.clip_norm, self.quantile = float(clip_norm), float(quantile)
        self.rate, self.share = float(rate), float(share)
        self._taken = False
        self._told = (
            f"AdaptiveClip({clip_norm:g}, quantile={quantile:g}, rate={rate:g}, share={share:g})"
        )

    def __repr__(self) -> str:
        return self._told

    def belong_to_a_run(self) -> None:
        """Follow one run and no other: the norm is computed from what that run released."""
        if self._taken:
            raise InvalidInput(
                "This AdaptiveClip, or one that it is a copy of, follows another run already, so "
                "what that one released would steer this one. Make a new AdaptiveClip for each run."
            )
        self._taken = True

    @property
    def sensitivity(self) -> float:
        """Of gradient and count together."""
        return self.clip_norm / math.sqrt(1.0 - self.share)

    @property
    def _weight(self) -> float:
        """What an example that was not clipped adds to the count, and one that was takes off."""
        return self.sensitivity * math.sqrt(self.share)

    def factors(self, squared_norms: Tensor) -> Tensor:
        return FlatClip(self.clip_norm).factors(squared_norms)

    def counted(self, batch: ClippedBatch) -> list[Tensor]:
        """The sums of a part of a batch, and its count as one more."""
        within = (batch.factors >= 1).sum()
        count = (2 * within - batch.examples).to(batch.sums[0].device, torch.float32)
        return [*batch.sums, count.mul(self._weight).reshape(1)]

    def follow(self, released: float, expected_batch_size: float) -> None:
        """Choose the next norm from the noisy count."""
        within = released / (2 * self._weight) / expected_batch_size + 0.5
        off = min(max(within, 0.0), 1.0) - self.quantile
        self.clip_norm = min(max(self.clip_norm * math.exp(-self.rate * off), 1e-12), 1e12)

    def state_dict(self) -> dict[str, float]:
        """For a run folder."""
        return {"clip_norm": self.clip_norm}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.clip_norm = FlatClip(state["clip_norm"]).clip_norm
