"""Layers that mix examples, replaced by the nearest ones that do not."""

from __future__ import annotations

import math
from typing import NamedTuple, final

from torch import nn

from tightrope.errors import InvalidInput

__all__ = ["Fixed", "fix"]

_GROUPS = 32  # as in Wu and He 2018


@final
class Fixed(NamedTuple):
    """The model, and one sentence for each layer that was replaced or changed."""

    model: nn.Module
    changes: tuple[str, ...]


def fix(model: nn.Module) -> Fixed:
    """Replace batch by group normalisation, and stop running statistics of the data.

    The model is changed in place, and so are its parameters: make the optimizer afterwards.
    Learned scales and shifts are kept; what else a layer had learned is lost with its statistics.
    """
    changes: list[str] = []
    new: dict[nn.Module, nn.GroupNorm] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
            changes.append(f"{name or 'the model'}: no running statistics any more")
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            new[module] = new.get(module) or _group_norm(module)
            model = _put(model, name, new[module])
            changes.append(f"{name or 'the model'}: {type(module).__name__} is now GroupNorm")
    return Fixed(model, tuple(changes))


def _group_norm(old: nn.modules.batchnorm._BatchNorm) -> nn.GroupNorm:
    channels = old.num_features
    if channels == 0:
        raise InvalidInput(
            f"{type(old).__name__} does not know its channels before it has run. Give it "
            "num_features, or run the model once on rows that are not private."
        )
    # A group of one value, as in rows of as many channels as groups, would always be 0.
    groups = 1 if isinstance(old, nn.BatchNorm1d) else math.gcd(_GROUPS, channels)
    new = nn.GroupNorm(groups, channels, eps=old.eps, affine=old.affine)
    if old.affine:
        new.weight, new.bias = old.weight, old.bias
    return new.train(old.training)


def _put(model: nn.Module, name: str, new: nn.Module) -> nn.Module:
    if not name:
        return new
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, new)
    return model
