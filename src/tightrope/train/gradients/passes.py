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

from tightrope.errors import InvalidInput
from tightrope.train.clip import Clip
from tightrope.train.gradients.batch import ClippedBatch, Parts, find_factors, zero_sum
from tightrope.train.gradients.buffers import scratch_scope
from tightrope.train.gradients.forms import Dense, Form, combine
from tightrope.train.gradients.forms.base import full_precision
from tightrope.train.gradients.forms.bundle import take_bundles
from tightrope.train.gradients.graph import explore, gradients_at, output_shape
from tightrope.train.gradients.junctions import Junction
from tightrope.train.gradients.owners import Owners
from tightrope.train.gradients.plan import UseSource
from tightrope.train.gradients.recorder import Use
from tightrope.train.gradients.rules import normalisation
from tightrope.train.gradients.rules.convolution import convolution, standard_convolution
from tightrope.train.gradients.rules.registry import WITHOUT_WEIGHTS

__all__ = ["Found", "Grads", "Work", "all_grads", "book_keeping", "sum_of_found", "two_pass"]

# Values of a convolution's input from which on a hook of its own pays.
_LARGE_INPUT = 2**24

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
    ways: list[tuple[UseSource, Junction]]
    scale: float
    owners: Owners
    shared: frozenset[int] = frozenset()  # ids of parameters whose forms wait for each other
    direct: list[nn.Parameter] = field(default_factory=list)  # a single example's leaves
    chain: int = 0  # examples in one float32 chain, see `chains`
    present: Tensor | None = None  # (B,) of a padded batch: which rows are examples
    ends: frozenset[Use] = frozenset()  # uses behind which nothing else is looked for
    parts: Parts | None = None  # of a model that is sharded and stays so

    def backward(self, inputs: list[Any], *, keep: bool) -> Grads:
        """Gradients of the summed losses, none of them a parameter's."""
        # Made anew each time: a backward pass of the user's may write into what it is given.
        weights = torch.full_like(self.losses, self.scale)
        return list(gradients_at(self.losses, inputs, weights, keep=keep))

    def forms_of_use(self, use: Use, grads: Grads) -> Found:
        """Forms of the parameters of one use; [] where the losses do not depend on it."""
        if all(g is None for g in grads):
            return []
        use.check_unchanged()
        with self._lent(use):
            found = use.rule(use.owner, *use.inputs, *all_grads(use, grads), **use.keywords)
        return self.together(found)

    def _lent(self, use: Use) -> AbstractContextManager[None]:
        """The layer's parameters are there inside, if its rule reads their values."""
        if self.parts is None or use.rule in WITHOUT_WEIGHTS:
            return nullcontext()
        return self.parts.lent(use.owner)

    def kept(self, row: int, total: Tensor) -> Tensor:
        """The sum of a parameter, or what is left of it here."""
        return total if self.parts is None else self.parts.give(row, total)

    def together(self, found: Found) -> Found:
        """From the rows of the model to examples."""
        if self.owners.plain:
            return found
        return [(parameter, form.together(self.owners)) for parameter, form in found]

    def forms_of_ways(self, grads: Grads) -> Found:
        """Forms of the broadcast parameters."""
        found: Found = [
            (source.parameter, Dense(full_precision(way.gradients(source.parameter, g))))
            for (source, way), g in zip(self.ways, grads, strict=True)
            if g is not None
        ]
        return self.together(found)

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

    _stream(work, store, early=partial(_shrinks, thorough=work.present is not None), keep=False)
    return _sum_of_forms(work, forms, clip)


def sum_of_found(work: Work, found: Found, clip: Clip) -> ClippedBatch:
    """The same from the forms of all uses, where somebody else went through the backward pass."""
    forms = _merge(work, found)
    for form in forms.values():
        form.settle()
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
        bundle = bundles.pop()
        whole = bundle.split(factors.sum(bundle.form, bundle.rows[0]))
        sums.update({row: work.kept(row, total) for row, total in whole.items()})
    for row in list(forms):  # its memory is free as soon as it is summed
        sums[row] = work.kept(row, factors.sum(forms.pop(row), row))
    return factors.batch(work.in_order(sums))


def _shrinks(use: Use, *, thorough: bool) -> bool:
    """Whether so little is left of what the layer read that it should not wait for the end.

    thorough: where a hook costs nothing, since the step is recorded and not run from Python.
    """
    if use.rule in normalisation.LARGE or (thorough and use.rule in normalisation.ALL):
        return True
    return use.rule in (convolution, standard_convolution) and use.inputs[0].numel() > _LARGE_INPUT


def _with_direct(work: Work, found: Found, grads: Grads) -> Found:
    """Parameters differentiated as a whole replace what their uses gave."""
    direct = {id(p) for p in work.direct}
    kept = [(p, form) for p, form in found if id(p) not in direct]
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


def _stream(
    work: Work, handle: Callable[[int, Form], None], *, early: Callable[[Use], bool], keep: bool
) -> None:
    """One backward pass that hands over a form for each parameter.

    Uses marked `early` are handled as soon as their gradient is there, which is then let go; the
    others wait for the end of the pass, parameters with several uses for all of them.
    """
    late: Found = []
    waiting = {id(use): use for use in work.uses}

    def arrived(use: Use, grads: Grads) -> None:
        waiting.pop(id(use), None)
        found = work.forms_of_use(use, grads)
        if not keep:
            use.inputs = ()  # the forms hold what they need
        for parameter, form in found:
            if id(parameter) in work.shared:
                late.append((parameter, form))
            else:
                handle(work.rows[id(parameter)], form)

    through = [use for use in work.uses if early(use) and _passed_through(work, use)]
    hooks = [_on_arrival(use, arrived) for use in through]
    first = [use for use in work.uses if use not in through] if through else work.uses
    try:
        edges: list[Any] = [edge for use in first for edge in use.edges]
        edges += [way.edge for _, way in work.ways] + list(work.direct)
        grads = work.backward(edges, keep=keep)
    finally:
        for hook in hooks:
            hook.remove()
    start = 0
    for use in first:
        end = start + len(use.edges)
        own, grads[start:end] = grads[start:end], [None] * (end - start)
        arrived(use, own)
        start = end
    _refuse_unreached(work, list(waiting.values()))
    late += work.forms_of_ways(grads[start : start + len(work.ways)])
    late = _with_direct(work, late, grads[start + len(work.ways) :]) if work.direct else late
    for row, form in _merge(work, late).items():
        handle(row, form)


def _passed_through(work: Work, use: Use) -> bool:
    """Whether the backward pass goes on behind the layer, so that its node runs."""
    if len(use.edges) != 1 or not use.entered or use in work.ends:
        return False
    return all(getattr(node, "variable", None) is None for node, _ in use.entered)


def _refuse_unreached(work: Work, waiting: list[Use]) -> None:
    """A layer without gradient must be one that the losses do not depend on."""
    if not waiting:
        return
    reached = {slot[0] for slot in explore(work.losses, [], set()).consumers}
    if any(use.edges[0].node in reached for use in waiting):
        raise InvalidInput(
            "the model's input requires gradients itself; pass it detached (x.detach())"
        )


def _on_arrival(use: Use, arrived: Callable[[Use, Grads], None]) -> Any:
    number = use.edges[0].output_nr

    def hook(grad_outputs: tuple[Tensor, ...]) -> None:
        arrived(use, [grad_outputs[number]])

    return use.edges[0].node.register_prehook(hook)
