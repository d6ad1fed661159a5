"""A slow, obvious gradient engine (one example at a time) and small models for the tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tightrope.train import GaussianNoise, PoissonSampler, PrivateOptimizer

# Two test processes share two cores: more threads only wait for each other.
torch.set_num_threads(1)


@dataclass(frozen=True)
class SlowBatch:
    sums: tuple[Tensor, ...]
    examples: int
    norms: Tensor
    clipped_fraction: float
    nonfinite: int


@dataclass(frozen=True)
class SlowClip:
    """Flat clipping for the slow engine."""

    clip_norm: float

    @property
    def sensitivity(self) -> float:
        return self.clip_norm


class SlowGradients:
    """Backward for each example's loss, clip, add in float64: nothing to get wrong."""

    bounds_rounding = True

    def __init__(self, model: nn.Module) -> None:
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        self.names = tuple(n for n, _ in named)
        self.parameters = tuple(p for _, p in named)

    def clipped_sum(self, losses: Tensor, clip: SlowClip, chain: int = 0) -> SlowBatch:
        sums = [torch.zeros_like(p, dtype=torch.float64) for p in self.parameters]
        norms, nonfinite = [], 0
        for loss in losses:
            grads = torch.autograd.grad(loss, self.parameters, retain_graph=True)
            norm = torch.sqrt(sum(g.double().pow(2).sum() for g in grads))
            norms.append(norm)
            if not torch.isfinite(norm):
                nonfinite += 1
                continue
            for total, g in zip(sums, grads, strict=True):
                total.add_(g * min(1.0, clip.clip_norm / float(norm)) if norm > 0 else g)
        norm = torch.stack(norms) if norms else torch.zeros(0)
        clipped = float((norm > clip.clip_norm).double().mean()) if norms else 0.0
        return SlowBatch(tuple(sums), len(losses), norm, clipped, nonfinite)

    def detach(self) -> None:
        pass

    def forget(self) -> None:
        pass


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(60, 5, generator=generator)
    return x, (x[:, 0] > 0).long()


@pytest.fixture
def make_model() -> Any:
    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))

    return build


@pytest.fixture
def make_run(make_model: Any) -> Any:
    """A private run of a small model; every part can be replaced by keyword."""

    def build(model: nn.Module | None = None, **parts: Any) -> PrivateOptimizer:
        model = make_model() if model is None else model
        rule = parts.pop("rule", lambda p: torch.optim.SGD(p, lr=0.5))
        settings: dict[str, Any] = {
            "sampler": PoissonSampler(0.2),
            "clip": SlowClip(1.0),
            "noise": GaussianNoise(1.0),
            "expected_batch_size": 12,
            "gradients": SlowGradients(model),
        }
        trainable = [p for p in model.parameters() if p.requires_grad]
        return PrivateOptimizer(model, rule(trainable), **(settings | parts))

    return build


@pytest.fixture
def train() -> Any:
    def go(run: PrivateOptimizer, data: Any, steps: int, micro_batch: int | None = None) -> list:
        reports = []
        for x, y in run.batches(data, steps=steps, micro_batch=micro_batch):
            reports.append(run.step(cross_entropy(run.model(x), y, reduction="none")))
        return reports

    return go
