"""Clipped sums of per-example gradients, from the proved graph of a loss.

The graph runs once, with weights that need no gradient. Where weights meet rows (`sites`) the
output is tapped; one backward pass goes from the losses to the taps, and no gradient of a weight is
formed on the way. From what the sites read and from the gradients at the taps come the forms of all
examples' gradients, their norms, the clip factors and the sums.

Both passes are one function of tensors (`passes`): it may be traced, compiled or recorded. What it
stores is measured and added by `total`, which is never compiled (docs/arithmetic.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, final

import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from tightrope.errors import InvalidInput
from tightrope.train.clip import Clip
from tightrope.train.gradients.batch import ClippedBatch, combine, sum_of_forms, transposed
from tightrope.train.gradients.forms import (
    Dense,
    Form,
    TableRows,
    keep_freed_memory,
    scratch_scope,
)
from tightrope.train.gradients.graph import (
    RESHAPES,
    attribute,
    check_outputs,
    first_label,
    flat_function,
    is_floating,
    is_public,
    needed_for,
    number_of,
    step_back,
)
from tightrope.train.gradients.rounding import full_precision, no_autocast, no_graph
from tightrope.train.gradients.sites import (
    Recipe,
    Recurrent,
    Use,
    has_rows,
    over_examples,
    recipe,
    recurrent,
)
from tightrope.train.program.capture import Program
from tightrope.train.program.labels import Unknown

__all__ = ["ClippedSums", "Passed", "losses_of", "public_updates"]

aten = torch.ops.aten


@dataclass(frozen=True)
class Passed:
    """What one forward and backward pass leave: losses, and what each site has stored."""

    losses: tuple[Tensor, ...]
    kept: list[tuple[Tensor, ...] | None]  # of each site; None where no loss depends on it
    values: tuple[Tensor, ...]  # that weights were made from, where that is differentiated


@dataclass(frozen=True)
class _Made:
    """How a value that meets rows is made of parameters.

    source: the last value that is more than a cast, a view or a transpose of something before it.
    turned: whether the value is the transpose of it.
    """

    source: fx.Node
    turned: bool


@final
class ClippedSums:
    """One program for batches of `size` rows; parameters: those trained, in the order of the sums.

    Where the program has several losses, `parameters` maps the name of each to those parameters
    that it trains; their order is the order of the sums. One clip is over all of them.
    """

    def __init__(
        self,
        program: Program,
        labels: dict[fx.Node, Any],
        size: int,
        parameters: Sequence[nn.Parameter] | Mapping[str, Sequence[nn.Parameter]],
    ) -> None:
        self.program, self.labels, self.size = program, labels, size
        self._groups = self._grouped(parameters)  # of each loss: the places of its parameters
        self._made_of = self._find_made()
        self._recurrent: dict[fx.Node, Recurrent] = {}
        self.sites = self._find_sites()
        self._origin = {w: self._origin_of(w) for site in self.sites for w in site.weights}
        self._pulls = self._find_pulls()
        self._run, self.places, self._constants = self._write()
        # Where each rank has a part: what it keeps of each sum, and how it gets a whole weight.
        self.keep: Callable[[int, Tensor], Tensor] | None = None
        self.weight: Callable[[int], Tensor] = lambda row: self.parameters[row].detach()
        keep_freed_memory()

    def _grouped(self, given: Any) -> list[frozenset[int]]:
        names = self.program.names
        if not isinstance(given, Mapping):
            if len(self.program.losses) != 1:
                raise InvalidInput(
                    f"The loss returns {len(self.program.losses)} losses ({', '.join(names or ())})"
                    " for one optimizer. Return their sum; or give an optimizer for each, in a "
                    "dictionary with the same names."
                )
            self.parameters = list(given)
            return [frozenset(range(len(self.parameters)))]
        self.parameters = [p for group in given.values() for p in group]
        groups, start = dict[str, frozenset[int]](), 0
        for name, group in given.items():
            groups[name] = frozenset(range(start, start + len(group)))
            start += len(group)
        if names is None or set(names) != set(groups):
            raise InvalidInput(
                f"The loss returns losses named {list(names or ())}, and optimizers are given for "
                f"{list(groups)}. Give one optimizer for each loss, under its name."
            )
        return [groups[name] for name in names]

    # Planning.

    def _find_made(self) -> dict[fx.Node, frozenset[int]]:
        """Values made of weights alone, through which gradients flow, with their parameters."""
        rows = {id(p): row for row, p in enumerate(self.parameters)}
        found: dict[fx.Node, frozenset[int]] = {}
        for place in self.program.places:
            if place.kind == "parameter":
                row = rows.get(id(self.program.tensor(place)))
                if row is not None:
                    found[place.node] = frozenset([row])
        for node in self.program.module.graph.nodes:
            if node.op != "call_function" or node.target is aten.detach.default:
                continue
            sources = [found[n] for n in node.all_input_nodes if n in found]
            if sources and is_public(self.labels[node]) and is_floating(node):
                found[node] = frozenset().union(*sources)
        return found

    def _find_sites(self) -> list[Site]:
        """All nodes at which weights meet rows, on the way to a loss."""
        needed, sites = needed_for(self.program.losses), list[Site]()
        for node in self.program.module.graph.nodes:
            if node not in needed or node.op != "call_function" or node in self._made_of:
                continue
            if node.target is aten.detach.default or not is_floating(node):
                continue
            layer = recurrent(Use(node, self.labels, self._made_of.keys(), self.size))
            if layer is not None:  # run in one way, whether its weights are trained or not
                self._recurrent[node] = layer
                for part in range(len(layer.weights)):
                    sites.append(Site((node, part), layer.recipe(part)))
            elif any(n in self._made_of for n in node.all_input_nodes):
                if is_public(self.labels[node]) or not has_rows(first_label(self.labels[node])):
                    raise Unknown(f"{node.target} makes of weights what is not known to be rows")
                use = Use(node, self.labels, self._made_of.keys(), self.size)
                check_outputs(node)
                sites.append(Site(node, recipe(use)))
        return sites

    def _origin_of(self, weight: fx.Node) -> _Made:
        node, turned = weight, False
        while node.op == "call_function":
            step = step_back(node)
            if step is None:
                break
            node, flips = step
            turned ^= flips
        return _Made(node, turned)

    def _find_pulls(self) -> dict[fx.Node, Pull | PublicRows]:
        """For what is computed from parameters: the way back, for each example by itself."""
        sources = dict.fromkeys(made.source for made in self._origin.values())
        return {
            s: (PublicRows if _picks_few(s) else Pull)(self, s)
            for s in sources if s.op == "call_function"
        }  # fmt: skip

    def _write(self) -> tuple[Callable[..., Any], list[Any], list[Tensor]]:
        """The forward pass as one flat Python function, and what it is called with."""
        program, graph = self.program, fx.Graph()
        env: dict[Any, Any] = {}
        wanted = [*program.losses, *(n for pull in self._pulls.values() for n in pull.reads)]
        read = [n for site in self.sites for n in site.recipe.reads if isinstance(n, fx.Node)]
        needed = needed_for([*wanted, *read])
        sites = {site.node for site in self.sites}
        places = [p for p in program.places if p.node in needed]
        for place in places:
            env[place.node] = graph.placeholder(place.node.name)
        constants: list[Tensor] = []
        taps: dict[Any, fx.Node] = {}

        def tapped(name: Any, value: fx.Node) -> fx.Node:
            value = graph.call_function(_tapped, (value,))
            taps[name] = graph.call_function(_edge_of, (value,))
            return value

        for node in program.module.graph.nodes:
            if node not in needed or node in env or node.op == "output":
                continue
            if node.op == "get_attr":
                env[node] = graph.placeholder(node.name)
                constants.append(attribute(program.module, str(node.target)))
                continue
            number = number_of(node, self.size)
            if number is not None:
                env[node] = number
                continue
            if node in self._recurrent:
                self._recurrent[node].write(graph, env, tapped)
                continue
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: env[n])  # type: ignore[no-untyped-call]
            target = RESHAPES.get(node.target, node.target)
            env[node] = graph.call_function(target, args, kwargs)
            if node in sites:
                env[node] = tapped(node, env[node])
        reads = [tuple(env[n] for n in site.recipe.reads) for site in self.sites]
        values = [env[n] for pull in self._pulls.values() for n in pull.reads]
        edges = [taps[site.node] for site in self.sites]
        graph.output((tuple(env[n] for n in program.losses), edges, reads, tuple(values)))
        return flat_function(graph), places, constants

    @property
    def has_recurrent(self) -> bool:
        """Whether a layer runs step by step over its positions."""
        return bool(self._recurrent)

    # Running.

    def inputs(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """What `passes` is called with: weights and other tensors as they are now, and a batch."""
        batch, found = iter(leaves), list[Tensor]()
        given = {p.node: next(batch) for p in self.program.places if p.kind == "batch"}
        for place in self.places:
            if place.kind == "batch":
                found.append(given[place.node])
            else:
                found.append(self.program.tensor(place).detach())
        return found + self._constants

    def blank_leaves(self) -> list[Tensor]:
        """Zeros in the shapes of a batch."""
        found = list[Tensor]()
        for place in self.program.places:
            if place.kind == "batch":
                value = place.node.meta["val"]
                shape = (self.size, *(int(n) for n in value.shape[1:]))
                found.append(torch.zeros(shape, dtype=value.dtype, device=value.device))
        return found

    def passes(self, *inputs: Tensor) -> Passed:
        """Forward and backward pass; a function of tensors that may be traced."""
        with torch.enable_grad():
            losses, taps, reads, values = self._run(*inputs)
        gradients: list[Tensor | None] = [None] * len(taps)
        for number, loss in enumerate(losses):
            chosen = self._taps_of(number, taps)
            if loss.requires_grad and chosen:
                last = number == len(losses) - 1
                found = _gradients(loss, [taps[i] for i in chosen], keep=not last)
                for i, g in zip(chosen, found, strict=True):
                    gradients[i] = g
        taps.clear()
        kept: list[tuple[Tensor, ...] | None] = []
        with no_graph():
            for i, site in enumerate(self.sites):
                g = gradients[i]
                gradients[i] = None
                if g is None:
                    kept.append(None)
                    continue
                kept.append(site.recipe.store(*(v.detach() for v in reads[i]), g))
                reads[i] = ()
        return Passed(tuple(v.detach() for v in losses), kept, tuple(v.detach() for v in values))

    def _taps_of(self, number: int, taps: list[Any]) -> list[int]:
        """Taps at which weights of one loss enter."""
        if len(self._groups) == 1:
            return list(range(len(taps)))
        own = self._groups[number]
        return [
            i for i, site in enumerate(self.sites)
            if any(self._made_of[w] & own for w in site.recipe.weights)
        ]  # fmt: skip

    def total(
        self,
        passed: Passed,
        present: Tensor | None,
        clip: Clip,
        chain: int,
        *,
        waits: bool = True,
    ) -> ClippedBatch:
        """Norms, factors and sums; what was stored is let go of on the way.

        waits: whether values may be read. If not, `health` says whether the sums are of any use.
        """
        with no_graph(), no_autocast(passed.losses[0].device), scratch_scope():
            forms = self.forms(passed)
            for form in forms.values():
                form.settle()
            return sum_of_forms(
                forms, self.parameters, self.size, present, clip, chain, waits=waits, keep=self.keep
            )

    def __call__(
        self, leaves: Sequence[Tensor], present: Tensor | None, clip: Clip, chain: int
    ) -> tuple[ClippedBatch, Tensor]:
        """leaves: tensors of a batch of `size` rows; present: (size,) those that are examples."""
        with no_autocast(leaves[0].device):
            passed = self.passes(*self.inputs(leaves))
        return self.total(passed, present, clip, chain), losses_of(passed)

    # From what was stored to forms, one for each parameter.

    def forms(self, passed: Passed) -> dict[int, Form]:
        lists: dict[int, list[Form]] = defaultdict(list)
        pulled: dict[fx.Node, list[Form]] = defaultdict(list)
        for site, kept in zip(self.sites, passed.kept, strict=True):
            if kept is None:
                continue
            for weight, form in zip(site.recipe.weights, site.recipe.forms(*kept), strict=True):
                made = self._origin[weight]
                own = transposed(form) if made.turned else form
                if made.source in self._pulls:
                    pulled[made.source].append(own)
                else:
                    (row,) = self._made_of[made.source]
                    lists[row].append(own)
        passed.kept.clear()
        values = iter(passed.values)
        for source, pull in self._pulls.items():
            own_values = [next(values) for _ in pull.reads]
            if pulled[source]:
                for row, form in pull(combine(pulled[source], pull.shape), own_values):
                    lists[row].append(form)
        return {row: combine(forms, self.parameters[row].shape) for row, forms in lists.items()}


@dataclass(frozen=True)
class Site:
    """A node at which weights meet rows, or a part of a recurrent layer."""

    node: Any
    recipe: Recipe

    @property
    def weights(self) -> tuple[fx.Node, ...]:
        return self.recipe.weights


@final
class Pull:
    """The way back from a value that is computed from parameters, for each example by itself.

    What cancels there, for one example, must not cancel in the sum.
    """

    def __init__(self, sums: ClippedSums, source: fx.Node) -> None:
        made, graph = sums._made_of, fx.Graph()
        self.rows = sorted(made[source])
        self.shape = torch.Size(int(n) for n in source.meta["val"].shape)
        needed = needed_for([source], inside=made)
        inner = [n for n in sums.program.module.graph.nodes if n in needed and n in made]
        own = [n for n in inner if n.op == "placeholder"]
        outside = dict.fromkeys(m for n in inner for m in n.all_input_nodes if m not in made)
        self.reads = tuple(n for n in outside if number_of(n, sums.size) is None)
        env: dict[fx.Node, Any] = {n: number_of(n, sums.size) for n in outside}
        at = {row: graph.placeholder(f"weight{row}") for row in self.rows}
        for n in own:
            (row,) = made[n]
            env[n] = at[row]
        for n in self.reads:
            env[n] = graph.placeholder(n.name)
        for n in inner:
            if n.op == "call_function":
                args, kwargs = fx.map_arg((n.args, n.kwargs), lambda m: env[m])  # type: ignore[no-untyped-call]
                env[n] = graph.call_function(_PULLED.get(n.target, n.target), args, kwargs)
        graph.output(env[source])
        self._run, self._sums = flat_function(graph), sums

    def __call__(self, form: Form, values: list[Tensor]) -> list[tuple[int, Form]]:
        weights = [self._sums.weight(row) for row in self.rows]

        def made(*given: Tensor) -> Tensor:
            return self._run(*given, *values)  # type: ignore[no-any-return]

        out, back = torch.func.vjp(made, *weights)
        dense = form.dense().to(out.dtype)
        found = over_examples(back)(dense.reshape(len(dense), *self.shape))
        return [(row, Dense(full_precision(g))) for row, g in zip(self.rows, found, strict=True)]


@final
class PublicRows:
    """The way back from a few rows of a table that are the same for all examples: positions, say.

    The gradient of an example is these rows, so the table is not written out for each of them.
    """

    def __init__(self, sums: ClippedSums, source: fx.Node) -> None:
        table, ids, *rest = source.args
        (self._row,) = sums._made_of[table]  # type: ignore[index]
        self.reads = (ids,)
        self.shape = torch.Size(int(n) for n in source.meta["val"].shape)
        self._rows = int(table.meta["val"].shape[0])  # type: ignore[union-attr]
        self._padding = rest[0] if rest and rest[0] >= 0 else None  # type: ignore[operator]

    def __call__(self, form: Form, values: list[Tensor]) -> list[tuple[int, Form]]:
        dense = form.dense()
        ids = values[0].reshape(1, -1).long().expand(len(dense), -1)
        g = dense.reshape(len(dense), ids.shape[1], self.shape[-1])
        return [(self._row, TableRows(ids, g, self._rows, self._padding))]


def _picks_few(source: fx.Node) -> bool:
    """Whether it is fewer rows of a parameter than it has."""
    if source.target is not aten.embedding.default or source.kwargs:
        return False
    table, ids, *rest = source.args
    if not isinstance(table, fx.Node) or table.op != "placeholder" or any(rest[1:]):
        return False
    picked, rows = ids.meta["val"].shape, table.meta["val"].shape[0]  # type: ignore[union-attr]
    return all(isinstance(n, int) for n in picked) and prod(picked) < rows


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Of plain operators, whose way back has a rule for all examples at once."""
    norms = v.norm(2, [d for d in range(v.dim()) if d != dim % v.dim()], keepdim=True)
    return v * (g / norms), norms


