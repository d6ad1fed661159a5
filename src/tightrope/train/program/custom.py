"""Backward passes of the user's own: `torch.autograd.Function` and hooks on tensors.

torch.export keeps the forward pass of such a function and drops its backward pass without a word.
So each call becomes a node of its own while the loss is exported. Its forward and its backward
pass are then traced apart, on tensors without values, and both graphs are proved by the same table:
the gradient of rows must come out as rows in the same place. What runs are these two graphs, never
the Python of the user. A hook on a tensor is an identity with a backward pass of its own.
"""

from __future__ import annotations

import itertools
import operator
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import _checkpoint_hook

from tightrope.train.program.labels import PUBLIC, Label, Mixes, NotCaptured, Refusal, Rows
from tightrope.train.program.lines import Lines, line_of, users_line, where

if TYPE_CHECKING:
    from tightrope.train.program.proof import Proof

_number = itertools.count()
calls: dict[Any, _Call] = {}  # those of the loss that was exported last, by their operator
_thread: int | None = None  # the thread that captures
_inside = False  # an operator of ours is being called: torch.library uses a Function of its own


class OwnFunction:
    """One call of a Function. Its tensors are arguments of the node; all else is fixed.

    forward: a graph from the tensors to the outputs. backward: a graph from the tensors and the
    gradients of the outputs to the gradients of the tensors, None where there is none.
    """

    def __init__(self, name: str, forward: fx.GraphModule, backward: fx.GraphModule) -> None:
        self.name, self.forward, self.backward = name, forward, backward
        self.__name__ = "own_function"  # fx names nodes after their target

    def __str__(self) -> str:
        return self.name

    def __call__(self, xs: list[Tensor]) -> list[Tensor]:
        return list(_Proved.apply(self, *xs))

    def prove(self, proof: Proof, node: fx.Node) -> Label:
        """Labels of the outputs; refused if either pass lets examples meet."""
        tensors: Any = node.args[0]
        given = [proof.labels[x] for x in tensors]
        given = [label if isinstance(label, Rows) else PUBLIC for label in given]
        line = line_of(node)
        outs = self._labels(proof, self.forward, given, "forward", line)
        if all(label == PUBLIC for label in given):
            return tuple(outs)  # a function of weights: its gradient is each example's own
        for out, value in zip(outs, node.meta["val"], strict=True):
            if (value.is_floating_point() or value.is_complex()) and not isinstance(out, Rows):
                # Its gradient would be a sum over examples, and could reach the rows.
                raise Mixes(f"{self.name}.forward returns a public tensor beside those of examples")
        grads = self._labels(proof, self.backward, [*given, *outs], "backward", line)
        for label, grad in zip(given, grads, strict=True):
            if label == PUBLIC and grad is not None:
                raise Mixes(
                    f"{self.name}.backward returns one gradient of a weight for all examples",
                    "Write the part that uses the weight with torch's own operators.",
                )
            if isinstance(label, Rows) and grad not in (label, None):
                # Public numbers, too, may differ from row to row.
                raise Mixes(f"{self.name}.backward returns gradients in another place")
        return tuple(outs)

    def _labels(
        self, proof: Proof, graph: fx.GraphModule, given: list[Label], which: str, line: str
    ) -> list[Any]:
        inner = type(proof)(proof.batch, symbolic=False, made_rows=proof.made_rows)
        arguments = iter(given)
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                inner.labels[node] = next(arguments)
            elif node.op == "get_attr":
                inner.labels[node] = PUBLIC  # one number (trace_own_functions)
            elif node.op == "call_function":
                try:
                    inner.visit(node)
                except Refusal as refusal:
                    at = where(node, f"{self.name}.{which}", line)
                    raise type(refusal)(refusal.why, refusal.do, at) from None
        (output,) = graph.graph.find_nodes(op="output")
        return [None if n is None else inner.labels[n] for n in output.args[0]]


