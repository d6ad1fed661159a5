"""Any contractive noisy iteration, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, final

import numpy as np

from tightrope.errors import InvalidInput
from tightrope.process.adjacency import Adjacency, Released
from tightrope.validate import check_non_negative, check_positive

__all__ = ["IterationNoise", "ContractiveIteration"]


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
        _check_spread(self.sensitivities, "sensitivities")
        _check_spread(self.noise_scales, "noise_scales")
        _store(self, start_distance=check_non_negative(self.start_distance, "start_distance"))
        if self.diameter is not None:
            _store(self, diameter=check_positive(self.diameter, "diameter"))


def _checked_column(values: Sequence[float], name: str) -> tuple[float, ...]:
    column = np.asarray(check_non_negative(np.asarray(values), name))
    if column.ndim != 1:
        raise InvalidInput(f"{name} must be a list with one number for each step; got {values!r}.")
    return tuple(column.tolist())


def _check_spread(values: tuple[float, ...], name: str) -> None:
    """The certified arithmetic of the hull needs ratios that doubles can hold."""
    positive = [value for value in values if value > 0.0]
    if positive and max(positive) > 1e50 * min(positive):
        raise InvalidInput(
            f"{name} span more than 50 orders of magnitude ({min(positive):g} to "
            f"{max(positive):g}); write 0 for steps that do not matter."
        )


def _store(process: object, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(process, name, value)
