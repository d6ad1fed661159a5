"""Runs, fits and searches spend from a ledger: reserved before the first step, settled after."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

from tightrope import account  # noqa: E402
from tightrope.errors import BudgetExceeded, InvalidInput, ModelNotPrivate  # noqa: E402
from tightrope.estimators import PrivateLogisticRegression, PrivateSearch  # noqa: E402
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee  # noqa: E402
from tightrope.ledger import IN_ADVANCE, Terms, Total, create_ledger  # noqa: E402
from tightrope.ledger.book import steps_that_fit  # noqa: E402
from tightrope.ledger.spending import spending  # noqa: E402
from tightrope.process import Adjacency, NoisySGD, PoissonSampling  # noqa: E402
from tightrope.search import PoissonTrials, PrivateSelection  # noqa: E402
from tightrope.train import (  # noqa: E402
    Budget,
    CyclicSampler,
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    noise_for,
    noisy_sgd,
)

X = torch.randn(60, 5, generator=torch.Generator().manual_seed(3))
Y = (X[:, 0] > 0).long()


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    made = create_ledger(tmp_path / "ledger.db")
    made.add(Terms("people", Total(epsilon=3.0, delta=1e-5)))
    made.add(Terms("fixed", Total(epsilon=3.0, delta=1e-5), choices=IN_ADVANCE))
    replaced = Adjacency.REPLACE_ONE
    made.add(Terms("rows", Total(epsilon=3.0, delta=1e-5), replaced))
    return made


def run_on(
    budget: Budget, noise: Any = None, sampler: Any = None, *, steps: int | None = 10, **how: Any
) -> Any:
    return noisy_sgd(
        nn.Linear(5, 2),
        (X, Y),
        losses,
        learning_rate=0.1,
        steps=steps,
        sampler=PoissonSampler(0.1) if sampler is None else sampler,
        clip=FlatClip(1.0),
        noise=GaussianNoise(2.0) if noise is None else noise,
        expected_batch_size=6,
        budget=budget,
        **how,
    )


def losses(model: Any, inputs: Any, labels: Any) -> Any:
    return cross_entropy(model(inputs), labels, reduction="none")


def train(run: Any, most: int = 10_000) -> int:
    """As many steps as there are, up to `most`."""
    for _ in range(most):
        if run.finished:
            break
        run.take_step()
    return run.steps


@pytest.mark.parametrize("dataset", ["people", "fixed"])
def test_two_trainings_end_exactly_at_the_budget_and_the_third_is_refused(
    ledger: Any, dataset: str
) -> None:
    budget = Budget(ledger=ledger, dataset=dataset)
    first = run_on(budget)
    assert len(list(first)) == 10
    with pytest.raises(BudgetExceeded, match="What would fit"):
        train(run_on(budget, steps=10_000))
    longest = NoisySGD(PoissonSampling(0.1), 2.0, 10_000)
    steps = steps_that_fit(longest, ledger.book(dataset).fits)
    second = run_on(budget, steps=steps)
    assert len(list(second)) == steps > 10
    with pytest.raises(BudgetExceeded, match="exceed what is left"):
        train(run_on(budget, steps=1))  # not a single step more
    assert ledger.standing(dataset).open == 0
    together = [account(replace(longest, steps=10 + steps + more)) for more in (0, 1)]
    assert together[0].epsilon(1e-5).upper <= 3.0
    if dataset == "fixed":
        assert together[1].epsilon(1e-5).upper > 3.0


def test_the_noise_for_what_is_left(ledger: Any) -> None:
    budget = Budget(ledger=ledger, dataset="people")
    list(run_on(budget, steps=40))
    noise = noise_for(budget, PoissonSampler(0.1), steps=40)
    assert len(list(run_on(budget, noise, steps=40))) == 40
    assert ledger.standing("people").share > 0.9  # one hundredth of the noise is all that is left


def test_a_run_reserves_before_its_first_step_and_gives_back_the_rest(ledger: Any) -> None:
    unknown = run_on(Budget(ledger=ledger, dataset="people"), steps=None)
    with pytest.raises(InvalidInput, match="how long"):
        unknown.finished  # noqa: B018
    run = run_on(Budget(ledger=ledger, dataset="people"), steps=40)
    assert train(run, 10) == 10
    (held,) = ledger.book("people").reservations.values()
    assert (held.process.steps, held.spent, held.open) == (40, 10, True)
    assert run.process.steps == 40  # the claim is that of the plan
    run.close()
    assert ledger.book("people").reservation(held.id).settled == 10
    with pytest.raises(InvalidInput, match="was settled with"):
        train(run)
    assert run.steps == 10


def test_a_refused_run_takes_no_step(ledger: Any) -> None:
    run = run_on(Budget(ledger=ledger, dataset="people"), GaussianNoise(0.5), steps=4000)
    before = [p.clone() for p in run.model.parameters()]
    with pytest.raises(BudgetExceeded, match="What would fit"):
        run.take_step()
    assert run.steps == 0
    assert all(torch.equal(a, b) for a, b in zip(before, run.model.parameters(), strict=True))
    for wrong in (
        lambda: Budget(ledger=ledger),
        lambda: Budget(),
        lambda: train(run_on(Budget(ledger=ledger, dataset="unknown"))),
    ):
        with pytest.raises(InvalidInput):
            wrong()


def test_the_smaller_of_two_budgets_counts(ledger: Any) -> None:
    run = run_on(Budget(0.5, 1e-5, ledger=ledger, dataset="people"), steps=10_000)
    steps = len(list(run))
    assert run.epsilon(1e-5).upper <= 0.5
    (held,) = ledger.book("people").reservations.values()
    assert held.process.steps == held.spent == steps


def test_steps_that_hang_together_are_spent_with_the_first(ledger: Any) -> None:
    budget = Budget(ledger=ledger, dataset="rows")
    run = run_on(budget, GaussianNoise(8.0), CyclicSampler(6), steps=12)
    assert train(run, 2) == 2
    run.close()
    (held,) = ledger.book("rows").reservations.values()
    assert (held.steps, held.settled) == (12, 2)
    assert ledger.standing("rows").used == ledger.book("rows").used() > 0.0


def test_fitting_settles_with_the_certificate(ledger: Any, tmp_path: Path) -> None:
    run = run_on(Budget(ledger=ledger, dataset="people"), steps=9, folder=tmp_path / "run")
    run.fit(delta=1e-5, progress=False)
    (held,) = ledger.book("people").reservations.values()
    assert held.settled == 9 and len(held.certificate) == 64


CRASH = """
import os, sys
sys.path.insert(0, {here!r})
import test_connected as t
from tightrope.train import Budget
budget = Budget(ledger={db!r}, dataset="people")
run = t.run_on(budget, t.GaussianNoise(4.0), steps=300, folder={folder!r})
for step in run:
    if step.number == 7:
        os.kill(os.getpid(), 9)
