"""Private training with the Trainer of Hugging Face transformers, PEFT adapters included.

    trainer = PrivateTrainer(model=model, args=arguments, train_dataset=dataset,
                             sampler=PoissonSampler(0.01), clip=FlatClip(1.0),
                             noise=GaussianNoise(1.0), expected_batch_size=64)
    trainer.train()
    print(trainer.run.epsilon(1e-5))

The optimizer and schedule come from the TrainingArguments as always; batches come from the sampler,
so per_device_train_batch_size does not matter; `micro_batch` bounds the examples run at once. The
training loss is computed from private data and is not reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from tightrope.errors import InvalidInput
from tightrope.train.adapters.loader import drawn_loader
from tightrope.train.feed import slice_rows
from tightrope.train.ledger import Budget
from tightrope.train.noise import Noise
from tightrope.train.optimizer import PrivateOptimizer
from tightrope.train.samplers import AbstractSampler

__all__ = ["PrivateTrainer", "losses_of"]


def losses_of(model: torch.nn.Module, inputs: dict[str, Any]) -> Tensor:
    """One loss per example for classification (labels (B,)) and causal language models (B, T)."""
    inputs = dict(inputs)
    labels = inputs.pop("labels")
    logits = model(**inputs).logits
    if labels.ndim == 1:
        return cross_entropy(logits.float(), labels, reduction="none")
    told, asked = logits[:, :-1].float(), labels[:, 1:]  # (B, T-1, V), (B, T-1)
    each = cross_entropy(told.transpose(1, 2), asked, reduction="none", ignore_index=-100)
    own_mean: Tensor = each.sum(dim=1) / (asked != -100).sum(dim=1).clamp(min=1)
    return own_mean


class PrivateTrainer(transformers.Trainer):
    """transformers.Trainer whose steps are private."""

    def __init__(
        self,
        *arguments: Any,
        sampler: AbstractSampler,
        clip: Any,
        noise: Noise,
        expected_batch_size: float,
        budget: Budget | None = None,
        micro_batch: int | None = None,
        losses: Callable[[torch.nn.Module, dict[str, Any]], Tensor] = losses_of,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._parts = {
            "sampler": sampler,
            "clip": clip,
            "noise": noise,
            "expected_batch_size": expected_batch_size,
            "budget": budget,
        }
        self._losses, self._micro_batch = losses, micro_batch
        self.run: PrivateOptimizer | None = None
        _check_arguments(self.args)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        if self.run is None:
            rule = super().create_optimizer(model)
            assert isinstance(self.model, torch.nn.Module)
            self.run = PrivateOptimizer(self.model, rule, **self._parts)
            self.optimizer = _AlreadyStepped(rule)
        assert self.optimizer is not None
        return self.optimizer

    def get_train_dataloader(self) -> DataLoader[Any]:
        if self.train_dataset is None:
            raise InvalidInput("Training needs a train_dataset; got none.")
        self.create_optimizer()
        assert self.run is not None
        per_epoch = max(round(1 / self.run.sampler.sampling.rate), 1)
        return drawn_loader(
            self.run,
            self.train_dataset,
            steps=per_epoch,
            collate=self.data_collator,
            workers=self.args.dataloader_num_workers,
        )

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        assert self.run is not None
        model.train()
        inputs = self._prepare_inputs(inputs)
        if self.run.next_is_empty:
            self.run.step_empty()
        else:
            for part in self.run.split_next(self._micro_batch):
                with self.compute_loss_context_manager():
                    losses = self._losses(model, slice_rows(inputs, part))
                self.run.step(losses)
        return torch.zeros((), device=self.args.device)

    def train(self, resume_from_checkpoint: Any = None, *rest: Any, **options: Any) -> Any:
        if resume_from_checkpoint:
            raise InvalidInput(
                "A checkpoint of transformers does not hold the privacy spent, so resuming from it "
                "would under-count. Store private runs with tightrope.train.RunFolder."
            )
        return super().train(None, *rest, **options)


class _AlreadyStepped(torch.optim.Optimizer):
    """What the loop of transformers steps after the private step was taken: nothing.

    Shares the parameter groups of the real optimizer, so that schedules reach it.
    """

    def __init__(self, rule: torch.optim.Optimizer) -> None:
        super().__init__([p for group in rule.param_groups for p in group["params"]], {})
        self.param_groups = rule.param_groups

    def step(self, closure: Any = None) -> Any:
        return None

    def load_state_dict(self, state_dict: Any) -> None:
        """Nothing: accelerate re-loads what it just read, which would cut the shared groups."""


def _check_arguments(arguments: transformers.TrainingArguments) -> None:
    if arguments.gradient_accumulation_steps != 1:
        raise InvalidInput(
            "gradient_accumulation_steps must be 1: the sampler decides what one batch is."
        )
    if arguments.world_size > 1:
        raise InvalidInput(
            "PrivateTrainer runs in one process; for several ranks use the loop of tightrope.train "
            "under torchrun."
        )
