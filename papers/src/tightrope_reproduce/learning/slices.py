"""A clip that forgets repeated words: what TensorFlow Privacy does to the gradient of an embedding.

The gradient of an embedding comes as slices, one for each place of the review. `GaussianSumQuery`
clips by `tf.clip_by_global_norm`, which adds up the squares of all slices; where a word (or the
padding) stands in many places its slices add up in the sum, so the true norm is larger. Seen with
TensorFlow 2.21 and TensorFlow Privacy 0.9.0: a gradient "clipped" to 1 of norm 12.52
(benchmarks/peers_clip.py). Such a run is not private as accounted; it is here to find out what the
paper's library had trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from tightrope.train import PoissonSampler
from tightrope_reproduce.learning.models import ImdbNet
from tightrope_reproduce.learning.recipe import Recipe

__all__ = ["sliced_steps", "gradients", "norms", "told"]

Gradients = tuple[dict[str, Tensor], Tensor]  # of the head, and of the mean of the embeddings


def sliced_steps(
    model: ImdbNet, train: tuple[Tensor, Tensor], recipe: Recipe, seed: int, notes: dict[str, Any]
) -> Iterator[int]:
    """The noisy loop with that clip; `notes` tells how large the clipped gradients really were."""
    assert recipe.noise_multiplier is not None
    update = torch.optim.Adam(model.parameters(), lr=recipe.learning_rate)
    device = train[1].device
    sampler = PoissonSampler(recipe.rate, seed=seed)
    noise = torch.Generator(device).manual_seed(seed)
    seen: list[Tensor] = []
    for step in range(1, recipe.steps + 1):
        index = torch.from_numpy(sampler.draw(len(train[1]))).to(device)
        words, labels = train[0][index], train[1][index]
        made = gradients(model, words, labels)
        true, sliced = norms(words, made)
        scale = (recipe.clip_norm / sliced).clamp(max=1.0)  # (B,)
        seen.append((true * scale / recipe.clip_norm).cpu())
        _add_up(model, words, made, scale)
        for weight in model.parameters():
            assert weight.grad is not None
            spread = recipe.noise_multiplier * recipe.clip_norm
            weight.grad += spread * torch.randn(weight.shape, generator=noise, device=device)
            weight.grad /= recipe.batch_size
        update.step()
        if step == recipe.steps:
            notes |= told(torch.cat(seen))
        yield step


def gradients(model: ImdbNet, words: Tensor, labels: Tensor) -> Gradients:
    """Each review's gradients by the head's weights and by the mean of its embeddings."""
    head = {name: w.detach() for name, w in model.head.named_parameters()}
    means = model.embedding(words).mean(dim=1).detach()  # (B, 16)

    def loss(weights: dict[str, Tensor], mean: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(model.head, weights, (mean[None],))
        return torch.nn.functional.cross_entropy(logits, label[None])

    made: Gradients = vmap(grad(loss, argnums=(0, 1)), in_dims=(None, 0, 0))(head, means, labels)
    return made


def norms(words: Tensor, made: Gradients) -> tuple[Tensor, Tensor]:
    """(the true norm of each review's gradient, the norm of its slices)."""
    places = words.shape[1]
    head = torch.stack([g.flatten(1).square().sum(1) for g in made[0].values()]).sum(0)
    mean = made[1].square().sum(1) / places**2  # of one place
    ordered = words.sort(dim=1).values
    starts = torch.nn.functional.pad(ordered.diff(dim=1) != 0, (1, 0), value=True)
    runs = torch.zeros_like(words).scatter_add_(1, starts.cumsum(1) - 1, torch.ones_like(words))
    repeats = runs.square().sum(1)  # sum over words of (times the word is there)^2
    return (head + repeats * mean).sqrt(), (head + places * mean).sqrt()


def _add_up(model: ImdbNet, words: Tensor, made: Gradients, scale: Tensor) -> None:
    for name, weight in model.head.named_parameters():
        weight.grad = torch.einsum("b,b...->...", scale, made[0][name])
    place = scale[:, None] * made[1] / words.shape[1]  # (B, 16), the same at every place
    table = torch.zeros_like(model.embedding.weight)
    table.index_add_(0, words.flatten(), place.repeat_interleave(words.shape[1], dim=0))
    model.embedding.weight.grad = table


def told(ratios: Tensor) -> dict[str, Any]:
    """How the norms of clipped gradients lie about the clip norm."""
    quantiles = torch.quantile(ratios, torch.linspace(0.0, 1.0, 101)) if len(ratios) else ratios
    return {
        "over": round(float((ratios > 1.0 + 1e-6).double().mean()), 4),
        "quantiles": [round(float(q), 3) for q in quantiles],
    }
