"""Per-example products of operands that lie anyhow, in tf32 or bfloat16 (see `products`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import triton
import triton.language as tl
from torch import Tensor

from tightrope.train.gradients.kernels.tiles import Operands, Tile, used

if TYPE_CHECKING:
    from tightrope.train.gradients.forms.geometry import Convolution

__all__ = ["Pointers", "image_pointers", "row_pointers"]

_FEW, _MANY = Tile(128, 128, 16, 8, 3), Tile(128, 64, 32, 4, 3)  # positions, in tf32
# In bfloat16, the fastest of many: rows; images of few positions with many outputs, and of many.
_HALF, _WIDE, _LONG = Tile(64, 128, 64, 4, 3), Tile(128, 128, 64, 8, 3), Tile(64, 128, 128, 4, 2)

_REACH = 2**31  # of a 32-bit number


# One binary for squares and sums: what differs between the two is not compiled in, nor at which
# address the factors lie. Examples and blocks of positions are one loop, so that the next example
# is read while one is multiplied. One position as a constant is more than the compiler can bear.
@triton.jit(do_not_specialize=["factor_ptr", "summing", "batch", "share", "positions"])
def _products(
    a_ptr, g_ptr, factor_ptr, out_ptr, squares_ptr, summing, batch, positions, d, p, share,
    a_example, a_view, a_row, a_column, a_channel, g_example, g_position, g_column,
    channels, height_in, width_in,
    CONVOLUTION: tl.constexpr, SPACE: tl.constexpr, WIDTH: tl.constexpr, KERNEL_W: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    DILATE_H: tl.constexpr, DILATE_W: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    tile, split = tl.program_id(0), tl.program_id(1)
    tiles = tl.cdiv(d, COLUMNS)
    rows = (tile // tiles) * ROWS + tl.arange(0, ROWS)
    columns = (tile % tiles) * COLUMNS + tl.arange(0, COLUMNS)
    at = tl.arange(0, POSITIONS)
    if CONVOLUTION:
        tap = columns // channels
        tap_h, tap_w = (tap // KERNEL_W) * DILATE_H - PAD_H, (tap % KERNEL_W) * DILATE_W - PAD_W
        channel = columns % channels
    blocks = tl.cdiv(positions, POSITIONS)
    first = split * share
    count = tl.minimum(share, batch - first)
    product = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for number in range(count * blocks):
        block = number % blocks
        example = (first + number // blocks).to(tl.int64)
        here = block * POSITIONS + at
        g = tl.load(
            g_ptr + example * g_example + here[None, :] * g_position + rows[:, None] * g_column,
            mask=(here[None, :] < positions) & (rows[:, None] < p), other=0.0,
        )  # fmt: skip
        inside = (here[:, None] < positions) & (columns[None, :] < d)
        if CONVOLUTION:
            place = here % SPACE
            h = (place // WIDTH)[:, None] * STRIDE_H + tap_h[None, :]
            w = (place % WIDTH)[:, None] * STRIDE_W + tap_w[None, :]
            inside = inside & (h >= 0) & (h < height_in) & (w >= 0) & (w < width_in)
            offset = (here // SPACE)[:, None] * a_view + h * a_row + w * a_column
            offset += channel[None, :] * a_channel
        else:
            offset = here[:, None] * a_column + columns[None, :] * a_channel
        a = tl.load(a_ptr + example * a_example + offset, mask=inside, other=0.0)
        product = tl.dot(g, a, product, input_precision="tf32")
        if block == blocks - 1:
            total = used(product, total, example, factor_ptr, squares_ptr, summing)
            product = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    if summing != 0:
        start = out_ptr + split.to(tl.int64) * p * d
        place = start + rows[:, None].to(tl.int64) * d + columns[None, :]
        tl.store(place, total, mask=(rows[:, None] < p) & (columns[None, :] < d))


@final
class Pointers(Operands):
    """a: rows (B, T, d), or images; `reads` are strides of a, of g, and sizes."""

    def __init__(
        self, a: Tensor, g: Tensor, d: int, reads: tuple[int, ...], shape: dict[str, Any]
    ) -> None:
        self.a, self.g, self.d = a, g, d
        self._reads, self._shape = reads, shape
        self.tile = self._best_tile()

    def _best_tile(self) -> Tile:
        if self.a.element_size() == 2:
            _, positions, outputs = self.g.shape
            if self._shape["CONVOLUTION"] and positions >= _LONG.positions:
                return _LONG
            return _WIDE if self._shape["CONVOLUTION"] and outputs > _HALF.rows else _HALF
        return _FEW if self.g.shape[1] <= _FEW.positions else _MANY

    def launch(
        self, grid: tuple[int, int], factors: Tensor, out: Tensor, squares: Tensor, summing: int,
        share: int,
    ) -> None:  # fmt: skip
        batch, positions, p = self.g.shape
        tile = self.tile
        _products[grid](
            self.a, self.g, factors, out, squares, summing,
            batch, positions, self.d, p, share, *self._reads, **self._shape,
            ROWS=tile.rows, COLUMNS=tile.columns, POSITIONS=tile.positions,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip


_OF_IMAGES = "SPACE WIDTH KERNEL_W STRIDE_H STRIDE_W PAD_H PAD_W DILATE_H DILATE_W"
_NO_CONVOLUTION = {"CONVOLUTION": False} | dict.fromkeys(_OF_IMAGES.split(), 0)


def row_pointers(a: Tensor, g: Tensor) -> Pointers:
    a, g = _near(a), _near(g)
    example, position, channel = a.stride()
    reads = (example, 0, 0, position, channel, *g.stride(), 1, 1, 1)
    return Pointers(a, g, a.shape[2], reads, _NO_CONVOLUTION)


def _near(rows: Tensor) -> Tensor:
    """The values of an example so near to each other that 32 bits tell how far."""
    reach = sum(
        (size - 1) * step for size, step in zip(rows.shape[1:], rows.stride()[1:], strict=True)
    )
    return rows if reach < _REACH else rows.contiguous()


def image_pointers(
    x: Tensor, g: Tensor, geometry: Convolution, shape: tuple[int, int, int]
) -> Pointers:
    """x: channels last; g: (B, T, p), T over `shape`, the views, heights and widths."""
    each, height, width = shape
    view, channel, row, column = x.stride()
    (kernel_h, kernel_w), (stride_h, stride_w) = geometry.kernel, geometry.stride
    (pad_h, pad_w), (dilate_h, dilate_w) = geometry.padding, geometry.dilation
    reads = (each * view, view, row, column, channel, *g.stride())
    steps = {"STRIDE_H": stride_h, "STRIDE_W": stride_w, "DILATE_H": dilate_h, "DILATE_W": dilate_w}
    space = {"CONVOLUTION": True, "SPACE": height * width, "WIDTH": width}
    constants = space | {"KERNEL_W": kernel_w, "PAD_H": pad_h, "PAD_W": pad_w} | steps
    d = kernel_h * kernel_w * x.shape[1]
    return Pointers(x, g, d, (*reads, *x.shape[1:]), constants)
