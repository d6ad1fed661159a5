"""Several forms as one: uses of one parameter, and, on a GPU, parameters of one model.

One parameter used several times: its gradient is the SUM of the uses' gradients. Adding the squared
norms of the uses would miss the cross terms and release too much. Uses of one kind are joined along
their positions, so the cross terms appear by themselves; a table that is both read and multiplied
by (a tied output head) has a formula of its own; anything else is written out.

Many parameters on a GPU: a deep network has hundreds, and each launch costs time. Biases and norm
layers are copied side by side; half-precision products of linear layers are written side by side in
the first place. One norm and one weighted sum then serve them all. Only the common norm is known,
which is all that flat clipping needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple, final

import torch
from torch import Tensor

from tightrope.train.gradients.chains import sum_of_parts
from tightrope.train.gradients.forms import (
    BLOCK,
    Dense,
    Form,
    TableRows,
    blocked_squares,
    zero_examples,
)
from tightrope.train.gradients.outer import (
    Outer,
    RankOne,
    Shift,
    Signal,
    gram_norms,
    half_operands,
    not_below_zero,
)
from tightrope.train.gradients.rounding import exact_products, full_precision, gamma

__all__ = ["Bundle", "TiedTable", "combine", "take_bundles", "transposed"]


def combine(forms: list[Form], shape: torch.Size | None = None) -> Form:
    """The form of the sum; shape: of the parameter, of which a use may have had a view."""
    if len(forms) == 1:
        return forms[0]
    forms = [form.outer() if isinstance(form, RankOne) else form for form in forms]
    reads = [form for form in forms if isinstance(form, TableRows)]
    products = [form for form in forms if isinstance(form, Outer)]
    if len(reads) + len(products) < len(forms) or len({_matrix(form) for form in forms}) > 1:
        values = [form.dense() for form in forms]
        each = values[0].shape[1:] if shape is None else shape
        return Dense(torch.stack([v.reshape(len(v), *each) for v in values]).sum(0))
    if not reads:
        return _joined_outer(products)
    rows = reads[0] if len(reads) == 1 else _joined_rows(reads)
    return TiedTable(rows, _joined_outer(products)) if products else rows


def _matrix(form: Form) -> tuple[int, int]:
    """Rows and columns of the gradient."""
    if isinstance(form, TableRows):
        return form.rows, form.g.shape[2]
    assert isinstance(form, Outer)
    return form.sizes[3], form.sizes[2]


def transposed(form: Form) -> Form:
    """Of a weight whose transpose was used."""
    if isinstance(form, RankOne):
        return RankOne(form.signal.values, Signal(form.a))
    if isinstance(form, Outer):
        return Outer(form.g, form.a)
    return Dense(form.dense().transpose(1, 2))


def _joined_outer(outers: list[Outer]) -> Outer:
    if len(outers) == 1:
        return outers[0]
    return Outer(torch.cat([o.a for o in outers], 1), torch.cat([o.g for o in outers], 1))


def _joined_rows(rows: list[TableRows]) -> TableRows:
    ids = torch.cat([r.ids for r in rows], 1)
    return TableRows(ids, torch.cat([r.g for r in rows], 1), rows[0].rows)


@final
class TiedTable(Form):
    """A table of shape (V, d) read by `rows` and multiplied by in `outer` (a: d wide, g: V wide).

    Cross term of one example: sum_ts g_out[s, id_t] (g_row[t] . a[s]). Reads and products of one
    example may cancel, so they are added before any two examples are.
    """

    def __init__(self, rows: TableRows, outer: Outer) -> None:
        self.rows, self.outer = rows, outer
        self._written: Tensor | None = None  # (B, V, d) once instantiated

    def squared_norms(self) -> Tensor:
        if not self.outer.by_gram:
            return torch.cat([blocked_squares(part) for _, part in self._parts()])
        cross, error = self._cross()
        squared, spread = gram_norms(self.outer.a, self.outer.g)
        reads = self.rows.squared_norms() * (1 + gamma(BLOCK + 64))  # they may cancel the rest
        both = not_below_zero(reads + squared + 2 * (cross + error))
        return both.sqrt_().add_(spread, alpha=gamma(self.outer.sizes[1])).square_()

    def _cross(self) -> tuple[Tensor, Tensor]:
        """The cross term, and how far float32 can be off."""
        a, g, reads = (full_precision(v) for v in (self.outer.a, self.outer.g, self.rows.merged()))
        seen = g.gather(2, self.rows.ids[:, None, :].expand(-1, g.shape[1], -1))  # (B, S, T)
        with exact_products():
            cross = (seen * torch.bmm(a, reads.transpose(1, 2))).sum((1, 2), dtype=torch.float64)
        sizes = a.norm(dim=2)[:, :, None] * reads.norm(dim=2)[:, None, :]
        error = (seen.abs() * sizes).sum((1, 2), dtype=torch.float64)
        return cross, gamma(2 * a.shape[2] + 8) * error

    def _parts(self) -> Iterator[tuple[slice, Tensor]]:
        if self._written is None and self.outer.instantiated:
            self._written = self._with_reads(self.outer.dense(), slice(None))
        if self._written is not None:
            yield slice(0, len(self._written)), self._written
            return
        for part, products in self.outer.parts():
            yield part, self._with_reads(products, part)

    def _with_reads(self, products: Tensor, part: slice) -> Tensor:
        """Merged, a row gets one read, so that its place in the order does not matter."""
        reads, ids = self.rows.merged()[part], self.rows.ids[part]
        places = ids[..., None].expand(reads.shape)
        return products.scatter_add_(1, places, reads.to(products.dtype))

    def weighted_sum(self, factors: Tensor, chain: int) -> Tensor:
        return sum_of_parts(self._parts(), factors, chain)

    def dense(self) -> Tensor:
        return torch.cat([part for _, part in self._parts()])

    def zero(self, examples: Tensor) -> None:
        if self._written is not None:
            self._written = zero_examples(self._written, examples)
            return
        self.rows.zero(examples)
        self.outer.zero(examples)


# Parameters side by side.

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