class _Proved(torch.autograd.Function):
    """Runs the two graphs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(function: OwnFunction, *xs: Tensor) -> tuple[Tensor, ...]:
        return tuple(function.forward(*xs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.function = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return (None, *ctx.function.backward(*ctx.saved_tensors, *grads))


# While the loss is exported.


class _Call:
    """A call as the user wrote it: its Python is run to trace it, and never again."""

    def __init__(self, function: Any, args: tuple[Any, ...], name: str, hook: bool = False) -> None:
        self.function, self.name, self.hook = _with_lines(function), name, hook
        line = users_line(sys._getframe(1))
        self.place = f"{name} at {line}" if line else name
        self.args = [None if isinstance(a, Tensor) else a for a in args]
        self.at = [i for i, a in enumerate(args) if isinstance(a, Tensor)]
        if any(isinstance(x, Tensor) for x in pytree.tree_leaves(self.args)):
            raise NotCaptured(
                f"{self.place} gets tensors in a list or a dictionary. Pass each tensor as an "
                "argument of its own: the proof follows arguments one by one."
            )
        self.alone = True  # whether it returned one tensor, not a tuple
        made = torch.library.custom_op(
            f"tightrope::own{next(_number)}",
            self.forward,
            mutates_args=(),
            schema="(Tensor[] xs) -> Tensor[]",
        )
        made.register_fake(self.forward)
        if hook:
            fx.node.has_side_effect(made._opoverload)  # its result is used by nothing yet
        calls[made._opoverload] = self
        self.operator = made._opoverload

    def apply(self, xs: list[Tensor]) -> list[Tensor]:
        args = list(self.args)
        for i, x in zip(self.at, xs, strict=True):
            args[i] = x
        out = _original(self.function, *args)
        self.alone = isinstance(out, Tensor)
        return [out] if self.alone else list(out)

    def forward(self, xs: list[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            return [y.clone() for y in self.apply(xs)]

    def backward(self, xs: list[Tensor], tops: list[Tensor]) -> list[Tensor | None]:
        """Gradients of the tensors, None where there is none, from those of the outputs."""
        leaves = [x.detach().requires_grad_(_has_gradient(x)) for x in xs]
        with torch.enable_grad():
            ys = self.apply(leaves)
        pairs = [(y, g) for y, g in zip(ys, tops, strict=True) if y.requires_grad]
        if not pairs:
            return [None] * len(xs)
        wanted = [x for x in leaves if x.requires_grad]
        outs, given = zip(*pairs, strict=True)
        grads = iter(torch.autograd.grad(outs, wanted, given, allow_unused=True))
        return [next(grads) if x.requires_grad else None for x in leaves]

    def run(self, xs: list[Tensor]) -> Any:
        """As a node of the graph that is being exported."""
        global _inside
        _inside = True
        try:
            out = self.operator(xs)
        finally:
            _inside = False
        return out[0] if self.alone else tuple(out)

    def traced(self, examples: list[Tensor]) -> OwnFunction:
        """Both passes as graphs, from tensors of the right shapes."""
        count, outs = len(examples), self.forward(examples)
        graphs = [
            make_fx(lambda *xs: self.forward([x.view_as(x) for x in xs]))(*examples),
            make_fx(lambda *xs: self.backward([*xs[:count]], [*xs[count:]]))(
                *examples, *map(torch.zeros_like, outs)
            ),
        ]
        for graph in graphs:
            graph.graph.eliminate_dead_code()
            graph.recompile()
            for node in graph.graph.nodes:
                if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                    raise NotCaptured(
                        f"{self.place} draws random numbers. Draw them outside and pass them as "
                        "an argument: forward and backward must see the same ones."
                    )
                if node.op == "get_attr" and getattr(graph, node.target).numel() > 1:
                    raise NotCaptured(
                        f"{self.place} uses a tensor that is not one of its arguments. Pass it as "
                        "one."
                    )
        return OwnFunction(self.name, *graphs)


def _has_gradient(x: Tensor) -> bool:
    return x.is_floating_point() or x.is_complex()


def _with_lines(function: Any) -> Any:
    """The same Function; operators of its backward pass are marked with the user's lines."""
    if function.backward is torch.autograd.Function.backward:
        return function  # it defines vjp instead

    class Marked(function):  # type: ignore[misc]
        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            with Lines():  # not entered where autograd calls the backward pass
                return function.backward(ctx, *grads)

    return Marked


# What stands for parts of torch meanwhile.


