"""The clips by themselves."""

from __future__ import annotations

import math

import pytest
import torch

from tightrope.errors import InvalidInput
from tightrope.train.clip import NORM_ERROR, AutomaticClip, FlatClip, PerLayerClip

CLIPS = [
    FlatClip(0.7),
    PerLayerClip(0.7),
    PerLayerClip(0.7, (0.1, 0.2, 0.6)),
    AutomaticClip(0.7, 0.01),
]


@pytest.mark.parametrize("clip", CLIPS)
def test_no_example_exceeds_the_sensitivity(clip):
    torch.manual_seed(0)
    norms = 10 ** (torch.rand(3, 5000, dtype=torch.float64) * 20 - 10)
    factors = clip.factors(norms.square().float()).double().expand(3, -1)
    total = (factors * norms).square().sum(0).sqrt()
    assert clip.sensitivity == 0.7
    assert float(total.max()) <= clip.sensitivity
    assert bool((factors >= 0).all())
    assert bool(factors.isfinite().all())


def test_small_gradients_pass_flat_clipping_unchanged():
    squared = torch.tensor([[0.0, 0.01, 1.0, 100.0]])
    factors = FlatClip(1.0).factors(squared)[0]
    assert factors[:2].tolist() == [1.0, 1.0]
    assert factors[3] == pytest.approx(0.1 * (1 - NORM_ERROR), rel=1e-6)


def test_flat_clip_takes_all_parameters_together_and_per_layer_clip_divides_the_bound():
    squared = torch.tensor([[9.0], [16.0]])
    assert float(FlatClip(1.0).factors(squared)) == pytest.approx(0.2 * (1 - NORM_ERROR), rel=1e-6)
    factors = PerLayerClip(1.0).factors(squared)
    expected = [1 / math.sqrt(2) / 3, 1 / math.sqrt(2) / 4]
    assert factors[:, 0].tolist() == pytest.approx(expected, rel=1e-3)


def test_automatic_clip_normalises():
    squared = torch.tensor([[1e-8, 1.0, 1e8]])
    factors = AutomaticClip(2.0, 0.01).factors(squared)[0]
    expected = [2 / (1e-4 + 0.01), 2 / 1.01, 2 / (1e4 + 0.01)]
    allowed = [(1 - NORM_ERROR) * value for value in expected]
    assert factors.tolist() == pytest.approx(allowed, rel=1e-6)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "1", None, 1e-20])
@pytest.mark.parametrize("make", [FlatClip, PerLayerClip, AutomaticClip])
def test_bounds_outside_the_domain_are_refused(make, value):
    with pytest.raises(InvalidInput, match="clip_norm"):
        make(value)


def test_per_layer_bounds_must_fit():
    with pytest.raises(InvalidInput, match="at least"):
        PerLayerClip(0.5, (0.4, 0.4))
    with pytest.raises(InvalidInput, match="one for each"):
        PerLayerClip(1.0, (0.1, 0.1)).factors(torch.ones(3, 4))
