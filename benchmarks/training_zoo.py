"""Models of the training benchmark that the engine was not tuned for, as people use them.

Transformers come from the package of that name; the vision models are torchvision's architectures
in plain torch (with GroupNorm, which private training needs, in place of batch norm).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from training_models import Case, Data, classification, images, wide_resnet


def decoder_losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    logits = model(input_ids=x, use_cache=False).logits
    flat = functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    return flat.view(y.shape).mean(1)


def encoder_losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(input_ids=x).logits, y, reduction="none")


def grouped_decoder(gpu: bool) -> nn.Module:
    """Grouped queries, RMSNorm, gated MLP."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width, layers, heads, vocabulary = (1024, 12, 16, 32_000) if gpu else (128, 2, 4, 1000)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary, hidden_size=width, intermediate_size=11 * width // 4,
            num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads // 4,
        )
    )  # fmt: skip


def gpt2(gpu: bool) -> nn.Module:
    """The output head is the table of the tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    small = {"n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": 1000, "n_positions": 128}
    return GPT2LMHeadModel(GPT2Config(**({} if gpu else small)))


def bert(gpu: bool) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    small = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 512, "vocab_size": 5000}  # fmt: skip
    return BertForSequenceClassification(BertConfig(**({} if gpu else small)))


def distilbert(gpu: bool) -> nn.Module:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    small = {"dim": 256, "n_layers": 4, "n_heads": 4, "hidden_dim": 1024, "vocab_size": 10_000}
    return DistilBertForSequenceClassification(DistilBertConfig(**({} if gpu else small)))


def tokens(gpu_sizes: tuple[int, int], cpu_sizes: tuple[int, int]) -> Data:
    """(vocabulary, length) of texts whose next words are to be guessed."""

    def data(batch: int, gpu: bool) -> tuple[Tensor, Tensor]:
        vocabulary, length = gpu_sizes if gpu else cpu_sizes
        ids = torch.randint(0, vocabulary, (batch, length + 1))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    return data


def labelled(inner: Data) -> Data:
    """The same texts, that differ."""

    def data(batch: int, gpu: bool) -> tuple[Tensor, Tensor]:
        return inner(batch, gpu)[0], torch.randint(0, 2, (batch,))

    return data


class Encoder(nn.Module):
    """Block of torchvision's ViT, by nn.MultiheadAttention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class VitB(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, side: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (side // 16) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Encoder(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


def vit_b16(gpu: bool) -> nn.Module:
    return VitB(768, 12, 12, 224) if gpu else VitB(96, 3, 3, 64)


class Bottleneck(nn.Module):
    def __init__(self, before: int, middle: int, stride: int) -> None:
        super().__init__()
        after = 4 * middle
        self.conv1, self.norm1 = nn.Conv2d(before, middle, 1, bias=False), nn.GroupNorm(16, middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, stride, 1, bias=False)
        self.norm2 = nn.GroupNorm(16, middle)
        self.conv3, self.norm3 = nn.Conv2d(middle, after, 1, bias=False), nn.GroupNorm(16, after)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.short = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.GroupNorm(16, after)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        y = functional.relu(self.norm2(self.conv2(y)))
        return functional.relu(self.norm3(self.conv3(y)) + self.short(x))


def resnet50(gpu: bool) -> nn.Module:
    depths, first = ((3, 4, 6, 3), 64) if gpu else ((1, 1, 1, 1), 16)
    stem = [nn.Conv2d(3, first, 7, 2, 3, bias=False), nn.GroupNorm(16, first), nn.ReLU()]
    blocks, width = list[nn.Module](), first
    for stage, depth in enumerate(depths):
        for place in range(depth):
            blocks.append(Bottleneck(width, first << stage, 2 if stage and place == 0 else 1))
            width = 4 * (first << stage)
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000)]
    return nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1), *blocks, *tail)


class ConvNextBlock(nn.Module):
    """Depthwise convolution, layer norm, two linear layers, a learned scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width, 1, 1), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.down(functional.gelu(self.up(y))).permute(0, 3, 1, 2)
        return x + self.scale * y


class ChannelNorm(nn.Module):
    """Layer norm over the channels of (B, C, H, W), as torchvision's LayerNorm2d."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext(gpu: bool) -> nn.Module:
    depths, first = ((3, 3, 9, 3), 96) if gpu else ((1, 1, 2, 1), 24)
    widths = [first << stage for stage in range(4)]
    parts: list[nn.Module] = [nn.Conv2d(3, first, 4, 4), ChannelNorm(first)]
    for stage, depth in enumerate(depths):
        if stage:
            parts += [
                ChannelNorm(widths[stage - 1]),
                nn.Conv2d(widths[stage - 1], widths[stage], 2, 2),
            ]
        parts += [ConvNextBlock(widths[stage]) for _ in range(depth)]
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(widths[3])]
    return nn.Sequential(*parts, *tail, nn.Linear(widths[3], 1000))


def photographs(batch: int, gpu: bool) -> tuple[Tensor, Tensor]:
    return images(3, 224 if gpu else 64, 1000)(batch, gpu)


class Reader(nn.Module):
    """Words through an LSTM; its last output decides."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10_000, 128)
        self.lstm = nn.LSTM(128, 256, batch_first=True)
        self.head = nn.Linear(256, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(ids))[0][:, -1])


def reader(gpu: bool) -> nn.Module:
    return Reader()


class Recommender(nn.Module):
    """Twelve tables of ids beside numbers, then a small network."""

    def __init__(self, rows: int, fields: int = 12, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(fields))
        self.network = nn.Sequential(
            nn.Linear(fields * width, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(),
            nn.Linear(64, 2),
        )  # fmt: skip

    def forward(self, ids: Tensor) -> Tensor:
        found = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        return self.network(torch.cat(found, dim=1))


def recommender(gpu: bool) -> nn.Module:
    return Recommender(100_000 if gpu else 10_000)


def clicks(batch: int, gpu: bool) -> tuple[Tensor, Tensor]:
    rows = 100_000 if gpu else 10_000
    return torch.randint(0, rows, (batch, 12)), torch.randint(0, 2, (batch,))


_small = images(3, 32, 10)


def _wide(name: str, batch: int, *, half: bool) -> Case:
    return Case(name, wide_resnet, _small, classification, (16, batch), half=half)


ZOO = (
    Case("grouped-decoder", grouped_decoder, tokens((32_000, 1024), (1000, 64)), decoder_losses,
         (8, 8), adam=True, half=True),
    Case("gpt2", gpt2, tokens((50_257, 512), (1000, 64)), decoder_losses, (8, 16), adam=True,
         half=True),
    Case("bert", bert, labelled(tokens((30_522, 128), (5000, 32))), encoder_losses, (16, 64),
         adam=True, half=True),
    Case("distilbert", distilbert, labelled(tokens((30_522, 128), (10_000, 64))), encoder_losses,
         (16, 64), adam=True, half=True),
    Case("vit-b16", vit_b16, photographs, classification, (16, 64), half=True),
    Case("resnet50-gn", resnet50, photographs, classification, (16, 64), half=True),
    Case("convnext", convnext, photographs, classification, (16, 64), half=True),
    Case("lstm", reader, labelled(tokens((10_000, 128), (10_000, 64))), classification, (64, 256),
         half=True),
    Case("recommender", recommender, clicks, classification, (1024, 8192), adam=True),
    _wide("wrn16-4-bf16", 1024, half=True),
    _wide("wrn16-4-4096", 4096, half=False),
    _wide("wrn16-4-4096-bf16", 4096, half=True),
)  # fmt: skip
