"""`audit.json` in a run folder: what the attacker saw, so that the bounds can be recomputed.

It stores scores and coins of made-up canaries, sums of squares of the noise where it was watched,
and the process that was attacked. No bound is stored: `audit_folder` computes them from the scores,
and the claim from the process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from tightrope.accounting import account
from tightrope.audit.noise_test import NoiseSeen
from tightrope.audit.result import Audit, RocComparison, audit_one_run, roc_against
from tightrope.audit.scores import Bits, real_array
from tightrope.errors import InvalidInput
from tightrope.evidence.files import read_most, why_unread, write_text
from tightrope.guarantee.base import Guarantee
from tightrope.process import NoisySGD, Process, Sequence
from tightrope.process.codec import from_json, to_json
from tightrope.process.composite import steps_of, with_steps
from tightrope.validate import FloatArray

__all__ = ["SCHEMA", "FILE", "FolderAudit", "save_audit", "audit_folder"]

SCHEMA = "tightrope.audit/1"
FILE = "audit.json"
_MOST_BYTES = 512_000_000


@final
@dataclass(frozen=True)
class FolderAudit:
    """An audit and the certified guarantee of the process it attacked."""

    audit: Audit
    claim: Guarantee
    process: dict[str, Any]

    @property
    def claimed_epsilon(self) -> float:
        return self.claim.epsilon(self.audit.delta).upper

    @property
    def contradicted(self) -> bool:
        """Is the claim refuted, or the noise that the process names?"""
        noise = self.audit.noise
        return (noise is not None and noise.refuted) or self.audit.contradicts(self.claim)

    def roc(self) -> RocComparison:
        return roc_against(self.audit, self.claim)


def save_audit(
    folder: str | Path,
    scores: Mapping[str, Any],
    included: ArrayLike,
    process: Process,
    *,
    delta: float,
    confidence: float = 0.95,
    noise: NoiseSeen | None = None,
) -> Path:
    """Store what a one-run attack saw on `process`."""
    if noise is not None:
        _watched(process, noise)
    content = {
        "schema": SCHEMA,
        "process": to_json(process),
        "delta": delta,
        "confidence": confidence,
        "included": np.asarray(included, dtype=bool).tolist(),
        "scores": {name: real_array(s, "scores").tolist() for name, s in scores.items()},
        "noise": None if noise is None else asdict(noise),
    }
    return write_text(Path(folder) / FILE, json.dumps(content, allow_nan=False) + "\n")


_FIRST = (
    "Train with canaries first: `with tightrope.audit.planted(run) as canaries: ...` and "
    "`canaries.save(folder, run.process, delta=...)`; then give that folder."
)


def audit_folder(folder: str | Path) -> FolderAudit:
    """The audit stored in a run folder, computed from its scores."""
    path = Path(folder) / FILE if Path(folder).is_dir() else Path(folder)
    try:
        data = json.loads(read_most(path, _MOST_BYTES).decode("utf-8"))
    except (InvalidInput, OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} cannot be read: {why_unread(error)}. {_FIRST}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise InvalidInput(f"{path} is not a {SCHEMA} file. {_FIRST}")
    try:
        included, scores = _coins(data["included"]), _scores(data["scores"])
        delta, confidence = data["delta"], data["confidence"]
        process, noise = from_json(data["process"]), data.get("noise")
        seen = None if noise is None else _noise(noise)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"{path} is damaged: {error}.") from None
    watched = None if seen is None else (seen, _watched(process, seen))
    audit = audit_one_run(scores, included, delta=delta, confidence=confidence, noise=watched)
    return FolderAudit(audit, account(process).guarantee(delta), to_json(process))


def _coins(stored: Mapping[str, Any]) -> Bits:
    if not isinstance(stored, list) or not all(isinstance(coin, bool) for coin in stored):
        raise ValueError("the coins in `included` are a list of true and false")
    return np.array(stored, dtype=bool)


def _scores(stored: Mapping[str, Any]) -> dict[str, FloatArray]:
    if not isinstance(stored, dict):
        raise TypeError("`scores` holds a list of numbers for each kind of score")
    return {name: np.asarray(values, dtype=np.float64) for name, values in stored.items()}


def _noise(stored: dict[str, Any]) -> NoiseSeen:
    squares = tuple(tuple(float(s) for s in step) for step in stored["squares"])
    return NoiseSeen(squares, tuple(int(count) for count in stored["coordinates"]))


def _watched(process: Process, noise: NoiseSeen) -> NoisySGD:
    """The steps whose noise was watched: the first ones of what the process ends in."""
    steps = len(noise.squares)
    last = with_steps(process, steps) if (steps_of(process) or 0) >= steps else process
    last = last.parts[-1] if isinstance(last, Sequence) else last
    if not isinstance(last, NoisySGD) or last.steps != steps:
        raise InvalidInput(
            f"The noise of {steps} steps was watched, but the process is {process}. Save the audit "
            "with the process of the very run that it watched (run.process)."
        )
    return last
