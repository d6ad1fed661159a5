"""IMDb with a pretrained encoder: what people would do today in place of the papers' network.

The encoder, all-MiniLM-L6-v2, was trained on public text (learning/encoder.py); the guarantee is
about the reviews it is fine-tuned on. The same through the adapter for Hugging Face's Trainer:
examples/finetune.py.
"""

from __future__ import annotations

from dataclasses import replace

from tightrope_reproduce.item import Item, Line, Outcome, Setting
from tightrope_reproduce.learning.records import finetuned
from tightrope_reproduce.today.certified import MINUTES, WITH_START, outcome, told

TASKS = ("imdb-lora", "imdb-all")


def run(setting: Setting) -> Outcome:
    words = ": test accuracy (%) at epsilon {epsilon}, 128 tokens of a review"
    made = outcome(finetuned(), {task: task + words for task in TASKS}, {}, setting)
    return replace(made, lines=(*made.lines, *_about()))


def _about() -> list[Line]:
    return [
        told(
            "imdb-lora, imdb-all: settings tried for these runs",
            0.0,
            "step sizes, rank and clip norm were taken over from examples/finetune.py as they "
            "stood (who wrote it had looked at IMDb, which no epsilon counts); 100 rounds of 1,024 "
            "reviews fitted into the minutes. lora trains additions of rank 8 and the head, all "
            "every weight",
        ),
        told(
            "imdb-lora, imdb-all: sentence pairs the encoder was trained on, in billions",
            1.17,
            "public ones, after distillation from a model of public text; its card and list of "
            "data sets name no reviews of IMDb",
        ),
        told(
            "imdb-lora, imdb-all: minutes of one H200 for the eighteen runs",
            MINUTES + 4.4,
            f"{MINUTES:g} {WITH_START}, 4.4 for six more runs of all weights, three side by side",
        ),
    ]


ITEM = Item(
    "today-imdb-finetuned",
    "Beyond the papers",
    "IMDb with a pretrained encoder, at epsilon 1, 3 and 8",
    run,
    ("imdb-finetuned",),
)
