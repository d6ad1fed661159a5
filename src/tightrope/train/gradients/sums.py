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
from math import prod
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import GradientEdge, _engine_run_backward, get_gradient_edge

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
    check_outputs,
    copy_node,
    flat_function,
    inputs_for,
    is_floating,
    needed_for,
    number_of,
    step_back,
)
from tightrope.train.gradients.rounding import full_precision, no_autocast, no_graph
from tightrope.train.gradients.sites import Recipe, Recurrent, Use, over_examples, recipe
from tightrope.train.program.capture import Program
from tightrope.train.program.labels import PUBLIC, Rows, Unknown

aten = torch.ops.aten


class Passed(NamedTuple):
    """What one forward and backward pass leave: losses, and what each site has stored."""

    losses: tuple[Tensor, ...]
    kept: list[tuple[Tensor, ...] | None]  # of each site; None where no loss depends on it
    values: tuple[Tensor, ...]  # that weights were made from, where that is differentiated


class _Site(NamedTuple):
    """A node at which weights meet rows, or a part of a recurrent layer."""

    node: Any
    recipe: Recipe


class _Made(NamedTuple):
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
        self._origin = {w: _origin_of(w) for site in self.sites for w in site.recipe.weights}
        # For what is computed from parameters: the way back, for each example by itself.
        self._pulls: dict[fx.Node, Pull | PublicRows] = {
            s: (PublicRows if _picks_few(s) else Pull)(self, s)
            for s in dict.fromkeys(made.source for made in self._origin.values())
            if s.op == "call_function"
        }
        self._run, self.places, self._constants = self._write()
        self._taps = [self._taps_of(number) for number in range(len(program.losses))]
        self.has_recurrent = bool(self._recurrent)  # runs step by step over positions
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
            if sources and _is_public(self.labels[node]) and is_floating(node):
                found[node] = frozenset().union(*sources)
        return found

    def _find_sites(self) -> list[_Site]:
        """All nodes at which weights meet rows, on the way to a loss."""
        needed, sites = needed_for(self.program.losses), list[_Site]()
        for node in self.program.module.graph.nodes:
            if node not in needed or node.op != "call_function" or node in self._made_of:
                continue
            if node.target is aten.detach.default or not is_floating(node):
                continue
            use = Use(node, self.labels, self._made_of.keys(), self.size)
            if node.target is torch.ops.tightrope.recurrent.default:
                # Run in one way, whether its weights are trained or not.
                layer = self._recurrent[node] = Recurrent(use)
                sites += [_Site((node, i), layer.recipe(i)) for i in range(len(layer.weights))]
            elif any(n in self._made_of for n in node.all_input_nodes):
                label = self.labels[node]
                if not isinstance(label[0] if isinstance(label, tuple) else label, Rows):
                    raise Unknown(f"{node.target} makes of weights what is not known to be rows")
                check_outputs(node)
                sites.append(_Site(node, recipe(use)))
        return sites

    def _write(self) -> tuple[Callable[..., Any], list[Any], list[Tensor]]:
        """The forward pass as one flat Python function, and what it is called with."""
        program = self.program
        read = [n for site in self.sites for n in site.recipe.reads if isinstance(n, fx.Node)]
        pulled = [n for pull in self._pulls.values() for n in pull.reads]
        needed = needed_for([*program.losses, *pulled, *read])
        graph, env, places, constants = inputs_for(program, needed)
        sites, taps = {site.node for site in self.sites}, dict[Any, fx.Node]()

        def tapped(name: Any, value: fx.Node) -> None:
            taps[name] = graph.call_function(_tap, (value,))

        for node in program.module.graph.nodes:
            if node not in needed or node in env or node.op == "output":
                continue
            number = number_of(node, self.size)
            if number is not None:
                env[node] = number
            elif node in self._recurrent:
                self._recurrent[node].write(graph, env, tapped)
            else:
                copy_node(graph, env, node, RESHAPES)
                if node in sites:
                    tapped(node, env[node])
        reads = [tuple(env[n] for n in site.recipe.reads) for site in self.sites]
        losses, values = (tuple(env[n] for n in nodes) for nodes in (program.losses, pulled))
        graph.output((losses, [taps[site.node] for site in self.sites], reads, values))
        return flat_function(graph), places, constants

    def _taps_of(self, number: int) -> list[int]:
        """Sites at which weights of one loss enter."""
        made, own = self._made_of, self._groups[number]
        return [
            i for i, site in enumerate(self.sites)
            if len(self._groups) == 1 or any(made[w] & own for w in site.recipe.weights)
        ]  # fmt: skip

    # Running.

    def inputs(self, leaves: Sequence[Tensor]) -> list[Tensor]:
        """What `passes` is called with: weights and other tensors as they are now, and a batch."""
        batch, tensor = iter(leaves), self.program.tensor
        given = {p.node: next(batch) for p in self.program.places if p.kind == "batch"}
        return [
            given[place.node] if place.kind == "batch" else tensor(place).detach()
            for place in self.places
        ] + self._constants

    def blank_leaves(self) -> list[Tensor]:
        """Zeros in the shapes of a batch."""
        values = [p.node.meta["val"] for p in self.program.places if p.kind == "batch"]
        return [
            torch.zeros((self.size, *(int(n) for n in v.shape[1:])), dtype=v.dtype, device=v.device)
            for v in values
        ]

    def passes(self, *inputs: Tensor) -> Passed:
        """Forward and backward pass; a function of tensors that may be traced."""
        with torch.enable_grad():
            losses, taps, reads, values = self._run(*inputs)
        gradients: list[Tensor | None] = [None] * len(taps)
        for number, (loss, own) in enumerate(zip(losses, self._taps, strict=True)):
            if loss.requires_grad and own:
                # torch.autograd.grad, in two thirds of its time
                found = _engine_run_backward(
                    (loss,), (torch.ones_like(loss),), number < len(losses) - 1, False,
                    tuple(taps[i] for i in own), allow_unreachable=True, accumulate_grad=False,
                )  # fmt: skip
                for i, g in zip(own, found, strict=True):
                    gradients[i] = g
        taps.clear()
        kept = list[tuple[Tensor, ...] | None]()
        with no_graph():
            for i, site in enumerate(self.sites):
                g, gradients[i] = gradients[i], None
                own_reads, reads[i] = reads[i], ()
                made = None if g is None else site.recipe.store(*[v.detach() for v in own_reads], g)
                kept.append(made)
        return Passed(tuple(v.detach() for v in losses), kept, tuple(v.detach() for v in values))

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

    def forms(self, passed: Passed) -> dict[int, Form]:
        """From what was stored to forms, one for each parameter."""
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


