"""Families of image, sound and text networks, each as a small network of its typical blocks."""

from __future__ import annotations

from typing import Any

import torch
from cases import EXAMPLES, case, classes, images, labels
from torch import Tensor, nn
from torch.nn import functional as F


def norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(2, channels)


class Sum(nn.Module):
    """A block and what goes around it."""

    def __init__(self, *parts: nn.Module, around: nn.Module | None = None) -> None:
        super().__init__()
        self.block = nn.Sequential(*parts)
        self.around = nn.Identity() if around is None else around

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) + self.around(x)


def head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3)]


def family(name: str, **how: Any) -> Any:
    """Registers a network of images with three classes."""
    side = how.pop("side", 16)

    def register(make: Any) -> Any:
        case(name, **how)(lambda: (make(), images(side), classes))
        return make

    return register


@family("residual network", fast=True)
def _():
    def block(a, b, stride):
        around = nn.Conv2d(a, b, 1, stride) if (a, stride) != (b, 1) else None
        return Sum(nn.Conv2d(a, b, 3, stride, 1, bias=False), norm(b), nn.ReLU(inplace=True),
                   nn.Conv2d(b, b, 3, 1, 1, bias=False), norm(b), around=around)  # fmt: skip

    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), norm(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
                         block(8, 8, 1), nn.ReLU(), block(8, 16, 2), *head(16))  # fmt: skip


@family("residual network of bottlenecks")
def _():
    def block(a, b):
        return Sum(nn.Conv2d(a, b // 2, 1), norm(b // 2), nn.ReLU(),
                   nn.Conv2d(b // 2, b // 2, 3, 1, 1, groups=2), norm(b // 2), nn.ReLU(),
                   nn.Conv2d(b // 2, b, 1), norm(b), around=nn.Conv2d(a, b, 1))  # fmt: skip

    return nn.Sequential(nn.Conv2d(3, 8, 3), block(8, 16), nn.ReLU(), block(16, 16), *head(16))


@family("VGG", fast=True)
def _():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2),
                         nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2),
                         nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(144, 32), nn.ReLU(True),
                         nn.Dropout(), nn.Linear(32, 3))  # fmt: skip


@family("AlexNet with response norm")
def _():
    return nn.Sequential(nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.LocalResponseNorm(3),
                         nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 3))  # fmt: skip


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(norm(4 + 4 * k), nn.ReLU(), nn.Conv2d(4 + 4 * k, 4, 3, padding=1))
            for k in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


@family("dense network", fast=True)
def _():
    return nn.Sequential(nn.Conv2d(3, 4, 3), Dense(), nn.AvgPool2d(2), *head(16))


class Fire(nn.Module):
    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.s, self.e, self.f = nn.Conv2d(a, b, 1), nn.Conv2d(b, b, 1), nn.Conv2d(b, b, 3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.s(x))
        return torch.cat([F.relu(self.e(x)), F.relu(self.f(x))], 1)


@family("SqueezeNet", fast=True)
def _():
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True),
                         Fire(8, 4), Fire(8, 4), nn.Dropout(), nn.Conv2d(8, 3, 1), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten())  # fmt: skip


class Excite(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels: int, gate: Any = torch.sigmoid) -> None:
        super().__init__()
        self.a, self.b, self.gate = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1), gate

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.b(F.silu(self.a(x.mean((2, 3), keepdim=True)))))


