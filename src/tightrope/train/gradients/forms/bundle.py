"""Many gradients as one, on a GPU: a deep network has hundreds, and each launch costs time.

Biases and norm layers are copied side by side; half-precision products of linear layers are written
side by side in the first place. One norm and one weighted sum then serve them all. Only the common
norm is known, which is all that flat clipping needs.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple, final

import torch
from torch import Tensor

from tightrope.train.gradients.forms.base import Form
from tightrope.train.gradients.forms.dense import Dense
from tightrope.train.gradients.forms.outer import Outer, half_operands
from tightrope.train.gradients.forms.rank_one import Shift

__all__ = ["Bundle", "take_bundles"]

_LARGEST = 2**16  # values of one example's gradient that are worth copying
# Bytes of products in one bundle. What they were made from is let go of layer by layer, so the
# next bundle lies where the operands of the last one were; layers that free the most come first.
_LARGEST_BUFFER = 2**28
_FEWEST = 4


@final
class Part(NamedTuple):
    """Where a parameter lies in the bundle: stored as `stored`, of which `shape` is kept."""

    row: int
    stored: tuple[int, ...]
    shape: tuple[int, ...]

    def cut(self, values: Tensor) -> Tensor:
        whole = values if len(self.stored) == 1 else values.view(self.stored)
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
        pieces = torch.split_with_sizes(total, [prod(part.stored) for part in self.parts])
        return {p.row: p.cut(piece) for p, piece in zip(self.parts, pieces, strict=True)}


def take_bundles(forms: dict[int, Form]) -> list[Bundle]:
    """Take out of `forms` what pays to be bundled."""
    dense = _bundle_dense(forms)
    return [*_bundle_products(forms), *([] if dense is None else [dense])]


def _bundle_dense(forms: dict[int, Form]) -> Bundle | None:
    small = {
        row: form.values
        for row, form in forms.items()
        if isinstance(form, Dense | Shift)
        and form.values.is_cuda
        and form.values.dtype is torch.float32
        and form.values.numel() <= _LARGEST * form.values.shape[0]
    }
    if len(small) < _FEWEST:
        return None
    parts = []
    for row, values in small.items():
        del forms[row]
        shape = tuple(values.shape[1:])
        parts.append(Part(row, shape, shape))
    flat = [v if v.dim() == 2 else v.flatten(1) for v in small.values()]
    return Bundle(torch.cat(flat, dim=1), parts)


def _bundle_products(forms: dict[int, Form]) -> list[Bundle]:
    """Products in bfloat16, each written into its place of a buffer."""
    chosen = [r for r, form in forms.items() if isinstance(form, Outer) and form.stored_in_half]
    if len(chosen) < _FEWEST:
        return []
    bundles, group, size = list[Bundle](), dict[int, Outer](), 0
    for row in sorted(chosen, key=lambda row: _growth(forms[row])):
        form = forms.pop(row)
        assert isinstance(form, Outer)
        stored = _stored(form)
        if group and size + stored > _LARGEST_BUFFER:
            bundles.append(_multiplied(group))
            size = 0
        group[row], size = form, size + stored
        del form
    return [*bundles, _multiplied(group)]


def _stored(form: Outer) -> int:
    """Bytes of the products."""
    return 2 * form.sizes[0] * _padded(form.sizes[3]) * _padded(form.sizes[2])


def _growth(form: Form) -> float:
    """The products' bytes over those of their operands."""
    assert isinstance(form, Outer)
    return _stored(form) / max(1, form.a.nbytes + form.g.nbytes)


def _multiplied(group: dict[int, Outer]) -> Bundle:
    """The products of a group; each form is gone once its product is there."""
    shapes = {row: (form.sizes[3], form.sizes[2]) for row, form in group.items()}
    parts = [Part(row, (_padded(p), _padded(d)), (p, d)) for row, (p, d) in shapes.items()]
    width = sum(part.stored[0] * part.stored[1] for part in parts)
    batch = next(iter(group.values())).sizes[0]
    buffer = next(iter(group.values())).g.new_empty(batch, width)
    start = 0
    for part in parts:
        form = group.pop(part.row)
        a, g = half_operands(form.a, form.g)
        place = (width, part.stored[1], 1)
        torch.bmm(g.transpose(1, 2), a, out=buffer.as_strided((batch, *part.stored), place, start))
        start += part.stored[0] * part.stored[1]
        del form, a, g
    return Bundle(buffer, parts)


def _padded(width: int) -> int:
    return (width + 7) // 8 * 8
