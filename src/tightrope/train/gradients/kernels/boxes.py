"""Per-example products of bfloat16 operands that the GPU's copy engine reads box by box.

It fills what lies outside of a tensor with zeros: the padding of a convolution, and positions
behind the last of an example. No box holds anything of another example, whose values, were they
not finite, would make zeros of this one not finite. For GPUs of the Hopper generation: later ones
may do as well, and nobody has looked.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, final

import torch
import triton
import triton.language as tl
from torch import Tensor

from tightrope.train.gradients.kernels.tiles import Operands, Tile, used

if TYPE_CHECKING:
    from tightrope.train.gradients.forms.geometry import Convolution

__all__ = ["Boxes", "image_boxes", "readable", "row_boxes"]

_DESCRIBED = importlib.util.find_spec("triton.tools.tensor_descriptor") is not None
_HOPPER = 9
_POSITIONS = 64  # of a box
_MANY = Tile(128, 128, _POSITIONS, 8, 3)  # where there are more than two boxes of rows


# One binary for squares and sums, one loop over examples and blocks of positions: see `pointers`.
# One block as a constant is more than the compiler can bear.
@triton.jit(do_not_specialize=["factor_ptr", "summing", "batch", "share", "blocks"])
def _products(
    a_box, g_box, factor_ptr, out_ptr, squares_ptr, summing, batch, share, blocks,
    d, p, channels, each,
    SPACE: tl.constexpr, WIDTH: tl.constexpr, KERNEL_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, DILATE_H: tl.constexpr, DILATE_W: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    tile, split = tl.program_id(0), tl.program_id(1)
    of_tap = tl.cdiv(channels, COLUMNS)
    tiles = d // channels * of_tap
    row, tap, channel = tile // tiles * ROWS, tile % tiles // of_tap, tile % of_tap * COLUMNS
    tap_h, tap_w = tap // KERNEL_W * DILATE_H - PAD_H, tap % KERNEL_W * DILATE_W - PAD_W
    first = split * share
    count = tl.minimum(share, batch - first)
    product = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for number in range(count * blocks):
        example, start = first + number // blocks, number % blocks * POSITIONS
        g = g_box.load([example, start, row]).reshape(POSITIONS, ROWS)
        if SPACE:
            h, w = start % SPACE // WIDTH + tap_h, start % WIDTH + tap_w
            a = a_box.load([example * each + start // SPACE, h, w, channel])
        else:
            a = a_box.load([example, start, channel])
        product = tl.dot(g.T, a.reshape(POSITIONS, COLUMNS), product)
        if number % blocks == blocks - 1:
            total = used(product, total, example, factor_ptr, squares_ptr, summing)
            product = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    if summing != 0:
        rows = row + tl.arange(0, ROWS)
        columns = channel + tl.arange(0, COLUMNS)
        start = out_ptr + split.to(tl.int64) * p * d + tap * channels
        place = start + rows[:, None].to(tl.int64) * d + columns[None, :]
        tl.store(place, total, mask=(rows[:, None] < p) & (columns[None, :] < channels))


@final
class Boxes(Operands):
    """a: rows (B, T, d), or images (B * each, H, W, C); `box`: positions of a read at a time."""

    def __init__(
        self, a: Tensor, g: Tensor, box: tuple[int, ...], tile: Tile, taps: int = 1, each: int = 1,
        **constants: int,
    ) -> None:  # fmt: skip
        self.a, self.g, self.tile = a, g, tile
        self._box, self._taps, self._each, self._constants = box, taps, each, constants
        self.d = taps * a.shape[-1]

    @property
    def column_tiles(self) -> int:
        """No tile spans two taps of a convolution."""
        return self._taps * int(triton.cdiv(self.a.shape[-1], self.tile.columns))

    def launch(
        self, grid: tuple[int, int], factors: Tensor, out: Tensor, squares: Tensor, summing: int,
        share: int,
    ) -> None:  # fmt: skip
        from triton.tools.tensor_descriptor import TensorDescriptor

        (batch, positions, p), tile = self.g.shape, self.tile
        a_box = TensorDescriptor.from_tensor(self.a, [*self._box, tile.columns])
        g_box = TensorDescriptor.from_tensor(self.g, [1, tile.positions, tile.rows])
        constants: dict[str, Any] = _NO_CONVOLUTION | self._constants
        _products[grid](
            a_box, g_box, factors, out, squares, summing, batch, share,
            triton.cdiv(positions, tile.positions), self.d, p, self.a.shape[-1], self._each,
            **constants, ROWS=tile.rows, COLUMNS=tile.columns, POSITIONS=tile.positions,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip


_NO_CONVOLUTION = {
    "SPACE": 0, "WIDTH": 1, "KERNEL_W": 1, "PAD_H": 0, "PAD_W": 0, "DILATE_H": 1, "DILATE_W": 1,
}  # fmt: skip


def row_boxes(a: Tensor, g: Tensor) -> Boxes | None:
    if not readable(a, g):
        return None
    tile = _MANY if a.shape[1] > 2 * _POSITIONS else _tile(a.shape[2])
    return Boxes(a, g, (1, _POSITIONS), tile)


def image_boxes(
    x: Tensor, g: Tensor, geometry: Convolution, shape: tuple[int, int, int]
) -> Boxes | None:
    """x: channels last; g: (B, T, p), T over `shape`, the views, heights and widths."""
    x = x.permute(0, 2, 3, 1)
    box = _box_of(shape)
    if box is None or geometry.stride != (1, 1) or not readable(x, g):
        return None
    (kernel_h, kernel_w), (pad_h, pad_w) = geometry.kernel, geometry.padding
    dilate_h, dilate_w = geometry.dilation
    each, height, width = shape
    return Boxes(
        x, g, box, _tile(x.shape[3]), kernel_h * kernel_w, each, SPACE=height * width, WIDTH=width,
        KERNEL_W=kernel_w, PAD_H=pad_h, PAD_W=pad_w, DILATE_H=dilate_h, DILATE_W=dilate_w,
    )  # fmt: skip


def _tile(inputs: int) -> Tile:
    return Tile(64, 64 if inputs <= 64 else 128, _POSITIONS, 4, 3)


def _box_of(shape: tuple[int, int, int]) -> tuple[int, int, int] | None:
    """Views, heights and widths, powers of two, that are positions in a row; or None."""
    each, height, width = shape
    w = _power(width, _POSITIONS)
    h = _power(height, _POSITIONS // w) if w == width else 1
    v = _power(each, _POSITIONS // (w * h)) if (h, w) == (height, width) else 1
    return (v, h, w) if v * h * w == _POSITIONS else None


def _power(number: int, most: int) -> int:
    """The largest power of two up to `most` that divides the number."""
    return min(number & -number, most)


def readable(*tensors: Tensor) -> bool:
    """Whether the copy engine can read them."""
    return _DESCRIBED and all(
        t.dtype is torch.bfloat16 and _has_engine(t.device) and _in_order(t) for t in tensors
    )


def _has_engine(device: torch.device) -> bool:
    return device.type != "cuda" or torch.cuda.get_device_capability(device)[0] == _HOPPER


def _in_order(t: Tensor) -> bool:
    """Dimensions one inside the other, at addresses that are whole numbers of 16 bytes.

    A copy of it, without some examples, is so as well.
    """
    steps = t.stride()
    apart = steps[-1] == 1 and all(step > 0 and 2 * step % 16 == 0 for step in steps[:-1])
    nested = [*steps] == sorted(steps, reverse=True)
    some = t.numel() > 0 and t.shape[-1] % 8 == 0
    return apart and nested and some and t.data_ptr() % 16 == 0
