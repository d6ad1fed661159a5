"""Per-example products g^T a of a layer, used without being written out.

A layer is read twice: for the squares of every product, and for their weighted sum. Both come from
one compiled kernel that forms a product by the same instructions, so the norms are those of what is
added, bit for bit, also where products run in tf32. Convolutions read the images where their
patches lie; no patch is written.

Two kernels: one for operands that lie anyhow, in tf32 or bfloat16 (`Pointers`), and one for
bfloat16 operands that the GPU's copy engine reads box by box (`Boxes`).
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
import triton
import triton.language as tl
from torch import Tensor

from tightrope.train.gradients.rounding import TINY
from tightrope.train.gradients.row_kernels import added

if TYPE_CHECKING:
    from tightrope.train.gradients.convolution import Convolution

__all__ = ["Boxes", "Operands", "Pointers", "images", "readable", "rows", "squares_of",
           "weighted_sum_of", "written"]  # fmt: skip

_PROGRAMS = 1056  # enough of them to keep a large GPU busy


class Tile(NamedTuple):
    """rows and columns of a product; positions that are read at a time."""

    rows: int
    columns: int
    positions: int
    warps: int
    stages: int


@triton.jit
def used(product, total, example, factor_ptr, squares_ptr, summing):
    """What both kernels do with a finished product: added to the total, or squared."""
    if summing != 0:
        factor = tl.load(factor_ptr + example)
        if factor > 0.0:  # a dropped example may hold nan
            total += factor * product
    else:
        squares = tl.sum(tl.sum(product * product, axis=1).to(tl.float64), axis=0)
        place = example.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
        tl.store(squares_ptr + place, squares)
    return total


class Operands(ABC):
    """g: (B, T, p), and what it is multiplied by; a product is (p, d)."""

    g: Tensor
    d: int
    tile: Tile

    @property
    def tiles(self) -> int:
        """Of one product."""
        return int(triton.cdiv(self.g.shape[2], self.tile.rows)) * self.column_tiles

    @property
    def column_tiles(self) -> int:
        return int(triton.cdiv(self.d, self.tile.columns))

    def share(self, most: int) -> int:
        """Examples for each program, so that all together keep the device busy."""
        splits = triton.cdiv(_PROGRAMS, self.tiles)
        return max(1, min(most, int(triton.cdiv(len(self.g), splits))))

    @abstractmethod
    def launch(
        self, grid: tuple[int, int], factors: Tensor, out: Tensor, squares: Tensor, summing: int,
        share: int,
    ) -> None:  # fmt: skip
        """Sums of `share` examples each into `out`, or the squares of every tile into `squares`.

        One binary does both, so that both are of the same products, bit for bit.
        """


# Operands that lie anyhow.

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


# Boxes. What lies outside of a tensor is zero: the padding of a convolution, and positions behind
# the last of an example. No box holds anything of another example, whose values, were they not
# finite, would make zeros of this one not finite. For GPUs of the Hopper generation.

_DESCRIBED = importlib.util.find_spec("triton.tools.tensor_descriptor") is not None
_HOPPER = 9
_POSITIONS = 64  # of a box
_TALL = Tile(128, 128, _POSITIONS, 8, 3)  # where there are more than two boxes of rows


# One binary for squares and sums, one loop over examples and blocks of positions: see above.
# One block as a constant is more than the compiler can bear.
@triton.jit(do_not_specialize=["factor_ptr", "summing", "batch", "share", "blocks"])
def _boxed_products(
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
        constants: dict[str, Any] = _ONE_TAP | self._constants
        _boxed_products[grid](
            a_box, g_box, factors, out, squares, summing, batch, share,
            triton.cdiv(positions, tile.positions), self.d, p, self.a.shape[-1], self._each,
            **constants, ROWS=tile.rows, COLUMNS=tile.columns, POSITIONS=tile.positions,
            num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip


_ONE_TAP = {
    "SPACE": 0, "WIDTH": 1, "KERNEL_W": 1, "PAD_H": 0, "PAD_W": 0, "DILATE_H": 1, "DILATE_W": 1,
}  # fmt: skip


def row_boxes(a: Tensor, g: Tensor) -> Boxes | None:
    if not readable(a, g):
        return None
    tile = _TALL if a.shape[1] > 2 * _POSITIONS else _tile(a.shape[2])
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


# What is asked of either.


def rows(a: Tensor, g: Tensor) -> Operands:
    """Of a linear layer: (B, T, d) and (B, T, p)."""
    return row_boxes(a, g) or row_pointers(a, g)


def images(x: Tensor, g: Tensor, geometry: Convolution, each: int = 1) -> Operands:
    """Of a convolution over x: (B * each, C, H, W); columns are ordered (kh, kw, C)."""
    x = x.contiguous(memory_format=torch.channels_last)
    g = g.contiguous(memory_format=torch.channels_last)
    height, width = g.shape[2:]
    g = g.permute(0, 2, 3, 1).reshape(len(g) // each, each * height * width, g.shape[1])
    shape = (each, height, width)
    return image_boxes(x, g, geometry, shape) or image_pointers(x, g, geometry, shape)


def squares_of(operands: Operands) -> Tensor:
    """(B,) squares of |g_b^T a_b| from above."""
    batch, _, p = operands.g.shape
    # Zeros: where there is no position, nothing is written.
    squares = torch.zeros(batch, operands.tiles, dtype=torch.float64, device=operands.g.device)
    _launch(operands, _ones(operands), operands.share(batch), squares)
    return squares.sum(1).add_(TINY * operands.d * p)


def written(operands: Operands, dtype: torch.dtype = torch.float32) -> Tensor:
    """(B, p, d): the products themselves; in another type no longer those of `squares_of`."""
    batch, _, p = operands.g.shape
    out = torch.empty(batch, p, operands.d, dtype=dtype, device=operands.g.device)
    _launch(operands, _ones(operands), 1, out)
    return out


def weighted_sum_of(operands: Operands, factors: Tensor, chain: int) -> Tensor:
    """(p, d) = sum_b f_b g_b^T a_b; at most `chain` examples are added in one float32 chain."""
    share = operands.share(chain)
    parts = (triton.cdiv(len(operands.g), share), operands.g.shape[2], operands.d)
    out = torch.empty(parts, device=operands.g.device)
    _launch(operands, factors.float(), share, out)
    return out[0] if len(out) == 1 else added(out).float()


def _ones(operands: Operands) -> Tensor:
    return torch.ones(len(operands.g), device=operands.g.device)


def _launch(operands: Operands, factors: Tensor, share: int, out: Tensor) -> None:
    """Squares into a float64 tensor, sums into another."""
    summing = out.dtype is not torch.float64
    nothing = torch.empty(1, dtype=torch.float64 if summing else torch.float32, device=out.device)
    grid = (operands.tiles, int(triton.cdiv(len(operands.g), share)))
    places = (out, nothing) if summing else (nothing, out)
    operands.launch(grid, factors, *places, int(summing), share)