_PULLED: dict[Any, Any] = {aten._weight_norm_interface.default: _weight_norm}


def public_updates(
    program: Program, labels: dict[fx.Node, Any]
) -> Callable[[], list[tuple[str, Tensor]]]:
    """A function that computes the new values of the buffers, from what is public alone."""
    graph, env = fx.Graph(), dict[fx.Node, Any]()
    needed = needed_for([node for _, node in program.updates])
    places = [p for p in program.places if p.node in needed]
    for place in places:
        env[place.node] = graph.placeholder(place.node.name)
    constants: list[Tensor] = []
    for node in program.module.graph.nodes:
        if node not in needed or node in env:
            continue
        if node in labels and not is_public(labels[node]):
            raise Unknown(f"{node.target} is not public, and a buffer is made of it")
        if node.op == "get_attr":
            env[node] = graph.placeholder(node.name)
            constants.append(attribute(program.module, str(node.target)))
        elif node.op == "call_function":
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: env[n])  # type: ignore[no-untyped-call]
            env[node] = graph.call_function(node.target, args, kwargs)
    graph.output(tuple(env[node] for _, node in program.updates))
    run, names = flat_function(graph), [name for name, _ in program.updates]

    def updates() -> list[tuple[str, Tensor]]:
        with torch.no_grad():
            found = run(*(program.tensor(p).detach() for p in places), *constants)
        return list(zip(names, found, strict=True))

    return updates


# Running.


def _tapped(out: Any) -> Any:
    """The output of a site, at which the backward pass ends or passes by."""
    tensor = out[0] if isinstance(out, tuple | list) else out
    if not tensor.requires_grad:
        tensor.requires_grad_()
    return out


def _edge_of(out: Any) -> GradientEdge | Tensor:
    """Where the gradient of a tensor arrives; it keeps no tensor but a leaf, as its edge would."""
    tensor = out[0] if isinstance(out, tuple | list) else out
    return tensor if tensor.is_leaf else get_gradient_edge(tensor)


def _gradients(
    losses: Tensor, taps: list[GradientEdge | Tensor], *, keep: bool
) -> tuple[Tensor | None, ...]:
    ones = torch.ones_like(losses)
    return torch.autograd.grad(losses, taps, ones, retain_graph=keep, allow_unused=True)


def losses_of(passed: Passed) -> Tensor:
    """(size,), or (size, losses) of several."""
    return passed.losses[0] if len(passed.losses) == 1 else torch.stack(passed.losses, 1)
