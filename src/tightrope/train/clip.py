"""Clipping: from per-example norms to factors that bound what one example can contribute.

Formal guarantee. For every clip and every example i, with g_il the gradient of example i in
parameter l and N_il its norm, within NORM_ERROR of what the engine hands over,
    sum_l (factor_il N_il)^2 <= sensitivity^2,
so adding or removing one example moves the released sum by at most `sensitivity`.
Norms must be finite: the engine drops an example with a non-finite gradient before.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor

from tightrope.errors import InvalidInput

if TYPE_CHECKING:
    from tightrope.train.gradients.batch import ClippedBatch

# A norm computed in float32 may lie below the true one by at most this fraction: a square is a sum
# of at most 8192 rounded squares in one chain (4096 each for the two sides of an outer product),
# then of at most 1024 tiles and 2048 parameters; square root, division and the product with the
# factor take a few units of 2^-24 more. (8192 + 1024 + 2048 + 64) 2^-24 / 2 < 2^-11.
NORM_ERROR = 2.0**-11
_MARGIN = 1.0 - NORM_ERROR


class Clip(ABC):
    """How per-example gradients are bounded."""

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """Largest norm of one example's contribution to the sum."""

    @property
    def per_parameter(self) -> bool:
        """Whether the factors differ between parameters; if not, only total norms matter."""
        return False

    @abstractmethod
    def factors(self, squared_norms: Tensor) -> Tensor:
        """squared_norms: (parameters, B) -> factors (parameters or 1, B), each finite and >= 0."""


@dataclass(frozen=True)
class _Bounded(Clip):
    """A clip whose sensitivity is a number that was given."""

    clip_norm: float

    def __post_init__(self) -> None:
        _check_norm("clip_norm", self.clip_norm)

    @property
    def sensitivity(self) -> float:
        return self.clip_norm


@final
@dataclass(frozen=True)
class FlatClip(_Bounded):
    """min(1, clip_norm / norm) over all parameters together (Abadi et al. 2016, Algorithm 1)."""

    def factors(self, squared_norms: Tensor) -> Tensor:
        return _shrink(_together(squared_norms), self.clip_norm)


@final
@dataclass(frozen=True)
class PerLayerClip(_Bounded):
    """Each parameter clipped on its own, to clip_norm / sqrt(number of parameters) or as given.

    clip_norms, where given, are one bound for each parameter in the engine's order; the
    sensitivity is then the root of the sum of their squares, and clip_norm must not be below it.
    """

    clip_norms: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for value in self.clip_norms or ():
            _check_norm("clip_norms", value)
        if self.clip_norms is not None and self.clip_norm < math.hypot(*self.clip_norms):
            raise InvalidInput(
                f"clip_norm is {self.clip_norm}, but the bounds in clip_norms together allow "
                f"{math.hypot(*self.clip_norms)}; set clip_norm to at least that"
            )

    @property
    def per_parameter(self) -> bool:
        return True

    def factors(self, squared_norms: Tensor) -> Tensor:
        count = squared_norms.shape[0]
        if self.clip_norms is None:
            return _shrink(squared_norms, self.clip_norm / math.sqrt(count) * _MARGIN)
        if len(self.clip_norms) != count:
            raise InvalidInput(
                f"clip_norms has {len(self.clip_norms)} bounds for {count} parameters; "
                "give one for each trainable parameter"
            )
        return _shrink(squared_norms, squared_norms.new_tensor(self.clip_norms)[:, None])


@final
@dataclass(frozen=True)
class AutomaticClip(_Bounded):
    """clip_norm / (norm + stability): every gradient normalised (Bu et al. 2022, AUTO-S).

    A bound of 1 with the learning rate adapted is enough; stability keeps small gradients small.
    """

    clip_norm: float = 1.0
    stability: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_norm("stability", self.stability)

    def factors(self, squared_norms: Tensor) -> Tensor:
        norms = _together(squared_norms).sqrt()
        return (self.clip_norm * _MARGIN) / norms.add_(self.stability)


def _together(squared: Tensor) -> Tensor:
    return squared if squared.shape[0] == 1 else squared.sum(0, keepdim=True)


def _shrink(squared: Tensor, bound: float | Tensor) -> Tensor:
    # At norm 0 the quotient is inf and the clamp makes it 1.
    allowed = bound * _MARGIN
    if isinstance(allowed, float):
        allowed = as_tensor(allowed, squared.dtype)
    return squared.rsqrt().mul_(allowed).clamp_max_(1.0)


@lru_cache(maxsize=64)
def as_tensor(number: float, dtype: torch.dtype) -> Tensor:
    """A number that multiplies on the CPU in a fifth of the time of a Python number."""
    return torch.scalar_tensor(number, dtype=dtype, device="cpu")


def _check_norm(name: str, value: float) -> None:
    # The limits keep squares of norms inside float32.
    if not (isinstance(value, int | float) and 1e-12 <= value <= 1e12):
        raise InvalidInput(f"{name} must be a number in [1e-12, 1e12]; got {value!r}")


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
        self._text = (
            f"AdaptiveClip({clip_norm:g}, quantile={quantile:g}, rate={rate:g}, share={share:g})"
        )

    def __repr__(self) -> str:
        return self._text

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


_ALONE = (
    FlatClip,
    PerLayerClip,
    AutomaticClip,
    AdaptiveClip,
)  # whose factors depend on one example


def factors_of(clip: Clip, squared_norms: Tensor) -> Tensor:
    """The factors of a batch; a clip that is not this library's gets one example at a time."""
    if isinstance(clip, _ALONE) or squared_norms.shape[1] == 0:
        return clip.factors(squared_norms)
    return torch.cat([clip.factors(one) for one in squared_norms.split(1, 1)], 1)
