"""One parameter used several times: its gradient is the SUM of the uses' gradients.

Adding the squared norms of the uses would miss the cross terms and release too much. Uses of one
kind are joined along their positions, so the cross terms appear by themselves; a table that is both
read and multiplied by (a tied output head) has a formula of its own; anything else is written out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

import torch
from torch import Tensor

from tightrope.train.gradients.chains import sum_of_parts
from tightrope.train.gradients.forms.base import (
    BLOCK,
    Form,
    blocked_squares,
    full_precision,
    zero_examples,
)
from tightrope.train.gradients.forms.dense import Dense
from tightrope.train.gradients.forms.outer import Outer, gram_norms, not_below_zero
from tightrope.train.gradients.forms.rank_one import RankOne
from tightrope.train.gradients.forms.rows import TableRows
from tightrope.train.gradients.forms.stacked import Stacked
from tightrope.train.gradients.owners import Owners
from tightrope.train.gradients.rounding import exact_products, gamma

__all__ = ["combine"]


def combine(forms: list[Form]) -> Form:
    """The form of the sum."""
    if len(forms) == 1:
        return forms[0]
    forms = [form.outer() if isinstance(form, RankOne) else form for form in forms]
    kinds = {type(form) for form in forms}
    if kinds == {Outer}:
        return _joined_outer(forms)
    if kinds == {TableRows}:
        return _joined_rows(forms)
    if kinds == {Outer, TableRows}:
        rows = combine([form for form in forms if isinstance(form, TableRows)])
        outer = combine([form for form in forms if isinstance(form, Outer)])
        assert isinstance(rows, TableRows)
        assert isinstance(outer, Outer)
        return TiedTable(rows, outer)
    if Stacked in kinds and kinds <= {Stacked, Outer}:
        blocks = max(len(form.parts) for form in forms if isinstance(form, Stacked))
        parts = zip(*(_blocks(form, blocks) for form in forms), strict=True)
        return Stacked(tuple(combine(list(block)) for block in parts))
    return Dense(torch.stack([form.dense() for form in forms]).sum(0))


def _blocks(form: Form, count: int) -> tuple[Form, ...]:
    if isinstance(form, Stacked):
        return form.parts
    assert isinstance(form, Outer)
    return tuple(Outer(form.a, g) for g in form.g.chunk(count, dim=2))


def _joined_outer(forms: list[Form]) -> Outer:
    outers = [form for form in forms if isinstance(form, Outer)]
    return Outer(torch.cat([o.a for o in outers], 1), torch.cat([o.g for o in outers], 1))


def _joined_rows(forms: list[Form]) -> TableRows:
    rows = [form for form in forms if isinstance(form, TableRows)]
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

    def together(self, owners: Owners) -> TiedTable:
        return TiedTable(self.rows.together(owners), self.outer.together(owners))

    def dense(self) -> Tensor:
        return torch.cat([part for _, part in self._parts()])

    def zero(self, examples: Tensor) -> None:
        if self._written is not None:
            self._written = zero_examples(self._written, examples)
            return
        self.rows.zero(examples)
        self.outer.zero(examples)
