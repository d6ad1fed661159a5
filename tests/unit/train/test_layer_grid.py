"""Every layer, with every combination of its options: its clipped sums are those of the slow loop.

The grids span what other libraries for private training test their layer rules on, and more. Each
configuration is an experiment of its own: captured, proved, and run on a batch that is filled up.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tightrope.train.program import Mixes, NotCaptured, Unknown

sys.path.insert(0, str(Path(__file__).parent / "zoo"))
from cases import EXAMPLES as B
from cases import energy
from check import assert_right

pytestmark = pytest.mark.filterwarnings("ignore")
Config = tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]


def grid(
    make: Callable[..., nn.Module],
    inputs: Callable[..., tuple[Tensor, ...]],
    skip: Callable[..., bool] = lambda **_: False,
    **options: list[Any],
) -> Iterator[Config]:
    """A layer and a batch for every combination of the options."""
    for values in itertools.product(*options.values()):
        chosen = dict(zip(options, values, strict=True))
        if not skip(**chosen):
            yield partial(make, **chosen), partial(inputs, **chosen)


class Turned(nn.Module):
    """Gives a layer its batch in the second dimension, as sequence-first layers want it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer(x.transpose(0, 1))
        return (out[0] if isinstance(out, tuple) else out).transpose(0, 1)


class Apart(nn.Module):
    """Queries, keys and values of their own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.layer.batch_first:
            return self.layer(q, k, v)[0]
        return self.layer(*(x.transpose(0, 1) for x in (q, k, v)))[0].transpose(0, 1)


class Scale(nn.Module):
    """A weight for each channel, so that there is something to train."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.view(-1, *[1] * (x.dim() - 2))


def linear() -> Iterator[Config]:
    def make(width, out, bias, turned, **_):
        layer = nn.Linear(width, out, bias)
        return Turned(layer) if turned else layer

    return grid(
        make, lambda inner, width, **_: (torch.randn(B, *inner, width),),
        lambda inner, turned, **_: turned and not inner,
        inner=[(), (3,), (4, 3)], width=[5, 17], out=[1, 7], bias=[True, False],
        turned=[False, True],
    )  # fmt: skip


