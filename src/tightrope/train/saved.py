"""What autograd keeps of a lent parameter: not its values, but how to get them again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tightrope.train.sharded import is_sharded
from tightrope.train.units import Unit

__all__ = ["Saved"]

_autograd: Any = torch._C._autograd


@final
class Saved:
    """again: the whole parameters of a unit, gathered anew."""

    def __init__(self, again: Callable[[Unit], list[Tensor]]) -> None:
        self._again = again
        self._lent: dict[int, tuple[Unit, int]] = {}  # by their storages

    def come(self, unit: Unit) -> None:
        """The parameters of a unit are lent."""
        places = [value.untyped_storage().data_ptr() for value in unit.values or ()]
        self._lent |= {place: (unit, k) for k, place in enumerate(places)}

    def go(self, unit: Unit) -> None:
        """They are taken back."""
        for value in unit.values or ():
            self._lent.pop(value.untyped_storage().data_ptr(), None)

    @torch.compiler.disable
    def noting(self) -> saved_tensors_hooks | None:
        """Hooks that are in force now; None where they were already, or nobody can set any."""
        if not _autograd._saved_tensors_hooks_is_enabled():
            return None  # inside a transform of torch.func
        pack, unpack = _autograd._top_saved_tensors_default_hooks(True) or (None, None)
        if pack == self._pack or getattr(pack, "func", None) == self._hand_on:
            return None
        if pack is None or unpack is None:
            hooks = saved_tensors_hooks(self._pack, self._unpack)
        else:  # those of a checkpoint, or of the user's: they see all that is saved
            hooks = saved_tensors_hooks(partial(self._hand_on, pack), unpack)
        hooks.__enter__()
        return hooks

    def _place(self, saved: Tensor) -> tuple[Unit, int] | None:
        """Which lent parameter it is, or a view of."""
        if is_sharded(saved) or saved.layout is not torch.strided:
            return None
        try:
            unit, k = self._lent.get(saved.untyped_storage().data_ptr(), (None, 0))
        except RuntimeError:  # a wrapper of a transform of torch.func has no storage
            return None
        return None if unit is None or saved.dtype is not unit.wholes[k].dtype else (unit, k)

    def _hand_on(self, pack: Callable[[Tensor], Any], saved: Tensor) -> Any:
        """A lent parameter by its values: the parameter itself will have none."""
        return pack(saved.detach() if self._place(saved) else saved)

    def _pack(self, saved: Tensor) -> Any:
        place = self._place(saved)
        if place is None:
            return saved
        return *place, saved.shape, saved.stride(), saved.storage_offset()

    def _unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        unit, k, shape, stride, offset = packed
        return self._again(unit)[k].as_strided(shape, stride, offset)