class DropPath(nn.Module):
    """Stochastic depth: a draw for each example."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.drop_prob = rate

    def forward(self, x: Tensor) -> Tensor:
        if self.drop_prob == 0.0 or not self.training:
            return x
        keep = 1 - self.drop_prob
        return x * x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(keep).div_(keep)


@family("MobileNet of inverted residuals", fast=True)
def _():
    block = Sum(nn.Conv2d(8, 16, 1), norm(16), nn.Hardswish(), nn.Conv2d(16, 16, 3, 1, 1, groups=16),
                norm(16), nn.Hardswish(), Excite(16, F.hardsigmoid), nn.Conv2d(16, 8, 1), norm(8))  # fmt: skip
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), norm(8), nn.Hardswish(), block, *head(8))


@family("EfficientNet with stochastic depth")
def _():
    block = Sum(nn.Conv2d(8, 16, 1, bias=False), norm(16), nn.SiLU(),
                nn.Conv2d(16, 16, 5, 1, 2, groups=16, bias=False), norm(16), nn.SiLU(),
                Excite(16), nn.Conv2d(16, 8, 1, bias=False), norm(8), DropPath(0.2))  # fmt: skip
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), norm(8), nn.SiLU(), block, *head(8))


class Shuffle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Conv2d(4, 4, 1), norm(4), nn.ReLU(),
                                    nn.Conv2d(4, 4, 3, 1, 1, groups=4), nn.Conv2d(4, 4, 1))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        x = torch.cat([a, self.branch(b)], 1)
        return x.view(len(x), 2, 4, *x.shape[2:]).transpose(1, 2).flatten(1, 2)


@family("ShuffleNet")
def _():
    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), Shuffle(), nn.ChannelShuffle(2), *head(8))


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 4, 3, padding=1)
        self.c = nn.Sequential(
            nn.Conv2d(8, 4, (1, 3), padding=(0, 1)), nn.Conv2d(4, 4, (3, 1), padding=(1, 0))
        )
        self.d = nn.Sequential(nn.AvgPool2d(3, 1, 1), nn.Conv2d(8, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.a(x), self.b(x), self.c(x), self.d(x)], 1)


@family("Inception")
def _():
    return nn.Sequential(nn.Conv2d(3, 8, 3), Inception(), nn.ReLU(), *head(16))


class Last(nn.Module):
    """A layer norm over channels that come first."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class NextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth, self.norm = (
            nn.Conv2d(width, width, 7, padding=3, groups=width),
            nn.LayerNorm(width),
        )
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.scale, self.drop = nn.Parameter(torch.full((width, 1, 1), 0.5)), DropPath(0.1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.mlp(self.norm(self.depth(x).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
        return x + self.drop(self.scale * h)


@family("ConvNeXt", fast=True)
def _():
    return nn.Sequential(nn.Conv2d(3, 8, 4, 4), Last(8), NextBlock(8), Last(8),
                         nn.Conv2d(8, 16, 2, 2), NextBlock(16), *head(16))  # fmt: skip


class GlobalResponse(nn.Module):
    """ConvNeXt V2's normalisation: over the places of one example."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.g, self.b = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        size = x.norm(dim=(2, 3), keepdim=True)
        ratio = size / (size.mean(1, keepdim=True) + 1e-6)
        return self.g[:, None, None] * (x * ratio) + self.b[:, None, None] + x


@family("ConvNeXt V2")
def _():
    return nn.Sequential(nn.Conv2d(3, 8, 4, 4), NextBlock(8), GlobalResponse(8), *head(8))


class Standard(nn.Conv2d):
    """Weight standardisation, with a gain (NFNet)."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.gain = nn.Parameter(torch.ones(self.out_channels, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        spread, mean = torch.var_mean(self.weight, (1, 2, 3), keepdim=True)
        return self._conv_forward(
            x, self.gain * (self.weight - mean) / (spread + 1e-4).sqrt(), self.bias
        )


@family("NFNet without norms", fast=True)
def _():
    return nn.Sequential(Standard(3, 8, 3), nn.GELU(), Sum(Standard(8, 8, 3, padding=1), nn.GELU()),
                         Excite(8), *head(8))  # fmt: skip


@family("ConvMixer")
def _():
    return nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.GELU(), norm(8),
                         Sum(nn.Conv2d(8, 8, 3, groups=8, padding="same"), nn.GELU(), norm(8)),
                         nn.Conv2d(8, 8, 1), nn.GELU(), *head(8))  # fmt: skip


class Block(nn.Module):
    """Attention and a small network, each behind a norm."""

    def __init__(self, width: int, heads: int = 2, *, qk_norm: bool = False, scale: bool = False,
                 gated: bool = False, talking: bool = False) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.gated = heads, gated
        self.a, self.b = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q = nn.LayerNorm(width // heads) if qk_norm else nn.Identity()
        self.mix = nn.Linear(heads, heads) if talking else None
        self.up = nn.Linear(width, 4 * width if gated else 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.3)) if scale else 1.0
        self.drop = DropPath(0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.scale * self.attend(self.a(x)))
        h = self.up(self.b(x))
        h = F.silu(h.chunk(2, -1)[0]) * h.chunk(2, -1)[1] if self.gated else F.gelu(h)
        return x + self.drop(self.scale * self.down(h))

    def attend(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q(q), self.q(k)
        if self.mix is None:
            found = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = self.mix((q @ k.mT).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
            found = scores.softmax(-1) @ v
        return self.out(found.transpose(1, 2).reshape(b, t, d))


class ViT(nn.Module):
    def __init__(self, pool: str = "token", registers: int = 0, **how: Any) -> None:
        super().__init__()
        self.patch, self.pool = nn.Conv2d(3, 16, 4, 4), pool
        self.token = nn.Parameter(torch.randn(1, 1 + registers, 16) * 0.1)
        self.places = nn.Parameter(torch.randn(1, 17 + registers, 16) * 0.1)
        self.blocks = nn.Sequential(Block(16, **how), Block(16, **how))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        x = self.norm(self.blocks(F.dropout(x, 0.1, self.training)))
        return self.head(x[:, 0] if self.pool == "token" else x.mean(1))


family("ViT", fast=True)(ViT)
family("ViT with mean pooling and layer scale (CaiT)")(lambda: ViT("mean", scale=True))
family("ViT with talking heads")(lambda: ViT(talking=True))
family("ViT with normed queries and registers")(lambda: ViT(registers=2, qk_norm=True))
family("ViT with gated units (EVA)")(lambda: ViT(gated=True))


class Swin(nn.Module):
    """Shifted windows with a table of relative places and a mask, then patches are merged."""

    def __init__(self, *, cosine: bool = False) -> None:
        super().__init__()
        self.patch, self.qkv, self.out = nn.Conv2d(3, 8, 2, 2), nn.Linear(8, 24), nn.Linear(8, 8)
        self.table = nn.Parameter(torch.randn(49, 2) * 0.2)
        at = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        gap = at[:, :, None] - at[:, None] + 3
        self.register_buffer("index", gap[0] * 7 + gap[1])
        region = torch.zeros(8, 8)
        for k, part in enumerate((slice(0, -4), slice(-4, -2), slice(-2, None))):
            for j, other in enumerate((slice(0, -4), slice(-4, -2), slice(-2, None))):
                region[part, other] = 3 * k + j
        self.register_buffer("region", region)
        self.merge, self.norm, self.head = nn.Linear(32, 16), nn.LayerNorm(16), nn.Linear(16, 3)
        self.heat = nn.Parameter(torch.ones(2, 1, 1)) if cosine else None

    @staticmethod
    def windows(x: Tensor) -> Tensor:
        n, h, w, c = x.shape
        return x.view(n, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)

    def attend(self, x: Tensor, shift: int) -> Tensor:
        n, h, w, c = x.shape
        x = self.windows(x.roll((-shift, -shift), (1, 2)))
        q, k, v = self.qkv(x).reshape(-1, 16, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
        if self.heat is None:
            scores = q @ k.mT * (c // 2) ** -0.5
        else:
            scores = (
                F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT * self.heat.clamp(max=4.6).exp()
            )
        scores = scores + self.table[self.index].permute(2, 0, 1)
        if shift:
            mark = self.windows(self.region[None, :, :, None])[..., 0]
            mask = (mark[:, None] != mark[:, :, None]).float() * -100.0
            scores = (scores.view(n, -1, 2, 16, 16) + mask[:, None]).view(-1, 2, 16, 16)
        x = (scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, c)
        x = (
            self.out(x)
            .view(n, h // 4, w // 4, 4, 4, c)
            .permute(0, 1, 3, 2, 4, 5)
            .reshape(n, h, w, c)
        )
        return x.roll((shift, shift), (1, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).permute(0, 2, 3, 1)
        x = x + self.attend(x, 0)
        x = x + self.attend(x, 2)
        x = torch.cat([x[:, a::2, b::2] for a in (0, 1) for b in (0, 1)], -1)
        return self.head(self.norm(self.merge(x)).mean((1, 2)))


family("Swin", fast=True)(Swin)
family("Swin V2 with cosine attention")(lambda: Swin(cosine=True))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.LayerNorm(16), nn.LayerNorm(16)
        self.places = nn.Sequential(nn.Linear(16, 12), nn.GELU(), nn.Linear(12, 16))
        self.channels = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places(self.a(x).mT).mT
        return x + self.channels(self.b(x))


class OfPatches(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.patch, self.blocks, self.head = (
            nn.Conv2d(3, 16, 4, 4),
            nn.Sequential(*blocks),
            nn.Linear(16, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.patch(x).flatten(2).mT).mean(1))


family("MLP-Mixer", fast=True)(lambda: OfPatches(Mixer(), Mixer()))


class Spatial(nn.Module):
    """gMLP: a gate over the places."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.gate, self.down = (
            nn.Linear(16, 32), nn.LayerNorm(16), nn.Conv1d(16, 16, 1), nn.Linear(16, 16))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        a, b = F.gelu(self.up(x)).chunk(2, -1)
        return x + self.down(a * self.gate(self.norm(b)))


family("gMLP")(lambda: OfPatches(Spatial()))


class Fourier(nn.Module):
    """A filter of complex numbers over the places (GFNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 3, 16, 2) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        seen = torch.fft.rfft2(x.unflatten(1, (4, 4)), dim=(1, 2), norm="ortho")
        back = torch.fft.irfft2(
            seen * torch.view_as_complex(self.w), s=(4, 4), dim=(1, 2), norm="ortho"
        )
        return x + back.flatten(1, 2)


family("global filters (GFNet)")(lambda: OfPatches(Fourier()))


class Pooled(nn.Module):
    """Pyramid attention with keys from fewer places (PVT, SegFormer)."""

    def __init__(self) -> None:
        super().__init__()
        self.less, self.norm, self.block = (
            nn.Conv2d(16, 16, 2, 2),
            nn.LayerNorm(16),
            nn.MultiheadAttention(16, 2, batch_first=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        keys = self.less(x.mT.unflatten(2, (4, 4))).flatten(2).mT
        keys = self.norm(keys)
        return x + self.block(x, keys, keys, need_weights=False)[0]


family("pyramid attention (PVT, SegFormer)")(lambda: OfPatches(Pooled()))


class PoolFormer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 3, 1, 1, count_include_pad=False) - x


family("PoolFormer")(
    lambda: nn.Sequential(
        nn.Conv2d(3, 8, 4, 4), norm(8), Sum(PoolFormer()), nn.GroupNorm(1, 8), *head(8)
    )
)


class Grid(nn.Module):
    """Attention over a grid that reaches across the image (MaxViT)."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block(8)

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        x = x.view(n, c, 2, h // 2, 2, w // 2).permute(0, 3, 5, 2, 4, 1).reshape(-1, 4, c)
        x = self.block(x).view(n, h // 2, w // 2, 2, 2, c).permute(0, 5, 3, 1, 4, 2)
        return x.reshape(n, c, h, w)


family("grid attention (MaxViT)")(lambda: nn.Sequential(nn.Conv2d(3, 8, 4, 4), Grid(), *head(8)))


class Residual(nn.Module):
    """RepVGG: three branches that are added."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.n = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1), norm(8)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.a(x) + self.b(x) + self.n(x))


family("RepVGG")(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), Residual(), Residual(), *head(8)))
family("GhostNet")(
    lambda: nn.Sequential(nn.Conv2d(3, 8, 3), Ghost(), nn.ReLU(), Excite(16), *head(16))
)
family("blur pooling, CELU and pixel shuffle")(
    lambda: nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.CELU(), nn.AvgPool2d(2, 1), nn.PixelUnshuffle(3),
                          nn.Conv2d(72, 12, 1), nn.PixelShuffle(2), nn.Conv2d(3, 8, 1), *head(8))
)  # fmt: skip
family("deconvolutions")(
    lambda: nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.ConvTranspose2d(8, 4, 3, 2, output_padding=1),
                          nn.UpsamplingNearest2d(scale_factor=2), nn.Conv2d(4, 8, 3), *head(8))
)  # fmt: skip


class Ghost(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return torch.cat([x, self.b(x)], 1)


# Sound, text and series.


@case("temporal convolutions with weight norm")
def _():
    wn = nn.utils.parametrizations.weight_norm
    model = nn.Sequential(
        nn.ConstantPad1d((4, 0), 0.0), wn(nn.Conv1d(4, 8, 3, dilation=2)), nn.ReLU(),
        nn.ConstantPad1d((2, 0), 0.0), wn(nn.Conv1d(8, 8, 3)), nn.Flatten(), nn.Linear(96, 3),
    )  # fmt: skip
    return model, (torch.randn(EXAMPLES, 4, 12), labels()), classes


@case("gated convolutions (WaveNet)", fast=True)
def _():
    model = nn.Sequential(nn.Conv1d(4, 8, 2, dilation=2), nn.GLU(1), nn.Conv1d(4, 4, 1), nn.Flatten(),
                          nn.Linear(40, 3))  # fmt: skip
    return model, (torch.randn(EXAMPLES, 4, 12), labels()), classes


@case("convolutions over words")
def _():
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(11, 6)
            self.convs = nn.ModuleList(nn.Conv1d(6, 4, k) for k in (2, 3))
            self.head = nn.Linear(8, 3)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids).mT
            return self.head(torch.cat([F.relu(c(x)).amax(2) for c in self.convs], 1))

    return Text(), (torch.randint(0, 11, (EXAMPLES, 9)), labels()), classes


@case("spectrogram network")
def _():
    class Sound(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4, 3)
            self.register_buffer("window", torch.hann_window(16))

        def forward(self, x: Tensor) -> Tensor:
            seen = torch.fft.rfft(x.unfold(1, 16, 8) * self.window).abs().log1p()
            return self.head(F.relu(self.conv(seen[:, None])).mean((2, 3)))

    return Sound(), (torch.randn(EXAMPLES, 80), labels()), classes


@case("volumes")
def _():
    model = nn.Sequential(nn.Conv3d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool3d(2),
                          nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 3))  # fmt: skip
    return model, (torch.randn(EXAMPLES, 1, 8, 8, 8), labels()), classes


@case("network of tables (TabNet-like gates)", fast=True)
def _():
    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.Embedding(5, 4) for _ in range(3))
            self.gate, self.head = nn.Linear(12, 12), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.cat([t(x[:, k]) for k, t in enumerate(self.tables)], 1)
            return self.head(x * torch.sigmoid(self.gate(x)))

    return Tables(), (torch.randint(0, 5, (EXAMPLES, 3)), labels()), classes


@case("state space model")
def _():
    class States(nn.Module):
        """A diagonal state space, by a loop over time."""

        def __init__(self) -> None:
            super().__init__()
            self.rate, self.inp, self.out = (
                nn.Parameter(torch.rand(8)),
                nn.Linear(4, 8),
                nn.Linear(8, 3),
            )

        def forward(self, x: Tensor) -> Tensor:
            state, gate = torch.zeros(x.shape[0], 8, dtype=x.dtype), torch.exp(-self.rate.exp())
            for t in range(x.shape[1]):
                state = gate * state + self.inp(x[:, t])
            return self.out(state)

    return States(), (torch.randn(EXAMPLES, 10, 4), labels()), classes


@case("linear attention by cumulative sums")
def _():
    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            q, k = F.elu(q) + 1, F.elu(k) + 1
            sums = torch.einsum("bti,btj->btij", k, v).cumsum(1)
            top = torch.einsum("bti,btij->btj", q, sums)
            return self.out(top / torch.einsum("bti,bti->bt", q, k.cumsum(1))[..., None]).mean(1)

    return Linear(), (torch.randn(EXAMPLES, 6, 4), labels()), classes
