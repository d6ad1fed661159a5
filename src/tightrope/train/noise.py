"""Gaussian noise on the sum of clipped gradients.

Standard deviation = noise_multiplier * (largest norm of one example's contribution).

`GaussianNoise` uses the generators of PyTorch: fast, on every device. PyTorch seeds its CPU
generator with 32 bits only, whatever is asked for; here all of its 19,968 bits of state are
filled from the operating system's entropy. On other devices the key has 64 bits.

Error: floating-point Gaussians have gaps in their low bits that an attacker who sees the sum to
the last bit can exploit in principle (Mironov 2012, CCS). `GridGaussianNoise` closes that hole; see
its module. Neither changes the accounting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, final

import numpy as np
import torch
from torch import Tensor

from tightrope.train.entropy import WordStream, open_stream
from tightrope.validate import check_non_negative

__all__ = ["Noise", "GaussianNoise"]

# State of PyTorch's CPU generator: seed and counters, then 624 words of the Mersenne twister.
_FIRST_WORD, _WORDS = 24, 624


class Noise(Protocol):
    """Adds independent N(0, (noise_multiplier * sensitivity)^2) to every coordinate, in place."""

    @property
    def noise_multiplier(self) -> float: ...
    @property
    def private(self) -> bool: ...
    @property
    def splits_over_ranks(self) -> bool: ...
    @property
    def description(self) -> str: ...
    def add_(self, sums: Sequence[Tensor], sensitivity: float) -> None: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


@final
class GaussianNoise:
    """Independent Gaussian noise from PyTorch's generators, fully keyed."""

    splits_over_ranks = True

    def __init__(self, noise_multiplier: float, *, seed: int | None = None) -> None:
        self._noise_multiplier = float(check_non_negative(noise_multiplier, "noise_multiplier"))
        self._stream = open_stream("noise", seed=seed)
        self._generators: dict[torch.device, torch.Generator] = {}

    @property
    def noise_multiplier(self) -> float:
        return self._noise_multiplier

    @property
    def private(self) -> bool:
        return self._stream.private

    @property
    def description(self) -> str:
        origin = self._stream.description.split(", ", 1)[1]
        return f"Gaussian, PyTorch generator keyed from {origin}"

    def add_(self, sums: Sequence[Tensor], sensitivity: float) -> None:
        scale = self._noise_multiplier * sensitivity
        if scale == 0.0:
            return
        for total in sums:
            generator = self._generator(total.device)
            total.add_(torch.empty_like(total).normal_(0.0, scale, generator=generator))

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = keyed_generator(device, self._stream)
        return self._generators[device]

    def state(self) -> dict[str, Any]:
        generators = {
            str(device): generator.get_state().numpy().tobytes().hex()
            for device, generator in self._generators.items()
        }
        return {"stream": self._stream.state(), "generators": generators}

    def restore(self, state: dict[str, Any]) -> None:
        self._stream.restore(state["stream"])
        self._generators = {}
        for name, stored in state["generators"].items():
            generator = torch.Generator(torch.device(name))
            raw = np.frombuffer(bytes.fromhex(stored), dtype=np.uint8).copy()
            generator.set_state(torch.from_numpy(raw))
            self._generators[torch.device(name)] = generator


def keyed_generator(device: torch.device, stream: WordStream) -> torch.Generator:
    """A generator whose whole state comes from the stream."""
    generator = torch.Generator(device)
    generator.manual_seed(int(stream.words(1)[0]))
    if device.type == "cpu":
        state = generator.get_state().numpy().copy()
        words = stream.words(_WORDS) >> np.uint64(32)
        state[_FIRST_WORD : _FIRST_WORD + 8 * _WORDS] = np.frombuffer(words.tobytes(), np.uint8)
        generator.set_state(torch.from_numpy(state))
    return generator
