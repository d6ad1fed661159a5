"""The two ways through the backward pass: keep everything once, or go twice and keep little."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from tightrope.train.clip import Clip
from tightrope.train.gradients.batch import ClippedBatch, find_factors
from tightrope.train.gradients.buffers import scratch_scope
from tightrope.train.gradients.forms import Dense, Form, combine
from tightrope.train.gradients.forms.base import full_precision
from tightrope.train.gradients.forms.bundle import bundled
from tightrope.train.gradients.graph import Junction, output_shape
from tightrope.train.gradients.plan import Source
from tightrope.train.gradients.recorder import Use

__all__ = ["Work", "book_keeping", "two_pass"]

Grads = list[Tensor | None]
Found = list[tuple[nn.Parameter, Form]]


@final
@dataclass(eq=False)
class Work:
    """One batch: its losses and everything that touched a parameter."""

    losses: Tensor
    parameters: list[nn.Parameter]
    uses: list[Use]
    ways: list[tuple[Source, Junction]]
    scale: float
    direct: list[nn.Parameter] = field(default_factory=list)  # a single example's leaves

    def backward(self, inputs: list[Any], *, keep: bool) -> Grads:
        """Gradients of the summed losses, none of them a parameter's."""
        ones = torch.full_like(self.losses, self.scale)
        return list(
            torch.autograd.grad(
                self.losses, inputs, ones, retain_graph=keep or bool(self.ways), allow_unused=True
            )
        )

    def forms_of_use(self, use: Use, grads: Grads) -> Found:
        """Forms of the parameters of one use; [] where the losses do not depend on it."""
        if all(g is None for g in grads):
            return []
        use.check_unchanged()
        filled = [_or_zeros(g, e) for g, e in zip(grads, use.edges, strict=True)]
        inputs = (x.detach() for x in use.inputs)
        found: Found = use.rule(use.owner, *inputs, *filled, **use.keywords)
        return found

    def forms_of_ways(self, grads: Grads) -> Found:
        """Forms of the broadcast parameters."""
        return [
            (source.parameter, Dense(full_precision(way.gradients(source.parameter, g))))
            for (source, way), g in zip(self.ways, grads, strict=True)
            if g is not None
        ]

    def rows(self) -> dict[int, int]:
        """id of a parameter -> its place."""
        return {id(p): i for i, p in enumerate(self.parameters)}

    def squared_norms(self, found: dict[int, Tensor]) -> Tensor:
        """(parameters, B), zero for unused parameters."""
        count = len(self.parameters)
        if len(found) < count:
            zero = torch.zeros(len(self.losses), device=self.losses.device)
            found = {row: found.get(row, zero) for row in range(count)}
        rows = [found[row] for row in range(count)]
        if len({row.dtype for row in rows}) > 1:  # parameters of different precision
            rows = [row.double() for row in rows]
        return torch.stack(rows)

    def in_order(self, sums: dict[int, Tensor]) -> list[Tensor]:
        """One sum for each parameter, zero for unused ones."""
        unused = (row for row in range(len(self.parameters)) if row not in sums)
        for row in unused:
            sums[row] = torch.zeros_like(full_precision(self.parameters[row].detach()))
        return [sums[row] for row in range(len(self.parameters))]


def _or_zeros(g: Tensor | None, edge: GradientEdge) -> Tensor:
    if g is not None:
        return g
    shape = output_shape(edge.node, edge.output_nr)
    meta = edge.node._input_metadata[edge.output_nr]
    return torch.zeros(shape, dtype=meta.dtype, device=meta.device)


def book_keeping(work: Work, clip: Clip) -> ClippedBatch:
    """One backward pass; the weight gradient is formed once the factors are known."""
    forms = _merge(work, _all_forms(work))
    bundle = None if clip.per_parameter else bundled(forms)
    squares = {row: form.squared_norms() for row, form in forms.items()}
    if bundle is not None:
        squares[bundle.rows[0]] = bundle.form.squared_norms()
    factors = find_factors(work.squared_norms(squares), clip, work.scale)
    sums: dict[int, Tensor] = {}
    if bundle is not None:
        sums = bundle.split(factors.sum(bundle.form, bundle.rows[0]))
    for row in list(forms):
        sums[row] = factors.sum(forms.pop(row), row)  # its memory is free as soon as it is summed
    return factors.batch(work.in_order(sums))


