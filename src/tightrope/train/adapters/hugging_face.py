"""Private training with the Trainer of Hugging Face transformers, PEFT adapters included.

    trainer = PrivateTrainer(model=model, args=arguments, train_dataset=dataset,
                             sampler=PoissonSampler(0.01), clip=FlatClip(1.0),
                             noise=GaussianNoise(1.0), expected_batch_size=64)
    trainer.train()
    print(trainer.run.epsilon(1e-5))

The optimizer and schedule come from the TrainingArguments as always; batches come from the sampler,
so per_device_train_batch_size does not matter; `micro_batch` bounds the examples run at once. The
training loss is computed from private data and is not reported; with a budget, epsilon is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.utils.data import DataLoader

from tightrope.errors import InvalidInput
from tightrope.train.adapters.hugging_face_losses import check_own_loss, losses_of
from tightrope.train.adapters.loader import drawn_loader
from tightrope.train.captured import CapturedStep
from tightrope.train.feed import as_rows, slice_rows
from tightrope.train.independence import Recheck, check_independent_losses
from tightrope.train.ledger import Budget
from tightrope.train.losses import mean_of_views
from tightrope.train.noise import Noise
from tightrope.train.optimizer import PrivateOptimizer
from tightrope.train.samplers import AbstractSampler

__all__ = ["PrivateTrainer", "losses_of"]

_NOT_SHOWN = ("loss", "grad_norm", "train_loss")


class PrivateTrainer(transformers.Trainer):
    """transformers.Trainer whose steps are private.

    The parts are those of PrivateOptimizer. losses: from model and batch to one loss per example
    (or `views` of them, where that is given); by default what the model itself would average over
    the batch. capture, compile: as in Trainer of tightrope.train; for items of one length.
    """

    def __init__(
        self,
        *arguments: Any,
        sampler: AbstractSampler,
        clip: Any,
        noise: Noise,
        expected_batch_size: float,
        budget: Budget | None = None,
        history: Any | None = None,
        gradients: Any | None = None,
        arithmetic: str = "bounded",
        views: int = 1,
        micro_batch: int | None = None,
        capture: bool = False,
        compile: bool = False,
        losses: Callable[[torch.nn.Module, dict[str, Any]], Tensor] = losses_of,
        **options: Any,
    ) -> None:
        _check_records(sampler)
        super().__init__(*arguments, **options)
        self._parts = {
            "sampler": sampler,
            "clip": clip,
            "noise": noise,
            "expected_batch_size": expected_batch_size,
            "budget": budget,
            "history": history,
            "gradients": gradients,
            "arithmetic": arithmetic,
            "views": views,
        }
        self._record = "compile" if compile else "capture" if capture else None
        self._recorded: CapturedStep | None = None
        self._losses, self._micro_batch = losses, micro_batch
        self.run: PrivateOptimizer | None = None
        self._recheck = Recheck(self._of_batch)
        _check_arguments(self.args)

    def create_optimizer(self, *model: Any, **named: Any) -> torch.optim.Optimizer:
        """transformers 5 may name a model; before, there was only the trainer's own."""
        if self.run is None:
            rule = super().create_optimizer(*model, **named)
            assert isinstance(self.model, torch.nn.Module)
            self.run = PrivateOptimizer(self.model, rule, **self._parts)
            if self._record is not None:
                record = getattr(self.run, self._record)
                self._recorded = record(self._of_rows, size=self._micro_batch)
            self.optimizer = _AlreadyStepped(rule)
        assert self.optimizer is not None
        return self.optimizer

    def get_train_dataloader(self) -> DataLoader[Any]:
        if self.train_dataset is None:
            raise InvalidInput("Training needs a train_dataset; got none.")
        collate = self._get_collator_with_removed_columns(self.data_collator, "Training")
        self._check_losses(collate)
        self.create_optimizer()
        assert self.run is not None
        per_epoch = max(round(1 / self.run.sampler.sampling.rate), 1)
        loader = drawn_loader(
            self.run,
            self.train_dataset,
            steps=per_epoch,
            collate=collate,
            workers=self.args.dataloader_num_workers,
        )
        self.run.ledger.ask(_length(self.args, per_epoch))
        return loader

    def _check_losses(self, collate: Callable[[list[Any]], Any]) -> None:
        """On a few examples, before anything is wrapped."""
        rows, model = as_rows(self.train_dataset, collate), self.model
        assert isinstance(model, torch.nn.Module)
        check_independent_losses(model, self._of_batch, rows, self.args.device)
        if self._losses is losses_of and rows.length:
            batch = self._prepare_inputs(rows.take(np.arange(min(4, rows.length))))
            with self.compute_loss_context_manager():
                check_own_loss(model, batch)

    def _of_batch(self, batch: dict[str, Any]) -> Tensor:
        return mean_of_views(self._of_rows(batch))

    def _of_rows(self, batch: dict[str, Any]) -> Tensor:
        assert isinstance(self.model, torch.nn.Module)
        with self.compute_loss_context_manager():
            return self._losses(self.model, batch)

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> Tensor:
        assert self.run is not None
        self._recheck.by_chance(self.run)
        model.train()
        inputs = self._prepare_inputs(inputs)
        if self.run.next_is_empty:
            self.run.step_empty()
        elif self._recorded is not None:
            self._recorded(inputs)
        else:
            for part in self.run.split_next(self._micro_batch):
                with self.compute_loss_context_manager():
                    losses = self._losses(model, slice_rows(inputs, part))
                self.run.step(losses)
        return torch.zeros((), device=self.args.device)

    def log(self, logs: dict[str, float], *rest: Any, **options: Any) -> None:
        """Public numbers only: what the loop takes for loss and norm are places kept by zeros."""
        shown = {name: value for name, value in logs.items() if name not in _NOT_SHOWN}
        budget = self._parts["budget"]
        pair = budget.pair if isinstance(budget, Budget) else None
        if self.run is not None and pair is not None and "learning_rate" in shown:
            shown["epsilon"] = self.run.spent(pair[1]).upper
        super().log(shown, *rest, **options)

    def train(self, resume_from_checkpoint: Any = None, *rest: Any, **options: Any) -> Any:
        if resume_from_checkpoint:
            raise InvalidInput(
                "A checkpoint of transformers does not hold the privacy spent, so resuming from it "
                "would under-count. Store private runs with tightrope.train.RunFolder."
            )
        outcome = super().train(None, *rest, **options)
        if self.run is not None:
            self.run.settle()  # what was reserved in a ledger and not used is free again
        return outcome


