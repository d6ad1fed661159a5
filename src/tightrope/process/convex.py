"""Noisy gradient methods whose last iterate alone is released, as data.

One convention for the noise everywhere: `noise_std` is the standard deviation of the Gaussian
noise on the MEAN gradient of a batch, so a step is

    w <- projection( w - step_size * (mean gradient of the batch + N(0, noise_std^2 I)) )

and the iterate receives noise of standard deviation step_size * noise_std. The functions
`noise_std_from_*` in `tightrope.process.training` translate the conventions of papers.
Batches are divided by their PUBLIC size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, final

import numpy as np

from tightrope.errors import InvalidInput
from tightrope.process.adjacency import Adjacency, Released
from tightrope.validate import check_count, check_non_negative, check_positive, check_real

__all__ = [
    "ConvexLoss",
    "SmoothLoss",
    "ClippedLoss",
    "LossConstants",
    "NoisyGradientDescent",
    "CyclicSGD",
    "SkipSGD",
    "StopSGD",
    "SubsampledSGD",
    "GradientProcess",
    "LocalGradient",
    "IterationNoise",
    "ContractiveIteration",
    "check_loss",
]


@dataclass(frozen=True, kw_only=True)
class _GradientMethod:
    """What every gradient method here has; `diameter` is that of the set projected on, if any."""

    loss: LossConstants
    step_size: float
    noise_std: float
    diameter: float | None = None
    released: Released = Released.LAST_ITERATE
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        check_loss(self.loss)
        _store(
            self,
            step_size=_in_reach(check_positive(self.step_size, "step_size"), "step_size"),
            noise_std=_in_reach(check_positive(self.noise_std, "noise_std"), "noise_std"),
        )
        if self.diameter is not None:
            diameter = _in_reach(check_positive(self.diameter, "diameter"), "diameter")
            _store(self, diameter=diameter)


@final
@dataclass(frozen=True, kw_only=True)
class NoisyGradientDescent(_GradientMethod):
    """`steps` noisy gradient steps, each on all `records` records.

    The start is a public point (`start_std` = 0) or drawn from N(point, start_std^2 I), projected.
    """

    records: int
    steps: int
    start_std: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _store(
            self,
            records=check_count(self.records, "records", low=1),
            steps=check_count(self.steps, "steps", low=1),
            start_std=_in_reach(check_non_negative(self.start_std, "start_std"), "start_std"),
        )


@final
@dataclass(frozen=True, kw_only=True)
class CyclicSGD(_GradientMethod):
    """A fixed public partition into equal batches, visited in the same order in every epoch.

    `index` is the batch (1 .. batches_per_epoch) of the record protected; None: the worst one.
    """

    batch_size: int
    batches_per_epoch: int
    epochs: int = 1
    index: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("batch_size", "batches_per_epoch", "epochs"):
            _store(self, **{name: check_count(getattr(self, name), name, low=1)})
        _store(self, index=_checked_index(self.index, self.batches_per_epoch))


@dataclass(frozen=True, kw_only=True)
class _OnePass(_GradientMethod):
    """One pass over the records in a fixed public order, one record a step."""

    records: int
    index: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _store(self, records=check_count(self.records, "records", low=1))
        _store(self, index=_checked_index(self.index, self.records))


@final
@dataclass(frozen=True, kw_only=True)
class SkipSGD(_OnePass):
    """A secret number of first records, uniform on {0 .. records // 2}, is skipped."""


@final
@dataclass(frozen=True, kw_only=True)
class StopSGD(_OnePass):
    """The pass stops after a secret number of records, uniform on {1 .. records}."""


@final
@dataclass(frozen=True, kw_only=True)
class SubsampledSGD(_GradientMethod):
    """Each step on a fresh secret uniform subset of `batch_size` of the `records` records."""

    records: int
    batch_size: int
    steps: int

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("records", "batch_size", "steps"):
            _store(self, **{name: check_count(getattr(self, name), name, low=1)})
        if self.batch_size > self.records:
            raise InvalidInput(
                f"A batch of {self.batch_size} cannot be drawn from {self.records} records."
            )

    @property
    def rate(self) -> float:
        return self.batch_size / self.records


GradientProcess = NoisyGradientDescent | CyclicSGD | SkipSGD | StopSGD | SubsampledSGD


@final
@dataclass(frozen=True)
class LocalGradient:
    """What one device sends: the gradient of its one record plus N(0, noise_std^2 I)."""

    loss: LossConstants
    noise_std: float
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        check_loss(self.loss)
        noise_std = _in_reach(check_positive(self.noise_std, "noise_std"), "noise_std")
        _store(self, noise_std=noise_std)


def _checked_index(index: int | None, last: int) -> int | None:
    if index is None:
        return None
    number = check_count(index, "index", low=1)
    if number > last:
        raise InvalidInput(f"index {number} is beyond the last position {last}; count from 1.")
    return number


_REACH = (1e-40, 1e40)  # squares, products and ratios of a few such numbers are doubles


def _in_reach(value: Any, name: str, low: float = _REACH[0]) -> Any:
    """A checked length, or a column of them, that is 0 or neither too small nor too large."""
    sizes = np.asarray(value)
    away = (sizes != 0.0) & ((sizes < low) | (sizes > _REACH[1]))
    if away.any():
        raise InvalidInput(
            f"{name} must be between {low:g} and {_REACH[1]:g}; got "
            f"{float(sizes[away].flat[0]):g}, whose square a floating-point number may not hold. "
            "Choose other units; where 0 is allowed, say 0 for what does not matter."
        )
    return value


def _store(process: object, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(process, name, value)


# ---- Any contractive noisy iteration, step by step -----------------------------------------------


class IterationNoise(Enum):
    """Noise of a contractive iteration, and the norm in which its maps contract."""

    GAUSSIAN = "Gaussian noise, distances in l2"
    LAPLACE = "Laplace noise, distances in l1"

    def __str__(self) -> str:
        return self.value


@final
@dataclass(frozen=True)
class ContractiveIteration:
    """X_t = psi_t(X_{t-1}) + noise of scale noise_scales[t]; only X_T is released.

    On neighbouring data psi_t moves by at most sensitivities[t]; each psi_t is Lipschitz with
    constant contractions[t]. The two runs start within `start_distance` of each other and, where a
    `diameter` is given, psi_t first projects on a convex set of that diameter.
    """

    sensitivities: tuple[float, ...]
    contractions: tuple[float, ...]
    noise_scales: tuple[float, ...]
    start_distance: float = 0.0
    diameter: float | None = None
    noise: IterationNoise = IterationNoise.GAUSSIAN
    released: Released = Released.LAST_ITERATE
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        for name in ("sensitivities", "contractions", "noise_scales"):
            _store(self, **{name: _checked_column(getattr(self, name), name)})
        lengths = {len(self.sensitivities), len(self.contractions), len(self.noise_scales)}
        if len(lengths) != 1:
            raise InvalidInput(
                "sensitivities, contractions and noise_scales describe the same steps, so they "
                f"have one length; got {len(self.sensitivities)}, {len(self.contractions)} and "
                f"{len(self.noise_scales)}."
            )
        start = check_non_negative(self.start_distance, "start_distance")
        _store(self, start_distance=_in_reach(start, "start_distance"))
        if self.diameter is not None:
            diameter = _in_reach(check_positive(self.diameter, "diameter"), "diameter")
            _store(self, diameter=diameter)


def _checked_column(values: Sequence[float], name: str) -> tuple[float, ...]:
    low = 0.0 if name == "contractions" else _REACH[0]  # which are no lengths
    column = np.asarray(_in_reach(check_non_negative(np.asarray(values), name), name, low))
    if column.ndim != 1:
        raise InvalidInput(f"{name} must be a list with one number for each step; got {values!r}.")
    return tuple(column.tolist())


# ---- What is known about a loss: the constants that contraction and sensitivity rest on ----------


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
        _store_constants(
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
        _store_constants(
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
        _store_constants(self, lipschitz=check_positive(self.lipschitz, "lipschitz"))


LossConstants = ConvexLoss | SmoothLoss | ClippedLoss


def check_loss(loss: object) -> None:
    if not isinstance(loss, (ConvexLoss, SmoothLoss, ClippedLoss)):
        raise InvalidInput(
            f"loss must state its constants as ConvexLoss, SmoothLoss or ClippedLoss; got "
            f"{type(loss).__name__}. Privacy here rests on these constants, so none is guessed."
        )


def _store_constants(process: object, **values: float) -> None:
    for name, value in values.items():
        if value != np.inf:  # nothing is known
            _in_reach(value, name, _REACH[0] if name == "lipschitz" else 0.0)
        object.__setattr__(process, name, value)
