# mypy: disable-error-code="no-untyped-call"
"""Scattering features of colour images, standardised by public numbers, and of their mirror images.

Each colour is transformed alone (scattering.py); its 81 channels are of eight kinds: the low-pass
part, the modulus at either scale, and the second modulus by the angle between its two wavelets. A
kind is shifted and scaled by its mean and spread over patches of two photographs that come with
scikit-learn: public numbers, so no budget is spent on them. Tramer and Boneh (2021) took those of
the training images, and paid for them.

A mirrored image has the features of the image, mirrored, with every direction k turned to -k: a
second view of an example that costs no second transform.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tightrope_reproduce.learning.scattering import Scattering

__all__ = ["colour_features", "kinds", "with_mirror", "PUBLIC", "DIRECTIONS"]

DIRECTIONS = 8
# Of each kind (mean, spread), for images from 0 to 1: the low-pass part, the finer and the coarser
# modulus, the second modulus at 0, 1, 2, 3 and 4 eighths of a half turn. A test computes them.
PUBLIC = (
    (0.437, 0.320), (0.0090, 0.0107), (0.0117, 0.0135),
    (0.0018, 0.0024), (0.0016, 0.0020), (0.0011, 0.0013), (0.00084, 0.00090), (0.00076, 0.00081),
)  # fmt: skip


def kinds() -> Tensor:
    """The kind of each of the 81 channels of one colour, in the order of `Scattering`."""
    first, second = torch.arange(DIRECTIONS), torch.arange(DIRECTIONS)
    turn = (first[:, None] - second).abs()  # in eighths of a half turn
    between = torch.minimum(turn, DIRECTIONS - turn)
    finer, coarser = torch.full((DIRECTIONS,), 1), torch.full((DIRECTIONS,), 2)
    return torch.cat([torch.tensor([0]), finer, 3 + between.flatten(), coarser])


def colour_features(images: Tensor, *, batch: int = 500) -> Tensor:
    """Bytes (n, 3, s, s) to float16 features (n, 3 x 81, s / 4, s / 4), each image on its own."""
    transform = Scattering(images.shape[-1]).to(images.device)
    mean, spread = torch.tensor(PUBLIC, device=images.device)[kinds()].T[:, :, None, None]
    made = []
    for part in images.split(batch):
        grey = part.flatten(0, 1)[:, None].float() / 255
        scaled = (transform(grey) - mean) / spread  # (3 batch, 81, s / 4, s / 4)
        made.append(scaled.half().view(len(part), -1, *scaled.shape[2:]))
    return torch.cat(made)


def with_mirror(features: Tensor, views: int) -> Tensor:
    """(B, C, h, w) to (B, 2, C, h, w): the features of an image and of its mirror image."""
    assert views == 2, "an image and its mirror image are two views"
    channels = _mirrored_channels(features.shape[1] // 81, features.device)
    return torch.stack([features, features[:, channels].flip(-1)], dim=1)


def _mirrored_channels(colours: int, device: torch.device) -> Tensor:
    """Where the channels of a mirror image stand in those of the image."""
    turned = -torch.arange(DIRECTIONS) % DIRECTIONS
    pairs = turned[:, None] * DIRECTIONS + turned
    order = torch.cat([torch.tensor([0]), 1 + turned, 9 + pairs.flatten(), 73 + turned])
    return torch.cat([order + 81 * colour for colour in range(colours)]).to(device)
