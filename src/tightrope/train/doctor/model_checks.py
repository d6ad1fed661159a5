"""Is one example's influence what the clip says? And which parameters learn at all?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules.dropout import _DropoutNd

from tightrope.train.doctor.rehearsal import Observed
from tightrope.train.doctor.verdict import Finding, fault, good, note
from tightrope.train.feed import Rows, tensors_of, to_device, with_tensors
from tightrope.train.losses import losses_on

__all__ = ["check_influence", "check_parameters", "check_clipping_rate"]

EXAMPLES = 6
# float32 sums of a few examples, relative to the sensitivity
ROUNDING = 1e-4


def check_influence(
    engine: Any, clip: Any, model: torch.nn.Module, loss: Callable[..., Tensor], rows: Rows
) -> list[Finding]:
    """Leave a few examples out in turn: the sum must move by that example's own share."""
    count, bound = min(EXAMPLES, rows.length), float(clip.sensitivity)
    if count < 2:
        return [note("one example's influence", "fewer than two examples to look at")]

    everyone = list(range(count))
    # read once: data may change from one reading to the next
    batch = to_device(rows.take(np.array(everyone, dtype=np.int64)), engine.parameters[0].device)

    def total(index: list[int]) -> Tensor:
        part = with_tensors(batch, [tensor[index] for tensor in tensors_of(batch)])
        sums = engine.clipped_sum(losses_on(model, loss, part), clip).sums
        return torch.cat([s.detach().double().cpu().reshape(-1) for s in sums])

    with _no_dropout(model):
        whole = total(everyone)
        if not torch.allclose(whole, total(everyone), rtol=0, atol=ROUNDING * bound):
            return [note("one example's influence", "the model is random; it cannot be tested")]
        alone = [total([i]) for i in everyone]
        left_out = [whole - total([j for j in everyone if j != i]) for i in everyone]
    return [_bounded(alone, left_out, bound), _apart(alone, left_out, bound)]


def _bounded(alone: list[Tensor], left_out: list[Tensor], bound: float) -> Finding:
    largest = max(float(d.norm()) for d in [*alone, *left_out]) / bound
    told = f"one example moves the sum by at most {largest:.4f} of the stated sensitivity"
    limit = 1 + ROUNDING * EXAMPLES
    return good("clip bound", told) if largest <= limit else fault("clip bound", told)


def _apart(alone: list[Tensor], left_out: list[Tensor], bound: float) -> Finding:
    apart = max(float((a - b).norm()) for a, b in zip(alone, left_out, strict=True)) / bound
    check = "cross-example leakage"
    if apart <= ROUNDING * EXAMPLES:
        return good(check, f"leaving an example out moves nothing but its own share ({apart:.1e})")
    return fault(
        check,
        f"leaving one example out moves the others' gradients by {apart:.2%} of the sensitivity: "
        "a layer or the loss mixes examples",
    )


@contextmanager
def _no_dropout(model: torch.nn.Module) -> Iterator[None]:
    dropout = [m for m in model.modules() if isinstance(m, _DropoutNd) and m.training]
    for module in dropout:
        module.eval()
    try:
        yield
    finally:
        for module in dropout:
            module.train()


def check_parameters(model: torch.nn.Module, engine: Any, seen: list[Observed]) -> list[Finding]:
    """Frozen, tied and unused parameters."""
    findings = []
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    tied = ["=".join(group) for group in names.values() if len(group) > 1]
    mine = {id(parameter) for parameter in engine.parameters}
    strange = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in mine]
    if strange:
        told = _listed(strange) + " came or were unfrozen after the run was made: never trained"
        findings.append(fault("parameters left out", told))
    if frozen:
        findings.append(note("frozen parameters", _listed(frozen)))
    if tied:
        findings.append(note("tied parameters", _listed(tied) + ", clipped as one"))
    steps = [step for step in seen if step.batch_size]
    unused = [
        name
        for index, name in enumerate(engine.names)
        if steps and all(step.parts[index] == 0.0 for step in steps)
    ]
    if unused:
        told = _listed(unused) + " got no gradient in any rehearsed step: noise, and nothing else"
        findings.append(fault("unused parameters", told))
    return findings or [good("parameters", "all trainable, none tied, all used")]


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def check_clipping_rate(seen: list[Observed]) -> list[Finding]:
    examples = sum(step.batch_size for step in seen)
    if examples == 0:
        return [note("clipping rate", "every rehearsed batch was empty")]
    rate = sum(step.clipped * step.batch_size for step in seen) / examples
    told = f"{rate:.0%} of {examples} examples were clipped"
    if rate < 0.01:
        return [note("clipping rate", told + "; a smaller clip norm would need less noise")]
    if rate > 0.99:
        return [note("clipping rate", told + "; only directions are learned from")]
    return [good("clipping rate", told)]
