"""Per-example products g^T a of a layer, used without being written out.

A layer is read twice: for the squares of every product, and for their weighted sum. Both come from
one compiled kernel that forms a product by the same instructions, so the norms are those of what is
added, bit for bit, also where products run in tf32. Convolutions read the images where their
patches lie; no patch is written.

Two kernels: one for operands that lie anyhow, in tf32 or bfloat16, and one for bfloat16 operands
that the GPU's copy engine reads box by box.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
import triton
import triton.language as tl
from torch import Tensor

from tightrope.train.gradients.rounding import TINY
from tightrope.train.gradients.row_kernels import added

if TYPE_CHECKING:
    from tightrope.train.gradients.convolution import Convolution

_DESCRIBED = importlib.util.find_spec("triton.tools.tensor_descriptor") is not None
_PROGRAMS = 1056  # enough of them to keep a large GPU busy


class Tile(NamedTuple):
    """rows and columns of a product; positions that are read at a time."""

    rows: int
    columns: int
    positions: int
    warps: int
    stages: int


_FEW, _MANY = Tile(128, 128, 16, 8, 3), Tile(128, 64, 32, 4, 3)  # positions, in tf32
# In bfloat16, the fastest of many: rows; images of few positions with many outputs, and of many.
_HALF, _WIDE, _LONG = Tile(64, 128, 64, 4, 3), Tile(128, 128, 64, 8, 3), Tile(64, 128, 128, 4, 2)
_POSITIONS = 64  # of a box
_TALL = Tile(128, 128, _POSITIONS, 8, 3)  # where there are more than two boxes of rows


@final
class Operands(NamedTuple):
    """g: (B, T, p), and what it is multiplied by: rows (B, T, d) or images; a product is (p, d).

    numbers: strides and sizes for the kernel. box: positions that are read at a time by the copy
    engine; none where operands lie anyhow. column_tiles: none spans two taps of a box.
    """

    a: Tensor
    g: Tensor
    d: int
    tile: Tile
    column_tiles: int
    numbers: tuple[int, ...]
    constants: dict[str, Any]
    box: tuple[int, ...] = ()

    @property
    def tiles(self) -> int:
        """Of one product."""
        return int(triton.cdiv(self.g.shape[2], self.tile.rows)) * self.column_tiles

    def share(self, most: int) -> int:
        """Examples for each program, so that all together keep the device busy."""
        splits = triton.cdiv(_PROGRAMS, self.tiles)
        return max(1, min(most, int(triton.cdiv(len(self.g), splits))))


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


# Operands that lie anyhow.


# One binary for squares and sums: what differs between the two is not compiled in, nor at which
# address the factors lie. Examples and blocks of positions are one loop, so that the next example
# is read while one is multiplied. One position as a constant is more than the compiler can bear.
@triton.jit(do_not_specialize=["factor_ptr", "summing", "batch", "share", "positions"])
def _products(
    a_ptr, g_ptr, factor_ptr, out_ptr, squares_ptr, summing, batch, share, positions, d, p,
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


_OF_IMAGES = "SPACE WIDTH KERNEL_W STRIDE_H STRIDE_W PAD_H PAD_W DILATE_H DILATE_W"
_NO_CONVOLUTION = {"CONVOLUTION": False} | dict.fromkeys(_OF_IMAGES.split(), 0)


def _near(rows: Tensor) -> Tensor:
    """The values of an example so near to each other that 32 bits tell how far."""
    pairs = zip(rows.shape[1:], rows.stride()[1:], strict=True)
    return rows if sum((size - 1) * step for size, step in pairs) < 2**31 else rows.contiguous()


def row_pointers(a: Tensor, g: Tensor) -> Operands:
    a, g, d = _near(a), _near(g), a.shape[2]
    tile = _HALF if a.element_size() == 2 else _FEW if g.shape[1] <= _FEW.positions else _MANY
    example, position, channel = a.stride()
    numbers = (example, 0, 0, position, channel, *g.stride(), 1, 1, 1)
    return Operands(a, g, d, tile, int(triton.cdiv(d, tile.columns)), numbers, _NO_CONVOLUTION)


def image_pointers(
    x: Tensor, g: Tensor, geometry: Convolution, shape: tuple[int, int, int]
) -> Operands:
    """x: channels last; g: (B, T, p), T over `shape`, the views, heights and widths."""
    _, positions, outputs = g.shape
    if x.element_size() == 2:
        few = _WIDE if outputs > _HALF.rows else _HALF
        tile = _LONG if positions >= _LONG.positions else few
    else:
        tile = _FEW if positions <= _FEW.positions else _MANY
    view, channel, row, column = x.stride()
    numbers = (shape[0] * view, view, row, column, channel, *g.stride(), *x.shape[1:])
    stride_h, stride_w = geometry.stride
    constants = {"CONVOLUTION": True, "STRIDE_H": stride_h, "STRIDE_W": stride_w}
    d = geometry.weight_shape[1:].numel()
    columns = int(triton.cdiv(d, tile.columns))
    return Operands(x, g, d, tile, columns, numbers, constants | _taps(geometry, shape))


def _taps(geometry: Convolution, shape: tuple[int, int, int]) -> dict[str, Any]:
    (pad_h, pad_w), (dilate_h, dilate_w) = geometry.padding, geometry.dilation
    return {
        "SPACE": shape[1] * shape[2], "WIDTH": shape[2], "KERNEL_W": geometry.kernel[1],
        "PAD_H": pad_h, "PAD_W": pad_w, "DILATE_H": dilate_h, "DILATE_W": dilate_w,
    }  # fmt: skip


# Boxes.


# What lies outside of a tensor is zero: the padding of a convolution, and positions behind the last
# of an example. No box holds anything of another example, whose values, were they not finite, would
# make zeros of this one not finite. For GPUs of the Hopper generation.
@triton.jit(do_not_specialize=["factor_ptr", "summing", "batch", "share", "positions"])
def _boxed_products(
    a_box, g_box, factor_ptr, out_ptr, squares_ptr, summing, batch, share, positions, d, p,
    channels, each,
    SPACE: tl.constexpr, WIDTH: tl.constexpr, KERNEL_W: tl.constexpr,
    PAD_H: tl.constexpr, PAD_W: tl.constexpr, DILATE_H: tl.constexpr, DILATE_W: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    tile, split = tl.program_id(0), tl.program_id(1)
    of_tap = tl.cdiv(channels, COLUMNS)
    tiles = d // channels * of_tap
    row, tap, channel = tile // tiles * ROWS, tile % tiles // of_tap, tile % of_tap * COLUMNS
    tap_h, tap_w = tap // KERNEL_W * DILATE_H - PAD_H, tap % KERNEL_W * DILATE_W - PAD_W
    first, blocks = split * share, tl.cdiv(positions, POSITIONS)
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


_ONE_TAP = {
    "SPACE": 0, "WIDTH": 1, "KERNEL_W": 1, "PAD_H": 0, "PAD_W": 0, "DILATE_H": 1, "DILATE_W": 1,
}  # fmt: skip


def row_boxes(a: Tensor, g: Tensor) -> Operands | None:
    if not readable(a, g):
        return None
    tile, d = _TALL if a.shape[1] > 2 * _POSITIONS else _tile(a.shape[2]), a.shape[2]
    columns = int(triton.cdiv(d, tile.columns))
    return Operands(a, g, d, tile, columns, (d, 1), _ONE_TAP, (1, _POSITIONS))


def image_boxes(
    x: Tensor, g: Tensor, geometry: Convolution, shape: tuple[int, int, int]
) -> Operands | None:
    """x: channels last; g: (B, T, p), T over `shape`, the views, heights and widths."""
    x = x.permute(0, 2, 3, 1)
    box = _box_of(shape)
    if box is None or geometry.stride != (1, 1) or not readable(x, g):
        return None
    channels, (kernel_h, kernel_w) = x.shape[3], geometry.kernel
    tile, taps = _tile(channels), kernel_h * kernel_w
    columns, constants = taps * int(triton.cdiv(channels, tile.columns)), _taps(geometry, shape)
    numbers = (channels, shape[0])
    return Operands(x, g, taps * channels, tile, columns, numbers, constants, box)


def _tile(inputs: int) -> Tile:
    return Tile(64, 64 if inputs <= 64 else 128, _POSITIONS, 4, 3)


def _box_of(shape: tuple[int, int, int]) -> tuple[int, int, int] | None:
    """Views, heights and widths, powers of two, that are positions in a row; or None."""
    box, room, whole = list[int](), _POSITIONS, True
    for size in reversed(shape):
        box.append(min(size & -size, room) if whole else 1)  # a power of two that divides the size
        room, whole = room // box[-1], whole and box[-1] == size
    width, height, views = box
    return (views, height, width) if room == 1 else None


def readable(*tensors: Tensor) -> bool:
    """Whether the copy engine can read them."""
    return all(map(_readable, tensors))


def _readable(t: Tensor) -> bool:
    """Dimensions one inside the other, at addresses that are whole numbers of 16 bytes.

    A copy of it, without some examples, is so as well.
    """
    if t.dtype is not torch.bfloat16 or not t.numel() or t.shape[-1] % 8 or t.data_ptr() % 16:
        return False
    if not _DESCRIBED:
        return False
    if t.is_cuda and torch.cuda.get_device_capability(t.device)[0] != 9:
        return False
    steps = t.stride()
    apart = steps[-1] == 1 and all(step > 0 and 2 * step % 16 == 0 for step in steps[:-1])
    return apart and [*steps] == sorted(steps, reverse=True)


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
    _launch(operands, None, operands.share(batch), squares)
    return squares.sum(1).add_(TINY * operands.d * p)


def written(operands: Operands, dtype: torch.dtype = torch.float32) -> Tensor:
    """(B, p, d): the products themselves; in another type no longer those of `squares_of`."""
    batch, _, p = operands.g.shape
    out = torch.empty(batch, p, operands.d, dtype=dtype, device=operands.g.device)
    _launch(operands, None, 1, out)
    return out


def weighted_sum_of(operands: Operands, factors: Tensor, chain: int) -> Tensor:
    """(p, d) = sum_b f_b g_b^T a_b; at most `chain` examples are added in one float32 chain."""
    share = operands.share(chain)
    parts = (triton.cdiv(len(operands.g), share), operands.g.shape[2], operands.d)
    out = torch.empty(parts, device=operands.g.device)
    _launch(operands, factors.float(), share, out)
    return out[0] if len(out) == 1 else added(out).float()


def _launch(operands: Operands, factors: Tensor | None, share: int, out: Tensor) -> None:
    """Sums of `share` examples each, or the squares of every tile into a float64 tensor.

    One binary does both, so that both are of the same products, bit for bit.
    """
    a: Any
    g: Any
    a, g, d, tile, _, numbers, constants, box = operands
    (batch, positions, p), device = g.shape, out.device
    factors = torch.ones(batch, device=device) if factors is None else factors
    summing = out.dtype is not torch.float64
    nothing = torch.empty(1, dtype=torch.float64 if summing else torch.float32, device=device)
    places = (out, nothing) if summing else (nothing, out)
    if box:
        from triton.tools.tensor_descriptor import TensorDescriptor

        a = TensorDescriptor.from_tensor(a, [*box, tile.columns])
        g = TensorDescriptor.from_tensor(g, [1, tile.positions, tile.rows])
    kernel: Any = _boxed_products if box else _products
    kernel[operands.tiles, int(triton.cdiv(batch, share))](
        a, g, factors, *places, int(summing), batch, share, positions, d, p, *numbers, **constants,
        ROWS=tile.rows, COLUMNS=tile.columns, POSITIONS=tile.positions,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
