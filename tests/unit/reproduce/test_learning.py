"""Recipes say what the paper says, results are kept and never trained twice, the loop learns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tightrope.accounting import account
from tightrope.errors import InvalidInput
from tightrope.process import NoisySGD, PoissonSampling
from tightrope_reproduce.learning import Recipe, Result, Store
from tightrope_reproduce.learning.beyond import CHOSEN, at_the_papers, beyond, candidate, candidates
from tightrope_reproduce.learning.catalog import GROUPS, recipes_of
from tightrope_reproduce.learning.gains import ROWS, less_noise, more_rounds
from tightrope_reproduce.learning.paper import CLAIMS, FIGURE_4, TABLE_1, TABLE_4, TWINS
from tightrope_reproduce.learning.quick import QUICK, QUICK_TWIN
from tightrope_reproduce.learning.records import CERTIFIED

COMMITTED = Path(__file__).parents[3] / "docs" / "reproduction" / "learning"


def result(recipe: Recipe, seed: int, *curve: float) -> Result:
    return Result(recipe, seed, curve, 1.0, "a machine", recipe.process)


def test_the_rounds_of_table_1_are_epochs_over_rate() -> None:
    assert [recipe.steps for recipe in TABLE_1] == [3516, 14062, 10547, 14531, 15938, 23438]


def test_movielens_is_sampled_at_one_in_eighty_for_1600_rounds() -> None:
    assert TABLE_4.rate == 1 / 80
    assert TABLE_4.steps == 1600
    assert TABLE_4.epochs == pytest.approx(20)


def test_a_measurement_ends_every_epoch_and_the_run() -> None:
    top = FIGURE_4[0]
    assert top.measured_at[0] == 234
    assert len(top.measured_at) == 20
    assert top.measured_at[-1] == top.steps == 4688


def test_a_twin_has_no_process() -> None:
    assert [twin.process for twin in TWINS] == [None] * 5
    assert TABLE_1[0].process == NoisySGD(PoissonSampling(256 / 60_000), 1.3, 3516)


def test_names_are_unique_and_groups_right() -> None:
    for group, make in GROUPS.items():
        recipes = make()
        assert len({recipe.name for recipe in recipes}) == len(recipes)
        assert {recipe.group for recipe in recipes} == {group}


def test_unknown_recipes_are_refused() -> None:
    with pytest.raises(InvalidInput, match="table-1"):
        recipes_of(["table-9"])


def test_impossible_batches_are_refused() -> None:
    with pytest.raises(InvalidInput, match="sampling probability"):
        TABLE_1[0].but("wrong", batch_size=70_000)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_gains_stay_within_the_reported_epsilon(row: Recipe) -> None:
    """Less noise and more rounds both cost at most what the paper's accountant reported."""
    reported = CLAIMS[row.name].moments_epsilon
    for change in (less_noise(row), more_rounds(row)):
        spent = account(change.process).epsilon(row.delta).upper
        assert 0.99 * reported < spent <= reported
    assert row.noise_multiplier is not None
    assert less_noise(row).noise_multiplier < row.noise_multiplier
    assert more_rounds(row).steps > row.steps


def test_a_twin_has_nothing_to_spend() -> None:
    with pytest.raises(InvalidInput, match="not private"):
        less_noise(QUICK_TWIN, epsilon=3.0)


def test_the_best_recipes_spend_the_epsilon_they_name() -> None:
    for recipe in (*beyond(), *at_the_papers()):
        allowed = float(recipe.name.rsplit("-", 1)[1])
        assert recipe.process is not None
        assert 0.99 * allowed < account(recipe.process).epsilon(1e-5).upper <= allowed


@pytest.mark.parametrize("task", CHOSEN)
def test_settings_were_chosen_on_the_other_data_set(task: str) -> None:
    """Among all settings tried there with the same network, the best; none was tried unseen."""
    data, network = task.split("-")
    other = {"mnist": "fashion", "fashion": "mnist"}[data]
    tried = {recipe.name for recipe in candidates(other) if recipe.task == f"{other}-{network}"}
    entries = json.loads((COMMITTED / "tuning.json").read_text())
    scores = {name: entries[name]["runs"]["0"]["curve"][-1] for name in tried}
    assert max(scores, key=scores.__getitem__) == candidate(f"{other}-{network}", CHOSEN[task]).name
    assert len({recipe.name for recipe in candidates(other)}) == 176


def test_a_store_gives_back_what_it_was_given(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.results(QUICK) is None
    for seed, end in ((3, 92.0), (1, 90.0)):
        store.add(result(QUICK, seed, 80.0, end))
    store.add(result(QUICK_TWIN, 0, 95.0))
    found = store.results(QUICK)
    assert found is not None
    assert found.results == (result(QUICK, 1, 80.0, 90.0), result(QUICK, 3, 80.0, 92.0))
    assert found.curve == (80.0, 91.0)
    assert found.mean == 91.0
    assert found.deviation == pytest.approx(2**0.5)
    assert store.finished(QUICK_TWIN) == {0}
    assert store.recipes("quick") == [QUICK, QUICK_TWIN]


def test_results_of_another_recipe_are_not_mixed_in(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add(result(QUICK, 0, 90.0))
    with pytest.raises(InvalidInput, match="learning_rate"):
        store.add(result(QUICK.but(QUICK.name, learning_rate=0.5), 1, 91.0))
    binned = QUICK.but("binned", bins=10)
    store.add(result(binned, 0, 90.0))
    assert store.results(binned) is not None
    with pytest.raises(InvalidInput, match="differ in bins"):
        store.finished(QUICK.but("binned"))


@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*.json")), ids=lambda path: path.name)
def test_committed_runs_are_the_recipes_of_the_catalog(path: Path) -> None:
    """What is published was trained by today's recipes, and accounted as what ran."""
    known = {recipe.name: recipe for recipe in GROUPS[path.stem]()}
    for name, entry in json.loads(path.read_text()).items():
        recipe = known[name]
        assert entry["recipe"] == recipe.as_dict()
        assert entry["runs"]
        for seed, stored in entry["runs"].items():
            run = Result.from_dict(recipe, int(seed), stored)
            assert run.process == recipe.process
            once = path.stem in CERTIFIED and len(run.curve) == 1  # private runs look once, by now
            assert once or len(run.curve) == len(recipe.measured_at)
