"""Canaries in input space: real records of the dataset, drawn by the run's own sampler.

Each canary has two states, chosen by a fair coin: in or out (add-or-remove), or one of two labels
(replace-one). Black box: only losses of the trained model are used. White box: the weights too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from tightrope.audit.result import Audit, audit_one_run
from tightrope.audit.scores import Bits
from tightrope.errors import InvalidInput
from tightrope.process import Adjacency
from tightrope.process.adjacency import check_rows
from tightrope.validate import FloatArray, check_count

__all__ = ["InputCanaries", "input_canaries", "audit_inputs"]

Losses = Callable[[Tensor, Tensor], Tensor]


@final
@dataclass(frozen=True)
class InputCanaries:
    """inputs (m, ...), the label of each when in, and its label when it is replaced instead."""

    inputs: Tensor
    labels: Tensor
    other_labels: Tensor

    def mixed_into(
        self, data: tuple[Tensor, Tensor], included: Bits, adjacency: Adjacency
    ) -> tuple[Tensor, Tensor]:
        """The dataset with every canary in the state of its coin."""
        coins = torch.from_numpy(included)
        if adjacency is Adjacency.ADD_OR_REMOVE:
            inputs, labels = self.inputs[coins], self.labels[coins]
        else:
            inputs, labels = self.inputs, torch.where(coins, self.labels, self.other_labels)
        return torch.cat([data[0], inputs]), torch.cat([data[1], labels])


def input_canaries(
    inputs: Tensor,
    labels: Tensor,
    count: int,
    *,
    kind: Literal["mislabelled", "random"] = "mislabelled",
    classes: int,
    seed: int | None = None,
) -> InputCanaries:
    """mislabelled: rows like the given ones with wrong labels. random: noise of their scale."""
    count = check_count(count, "count", low=1)
    if check_count(classes, "classes") < 2 or len(inputs) == 0:
        raise InvalidInput("Canaries need at least two classes and one example row.")
    generator = np.random.default_rng(seed)
    rows = torch.from_numpy(generator.choice(len(inputs), count, replace=count > len(inputs)))
    chosen, true = inputs[rows], labels[rows].long()
    if kind == "random":
        noise = generator.standard_normal(tuple(chosen.shape)).astype(np.float32)
        chosen = torch.from_numpy(noise).to(chosen) * inputs.std() + inputs.mean()
        true = torch.from_numpy(generator.integers(0, classes, count))
    turned = torch.from_numpy(generator.integers(1, classes, count))
    return InputCanaries(chosen, ((true + turned) % classes).to(labels), true.to(labels))


def audit_inputs(
    data: tuple[Tensor, Tensor],
    canaries: InputCanaries,
    train: Callable[[tuple[Tensor, Tensor]], nn.Module],
    losses: Losses,
    *,
    delta: float,
    start: nn.Module | None = None,
    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE,
    confidence: float = 0.95,
    seed: int | None = None,
) -> Audit:
    """Train once on the data with canaries and bound epsilon from below.

    train: from a dataset to the trained model. losses(outputs, labels): one for each example.
    start: a copy of the model before training. It calibrates the black-box score, and with it the
    white-box score (how far the weights moved down the canary's gradient) is tried too.
    """
    check_rows(adjacency, "An audit by canaries")
    generator = np.random.default_rng(seed)
    included: Bits = generator.random(len(canaries.inputs)) < 0.5
    model = train(canaries.mixed_into(data, included, adjacency))
    scores = {"losses of input canaries": -_contrast(model, canaries, losses, adjacency)}
    if start is not None:
        before = _contrast(start, canaries, losses, adjacency)
        scores = {
            "losses of input canaries": before + scores["losses of input canaries"],
            "weights against input canaries": _alignment(start, model, canaries, losses, adjacency),
        }
    return audit_one_run(scores, included, delta=delta, confidence=confidence)


def _contrast(
    model: nn.Module, canaries: InputCanaries, losses: Losses, adjacency: Adjacency
) -> FloatArray:
    """Loss of the canary; under replace-one minus that of what would stand in its place."""
    training = model.training
    model.eval()
    with torch.no_grad():
        outputs = model(canaries.inputs)
        value = losses(outputs, canaries.labels)
        if adjacency is Adjacency.REPLACE_ONE:
            value = value - losses(outputs, canaries.other_labels)
    model.train(training)
    return np.asarray(value.double().cpu().numpy())


def _alignment(
    start: nn.Module, end: nn.Module, canaries: InputCanaries, losses: Losses, adjacency: Adjacency
) -> FloatArray:
    """-<weights moved, gradient of the canary at the start>, one at a time."""
    weights = [p for p in start.parameters() if p.requires_grad]
    trained = [p for p in end.parameters() if p.requires_grad]
    moved = [(b - a).detach() for a, b in zip(weights, trained, strict=True)]
    scores: list[Any] = []
    for i in range(len(canaries.inputs)):
        outputs = start(canaries.inputs[i : i + 1])
        value = losses(outputs, canaries.labels[i : i + 1]).sum()
        if adjacency is Adjacency.REPLACE_ONE:
            value = value - losses(outputs, canaries.other_labels[i : i + 1]).sum()
        slopes = torch.autograd.grad(value, weights)
        scores.append(-sum(float((m * g).sum()) for m, g in zip(moved, slopes, strict=True)))
    return np.asarray(scores, dtype=np.float64)