def convolution(kind: Any, sizes: list[int], **options: list[Any]) -> Iterator[Config]:
    def count(channels, groups, **_):
        return channels if groups == "depthwise" else groups

    def make(channels, out, groups, **how):
        groups = count(channels, groups)
        out = 2 * channels if out == "more" else max(channels // 3, 1)
        return kind(channels, -(-out // groups) * groups, groups=groups, **how)

    def skip(channels, stride, padding, groups, **_):
        return (padding == "same" and stride != 1) or channels % count(channels, groups) != 0

    return grid(make, lambda channels, **_: (torch.randn(B, channels, *sizes),), skip, **options)


def conv1d() -> Iterator[Config]:
    return convolution(
        nn.Conv1d, [9], channels=[1, 3, 8], out=["more", "fewer"], kernel_size=[2, 3],
        stride=[1, 2], padding=[0, 1, 2, "same", "valid"], dilation=[1, 2],
        groups=[1, 3, 4, "depthwise"], bias=[True],
    )  # fmt: skip


def conv2d() -> Iterator[Config]:
    return convolution(
        nn.Conv2d, [9, 8], channels=[1, 3, 8], out=["more", "fewer"], kernel_size=[2, 4, (3, 2)],
        stride=[1, 2], padding=[0, 2, "same", "valid"], dilation=[1, (2, 1)],
        groups=[1, 4, "depthwise"], bias=[True, False],
    )  # fmt: skip


def conv3d() -> Iterator[Config]:
    return convolution(
        nn.Conv3d, [5, 6, 7], channels=[1, 3, 4], out=["more", "fewer"],
        kernel_size=[2, (1, 2, 3)], stride=[1, (1, 2, 3)], padding=[0, 2, "same", (1, 2, 0)],
        dilation=[1, (1, 2, 2)], groups=[1, "depthwise"], bias=[True],
    )  # fmt: skip


def padded_convolutions() -> Iterator[Config]:
    return grid(
        lambda dims, **how: getattr(nn, f"Conv{dims}d")(4, 4, 3, **how),
        lambda dims, **_: (torch.randn(B, 4, *[6] * dims),),
        lambda padding_mode, padding, dims, **_: (
            dims == 3 and padding_mode == "reflect" and padding == "same"
        ),
        padding_mode=["circular", "reflect", "replicate", "zeros"], padding=[1, "same"],
        dims=[1, 2, 3], groups=[1, 2],
    )  # fmt: skip


def transposed_convolutions() -> Iterator[Config]:
    return grid(
        lambda dims, **how: getattr(nn, f"ConvTranspose{dims}d")(4, 2, 3, **how),
        lambda dims, **_: (torch.randn(B, 4, *[4] * dims),),
        lambda output_padding, stride, dilation, **_: output_padding >= max(stride, dilation),
        dims=[1, 2, 3], stride=[1, 2], padding=[0, 1], groups=[1, 2], dilation=[1, 2],
        output_padding=[0, 1], bias=[True, False],
    )  # fmt: skip


def embedding() -> Iterator[Config]:
    return grid(
        lambda vocabulary, width, padding, **_: nn.Embedding(
            vocabulary, width, padding_idx=padding
        ),
        lambda vocabulary, shape, **_: (torch.randint(0, vocabulary, (B, *shape)),),
        vocabulary=[2, 11, 32], width=[1, 10], shape=[(), (5,), (3, 4), (2, 1, 3)],
        padding=[None, 1],
    )  # fmt: skip


def bags() -> Iterator[Config]:
    return grid(
        lambda vocabulary, length, **how: nn.EmbeddingBag(vocabulary, 4, **how),
        lambda vocabulary, length, **_: (torch.randint(0, vocabulary, (B, length)),),
        mode=["sum", "mean", "max"], vocabulary=[3, 12], length=[1, 5], padding_idx=[None, 2],
    )  # fmt: skip


def norms() -> Iterator[Config]:
    yield from grid(
        lambda last, affine, kind, **_: nn.Sequential(
            kind(last, elementwise_affine=affine), nn.Linear(5, 4)
        ),
        lambda inner, last, **_: (torch.randn(B, *inner, *last),),
        inner=[(), (3,), (2, 3), (4, 2, 3)], last=[(5,), (3, 5), (2, 3, 5)],
        affine=[True, False], kind=[nn.LayerNorm, nn.RMSNorm],
    )  # fmt: skip
    yield from grid(
        lambda width, **_: nn.Sequential(nn.LayerNorm(width, bias=False), nn.Linear(width, 2)),
        lambda inner, width: (torch.randn(B, *inner, width),),
        inner=[(), (3,)], width=[1, 5],
    )  # fmt: skip


def groups() -> Iterator[Config]:
    def count(channels, groups, **_):
        return channels if groups == "all" else groups

    def make(channels, groups, sizes, affine):
        norm = nn.GroupNorm(count(channels, groups), channels, affine=affine)
        return nn.Sequential(norm, Scale(channels))

    return grid(
        make, lambda channels, sizes, **_: (torch.randn(B, channels, *sizes),),
        # one number in a group: PyTorch refuses it for a batch of one
        lambda channels, groups, sizes, **_: not sizes and count(channels, groups) == channels,
        channels=[4, 8], groups=[1, 4, "all"], sizes=[(), (5,), (5, 4), (3, 2, 4)],
        affine=[True, False],
    )  # fmt: skip


def instances() -> Iterator[Config]:
    def make(dims, channels, side, affine):
        norm = getattr(nn, f"InstanceNorm{dims}d")(channels, affine=affine)
        return nn.Sequential(norm, Scale(channels))

    return grid(
        make,
        lambda dims, channels, side, **_: (
            torch.randn(B, channels, *[side - d for d in range(dims)]),
        ),
        dims=[1, 2, 3], channels=[1, 3], side=[5, 8], affine=[True, False],
    )  # fmt: skip


def attention() -> Iterator[Config]:
    return grid(
        lambda length, heads, other, **how: Apart(
            nn.MultiheadAttention(4, heads, kdim=other, vdim=other, **how)
        ),
        lambda length, other, **_: tuple(
            torch.randn(B, length, width) for width in (4, other or 4, other or 4)
        ),
        length=[3, 16], heads=[1, 2], bias=[True, False], add_bias_kv=[True, False],
        add_zero_attn=[True, False], other=[None, 6], batch_first=[True, False],
    )  # fmt: skip


def recurrent() -> Iterator[Config]:
    def make(kind, steps, width, batch_first, **how):
        layer = getattr(nn, kind)(width, 6, batch_first=batch_first, **how)
        return layer if batch_first else Turned(layer)

    return grid(
        make, lambda steps, width, **_: (torch.randn(B, steps, width),),
        kind=["RNN", "GRU", "LSTM"], steps=[1, 3], width=[4, 5], num_layers=[1, 2],
        bias=[True, False], batch_first=[True, False], bidirectional=[True, False],
    )  # fmt: skip


def cells() -> Iterator[Config]:
    return grid(
        lambda kind, width, bias: kind(width, 4, bias),
        lambda width, **_: (torch.randn(B, width),),
        kind=[nn.RNNCell, nn.GRUCell, nn.LSTMCell], width=[3, 5], bias=[True, False],
    )  # fmt: skip


def others() -> Iterator[Config]:
    def transformer(norm_first, batch_first, activation):
        layer = nn.TransformerEncoderLayer(
            4, 2, 8, 0.0, activation, batch_first=batch_first, norm_first=norm_first
        )
        return layer if batch_first else Turned(layer)

    yield from grid(
        lambda channels, shape: nn.PReLU(channels),
        lambda channels, shape: (torch.randn(B, 4, *shape),),
        channels=[1, 4], shape=[(), (3,), (3, 5)],
    )  # fmt: skip
    yield from grid(
        lambda bias: nn.Bilinear(3, 4, 2, bias),
        lambda bias: (torch.randn(B, 3), torch.randn(B, 4)), bias=[True, False],
    )  # fmt: skip
    yield from grid(
        transformer, lambda **_: (torch.randn(B, 5, 4),),
        norm_first=[True, False], batch_first=[True, False], activation=["relu", "gelu"],
    )  # fmt: skip


KINDS = [linear, conv1d, conv2d, conv3d, padded_convolutions, transposed_convolutions, embedding,
         bags, norms, groups, instances, attention, recurrent, cells, others]  # fmt: skip
REFUSALS = (Mixes, Unknown, NotCaptured)


def count(configs: list[Config]) -> Counter[str]:
    """Right, refused, or wrong with the error."""
    found: Counter[str] = Counter()
    for number, (make, inputs) in enumerate(configs):
        torch.manual_seed(number)
        model = make()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.7)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                assert_right(model, inputs(), energy)
                found["right"] += 1
            except REFUSALS as refusal:
                found["refused"] += 1
                found[f"refused: {model}: {refusal}"[:400]] += 1
            except Exception as error:
                found[f"wrong: {model}: {type(error).__name__}: {error}"[:400]] += 1
    return found


def wrong(found: Counter[str]) -> list[str]:
    return [what for what in found if what.startswith("wrong")]


def refused(found: Counter[str]) -> list[str]:
    return [what for what in found if what.startswith("refused: ")]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_three_configurations_of_each_layer_are_right(kind):
    configs = list(kind())
    found = count(configs[:: max(len(configs) // 2, 1)])
    assert not wrong(found) and not refused(found), found


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_all_configurations_of_a_layer_are_right(kind, capsys):
    configs = list(kind())
    found = count(configs)
    with capsys.disabled():
        print(f"\n{kind.__name__}: {len(configs)} configurations, {found['right']} right")
    assert not wrong(found), found
    assert found["right"] >= 0.98 * len(configs), refused(found)


def test_there_are_as_many_configurations_as_promised():
    assert sum(len(list(kind())) for kind in KINDS) >= 2865
