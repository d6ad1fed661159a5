"""Are the parts of a run what they must be? Asked before anything is wrapped."""

from __future__ import annotations

from typing import Any

import torch

from tightrope.errors import InvalidInput
from tightrope.train.ledger import Budget

__all__ = ["check_parts"]


def check_parts(model: object, optimizer: object, *, sampler: object, clip: object, noise: object,
                budget: object = None, **_: Any) -> None:  # fmt: skip
    """Parts are objects, not numbers: each says in its own words what it does."""
    wanted = {
        "model": (model, isinstance(model, torch.nn.Module), "a torch.nn.Module"),
        "optimizer": (
            optimizer,
            isinstance(optimizer, torch.optim.Optimizer),
            "an optimizer of torch.optim with the model's parameters",
        ),
        "sampler": (
            sampler,
            hasattr(sampler, "draw"),
            "a sampler, for example PoissonSampler(rate=0.01)",
        ),
        "clip": (clip, hasattr(clip, "sensitivity"), "a clip, for example FlatClip(1.0)"),
        "noise": (noise, hasattr(noise, "add_"), "a noise, for example GaussianNoise(1.1)"),
        "budget": (
            budget,
            budget is None or isinstance(budget, Budget),
            "a budget, for example Budget(epsilon=3.0, delta=1e-5), or None",
        ),
    }
    for name, (came, right, needed) in wanted.items():
        if not right or isinstance(came, type):
            told = came.__name__ if isinstance(came, type) else repr(came)[:60]
            raise InvalidInput(f"{name} must be {needed}; got {told}.")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidInput(
            "LBFGS evaluates the loss several times a step, and each evaluation would be a release "
            "of its own. Use noisy_sgd, noisy_adam or another optimizer that takes one gradient."
        )
