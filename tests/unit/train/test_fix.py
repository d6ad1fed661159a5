"""Layers that mix examples are replaced by ones that do not, and the model still says something."""

from __future__ import annotations

import pytest
import torch
from tests.unit.train.conftest import each_loss
from torch import nn

from tightrope.errors import InvalidInput
from tightrope.train.checks import fix
from tightrope.train.private import private


def test_it_returns_the_model_and_prints_its_changes_once(capsys):
    model = nn.Sequential(nn.Conv2d(1, 24, 3), nn.BatchNorm2d(24), nn.Flatten(), nn.Linear(24, 2))
    assert fix(model) is model
    shown = capsys.readouterr().out
    assert shown.count("\n") == 2 and "1: BatchNorm2d is now GroupNorm(6, 24)" in shown
    assert fix(model) is model and capsys.readouterr().out == ""
    changes = []
    fix(nn.Sequential(nn.BatchNorm3d(8)), report=changes)
    assert changes == ["0: BatchNorm3d is now GroupNorm(2, 8)"] and capsys.readouterr().out == ""


def test_batch_norm_is_refused_with_the_way_out_and_runs_when_fixed():
    model = nn.Sequential(nn.Conv2d(1, 24, 3), nn.BatchNorm2d(24), nn.Flatten(), nn.Linear(24, 2))
    data = (torch.randn(60, 1, 3, 3), torch.randint(0, 2, (60,)))
    budget = {"records": 60, "batch_size": 12, "epsilon": 2.0, "delta": 1e-4, "epochs": 1}
    with pytest.raises(InvalidInput, match=r"fix\(model\)"):
        private(model, torch.optim.SGD(model.parameters(), 0.1), data, each_loss, **budget)
    model = fix(model, report=[])
    run = private(model, torch.optim.SGD(model.parameters(), 0.1), data, each_loss, **budget)
    assert len(list(run)) == 5 and run.isolation.how == "proved"


# 31 is prime; 100 has no divisor 32, and 25 groups of 4 are the most that have four channels
@pytest.mark.parametrize(
    ("channels", "groups"),
    [(1, 1), (2, 1), (6, 1), (8, 2), (16, 4), (31, 1), (32, 8), (64, 16), (100, 25), (512, 32)],
)
def test_no_channel_is_alone_in_its_group(channels, groups):
    norm = fix(nn.BatchNorm2d(channels), report=[])
    assert (norm.num_groups, norm.num_channels) == (groups, channels)


@pytest.mark.parametrize("channels", [2, 6, 16, 32, 64])
@pytest.mark.parametrize("kind", [nn.BatchNorm2d, nn.BatchNorm1d])
def test_maps_of_one_pixel_and_plain_rows_come_through(kind, channels):
    norm = kind(channels)
    model = fix(nn.Sequential(norm, norm), report=[])
    assert isinstance(model[0], nn.GroupNorm) and model[0] is model[1]
    shape = (200, channels, 1, 1) if kind is nn.BatchNorm2d else (200, channels)
    out = model[0](torch.randn(shape, generator=torch.Generator().manual_seed(0))).detach()
    assert float(out.std(0).min()) > 0.5  # every channel differs from example to example


def test_learned_scales_and_the_mode_are_kept():
    norm = nn.BatchNorm2d(8).eval()
    nn.init.uniform_(norm.weight)
    weight, bias = norm.weight, norm.bias
    fixed = fix(norm, report=[])
    assert fixed.weight is weight and fixed.bias is bias and not fixed.training
    plain = fix(nn.BatchNorm2d(8, affine=False), report=[])
    assert plain.weight is None


def test_instance_norm_keeps_no_running_statistics():
    changes = []
    norm = nn.InstanceNorm2d(3, track_running_stats=True)
    assert fix(norm, report=changes) is norm
    assert changes == ["the model: InstanceNorm2d keeps no running statistics any more"]
    assert not list(norm.buffers())
    images = torch.randn(2, 3, 4, 4)
    plain = nn.InstanceNorm2d(3)
    for mode in (True, False):  # the statistics of the example itself, in both modes
        torch.testing.assert_close(norm.train(mode)(images), plain(images))
    assert fix(nn.InstanceNorm2d(3), report=changes) and len(changes) == 1


def test_a_layer_that_does_not_know_its_channels_is_refused():
    with pytest.raises(InvalidInput, match="num_features"):
        fix(nn.LazyBatchNorm1d())
