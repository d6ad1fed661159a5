"""The models of the training benchmark: pure torch, shared with the peers' interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

Data = Callable[[int, bool], tuple[Tensor, Tensor]]  # of so many examples, for a GPU?


@dataclass(frozen=True)
class Case:
    """One model with its data; `sizes` are (batch on the CPU, batch on a GPU)."""

    name: str
    build: Callable[[bool], nn.Module]  # on a GPU?
    data: Data
    losses: Callable[[nn.Module, Tensor, Tensor], Tensor]
    sizes: tuple[int, int]
    adam: bool = False
    half: bool = False  # bfloat16 autocast on a GPU


def classification(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y, reduction="none")


def binary(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits = model(x).squeeze(1)
    return functional.binary_cross_entropy_with_logits(logits, y, reduction="none")


def language(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits = model(x)
    flat = functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    return flat.view(y.shape).mean(1)


def adult_mlp(gpu: bool) -> nn.Module:
    return nn.Sequential(nn.Linear(123, 16), nn.ReLU(), nn.Linear(16, 2))


def mnist_cnn(gpu: bool) -> nn.Module:
    """The network of the Gaussian DP paper's MNIST experiment."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


class Average(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def imdb(gpu: bool) -> nn.Module:
    return nn.Sequential(
        nn.Embedding(10_000, 16), Average(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)
    )


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, causal)
        self.norm2 = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, True) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt(gpu: bool) -> nn.Module:
    return Gpt(768, 12, 12, 50257, 1024) if gpu else Gpt(256, 4, 4, 8000, 128)


class Vit(nn.Module):
    """ViT-S/16; class token and positions are bare parameters, as in the usual code."""

    def __init__(self, width: int = 384, layers: int = 12, heads: int = 6, side: int = 224) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (side // 16) ** 2 + 1, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads, False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def vit(gpu: bool) -> nn.Module:
    return Vit() if gpu else Vit(96, 3, 3, 64)


class Basic(nn.Module):
    """Residual block of ResNet-18 with group normalisation."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(16, after), nn.GroupNorm(16, after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.short = nn.Identity()
        if stride != 1 or before != after:
            self.short = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(16, after)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(y + self.short(x))


def resnet18(gpu: bool) -> nn.Module:
    widths = [64, 64, 128, 256, 512]
    blocks: list[nn.Module] = []
    for i in range(4):
        blocks += [Basic(widths[i], widths[i + 1], 1 if i == 0 else 2)]
        blocks += [Basic(widths[i + 1], widths[i + 1], 1)]
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(16, 64), nn.ReLU()]
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*stem, *blocks, *tail)


class PreActivation(nn.Module):
    """Residual block of a wide ResNet."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(16, before), nn.GroupNorm(16, after)
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        same = stride == 1 and before == after
        self.short = None if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(x))
        short = x if self.short is None else self.short(y)
        return short + self.conv2(functional.relu(self.norm2(self.conv1(y))))


def wide_resnet(gpu: bool) -> nn.Module:
    widths, blocks = [16, 64, 128, 256], list[nn.Module]()
    for i in range(3):
        blocks += [PreActivation(widths[i], widths[i + 1], 1 if i == 0 else 2)]
        blocks += [PreActivation(widths[i + 1], widths[i + 1], 1)]
    tail = [nn.GroupNorm(16, 256), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), *blocks, *tail, nn.Linear(256, 10))


def images(channels: int, side: int, classes: int) -> Data:
    def data(batch: int, gpu: bool) -> tuple[Tensor, Tensor]:
        return torch.randn(batch, channels, side, side), torch.randint(0, classes, (batch,))

    return data


def adult_data(batch: int, gpu: bool) -> tuple[Tensor, Tensor]:
    return torch.rand(batch, 123).round(), torch.randint(0, 2, (batch,))


def imdb_data(batch: int, gpu: bool) -> tuple[Tensor, Tensor]:
    """Word ids with the frequencies of real text (Zipf), so that words repeat in a review."""
    weights = 1.0 / torch.arange(1, 10_001)
    ids = torch.multinomial(weights, batch * 256, replacement=True).view(batch, 256)
    return ids, torch.randint(0, 2, (batch,)).float()


def text_data(batch: int, gpu: bool) -> tuple[Tensor, Tensor]:
    vocabulary, length = (50257, 512) if gpu else (8000, 128)
    ids = torch.randint(0, vocabulary, (batch, length + 1))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def vit_data(batch: int, gpu: bool) -> tuple[Tensor, Tensor]:
    return images(3, 224 if gpu else 64, 1000)(batch, gpu)


CASES = {
    case.name: case
    for case in (
        Case("adult-mlp", adult_mlp, adult_data, classification, (256, 4096)),
        Case("mnist-cnn", mnist_cnn, images(1, 28, 10), classification, (256, 2048)),
        Case("imdb", imdb, imdb_data, binary, (512, 512), adam=True),
        Case("gpt", gpt, text_data, language, (16, 16), adam=True, half=True),
        Case("vit", vit, vit_data, classification, (16, 64), half=True),
        Case("resnet18-gn", resnet18, images(3, 32, 10), classification, (32, 1024)),
        Case("wrn16-4-gn", wide_resnet, images(3, 32, 10), classification, (16, 1024)),
    )
}


def optimizer_of(case: Case, model: nn.Module) -> torch.optim.Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    if case.adam:
        return torch.optim.Adam(parameters, lr=1e-4)
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
