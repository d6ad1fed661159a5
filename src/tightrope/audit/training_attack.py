"""Canaries for trainings by `tightrope.train`: in gradient space, and in input space.

A canary is a made-up record whose gradient is huge and points in a direction of its own. It goes
through the run's own clip, joins batches at the run's own rate, and meets the run's own noise. The
attacker sees every noisy sum and knows everybody else's part of it (white box): that is what the
accounting assumes.

Two scores for each canary, from the releases x_t in its direction (in units of the sensitivity):
    likelihood  sum_t ln p_in(x_t)/p_out(x_t) under the claimed rate and noise: the best test of an
                honest run, by Neyman and Pearson, so its curve comes close to the certified one
    spread      max_t x_t - min_t x_t: small without a canary where noise is missing or repeated
And one test of the noise itself, in the canaries' directions and all others (`noise_test`): what
was released less what is known, in units of what a canary moves the sum by.

An input canary is a real record of the data set, drawn by the run's own sampler. Each has two
states, chosen by a fair coin: in or out (add-or-remove), or one of two labels (replace-one). Black
box: only losses of the trained model are used. White box: the weights too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor, nn

from tightrope.audit.noise_test import NoiseSeen
from tightrope.audit.one_run import Bits
from tightrope.audit.result import Audit, audit_one_run, save_audit
from tightrope.errors import InvalidInput
from tightrope.process import Adjacency, FullBatch, NoisySGD, PoissonSampling, Process
from tightrope.process.adjacency import check_rows
from tightrope.train.clip import AdaptiveClip
from tightrope.train.noise import Noise
from tightrope.train.run import PrivateRun
from tightrope.validate import FloatArray, check_count

# Raw norm of a canary's gradient in units of the sensitivity: far above every clip.
_RAW_NORM = 1e3


@final
class GradientCanaries:
    """The noise of a run with canaries added to the sum just before it, and watched after it."""

    def __init__(self, run: PrivateRun, canaries: int, seed: int | None = None) -> None:
        count = check_count(canaries, "canaries", low=1)
        if isinstance(run.clip, AdaptiveClip):
            raise InvalidInput(
                "Canaries are added to gradients of one clip norm, and AdaptiveClip changes it at "
                f"every step. Audit the same run with clip=FlatClip({run.clip.clip_norm:g})."
            )
        if run.arithmetic.name == "strict":
            raise InvalidInput(
                'Gradient canaries are added to sums in floating point, and arithmetic="strict" '
                "adds whole numbers. Audit a twin of the run in another arithmetic, or use input "
                "canaries."
            )
        sampling = run.sampler.sampling
        if not isinstance(sampling, (PoissonSampling, FullBatch)):
            raise InvalidInput(
                "Gradient canaries join batches independently, as records do under "
                f"PoissonSampling or FullBatch; this run has {type(sampling).__name__}. Use input "
                "canaries, which are drawn by the run's own sampler."
            )
        self.rate, self._sampling, self._adjacency = sampling.rate, sampling, run.sampler.adjacency
        self._inner, self._clip = run.noise, run.clip
        self._random = np.random.default_rng(seed)
        self.included: Bits = self._random.random(count) < 0.5
        # in or out; or, where one record is replaced by another, the opposite gradient
        self._absent = 0.0 if self._adjacency is Adjacency.ADD_OR_REMOVE else -1.0
        self._weights = np.where(self.included, 1.0, self._absent)
        sizes = [p.numel() for p in run.parameters]
        whole = _directions(count, sum(sizes), self._random)
        self._directions: tuple[Tensor, ...] = torch.split(whole, sizes, dim=1)
        self._shares = torch.stack([part.square().sum(1) for part in self._directions])
        self._seen: list[FloatArray] = []
        self._squares: list[tuple[float, ...]] = []

    # --- the protocol of Noise ------------------------------------------------------------------
    splits_over_ranks = True  # only the first rank adds noise, and with it the canaries

    @property
    def noise_multiplier(self) -> float:
        return self._inner.noise_multiplier

    @property
    def private(self) -> bool:
        return self._inner.private

    @property
    def description(self) -> str:
        return f"{self._inner.description}; with {len(self.included)} audit canaries"

    def state(self) -> dict[str, Any]:
        return self._inner.state()

    def restore(self, state: dict[str, Any]) -> None:
        self._inner.restore(state)

    def add_(self, sums: Sequence[Tensor], sensitivity: float) -> None:
        known = self._project(sums)
        drawn = self._random.random(len(self.included)) < self.rate
        weights = torch.as_tensor(self._weights * drawn, dtype=torch.float32, device="cpu")
        lengths = self._lengths(sensitivity)
        for row, (total, part) in enumerate(zip(sums, self._directions, strict=True)):
            length = lengths[row if len(lengths) > 1 else 0]
            total.add_((weights * length @ part).view_as(total).to(total))
        quiet = [total.detach().clone() for total in sums]
        self._inner.add_(sums, sensitivity)
        self._seen.append((self._project(sums) - known) / sensitivity)
        # one canary moves the sum by no more than the sensitivity, or the clip is wrong
        moved = float((lengths.square() * self._shares).sum(0).max().sqrt())
        unit = max(moved, sensitivity)
        noise = [a.detach().double() - b.double() for a, b in zip(sums, quiet, strict=True)]
        self._squares.append(tuple(float(one.square().sum()) / unit**2 for one in noise))

    # --- what they add, what is seen ------------------------------------------------------------
    def _lengths(self, sensitivity: float) -> Tensor:
        """What the run's clip leaves of the canaries' gradients: (parameters or 1, canaries)."""
        raw = _RAW_NORM * sensitivity
        lengths: Tensor = self._clip.factors(self._shares * raw**2) * raw
        return lengths

    def _project(self, sums: Sequence[Tensor]) -> FloatArray:
        parts = zip(sums, self._directions, strict=True)
        seen = sum(part @ total.detach().flatten().float().cpu() for total, part in parts)
        return np.asarray(seen, dtype=np.float64)

    def scores(self) -> dict[str, FloatArray]:
        """One score of each kind for each canary; the audit pays for trying both."""
        if not self._seen:
            raise InvalidInput("No step was taken while the canaries were planted.")
        releases = np.stack(self._seen)
        likelihood = log_likelihood_ratio(
            releases, self.rate, self.noise_multiplier, replaced=self._absent != 0.0
        )
        kinds = {"gradient canaries, likelihood": likelihood}
        if len(releases) > 1:
            kinds["gradient canaries, spread"] = np.ptp(releases, axis=0)
        return kinds

    def noise_seen(self) -> NoiseSeen | None:
        """What was added to the sums; None where no noise is claimed."""
        if self.noise_multiplier == 0.0:
            return None
        sizes = tuple(part.shape[1] for part in self._directions)
        return NoiseSeen(tuple(self._squares), sizes)

    def audit(self, *, delta: float, confidence: float = 0.95) -> Audit:
        """Lower bounds on epsilon, and a test of the noise."""
        scores, noise = self.scores(), self.noise_seen()
        process = NoisySGD(self._sampling, self.noise_multiplier, len(self._seen), self._adjacency)
        return audit_one_run(
            scores,
            self.included,
            delta=delta,
            confidence=confidence,
            noise=None if noise is None else (noise, process),
        )

    def save(
        self, folder: str | Path, process: Process, *, delta: float, confidence: float = 0.95
    ) -> Path:
        """Write what was seen to `audit.json`, for `tightrope audit`."""
        return save_audit(
            folder,
            self.scores(),
            self.included,
            process,
            delta=delta,
            confidence=confidence,
            noise=self.noise_seen(),
        )


def log_likelihood_ratio(
    releases: FloatArray, rate: float, noise_multiplier: float, *, replaced: bool = False
) -> FloatArray:
    """ln p_in/p_out of each canary, from releases (steps, canaries) in units of the sensitivity.

    Under the claim a release is N(b, noise_multiplier^2), b = 1 with probability `rate` and else 0;
    without the canary b = 0, or (replaced) b = -1 with probability `rate`. The best test of an
    honest run (Neyman and Pearson). Without claimed noise: the sum.
    """
    variance = noise_multiplier**2
    if variance == 0.0:
        return np.asarray(releases.sum(0))
    present = _log_mixture(rate, (releases - 0.5) / variance)
    absent = _log_mixture(rate, (-releases - 0.5) / variance) if replaced else 0.0
    return np.asarray((present - absent).sum(0))


def _log_mixture(rate: float, exponent: FloatArray) -> FloatArray:
    """ln(1 - rate + rate e^exponent)."""
    if rate == 1.0:
        return exponent
    return np.asarray(np.logaddexp(math.log1p(-rate), math.log(rate) + exponent))


def _directions(count: int, size: int, random: np.random.Generator) -> Tensor:
    """(count, size) unit directions: orthonormal where there is room, else independent."""
    raw = torch.from_numpy(random.standard_normal((count, size), dtype=np.float32))
    if count <= size:
        raw = torch.linalg.qr(raw.T).Q.T.contiguous()
    return raw.div_(torch.linalg.vector_norm(raw, dim=1, keepdim=True))


@contextmanager
def planted(
    run: PrivateRun, canaries: int = 1000, *, seed: int | None = None
) -> Iterator[GradientCanaries]:
    """Train inside this block; the canaries watch every step. For audits, not for release."""
    if run.steps:
        raise InvalidInput(f"Plant canaries before the first step; {run.steps} were taken.")
    own: Noise = run.noise
    watch = GradientCanaries(run, canaries, seed)
    run.noise = watch
    try:
        yield watch
    finally:
        run.noise = own


def audit_training(
    run: PrivateRun,
    train: Callable[[PrivateRun], Any],
    *,
    delta: float,
    canaries: int = 1000,
    confidence: float = 0.95,
    seed: int | None = None,
) -> Audit:
    """Plant gradient canaries, call `train(run)`, and bound epsilon from below."""
    with planted(run, canaries, seed=seed) as watch:
        train(run)
    return watch.audit(delta=delta, confidence=confidence)


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
