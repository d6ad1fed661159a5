"""Forward and backward pass as one graph of plain operations, for a compiler.

The engine's own passes are traced: layers note what they read, the plan says where gradients are
taken, and no gradient of a weight is formed. What comes out is, for each layer, what it read and
the gradient of its output. Forms, norms, factors and sums are made from that as ever, by code that
is not compiled: whatever a compiler makes of the passes, every row's gradient is clipped by the
norm of what is added.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, partialmethod
from threading import Lock, get_ident
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.utils import _pytree as tree

from tightrope.train.feed import tensors_of, with_tensors
from tightrope.train.gradients.arrivals import Way, backward_pass
from tightrope.train.gradients.forms import Dense
from tightrope.train.gradients.forms.base import full_precision
from tightrope.train.gradients.kernels import plain_only
from tightrope.train.gradients.moved import CannotTrace, refuse_moves
from tightrope.train.gradients.owners import Owners
from tightrope.train.gradients.passes import Found, Grads, Work, all_grads, shrinks, together
from tightrope.train.gradients.recorder import Use
from tightrope.train.gradients.rewritten import rewrite
from tightrope.train.gradients.rules import normalisation
from tightrope.train.gradients.rules.base import positions
from tightrope.train.gradients.rules.linear import linear, transposed_linear

__all__ = [
    "CannotTrace",
    "Left",
    "Traced",
    "capture_unseen",
    "left_by",
    "refuse_inside_trace",
    "said_to_compile",
]

# What a layer leaves behind: how its forms are made, from which values, on how many rows it ran.
Left = tuple[Callable[..., Found], tuple[Tensor, ...], dict[str, Any], int]

# Outputs may lie in memory as the compiler likes best: every form reads strides.
_OPTIONS = {"keep_output_stride": False}


def refuse_inside_trace() -> None:
    """A plan is made by looking at values, of which a trace has none."""
    if get_proxy_mode() is not None:
        raise CannotTrace("traced, the model takes other ways than it took before")


def left_by(work: Work) -> list[Left]:
    """What all layers and broadcast parameters leave behind, after one backward pass.

    The few sums of norm layers and of broadcast parameters are formed on the way.
    """
    if work.direct:
        raise CannotTrace("parameters of a single example are differentiated as a whole")
    left: list[Left] = []

    def arrived(use: Use, *grads: Tensor | None) -> None:
        left.extend(_of_use(use, list(grads)))

    def entered(way: Way, g: Tensor | None) -> None:
        left.extend(_of_way(way, g, work.owners.rows))

    backward_pass(work, arrived, entered, early=partial(shrinks, thorough=True), keep=False)
    return left


def _of_way(way: Way, g: Tensor | None, rows: int) -> list[Left]:
    if g is None:
        return []
    parameter = way[0].parameter
    values = full_precision(way[1].gradients(parameter, g))
    return [(partial(_written, parameter), (values,), {}, rows)]


def _of_use(use: Use, grads: Grads) -> list[Left]:
    if all(g is None for g in grads):  # the losses do not depend on it
        return []
    use.check_unchanged()
    values, rows = (*use.inputs, *all_grads(use, grads)), use.rows[0]
    if use.rule not in normalisation.ALL:
        return [(partial(use.rule, use.owner), _as_read(use, values), use.keywords, rows)]
    found = use.rule(use.owner, *values)  # its few sums need not wait for the end
    return [(partial(_written, parameter), (form.values,), {}, rows) for parameter, form in found]


def _as_read(use: Use, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Images that a linear layer read come out as rows of positions.

    As images a compiler lays them out for convolutions: a copy beside what the layer itself
    multiplies, and of that another one for its form.
    """
    if use.rule not in (linear, transposed_linear) or values[0].dim() <= 3:
        return values
    return tuple(map(positions, values))


def _written(parameter: nn.Parameter, values: Tensor) -> Found:
    return [(parameter, Dense(values))]


