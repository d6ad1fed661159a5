"""check_run(): is a live run what its certificate will state?

The run takes real steps on its own data; what goes in and out of each is written down, and weights,
optimizer, ledger, sampler and generators are put back afterwards. Nothing of it is released, so it
costs no privacy. The Python of a loss that runs "one at a time" may change objects of its own; that
is the one thing that is not undone.

Noise and sampler are tested by their laws (noise.py, sampling.py). The checks here read no
statistics: what gets noise is the clipped sum, one record moves that by at most the sensitivity,
the optimizer gets it over the public constant, and the ledger counts it.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from tightrope.errors import InvalidInput, ModelNotPrivate
from tightrope.process import Adjacency, BallsInBinsSampling, PoissonSampling
from tightrope.train.clip import AdaptiveClip, FlatClip
from tightrope.train.data import to_device
from tightrope.train.doctor.findings import Diagnosis, Finding, fault, good, note
from tightrope.train.doctor.noise import Columns, Released, Table, check_noise, in_units, set_seed
from tightrope.train.doctor.sampling import check_observed, check_sampler, draw_batches
from tightrope.train.ranks import in_parts, rank_and_size
from tightrope.train.run import PrivateRun, _Drawn
from tightrope.train.spending import Length
from tightrope.validate import check_count, check_probability

if TYPE_CHECKING:
    from tightrope.train.clip import Clip
    from tightrope.train.samplers import Indices

__all__ = ["check_run", "columns_of", "observe", "restored"]

SUM, DIVISOR, CLIP = "sum before noise", "public divisor", "clip bound"
# relative: sums of parts are added in float32; half-precision parameters round their gradients
ROUNDING = 1e-4
HALF_PRECISION = 1e-2
EXAMPLES = 6  # whose influence is measured
SMALLER = 2.0**-12  # of the clip norm: every example of ordinary size is clipped then


def check_run(
    run: PrivateRun | Callable[[], PrivateRun], *, steps: int = 48, false_alarm: float = 1e-6
) -> Diagnosis:
    """Examine a run, or what a function returns, by `steps` steps that are undone.

    They cost no privacy, since nothing of them is released. false_alarm: the largest chance that
    this examination accuses a sound run, over all its statistical tests (noise and sampler).
    """
    count = check_count(steps, "steps", low=2)
    rate = float(check_probability(false_alarm, "false_alarm"))
    made: Any = run() if callable(run) and not isinstance(run, nn.Module) else run
    return Diagnosis(tuple(_examined(_examinable(made), count, rate)), rate)


def _examinable(run: object) -> PrivateRun:
    if not isinstance(run, PrivateRun):
        raise InvalidInput(
            f"check_run examines a private run, as private(model, optimizer, data, loss, ...) "
            f"makes it; got {type(run).__name__}. For a loss without a run there is check_program."
        )
    if rank_and_size()[1] > 1:
        raise InvalidInput("check_run examines one process; start the run without torchrun.")
    if in_parts(run.model):
        raise InvalidInput("check_run examines whole models; make the run without shard(model).")
    if run.ledger.strategy is not None:
        raise InvalidInput(
            "check_run examines noise and batches that are drawn anew at every step; those of this "
            f"run hang together ({run.ledger.strategy}). Examine the same run with GaussianNoise "
            "and PoissonSampler; what differs is tested with the library."
        )
    if run.records.length == 0:
        raise InvalidInput("The data set is empty; there is nothing to draw and to examine.")
    return run


def _examined(run: PrivateRun, steps: int, rate: float) -> Iterator[Finding]:
    yield from _stated(run)
    try:
        with restored(run):
            columns = columns_of(run)
            yield from check_sampler(run, draw_batches(run), rate / 4)
        with restored(run):
            seen = observe(run, columns, steps)
        released = [step.released() for step in seen if step.noisy is not None]
        with restored(run):
            yield from check_noise(run, released, columns, rate / 2)
        drawn = [step.drawn for step in seen if step.drawn is not None]
        yield from check_observed(run, drawn, rate / 4)
        yield from _steps(run, seen)
        yield from _parameters(run, seen)
        with restored(run):
            yield _clip(run)
    except ModelNotPrivate as refusal:
        yield fault("run", str(refusal))


def _stated(run: PrivateRun) -> Iterator[Finding]:
    record, how = run.record(), run.isolation.how
    if record.private:
        yield good("randomness", f"{record.noise}; {record.sampling}")
    else:
        yield fault("randomness", "not private: " + "; ".join(record.not_private_because))
    if how == "one at a time":
        text = (
            "your Python runs on one example at a time, and you vouch that it keeps nothing from "
            "one example to the next; the certificate says so"
        )
        yield note("examples", text)
    else:
        proof = f"proved, program {run.isolation.digests[0][:16]}" if how == "proved" else how
        yield good("examples", f"kept apart: {proof}")


# ---- steps that are written down and undone ------------------------------------------------------


def columns_of(run: PrivateRun) -> Columns:
    """Which numbers of the sums are written down."""
    zeros = run.totals.zero(run.parameters, count=isinstance(run.clip, AdaptiveClip))
    return Columns(in_units(zeros, 1.0))


@final
@dataclass
class Observed:
    """One step, at the columns that are written down.

    clean: the clipped sum; given: what noise was added to; noisy: the same with noise; gradient:
    what the optimizer got. sensitivity: what the noise should be scaled by, and asked: what it was
    asked for. largest: of each tensor's clean sum. drawn: the batch's records.
    """

    clean: Table | None = None
    given: Table | None = None
    noisy: Table | None = None
    gradient: Table | None = None
    largest: Sequence[float] = ()
    sensitivity: float = 0.0
    asked: float = 0.0
    examples: int = 0
    clipped: float = 0.0
    counted: int = 0
    moved: float = 0.0
    drawn: Indices | None = None

    def released(self) -> Released:
        """For the tests of the noise."""
        assert self.given is not None and self.noisy is not None
        return Released(self.given, self.noisy, self.sensitivity, self.examples)


@final
class _Totals:
    """The run's totals, with what passes them written down; and so for the noise they ask for."""

    def __init__(self, run: PrivateRun, columns: Columns, seen: list[Observed]) -> None:
        self._inner, self._run, self._columns, self._seen = run.totals, run, columns, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def noisy(self, total: list[Tensor], noise: Any, sensitivity: float, examples: int) -> Any:
        step, columns = self._seen[-1], self._columns
        step.sensitivity = step.asked = self._run.arithmetic.charged(sensitivity)
        step.given = columns.of(in_units(total, sensitivity))
        if self._run.arithmetic.name != "strict":  # whose noise has always the same scale
            noise = _Noise(noise, columns, step)
        sums = self._inner.noisy(total, noise, sensitivity, examples)
        step.noisy = columns.of(sums)
        return sums


