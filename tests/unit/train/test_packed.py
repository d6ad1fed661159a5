"""Tensors side by side: the same values, and recognised only when they fill their memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tightrope.errors import InvalidInput
from tightrope.train.packed import pack, unpack, whole
from tightrope.train.parallel.ranks import check_one_copy


def test_packed_tensors_keep_values_and_shapes_and_are_one():
    given = [torch.randn(3, 4), torch.randn(()), torch.randn(0, 2), torch.randn(5)]
    packed = pack(given)
    for a, b in zip(packed, given, strict=True):
        assert torch.equal(a, b) and a.shape == b.shape
    (flat,) = whole(packed)
    flat.mul_(2)
    assert torch.equal(packed[0], given[0] * 2)


def test_tensors_of_several_types_stay_apart(monkeypatch):
    mixed = [torch.zeros(3), torch.zeros(3, dtype=torch.float64)]
    assert pack(mixed)[0] is mixed[0]
    monkeypatch.setattr("tightrope.train.packed._LARGEST", 5)
    large = [torch.zeros(3), torch.zeros(3)]
    assert pack(large)[1] is large[1]


def test_views_that_leave_or_repeat_something_are_not_the_whole():
    flat = torch.arange(8.0)
    left, right = unpack(flat, [torch.zeros(4), torch.zeros(2, 2)])
    assert len(whole([left, right])) == 1
    for some in ([left], [right, left], [left, left], [left, right[:1]], [left, right.t()]):
        assert len(whole(some)) == len(some)
    assert len(whole([left, torch.zeros(4)])) == 2


def test_the_older_sharding_is_refused():
    class FullyShardedDataParallel(nn.Module):
        pass

    with pytest.raises(InvalidInput, match="fully_shard"):
        check_one_copy(nn.Sequential(FullyShardedDataParallel()))
