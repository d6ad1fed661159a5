"""MNIST and Fashion-MNIST: 60,000 and 10,000 grey images of 28 x 28, in the idx format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tightrope.data.folder import Dataset, Split, find_folder, read_bytes
from tightrope.errors import InvalidInput

__all__ = ["load_mnist", "load_fashion_mnist"]

# in the official order
_CLOTHES = "T-shirt/top Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag Ankle-boot"


def load_mnist(folder: str | Path | None = None) -> Dataset:
    """Images uint8 (n, 28, 28), labels uint8 (n,)."""
    place = find_folder("mnist", folder)
    return Dataset("mnist", _split(place, "train"), _split(place, "t10k"), tuple("0123456789"))


def load_fashion_mnist(folder: str | Path | None = None) -> Dataset:
    """Images uint8 (n, 28, 28), labels uint8 (n,)."""
    place = find_folder("fashion-mnist", folder)
    train, test = _split(place, "train"), _split(place, "t10k")
    return Dataset("fashion-mnist", train, test, tuple(_CLOTHES.split()))


def _split(folder: Path, part: str) -> Split:
    images = parse_idx(read_bytes(folder, f"{part}-images-idx3-ubyte"))
    labels = parse_idx(read_bytes(folder, f"{part}-labels-idx1-ubyte"))
    if images.ndim != 3 or len(images) != len(labels):
        raise InvalidInput(
            f"{folder}: {part} has images of shape {images.shape} and {len(labels)} labels; row i "
            "of both must belong to one example. Is a file from another dataset?"
        )
    return Split(images, labels)


def parse_idx(raw: bytes) -> NDArray[Any]:
    """The idx format: 00 00 type rank, then the sizes as big-endian 32-bit numbers, then bytes."""
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08":
        raise InvalidInput(
            f"Not an idx file of unsigned bytes: it begins with {raw[:4]!r} instead of "
            "00 00 08 and the number of dimensions."
        )
    rank = raw[3]
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", count=rank, offset=4))
    values = np.frombuffer(raw, np.uint8, offset=4 + 4 * rank)
    if values.size != int(np.prod(shape)):
        raise InvalidInput(
            f"An idx file announces {shape} and holds {values.size} bytes; it was cut short."
        )
    return values.reshape(shape)
