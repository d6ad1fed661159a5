"""What the forward pass leaves behind: one `Use` for each time a layer with parameters ran."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
import torch._dynamo
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.held import traceless, untraced

__all__ = [
    "Calls",
    "Recorder",
    "Use",
    "autocast_input",
    "stored_in_half",
    "reading_graphs",
    "unseen",
]

# torch.compile leaves functions marked so alone: they note what ran and are no part of the model.
# `skip` marks the function itself; the public way wraps it, which costs more than what it does.
unseen: Any = getattr(torch._dynamo.decorators, "skip", torch.compiler.disable(recursive=False))

# How many operations autograd has recorded in this thread.
_operations: Any = getattr(torch.autograd, "_get_sequence_nr")  # noqa: B009  not exported

_MOST_FORWARDS = 64

_readers = [0]

Calls = list[tuple[Any, Any]]  # positional and named arguments of the model


@contextmanager
def reading_graphs() -> Iterator[None]:
    """Saved values are read: what a checkpoint then computes again is no new use of a layer."""
    _readers[0] += 1
    try:
        yield
    finally:
        _readers[0] -= 1


@final
class Use:
    """One run of a layer: what went in, and where in the graph its output's gradient appears."""

    __slots__ = (
        "edges", "entered", "half", "inputs", "kept", "keywords", "owner", "rows", "rule",
        "versions",
    )  # fmt: skip

    @unseen
    def __init__(
        self,
        owner: nn.Module,
        rule: Callable[..., Any],
        inputs: tuple[Tensor, ...],
        outputs: tuple[Tensor, ...],
        keywords: dict[str, Any],
        kept: Any = None,
    ) -> None:
        """kept: of a call that is done again, see `again.Kept`."""
        self.owner, self.rule, self.inputs, self.keywords = owner, rule, inputs, keywords
        self.kept = kept
        self.edges: list[GradientEdge] = []
        self.rows: list[int] = []
        for out in outputs:  # no comprehensions: a function call each, at every layer
            self.edges.append(_edge(out))
            self.rows.append(out.shape[0] if out.dim() else 0)
        self.entered: list[tuple[Any, int]] = []  # what the inputs are outputs of
        self.versions: list[int] = []
        for x in inputs:
            self.versions.append(x._version)
            if x.requires_grad:
                node = x.grad_fn
                self.entered.append(_edge(x)[:2] if node is None else (node, x.output_nr))
        # whether a GPU computed it in half precision
        self.half = outputs[0].is_cuda and any(map(stored_in_half, (*inputs, *outputs)))

    def check_unchanged(self) -> None:
        """A value changed in place after the layer read it is not what the layer read."""
        for value, version in zip(self.inputs, self.versions, strict=True):
            if value._version != version:
                raise InvalidInput(
                    f"an input of {type(self.owner).__name__} was changed in place after the layer "
                    "had read it, so its gradient is lost; replace that in-place operation"
                )


@final
class Recorder:
    """Collects uses while a training forward pass runs."""

    def __init__(self, root: nn.Module, awake: Callable[[], bool] | None = None) -> None:
        """awake: asked whether a forward pass counts, where that is not always so."""
        self.root, self._awake = root, awake
        self.uses: list[Use] = []
        self.calls: Calls = []  # what the model itself was called with
        self._autocast = False, torch.float32  # in which precision, on its device
        self.started = 0  # number of the first operation of this batch, as autograd counts
        self._paused = False
        self._again = False
        self._most = _MOST_FORWARDS * sum(1 for _ in root.modules())
        self._own = {id(module): _weights(module) for module in root.modules()}

    @property
    def _kind(self) -> str:
        """Of device."""
        return next((p.device.type for p in self.root.parameters()), "cpu")

    @property
    @unseen
    def paused(self) -> bool:
        return self._paused or _readers[0] > 0

    @paused.setter
    def paused(self, value: bool) -> None:
        self._paused = value

    @property
    @unseen
    def active(self) -> bool:
        if self._paused or _readers[0] > 0:
            return False
        if not (torch.is_grad_enabled() and self.root.training):
            return False
        if self._awake is not None and not self._awake():
            return False
        return self._again or not untraced()

    @unseen
    def note(
        self,
        owner: nn.Module,
        rule: Callable[..., Any],
        inputs: tuple[Tensor, ...],
        outputs: tuple[Tensor, ...],
        kept: Any = None,
        **keywords: Any,
    ) -> None:
        """Remember a use; the edges are taken now, before any in-place change of the outputs."""
        if len(self.uses) >= self._most:
            self._refuse_more()
        for holder, name, own in self._own.get(id(owner), ()):
            if holder.get(name) is not own:
                raise ModelNotPrivate(_EXCHANGED.format(type(owner).__name__, name))
        if not self.uses and not self.calls:  # a part of the model was called by itself
            self.started = _operations()
        self.uses.append(Use(owner, rule, inputs, outputs, keywords, kept))

    @unseen
    def called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model's forward pass is about to begin."""
        if not self.uses and not self.calls:
            self.started = _operations()
        self._autocast = (
            torch.is_autocast_enabled(kind := self._kind),
            torch.get_autocast_dtype(kind),
        )
        self.calls.append((args, kwargs))

    @contextmanager
    def rerun(self) -> Iterator[list[Use]]:
        """The uses of another forward pass, kept apart from those that count."""
        before = self.uses, self.calls, self.paused, self.started
        self.uses, self.calls, self.paused, self._again = [], [], False, True
        try:
            enabled, dtype = self._autocast
            precision = torch.autocast(self._kind, dtype, enabled=enabled)
            with torch.enable_grad(), traceless(self.root), precision:
                yield self.uses
        finally:
            self.uses, self.calls, self.paused, self.started = before
            self._again = False

    def _refuse_more(self) -> None:
        """Forward passes that nobody turns into gradients would fill the memory."""
        self.take()
        raise InvalidInput(
            f"about {_MOST_FORWARDS} training forward passes were recorded without a clipped_sum; "
            "run evaluation under torch.no_grad() or in model.eval()"
        )

    def take(self) -> list[Use]:
        """All uses since the last call."""
        uses, self.uses = self.uses, []
        self.calls = []
        return uses


def _weights(module: nn.Module) -> list[tuple[dict[str, Any], str, Any]]:
    """What a layer applies: its parameters, and in attention those of its parts."""
    inside = module.modules() if isinstance(module, nn.MultiheadAttention) else [module]
    return [(m._parameters, name, p) for m in inside for name, p in m._parameters.items()]


_EXCHANGED = (
    "{} ran with another `{}` than the one it had when the run was made (by "
    "torch.func.functional_call, or a weight that was assigned anew), so the gradient of what is "
    "trained is not known. Train the layer's own parameter, or pass gradients=OneByOne(model)."
)


@unseen
def stored_in_half(value: Tensor) -> bool:
    """Is it a floating-point number of less than 32 bits?"""
    return value.is_floating_point() and value.dtype.itemsize < 4


@unseen
def _edge(value: Tensor) -> GradientEdge:
    node = value.grad_fn
    return get_gradient_edge(value) if node is None else GradientEdge(node, value.output_nr)


def autocast_input(x: Tensor) -> Tensor:
    """x as an autocast matrix product reads it, so that the product's own operand is stored."""
    kind = x.device.type
    if x.dtype is torch.float32 and torch.is_autocast_enabled(kind):
        return x.to(torch.get_autocast_dtype(kind))
    return x
