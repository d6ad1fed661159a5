"""The private steps of the training benchmark, each ready to be called again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from training_models import Case, optimizer_of
from training_timing import Step, fresh, precision

from tightrope.train import FlatClip, FullBatchSampler, GaussianNoise, PrivateRun

CLIP_NORM, NOISE_MULTIPLIER = 1.0, 1.0


def loss_of(case: Case, device: str) -> Callable[..., torch.Tensor]:
    def loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with precision(case, device):
            return case.losses(model, x, y)

    return loss


def private_step(case: Case, device: str, **options: Any) -> Step:
    """The whole step of a private run, as a user takes it: draw, checks and accounting included."""
    model, x, y = fresh(case, device)
    run = PrivateRun(
        model,
        optimizer_of(case, model),
        (x, y),
        loss_of(case, device),
        sampler=FullBatchSampler(),
        clip=FlatClip(CLIP_NORM),
        noise=GaussianNoise(NOISE_MULTIPLIER),
        expected_batch_size=len(x),
        micro_batch=len(x),
        **options,
    )

    def step() -> None:
        run.take_step()

    return step


def vmap_step(case: Case, device: str) -> Step:
    """torch.func's per-example gradients, clipped: what one writes without a library."""
    model, x, y = fresh(case, device)
    optimizer, names = optimizer_of(case, model), [n for n, _ in model.named_parameters()]
    chunk = 128 if device == "cuda" else None

    def loss(
        values: tuple[torch.Tensor, ...], one: torch.Tensor, label: torch.Tensor
    ) -> torch.Tensor:
        def call(ids: torch.Tensor) -> torch.Tensor:
            named = dict(zip(names, values, strict=True))
            return torch.func.functional_call(model, named, (ids,))

        return case.losses(call, one[None], label[None])[0]  # type: ignore[arg-type]

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0), chunk_size=chunk)

    def step() -> None:
        values = tuple(p.detach() for p in model.parameters())
        with precision(case, device):
            grads = gradients(values, x, y)
        norms = torch.stack([g.flatten(1).square().sum(1) for g in grads]).sum(0).sqrt()
        factors = (CLIP_NORM / norms).clamp(max=1)
        for parameter, g in zip(model.parameters(), grads, strict=True):
            total = torch.mv(g.flatten(1).t(), factors).view(parameter.shape)
            parameter.grad = (total + torch.randn_like(total)) / len(x)
        optimizer.step()

    return step
