"""Learning with correlated and with independent noise, at one epsilon: a cell of the table.

    python benchmarks/correlated_learning.py fashion-mnist --epsilon 3 --folder DIRECTORY

Both noises are calibrated exactly; correlated noise is the best bands with cyclic Poisson batches.
A tenth of the training records is kept apart: the learning rate of each noise is the one with the
best mean score there, and the test score is read for that rate alone. The rest of the run is the
same. No epsilon counts the choice among the rates.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from correlated import parts
from torch import Tensor, nn
from training_models import classification, mnist_cnn

from tightrope import Target
from tightrope.choosing import choose
from tightrope.train import private
from tightrope_reproduce.datasets import load_cifar10, load_fashion_mnist, load_movielens
from tightrope_reproduce.learning.models import CollaborativeNet
from tightrope_reproduce.learning.tasks import star_rmse


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    return 100.0 * float((outputs.argmax(1) == labels).double().mean())


def colour_net() -> nn.Module:
    """Three convolutions and a linear layer, with tanh: 67,210 weights."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(64, 64, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(1024, 10),
    )  # fmt: skip


def pictures(load: Callable[[Path], Any]) -> Callable[[Path], tuple[Tensor, ...]]:
    def read(folder: Path) -> tuple[Tensor, ...]:
        data = load(folder)
        x, y, test_x, test_y = (
            torch.as_tensor(values) for p in (data.train, data.test) for values in (p.x, p.y)
        )
        x, test_x = (v.reshape(len(v), -1, *v.shape[-2:]).float() / 127.5 - 1 for v in (x, test_x))
        return x, y.long(), test_x, test_y.long()

    return read


def ratings(folder: Path) -> tuple[Tensor, ...]:
    """A random fifth is the test part; stars 1 to 5 are classes."""
    data = load_movielens(folder)
    pairs = torch.stack([torch.from_numpy(data.user), torch.from_numpy(data.movie)], 1)
    stars = torch.from_numpy(data.rating).long() - 1
    order = torch.randperm(len(stars), generator=torch.Generator().manual_seed(0))
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    return pairs[train], stars[train], pairs[test], stars[test]


@dataclass(frozen=True)
class Task:
    """sign: +1 where a larger score is better."""

    read: Callable[[Path], tuple[Tensor, ...]]
    network: Callable[[], nn.Module]
    score: Callable[[Tensor, Tensor], float]
    sign: int
    batch: int
    steps: int
    rates: tuple[float, ...]
    optimizer: Any = torch.optim.SGD
    delta: float = 1e-5


TASKS = {
    "fashion-mnist": Task(
        pictures(load_fashion_mnist), lambda: mnist_cnn(False), accuracy, 1, 1_000, 1_000,
        (0.5, 1.0, 2.0, 4.0),
    ),
    "cifar10": Task(
        pictures(load_cifar10), colour_net, accuracy, 1, 1_000, 1_000, (0.5, 1.0, 2.0, 4.0)
    ),
    "movielens": Task(
        ratings, CollaborativeNet, star_rmse, -1, 10_000, 1_000, (0.003, 0.01, 0.03),
        torch.optim.Adam, 1e-6,
    ),
}  # fmt: skip


def trained(task: Task, one: Any, rate: float, data: tuple[Tensor, Tensor], seed: int) -> nn.Module:
    x, y = data
    torch.manual_seed(seed)
    model = task.network().to(x.device)
    noise, sampler = parts(one)
    run = private(
        model, task.optimizer(model.parameters(), lr=rate), (x, y), classification,
        records=len(y), batch_size=task.batch, steps=task.steps, delta=task.delta, sampler=sampler,
        noise=noise, clip_norm=1.0,
    )  # fmt: skip
    for _ in run:
        pass
    return model


@torch.no_grad()
def scored(task: Task, model: nn.Module, x: Tensor, y: Tensor) -> float:
    return task.score(torch.cat([model.eval()(part) for part in x.split(5_000)]), y)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    asked.add_argument("task", choices=TASKS)
    asked.add_argument("--epsilon", type=float, required=True)
    asked.add_argument("--folder", type=Path, help="of the data; else TIGHTROPE_DATA")
    asked.add_argument("--noise", nargs="+", default=["independent", "correlated"])
    asked.add_argument("--device", default="cpu")
    asked.add_argument("--seeds", type=int, default=5)
    asked.add_argument("--steps", type=int, help="fewer, for a look")
    asked.add_argument("--rates", type=float, nargs="+")
    chosen = asked.parse_args()
    torch.set_num_threads(1)
    task = TASKS[chosen.task]
    task = Task(**{**vars(task), "steps": chosen.steps or task.steps})
    x, y, *test = (values.to(chosen.device) for values in task.read(chosen.folder))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1)).to(y.device)
    kept, train = order[: len(y) // 10], order[len(y) // 10 :]
    found = choose(len(train), task.batch, task.steps, Target.approx_dp(chosen.epsilon, task.delta))
    banded = next(one for one in found.candidates if hasattr(one.process.sampling, "cycle"))
    for name in chosen.noise:
        one = found.white if name == "independent" else banded
        start, cells = time.time(), {}
        for rate in chosen.rates or task.rates:
            cells[rate] = []
            for seed in range(chosen.seeds):
                model = trained(task, one, rate, (x[train], y[train]), seed)
                pair = tuple(scored(task, model, *part) for part in ((x[kept], y[kept]), test))
                cells[rate].append(pair)
                print(f"  {name}, rate {rate:g}, seed {seed}: kept apart {pair[0]:.3f}", flush=True)
        means = {rate: statistics.mean(a for a, _ in pairs) for rate, pairs in cells.items()}
        best = max(means, key=lambda rate: task.sign * means[rate])
        scores = [b for _, b in cells[best]]
        off = statistics.stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else float("nan")
        print(
            f"| {chosen.task} | {chosen.epsilon:g} | {name} | {one.name} | "
            f"{one.error / found.white.error:.3f} | {one.noise_multiplier:.3f} | {best:g} | "
            f"{statistics.mean(scores):.3f} +- {off:.3f} | "
            + ", ".join(f"{rate:g}: {mean:.3f}" for rate, mean in means.items())
            + f" | {time.time() - start:.0f} s |",
            flush=True,
        )


if __name__ == "__main__":
    main()
