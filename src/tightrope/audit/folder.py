"""`audit.json` in a run folder: what the attacker saw, so that the bounds can be recomputed.

It stores scores and coins of made-up canaries, and the process they attacked. The stored bounds are
never believed: `audit_folder` computes them from the scores, and the claim from the process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from tightrope.accounting import account
from tightrope.audit.result import Audit, RocComparison, audit_one_run, roc_against
from tightrope.errors import InvalidInput
from tightrope.evidence.certificate import write_text
from tightrope.guarantee.base import Guarantee
from tightrope.process.codec import from_json, to_json

__all__ = ["SCHEMA", "FILE", "FolderAudit", "save_audit", "audit_folder"]

SCHEMA = "tightrope.audit/1"
FILE = "audit.json"


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
        return self.audit.contradicts(self.claim)

    def roc(self) -> RocComparison:
        return roc_against(self.audit, self.claim)


def save_audit(
    folder: str | Path,
    scores: Mapping[str, Any],
    included: Any,
    process: Any,
    *,
    delta: float,
    confidence: float = 0.95,
) -> Path:
    """Store what a one-run attack saw on `process`."""
    content = {
        "schema": SCHEMA,
        "process": to_json(process),
        "delta": delta,
        "confidence": confidence,
        "included": np.asarray(included, dtype=bool).tolist(),
        "scores": {name: np.asarray(s, float).tolist() for name, s in scores.items()},
    }
    return write_text(Path(folder) / FILE, json.dumps(content, allow_nan=False) + "\n")


def audit_folder(folder: str | Path) -> FolderAudit:
    """The audit stored in a run folder, computed from its scores."""
    path = Path(folder) / FILE if Path(folder).is_dir() else Path(folder)
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{path} cannot be read ({error}). Train with canaries first: "
            "`with tightrope.audit.planted(run) as canaries: ...` and "
            "`canaries.save(folder, run.process, delta=...)`."
        ) from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise InvalidInput(f"{path} is not a {SCHEMA} file.")
    try:
        included = np.asarray(data["included"], dtype=bool)
        scores, delta, confidence = data["scores"], data["delta"], data["confidence"]
        process = from_json(data["process"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(f"{path} is damaged: {error}.") from None
    audit = audit_one_run(scores, included, delta=delta, confidence=confidence)
    return FolderAudit(audit, account(process).guarantee(delta), to_json(process))
