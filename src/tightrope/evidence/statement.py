"""What a certificate says, in one sentence, made from its other sections."""

from __future__ import annotations

from typing import Any

from tightrope.numerics.digits import rounded_up

__all__ = ["statement", "main_claim"]


def statement(content: dict[str, Any]) -> str:
    """The main claim, or why there is none."""
    setting, run = content["setting"], content["run"]
    if run is not None and not run["private"]:
        return f"NOT PRIVATE: {'; '.join(run['not_private_because'])}."
    epsilon, delta = main_claim(content["claims"], setting["delta"]), rounded_up(setting["delta"])
    if epsilon is None:
        return f"NOT PRIVATE: no finite epsilon holds at delta = {delta}."
    subject = "This process has" if run is None else f"This {run['kind']} has"
    return _uncovered(run) + (
        f"{subject} ({rounded_up(epsilon)}, {delta})-differential privacy for "
        f"{setting['unit_of_privacy']} under {setting['adjacency']} neighbours."
        f"{'' if run is None else _LENGTHS.get(run['length'], '')}"
    )


# What the claim has to do with the end of the run.
_LENGTHS = {
    "planned": " Its length was fixed before its first step.",
    "budget": " It claims all that its budget allows.",
    "asked": " It claims the length that was asked for before its first step.",
    "at will": " It was stopped at will; the claim holds whenever it is stopped.",
}


def _uncovered(run: Any) -> str:
    """A warning that comes before everything else, where the run asked to go on without cover."""
    if run is None or run["settings"].get("arithmetic") != "uncovered":
        return ""
    return (
        "FLOATING POINT IS NOT COVERED: rounding may have moved the sums further than is "
        "accounted; what follows is about real numbers. "
    )


def main_claim(claims: Any, delta: float) -> Any:
    """The upper end of epsilon claimed at the certificate's delta; KeyError where there is none."""
    rows = claims.get("epsilon") if isinstance(claims, dict) else None
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and row.get("delta") == delta:
            return row["upper"]
    raise KeyError(f"no epsilon is claimed at delta = {delta}")
