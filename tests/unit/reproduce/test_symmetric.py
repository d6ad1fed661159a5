"""A convolution that finds in a turned picture what it finds in the picture."""

import pytest
import torch
from torch import nn
from torch.nn.functional import max_pool2d

from tightrope.errors import InvalidInput
from tightrope.train.checks import standardised
from tightrope_reproduce.learning.symmetric_convolution import (
    TURNS,
    SymmetricConv2d,
    _before,
    _turned,
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = SymmetricConv2d(3, 16, 3, padding=1, plain=True)
        self.second = SymmetricConv2d(16, 24, 3, padding=1)

    def forward(self, x):
        return self.second(torch.relu(max_pool2d(self.first(x), 2)))


@pytest.mark.parametrize("turn", range(TURNS))
def test_a_turned_picture_moves_the_channels_of_a_family_and_nothing_else(turn):
    torch.manual_seed(0)
    net, x = Net().double(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    families = net(x).unflatten(1, (-1, TURNS))
    expected = _turned(families[:, :, _before(turn)], turn).flatten(1, 2)
    torch.testing.assert_close(net(_turned(x, turn)), expected)
    assert not torch.allclose(net(x), expected) or turn == 0


def test_the_eight_uses_of_a_filter_are_its_turns_and_mirror_images():
    layer = SymmetricConv2d(1, 8, 3, plain=True)
    once = standardised(layer.weight)[0, 0]
    for turn, used in enumerate(layer.used()[:, 0]):
        assert torch.equal(used, _turned(once, turn))
    assert len({tuple(used.flatten().tolist()) for used in layer.used()}) == TURNS


def test_the_turns_are_a_group():
    table = [_before(turn) for turn in range(TURNS)]
    assert all(sorted(row) == list(range(TURNS)) for row in table)
    assert all(sorted(column) == list(range(TURNS)) for column in zip(*table, strict=True))


def test_an_eighth_of_the_weights():
    assert SymmetricConv2d(16, 24, 3).weight.numel() * TURNS == 16 * 24 * 9


@pytest.mark.parametrize("channels", [(3, 8), (8, 12)])
def test_channels_that_are_no_families_are_refused(channels):
    with pytest.raises(InvalidInput, match=r"families of 8.*plain=True"):
        SymmetricConv2d(*channels, 3)


@pytest.mark.parametrize("size", [{"kernel_size": (3, 1)}, {"kernel_size": 0}])
def test_kernels_that_are_not_square_are_refused(size):
    with pytest.raises(InvalidInput, match=r"kernel_size=.*turned.*one whole number, 1 or more"):
        SymmetricConv2d(8, 8, **size)


@pytest.mark.parametrize("padding", [(1, 0), "same", -1])
def test_padding_that_a_turn_would_change_is_refused(padding):
    with pytest.raises(InvalidInput, match=r"padding=.*turned.*one whole number, 0 or more"):
        SymmetricConv2d(8, 8, 2, padding=padding)


def test_the_one_before_is_the_one_that_leads_there():
    picture = torch.arange(9).view(3, 3)
    for turn in range(TURNS):
        for other, first in enumerate(_before(turn)):
            assert torch.equal(_turned(_turned(picture, first), turn), _turned(picture, other))


@pytest.mark.parametrize("inputs, plain", [(3, True), (8, False)])
def test_a_layer_is_the_same_wherever_one_was_made_before(inputs, plain):
    """Without values, or for inference alone; nor do layers share what one may overwrite."""
    with torch.device("meta"):
        assert SymmetricConv2d(inputs, 8, 5, plain=plain).places.is_meta
    with torch.inference_mode():
        SymmetricConv2d(inputs, 8, 5, plain=plain)
    first, layer = (SymmetricConv2d(inputs, 8, 5, plain=plain) for _ in range(2))
    first.places.zero_()
    layer(torch.randn(2, inputs, 6, 6)).sum().backward()
    assert torch.equal(layer.places.sort(1)[0][3], torch.arange(inputs * 25))


@pytest.mark.parametrize("inputs, plain", [(3, True), (8, False)])
def test_a_layer_made_without_values_is_whole_once_its_weights_are_loaded(inputs, plain):
    layer = SymmetricConv2d(inputs, 8, 3, plain=plain)
    with torch.device("meta"):
        other = SymmetricConv2d(inputs, 8, 3, plain=plain)
    other.to_empty(device="cpu").load_state_dict(layer.state_dict())
    assert torch.equal(other.used(), layer.used())
