"""The section `run` of a certificate: what was executed, by the word of the code that executed it.

Only public facts: settings, steps really taken, measurements on public data, a commitment to the
private data. Batch sizes, losses and gradient norms are functions of private data that no epsilon
covers; they stay in the run folder.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, final

__all__ = ["RunFacts", "Spent", "Measured"]


@final
@dataclass(frozen=True)
class Spent:
    """Certified epsilon after so many steps, at the certificate's delta."""

    step: int
    epsilon: float | None


@final
@dataclass(frozen=True)
class Measured:
    """A number measured on public data."""

    step: int
    name: str
    value: float


@final
@dataclass(frozen=True)
class RunFacts:
    """Everything public about an execution.

    kind: "training" or "convex fit". steps: released steps of training. clip, noise, sampling: as
    the objects that ran describe themselves. settings: other public numbers and texts by name.
    data: commitment to the private data (see `commitment`), or None where none was made.
    budget: (epsilon, delta) that the run was not allowed to pass, or None.
    length: what its length was held to, as far as that was said before the first step: "planned",
    "budget", "asked" (named, but nothing held it there), "at will", "nothing released"; None for a
    fit, whose process says it.
    """

    kind: str
    private: bool
    not_private_because: tuple[str, ...]
    steps: int | None
    clip: str
    sensitivity: float | None
    noise: str
    sampling: str
    settings: dict[str, Any]
    length: str | None = None
    data: str | None = None
    budget: tuple[float, float] | None = None
    history: tuple[Spent, ...] = ()
    measured: tuple[Measured, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The section as JSON data."""
        budget = (
            None
            if self.budget is None
            else dict(zip(("epsilon", "delta"), self.budget, strict=True))
        )
        return {
            **asdict(self),
            "not_private_because": list(self.not_private_because),
            "budget": budget,
            "history": [asdict(row) for row in self.history],
            "measured": [asdict(row) for row in self.measured],
        }
