"""The best of a secret random number of private trials, for any trial at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, final

from tightrope.entropy import open_stream
from tightrope.errors import InvalidInput, NotCertified
from tightrope.guarantee.base import Guarantee
from tightrope.ledger.spending import reserved

__all__ = ["PrivateSelection", "Selected", "Trials"]


class Trials(Protocol):
    """A law for the number of trials."""

    def draw(self, uniform: Callable[[], float]) -> int: ...
    def guarantee(self, trial: Guarantee) -> Guarantee: ...


@final
@dataclass(frozen=True)
class Selected:
    """What a search releases. The number of trials is secret and not kept."""

    score: float
    result: Any
    guarantee: Guarantee
    private: bool


@final
@dataclass(frozen=True)
class PrivateSelection:
    """Run `trial` a secret number of times and keep the best.

    trial(): one private run with settings it draws at random itself; returns (score, result). The
    score must be private too: computed on public data, or with noise that `one_trial` covers.
    one_trial: the guarantee of (score, result) together.
    """

    trial: Callable[[], tuple[float, Any]]
    one_trial: Guarantee
    trials: Trials

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the whole search."""
        return self.trials.guarantee(self.one_trial)

    def run(self, seed: int | None = None) -> Selected:
        """Search once. A seed makes the number of trials known: then nothing is private."""
        source = open_stream("search", seed=seed, cryptographic=True)
        with reserved(self.guarantee, "search", private=source.private):
            best = self._best(self.trials.draw(source.uniform))
        if best is None:
            raise NotCertified(
                "The secret number of trials was 0: nothing is released. Run again "
                "and compose the two guarantees, or take a larger mean."
            )
        return Selected(*best, self.guarantee, source.private)

    def _best(self, trials: int) -> tuple[float, Any] | None:
        best: tuple[float, Any] | None = None
        for _ in range(trials):
            score, result = self.trial()
            if score != score:
                raise InvalidInput("A trial scored NaN, which cannot be ranked.")
            if best is None or score > best[0]:
                best = (float(score), result)
        return best
