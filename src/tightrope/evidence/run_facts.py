"""The section `run` of a certificate: what was executed, by the word of the code that executed it.

Only public facts: settings, steps really taken, measurements on public data, a commitment to the
private data. Batch sizes, losses and gradient norms are functions of private data that no epsilon
covers; they stay in the run folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, final


@final
@dataclass(frozen=True)
class Spent:
    """Certified epsilon after so many steps, at the certificate's delta."""

    step: int
    epsilon: float | None


@final
@dataclass(frozen=True)
class Measured:
    """A number measured on public data. data: which, by a name or by their SHA-256."""

    step: int
    name: str
    value: float
    data: str


@final
@dataclass(frozen=True)
class IsolationPeriod:
    """How the examples of a batch were kept apart from a step on.

    how: "proved" (the loss is a program that was proved), "vmap" (the loss of one example, mapped
    over the batch), or "one at a time" (the owner's Python, which the owner vouches for).
    rows: of a batch as the program takes it. programs: SHA-256 of their canonical texts.
    """

    from_step: int
    how: str
    rows: int
    programs: tuple[str, ...] = ()


@final
@dataclass(frozen=True)
class IsolationFacts:
    """How examples were kept apart, and what happened to a training beside its steps.

    private_values_shown: whether its loop could read losses and norms of private examples.
    weights_set_by_owner: how often its weights were set between steps.
    """

    examples: tuple[IsolationPeriod, ...]
    private_values_shown: bool
    weights_set_by_owner: int

    def as_dict(self) -> dict[str, Any]:
        """The section as JSON data."""
        return _plain(self)

    @staticmethod
    def from_dict(section: dict[str, Any]) -> IsolationFacts:
        """From a section that has the right form."""
        periods = (
            IsolationPeriod(**{**one, "programs": tuple(one["programs"])})
            for one in section["examples"]
        )
        return IsolationFacts(**{**section, "examples": tuple(periods)})


def _plain(facts: Any) -> dict[str, Any]:
    return json.loads(json.dumps(asdict(facts)))  # type: ignore[no-any-return]


def isolation_words(section: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The section `isolation` of a run in words: a name and a sentence for each part."""
    periods = section["examples"]
    yield "examples apart", "; ".join(map(_period_words, periods)) or "no step was taken"
    if section["private_values_shown"]:
        yield "private values", "the training loop was shown losses and norms of private examples"
    if times := section["weights_set_by_owner"]:
        yield "weights", f"set {times} times between steps, beside the releases"


def _period_words(period: dict[str, Any]) -> str:
    start, rows = f"from step {period['from_step']} on", f"batches of {period['rows']} rows"
    if period["how"] == "one at a time":
        return f"{start} by code that ran on one example at a time"
    if period["how"] == "vmap":
        return f"{start} by vmap over single examples, in {rows}"
    named = ", ".join(digest[:16] for digest in period["programs"])
    return f"{start} by proof of the program {named}, in {rows}"


@final
@dataclass(frozen=True)
class RunFacts:
    """Everything public about an execution.

    kind: "training" or "convex fit". steps: released steps of training. clip, noise, sampling: as
    the objects that ran describe themselves. settings: other public numbers and texts by name.
    data: commitment to the private data (see `commitment`), or None where none was made.
    budget: (epsilon, delta) that the run was not allowed to pass, or None.
    length: what fixed its length, as far as that was stated before the first step: "planned",
    "budget", "asked" (named, but not enforced), "at will", "nothing released"; None for a
    fit, whose process says it. isolation: of a training, how its examples were kept apart.
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
    isolation: IsolationFacts | None = None
    history: tuple[Spent, ...] = ()
    measured: tuple[Measured, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The section as JSON data."""
        section = _plain(self)
        if self.budget is not None:
            section["budget"] = dict(zip(("epsilon", "delta"), self.budget, strict=True))
        if self.isolation is None:
            del section["isolation"]
        return section
