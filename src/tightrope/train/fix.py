"""Layers for private networks: batch normalisation replaced, and weights standardised."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from tightrope.errors import InvalidInput

__all__ = ["StandardConv2d", "fix", "standardised"]

_GROUPS = 32  # at most so many, as in Wu and He 2018
_LEAST = 1e-4  # added to the square of a channel's norm
_CHANNELS = 4  # at least so many in a group, where the layer has them


def fix(model: nn.Module, report: list[str] | None = None) -> nn.Module:
    """Replace batch by group normalisation, and stop running statistics of the data.

        model = fix(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    The model is changed in place and returned; a model that is itself such a layer is exchanged.
    Learned scales and shifts are kept; the statistics that a layer had learned are lost.
    report: a list that receives one sentence for each change. Without it they are printed.
    """
    changes: list[str] = []
    new: dict[nn.Module, nn.GroupNorm] = {}
    for name, module in list(model.named_modules(remove_duplicate=False)):
        shown = name or "the model"
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
            changes.append(f"{shown}: {type(module).__name__} keeps no running statistics any more")
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            new[module] = new.get(module) or _group_norm(module)
            model = _put(model, name, new[module])
            groups, channels = new[module].num_groups, new[module].num_channels
            changes.append(
                f"{shown}: {type(module).__name__} is now GroupNorm({groups}, {channels})"
            )
    if report is not None:
        report.extend(changes)
    elif changes:
        print("Changed, so that examples do not share statistics:", *changes, sep="\n  ")
    return model


def _group_norm(old: nn.modules.batchnorm._BatchNorm) -> nn.GroupNorm:
    channels = old.num_features
    if channels == 0:
        raise InvalidInput(
            f"{type(old).__name__} does not know its channels before it has run. Give it "
            "num_features, or run the model once on rows that are not private."
        )
    groups = 1 if isinstance(old, nn.BatchNorm1d) else _groups_of(channels)
    new = nn.GroupNorm(groups, channels, eps=old.eps, affine=old.affine)
    if old.affine:
        new.weight, new.bias = old.weight, old.bias
    return new.train(old.training)


def _groups_of(channels: int) -> int:
    """The most groups of equal size that are not too many, and not too small.

    A group of one value is normalised to 0, whatever the value is: with one channel a group, maps
    of one pixel would come out constant.
    """
    most = min(_GROUPS, channels // _CHANNELS)
    return next((g for g in range(most, 1, -1) if channels % g == 0), 1)


def _put(model: nn.Module, name: str, new: nn.Module) -> nn.Module:
    if not name:
        return new
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, new)
    return model


@final
class StandardConv2d(nn.Conv2d):
    """A convolution whose output channels have weights of mean 0 and norm 1 (Qiao et al. 2019).

    With group normalisation it takes the place of batch normalisation (De et al. 2022).
    """

    def forward(self, input: Tensor) -> Tensor:
        return self._conv_forward(input, standardised(self.weight), self.bias)


def standardised(weight: Tensor) -> Tensor:
    """The weights of each output channel with mean 0 and norm 1."""
    inner = tuple(range(1, weight.dim()))
    centred = weight - weight.mean(inner, keepdim=True)
    return centred * torch.rsqrt(centred.square().sum(inner, keepdim=True) + _LEAST)
