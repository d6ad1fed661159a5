"""Without a proof: the gradient of one example's loss, mapped over the examples by `vmap`.

The gradient of one example is traced first, on tensors without values, to a graph of PyTorch's own
operators that write to nothing. Only this graph is mapped, so no Python of the user's sees a batch,
and by the meaning of `vmap` no example reaches another. Random numbers are drawn for each example.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, final

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.train.clip import Clip
from tightrope.train.executors.plain import Parameters, filled_up, nothing, tensors_in
from tightrope.train.gradients.batch import ClippedBatch, sum_of_forms
from tightrope.train.gradients.forms import Dense, Form, blocked_squares, scratch_scope
from tightrope.train.gradients.rounding import full_precision, no_autocast
from tightrope.train.program.capture import flatten
from tightrope.train.program.labels import NotCaptured

aten = torch.ops.aten
_MOST = 2**26  # values of written-out gradients at a time


class _Loss(nn.Module):
    """The loss as a module, so that the model's weights can be given to it."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.loss, self.training = model, loss, model.training

    def forward(self, *batch: Any) -> Any:
        return self.loss(self.model, *batch)


@final
class Mapped:
    """Clipped sums of batches of up to `size` rows of the shapes of `example`."""

    how = "vmap"

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        example: tuple[Any, ...],
        size: int,
        parameters: list[nn.Parameter],
        public: Sequence[Tensor] = (),
    ) -> None:
        self.size, self.parameters = size, list(parameters)
        wrapped = _Loss(model, loss)
        trained = {id(p): name for name, p in wrapped.named_parameters()}
        names = [trained[id(p)] for p in self.parameters]
        others = {**dict(wrapped.named_parameters()), **dict(wrapped.named_buffers())}
        others = {name: value for name, value in others.items() if name not in names}
        self._others = list(others.values())
        values = sum(p.numel() for p in self.parameters)
        self._rows = max(1, min(size, _MOST // max(1, values)))  # at a time
        leaves, build = flatten(example)

        def one(weights: list[Tensor], rest: list[Tensor], row: list[Tensor]) -> Any:
            own = build([value.unsqueeze(0) for value in row])
            tensors = dict(zip([*names, *others], [*weights, *rest], strict=True))
            return torch.func.functional_call(wrapped, tensors, own).reshape(())

        weights = [p.detach() for p in self.parameters]
        rest = [value.detach() for value in self._others]
        blank = [leaf.new_zeros((self._rows, *leaf.shape[1:])) for leaf in leaves]
        given = (weights, rest, [x[0] for x in blank])
        try:
            with no_autocast(self.parameters[0].device):
                single = make_fx(torch.func.grad_and_value(one), tracing_mode="fake")(*given)
                single = make_fx(torch.func.functionalize(single), tracing_mode="fake")(*given)
                _check_closed(single, public)
                mapped = torch.func.vmap(single, in_dims=(None, None, 0), randomness="different")
                graph = make_fx(mapped, tracing_mode="fake")(weights, rest, blank)
        except NotCaptured:
            raise
        except Exception as error:
            why = str(error).strip().splitlines() or [type(error).__name__]
            raise NotCaptured(
                f"The loss of one example cannot be mapped over the examples by vmap: {why[0]} "
                'Give isolation="one at a time" to run it on one example after another.'
            ) from error
        graph.graph.eliminate_dead_code()
        graph.recompile()
        self._graph = graph

    def clipped_sum(
        self, batch: tuple[Any, ...], clip: Clip, chain: int
    ) -> tuple[ClippedBatch, Tensor]:
        """batch: the arguments of the loss, of n <= size rows; with the losses of its rows."""
        leaves, rows = tensors_in(batch, self.size)
        if rows == 0:
            return nothing(self.parameters, leaves)
        whole = ceil(self.size / self._rows) * self._rows  # always as many, whatever was drawn
        leaves, present = filled_up(leaves, rows, whole)
        parts, losses = list[ClippedBatch](), list[Tensor]()
        for start in range(0, whole, self._rows):
            here = slice(start, start + self._rows)
            there = None if present is None else present[here]
            with torch.no_grad(), no_autocast(leaves[0].device), scratch_scope():
                gradients, loss = self._graph(
                    [p.detach() for p in self.parameters],
                    [t.detach() for t in self._others],
                    [leaf[here] for leaf in leaves],
                )
                forms: dict[int, Form] = {row: Dense(g) for row, g in enumerate(gradients)}
                del gradients
                part = sum_of_forms(forms, self.parameters, self._rows, there, clip, chain)
            parts.append(part)
            losses.append(loss)
        return add_parts(parts, rows), torch.cat(losses)[:rows]


def _check_closed(single: fx.GraphModule, public: Sequence[Tensor]) -> None:
    """The graph of one example: operators of PyTorch's own, which write to nothing.

    An operator of another library may have a rule of its own for several examples at once. What is
    written to a buffer would carry something of one batch to the next. The loss is written without
    writes to memory before, so that a write through a view is seen too.
    """
    for node in single.graph.nodes:
        if node.op == "get_attr":
            users = {user.target for user in node.users}
            literal = users <= {aten.lift_fresh_copy.default, aten.lift_fresh.default}
            value = getattr(single, str(node.target))
            known = any(value is given for given in public)
            if not (literal or known or (isinstance(value, Tensor) and value.numel() == 1)):
                raise NotCaptured(
                    "The loss uses a tensor from outside, which may hold data. If it does not "
                    "depend on the examples, make it a buffer of the model with register_buffer, "
                    "or pass it in public=[...].",
                    final=True,
                )
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if getattr(node.target, "namespace", "") not in ("aten", "prims"):
            raise NotCaptured(
                f"The loss uses {node.target}, which is no operator of PyTorch's own, so it is not "
                'known to treat each example alone under vmap. Give isolation="one at a time".'
            )
        if node.target._schema.is_mutable:
            raise NotCaptured(
                f"The loss writes to a buffer or a weight of the model ({node.target}), which "
                "would carry something from one example to the next. Freeze the layer that does "
                "it (evaluation mode), or use one without buffers."
            )


def add_parts(parts: list[ClippedBatch], rows: int) -> ClippedBatch:
    """The batch whose parts were clipped one after another; sums of parts are added in float64."""
    if len(parts) == 1:
        sums = parts[0].sums
    else:
        columns = zip(*(part.sums for part in parts), strict=True)
        sums = tuple(torch.stack(c).sum(0, dtype=torch.float64).to(c[0].dtype) for c in columns)
    squares = torch.cat([part.squared_norms for part in parts])[:rows]
    factors = torch.cat([part.factors for part in parts], dim=1)[:, :rows]
    return ClippedBatch(sums, rows, squares, factors, int((~squares.isfinite()).sum()))


@final
class OneAtATime:
    """Clipped sums of batches of up to `size` rows; contributions are added in float64."""

    how = "one at a time"

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        size: int,
        parameters: list[nn.Parameter],
    ) -> None:
        self.size, self.parameters = size, list(parameters)
        self._model, self._loss = model, loss
        self._buffers = list(model.buffers())

    def clipped_sum(
        self, batch: tuple[Any, ...], clip: Clip, chain: int
    ) -> tuple[ClippedBatch, Tensor]:
        """batch: the arguments of the loss, of n <= size rows; with the losses of its rows."""
        leaves, rows = tensors_in(batch, self.size)
        build = flatten(batch)[1]
        if rows == 0:
            return nothing(self.parameters, leaves)
        totals = [torch.zeros_like(p, dtype=torch.float64) for p in self.parameters]
        squares, factors, losses = list[Tensor](), list[Tensor](), list[Tensor]()
        for row in range(rows):
            one = build([leaf[row : row + 1] for leaf in leaves])
            versions = [buffer._version for buffer in self._buffers]
            loss, found = gradients_of_one(self._model, self._loss, one, self.parameters)
            if versions != [buffer._version for buffer in self._buffers]:
                raise ModelNotPrivate(
                    "The loss wrote to a buffer of the model, which carries something from one "
                    "example to the next. Freeze the layer that does it (evaluation mode), or use "
                    "one without buffers, such as GroupNorm or LayerNorm."
                )
            square, factor = _add(totals, found, clip)
            squares.append(square)
            factors.append(factor)
            losses.append(loss)
        whole = torch.cat(squares)
        sums = tuple(
            total.to(torch.promote_types(p.dtype, torch.float32))
            for total, p in zip(totals, self.parameters, strict=True)
        )
        dropped = int((~whole.isfinite()).sum())
        return ClippedBatch(sums, rows, whole, torch.cat(factors, 1), dropped), torch.cat(losses)


def gradients_of_one(
    model: nn.Module,
    loss: Callable[..., Any],
    one: tuple[Any, ...],
    parameters: Parameters,
) -> tuple[Tensor, list[Tensor | None]]:
    """The loss (1,) of a batch of one example, and its gradients; None where it has none.

    Of several losses, each is differentiated by its own parameters, and the last is returned.
    """
    groups = parameters if isinstance(parameters, Mapping) else {"loss": parameters}
    gradients = list[Tensor | None]()
    with torch.enable_grad():
        found = loss(model, *one)
        if not isinstance(parameters, Mapping):
            found = {"loss": next(iter(found.values())) if isinstance(found, dict) else found}
        for name, own in groups.items():
            value = found[name]
            if not isinstance(value, Tensor) or value.shape != (1,):
                came = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise InvalidInput(
                    f"The loss of one example must be a tensor of shape (1,); got {came}. Return "
                    'one loss for each example, as with reduction="none".'
                )
            if not value.requires_grad:
                gradients += [None] * len(own)
                continue
            gradients += torch.autograd.grad(
                value.sum(), list(own), allow_unused=True, retain_graph=len(groups) > 1
            )
    return value.detach(), [
        None if g is None else g.to_dense() if g.is_sparse else g for g in gradients
    ]


@torch.no_grad()
def _add(totals: list[Tensor], found: list[Tensor | None], clip: Clip) -> tuple[Tensor, Tensor]:
    """Add the clipped gradient of an example; its squared norm (1,) and factors (*, 1)."""
    squares = torch.zeros(len(totals), 1, dtype=torch.float64, device=totals[0].device)
    for row, g in enumerate(found):
        if g is not None:
            squares[row] = blocked_squares(full_precision(g)[None]).double()
    total = squares.sum(0)
    if not bool(total.isfinite()):
        count = len(totals) if clip.per_parameter else 1
        return total.new_full((1,), torch.inf), total.new_zeros(count, 1)
    factors = clip.factors(squares if clip.per_parameter else total[None])
    for row, g in enumerate(found):
        if g is not None:
            totals[row].add_(g.double() * factors[row if clip.per_parameter else 0, 0])
    return total, factors
