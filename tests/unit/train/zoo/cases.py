"""Models as data: how to build one, a batch for it, its losses, and what is expected of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PROVED, SLOWER, REFUSED = "proved", "a slower tier", "refused"
EXAMPLES = 4


@dataclass(frozen=True)
class Entry:
    """build: gives a model, a batch of EXAMPLES and a loss. why: if it is not proved."""

    name: str
    build: Callable[[], tuple[nn.Module, tuple[Any, ...], Callable[..., Tensor]]]
    expected: str = PROVED
    why: str = ""
    fast: bool = False
    tolerance: float = 1e-4


ZOO: list[Entry] = []


def case(name: str, **how: Any) -> Callable[..., Any]:
    def register(build: Callable[..., Any]) -> Callable[..., Any]:
        ZOO.append(Entry(name, build, **how))
        return build

    return register


def classes(model: nn.Module, x: Any, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def energy(model: nn.Module, *inputs: Any) -> Tensor:
    """A loss for any output: every number counts, each with a weight of its own."""
    out = model(*inputs)
    out = out[0] if isinstance(out, tuple) else out
    flat = out.flatten(1)
    weights = torch.linspace(-1, 2, flat.shape[1], dtype=flat.dtype)
    return (flat * weights).square().mean(1) + flat.sum(1)


def labels(count: int = 3) -> Tensor:
    return torch.randint(0, count, (EXAMPLES,))


def images(side: int = 16, channels: int = 3, count: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(EXAMPLES, channels, side, side), labels(count)


def words(length: int = 7, vocabulary: int = 11) -> Tensor:
    return torch.randint(0, vocabulary, (EXAMPLES, length))
