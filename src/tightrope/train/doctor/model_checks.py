"""Is one example's influence what the clip says? And which parameters learn at all?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tightrope.train.doctor.rehearsal import Observed
from tightrope.train.doctor.subject import Subject, distance
from tightrope.train.doctor.verdict import Finding, fault, good, note

if TYPE_CHECKING:
    from tightrope.train.gradients.batch import Engine

__all__ = ["check_influence", "check_parameters", "check_clipping_rate"]

EXAMPLES = 6
# float32 sums of a few examples, relative to the sensitivity
ROUNDING = 1e-4
# Losses are made so much larger that every example is clipped, in every parameter.
MAGNIFIED = 2.0**12


def check_influence(subject: Subject) -> list[Finding]:
    """The sum of one example, and its share in the sum of several, magnified and not."""
    everyone = subject.some(min(EXAMPLES, subject.reach))
    batch, largest = subject.read(everyone), 0.0
    for scale in (1.0, MAGNIFIED):
        whole = subject.answer(batch, weights=scale).sums
        for i in range(len(everyone)):
            alone = subject.answer(subject.read(everyone[i : i + 1]), weights=scale).sums
            weights = torch.full((len(everyone),), scale, device=subject.device)
            weights[i] = 0.0
            rest = subject.answer(batch, weights=weights).sums
            largest = max(largest, _norm(alone), distance(whole, rest))
    largest /= subject.bound
    told = f"one example moves the sum by at most {largest:.4f} of the stated sensitivity"
    limit = 1 + ROUNDING * EXAMPLES * subject.precision
    return [good("clip bound", told) if largest <= limit else fault("clip bound", told)]


def _norm(sums: list[Tensor]) -> float:
    return distance(sums, [torch.zeros_like(total) for total in sums])


def check_parameters(model: torch.nn.Module, engine: Engine, seen: list[Observed]) -> list[Finding]:
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
    rate = sum(step.clipped for step in seen) / examples
    told = f"{rate:.0%} of {examples} examples were clipped"
    if rate < 0.01:
        return [note("clipping rate", told + "; a smaller clip norm would need less noise")]
    if rate > 0.99:
        return [note("clipping rate", told + "; only directions are learned from")]
    return [good("clipping rate", told)]
