"""The hard stop: what one data set has left, by the composition that is proved for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tightrope import account
from tightrope.errors import (
    BudgetExceeded,
    DoesNotApply,
    InvalidInput,
    LedgerDamaged,
    NotCertified,
)
from tightrope.ledger import ALONG_THE_WAY, IN_ADVANCE, Terms, Total
from tightrope.ledger.book import Book, noise_that_fits, steps_that_fit, what_would_fit
from tightrope.ledger.log import LogEntry, next_entry
from tightrope.ledger.meter import with_orders
from tightrope.process import (
    Adjacency,
    CyclicSampling,
    DeclaredApproxDP,
    GaussianMechanism,
    NoisySGD,
    PoissonSampling,
    Sequence,
    StoppedAtWill,
)

RUN = NoisySGD(PoissonSampling(0.01), 1.1, 400)
EPSILON, DELTA = 3.0, 1e-5


def made(total: Total | None = None, **terms: Any) -> Book:
    book = Book()
    total = Total(epsilon=EPSILON, delta=DELTA) if total is None else total
    described = with_orders(Terms("people", total, **terms)).to_json()
    book.add(next_entry(book.head, {"kind": "add", "who": "olga", "terms": described}))
    return book


def write(book: Book, body: dict[str, Any]) -> None:
    book.add(next_entry(book.head, {"who": "ann", "at": 0.0, "note": ""} | body))


def reserve(book: Book, process: Any) -> str:
    name = f"r{len(book.reservations)}"
    write(book, book.reserve(process, "ann") | {"id": name})
    return name


def spend(book: Book, name: str, spent: int, since: int | None = None) -> dict[str, Any]:
    return book.spend(name, spent, since, who="ann")


def settle(book: Book, name: str, released: int | None = None) -> dict[str, Any]:
    return book.settle(name, released, who="ann")


def fill(book: Book, random: np.random.Generator) -> list[Any]:
    """Runs of random kinds until one is refused, which is then cut to what fits."""
    taken: list[Any] = []
    while True:
        noise, steps = float(random.uniform(1.0, 3.0)), int(random.integers(500, 1500))
        run = NoisySGD(PoissonSampling(float(random.uniform(0.002, 0.02))), noise, steps)
        left = steps_that_fit(run, book.fits)
        if left < steps:
            with pytest.raises(BudgetExceeded):
                book.reserve(run, "ann")
            if left:
                reserve(book, replace(run, steps=left))
            return [*taken, *([replace(run, steps=left)] if left else [])]
        reserve(book, run)
        taken.append(run)


@pytest.mark.parametrize("choices", [ALONG_THE_WAY, IN_ADVANCE])
def test_whatever_is_reserved_stays_within_the_total(choices: str) -> None:
    book = made(choices=choices)
    taken = fill(book, np.random.default_rng(1))
    together = account(Sequence(tuple(taken))).epsilon(DELTA)
    assert together.upper <= EPSILON
    # exact composition wastes next to nothing; a filter pays for the freedom to choose
    assert together.upper > (0.995 if choices == IN_ADVANCE else 0.8) * EPSILON


def test_what_is_fixed_in_advance_is_used_to_the_last_step() -> None:
    book = made(choices=IN_ADVANCE)
    reserve(book, RUN)
    most = steps_that_fit(replace(RUN, steps=100_000), book.fits)

    def epsilon(steps: int) -> float:
        return account(Sequence((RUN, replace(RUN, steps=steps)))).epsilon(DELTA).upper

    assert epsilon(most) <= EPSILON < epsilon(most + 1)


def test_what_cannot_be_certified_is_not_proposed() -> None:
    """The refusal stays a refusal: the search for advice does not break on its way."""

    def excess(run: Any) -> float:
        if run is not None and run.noise_multiplier > 4.0:
            raise NotCertified("nothing is known of so much noise")
        return -1.0 if run is None else 3.0 - run.noise_multiplier

    run = NoisySGD(PoissonSampling(0.01), 0.6, 1)
    assert what_would_fit(run, excess) == "What would fit: noise 3 for these steps."


def test_a_refusal_says_what_would_fit_and_it_does() -> None:
    book = made()
    long = replace(RUN, steps=10_000)
    steps, noise = steps_that_fit(long, book.fits), noise_that_fits(long, book.excess)
    assert noise is not None
    told = what_would_fit(long, book.excess)
    assert (
        told == f"What would fit: {steps} steps at noise 1.1, or noise {noise:g} for these steps."
    )
    with pytest.raises(BudgetExceeded, match="share of the Renyi filter"):
        book.reserve(long, "ann")
    assert book.fits(replace(long, steps=steps))
    assert not book.fits(replace(long, steps=steps + 1))
    assert book.fits(replace(long, noise_multiplier=noise))
    assert not book.fits(replace(long, noise_multiplier=noise - 0.01))


def test_an_open_reservation_counts_in_full_and_a_settled_one_by_what_was_released() -> None:
    book = made()
    name = reserve(book, RUN)
    whole = book.used()
    write(book, spend(book, name, 100))
    assert book.used() == whole
    write(book, settle(book, name))
    assert book.used() == pytest.approx(whole / 4, rel=1e-12)


def test_nothing_comes_back_where_releases_are_chosen_in_advance() -> None:
    book = made(choices=IN_ADVANCE)
    name = reserve(book, RUN)
    whole = book.used()
    write(book, spend(book, name, 1))
    write(book, settle(book, name))
    assert book.used() == whole
    unused = reserve(book, RUN)
    write(book, settle(book, unused, 0))  # nothing was seen of it
    assert book.used() == whole


def test_a_run_whose_steps_hang_together_is_all_or_nothing() -> None:
    book = made()
    cyclic = NoisySGD(CyclicSampling(10), 3.0, 20)
    name = reserve(book, cyclic)
    whole = book.used()
    write(book, spend(book, name, 3))
    write(book, settle(book, name))
    assert book.used() == whole > 0.0


def test_a_total_mu_adds_squares_and_takes_gaussian_noise_only() -> None:
    book = made(Total(mu=1.0))
    for _ in range(4):
        reserve(book, GaussianMechanism(2.0 * (1 + 1e-12)))
    with pytest.raises(BudgetExceeded):
        book.reserve(GaussianMechanism(1e4), "ann")
    with pytest.raises(DoesNotApply, match="Gaussian mu"):
        book.reserve(RUN, "ann")


@pytest.mark.parametrize("choices", [ALONG_THE_WAY, IN_ADVANCE])
@pytest.mark.parametrize(
    "total", [Total(advantage=0.2), Total(true_positive_rate=0.1, false_positive_rate=0.01)]
)
def test_a_risk_is_kept(total: Total, choices: str) -> None:
    book = made(total, choices=choices)
    run = replace(RUN, steps=steps_that_fit(replace(RUN, steps=20_000), book.fits))
    reserve(book, run)
    reached = total.of(account(run).guarantee(DELTA)).upper
    assert 0.5 * total.limit < reached <= total.limit


def test_refusals() -> None:
    book = made(spenders=("ann",))
    name = reserve(book, RUN)
    for wrong, refusal, said in (
        (lambda: book.reserve(RUN, "bob"), InvalidInput, "may not spend"),
        (lambda: book.reserve(StoppedAtWill(RUN), "ann"), InvalidInput, "longest run"),
        (lambda: book.reserve("a run", "ann"), InvalidInput, "neighbours"),
        (
            lambda: book.reserve(replace(RUN, adjacency=Adjacency.REPLACE_ONE), "ann"),
            InvalidInput,
            "replace-one",
        ),
        (lambda: book.reserve(replace(RUN, noise_multiplier=0.0), "ann"), BudgetExceeded, "exceed"),
        (lambda: book.reserve(DeclaredApproxDP(0.1, 1e-9), "ann"), BudgetExceeded, "exceed"),
        (lambda: spend(book, name, 401), BudgetExceeded, "beyond reservation"),
        (lambda: spend(book, "other", 1), InvalidInput, "no reservation"),
        (lambda: settle(book, name, 401), InvalidInput, "between the two"),
    ):
        with pytest.raises(refusal, match=said):
            wrong()
    write(book, spend(book, name, 7))
    with pytest.raises(InvalidInput, match="7 were announced"):
        settle(book, name, 6)
    with pytest.raises(InvalidInput):
        spend(book, name, 6)
    write(book, settle(book, name, 9))
    for again in (lambda: settle(book, name), lambda: spend(book, name, 9)):
        with pytest.raises(InvalidInput, match="was settled with"):
            again()


@pytest.mark.parametrize(
    "numbers",
    [{}, {"epsilon": 1.0}, {"mu": 1.0, "advantage": 0.1}, {"mu": 0.0}, {"advantage": 1.0}],
)
def test_a_total_is_one_of_four(numbers: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        Total(**numbers)


@pytest.mark.parametrize("name", ["", "a\nb", "\x1b[31m", "x" * 201, None])
def test_names_are_short_and_printable(name: Any) -> None:
    with pytest.raises(InvalidInput):
        Terms(name, Total(mu=1.0))


def test_an_edited_entry_is_noticed() -> None:
    book = made()
    entry = next_entry(book.head, book.reserve(RUN, "ann") | {"id": "r"})
    with pytest.raises(LedgerDamaged, match="does not follow"):
        book.add(LogEntry(entry.head, entry.content.replace("400", "4")))
    with pytest.raises(LedgerDamaged, match="makes no sense"):
        book.add(next_entry(book.head, {"kind": "grant", "id": "r"}))
