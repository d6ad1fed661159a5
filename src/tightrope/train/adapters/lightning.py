"""Private training with Lightning.

    class Digits(PrivateModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(64, 10)
        def losses(self, batch):
            x, y = batch
            return cross_entropy(self.net(x), y, reduction="none")

    module = Digits()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    module.make_private(optimizer, dataset, records=60_000, batch_size=256, epsilon=3.0)
    lightning.Trainer(max_epochs=30).fit(module)
    print(module.run.epsilon())

Lightning never sees the data: the batches that it hands round are the numbers of the steps, and
each training step takes one step of the run. Checkpoints, loggers, validation and
early stopping work as always. Validate on public data: what is measured is in no account.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final

import lightning
import torch
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.train.fitting import settle
from tightrope.train.private import private
from tightrope.train.run import PrivateRun


class PrivateModule(lightning.LightningModule):
    """A LightningModule whose steps are private; define `losses(batch)`, one loss per example."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self._private = _Private()

    def losses(self, batch: Any) -> Tensor:
        """One loss for each example of a batch, shape (B,)."""
        raise NotImplementedError("Define losses(batch): one loss per example, shape (batch,).")

    def make_private(self, optimizer: torch.optim.Optimizer, data: Any, **options: Any) -> None:
        """Say what is trained on, and how: `options` are those of `private` and PrivateRun.

        The length is that of Lightning's Trainer (max_steps, else max_epochs) if neither steps nor
        epochs is given.
        """
        self._private = _Private(optimizer, data, options)

    @property
    def run(self) -> PrivateRun:
        """The private run, from the start of the first fit on."""
        if self._made().run is None:
            raise InvalidInput(
                "The run is made when fitting starts, on the device that Lightning chose."
            )
        return self._made().run  # type: ignore[return-value]

    def _made(self) -> _Private:
        if self._private.optimizer is None:
            raise InvalidInput("Call make_private(optimizer, data, ...) before fitting the module.")
        return self._private

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Makes the run. What Lightning steps is a stand-in, so that its counters are right."""
        own, trainer = self._made(), self.trainer
        assert own.optimizer is not None
        if trainer.world_size > 1:
            raise InvalidInput(
                f"Lightning runs {trainer.world_size} processes; each would take, and count, steps "
                "of its own on its own weights. Use one device, or private(...) under torchrun."
            )
        if "mixed" in str(trainer.precision):
            raise InvalidInput(
                f"precision={trainer.precision!r} would not reach the program of the run, "
                "which is captured outside of Lightning's step. Use the precision 32-true, with "
                "torch.autocast inside losses()."
            )
        if own.run is None:
            options = dict(own.options)
            if {"steps", "epochs"}.isdisjoint(options):
                if trainer.max_steps > 0:
                    options["steps"] = trainer.max_steps
                elif (trainer.max_epochs or 0) > 0:
                    options["epochs"] = trainer.max_epochs
            with self._between_hooks():
                own.run = private(self, own.optimizer, own.data, _losses, **options)
        return _AlreadyStepped(own.optimizer)

    def train_dataloader(self) -> _Numbers:
        return _Numbers(self.run)

    def training_step(self, batch: Any, index: int) -> None:
        if not isinstance(batch, int):
            raise InvalidInput(
                "Call trainer.fit(module) without a loader of training data: they are drawn by the "
                "run, from the data given to make_private."
            )
        with self._between_hooks():
            step = self.run.take_step()
        self.optimizers().step()  # type: ignore[union-attr]
        if self.run.delta is not None:
            self.log("epsilon", step.epsilon(), prog_bar=True)
        self.log("learning_rate", step.learning_rate)
        if step.gradient_norm is not None:
            self.log("noisy_gradient_norm", step.gradient_norm)
        if self.run.finished:
            self.trainer.should_stop = True

    def on_fit_end(self) -> None:
        """The run is stored with its certificate; what it reserved and did not use is free."""
        settle(self.run)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if self._private.optimizer is not None and self.trainer.training:
            raise InvalidInput(
                "A checkpoint of Lightning does not hold the privacy spent, so going on from it "
                "would under-count. Store the run with make_private(..., folder='my-run'): the "
                "same program goes on from there."
            )

    @contextmanager
    def _between_hooks(self) -> Iterator[None]:
        """Without Lightning's note on the module of which hook runs, which is no part of it."""
        noted, self._current_fx_name = self._current_fx_name, None
        try:
            yield
        finally:
            self._current_fx_name = noted


@final
@dataclass
class _Private:
    """What a module was made private with, and its run; no part of the model."""

    optimizer: torch.optim.Optimizer | None = None
    data: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    run: PrivateRun | None = None


def _losses(module: PrivateModule, *batch: Any) -> Tensor:
    return module.losses(batch if len(batch) > 1 else batch[0])


@final
class _Numbers:
    """The numbers of the steps of one epoch, in the place of its batches."""

    def __init__(self, run: PrivateRun) -> None:
        self._run = run

    def __len__(self) -> int:
        return self._run.steps_per_epoch

    def __iter__(self) -> Iterator[int]:
        first = self._run.steps + 1
        return iter(range(first, min(first + len(self), self._run.ledger.steps_allowed + 1)))


@final
class _AlreadyStepped(torch.optim.Optimizer):
    """What Lightning steps after the private step was taken: nothing.

    It shares groups and state with the optimizer of the run, so monitors and checkpoints show them.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__([p for group in optimizer.param_groups for p in group["params"]], {})
        self.param_groups, self.state = optimizer.param_groups, optimizer.state

    def step(self, closure: Any = None) -> Any:
        return None if closure is None else closure()
