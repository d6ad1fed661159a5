"""Private training with Lightning.

    class Digits(PrivateModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(64, 10)
        def losses(self, batch):
            x, y = batch
            return cross_entropy(self.net(x), y, reduction="none")

    module = Digits()
    run = module.make_private(torch.optim.SGD(module.parameters(), lr=1.0), sampler=..., ...)
    loader = drawn_loader(run, dataset, steps=1000)
    lightning.Trainer(max_epochs=1).fit(module, loader)

One epoch of that loader is the whole training; the learning rate schedule, if any, is stepped in
on_train_batch_end by the user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lightning
import torch
from torch import Tensor

from tightrope.errors import InvalidInput
from tightrope.train.adapters.loader import drawn_loader
from tightrope.train.captured import CapturedStep
from tightrope.train.independence import Recheck, check_independent_losses
from tightrope.train.losses import mean_of_views
from tightrope.train.optimizer import PrivateOptimizer

if TYPE_CHECKING:
    from tightrope.train.feed import Batch

__all__ = ["PrivateModule", "drawn_loader"]


class PrivateModule(lightning.LightningModule):
    """A LightningModule whose steps are private; define `losses(batch)`, one loss per example."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self._private: list[PrivateOptimizer] = []  # a list: not to be registered as a submodule
        self._examples_apart = False
        self._recheck = Recheck(self._each)
        self._record: str | None = None
        self._recorded: CapturedStep | None = None

    def losses(self, batch: Batch) -> Tensor:
        raise NotImplementedError("Define losses(batch): one loss per example, shape (batch,).")

    def _each(self, batch: Batch) -> Tensor:
        return mean_of_views(self.losses(batch))

    def make_private(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        capture: bool = False,
        compile: bool = False,
        **parts: Any,
    ) -> PrivateOptimizer:
        """Wrap this module and its optimizer; `parts` are those of PrivateOptimizer.

        capture, compile: as in Trainer of tightrope.train.
        """
        self._private = [PrivateOptimizer(self, optimizer, **parts)]
        self._record = "compile" if compile else "capture" if capture else None
        for part in self.children():  # losses() calls them, not this module
            self.run.guard.watch(part)
        return self.run

    @property
    def run(self) -> PrivateOptimizer:
        if not self._private:
            raise InvalidInput("Call make_private(optimizer, ...) before fitting this module.")
        return self._private[0]

    def configure_optimizers(self) -> None:
        """None: the private run holds the optimizer, and Lightning must not step it."""
        return

    def on_fit_start(self) -> None:
        if self.trainer.world_size > 1:
            raise InvalidInput(
                f"Lightning runs {self.trainer.world_size} processes; each would take, and count, "
                "steps of its own on its own weights. Use one device, or the loop of "
                "tightrope.train under torchrun."
            )

    def on_fit_end(self) -> None:
        """What was reserved in a ledger and not used is free again; not after an exception."""
        self.run.settle()

    def training_step(self, batch: Batch, index: int) -> None:
        if not self._examples_apart and self.run.rows is not None:
            check_independent_losses(self, self._each, self.run.rows, self.run.device)
            self._examples_apart = True
        self._recheck.by_chance(self.run)
        if self.run.next_is_empty:
            self.run.step_empty()
        elif self._record is not None:
            self._step_of_record()(batch)
        else:
            self.run.step(self.losses(batch))

    def _step_of_record(self) -> CapturedStep:
        """Made at the first step, when the module lies where it will be trained."""
        if self._recorded is None:
            assert self._record is not None
            self._recorded = getattr(self.run, self._record)(self.losses)
        return self._recorded
