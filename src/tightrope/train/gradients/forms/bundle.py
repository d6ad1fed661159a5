"""Many gradients as one, on a GPU: a deep network has hundreds, and each launch costs time.

Biases and norm layers are copied side by side; half-precision products of linear layers are written
side by side in the first place. One norm and one weighted sum then serve them all. Only the common
norm is known, which is all that flat clipping needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from tightrope.train.gradients.forms.base import Form
from tightrope.train.gradients.forms.dense import Dense
from tightrope.train.gradients.forms.outer import Outer, half_operands

__all__ = ["Bundle", "take_bundles"]

_LARGEST = 2**16  # values of one example's gradient that are worth copying
_LARGEST_BUFFER = 2**33  # bytes
_FEWEST = 4


@final
@dataclass(frozen=True)
class Part:
    """Where a parameter lies in the bundle: stored as `stored`, of which `shape` is kept."""

    row: int
    stored: tuple[int, ...]
    shape: tuple[int, ...]

    def cut(self, values: Tensor) -> Tensor:
        whole = values.view(self.stored)
        if self.stored == self.shape:
            return whole
        return whole[: self.shape[0], : self.shape[1]].contiguous()


@final
class Bundle:
    """One dense form (B, N) for several parameters."""

    def __init__(self, values: Tensor, parts: list[Part]) -> None:
        self.form, self.parts = Dense(values), parts

    @property
    def rows(self) -> list[int]:
        return [part.row for part in self.parts]

    def split(self, total: Tensor) -> dict[int, Tensor]:
        """The parts of a weighted sum, by parameter."""
        pieces = total.split([torch.Size(part.stored).numel() for part in self.parts])
        return {p.row: p.cut(piece) for p, piece in zip(self.parts, pieces, strict=True)}


def take_bundles(forms: dict[int, Form]) -> list[Bundle]:
    """Take out of `forms` what pays to be bundled."""
    found = (_bundle_dense(forms), _bundle_products(forms))
    return [bundle for bundle in found if bundle is not None]


def _bundle_dense(forms: dict[int, Form]) -> Bundle | None:
    small = {
        row: form.values
        for row, form in forms.items()
        if isinstance(form, Dense)
        and form.values.is_cuda
        and form.values.dtype is torch.float32
        and form.values[0].numel() <= _LARGEST
    }
    if len(small) < _FEWEST:
        return None
    parts = []
    for row, values in small.items():
        del forms[row]
        parts.append(Part(row, tuple(values.shape[1:]), tuple(values.shape[1:])))
    flat = [values.reshape(len(values), -1) for values in small.values()]
    return Bundle(torch.cat(flat, dim=1), parts)


def _bundle_products(forms: dict[int, Form]) -> Bundle | None:
    """Products in bfloat16, each written into its place of one buffer."""
    chosen = {
        row: form for row, form in forms.items() if isinstance(form, Outer) and form.stored_in_half
    }
    sizes = {row: _padded(form.sizes[3]) * _padded(form.sizes[2]) for row, form in chosen.items()}
    batch = next((form.sizes[0] for form in chosen.values()), 0)
    if len(chosen) < _FEWEST or 2 * batch * sum(sizes.values()) > _LARGEST_BUFFER:
        return None
    first = next(iter(chosen.values())).g
    buffer = first.new_empty(batch, sum(sizes.values()))
    parts, start = [], 0
    for row, form in chosen.items():
        del forms[row]
        shape = (form.sizes[3], form.sizes[2])
        a, g = half_operands(form.a, form.g)
        form.release()
        stored = (g.shape[2], a.shape[2])
        out = buffer[:, start : start + sizes[row]].unflatten(1, stored)
        torch.bmm(g.transpose(1, 2), a, out=out)
        parts.append(Part(row, stored, shape))
        start += sizes[row]
    return Bundle(buffer, parts)


def _padded(width: int) -> int:
    return (width + 7) // 8 * 8
