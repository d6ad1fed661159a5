"""Certificates of declared processes: schema, writing and reading, and forgeries refused."""

from __future__ import annotations

import contextlib
import copy
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tightrope import (
    FixedSizeSampling,
    FullBatch,
    GaussianMechanism,
    LaplaceMechanism,
    NoisySGD,
    PoissonSampling,
)
from tightrope.accounting import account
from tightrope.evidence.certificate import (
    SCHEMA,
    SECTIONS,
    analysis_of,
    certify,
    chain_of,
    read,
    write,
)
from tightrope.evidence.check import State, Verdict, verdict
from tightrope.evidence.form import SCHEMAS, faults, schema_of
from tightrope.evidence.verify import Check, holds, verify
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.numerics.interval import Interval
from tightrope.process import Adjacency, DeclaredApproxDP, RandomizedResponse, Sequence

OLD = Path(__file__).parent / "old"
DESCRIPTION = schema_of(SCHEMA)

QUICK = [
    GaussianMechanism(2.0),
    LaplaceMechanism(1.0),
    DeclaredApproxDP(1.0, 1e-6),
    RandomizedResponse(0.3),
    GaussianMechanism(0.7, Adjacency.REPLACE_ONE),
    Sequence((GaussianMechanism(5.0), GaussianMechanism(3.0))),
    NoisySGD(FullBatch(), noise_multiplier=8.0, steps=100),
]
SLOW = [  # a lattice of their own
    NoisySGD(PoissonSampling(0.01), noise_multiplier=1.0, steps=1000),
    NoisySGD(FixedSizeSampling(0.01), 2.0, 200, Adjacency.REPLACE_ONE),
    Sequence((GaussianMechanism(5.0), LaplaceMechanism(4.0))),
]
PROCESSES = [*QUICK, *(pytest.param(process, marks=pytest.mark.slow) for process in SLOW)]


@lru_cache
def good() -> str:
    return json.dumps(certify(GaussianMechanism(2.0), delta=1e-5))


def fresh() -> dict[str, Any]:
    return json.loads(good())  # type: ignore[no-any-return]


def rehashed(certificate: dict[str, Any]) -> dict[str, Any]:
    """What a forger does who knows the format."""
    return {**certificate, "chain": chain_of(certificate)}


def failed(checks: list[Check]) -> set[str]:
    return {check.name for check in checks if check.holds is False}


@pytest.mark.parametrize("process", PROCESSES, ids=repr)
def test_certificates_follow_their_schema_and_hold(process: Any) -> None:
    certificate = json.loads(json.dumps(certify(process)))
    jsonschema.validate(certificate, DESCRIPTION)
    assert holds(verify(certificate)), verify(certificate)


def test_written_and_read_again(tmp_path: Path) -> None:
    path = write(fresh(), tmp_path / "deep" / "certificate.json")
    assert read(path) == fresh()
    assert [p.name for p in path.parent.iterdir()] == ["certificate.json"]


def test_missing_sections_and_broken_chains_are_caught() -> None:
    for section in [*SECTIONS, "chain"]:
        certificate = fresh()
        del certificate[section]
        assert not holds(verify(certificate)), section
    for chain in (None, [], {}, "x", {"schema": "0"}):
        assert failed(verify({**fresh(), "chain": chain})) == {"form"}


def test_added_sections_and_links_are_caught() -> None:
    assert "form" in failed(verify(rehashed({**fresh(), "note": "trust me"})))
    longer = {**fresh()["chain"], "note": "0"}
    assert "form" in failed(verify({**fresh(), "chain": longer}))


# ------------------------------------------------------------------------------- states of lines
def test_only_what_was_recomputed_can_hold() -> None:
    for state in (State.STATED, State.YOURS):
        with pytest.raises(ValueError, match="cannot be"):
            Check("tick", True, "nobody looked", state)
    with pytest.raises(ValueError, match="cannot be"):
        Check("shrug", None, "recomputed, but nothing came out")
    lines = verify(fresh())
    assert {line.state for line in lines} == set(State)
    assert all((line.holds is None) == (line.state is not State.RECOMPUTED) for line in lines)


def test_a_verdict_that_was_cut_short_is_not_decided() -> None:
    lines = verify(fresh())
    assert verdict(lines) is Verdict.HOLDS and verdict(lines[:-1]) is Verdict.UNDECIDED
    assert verdict([*lines, Check("late", False, "no")]) is Verdict.FAILS


# ------------------------------------------------------------------------------------ old versions
@pytest.mark.parametrize("path", sorted(OLD.iterdir()), ids=lambda p: p.stem)
def test_old_certificates_are_still_read(path: Path) -> None:
    certificate = read(path)
    jsonschema.validate(certificate, schema_of("tightrope.certificate/1"))
    lines = {line.name: line for line in verify(certificate)}
    assert holds(list(lines.values())), lines
    if path.stem == "declared":
        assert lines["statement"].said.startswith("This declared process has")
    if path.stem == "training-without-length":
        assert lines["length"].state is State.YOURS
        assert "which is not recorded" in lines["statement"].said


def test_the_form_is_that_of_the_published_schema() -> None:
    """Whatever this library takes, a validator of JSON Schema takes too."""
    for name in SCHEMAS:
        validator = jsonschema.Draft202012Validator(schema_of(name))
        good = fresh() if name == SCHEMA else read(OLD / "training-with-length.json")
        for odd in (None, [], {}, "x", 1.5, -1, True, 10**6, "a" * 200_000, [{}] * 101):
            for section in good:
                for key in good[section] if isinstance(good[section], dict) else [None]:
                    changed = copy.deepcopy(good)
                    node = changed if key is None else changed[section]
                    node[section if key is None else key] = odd
                    ours = next(faults(changed, schema_of(name)), None)
                    assert (ours is None) == validator.is_valid(changed), (section, key, ours)


# ------------------------------------------------------------------------ edits by a careful forger
def forge(change: Any) -> set[str]:
    certificate = fresh()
    change(certificate)
    return failed(verify(rehashed(certificate)))


FORGERIES = {
    "schema": (lambda c: c.update(schema="tightrope.certificate/9"), "form"),
    "less noise": (lambda c: c["process"].update(noise_multiplier=1.9), "epsilon"),
    "unknown process": (lambda c: c["process"].update(type="Magic"), "process"),
    "unknown field": (lambda c: c["process"].update(luck=1), "process"),
    "adjacency of the process": (
        lambda c: c["process"].update(adjacency={"type": "Adjacency", "value": "replace-one"}),
        "adjacency",
    ),
    "adjacency": (lambda c: c["setting"].update(adjacency="replace-one"), "adjacency"),
    "unit": (lambda c: c["setting"].update(unit_of_privacy="one household"), "form"),
    "another unit": (
        lambda c: c["setting"].update(unit_of_privacy="one user of at most 4 records"),
        "unit of privacy",
    ),
    "delta": (lambda c: c["setting"].update(delta=3e-5), "second method"),
    "no delta": (lambda c: c["setting"].update(delta="small"), "form"),
    "theorem": (lambda c: c["analysis"].update(name="Better theorem"), "analysis"),
    "kind": (lambda c: c["analysis"].update(kind="bound"), "analysis"),
    "source": (lambda c: c["analysis"].update(theorems=[]), "form"),
    "library": (lambda c: c.update(library={"name": "tightrope"}), "form"),
    "statement": (lambda c: c.update(statement="Very private."), "statement"),
    "a run of text": (lambda c: c.update(run="trust me"), "form"),
    "refused": (lambda c: c["analysis"]["refused"].clear(), "analysis"),
    "analysis": (lambda c: c.update(analysis=None), "form"),
    "claims": (lambda c: c.update(claims=None), "form"),
    "unknown claim": (lambda c: c["claims"].update(love=1), "form"),
    "advantage": (lambda c: c["claims"]["advantage"].update(upper=0.01, lower=0.0), "advantage"),
    "no advantage": (lambda c: c["claims"].pop("advantage"), "form"),
    "no epsilon": (lambda c: c["claims"].update(epsilon=[]), "form"),
    "a row of text": (lambda c: c["claims"]["epsilon"].append("zero"), "form"),
    "true is no number": (lambda c: c["claims"]["epsilon"][3].update(upper=True), "form"),
    "below zero": (lambda c: c["claims"]["epsilon"][2].update(lower=-1.0), "form"),
    "above one": (lambda c: c["claims"]["type_ii_error"][2].update(upper=1.5), "form"),
    "no end": (lambda c: c["claims"]["type_ii_error"][2].update(upper=None), "form"),
    "no row at delta": (
        lambda c: c["claims"]["epsilon"].remove(
            next(row for row in c["claims"]["epsilon"] if row["delta"] == 1e-5)
        ),
        "second method",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_section_is_refused(name: str) -> None:
    change, expected = FORGERIES[name]
    assert expected in forge(change)


@pytest.mark.parametrize(
    ("kind", "safe", "factor"),
    [("epsilon", "upper", 0.999), ("renyi", "upper", 0.999), ("type_ii_error", "lower", 1.001)],
)
def test_every_claim_made_better_is_refused(kind: str, safe: str, factor: float) -> None:
    """Row by row, hashed again: only recomputing finds it."""
    for index in range(len(fresh()["claims"][kind])):
        certificate = fresh()
        row = certificate["claims"][kind][index]
        row[safe] *= factor
        other = "lower" if safe == "upper" else "upper"
        row[other] = row[safe]  # a well-formed interval
        assert failed(verify(rehashed(certificate))) & {kind, "form"}, (kind, index)


def test_the_second_method_looks_at_every_delta() -> None:
    certificate = fresh()
    for row in certificate["claims"]["epsilon"]:
        if row["delta"] == 1e-8:
            row["upper"], row["lower"] = 0.99 * row["upper"], 0.0
    (check,) = [c for c in verify(rehashed(certificate)) if c.name == "second method"]
    assert not check.holds and "delta = 1e-08" in check.said


@pytest.mark.parametrize("kind", ["epsilon", "renyi"])
def test_a_lower_end_above_the_truth_is_refused(kind: str) -> None:
    """It would sell a loose claim as a tight one."""
    certificate = fresh()
    row = certificate["claims"][kind][0]
    row["lower"], row["upper"] = 1.2 * row["upper"], 1.5 * row["upper"]
    assert kind in failed(verify(rehashed(certificate)))


STATED_TEXTS = [("library", "version"), ("title", "organisation"), ("title", "model")]
STATED_TEXTS += [("title", "data_set")]  # any text will do, and nobody takes it for a proof


@pytest.mark.parametrize("odd", [None, [], {}, "x", 1.5, True, [{}], {"a": 1}, float("nan"), 1e400])
def test_no_odd_content_breaks_verify_or_holds(odd: Any) -> None:
    """Any section, or anything one level down, replaced; hashed again where that is possible."""
    for section in SECTIONS:
        places = [(section,)]
        if isinstance(fresh()[section], dict):
            places += [(section, key) for key in fresh()[section]]
        for place in places:
            certificate = fresh()
            node = certificate if len(place) == 1 else certificate[section]
            if node[place[-1]] == odd or place in STATED_TEXTS:
                continue
            node[place[-1]] = odd
            with contextlib.suppress(TypeError, ValueError):
                certificate = rehashed(certificate)
            assert not holds(verify(certificate)), place


def test_verify_does_not_change_what_it_reads() -> None:
    certificate = fresh()
    before = copy.deepcopy(certificate)
    verify(certificate)
    assert certificate == before


# ------------------------------------------------------------------------------- the second method
def test_views_are_held_against_other_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of a first method that went wrong everywhere are caught by the second."""
    process = NoisySGD(PoissonSampling(0.05), noise_multiplier=1.0, steps=30)
    checks = {check.name: check for check in verify(certify(process))}
    assert "7 of 7" in checks["second method, type II errors"].said
    assert "8 claims again" in checks["second method, Renyi"].said
    assert certify(process)["analysis"]["second_method"] == {
        "verdict": "confirmed",
        "method": "lattice",
    }

    def smaller(view: str, factor: float) -> None:
        honest = getattr(LossGuarantee, view)

        def wrong(self: LossGuarantee, at: float) -> Interval:
            true = honest(self, at)
            low, high = true.lower, true.upper
            if view == "tradeoff":  # an attacker who finds less
                return Interval(1 - factor * (1 - low - at) - at, 1 - factor * (1 - high - at) - at)
            return Interval(factor * low, factor * high)

        monkeypatch.setattr(LossGuarantee, view, wrong)

    smaller("renyi", 0.99)
    assert "second method, Renyi" in failed(verify(certify(process)))
    smaller("tradeoff", 0.8)
    assert "second method, type II errors" in failed(verify(certify(process)))


def test_a_certificate_says_when_there_is_one_method_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightrope.guarantee.check._MOST_WORK", 1.0)
    result = account(NoisySGD(PoissonSampling(0.01), noise_multiplier=1.0, steps=1000))
    finding = result.best(lambda g: g.epsilon(1e-6).upper)
    said = analysis_of(finding, result, 1e-6)["second_method"]
    assert said == {"verdict": "one method", "method": None}
