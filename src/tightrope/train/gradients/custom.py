"""The general exact way for a module of the user's own: run it again for each example.

The module's inputs and output gradients are known, so the gradient of its own parameters is a
vector-Jacobian product for each example, done for all at once by torch.func. Only the module that
owns the parameter runs again, not the model.

Which arguments carry the batch cannot be read off their shapes: a table may be as long as the
batch. What was found is compared with the gradient of the whole batch under random weights, which
only the right choice can give. An example whose gradient is not finite has no part in that, and
none that is far larger than most hides the others. That is done for every call of a plan, when it
is made and whenever a batch is looked at again: the module may begin to mix rows, or be called in
another way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tightrope.errors import ModelNotPrivate
from tightrope.train.gradients.again import Kept, no_values
from tightrope.train.gradients.custom_call import Batched, Call, own_parameters
from tightrope.train.gradients.draws import python_draws
from tightrope.train.gradients.forms import Dense
from tightrope.train.gradients.forms.base import scale_examples, zero_examples
from tightrope.train.gradients.rules.base import Forms

__all__ = ["custom_rule"]

# Relative difference that is rounding, in single and in half precision.
_ROUNDING, _HALF_ROUNDING = 1e-3, 3e-2


def custom_rule(
    module: nn.Module,
    *values: Tensor,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    wanted: tuple[int, ...],
    autocast: tuple[str, bool, torch.dtype],
    known: set[Batched],
    kept: Kept | None,
) -> Forms:
    """arguments, named: what the module was called with; wanted: its differentiable outputs.

    known: choices of batched arguments that were right before; one that is found is added.
    kept: what is known of the call itself; None where it had no values.

    The last of `values` are the gradients of those outputs.
    """
    _refuse_dropout(module)
    call = Call(module, arguments, named, wanted, autocast)
    new = not known and not no_values()
    if kept is not None:
        kept.check(call, anyway=False)
    grads = values[-len(wanted) :]
    parameters, found = own_parameters(module).values(), _of_each(call, grads, known)
    if kept is not None and new:
        kept.check(call, anyway=True)
    return [(p, Dense(r)) for p, r in zip(parameters, found, strict=True)]


def _of_each(call: Call, grads: tuple[Tensor, ...], known: set[Batched]) -> tuple[Tensor, ...]:
    """Gradients (B, *shape) by the first choice of batched arguments that is right."""
    trouble = "its output for one row is not what it is within the batch"
    choices = list(call.choices(len(grads[0])))
    sure = len(choices) == 1 or no_values()  # else another choice may be right this time
    for choice in choices:
        # of Python and NumPy; torch.func looks after torch's
        before = None if sure and choice in known else python_draws()
        try:
            found = call.of_each(choice, grads)
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError) as error:
            trouble = str(error).splitlines()[0]
            continue
        if before is None:
            return found
        if python_draws() != before:
            _refuse_draws(call.module, "draws random numbers")
        right = _is_right(call, choice, found, grads)
        if right is not False:
            known.update({choice} if right else ())
            return found
    raise ModelNotPrivate(
        f"{type(call.module).__name__} owns parameters, has no rule and cannot be run one example, "
        f"or one of an example's rows, at a time ({trouble}); put the parameter into a small "
        "module of its own, use the layers of torch.nn, or pass gradients=OneByOne(model)"
    )


def _is_right(
    call: Call, choice: Batched, found: tuple[Tensor, ...], grads: tuple[Tensor, ...]
) -> bool | None:
    """Whether the examples' gradients add up under random weights; None if all are zero."""
    sizes = torch.stack(
        [each.abs().double().reshape(len(each), -1).norm(dim=1) for each in found]
    ).sum(0)
    good = sizes.isfinite()
    if not bool(good.any()):
        return None
    weights = _weights(sizes, good).to(grads[0])
    scaled = [zero_examples(scale_examples(g, weights), ~good) for g in grads]
    whole = call.of_all(_without(call.tensors, choice, good), scaled)
    size, apart = float((sizes * weights)[good].sum()), 0.0
    for each, total in zip(found, whole, strict=True):
        mine = torch.tensordot(weights.to(each), zero_examples(each, ~good), dims=1)
        apart += float((mine - total).abs().double().norm())  # nan, and so not right, if one is
        size += float(total.abs().double().norm())
    if size == 0:
        return None
    half = call.autocast[1] or grads[0].dtype.itemsize < 4
    return apart <= (_HALF_ROUNDING if half else _ROUNDING) * size


def _weights(sizes: Tensor, good: Tensor) -> Tensor:
    """Random ones, smaller for examples that are larger than most."""
    generator = torch.Generator().manual_seed(len(sizes))
    weights = torch.rand(len(sizes), generator=generator, device="cpu").to(sizes) + 0.5
    usual = sizes[good & (sizes > 0)]
    if len(usual):
        weights *= (usual.median() / sizes).clamp(max=1)
    return torch.where(good, weights, 0.0)


def _without(tensors: list[Tensor], choice: Batched, good: Tensor) -> list[Tensor]:
    """The arguments with a good example in the place of all that are not."""
    first = int(good.nonzero()[0])
    kept = torch.where(good, torch.arange(len(good), device=good.device), first)
    return [x[kept] if taken else x for x, taken in zip(tensors, choice, strict=True)]


def _refuse_dropout(module: nn.Module) -> None:
    """A second run would draw another dropout mask."""
    for child in module.modules():
        if isinstance(child, nn.modules.dropout._DropoutNd) and child.p > 0 and child.training:
            _refuse_draws(module, "contains dropout")


def _refuse_draws(module: nn.Module, why: str) -> None:
    raise ModelNotPrivate(
        f"{type(module).__name__} owns parameters of its own and {why}, so it cannot be run again "
        "for its per-example gradients; put those parameters into a small module of their own, or "
        "pass gradients=OneByOne(model)"
    )
