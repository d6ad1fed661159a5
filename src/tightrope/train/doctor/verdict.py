"""What the doctor says."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, final

__all__ = ["Verdict", "Finding", "Diagnosis", "good", "note", "fault"]


class Verdict(Enum):
    """GOOD: tested and in order. NOTE: worth knowing. FAULT: guarantee or training fails."""

    GOOD = "good"
    NOTE = "note"
    FAULT = "fault"


@final
@dataclass(frozen=True)
class Finding:
    """The outcome of one check, in words."""

    check: str
    verdict: Verdict
    told: str


def good(check: str, told: str) -> Finding:
    return Finding(check, Verdict.GOOD, told)


def note(check: str, told: str) -> Finding:
    return Finding(check, Verdict.NOTE, told)


def fault(check: str, told: str) -> Finding:
    return Finding(check, Verdict.FAULT, told)


@final
@dataclass(frozen=True)
class Diagnosis:
    """All findings. It describes private data: for the trainer's eyes, not for publication."""

    findings: tuple[Finding, ...]
    # The chance that a sound run is accused, over all statistical tests of the examination.
    false_alarm: float = 0.0

    @property
    def faults(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.verdict is Verdict.FAULT)

    @property
    def healthy(self) -> bool:
        return not self.faults

    def of(self, check: str) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.check == check)

    def as_dict(self) -> dict[str, Any]:
        """The same for machines."""
        found = [
            {"check": finding.check, "verdict": finding.verdict.value, "told": finding.told}
            for finding in self.findings
        ]
        return {"healthy": self.healthy, "false_alarm": self.false_alarm, "findings": found}

    def __str__(self) -> str:
        marks = {Verdict.GOOD: "ok   ", Verdict.NOTE: "note ", Verdict.FAULT: "FAULT"}
        return "\n".join(f"{marks[f.verdict]} {f.check}: {f.told}" for f in self.findings)
