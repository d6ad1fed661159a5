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
Config = tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]], Any]


def product(**options: list[Any]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*options.values()):
        yield dict(zip(options, values, strict=True))


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


def linear() -> Iterator[Config]:
    for o in product(inner=[(), (3,), (4, 3)], width=[5, 17], out=[1, 7], bias=[True, False]):
        make = lambda o=o: nn.Linear(o["width"], o["out"], o["bias"])  # noqa: E731
        yield make, lambda o=o: (torch.randn(B, *o["inner"], o["width"]),), energy
        if o["inner"]:
            yield lambda make=make: Turned(make()), lambda o=o: (
                torch.randn(B, *o["inner"], o["width"]),), energy  # fmt: skip


def convolution(dims: int, sizes: list[int], grid: dict[str, list[Any]]) -> Iterator[Config]:
    kind = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
    for o in product(**grid):
        if o["padding"] == "same" and o["stride"] != 1:
            continue
        c, g = o["channels"], o["groups"]
        groups = c if g == "depthwise" else g
        if c % groups:
            continue
        out = {"more": 2 * c, "fewer": max(c // 3, 1)}[o["out"]]
        out = -(-out // groups) * groups
        how = {k: o[k] for k in ("kernel_size", "stride", "padding", "dilation", "bias")}
        yield (
            lambda c=c, out=out, groups=groups, how=how: kind(c, out, groups=groups, **how),
            lambda c=c: (torch.randn(B, c, *sizes),),
            energy,
        )


def conv1d() -> Iterator[Config]:
    return convolution(1, [9], {
        "channels": [1, 3, 8], "out": ["more", "fewer"], "kernel_size": [2, 3], "stride": [1, 2],
        "padding": [0, 1, 2, "same", "valid"], "dilation": [1, 2],
        "groups": [1, 3, 4, "depthwise"], "bias": [True],
    })  # fmt: skip


def conv2d() -> Iterator[Config]:
    return convolution(2, [9, 8], {
        "channels": [1, 3, 8], "out": ["more", "fewer"], "kernel_size": [2, 4, (3, 2)],
        "stride": [1, 2], "padding": [0, 2, "same", "valid"], "dilation": [1, (2, 1)],
        "groups": [1, 4, "depthwise"], "bias": [True, False],
    })  # fmt: skip


def conv3d() -> Iterator[Config]:
    return convolution(3, [5, 6, 7], {
        "channels": [1, 3, 4], "out": ["more", "fewer"], "kernel_size": [2, (1, 2, 3)],
        "stride": [1, (1, 2, 3)], "padding": [0, 2, "same", (1, 2, 0)], "dilation": [1, (1, 2, 2)],
        "groups": [1, "depthwise"], "bias": [True],
    })  # fmt: skip


def padded_convolutions() -> Iterator[Config]:
    for o in product(mode=["circular", "reflect", "replicate", "zeros"], padding=[1, "same"],
                     dims=[1, 2, 3], groups=[1, 2]):  # fmt: skip
        if o["dims"] == 3 and o["mode"] == "reflect" and o["padding"] == "same":
            continue
        kind = getattr(nn, f"Conv{o['dims']}d")
        yield (
            lambda o=o, kind=kind: kind(
                4, 4, 3, padding=o["padding"], padding_mode=o["mode"], groups=o["groups"]
            ),
            lambda o=o: (torch.randn(B, 4, *[6] * o["dims"]),),
            energy,
        )


def transposed_convolutions() -> Iterator[Config]:
    for o in product(dims=[1, 2, 3], stride=[1, 2], padding=[0, 1], groups=[1, 2], dilation=[1, 2],
                     extra=[0, 1], bias=[True, False]):  # fmt: skip
        if o["extra"] >= max(o["stride"], o["dilation"]):
            continue
        kind = getattr(nn, f"ConvTranspose{o['dims']}d")
        yield (
            lambda o=o, kind=kind: kind(
                4,
                2,
                3,
                o["stride"],
                o["padding"],
                o["extra"],
                o["groups"],
                o["bias"],
                o["dilation"],
            ),
            lambda o=o: (torch.randn(B, 4, *[4] * o["dims"]),),
            energy,
        )


def embedding() -> Iterator[Config]:
    for o in product(vocabulary=[2, 11, 32], width=[1, 10], shape=[(), (5,), (3, 4), (2, 1, 3)],
                     padding=[None, 1]):  # fmt: skip
        yield (
            lambda o=o: nn.Embedding(o["vocabulary"], o["width"], padding_idx=o["padding"]),
            lambda o=o: (torch.randint(0, o["vocabulary"], (B, *o["shape"])),),
            energy,
        )


def bags() -> Iterator[Config]:
    for o in product(mode=["sum", "mean", "max"], vocabulary=[3, 12], length=[1, 5],
                     padding=[None, 2]):  # fmt: skip
        yield (
            lambda o=o: nn.EmbeddingBag(
                o["vocabulary"], 4, mode=o["mode"], padding_idx=o["padding"]
            ),
            lambda o=o: (torch.randint(0, o["vocabulary"], (B, o["length"])),),
            energy,
        )


def norms() -> Iterator[Config]:
    for o in product(inner=[(), (3,), (2, 3), (4, 2, 3)], last=[(5,), (3, 5), (2, 3, 5)],
                     affine=[True, False], kind=[nn.LayerNorm, nn.RMSNorm]):  # fmt: skip
        layer = lambda o=o: o["kind"](o["last"], elementwise_affine=o["affine"])  # noqa: E731
        yield (
            lambda layer=layer: nn.Sequential(layer(), nn.Linear(5, 4)),
            lambda o=o: (torch.randn(B, *o["inner"], *o["last"]),),
            energy,
        )
    for o in product(inner=[(), (3,)], width=[1, 5]):
        yield (
            lambda o=o: nn.Sequential(
                nn.LayerNorm(o["width"], bias=False), nn.Linear(o["width"], 2)
            ),
            lambda o=o: (torch.randn(B, *o["inner"], o["width"]),),
            energy,
        )


def groups() -> Iterator[Config]:
    for o in product(channels=[4, 8], groups=[1, 4, "all"], sizes=[(), (5,), (5, 4), (3, 2, 4)],
                     affine=[True, False]):  # fmt: skip
        count = o["channels"] if o["groups"] == "all" else o["groups"]
        if not o["sizes"] and count == o["channels"]:
            continue  # one number in a group: PyTorch refuses it for a batch of one
        yield (
            lambda o=o, count=count: nn.Sequential(
                nn.GroupNorm(count, o["channels"], affine=o["affine"]),
                Scale(o["channels"]),
            ),
            lambda o=o: (torch.randn(B, o["channels"], *o["sizes"]),),
            energy,
        )


class Scale(nn.Module):
    """A weight for each channel, so that there is something to train."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight.view(-1, *[1] * (x.dim() - 2))


def instances() -> Iterator[Config]:
    for o in product(dims=[1, 2, 3], channels=[1, 3], side=[5, 8], affine=[True, False]):
        kind = getattr(nn, f"InstanceNorm{o['dims']}d")
        yield (
            lambda o=o, kind=kind: nn.Sequential(
                kind(o["channels"], affine=o["affine"]), Scale(o["channels"])
            ),
            lambda o=o: (
                torch.randn(B, o["channels"], *[o["side"] - d for d in range(o["dims"])]),
            ),
            energy,
        )


def attention() -> Iterator[Config]:
    for o in product(length=[3, 16], heads=[1, 2], bias=[True, False], add_bias_kv=[True, False],
                     add_zero_attn=[True, False], other=[None, 6],
                     batch_first=[True, False]):  # fmt: skip
        k = o["other"] or 4
        yield (
            lambda o=o: Apart(
                nn.MultiheadAttention(
                    4, o["heads"], bias=o["bias"], add_bias_kv=o["add_bias_kv"],
                    add_zero_attn=o["add_zero_attn"], kdim=o["other"], vdim=o["other"],
                    batch_first=o["batch_first"],
                )
            ),
            lambda o=o, k=k: (
                torch.randn(B, o["length"], 4), torch.randn(B, o["length"], k),
                torch.randn(B, o["length"], k),
            ),
            energy,
        )  # fmt: skip


def recurrent() -> Iterator[Config]:
    for o in product(kind=["RNN", "GRU", "LSTM"], steps=[1, 3], width=[4, 5], layers=[1, 2],
                     bias=[True, False], batch_first=[True, False],
                     both=[True, False]):  # fmt: skip
        layer = lambda o=o: getattr(nn, o["kind"])(  # noqa: E731
            o["width"], 6, o["layers"], bias=o["bias"], batch_first=o["batch_first"],
            bidirectional=o["both"],
        )  # fmt: skip
        yield (
            layer if o["batch_first"] else lambda layer=layer: Turned(layer()),
            lambda o=o: (torch.randn(B, o["steps"], o["width"]),),
            energy,
        )


def cells() -> Iterator[Config]:
    for o in product(kind=[nn.RNNCell, nn.GRUCell, nn.LSTMCell], width=[3, 5], bias=[True, False]):
        yield (
            lambda o=o: o["kind"](o["width"], 4, o["bias"]),
            lambda o=o: (torch.randn(B, o["width"]),),
            energy,
        )


def others() -> Iterator[Config]:
    for channels, shape in itertools.product([1, 4], [(), (3,), (3, 5)]):
        yield (
            lambda c=channels: nn.PReLU(c),
            lambda s=shape: (torch.randn(B, 4, *s),),
            energy,
        )
    for bias in (True, False):
        yield (
            lambda bias=bias: nn.Bilinear(3, 4, 2, bias),
            lambda: (torch.randn(B, 3), torch.randn(B, 4)),
            energy,
        )
    for o in product(norm_first=[True, False], batch_first=[True, False], act=["relu", "gelu"]):
        layer = lambda o=o: nn.TransformerEncoderLayer(  # noqa: E731
            4, 2, 8, 0.0, o["act"], batch_first=o["batch_first"], norm_first=o["norm_first"]
        )  # fmt: skip
        yield (
            layer if o["batch_first"] else lambda layer=layer: Turned(layer()),
            lambda: (torch.randn(B, 5, 4),),
            energy,
        )


KINDS = [linear, conv1d, conv2d, conv3d, padded_convolutions, transposed_convolutions, embedding,
         bags, norms, groups, instances, attention, recurrent, cells, others]  # fmt: skip
REFUSALS = (Mixes, Unknown, NotCaptured)


def count(configs: list[Config]) -> Counter[str]:
    """Right, refused, or wrong with the error."""
    found: Counter[str] = Counter()
    for number, (make, inputs, loss) in enumerate(configs):
        torch.manual_seed(number)
        model = make()
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.7)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                assert_right(model, inputs(), loss)
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
