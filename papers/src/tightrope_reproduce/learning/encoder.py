"""A pretrained sentence encoder with a linear layer on it, and IMDb as its tokens.

The encoder is sentence-transformers/all-MiniLM-L6-v2: six layers, 22.7 million weights, distilled
from a model of public text and trained on 1.17 billion public sentence pairs. Its model card and
data_config.json list them; reviews of IMDb are not among them. TIGHTROPE_ENCODER names its folder
(examples/finetune.py says where it comes from). The guarantee is about the reviews alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from tightrope.errors import DataNotFound
from tightrope_reproduce.datasets import load_imdb_texts

__all__ = ["ReviewNet", "adapted", "whole", "tokens"]

LENGTH = 128  # tokens of a review; the encoder was trained on so many
PAD = 0


class ReviewNet(nn.Module):
    """The mean of the encoder's last states over the tokens, and a linear layer on it."""

    def __init__(self, encoder: nn.Module, width: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, 2)
        nn.init.zeros_(self.head.weight)

    def forward(self, words: Tensor) -> Tensor:
        words = words.long()
        mask = words != PAD
        states = self.encoder(input_ids=words, attention_mask=mask.long()).last_hidden_state
        there = mask[:, :, None].to(states.dtype)
        return cast(Tensor, self.head((states * there).sum(1) / there.sum(1)))


def whole() -> ReviewNet:
    """Every weight is trained."""
    encoder = _encoder()
    return ReviewNet(encoder, encoder.config.hidden_size)


def adapted() -> ReviewNet:
    """Additions of rank 8 to queries and values are trained, and the linear layer."""
    import peft

    encoder = _encoder()
    options = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"])
    return ReviewNet(peft.get_peft_model(encoder, options), encoder.config.hidden_size)


def tokens(folder: Path | None) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(training, test) reviews cut or padded to LENGTH tokens, with their labels."""
    texts, place = load_imdb_texts(folder), encoder_folder()
    from transformers import AutoTokenizer  # seconds, which only those who have both wait for

    tokenizer = AutoTokenizer.from_pretrained(place)

    def rows(reviews: list[str], labels: Any) -> tuple[Tensor, Tensor]:
        plain = [text.replace("<br />", " ") for text in reviews]
        made = tokenizer(plain, truncation=True, max_length=LENGTH, padding="max_length")
        return torch.tensor(made["input_ids"], dtype=torch.int32), torch.as_tensor(labels).long()

    return rows(texts.train, texts.train_labels), rows(texts.test, texts.test_labels)


def encoder_folder() -> Path:
    folder = os.environ.get("TIGHTROPE_ENCODER")
    if folder is None or not Path(folder).is_dir():
        raise DataNotFound(
            "Set TIGHTROPE_ENCODER to the folder of the pretrained encoder; examples/finetune.py "
            "says where it comes from."
        )
    return Path(folder)


def _encoder() -> Any:
    from transformers import AutoModel

    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return AutoModel.from_pretrained(encoder_folder(), add_pooling_layer=False, **still)
