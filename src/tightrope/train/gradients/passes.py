"""The two ways through the backward pass: keep everything once, or go twice and keep little."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from tightrope.train.clip import Clip
from tightrope.train.gradients.arrivals import Early, Way, backward_pass
from tightrope.train.gradients.batch import ClippedBatch, Factors, Parts, find_factors, zero_sum
from tightrope.train.gradients.buffers import scratch_scope
from tightrope.train.gradients.forms import Dense, Form, TableRows, combine
from tightrope.train.gradients.forms.base import full_precision
from tightrope.train.gradients.forms.bundle import Bundle, take_bundles
from tightrope.train.gradients.graph import gradients_at, handed_over, output_shape
from tightrope.train.gradients.junctions import Junction
from tightrope.train.gradients.owners import Owners
from tightrope.train.gradients.recorder import Use
from tightrope.train.gradients.rules import normalisation, recurrent
from tightrope.train.gradients.rules.convolution import (
    convolution,
    standard_convolution,
    symmetric_convolution,
)
from tightrope.train.gradients.rules.registry import WITHOUT_WEIGHTS

__all__ = [
    "Found",
    "Grads",
    "Work",
    "all_grads",
    "book_keeping",
    "shrinks",
    "sum_of_found",
    "together",
    "two_pass",
]

# Values of a layer's input, or of the gradient where a parameter enters, from which on a hook pays.
_LARGE_INPUT = 2**22
_SHRINKING = (convolution, standard_convolution, symmetric_convolution, *normalisation.ALL)

Grads = list[Tensor | None]
Found = list[tuple[nn.Parameter, Form]]


@final
@dataclass(eq=False)
class Work:
    """One batch: its losses and everything that touched a parameter."""

    losses: Tensor
    parameters: list[nn.Parameter]
    rows: dict[int, int]  # id of a parameter -> its place
    uses: list[Use]
    ways: list[Way]
    scale: float
    owners: Owners
    shared: frozenset[int] = frozenset()  # ids of parameters whose forms wait for each other
    direct: list[nn.Parameter] = field(default_factory=list)  # a single example's leaves
    chain: int = 0  # examples in one float32 chain, see `chains`
    present: Tensor | None = None  # (B,) of a padded batch: which rows are examples
    ends: frozenset[Use] = frozenset()  # uses behind which nothing else is looked for
    parts: Parts | None = None  # of a model that is sharded and stays so
    hooked: bool = False  # whether hooks of the user's may change gradients on their way

    def backward(self, inputs: list[Any], *, keep: bool) -> Grads:
        """Gradients of the summed losses, none of them a parameter's."""
        # Made anew each time: a backward pass of the user's may write into what it is given.
        weights = torch.full_like(self.losses, self.scale)
        if not self.hooked:
            return list(gradients_at(self.losses, inputs, weights, keep=keep))
        with handed_over(inputs) as after:
            grads = gradients_at(self.losses, inputs, weights, keep=keep)
        return [after.get(number, g) for number, g in enumerate(grads)]

    def forms_of_use(self, use: Use, grads: Grads) -> Found:
        """Forms of the parameters of one use; [] where the losses do not depend on it."""
        if all(g is None for g in grads):
            return []
        use.check_unchanged()
        with self._lent(use):
            found = use.rule(use.owner, *use.inputs, *all_grads(use, grads), **use.keywords)
        return together(found, self.owners, use.rows[0])

    def _lent(self, use: Use) -> AbstractContextManager[None]:
        """The layer's parameters are there inside, if its rule reads their values."""
        if self.parts is None or use.rule in WITHOUT_WEIGHTS:
            return nullcontext()
        return self.parts.lent(use.owner)

    def kept(self, row: int, total: Tensor) -> Tensor:
        """The sum of a parameter, or what is left of it here."""
        return total if self.parts is None else self.parts.give(row, total)

    def forms_of_way(self, way: Way, g: Tensor | None) -> Found:
        """The form of a broadcast parameter; [] where the losses do not depend on it."""
        if g is None:
            return []
        parameter = way[0].parameter
        form = Dense(full_precision(way[1].gradients(parameter, g)))
        return together([(parameter, form)], self.owners, self.owners.rows)

    def squared_norms(self, found: dict[int, Tensor], clip: Clip) -> Tensor:
        """(parameters, B), zero for unused parameters; their sum does not need those."""
        rows = list(found.values())
        if clip.per_parameter or not rows:
            zero = torch.zeros(len(self.losses), device=self.losses.device)
            rows = [found.get(row, zero) for row in range(len(self.parameters))]
        if len({row.dtype for row in rows}) > 1:  # parameters of different precision
            rows = [row.double() for row in rows]
        return torch.stack(rows)

    def in_order(self, sums: dict[int, Tensor]) -> list[Tensor]:
        """One sum for each parameter, zero for unused ones."""
        ordered = []
        for row in range(len(self.parameters)):
            known = row in sums
            ordered.append(sums[row] if known else zero_sum(self.parameters, row, self.parts))
        return ordered


def together(found: Found, owners: Owners, rows: int) -> Found:
    """From the rows of a layer to examples."""
    own = owners.of_layer(rows)
    if own.plain:
        return found
    return [(parameter, form.together(own)) for parameter, form in found]


def all_grads(use: Use, grads: Grads) -> Grads:
    """Zeros where the losses do not depend on one of several outputs."""
    if len(grads) == 1:
        return grads
    return [_or_zeros(g, e) for g, e in zip(grads, use.edges, strict=True)]


