"""What a run is, read off the objects that run."""

from __future__ import annotations

from typing import Any

from tightrope.train.distributed import rank_and_size
from tightrope.train.record import RunRecord

__all__ = ["settings_of", "record_of"]


def settings_of(run: Any) -> dict[str, Any]:
    """The settings that privacy rests on, as plain text and numbers."""
    shapes = [list(parameter.shape) for parameter in run.gradients.parameters]
    return {
        "sampling": repr(run.sampler.sampling),
        "adjacency": str(run.sampler.adjacency),
        "clip": repr(run.clip),
        "sensitivity": float(run.clip.sensitivity),
        "noise": type(run.noise).__name__,
        "noise_multiplier": run.noise.noise_multiplier,
        "expected_batch_size": run.expected_batch_size,
        "parameters": [list(pair) for pair in zip(run.gradients.names, shapes, strict=True)],
        "ranks": rank_and_size()[1],
    }


def record_of(run: Any) -> RunRecord:
    """Public facts about what has run so far."""
    reasons = _not_private_because(run)
    return RunRecord(
        process=run.process,
        steps=run.ledger.released,
        private=not reasons,
        not_private_because=reasons,
        noise=run.noise.description,
        sampling=run.sampler.stream.description,
        clip=repr(run.clip),
        sensitivity=float(run.clip.sensitivity),
        expected_batch_size=run.expected_batch_size,
        ranks=rank_and_size()[1],
    )


def _not_private_because(run: Any) -> tuple[str, ...]:
    reasons = []
    if not run.noise.private:
        reasons.append("the noise is seeded, so anybody who knows the seed can subtract it")
    if not run.sampler.stream.private:
        reasons.append("the sampler is seeded, so its batches are not secret")
    if run.noise.noise_multiplier == 0:
        reasons.append("no noise is added")
    return tuple(reasons)
