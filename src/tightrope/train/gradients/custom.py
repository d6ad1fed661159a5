"""The general exact way for a module of the user's own: run it again for each example.

The module's inputs and output gradients are known, so the gradient of its own parameters is a
vector-Jacobian product for each example, done for all at once by torch.func. Only the module that
owns the parameter runs again, not the model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from tightrope.errors import ModelNotPrivate
from tightrope.train.gradients.forms import Dense
from tightrope.train.gradients.rules.base import Forms

__all__ = ["custom_rule", "own_parameters"]


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters that belong to the module itself, not to a child."""
    return {n: p for n, p in module._parameters.items() if p is not None and p.requires_grad}


def custom_rule(
    module: nn.Module,
    *values: Tensor,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    wanted: tuple[int, ...],
    autocast: tuple[str, bool, torch.dtype],
) -> Forms:
    """arguments, named: what the module was called with; wanted: its differentiable outputs.

    The last of `values` are the gradients of those outputs.
    """
    out_grads = values[-len(wanted) :]
    batch = out_grads[0].shape[0]
    _refuse_randomness(module)
    names, parameters = zip(*own_parameters(module).items(), strict=True)
    flat, rebuild = _split_batched(arguments, named, batch)

    def one(*parts: Tensor) -> tuple[Tensor, ...]:
        inputs, grads = parts[: len(flat)], parts[len(flat) :]
        args, kwargs = rebuild([x[None] for x in inputs])

        def run(*params: Tensor) -> tuple[Tensor, ...]:
            with torch.autocast(autocast[0], autocast[2], enabled=autocast[1]):
                out = functional_call(module, dict(zip(names, params, strict=True)), args, kwargs)
            outs = out if isinstance(out, tuple) else (out,)
            return tuple(outs[i][0] for i in wanted)

        _, back = vjp(run, *(p.detach() for p in parameters))
        return back(tuple(grads))  # type: ignore[no-any-return]

    try:
        results = vmap(one)(*(x.detach() for x in flat), *out_grads)
    except RuntimeError as error:
        raise ModelNotPrivate(
            f"{type(module).__name__} owns parameters, has no rule and cannot be run one example "
            f"at a time ({str(error).splitlines()[0]}); put the parameter into a small module "
            "of its own, use the layers of torch.nn, or pass gradients=OneByOne(model)"
        ) from error
    return [(p, Dense(r)) for p, r in zip(parameters, results, strict=True)]


def _refuse_randomness(module: nn.Module) -> None:
    """A second run would draw another dropout mask."""
    for child in module.modules():
        if isinstance(child, nn.modules.dropout._DropoutNd) and child.p > 0 and child.training:
            raise ModelNotPrivate(
                f"{type(module).__name__} owns parameters of its own and contains dropout, so it "
                "cannot be run again for its per-example gradients; put those parameters into a "
                "small module of their own"
            )


def _split_batched(args: tuple[Any, ...], kwargs: dict[str, Any], batch: int) -> tuple[Any, Any]:
    """The tensors that have the batch as first dimension, and how to put others in their place."""

    def batched(x: Any) -> bool:
        return isinstance(x, Tensor) and x.dim() > 0 and x.shape[0] == batch

    flat = [x for x in (*args, *kwargs.values()) if batched(x)]

    def rebuild(parts: list[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        left = iter(parts)
        new_args = tuple(next(left) if batched(x) else x for x in args)
        return new_args, {k: next(left) if batched(x) else x for k, x in kwargs.items()}

    return flat, rebuild
