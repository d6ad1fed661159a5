"""The program's forward and backward pass as one graph, through torch's compiler.

What is compiled ends where each site has stored what its forms are made of (`gradients.sums`).
Norms, factors and sums are computed from that by code that is not compiled: whatever a compiler
makes of the passes, every example's gradient is clipped by the norm of what is added.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree  # no public name for it yet

from tightrope.errors import InvalidInput
from tightrope.train.executors.plain import Parameters, Plain
from tightrope.train.gradients.rounding import no_autocast, plain_only
from tightrope.train.gradients.sums import ClippedSums, Passed
from tightrope.train.program.capture import Program

aten = torch.ops.aten
# Outputs may lie in memory as the compiler likes best: every form reads strides.
_OPTIONS = {"keep_output_stride": False}


@final
class Compiled(Plain):
    """As `Plain`, with both passes compiled when it is made, once, for batches of `size` rows."""

    how = "compiled"

    def __init__(
        self, program: Program, labels: dict[fx.Node, Any], size: int, parameters: Parameters
    ) -> None:
        super().__init__(program, labels, size, parameters)
        self._traced = TracedPasses(self.sums, compiled=True)

    def passes(self, leaves: list[Tensor]) -> Passed:
        return self._traced(leaves)


@final
class TracedPasses:
    """`ClippedSums.passes` as a graph of plain operators on contiguous batches."""

    def __init__(self, sums: ClippedSums, *, compiled: bool) -> None:
        if sums.has_recurrent:
            raise InvalidInput(
                "The program has a recurrent layer, which is one operation after another for each "
                "position; a compiler takes minutes over it. Use the plain executor."
            )
        self._sums = sums
        self._spec: Any = None
        inputs: Any = sums.inputs(sums.blank_leaves())
        with no_autocast(inputs[0].device), plain_only():
            self.graph = make_fx(self._flat, tracing_mode="fake")(*inputs)
        self.graph.graph.eliminate_dead_code()
        rewrite(self.graph)
        self._run: Callable[..., Any] = self.graph
        if compiled:
            import torch._inductor as inductor  # takes seconds

            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the compiler's, about itself
                self._run = inductor.compile(self.graph, inputs, options=_OPTIONS)  # type: ignore[arg-type]

    def _flat(self, *inputs: Tensor) -> list[Tensor]:
        passed = self._sums.passes(*inputs)
        found, self._spec = pytree.tree_flatten((passed.losses, passed.kept, passed.values))
        return [leaf for leaf in found if isinstance(leaf, Tensor)]

    def __call__(self, leaves: Sequence[Tensor]) -> Passed:
        with torch.no_grad(), no_autocast(leaves[0].device):
            found = self._run(*self._sums.inputs([leaf.contiguous() for leaf in leaves]))
        losses, kept, values = pytree.tree_unflatten(list(found), self._spec)
        return Passed(losses, kept, values)


# The traced graph in words that leave a compiler free to lay values out in memory.


def rewrite(module: fx.GraphModule) -> None:
    """In place.

    The gradient at a convolution's input is the transposed convolution that it is: what is left as
    a backward pass keeps the layout that it was traced with, and images would be turned round
    before and after each of them. A view of what is never written to may be a copy: where a
    compiler lays its source out in another way, no view of it can be had.
    """
    for node in module.graph.nodes:
        if node.target is aten.view.default:
            node.target = aten.reshape.default
    for node in list(module.graph.nodes):
        if node.target is aten.convolution_backward.default and _only_input(node):
            with module.graph.inserting_before(node):
                new = module.graph.call_function(aten.convolution.default, _arguments(node))
            for user in list(node.users):
                new.meta = dict(user.meta) if user.args[1] == 0 else new.meta
                user.replace_all_uses_with(new)
                module.graph.erase_node(user)
            module.graph.erase_node(node)
    module.recompile()


def _only_input(node: fx.Node) -> bool:
    *_, transposed, _, _, wanted = node.args
    if transposed or wanted not in ([True, False, False], (True, False, False)):
        return False
    first = [user for user in node.users if user.args[1] == 0]
    others = [user for user in node.users if user not in first]
    if any(u.target is not operator.getitem for u in node.users) or any(u.users for u in others):
        return False
    return all(_value(n).is_contiguous() for n in (*node.args[:3], *first))


def _arguments(node: fx.Node) -> tuple[Any, ...]:
    g, x, weight, _, stride, padding, dilation, _, _, groups, _ = (_value(a) for a in node.args)
    sizes = zip(
        x.shape[2:], g.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True
    )  # fmt: skip
    rest = [n - (m - 1) * s + 2 * p - d * (k - 1) - 1 for n, m, k, s, p, d in sizes]
    return (*node.args[:1], node.args[2], None, stride, padding, dilation, True, rest, groups)


def _value(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument
