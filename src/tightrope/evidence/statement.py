"""What a certificate says, in one sentence, composed from fields that `verify` has checked.

Words of the writer have no place in it: kinds, lengths, units and relations are closed lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tightrope.numerics.rounding import rounded_up

_NEWEST = "tightrope.certificate/2"
_SUBJECTS = {
    None: "This declared process",
    "training": "The process of this training",
    "convex fit": "The process of this convex fit",
}
# What the claim has to do with the end of the run.
_LENGTHS = {
    "planned": " By its own word, its length was fixed before its first step.",
    "budget": " It claims all that its budget allows.",
    "asked": " It claims the length that was asked for before its first step.",
    "at will": " It was stopped at will; the claim holds whenever it is stopped.",
}
_BY_ITS_WORD = " By its own word, its budget held it to the length that is claimed."
_UNSAID = " It holds if the length was fixed before the first step, which is not recorded."


def statement(content: dict[str, Any]) -> str:
    """The main claim, or why there is none, in the words of the certificate's version."""
    setting, run = content["setting"], content["run"]
    if run is not None and not run["private"]:
        return f"NOT PRIVATE: {'; '.join(run['not_private_because'])}."
    epsilon, delta = main_claim(content["claims"], setting["delta"]), rounded_up(setting["delta"])
    if epsilon is None:
        return f"NOT PRIVATE: no finite epsilon holds at delta = {delta}."
    kind, newest = None if run is None else run["kind"], content["schema"] == _NEWEST
    subject = _SUBJECTS[kind] if newest else f"This {kind or 'process'}"
    words = (
        f"{subject} has ({rounded_up(epsilon)}, {delta})-differential privacy for "
        f"{setting['unit_of_privacy']} under {setting['adjacency']} neighbours."
    )
    if is_uncovered(run):
        words = (
            "FLOATING POINT IS NOT COVERED: rounding may have moved the sums further than is "
            f"accounted; what follows is about real numbers. {words}"
        )
    if newest and declared_in(content["process"]):
        words += " It rests on a declared guarantee, which nothing here derives."
    return " ".join((words + _length(run, newest), *footnotes(run)))


def statement_here(content: dict[str, Any], length: bool = True) -> str:
    """The same in today's words, whatever the version of the certificate.

    length: was it recomputed that the claim covers the length? If not, that is the writer's word.
    """
    claim = statement({**content, "schema": _NEWEST})
    return claim if length else claim.replace(_LENGTHS["budget"], _BY_ITS_WORD)


def declared_in(process: Any) -> bool:
    """Does a process (as data) contain a guarantee that is declared?"""
    if isinstance(process, list):
        return any(map(declared_in, process))
    if not isinstance(process, dict):
        return False
    named = str(process.get("type")).startswith("Declared")
    return named or any(map(declared_in, process.values()))


def _length(run: dict[str, Any] | None, newest: bool) -> str:
    if run is None:
        return ""
    if newest and "length" not in run and run["kind"] == "training":
        return _UNSAID
    claim = _LENGTHS.get(str(run.get("length")), "")
    return claim if newest else claim.replace("By its own word, its", "Its")


def footnotes(run: Mapping[str, Any] | None) -> tuple[str, ...]:
    """What of a training only its owner can vouch for: one sentence each."""
    section = (run or {}).get("isolation")
    if section is None:
        return ()
    notes = []
    alone = [one["from_step"] for one in section["examples"] if one["how"] == "one at a time"]
    if alone:
        notes.append(
            f"From step {min(alone)} on, code of the owner ran on one example at a time; that it "
            "kept nothing from one example to the next is the owner's word."
        )
    if section["private_values_shown"]:
        notes.append(
            "The training loop was shown losses and norms of private examples, which no epsilon "
            "covers; that nothing of them reached the weights is the owner's word."
        )
    if times := section["weights_set_by_owner"]:
        notes.append(
            f"The weights were set between steps ({times} times); that they came from public or "
            "released numbers is the owner's word."
        )
    return tuple(notes)


def is_uncovered(run: Mapping[str, Any] | None) -> bool:
    """Did the run ask to go on without a bound on rounding?"""
    return run is not None and run["settings"].get("arithmetic") == "uncovered"


def main_claim(claims: Mapping[str, Any], delta: float) -> Any:
    """The upper end of epsilon claimed at the certificate's delta; KeyError where there is none."""
    rows = claims.get("epsilon") if isinstance(claims, dict) else None
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and row.get("delta") == delta:
            return row["upper"]
    raise KeyError(f"no epsilon is claimed at delta = {delta}")
