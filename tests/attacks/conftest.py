"""Small private runs to attack."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tightrope.train import FlatClip, GaussianNoise, PoissonSampler, PrivateRun
from tightrope.train.executors.plain import Plain
from tightrope.train.program import capture, prove

# Two test processes share two cores: more threads only wait for each other.
torch.set_num_threads(1)


def small_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """One loss for each example."""
    return cross_entropy(model(x), y, reduction="none")


def executor_of(model: nn.Module, loss: Any, *batch: Tensor) -> Plain:
    """Clipped sums of the proved program of a loss, of batches of up to these rows."""
    program = capture(model, loss, batch, rows=len(batch[0]))
    trained = [p for p in model.parameters() if p.requires_grad]
    return Plain(program, prove(program, len(batch[0])), len(batch[0]), trained)


@pytest.fixture
def small_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(60, 5, generator=generator)
    return x, (x[:, 0] > 0).long()


@pytest.fixture
def small_run(small_data: Any) -> Any:
    """A private run of a small model; every part can be replaced by keyword."""

    def build(*, learning_rate: float = 0.5, records: Any = None, **parts: Any) -> PrivateRun:
        torch.manual_seed(0)
        model = nn.Linear(5, 2)
        settings: dict[str, Any] = {
            "sampler": PoissonSampler(0.2),
            "clip": FlatClip(1.0),
            "noise": GaussianNoise(1.0),
            "expected_batch_size": 12,
            "steps": 1_000,
        }
        rule = torch.optim.SGD(model.parameters(), lr=learning_rate)
        records = small_data if records is None else records
        return PrivateRun(model, rule, records, small_loss, **(settings | parts))

    return build


@pytest.fixture
def take_steps() -> Any:
    def go(run: PrivateRun, steps: int) -> None:
        for _ in range(steps):
            run.take_step()

    return go
