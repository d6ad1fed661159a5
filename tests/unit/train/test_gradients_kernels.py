"""The Triton kernels against plain torch, on a GPU (or interpreted, with TRITON_INTERPRET=1)."""

from __future__ import annotations

import os

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("triton", reason="the kernels need Triton")
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("the kernels need a GPU or TRITON_INTERPRET=1", allow_module_level=True)

from tightrope.train.gradients import outer, row_kernels
from tightrope.train.gradients import product_kernels as products
from tightrope.train.gradients.convolution import Convolution
from tightrope.train.gradients.outer import Outer
from tightrope.train.gradients.rounding import TINY

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=DEVICE == "cpu")
def _interpreted_products(monkeypatch):
    """The interpreter multiplies the bits of bfloat16, and NumPy warns of what is no number."""
    import triton.language as tl
    from triton.runtime import interpreter

    def create_dot(a, b, d, *_):
        a, b = (builder.cast_impl(v, tl.float32) if v.dtype == tl.bfloat16 else v for v in (a, b))
        with numpy.errstate(invalid="ignore", over="ignore"):
            found = numpy.matmul(a.data, b.data, dtype=d.data.dtype) + d.data
        return interpreter.TensorHandle(found, d.dtype.scalar)

    builder = interpreter.interpreter_builder
    monkeypatch.setattr(builder, "create_dot", create_dot)


def random(*shape, half=False):
    values = torch.randn(*shape, device=DEVICE)
    return values.half() if half else values


@pytest.mark.parametrize(("d", "p"), [(1, 1), (7, 512), (513, 3), (4096, 4096)])
def test_squares_of_rows_are_never_below_the_exact_ones(d, p):
    a, g = random(5, d + 3)[:, :d], random(p, 5).t() * 1e-3  # strided, and transposed
    a[1], g[2] = 1e-30, 0.0  # squares that underflow
    for values, found in [
        (a.double().square().sum(1), row_kernels.row_squares(a)),
        (a.double().square().sum(1) * g.double().square().sum(1), row_kernels.row_squares(a, g)),
    ]:
        assert bool((found.double() >= values * (1 - 2.0**-18) - TINY).all())
        assert bool((found.double() <= values * (1 + 2.0**-18) + 1e-30).all())
    a[3, 0] = torch.inf
    assert row_kernels.row_squares(a)[3] == torch.inf


def test_weighted_rows_of_strided_values():
    values = random(3, 60, 50, half=True)[:, :50].reshape(3, -1)
    values[1] = torch.nan
    factors = torch.tensor([0.5, 0.0, 2.0], device=DEVICE)
    expected = 0.5 * values[0].float() + 2 * values[2].float()
    for chain in (1, 100):
        torch.testing.assert_close(row_kernels.weighted_rows(values, factors, chain), expected)


def test_rows_without_values_have_a_sum_without_values():
    """Those of a layer without inputs."""
    found = row_kernels.weighted_rows(random(5, 0), torch.ones(5, device=DEVICE), 100)
    assert found.shape == (0,) and found.dtype is torch.float32


@pytest.mark.parametrize(("batch", "length"), [(5, 70_000), (300, 1000), (2000, 7)])
def test_weighted_rows_are_added_in_float64(batch, length):
    values, factors = random(batch, length), torch.rand(batch, device=DEVICE)
    exact = (values.double() * factors.double()[:, None]).sum(0)
    rounding = 2.0**-24 * (factors.double()[:, None] * values.double().abs()).sum(0)
    error = (row_kernels.weighted_rows(values, factors, 1).double() - exact).abs()
    assert bool((error <= 2.1 * rounding).all())
    error = (row_kernels.weighted_rows(values, factors, 100).double() - exact).abs()
    assert bool((error <= 35 * rounding).all())


def check_same_products(operands, exact, *, rtol=1e-3, atol=1e-3):
    """Written, squared and added they are the same bits, whoever else is in the batch."""
    written = products.written(operands)
    torch.testing.assert_close(written.double(), exact, rtol=rtol, atol=atol)
    squares = written.double().square().sum((1, 2))
    assert bool((products.squares_of(operands) / squares - 1).abs().max() <= 2.0**-20)
    for example in range(len(written)):
        one = torch.zeros(len(written) + 1, device=DEVICE)[1:]  # at any address
        one[example] = 1
        for chain in (1, 100):
            found = products.weighted_sum_of(operands, one, chain)
            assert torch.equal(found, written[example])