@final
class _Noise:
    def __init__(self, inner: Any, columns: Columns, step: Observed) -> None:
        self._inner, self._columns, self._step = inner, columns, step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def add_(self, sums: Sequence[Tensor], sensitivity: float) -> None:
        self._step.asked, self._step.given = sensitivity, self._columns.of(sums)
        self._inner.add_(sums, sensitivity)


def observe(run: PrivateRun, columns: Columns, steps: int) -> list[Observed]:
    """Steps, and one of an empty batch where batches may be empty. The caller restores the run."""
    seen: list[Observed] = []
    drawn: deque[Indices] = deque()
    draws, summed = run._draws, run._clipped_sum

    def draw() -> Iterator[Any]:
        for indices in draws():
            drawn.append(indices)
            yield indices

    def clipped_sum(groups: Any, size: int) -> list[Tensor]:
        total = summed(groups, size)
        sums = in_units(total, float(run.clip.sensitivity))
        seen[-1].clean = columns.of(sums)
        seen[-1].largest = [float(t.abs().max()) if t.numel() else 0.0 for t in sums]
        return total

    def before_step(*_: Any) -> None:
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in run.parameters]
        seen[-1].gradient = columns.of(grads)

    def take() -> None:
        seen.append(step := Observed())
        before, released = columns.of(run.parameters), run.ledger.released
        run.take_step()
        step.moved = float(np.abs(columns.of(run.parameters) - before).max())
        step.counted = run.ledger.released - released
        step.drawn = drawn.popleft() if drawn else None
        step.examples = run.sensitive.batch_size
        step.clipped = run.sensitive.clipped_fraction * step.examples

    changed: Any = run
    changed._draws, changed._clipped_sum, changed._shows_private = draw, clipped_sum, True
    changed.totals = _Totals(run, columns, seen)
    handle = run.optimizer.register_step_pre_hook(before_step)
    try:
        for _ in range(steps):
            take()
        if isinstance(run.sampler.sampling, PoissonSampling | BallsInBinsSampling):
            drawn.clear()
            changed._next_batch = lambda: ([], _Drawn(0, None, run.sampler.state()))
            take()
    finally:
        handle.remove()
    return seen


