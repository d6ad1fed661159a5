"""The hooks on a module of the user's own, which is run again for the gradients of each example."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from tightrope.errors import InvalidInput
from tightrope.train.feed import tensors_of, with_tensors
from tightrope.train.gradients.again import Kept, no_values
from tightrope.train.gradients.custom import custom_rule
from tightrope.train.gradients.recorder import Recorder, unseen
from tightrope.train.gradients.state import state_of

__all__ = ["hook_custom", "refuse_late"]


def hook_custom(module: nn.Module, recorder: Recorder) -> list[Callable[[], Any]]:
    """It is run again with all its hooks: what goes in before them, what comes out after them."""
    begun: list[Any] = []  # calls under way: one that fails is taken off too

    @unseen
    def begin(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if layer is not module:
            return
        given = None
        if recorder.active:
            if _between(layer._forward_pre_hooks.items(), before.id):
                refuse_late(layer)
            if _between(reversed(layer._forward_hooks.items()), handle.id):
                cast(OrderedDict[int, Any], layer._forward_hooks).move_to_end(handle.id)
            tensors = tensors_of((args, kwargs))
            versions = [x._version for x in tensors]
            given = with_tensors((args, kwargs), tensors), versions, state_of(layer)
        begun.append(given)

    @unseen
    def record(layer: nn.Module, _: Any, __: Any, out: Any) -> Any:
        if layer is not module or not begun:
            return None
        given = begun.pop()
        if given is None or not recorder.active or any(begun):  # one that calls itself counts once
            return None
        return _note_custom(layer, recorder, *given, out)

    handle = module.register_forward_hook(record, with_kwargs=True, always_call=True)
    before = module.register_forward_pre_hook(begin, with_kwargs=True, prepend=True)
    return [handle.remove, before.remove]


def _between(hooks: Iterable[tuple[int, Any]], hook: int) -> bool:
    """Whether a hook of others comes before one of ours."""
    for key, other in hooks:
        if key == hook:
            return False
        if not str(getattr(other, "__module__", "")).startswith("tightrope."):
            return True
    return True


def refuse_late(layer: nn.Module) -> None:
    raise InvalidInput(
        f"{type(layer).__name__} was given another forward pass, or a forward hook, after the run "
        "was made, so that what it gives is not what its rule knows. Do that first, then make the "
        "run"
    )


@unseen
def _note_custom(
    layer: nn.Module,
    recorder: Recorder,
    given: Any,
    versions: list[int],
    state: list[Any],
    out: Any,
) -> Any:
    """What comes out, if that has to change.

    Of several outputs one may be computed from another; each gets a place of its own in the graph.
    """
    tensors, outs = tensors_of(given), tensors_of(out)
    wanted = tuple(i for i, o in enumerate(outs) if o.requires_grad)
    changed = [x._version for x in tensors] != versions  # so that it cannot be run again
    if not wanted or changed or (len(wanted) > 1 and not _can_be_rebuilt(out)):
        return None  # the graph shows what becomes of its parameters, or they are refused
    if len(wanted) > 1:
        outs = [_apart(o) if o.requires_grad else o for o in outs]
    made = tuple(outs[i] for i in wanted)
    kept = None if no_values() else Kept(state, made)
    recorder.note(
        layer, custom_rule, tuple(tensors), made, kept=kept,
        arguments=given[0], named=given[1], wanted=wanted, autocast=_autocast_now(tuple(tensors)),
    )  # fmt: skip
    return with_tensors(out, outs) if len(wanted) > 1 else None


def _can_be_rebuilt(out: Any) -> bool:
    """Whether all that holds tensors is a plain container."""
    if isinstance(out, tuple) and hasattr(out, "_fields"):
        return all(map(_can_be_rebuilt, out))
    if type(out) in (tuple, list):
        return all(map(_can_be_rebuilt, out))
    if type(out) is dict:
        return all(map(_can_be_rebuilt, out.values()))
    return isinstance(out, Tensor) or not tensors_of(out)


def _apart(out: Tensor) -> Tensor:
    """The same values as the output of an operation of its own, and no view of the other."""
    return torch.ops.aten._unsafe_view(out, out.shape)


@unseen
def _autocast_now(tensors: tuple[Tensor, ...]) -> tuple[str, bool, torch.dtype]:
    kind = tensors[0].device.type if tensors else "cpu"
    return kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
