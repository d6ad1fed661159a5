"""Whether a module that is run again for its gradients still gives what it gave.

Between its call and the backward pass a setting or a buffer may change: by the model, which calls
it in two ways, or by the module itself, which counts. Most such changes do not matter (a mask that
is kept for the next call), so what comes out decides.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from tightrope.errors import ModelNotPrivate
from tightrope.train.cuda_graph import recording
from tightrope.train.gradients.custom_call import Call
from tightrope.train.gradients.state import state_of
from tightrope.train.held import as_it_was

__all__ = ["Kept", "no_values"]

_ROUNDING, _HALF_ROUNDING = 1e-3, 3e-2  # of the same operations on the same values
_PLACES = 4  # along each dimension, of what is kept of an output


def no_values() -> bool:
    """Whether nothing can be compared: there are no values, or nobody may wait for them."""
    return recording() or get_proxy_mode() is not None


@final
class Kept:
    """What is kept of a call: how the module stood before it, and what came out.

    An output is not copied: where it is changed in place afterwards, only some of it is known.
    """

    def __init__(self, state: list[Any], outs: tuple[Tensor, ...]) -> None:
        self._state, self._some = state, [_some(out) for out in outs]
        self._outs = [out.detach() for out in outs]
        self._versions = [out._version for out in outs]

    def check(self, call: Call, *, anyway: bool) -> None:
        """Refuse a module that gives something else by now.

        anyway: also where no change shows, which may be in what nobody looks into (a global, an
        object of the user's own).
        """
        if not anyway and state_of(call.module) == self._state:
            return
        with as_it_was(call.module), torch.no_grad():
            now = call.outputs()
        if not all(map(self._same, range(len(now)), now)):
            raise ModelNotPrivate(_CHANGED.format(type(call.module).__name__))

    def _same(self, number: int, now: Tensor) -> bool:
        if self._outs[number]._version == self._versions[number]:
            return _same(self._outs[number], now)
        return _same(self._some[number], _some(now))


def _some(out: Tensor) -> Tensor:
    steps = [slice(None, None, max(1, length // _PLACES)) for length in out.shape]
    return out.detach()[tuple(steps)].clone()


def _same(before: Tensor, now: Tensor) -> bool:
    """Of every row: one that is large does not hide the others."""
    if before.shape != now.shape:
        return False
    rounding = _HALF_ROUNDING if before.dtype.itemsize < 4 else _ROUNDING
    a, b = (_rows(value) for value in (before, now))
    sizes = a.norm(dim=1)
    usual = sizes.median() if len(sizes) else sizes.sum()
    return bool(((a - b).norm(dim=1) <= rounding * (sizes + usual) + 1e-30).all())


def _rows(value: Tensor) -> Tensor:
    value = torch.view_as_real(value) if value.is_complex() else value
    flat = value.double().nan_to_num(0.0, 0.0, 0.0)
    return flat.reshape(len(flat), -1) if flat.dim() > 0 and len(flat) else flat.reshape(1, -1)


_CHANGED = (
    "{} owns parameters of its own and has changed since it was called (a setting, a buffer, a "
    "count of its calls), so that it gives something else when it is run again for its per-example "
    "gradients. Put those parameters into a small module of their own, change nothing before the "
    "step is taken, or pass gradients=OneByOne(model)"
)