def _or_zeros(g: Tensor | None, edge: GradientEdge) -> Tensor:
    if g is not None:
        return g
    shape = output_shape(edge.node, edge.output_nr)
    meta = edge.node._input_metadata[edge.output_nr]
    return torch.zeros(shape, dtype=meta.dtype, device=meta.device)


def book_keeping(work: Work, clip: Clip) -> ClippedBatch:
    """One backward pass; the weight gradient is formed once the factors are known."""
    forms: dict[int, Form] = {}

    def store(row: int, form: Form) -> None:
        form.settle()
        forms[row] = form

    _stream(work, store, early=partial(shrinks, thorough=work.present is not None), keep=False)
    return _sum_of_forms(work, forms, clip)


def sum_of_found(work: Work, found: Found, clip: Clip) -> ClippedBatch:
    """The same from the forms of all uses, where somebody else went through the backward pass.

    `found` is empty then: a form that nobody else holds is gone once it is summed.
    """
    forms = _merge(work, found)
    found.clear()
    for row in forms:
        forms[row].settle()
    return _sum_of_forms(work, forms, clip)


def _sum_of_forms(work: Work, forms: dict[int, Form], clip: Clip) -> ClippedBatch:
    """Norms, factors and sums; `forms` is empty then."""
    bundle_them = work.losses.is_cuda and not clip.per_parameter
    bundles = take_bundles(forms) if bundle_them else []
    squares = {row: form.squared_norms() for row, form in forms.items()}
    squares.update({bundle.rows[0]: bundle.form.squared_norms() for bundle in bundles})
    norms = work.squared_norms(squares, clip)
    factors = find_factors(norms, clip, work.scale, work.chain, work.present)
    sums: dict[int, Tensor] = {}
    while bundles:
        whole = _sum_of_bundle(bundles.pop(), factors)
        sums.update({row: work.kept(row, total) for row, total in whole.items()})
    for row in _tables_last(forms):  # its memory is free as soon as it is summed
        sums[row] = work.kept(row, factors.sum(forms.pop(row), row))
    return factors.batch(work.in_order(sums))


def _sum_of_bundle(bundle: Bundle, factors: Factors) -> dict[int, Tensor]:
    return bundle.split(factors.sum(bundle.form, bundle.rows[0]))


def _tables_last(forms: dict[int, Form]) -> list[int]:
    """The sum of a table is larger than what it is made from: others make room first."""
    return sorted(forms, key=lambda row: isinstance(forms[row], TableRows))


def shrinks(of: Use | Junction, *, thorough: bool) -> bool:
    """Whether so little is left of what a layer read that it should not wait for the end.

    thorough: where a hook costs nothing, since the step is recorded and not run from Python.
    """
    if isinstance(of, Junction):
        return thorough or of.size > _LARGE_INPUT
    if of.rule in normalisation.LARGE or (thorough and of.rule in normalisation.ALL):
        return True
    return of.rule in _SHRINKING and of.inputs[0].numel() > _LARGE_INPUT


def _with_direct(work: Work, found: Found, grads: Grads) -> Found:
    """Parameters differentiated as a whole replace what their uses gave.

    But not what recurrent layers gave for weights that the graph does not show: the whole is all
    but that.
    """
    if not work.direct:
        return found
    hidden = {
        id(p) for use in work.uses if use.rule in recurrent.RULES for p in recurrent.not_shown(use)
    }
    replaced = {id(p) for p in work.direct} - hidden
    kept = [(p, form) for p, form in found if id(p) not in replaced]
    return kept + [
        (p, Dense(full_precision(g)[None]))
        for p, g in zip(work.direct, grads, strict=True)
        if g is not None
    ]


def _merge(work: Work, found: Iterable[tuple[nn.Parameter, Form]]) -> dict[int, Form]:
    """The uses of one parameter become one form."""
    lists: dict[int, list[Form]] = {}
    for parameter, form in found:
        row = work.rows.get(id(parameter))
        if row is not None:
            lists.setdefault(row, []).append(form)
    return {row: combine(forms) for row, forms in lists.items()}


def two_pass(work: Work, clip: Clip) -> ClippedBatch:
    """Norms in a first backward pass, sums in a second; output gradients are not kept.

    Both passes start from the same unscaled losses, so the second sees the gradients whose norms
    were taken, and clipping multiplies in float32 at the very end.
    """
    squares: dict[int, Tensor] = {}
    sums: dict[int, Tensor] = {}

    def take_norm(row: int, form: Form) -> None:
        with scratch_scope():
            squares[row] = form.squared_norms()

    def take_sum(row: int, form: Form) -> None:
        with scratch_scope():
            sums[row] = work.kept(row, factors.sum(form, row))

    _stream(work, take_norm, early=lambda use: True, keep=True)
    norms = work.squared_norms(squares, clip)
    factors = find_factors(norms, clip, work.scale, work.chain, work.present)
    _stream(work, take_sum, early=lambda use: True, keep=False)
    return factors.batch(work.in_order(sums))


def _stream(work: Work, handle: Callable[[int, Form], None], *, early: Early, keep: bool) -> None:
    """One backward pass that hands over a form for each parameter; shared ones come last."""
    late: Found = []

    def arrived(use: Use, *grads: Tensor | None) -> None:
        found = work.forms_of_use(use, list(grads))
        if not keep:
            use.inputs = ()  # the forms hold what they need
        for parameter, form in found:
            if id(parameter) in work.shared:
                late.append((parameter, form))
            else:
                handle(work.rows[id(parameter)], form)

    def entered(way: Way, g: Tensor | None) -> None:
        late.extend(work.forms_of_way(way, g))

    direct = backward_pass(work, arrived, entered, early=early, keep=keep)
    for row, form in _merge(work, _with_direct(work, late, direct)).items():
        handle(row, form)
