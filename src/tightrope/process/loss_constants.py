"""What is known about a loss: the constants that contraction and sensitivity rest on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tightrope.errors import InvalidInput
from tightrope.validate import check_non_negative, check_positive, check_real

__all__ = ["ConvexLoss", "SmoothLoss", "ClippedLoss", "LossConstants", "check_loss"]


@final
@dataclass(frozen=True)
class ConvexLoss:
    """A loss convex in the parameters for every record.

    `lipschitz` bounds the norm of the part of the gradient that depends on the record (a public
    regulariser need not be counted); `smoothness` (inf if none is known) and `strong_convexity`
    bound the eigenvalues of the Hessian of the whole loss from above and below.
    """

    lipschitz: float
    smoothness: float
    strong_convexity: float = 0.0

    def __post_init__(self) -> None:
        _store(
            self,
            lipschitz=check_positive(self.lipschitz, "lipschitz"),
            smoothness=check_real(self.smoothness, "smoothness", low=0.0, finite=False),
            strong_convexity=check_non_negative(self.strong_convexity, "strong_convexity"),
        )
        if self.strong_convexity > self.smoothness:
            raise InvalidInput(
                f"strong_convexity {self.strong_convexity:g} is above smoothness "
                f"{self.smoothness:g}, but they bound the same eigenvalues from below and above."
            )


@final
@dataclass(frozen=True)
class SmoothLoss:
    """A loss that need not be convex: gradient norm <= lipschitz, Hessian norm <= smoothness."""

    lipschitz: float
    smoothness: float

    def __post_init__(self) -> None:
        _store(
            self,
            lipschitz=check_positive(self.lipschitz, "lipschitz"),
            smoothness=check_positive(self.smoothness, "smoothness"),
        )


@final
@dataclass(frozen=True)
class ClippedLoss:
    """Any loss whose per-record gradients are clipped to norm `lipschitz`: nothing else is known.

    Clipping destroys contraction unless the clipped field is again the gradient of a convex smooth
    function; where it is, describe that function with `ConvexLoss`.
    """

    lipschitz: float

    def __post_init__(self) -> None:
        _store(self, lipschitz=check_positive(self.lipschitz, "lipschitz"))


LossConstants = ConvexLoss | SmoothLoss | ClippedLoss


def check_loss(loss: object) -> None:
    if not isinstance(loss, (ConvexLoss, SmoothLoss, ClippedLoss)):
        raise InvalidInput(
            f"loss must state its constants as ConvexLoss, SmoothLoss or ClippedLoss; got "
            f"{type(loss).__name__}. Privacy here rests on these constants, so none is guessed."
        )


def _store(process: object, **values: float) -> None:
    for name, value in values.items():
        object.__setattr__(process, name, value)
