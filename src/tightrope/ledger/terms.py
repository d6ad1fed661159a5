"""What an owner promises about a data set: the neighbours, who may spend, and how much in all."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any, final

from tightrope.calibrate import Target
from tightrope.errors import InvalidInput
from tightrope.guarantee.base import Guarantee
from tightrope.numerics.interval import Interval
from tightrope.process import Adjacency, Process, StoppedAtWill, UserLevel
from tightrope.process.adjacency import check_adjacency, unit_name
from tightrope.validate import check_count, check_order, check_real

# How the releases are chosen: by looking at earlier ones, or without.
ALONG_THE_WAY, IN_ADVANCE = "along the way", "in advance"
EVERYBODY = "*"
_LONGEST_NAME = 200


@final
@dataclass(frozen=True)
class Total:
    """All that may ever be spent: (epsilon, delta), a Gaussian mu, or a risk.

    A risk is a membership advantage, or a hit rate at a rate of false alarms.
    """

    epsilon: float | None = None
    delta: float | None = None
    mu: float | None = None
    advantage: float | None = None
    true_positive_rate: float | None = None
    false_positive_rate: float | None = None

    def __post_init__(self) -> None:
        for name, value in self.numbers().items():
            object.__setattr__(self, name, float(check_real(value, name, low=0.0)))
        if tuple(self.numbers()) not in (
            ("epsilon", "delta"),
            ("mu",),
            ("advantage",),
            ("true_positive_rate", "false_positive_rate"),
        ):
            raise InvalidInput(
                "A total is epsilon and delta, or mu, or advantage, or true_positive_rate and "
                f"false_positive_rate; got {' and '.join(self.numbers()) or 'none of them'}."
            )
        if self.mu is not None:
            check_real(self.mu, "mu", low=1e-100, high=1e100)  # so are its square and its root
        else:
            self.target()

    def numbers(self) -> dict[str, float]:
        """The numbers that were given, by their names."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def target(self) -> Target:
        """What everything released together must achieve; a mu is no such number."""
        if self.epsilon is not None and self.delta is not None:
            return Target.approx_dp(self.epsilon, self.delta)
        if self.advantage is not None:
            return Target.advantage(self.advantage)
        assert self.true_positive_rate is not None and self.false_positive_rate is not None
        return Target.hit_rate(self.true_positive_rate, self.false_positive_rate)

    @property
    def limit(self) -> float:
        """What the number of `of` must not exceed."""
        target = self.target()
        return target.delta if target.true_positive_rate is None else target.true_positive_rate

    def of(self, guarantee: Guarantee) -> Interval:
        """The number of a guarantee that is compared with the limit."""
        target = self.target()
        if target.true_positive_rate is not None:
            return guarantee.true_positive_rate(target.false_positive_rate)
        return guarantee.delta(target.epsilon)

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in self.numbers().items())


@final
@dataclass(frozen=True)
class Terms:
    """The promise about one data set; nothing of it can be changed afterwards.

    unit: whose privacy it is, in words: "person", "household", "record".
    records: the most records that one of them has in the data.
    spenders: names that may reserve; ("*",) is everybody.
    choices: "along the way" where a release may be chosen by looking at earlier ones (filters),
    "in advance" where none is (exact composition); docs/ledger.md.
    orders: the Renyi orders of the filter, the most important first; () takes usual ones.
    """

    name: str
    total: Total
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    unit: str = "person"
    spenders: tuple[str, ...] = (EVERYBODY,)
    choices: str = ALONG_THE_WAY
    orders: tuple[float, ...] = ()
    records: int = 1

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        check_name(self.unit, "unit")
        object.__setattr__(self, "adjacency", check_adjacency(self.adjacency))
        object.__setattr__(self, "records", check_count(self.records, "records", low=1))
        if isinstance(self.spenders, str):
            raise InvalidInput(f"spenders are several names; got {self.spenders!r} alone.")
        object.__setattr__(self, "spenders", tuple(self.spenders))
        for spender in self.spenders:
            check_name(spender, "spender")
        if not isinstance(self.total, Total):
            raise InvalidInput(f"total must be a Total, as Total(mu=1.0); got {self.total!r}.")
        if self.choices not in (ALONG_THE_WAY, IN_ADVANCE):
            raise InvalidInput(
                f"choices must be {ALONG_THE_WAY!r} or {IN_ADVANCE!r}; got {self.choices!r}."
            )
        orders = tuple(float(check_order(order)) for order in self.orders)
        object.__setattr__(self, "orders", orders)

    def allows(self, who: str) -> bool:
        return who in self.spenders or EVERYBODY in self.spenders

    def check_process(self, process: Process) -> None:
        """Refuse what is not about the neighbours, and the people, of this data set."""
        records, run = 1, process
        if isinstance(process, UserLevel):
            records, run = process.records, process.run
        if isinstance(run, StoppedAtWill):
            raise InvalidInput(
                "Reserve the longest run that may happen, not one that is stopped at will. The run "
                "may still stop earlier; settle it then."
            )
        adjacency = getattr(process, "adjacency", None)
        if adjacency is not self.adjacency:
            raise InvalidInput(
                f"The budget of {self.name!r} is about {self.adjacency} neighbours; got "
                f"{process!r}, which is about {adjacency}. Describe the process for the neighbours "
                "of the data set."
            )
        if records != self.records:
            raise InvalidInput(
                f"One {self.unit} of {self.name!r} has at most {self.records} records, and "
                f"{process!r} is about {unit_name(records)}. Reserve "
                + ("the run alone." if self.records == 1 else f"process.group({self.records}).")
            )

    def of_one(self, process: Process) -> Any:
        """A process about one record, for all records of one person."""
        if self.records == 1 or isinstance(process, UserLevel):
            return process
        return UserLevel(process, self.records)

    def to_json(self) -> dict[str, Any]:
        plain = {
            "adjacency": str(self.adjacency),
            "spenders": list(self.spenders),
            "orders": list(self.orders),
            "total": self.total.numbers(),
        }
        return vars(self) | plain

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Terms:
        return cls(**data | {"total": Total(**data["total"])})


def check_name(value: object, what: str) -> str:
    """A short text without control characters: it is shown on terminals and pages."""
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME or not value.isprintable():
        raise InvalidInput(
            f"{what} must be 1 to {_LONGEST_NAME} printable characters; got {str(value)[:60]!r}."
        )
    return value


# Letters of other alphabets that look like these; the full list is Unicode's confusables.
_CYRILLIC = str.maketrans("авекмнорстухіјѕԁԛԝһ", "abekmhopctyxijsdqwh")
_GREEK = str.maketrans("αβεικνορτυχ", "abeiknoptux")


def skeleton(name: str) -> str:
    """The same text for names that people take for one another: case, blanks, marks, alphabets."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", name).casefold())
    letters = "".join(c for c in plain if c.isalnum())
    return letters.translate(_CYRILLIC).translate(_GREEK)
