# mypy: disable-error-code="no-untyped-call"
"""One training run: the recipe's parts put together, the private loop, the curve of results.

The randomness of most runs is seeded, so that a table can be repeated; `tightrope.train` marks such
runs as not private, rightly: their numbers are published, their weights are thrown away. The groups
in CERTIFIED draw sampling and noise from the operating system, and come with a certificate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tightrope.evidence.run_facts import Measured
from tightrope.process import NoisySGD
from tightrope.train import (
    BallsInBinsSampler,
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    PrivateRun,
)
from tightrope.train.record import certificate_of
from tightrope_reproduce.learning.recipe import Recipe
from tightrope_reproduce.learning.records import CERTIFIED
from tightrope_reproduce.learning.result import Result
from tightrope_reproduce.learning.tasks import Examples, Rows, Task, losses, task_of

__all__ = ["learn", "Epoch"]

# Told (epochs done, epochs in all, the measure) after each epoch.
Epoch = Callable[[int, float, float], None]
_TEST_BATCH = 5_000


def learn(
    recipe: Recipe,
    seed: int,
    *,
    device: str = "cpu",
    folder: Path | None = None,
    examples: Examples | None = None,
    on_epoch: Epoch | None = None,
) -> Result:
    """Train `recipe` with `seed` and measure it on the test part (see `_looks`)."""
    task = task_of(recipe)
    data = task.load(folder, seed) if examples is None else examples
    train, test = _moved(data.train, device), _moved(data.test, device)
    if torch.device(device).type == "cuda":
        torch.set_float32_matmul_precision("high")
    torch.manual_seed(seed)
    model = task.model().to(device)
    average = _average(model, recipe)
    notes: dict[str, Any] = {}
    run = None
    if task.loop is not None:
        steps = task.loop(model, train, recipe, seed, notes)
    elif recipe.noise_multiplier is None:
        steps = _plain(model, train, recipe, task, seed)
    else:
        run = _private(model, train, recipe, task, None if recipe.group in CERTIFIED else seed)
        steps = (step.number for step in run)
    start, measured_at = time.perf_counter(), _looks(recipe)
    curve: list[float] = []
    for step in steps:
        if average is not None:
            average.update_parameters(model)
        if step in measured_at:
            curve.append(measure(task, model if average is None else average, test))
            if on_epoch is not None:
                on_epoch(len(curve), recipe.epochs, curve[-1])
    seconds = time.perf_counter() - start
    process = None if run is None else run.process
    assert process is None or isinstance(process, NoisySGD)
    certificate = _certificate(run, task, recipe, curve[-1])
    machine = machine_words(device)
    return Result(
        recipe, seed, tuple(curve), seconds, machine, process, notes=notes, certificate=certificate
    )


def _looks(recipe: Recipe) -> frozenset[int]:
    """The steps after which the test part is looked at: of a run that is private, the last."""
    return frozenset((recipe.steps,) if recipe.group in CERTIFIED else recipe.measured_at)


def _certificate(
    run: PrivateRun | None, task: Task, recipe: Recipe, value: float
) -> dict[str, Any] | None:
    if run is None or recipe.group not in CERTIFIED:
        return None
    found = Measured(run.steps, task.unit, round(value, 5), f"the test part of {recipe.task}")
    return certificate_of(run, recipe.delta, [found])


def _private(
    model: nn.Module, train: Rows, recipe: Recipe, task: Task, seed: int | None
) -> PrivateRun:
    assert recipe.noise_multiplier is not None
    on_gpu = next(model.parameters()).device.type == "cuda"

    def loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu and task.compiled):
            return losses(model(inputs), labels)

    return PrivateRun(
        model,
        _update(model, recipe, task),
        train,
        loss,
        sampler=_sampler(recipe, seed),
        clip=FlatClip(recipe.clip_norm),
        noise=GaussianNoise(recipe.noise_multiplier, seed=seed),
        expected_batch_size=recipe.batch_size,
        steps=recipe.steps,
        views=task.views,
        augment=task.augment,
        micro_batch=task.micro if on_gpu else None,
        executor=("compiled" if task.compiled else "cuda graph") if on_gpu else "plain",
    )


def _sampler(recipe: Recipe, seed: int | None) -> BallsInBinsSampler | PoissonSampler:
    if recipe.bins:
        return BallsInBinsSampler(recipe.bins, seed=seed)
    return PoissonSampler(recipe.rate, seed=seed)


def _plain(model: nn.Module, train: Rows, recipe: Recipe, task: Task, seed: int) -> Iterator[int]:
    """The non-private twin: the same batches and update, the plain mean gradient."""
    update, sampler = _update(model, recipe, task), _sampler(recipe, seed)
    inputs, labels = train
    for step in range(1, recipe.steps + 1):
        index = torch.from_numpy(sampler.draw(len(labels))).to(labels.device)
        loss = losses(model(inputs[index]), labels[index]).mean()
        update.zero_grad(set_to_none=True)
        loss.backward()
        update.step()
        yield step


def _update(model: nn.Module, recipe: Recipe, task: Task) -> torch.optim.Optimizer:
    rate = recipe.learning_rate
    groups = model.parameters() if task.rates is None else task.rates(model, rate)
    if recipe.update == "adam":
        return torch.optim.Adam(groups, lr=rate)
    return torch.optim.SGD(groups, lr=rate, momentum=recipe.momentum)


def _average(model: nn.Module, recipe: Recipe) -> AveragedModel | None:
    """The exponential average of the iterates (post-processing), where the recipe wants it."""
    if recipe.average == 0.0:
        return None
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(recipe.average))


@torch.no_grad()
def measure(task: Task, model: nn.Module, test: Rows) -> float:
    """The task's measure over the whole test part."""
    inputs, labels = test
    outputs = torch.cat([_outputs(task, model, part) for part in inputs.split(_TEST_BATCH)])
    return task.measure(outputs, labels)


def _outputs(task: Task, model: nn.Module, inputs: Tensor) -> Tensor:
    """Of several views, the mean output."""
    if task.augment is None:
        return cast(Tensor, model(inputs))
    views = task.augment(inputs, task.test_views or task.views).unbind(1)
    return torch.stack([model(view) for view in views]).mean(0)


def _moved(rows: Rows, device: str) -> Rows:
    inputs, labels = rows
    return inputs.to(device), labels.to(device)


def machine_words(device: str) -> str:
    if torch.device(device).type == "cuda":
        return f"one {torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"
