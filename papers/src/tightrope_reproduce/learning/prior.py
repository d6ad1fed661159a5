# mypy: disable-error-code="no-untyped-call"
"""What a network can know of pictures before it sees a record: learned from painted ones.

    python -m tightrope_reproduce.learning.prior          # two minutes of a large GPU

writes prior.npz, which lies beside this file, anew. Two random cuts of one painted picture, in
other colours, are told from cuts of all others in the batch (Chen et al. 2020). Nothing private has
a part in it, so it is trained like any network.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, normalize

from tightrope_reproduce.learning.models import PictureBody, PictureNet
from tightrope_reproduce.learning.painted import painted
from tightrope_reproduce.learning.symmetric_convolution import SymmetricConv2d

__all__ = ["PRIOR", "learn_prior", "picture_net", "two_rates"]

PRIOR = Path(__file__).with_name("prior.npz")
PICTURES, SIDE, BATCH, STEPS = 262_144, 40, 2048, 4500
FILTER, FASTER = 6.0, 4.0  # norm of a filter in private training, and its rate over that of others
RATE, DECAY, WARMTH, HEAT = 2e-3, 0.05, 0.05, 0.2  # WARMTH: share of the steps that rise


def picture_net() -> PictureNet:
    """The network as the painted pictures left it, with an output layer of zeros."""
    model = PictureNet()
    with np.load(PRIOR) as learned:
        weights = {name: torch.from_numpy(learned[name]) for name in learned.files}
    model.body.load_state_dict(weights)
    rescaled(model.body)
    return model


def learn_prior(
    device: str, *, steps: int = STEPS, pictures: int = PICTURES, batch: int = BATCH, seed: int = 0
) -> dict[str, Tensor]:
    """The weights of the body after `steps` steps of `batch` pairs."""
    torch.manual_seed(seed)
    torch.set_float32_matmul_precision("high")
    shown = painted(pictures, SIDE, device, seed)
    body = PictureBody().to(device)
    head = nn.Sequential(nn.Linear(2 * body.channels, 512), nn.ReLU(), nn.Linear(512, 128))
    both = nn.Sequential(body, Pooled(), head).to(device)
    update = torch.optim.AdamW(both.parameters(), lr=RATE, weight_decay=DECAY, betas=(0.9, 0.95))
    run: Any = torch.compile(both) if device == "cuda" else both
    start = time.monotonic()
    for step in range(steps):
        for group in update.param_groups:
            group["lr"] = _rate(step / steps)
        chosen = shown[torch.randint(len(shown), (batch,), device=device)].float() / 255
        loss = _step(run, update, torch.cat([cut(chosen), cut(chosen)]), device)
        if step % 100 == 0:
            print(f"step {step}, loss {float(loss):.3f}, {time.monotonic() - start:.0f} s")
    return {name: value.half().cpu() for name, value in body.state_dict().items()}


class Pooled(nn.Module):
    """What is in the picture, wherever it is: mean and maximum over the places."""

    def forward(self, maps: Tensor) -> Tensor:
        return torch.cat([maps.mean((2, 3)), maps.amax((2, 3))], dim=1)


def _step(run: Any, update: torch.optim.Optimizer, pairs: Tensor, device: str) -> Tensor:
    with torch.autocast(device, torch.bfloat16):
        codes = run(pairs * 2 - 1)
    loss = contrast(codes.float())
    update.zero_grad()
    loss.backward()
    update.step()
    return loss.detach()


def contrast(codes: Tensor) -> Tensor:
    """Each code (the second half repeats the pictures of the first) is to find its twin."""
    codes = normalize(codes)
    alike = codes @ codes.T / HEAT
    alike = alike.masked_fill(torch.eye(len(codes), dtype=torch.bool, device=codes.device), -1e4)
    twins = torch.arange(len(codes), device=codes.device).roll(len(codes) // 2)
    return cross_entropy(alike, twins)


def cut(pictures: Tensor, side: int = 32) -> Tensor:
    """A random part of each, enlarged, half of them mirrored, in other colours."""
    count, device = len(pictures), pictures.device
    size = torch.empty(count, device=device).uniform_(0.15, 1.0).sqrt()
    longer = torch.empty(count, device=device).uniform_(-0.28, 0.28).exp()
    wide, high = (size * longer).clamp(max=1), (size / longer).clamp(max=1)
    mirror = torch.randint(2, (count,), device=device) * 2 - 1
    move = torch.rand(count, 2, device=device) * 2 - 1
    frame = torch.zeros(count, 2, 3, device=device)
    frame[:, 0, 0], frame[:, 1, 1] = wide * mirror, high
    frame[:, 0, 2], frame[:, 1, 2] = (1 - wide) * move[:, 0], (1 - high) * move[:, 1]
    grid = affine_grid(frame, [count, 3, side, side], align_corners=False)
    seen = grid_sample(pictures, grid, padding_mode="reflection", align_corners=False)
    return recoloured(seen)


def recoloured(seen: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue moved; a fifth of the pictures in grey."""
    count, device = len(seen), seen.device
    grey = torch.full((3, 3), 1 / 3, device=device)
    turn = torch.randn(count, 1, 1, device=device) * 0.3
    axis = torch.tensor([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]], device=device) / math.sqrt(3)
    hue = torch.linalg.matrix_exp(turn * axis)
    vivid = torch.empty(count, 1, 1, device=device).uniform_(0.5, 1.5)
    vivid = vivid * (torch.rand(count, 1, 1, device=device) > 0.2)
    colours = (grey + vivid * (torch.eye(3, device=device) - grey)) @ hue
    hard = torch.empty(count, 1, 1, 1, device=device).uniform_(0.6, 1.4)
    light = torch.empty(count, 1, 1, 1, device=device).uniform_(-0.2, 0.2)
    mixed = torch.einsum("nij,njhw->nihw", colours, seen)
    middle = mixed.mean((1, 2, 3), keepdim=True)
    return ((mixed - middle) * hard + middle + light).clamp(0, 1)


def rescaled(body: nn.Module) -> nn.Module:
    """The same function, with every filter of mean 0 and norm FILTER."""
    for weight in filters(body):
        weight.data -= weight.data.mean((1, 2, 3), keepdim=True)
        weight.data *= FILTER / weight.data.flatten(1).norm(dim=1)[:, None, None, None]
    return body


def filters(model: nn.Module) -> list[Tensor]:
    return [layer.weight for layer in model.modules() if isinstance(layer, SymmetricConv2d)]


def two_rates(model: nn.Module, rate: float) -> list[dict[str, Any]]:
    """Filters, longer by far than other weights, move FASTER times as fast."""
    quick = filters(model)
    others = [p for p in model.parameters() if all(p is not weight for weight in quick)]
    return [{"params": others, "lr": rate}, {"params": quick, "lr": FASTER * rate}]


def _rate(done: float) -> float:
    if done < WARMTH:
        return RATE * max(0.02, done / WARMTH)
    return RATE * (0.01 + 0.99 * (1 + math.cos(math.pi * min(1.0, done))) / 2)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=STEPS)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    learned = learn_prior(device, steps=options.parse_args().steps)
    arrays: dict[str, Any] = {name: value.numpy() for name, value in learned.items()}
    np.savez_compressed(PRIOR, **arrays)


if __name__ == "__main__":
    main()