"""


def test_a_crashed_run_keeps_what_it_spent_and_goes_on(ledger: Any, tmp_path: Path) -> None:
    db, folder = str(tmp_path / "ledger.db"), str(tmp_path / "run")
    code = CRASH.format(here=str(Path(__file__).parent), db=db, folder=folder)
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False)
    assert done.returncode == -9
    (held,) = ledger.book("people").reservations.values()
    assert held.open and held.spent == 9  # announced in blocks of 3
    budget = Budget(ledger=ledger, dataset="people")
    run = run_on(budget, GaussianNoise(4.0), steps=300, folder=folder)
    assert run.ledger.released == 9
    assert train(run, 20) == 29
    assert ledger.book("people").reservation(held.id).spent == 30
    run.close()
    assert ledger.book("people").reservation(held.id).settled == 30
    with pytest.raises(InvalidInput):
        run_on(Budget(3.0, 1e-5), GaussianNoise(4.0), steps=300, folder=folder)


def test_copies_of_a_run_do_not_spend_a_step_twice(ledger: Any, tmp_path: Path) -> None:
    """The folder is copied after 7 of 300 steps; the ledger knows of 9, announced by threes."""
    budget = Budget(ledger=ledger, dataset="people")
    first = run_on(budget, GaussianNoise(4.0), steps=300, folder=tmp_path / "run")
    assert train(first, 7) == 7
    first.folder.save()
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    copy = run_on(budget, GaussianNoise(4.0), steps=300, folder=tmp_path / "copy")
    assert train(copy, 1) == 10  # after what was announced
    assert train(first, 2) == 9
    with pytest.raises(InvalidInput, match="another copy"):
        train(first, 1)
    (held,) = ledger.book("people").reservations.values()
    assert held.spent == 12


def test_a_forked_copy_takes_no_step(ledger: Any) -> None:
    run = run_on(Budget(ledger=ledger, dataset="people"), steps=100)
    train(run, 1)
    child = os.fork()
    if child == 0:
        try:
            run.ledger.reserved.announce(2)
        except InvalidInput:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_what_is_not_private_has_no_price(ledger: Any) -> None:
    budget = Budget(ledger=ledger, dataset="people")
    for noise, sampler in (
        (GaussianNoise(2.0, seed=1), PoissonSampler(0.1)),
        (GaussianNoise(2.0), PoissonSampler(0.1, seed=1)),
        (GaussianNoise(0.0), PoissonSampler(0.1)),
    ):
        with pytest.raises(ModelNotPrivate, match="no budget of a ledger"):
            train(run_on(budget, noise, sampler), 3)
    rows, labels = X.numpy().astype(float), Y.numpy()
    model = PrivateLogisticRegression(0.5, delta=1e-5, data_norm=3.0, classes=[0, 1])
    with spending(ledger, "rows"), pytest.raises(ModelNotPrivate):
        model.set_params(random_state=3).fit(rows, labels)
    run = run_on(budget)
    train(run, 3)
    run.ledger.forfeit(["examples were mixed"])
    with pytest.raises(ModelNotPrivate, match="mixed"):
        train(run, 1)
    assert run.steps == 3
    assert all(ledger.standing(name).settled == 0 for name in ledger.names())


def test_the_people_of_the_data_set_are_charged(ledger: Any) -> None:
    """A training is told by what it does to a record; one person may have several."""
    total = Total(epsilon=6.0, delta=1e-5)
    ledger.add(Terms("visits", total, choices=IN_ADVANCE, records=2))
    train(run_on(Budget(ledger=ledger, dataset="visits")))
    (held,) = ledger.book("visits").reservations.values()
    assert held.process == replace(held.process.run).group(2)
    assert (held.steps, held.spent) == (10, 10)


def test_trainings_inside_a_with_are_counted(ledger: Any) -> None:
    with spending(ledger, "people"):
        run = run_on(Budget(3.0, 1e-5))
        train(run, 3)
    run.close()
    assert [r.settled for r in ledger.book("people").reservations.values()] == [3]


FIT = """
import numpy as np
from tightrope.estimators import PrivateLogisticRegression
rows = np.random.default_rng(0).uniform(-1, 1, (60, 5))
PrivateLogisticRegression(0.5, delta=1e-5, data_norm=3.0, classes=[0, 1]).fit(rows, rows[:, 0] > 0)
"""


@pytest.mark.filterwarnings("ignore::tightrope.estimators.FitsAddUp")
def test_threads_are_counted_and_other_processes_refuse(ledger: Any) -> None:
    rows, labels = X.numpy().astype(float), Y.numpy()
    model = PrivateLogisticRegression(0.2, delta=1e-6, data_norm=3.0, classes=[0, 1])
    with spending(ledger, "rows"):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: model.fit(rows, labels), range(2)))
        other = subprocess.run([sys.executable, "-c", FIT], capture_output=True, text=True)
        with spending(ledger, "people"), ThreadPoolExecutor(1) as pool:
            unsure = pool.submit(model.fit, rows, labels)
            with pytest.raises(InvalidInput, match="several data sets"):
                unsure.result()
    assert "started inside `with spending(...)`" in other.stderr
    assert ledger.standing("rows").settled == 2
    assert "TIGHTROPE_SPENDING" not in os.environ


@pytest.mark.filterwarnings("ignore::tightrope.estimators.FitsAddUp")
def test_fits_and_searches_inside_a_with_are_counted(ledger: Any) -> None:
    rows, labels = X.numpy().astype(float), Y.numpy()
    model = PrivateLogisticRegression(0.5, delta=1e-5, data_norm=3.0, classes=[0, 1])
    with spending(ledger, "rows"):
        model.fit(rows, labels)
        PrivateSearch(model, [{"max_iter": 5}], epsilon=0.5, delta=1e-5, mean_trials=3.0).fit(
            np.tile(rows, (4, 1)), np.tile(labels, 4)
        )
        one = GaussianGuarantee(0.02, Adjacency.REPLACE_ONE)
        PrivateSelection(lambda: (1.0, model.fit(rows, labels)), one, PoissonTrials(20.0)).run()
    book = ledger.book("rows")
    assert [r.note for r in book.reservations.values()][1:] == ["search", "search"]
    assert all(r.settled == r.steps for r in book.reservations.values())
    assert 0.0 < ledger.standing("rows").share <= 1.0
    with spending(ledger, "rows"), pytest.raises(BudgetExceeded):
        PrivateLogisticRegression(9.0, delta=1e-5, data_norm=3.0, classes=[0, 1]).fit(rows, labels)
    with pytest.raises(InvalidInput, match="no data set"), spending(ledger, "nobody"):
        pass
    before = len(ledger.book("rows").reservations)
    model.fit(rows, labels)  # outside: nobody counts
    assert len(ledger.book("rows").reservations) == before