def _all_forms(work: Work) -> Found:
    edges: list[Any] = [edge for use in work.uses for edge in use.edges]
    edges += [way.edge for _, way in work.ways]
    edges += work.direct
    grads = work.backward(edges, keep=False)
    found: Found = []
    start = 0
    for use in work.uses:
        end = start + len(use.edges)
        found += work.forms_of_use(use, grads[start:end])
        start = end
    work.uses = []  # the forms hold what they need, and let go of it when they can
    end = start + len(work.ways)
    found += work.forms_of_ways(grads[start:end])
    return _with_direct(work, found, grads[end:])


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
    rows = work.rows()
    lists: dict[int, list[Form]] = {}
    for parameter, form in found:
        row = rows.get(id(parameter))
        if row is not None:
            lists.setdefault(row, []).append(form)
    return {row: combine(forms) for row, forms in lists.items()}


def two_pass(work: Work, clip: Clip) -> ClippedBatch:
    """Norms in a first backward pass, sums in a second; output gradients are not kept.

    Both passes start from the same unscaled losses, so the second sees the gradients whose norms
    were taken, and clipping multiplies in float32 at the very end.
    """
    squares: dict[int, Tensor] = {}
    _stream(work, lambda row, form: squares.update({row: form.squared_norms()}), keep=True)
    factors = find_factors(work.squared_norms(squares), clip, work.scale)
    sums: dict[int, Tensor] = {}
    _stream(work, lambda row, form: sums.update({row: factors.sum(form, row)}), keep=False)
    return factors.batch(work.in_order(sums))


def _stream(work: Work, handle: Callable[[int, Form], None], *, keep: bool) -> None:
    """One backward pass that hands over each form as soon as its gradient is there."""
    rows, late = work.rows(), Late(work)
    waiting = {id(use): use for use in work.uses}

    def arrived(use: Use, grads: Grads) -> None:
        waiting.pop(id(use), None)
        for parameter, form in work.forms_of_use(use, grads):
            if id(parameter) in late.shared:
                late.found.append((parameter, form))
            else:
                with scratch_scope():
                    handle(rows[id(parameter)], form)

    hooks = [_on_arrival(use, arrived) for use in work.uses if _passed_through(use)]
    first = [use for use in work.uses if not _passed_through(use)]
    try:
        edges: list[Any] = [edge for use in first for edge in use.edges]
        edges += [way.edge for _, way in work.ways] + list(work.direct)
        grads = work.backward(edges, keep=keep or len(first) < len(work.uses))
    finally:
        for hook in hooks:
            hook.remove()
    for use in first:
        arrived(use, grads[: len(use.edges)])
        grads = grads[len(use.edges) :]
    for use in list(waiting.values()):  # reached by no first layer: ask for them by name
        arrived(use, work.backward(list(use.edges), keep=True))
    late.found += work.forms_of_ways(grads[: len(work.ways)])
    late.found = _with_direct(work, late.found, grads[len(work.ways) :])
    for row, form in _merge(work, late.found).items():
        handle(row, form)


@final
class Late:
    """Parameters with several uses: their forms wait for each other."""

    def __init__(self, work: Work) -> None:
        self.found: Found = []
        counts: dict[int, int] = {}
        for use in work.uses:
            for parameter in use.owner.parameters():
                counts[id(parameter)] = counts.get(id(parameter), 0) + 1
        self.shared = {key for key, count in counts.items() if count > 1}
        self.shared |= {id(source.parameter) for source, _ in work.ways}
        self.shared |= {id(parameter) for parameter in work.direct}


def _passed_through(use: Use) -> bool:
    """Whether the backward pass goes on behind the layer, so that its node runs."""
    return bool(use.input_edges) and len(use.edges) == 1


def _on_arrival(use: Use, arrived: Callable[[Use, Grads], None]) -> Any:
    number = use.edges[0].output_nr

    def hook(grad_outputs: tuple[Tensor, ...]) -> None:
        arrived(use, [grad_outputs[number]])

    return use.edges[0].node.register_prehook(hook)