def _length(arguments: transformers.TrainingArguments, per_epoch: int) -> int:
    """The steps that the arguments ask for."""
    if arguments.max_steps > 0:
        return int(arguments.max_steps)
    return math.ceil(arguments.num_train_epochs * per_epoch)


class _AlreadyStepped(torch.optim.Optimizer):
    """What the loop of transformers steps after the private step was taken: nothing.

    Shares the parameter groups of the real optimizer, so that schedules reach it.
    """

    def __init__(self, rule: torch.optim.Optimizer) -> None:
        super().__init__([p for group in rule.param_groups for p in group["params"]], {})
        self.param_groups = rule.param_groups

    def step(self, closure: Any = None) -> Any:
        return None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing: accelerate re-loads what it just read, which would cut the shared groups."""


def _check_records(sampler: AbstractSampler) -> None:
    if getattr(sampler, "users", None) is not None:
        raise InvalidInput(
            f"PrivateTrainer draws items of a dataset, and its sampler has users={sampler.users}, "
            "which need rows keyed by user. Leave users out, or use the Trainer or the loop of "
            "tightrope.train with UserData(data, users)."
        )


def _check_arguments(arguments: transformers.TrainingArguments) -> None:
    if arguments.gradient_accumulation_steps != 1:
        raise InvalidInput(
            "gradient_accumulation_steps must be 1: the sampler decides what one batch is."
        )
    if arguments.world_size > 1 or arguments.n_gpu > 1:
        raise InvalidInput(
            "PrivateTrainer runs in one process on one device; for several use the loop of "
            "tightrope.train under torchrun, or show it one GPU (CUDA_VISIBLE_DEVICES=0)."
        )
    if arguments.fp16:
        raise InvalidInput(
            "fp16=True would scale losses before clipping. Use bf16=True, or a loop of your own "
            "with gradients=Gradients(model, loss_scale=2.0**12), which takes the scale out again."
        )
    if arguments.label_smoothing_factor:
        raise InvalidInput(
            "label_smoothing_factor acts on the mean loss, which is not used here. Pass losses=f "
            "with f(model, batch) one smoothed loss per example."
        )