def _is_public(label: Any) -> bool:
    return all(one == PUBLIC for one in label) if isinstance(label, tuple) else label == PUBLIC


def _origin_of(weight: fx.Node) -> _Made:
    made = _Made(weight, False)
    while made.source.op == "call_function":
        step = step_back(made.source)
        if step is None:
            break
        made = _Made(step[0], made.turned ^ step[1])
    return made


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
        outside = dict.fromkeys(m for n in inner for m in n.all_input_nodes if m not in made)
        env: dict[fx.Node, Any] = {n: number_of(n, sums.size) for n in outside}
        self.reads = tuple(n for n, number in env.items() if number is None)
        at = {row: graph.placeholder(f"weight{row}") for row in self.rows}
        env |= {n: graph.placeholder(n.name) for n in self.reads}
        for n in inner:
            if n.op == "placeholder":
                (row,) = made[n]
                env[n] = at[row]
            else:
                copy_node(graph, env, n, _PULLED)
        graph.output(env[source])
        self._run, self._sums = flat_function(graph), sums

    def __call__(self, form: Form, values: list[Tensor]) -> list[tuple[int, Form]]:
        weights = [self._sums.weight(row) for row in self.rows]
        out, back = torch.func.vjp(lambda *given: self._run(*given, *values), *weights)
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
    needed = needed_for([node for _, node in program.updates])
    graph, env, places, constants = inputs_for(program, needed)
    for node in program.module.graph.nodes:
        if node not in needed or node in env:
            continue
        if node in labels and not _is_public(labels[node]):
            raise Unknown(f"{node.target} is not public, and a buffer is made of it")
        if node.op == "call_function":
            copy_node(graph, env, node)
    graph.output(tuple(env[node] for _, node in program.updates))
    run, names = flat_function(graph), [name for name, _ in program.updates]

    def updates() -> list[tuple[str, Tensor]]:
        with torch.no_grad():
            found = run(*(program.tensor(p).detach() for p in places), *constants)
        return list(zip(names, found, strict=True))

    return updates


def _tap(out: Any) -> GradientEdge | Tensor:
    """Where the gradient of a site's output arrives, at which the backward pass ends or passes by.

    An edge keeps no tensor; a leaf's would.
    """
    tensor = out[0] if isinstance(out, tuple | list) else out
    if not tensor.requires_grad:
        tensor.requires_grad_()
    return tensor if tensor.is_leaf else get_gradient_edge(tensor)


def losses_of(passed: Passed) -> Tensor:
    """(size,), or (size, losses) of several."""
    return passed.losses[0] if len(passed.losses) == 1 else torch.stack(passed.losses, 1)