@contextmanager
def restored(run: PrivateRun) -> Iterator[None]:
    """Everything that a step changes is put back afterwards, whatever happens in between."""
    ledger, touched = run.ledger, run.weights_touched
    values = [(t, t.detach().clone()) for t in (*run.model.parameters(), *run.model.buffers())]
    parts: list[Any] = [run.optimizer, *run.schedules, run.clip]
    states = [(p, copy.deepcopy(p.state_dict())) for p in parts if hasattr(p, "load_state_dict")]
    run._forget_draws()
    sampler, noise = run.sampler.state(), run.noise.state()
    kept = [(run, {**vars(run), "isolations": [*run.isolations]}), (ledger, dict(vars(ledger)))]
    ledger.journal = ledger.budget = ledger.reserved = run.write_ahead = run.folder = None
    ledger.length = Length()
    ledger.forget_allowance()
    try:
        with _generators_restored(run.device):
            if not touched:
                run._check_before_step()  # exports the loss again where the model was changed
            yield
    finally:
        for owner, attributes in kept:
            vars(owner).clear()
            vars(owner).update(attributes)
        with torch.no_grad():
            for tensor, value in values:
                tensor.copy_(value)
        for part, state in states:
            part.load_state_dict(state)
        run._forget_draws()
        run.sampler.restore(sampler)
        run.noise.restore(noise)
        ledger.forget_allowance()
        if not touched:
            run._mark_weights()


@contextmanager
def _generators_restored(device: torch.device) -> Iterator[None]:
    """The global generators of PyTorch, NumPy and Python stand afterwards where they stood."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng([device.index or 0] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002


# ---- what left the observed steps ----------------------------------------------------------------


def _steps(run: PrivateRun, seen: list[Observed]) -> Iterator[Finding]:
    yield _sum(seen)
    yield from _divisor(run, seen)
    counted = sum(step.counted for step in seen)
    verdict = good if counted == len(seen) else fault
    yield verdict("ledger", f"{counted} of {len(seen)} observed releases were counted")
    if any(step.moved > 0 for step in seen):
        yield good("weights", "the weights move")
    else:
        yield fault("weights", "the weights did not move: is the learning rate 0?")
    if examples := sum(step.examples for step in seen):
        rate = sum(step.clipped for step in seen) / examples
        text = f"{rate:.0%} of {examples} examples were clipped"
        if rate < 0.01:
            text += "; a smaller clip norm would need less noise"
        elif rate > 0.99:
            text += "; only directions are learned from"
        yield (good if 0.01 <= rate <= 0.99 else note)("clipping rate", text)


def _sum(seen: list[Observed]) -> Finding:
    """Noise must be added to this batch's clipped gradients and to nothing else."""
    for step in seen:
        if step.given is None or step.clean is None:
            continue
        off = float(np.abs(step.given - step.clean).max())
        off /= step.sensitivity + float(np.abs(step.clean).max())
        if off > ROUNDING:
            text = f"what gets noise differs by {off:.1e} from the sum of the clipped gradients"
            return fault(SUM, text)
        if step.asked < step.sensitivity * (1 - 1e-12):
            text = f"noise is asked for at sensitivity {step.asked:g}, but one record may move "
            return fault(SUM, f"{text}{step.sensitivity:g}")
    return good(SUM, "noise is added to the sum of the batch's clipped gradients")


def _divisor(run: PrivateRun, seen: list[Observed]) -> Iterator[Finding]:
    """The optimizer must get noisy sum / constant, in every step and coordinate."""
    ratios, constant = {}, run.expected_batch_size
    for step in seen:
        if step.noisy is None or step.gradient is None:
            yield fault(DIVISOR, "no noisy sum reached the optimizer in an observed step")
            return
        noisy = step.noisy[: len(step.gradient)]  # an adaptive clip has one number more
        off = np.linalg.norm(step.gradient * constant - noisy)
        if off > HALF_PRECISION * np.linalg.norm(noisy):
            square = float((step.gradient**2).sum())
            ratios[step.examples] = float(noisy @ step.gradient) / square if square else np.inf
    if ratios:
        text = ", ".join(f"{ratio:.4g} for {n} examples" for n, ratio in [*ratios.items()][:5])
        text = (
            f"what the optimizer gets is not the noisy sum over the public {constant:g} (it is "
            f"divided by about {text}): a divisor that follows the batch reveals its size, and "
            "what is changed after the noise is not what was accounted"
        )
        yield fault(DIVISOR, text)
        return
    yield good(DIVISOR, f"every step hands over the noisy sum divided by {constant:g}")
    derived, private = run.sampler.sampling.rate * run.records.length, Adjacency.ADD_OR_REMOVE
    if run.sampler.adjacency is private and derived and abs(constant / derived - 1) <= 1e-9:
        text = (
            f"the divisor is exactly rate * {run.records.length}. Under add-or-remove neighbours "
            "the number of records is private: fine if it is publicly known, else give a rounded "
            "one"
        )
        yield note("size of the data", text)