def _apply_function(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Function.apply."""
    if _inside or threading.get_ident() != _thread:
        return _original(cls, *args, **kwargs)
    if cls.__name__ == "CheckpointFunction":
        raise NotCaptured(
            "Checkpointing with use_reentrant=True cannot be captured. Pass use_reentrant=False."
        )
    if kwargs:
        raise NotCaptured(f"{cls.__name__}.apply gets keyword arguments. Pass them by place.")
    call = _Call(cls, args, cls.__name__)
    return call.run([args[i] for i in call.at])


def _register_hook(tensor: Tensor, hook: Callable[[Tensor], Tensor | None]) -> Any:
    """Tensor.register_hook: a Function that returns its argument, with the hook as its way back."""
    name = f"the hook {getattr(hook, '__name__', type(hook).__name__)}"
    if isinstance(tensor, torch.nn.Parameter):
        raise NotCaptured(
            f"{name} on a parameter would change the gradient of a whole batch. Remove it: the "
            "run clips and adds noise to gradients of single examples.",
            final=True,
        )

    class Hook(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
            new = hook(g)
            return g if new is None else new

    def cannot_remove() -> None:
        raise NotCaptured(
            "A hook on a tensor is removed within the loss. Leave it, or do not add it."
        )

    _Call(Hook, (tensor,), name, hook=True).run([tensor])
    return SimpleNamespace(remove=cannot_remove)


def _refuse_post_hook(*_: Any, **__: Any) -> Any:
    raise NotCaptured(
        "A hook that runs after a gradient is stored changes the gradient of a whole batch. "
        "Remove it.",
        final=True,
    )


OWN_SAVED_VALUES = (
    "The loss exchanges the values that are saved for the way back (saved_tensors_hooks). The "
    "captured program would not do so. Leave that out; checkpoint and save_on_cpu may stay."
)


def _enter_saved(hooks: Any) -> None:
    # These two give back what was saved, so the program is the same without them.
    if type(hooks) not in (_checkpoint_hook, save_on_cpu):
        raise NotCaptured(OWN_SAVED_VALUES)


# `Function.apply` is one Python function. Its code is replaced, not the attribute: a model may have
# bound `f = MyFunction.apply` before.
_apply: Any = torch.autograd.Function.__dict__["apply"].__func__
_code = _apply.__code__
_original: Any = types.FunctionType(_code, _apply.__globals__, "apply", None, _apply.__closure__)


def _code_that_records() -> Any:
    __class__: Any = (
        torch.autograd.Function
    )  # the replaced code has this cell, so this one needs it

    def apply(cls, *args, **kwargs):  # type: ignore[no-untyped-def]
        from tightrope.train.program.custom import _apply_function

        return _apply_function(cls, *args, **kwargs) if __class__ else None

    return apply.__code__


@contextmanager
def kept_as_nodes() -> Iterator[None]:
    """While the loss is exported: Functions and hooks become operators of their own."""
    global _thread
    instead: list[tuple[Any, str, Any]] = [
        (_apply, "__code__", _code_that_records()),
        (Tensor, "register_hook", _register_hook),
        (Tensor, "register_post_accumulate_grad_hook", _refuse_post_hook),
        (saved_tensors_hooks, "__enter__", _enter_saved),
        (saved_tensors_hooks, "__exit__", lambda *_: None),
    ]
    kept = [getattr(owner, name) for owner, name, _ in instead]
    calls.clear()
    _thread = threading.get_ident()
    try:
        for owner, name, new in instead:
            setattr(owner, name, new)
        yield
    finally:
        for (owner, name, _), old in zip(instead, kept, strict=True):
            setattr(owner, name, old)
        _thread = None


def trace_own_functions(module: fx.GraphModule) -> None:
    """Replace the operators of recorded calls by their traced passes; hooks get all later uses."""
    for node in list(module.graph.nodes):
        call = calls.get(node.target)
        if call is None:
            continue
        with FakeTensorMode(), Lines():
            examples = [
                torch.empty([int(n) for n in v.shape], dtype=v.dtype, device=v.device)
                for v in (x.meta["val"] for x in node.args[0])
            ]
            try:
                node.target = call.traced(examples)
            except NotCaptured:
                raise
            except Exception as error:
                why = str(error).strip().split("\n")[0]
                raise NotCaptured(
                    f"{call.place} cannot be written as two graphs ({why}). Its forward and "
                    "backward may use torch's operators only, without reading values."
                ) from error
        if call.hook:
            source = node.args[0][0]
            users = [u for u in source.users if u is not node]
            source.append(node)  # before every use
            with module.graph.inserting_after(node):
                out = module.graph.call_function(operator.getitem, (node, 0))
            out.meta = dict(source.meta)
            for user in users:
                user.replace_input_with(source, out)
    calls.clear()
    module.recompile()
