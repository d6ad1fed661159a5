"""Training by recipe: the loop learns, resumes, and is accounted as what ran."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from tightrope.errors import InvalidInput, TightropeError  # noqa: E402
from tightrope.train import BallsInBinsSampler  # noqa: E402
from tightrope.train.samplers import Indices  # noqa: E402
from tightrope_reproduce.learning import Recipe, Store  # noqa: E402
from tightrope_reproduce.learning.learn import learn  # noqa: E402
from tightrope_reproduce.learning.models import CollaborativeNet, ImdbNet, mnist_cnn  # noqa: E402
from tightrope_reproduce.learning.paper import TABLE_2, TABLE_4  # noqa: E402
from tightrope_reproduce.learning.quick import QUICK, QUICK_TWIN  # noqa: E402
from tightrope_reproduce.learning.scattering import Scattering  # noqa: E402
from tightrope_reproduce.learning.tasks import TASKS, star_rmse  # noqa: E402
from tightrope_reproduce.learning.work import Job, jobs_left, work  # noqa: E402

SPLITS = [(TABLE_2, 29_305, 3_256), (TABLE_4, 800_168, 200_041)]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of tiny models only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_a_private_run_learns_and_says_what_it_was() -> None:
    seen = []
    found = learn(QUICK, 0, on_epoch=lambda done, epochs, value: seen.append((done, value)))
    assert found.final > 85.0
    assert found.process == QUICK.process
    assert found.curve == tuple(value for _, value in seen)
    assert len(seen) == 15


def test_a_run_repeats_by_its_seed_and_its_twin_has_no_process() -> None:
    short = QUICK.but("short", steps=20)
    assert learn(short, 1).curve == learn(short, 1).curve != learn(short, 2).curve
    twin = learn(QUICK_TWIN, 0)
    assert twin.process is None
    assert twin.final > 92.0


@pytest.mark.parametrize("noise", [1.3, None])
def test_a_run_and_its_twin_have_balls_in_bins(
    monkeypatch: pytest.MonkeyPatch, noise: float | None
) -> None:
    drawn, draw = list[int](), BallsInBinsSampler.draw

    def noted(self: BallsInBinsSampler, population: int) -> Indices:
        batch = draw(self, population)
        drawn.extend(batch)
        return batch

    monkeypatch.setattr(BallsInBinsSampler, "draw", noted)
    binned = QUICK.but("binned", bins=10, steps=10, noise_multiplier=noise)
    assert learn(binned, 0).process == binned.process
    assert sorted(drawn) == list(range(len(drawn))) != []  # each example once


def test_averaging_changes_what_is_judged_and_not_what_is_accounted() -> None:
    short = QUICK.but("short", steps=20)
    average = learn(short.but("average", average=0.9), 0)
    assert average.process == short.process
    assert average.curve != learn(short, 0).curve


def test_finished_runs_are_not_trained_again(tmp_path: Path) -> None:
    store, told = Store(tmp_path), []
    recipes = [QUICK.but("short", steps=10), QUICK.but("shorter", steps=5)]
    jobs = jobs_left(recipes, range(2), store)
    assert [(job.recipe.name, job.seed) for job in jobs] == [
        ("short", 0),
        ("shorter", 0),
        ("short", 1),
        ("shorter", 1),
    ]
    work(jobs[:3], store, tell=told.append)
    assert len(told) == 3
    assert jobs_left(recipes, range(2), store) == jobs[3:]
    work(jobs[3:], store, tell=told.append, no_new_after=-1.0)
    assert len(told) == 3


@pytest.mark.slow
def test_processes_share_the_work(tmp_path: Path) -> None:
    store = Store(tmp_path)
    recipes = [QUICK.but("short", steps=10), QUICK.but("shorter", steps=5)]
    work(jobs_left(recipes, range(2), store), store, processes=2)
    assert jobs_left(recipes, range(2), store) == []
    with pytest.raises(TightropeError, match="ended early"):
        work([Job(QUICK.but("no such", task="nothing"), 0)], store, processes=2)


def test_unknown_tasks_are_refused() -> None:
    with pytest.raises(InvalidInput, match="movielens"):
        learn(QUICK.but("no such", task="nothing"), 0)


@pytest.mark.parametrize(("recipe", "train", "test"), SPLITS, ids=["adult", "movielens"])
def test_random_splits_have_the_papers_sizes(recipe: Recipe, train: int, test: int) -> None:
    try:
        data, other = (TASKS[recipe.task].load(None, seed) for seed in (0, 1))
    except InvalidInput as missing:
        pytest.skip(str(missing))
    assert (len(data.train[1]), len(data.test[1])) == (train, test)
    assert not torch.equal(data.test[0], other.test[0])
    assert recipe.public_size == pytest.approx(train, rel=1e-4)


def test_networks_have_the_papers_sizes() -> None:
    def size(model: torch.nn.Module) -> int:
        return sum(weight.numel() for weight in model.parameters())

    assert size(mnist_cnn()) == 26_010
    assert size(ImdbNet()) == 160_000 + 16 * 17 + 2 * 17
    assert size(CollaborativeNet()) == 15 * (6_040 + 3_706) + 5 * 26
    assert CollaborativeNet()(torch.tensor([[6_039, 3_705]])).shape == (1, 5)


def test_the_error_of_a_rating_is_that_of_its_mean_star() -> None:
    outputs = torch.tensor([[0.0, -100.0, 0.0, -100.0, -100.0], [-100.0, -100.0, -100.0, 0.0, 0.0]])
    assert star_rmse(outputs, torch.tensor([0, 3])) == pytest.approx((1.25 / 2) ** 0.5)


def test_scattering_of_a_constant_has_no_waves_and_turns_with_the_image() -> None:
    transform = Scattering(28)
    flat = transform(torch.full((1, 1, 28, 28), 0.7))
    assert flat.shape == (1, 81, 7, 7)
    assert torch.allclose(flat[:, 0], torch.tensor(0.7))
    assert flat[:, 1:].abs().max() < 1e-5
    image = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    turned, features = transform(image.transpose(2, 3)), transform(image)
    # transposing swaps the directions k and 4 - k (mod 8) of each scale
    swap = [1 + (4 - k) % 8 for k in range(8)]
    assert torch.allclose(turned[:, 1:9], features[:, swap].transpose(2, 3), atol=1e-6)


def test_scattering_treats_each_image_on_its_own() -> None:
    images = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    transform = Scattering(28)
    together = transform.normalised(images)
    alone = torch.cat([transform.normalised(image[None]) for image in images])
    assert torch.allclose(together, alone, atol=1e-5)
    grouped = together.reshape(3, 27, -1)
    assert grouped.mean(dim=2).abs().max() < 1e-4