def _parameters(run: PrivateRun, seen: list[Observed]) -> Iterator[Finding]:
    """Frozen, tied and unused parameters."""
    names: dict[Tensor, list[str]] = {}
    for name, parameter in run.model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    used: Any = np.array([step.largest for step in seen if step.examples]).any(0)
    lists = {
        "frozen": [name for name, p in run.model.named_parameters() if not p.requires_grad],
        "tied": ["=".join(group) for group in names.values() if len(group) > 1],
        "unused": [n for n, u in zip(run.names, used, strict=False) if not u],
    }
    say = {"frozen": "", "tied": ", clipped as one", "unused": " got no gradient, and noise only"}
    for kind, listed in lists.items():
        text = ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
        if listed:
            yield (fault if kind == "unused" else note)(f"{kind} parameters", text + say[kind])
    if not any(lists.values()):
        yield good("parameters", "all trainable, none tied, all used")


# ---- the clip ------------------------------------------------------------------------------------


def _clip(run: PrivateRun) -> Finding:
    """The clip on made norms of every size, and the sums of a few records with and without one."""
    if wrong := _wrong_factors(run):
        return fault(CLIP, wrong)
    smaller = FlatClip(max(float(run.clip.sensitivity) * SMALLER, 1e-12))
    found = [_influence(run, clip) for clip in (run.clip, smaller)]
    largest, together = (max(pair) for pair in zip(*found, strict=True))
    coarse = max(torch.finfo(p.dtype).eps for p in run.parameters)
    coarse /= torch.finfo(torch.float32).eps  # of bfloat16: 65,536, and no more than 100 is lost
    rounding = ROUNDING * EXAMPLES * max(1.0, min(coarse, 100.0))
    if together > rounding:
        text = f"the sum of several records differs by {together:.1e} from those of each alone"
        return fault(CLIP, text + ", so a record's part in it depends on the others")
    text = f"one record moves the sum by at most {largest:.4f} of the stated sensitivity"
    return good(CLIP, text) if largest <= 1 + rounding else fault(CLIP, text)


def _wrong_factors(run: PrivateRun) -> str:
    """What is wrong with the factors of the clip for norms from 1e-15 to 1e15; empty if nothing."""
    rows = np.random.default_rng().uniform(-15, 15, (len(run.parameters), 512))
    norms = torch.from_numpy(10.0**rows).float().to(run.device)
    factors = run.clip.factors(norms.square()).double()
    if not bool(torch.isfinite(factors).all()) or bool((factors < 0).any()):
        return "factors of the clip are negative or not finite"
    largest = float((factors * norms.double()).square().sum(0).sqrt().max())
    bound = float(run.clip.sensitivity)
    if largest <= bound * (1 + 1e-6):
        return ""
    return f"the clip lets a gradient of norm {largest:g} through, and states {bound:g}"


def _influence(run: PrivateRun, clip: Clip) -> tuple[float, float]:
    """How far one record moves a sum, and a sum is from its records' own, in clip norms.

    Sums of one record each, of several, and of several without the last. Records whose loss draws
    at random have other draws alone than together, so then the two are not compared.
    """
    total = run.records.length
    chosen = np.random.default_rng().choice(total, min(EXAMPLES, total), replace=False)
    group = max(run.records.groups(chosen), key=lambda g: g.size)
    executor = run._isolated.executor_for(group.arguments)
    records = list(range(min(group.size, executor.size)))

    def summed(rows: list[int], seed: int = 0) -> Tensor:
        batch = pytree.tree_map(lambda leaf: leaf[rows], group.arguments)
        set_seed(run.device, seed)
        chain = run.arithmetic.chain(len(rows), 1)
        found, _ = executor.clipped_sum(to_device(batch, run.device), clip, chain)
        sums = in_units(found.sums, float(clip.sensitivity))
        return torch.cat([t.detach().reshape(-1).double().cpu() for t in sums])

    alone, whole = [summed([i]) for i in records], summed(records)
    largest, together = max(float(one.norm()) for one in alone), 0.0
    if len(records) > 1 and run.arithmetic.name != "strict":  # which draws anew for each record
        for i in records:
            others = [j for j in records if j != i]
            moved = float((summed([*others, i]) - summed(others)).norm())
            largest = max(largest, moved)
    if torch.equal(whole, summed(records, seed=1)):
        together = float((whole - torch.stack(alone).sum(0)).norm())
    bound = float(clip.sensitivity)
    return largest / bound, together / bound