def product(a, g):
    return torch.bmm(g.double().transpose(1, 2), a.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("positions", [3, 17, 70])
@pytest.mark.parametrize(("d", "p"), [(5, 3), (300, 130)])
def test_norms_and_sums_are_of_the_same_products(positions, d, p, dtype):
    """What a product's square is taken of is what the sum adds, also in tf32."""
    a, g = random(4, d, positions).transpose(1, 2).to(dtype), random(4, positions, p).to(dtype)
    check_same_products(products.rows(a, g), product(a, g), rtol=1e-2, atol=0.05)


def test_weighted_products_in_chains():
    a, g, factors = random(50, 20, 70), random(50, 20, 30), torch.rand(50, device=DEVICE)
    a[7], factors[7] = torch.nan, 0
    written = products.written(products.rows(a, g))
    written[7] = 0
    terms = factors.double()[:, None, None] * written.double()
    for chain in (1, 10, 100):
        found = products.weighted_sum_of(products.rows(a, g), factors, chain)
        error = (found.double() - terms.sum(0)).abs()
        assert bool((error <= (min(chain, 50) + 2) * 2.0**-24 * terms.abs().sum(0)).all())


def convolution(channels, outputs, options, rows, *, half, last, groups=1):
    """Images, output gradients, their geometry, and the gradient of each row in float64."""
    torch.manual_seed(0)
    layer = nn.Conv2d(channels, outputs, groups=groups, **options).to(DEVICE)
    x = random(rows, channels, 9, 10)
    x, g = x.to(half), random(*layer(x).shape).to(half)
    if last:
        x, g = (v.contiguous(memory_format=torch.channels_last) for v in (x, g))
    shape, *how = layer.weight.shape, layer.stride, layer.padding, layer.dilation
    exact = [
        torch.nn.grad.conv2d_weight(one.double(), shape, of.double(), *how, groups)
        for one, of in zip(x.cpu().split(1), g.cpu().split(1), strict=True)
    ]
    return x, g, Convolution(shape, *how, groups), torch.stack(exact).to(DEVICE)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize(
    ("channels", "outputs", "options"),
    [
        (8, 20, {"kernel_size": 3, "padding": 1}),
        (16, 70, {"kernel_size": (2, 3), "stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)}),
        (24, 16, {"kernel_size": 1, "stride": 2}),
    ],
)
def test_products_of_patches_that_are_not_written(channels, outputs, options, each, last):
    x, g, geometry, exact = convolution(
        channels, outputs, options, 3 * each, half=torch.bfloat16, last=last
    )
    exact = exact.unflatten(0, (3, each)).sum(1).movedim(2, -1).flatten(2)
    check_same_products(products.images(x, g, geometry, each), exact)


BOXED = pytest.mark.skipif(
    DEVICE == "cuda" and torch.cuda.get_device_capability()[0] != 9,
    reason="boxes are for GPUs of the Hopper generation",
)


@BOXED
@pytest.mark.parametrize("positions", [1, 64, 130])
@pytest.mark.parametrize(("d", "p"), [(8, 16), (72, 200), (136, 64)])
def test_products_of_boxes_of_rows(positions, d, p):
    a, g = (random(4, positions, size).bfloat16() for size in (d, p))
    operands = products.rows(a, g)
    assert operands.box
    check_same_products(operands, product(a, g))


@BOXED
@pytest.mark.parametrize(
    ("each", "height", "width"),
    [(4, 4, 4), (8, 2, 4), (1, 12, 16), (2, 4, 32), (3, 8, 8), (2, 2, 128)],
)
@pytest.mark.parametrize(
    ("channels", "outputs", "options"),
    [
        (8, 16, {"kernel_size": 3, "padding": 1}),
        (72, 136, {"kernel_size": (2, 3), "padding": (0, 2), "dilation": (1, 2)}),
    ],
)
def test_products_of_boxes_of_images(channels, outputs, options, each, height, width):
    """The views of an example lie one after the other; boxes span several of small images."""
    layer = nn.Conv2d(channels, outputs, **options)
    taller = height + (layer.kernel_size[0] - 1) * layer.dilation[0] - 2 * layer.padding[0]
    wider = width + (layer.kernel_size[1] - 1) * layer.dilation[1] - 2 * layer.padding[1]
    x, g = random(3 * each, channels, taller, wider), random(3 * each, outputs, height, width)
    x, g = x.bfloat16(), g.bfloat16()
    geometry = Convolution(layer.weight.shape, layer.stride, layer.padding, layer.dilation, 1)
    operands = products.images(x, g, geometry, each)
    assert operands.box
    patches = functional.unfold(
        x.double(), layer.kernel_size, layer.dilation, layer.padding, layer.stride
    ).unflatten(1, (channels, -1)).transpose(1, 2).flatten(1, 2)  # fmt: skip
    rows = torch.einsum("bpt,bnt->bpn", g.double().flatten(2), patches)
    check_same_products(operands, rows.unflatten(0, (3, each)).sum(1))


@BOXED
def test_a_box_holds_nothing_of_another_example():
    """Where it is not finite, zeros of this example would not be either."""
    geometry = Convolution(torch.Size((16, 8, 3, 3)), (1, 1), (1, 1), (1, 1), 1)
    for each, height, width in [(4, 4, 4), (2, 4, 8), (1, 8, 8), (2, 16, 16)]:
        x, g = (random(3 * each, c, height, width).bfloat16() for c in (8, 16))
        x[each : 2 * each] = torch.nan
        squares = products.squares_of(products.images(x, g, geometry, each))
        assert squares.isfinite().tolist() == [True, False, True]
    for positions in (1, 3, 70):
        a, g = random(3, positions, 8).bfloat16(), random(3, positions, 16).bfloat16()
        a[1], g[1] = torch.inf, torch.nan
        squares = products.squares_of(products.rows(a, g))
        assert squares.isfinite().tolist() == [True, False, True]


@pytest.mark.parametrize("change", ["strides", "address", "dtype", "width"])
def test_what_boxes_cannot_read_is_read_by_pointers(change):
    a, g = random(4, 20, 32).bfloat16(), random(4, 20, 16).bfloat16()
    exact = product(a, g)
    if change == "strides":
        a = a.transpose(0, 1).contiguous().transpose(0, 1)
    elif change == "address":
        wide = torch.zeros(4, 20, 40, dtype=a.dtype, device=DEVICE)
        wide[..., 1:33] = a
        a = wide[..., 1:33]
    elif change == "dtype":
        a, g = a.half(), g.half()
    else:
        a, exact = a[..., :31].contiguous(), exact[..., :31]
    operands = products.rows(a, g)
    assert not operands.box
    torch.testing.assert_close(products.written(operands).double(), exact, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("channels", "outputs", "options"),
    [
        (3, 20, {"kernel_size": 3, "padding": 1}),
        (5, 40, {"kernel_size": (2, 3), "stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)}),
        (1, 16, {"kernel_size": 8, "stride": 2, "padding": 2}),
    ],
)
def test_convolutions(channels, outputs, options):
    torch.manual_seed(0)
    layer = nn.Conv2d(channels, outputs, **options).to(DEVICE)
    x = random(2, channels, 12, 11)
    g = random(*layer(x).shape)
    geometry = Convolution(layer.weight.shape, layer.stride, layer.padding, layer.dilation, 1)
    patches = functional.unfold(x, layer.kernel_size, layer.dilation, layer.padding, layer.stride)
    torch.testing.assert_close(row_kernels.unfold(x, geometry, list(g.shape[2:])), patches)
    squares, gradients = row_kernels.convolution_gradients(x, g, geometry)
    expected = torch.einsum("bpt,bnt->bpn", g.flatten(2).double(), patches.double())
    rounding = 1e-4 if DEVICE == "cpu" else 1e-2  # tf32 on a GPU
    torch.testing.assert_close(
        gradients.flatten(2).double(), expected, rtol=rounding, atol=10 * rounding
    )
    torch.testing.assert_close(squares, gradients.flatten(1).square().sum(1), rtol=1e-4, atol=0)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("half", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("channels", "outputs", "options"),
    [
        (5, 5, {"kernel_size": 7, "padding": 3}),
        (40, 40, {"kernel_size": (2, 3), "stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)}),
        (3, 9, {"kernel_size": 1}),
    ],
)
def test_depthwise_convolutions(channels, outputs, options, half, last):
    x, g, geometry, exact = convolution(
        channels, outputs, options, 2, half=half, last=last, groups=channels
    )
    found = row_kernels.written_depthwise(x, g, geometry)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_examples_without_positions_have_no_gradient(dtype):
    """What lay in memory before is no norm."""
    a, g = (random(5, 0, size).to(dtype) for size in (16, 8))
    operands = products.rows(a, g)
    for junk in (-7.0, torch.nan):
        torch.full((5, operands.tiles), junk, dtype=torch.float64, device=DEVICE)
        assert bool((products.squares_of(operands) == TINY * 16 * 8).all())
    assert not products.written(operands).any()
    assert not products.weighted_sum_of(operands, torch.ones(5, device=DEVICE), 3).any()


def test_positions_that_lie_far_apart_are_brought_together():
    """A place of theirs would not fit into 32 bits; tensors without memory show it."""
    far = torch.empty(2048, 2048, 1024, dtype=torch.bfloat16, device="meta").transpose(0, 1)
    operands = products.row_pointers(far[:3], far[:3, :, :8])
    for values in (operands.a, operands.g):
        assert values.stride(1) * (values.shape[1] - 1) < 2**31
    near = far[:3, :1000]
    assert products.row_pointers(near, near).a is near


def test_without_some_examples_products_come_from_the_kernel_that_took_their_norms():
    """A copy of operands that lie anyhow could be read box by box."""
    a, g = random(4, 1, 32).bfloat16().expand(-1, 20, -1), random(4, 20, 16).bfloat16()
    form = Outer(a, g)
    boxed = bool(products.rows(form.a, form.g).box)
    form.zero(torch.tensor([False, True, False, False], device=DEVICE))
    assert bool(products.rows(form.a, form.g).box) is boxed


@pytest.mark.parametrize("chain", [0, 1, 100])
def test_products_of_dropped_examples_add_nothing(monkeypatch, chain):
    monkeypatch.setattr(outer, "lower_products", lambda: True)
    a, g = random(4, 20, 320), random(4, 20, 160)
    exact = product(a, g)
    a[1], g[2] = torch.nan, torch.inf
    bad = torch.tensor([False, True, True, False], device=DEVICE)
    form = Outer(a, g)
    assert not form.by_gram and not form.instantiated
    form.zero(bad)
    for found in (form.weighted_sum(torch.ones(4, device=DEVICE), chain), form.dense().sum(0)):
        torch.testing.assert_close(found.double(), exact[[0, 3]].sum(0), rtol=1e-2, atol=1e-2)