@final
class Traced:
    """Call it with a batch of the shapes it was traced with; compile() makes that faster."""

    def __init__(
        self,
        losses: Callable[..., Tensor],
        back: Callable[[Tensor], list[Left]],
        batch: tuple[Any, ...],
        held: set[int],
    ) -> None:
        """held: addresses of the model's buffers."""
        self._batch, self._losses, self._back = batch, losses, back
        self._makers: list[tuple[Callable[..., Found], int]] = []
        self._leaves: list[Any] = []
        self._spec: Any = None
        torch.clear_autocast_cache()  # weights cast outside would never be cast again
        try:
            with _nothing_read():
                self._run: Callable[..., Any] = make_fx(self._passes)(*tensors_of(batch))
        finally:
            torch.clear_autocast_cache()
        refuse_moves(self._run, len(tensors_of(batch)[0]), held)
        rewrite(self._run)

    def _passes(self, *inputs: Tensor) -> list[Tensor]:
        """What is traced: the losses, then all values that layers leave behind."""
        losses = self._losses(*with_tensors(self._batch, inputs))
        before = len(_operations())
        with plain_only():
            left = self._back(losses)
        if any(_draws(node) for node in _operations()[before:]):
            raise CannotTrace(
                "random numbers are drawn in the backward pass (by activation checkpointing), "
                "which a compiled pass would not draw again as they were"
            )
        self._makers = [(make, rows) for make, _, _, rows in left]
        leaves, self._spec = tree.tree_flatten([(own, keywords) for _, own, keywords, _ in left])
        _refuse_objects(leaves)
        self._leaves = [_OUT if _comes_out(leaf) else leaf for leaf in leaves]
        return [losses.detach(), *(leaf for leaf in leaves if _comes_out(leaf))]

    def compile(self) -> None:
        """By torch's compiler, once."""
        import torch._inductor as inductor  # takes seconds

        given: Any = tensors_of(self._batch)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler's, about itself
            self._run = inductor.compile(self._run, given, options=_OPTIONS)  # type: ignore[arg-type]

    def __call__(self, batch: tuple[Any, ...], views: int = 1) -> tuple[Tensor, Found]:
        """Losses, and the forms of all examples; views: rows of the model for each of them."""
        losses, *values = self._run(*tensors_of(batch))
        left = deque(self._left(values))
        values.clear()
        found, owners = list[Any](), Owners(len(losses), views)
        for make, rows in self._makers:
            own, keywords = left.popleft()
            found += together(make(*own, **keywords), owners, rows)
        return losses, found

    def _left(self, values: list[Tensor]) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """What each maker is called with."""
        out = iter(values)
        leaves = [next(out) if leaf is _OUT else leaf for leaf in self._leaves]
        return tree.tree_unflatten(leaves, self._spec)


@contextmanager
def _nothing_read() -> Iterator[None]:
    """Values that Python reads would be the same in every later step."""
    own = {name: Tensor.__dict__.get(name) for name in ("tolist", "numpy", "__array__")}
    try:
        for name in own:
            setattr(Tensor, name, partialmethod(_refused, getattr(Tensor, name), get_ident()))
        yield
    finally:
        for name, method in own.items():
            delattr(Tensor, name) if method is None else setattr(Tensor, name, method)


def _refused(tensor: Tensor, method: Any, thread: int, *args: Any, **named: Any) -> Any:
    """In this thread alone: others may read what they like."""
    if get_ident() != thread:
        return method(tensor, *args, **named)
    raise CannotTrace("values of a tensor are read on the way (tolist, numpy)")


@contextmanager
def said_to_compile() -> Iterator[None]:
    """Models that ask whether they are compiled hear yes. Some then ask for no values."""
    with _told(torch.compiler, "_is_compiling_flag", True):
        yield


@contextmanager
def capture_unseen() -> Iterator[None]:
    """Models that ask whether they are captured hear no; torch.cuda.graphs knows the truth."""
    with _told(torch.cuda, "is_current_stream_capturing", lambda: False):
        yield


_telling = Lock()
_before: dict[str, list[Any]] = {}  # how many say something else, and what was there before them


@contextmanager
def _told(module: Any, name: str, said: Any) -> Iterator[None]:
    """What was there comes back when the last one leaves: threads do not leave in order."""
    with _telling:
        held = _before.setdefault(name, [0, getattr(module, name)])
        held[0] += 1
        setattr(module, name, said)
    try:
        yield
    finally:
        with _telling:
            held[0] -= 1
            if held[0] == 0:
                setattr(module, name, _before.pop(name)[1])


_PLAIN = (Tensor, bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_OUT = object()  # stands for a value that comes out of the graph


def _comes_out(leaf: Any) -> bool:
    """A value of the batch; parameters are what they are."""
    return isinstance(leaf, Tensor) and not isinstance(leaf, nn.Parameter)


def _refuse_objects(leaves: list[Any]) -> None:
    """What may hold values of this batch would be the same in every later one."""
    for leaf in leaves:
        if not isinstance(leaf, _PLAIN):
            raise CannotTrace(f"a module of the model's own is given a {type(leaf).__name__}")


def _operations() -> list[Any]:
    mode: Any = get_proxy_mode()
    return list(mode.tracer.graph.nodes)


def _draws(node: Any) -> bool:
    """Attention's backward pass is told the seed of its forward pass."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    return all(argument.name != "philox_seed" for argument in node.target._schema.arguments)
