"""Exports: the registry's record, the evaluation sheet, the model card; nothing made up."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import jsonschema
import pytest

from tightrope import FullBatch, GaussianMechanism, NoisySGD
from tightrope.errors import InvalidInput
from tightrope.evidence.certificate import Title, certify
from tightrope.evidence.run_facts import RunFacts
from tightrope.report.exports import as_yaml, evaluation_sheet, missing, model_card, record_of
from tightrope.report.page import Page

DELTA = 1e-5
TITLE = Title("Example <b>Hospital", "Risk", "Discharges", "2026-11-01", 60_000)

# The parts of the registry's schema (opendp, 2026-07-15) that a certificate can fill.
TEXT = {"type": "string"}


def table(**inner: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": inner}


REGISTRY = table(
    status={"enum": ["Draft"]},
    tier={"enum": [1, 2, 3]},
    deployment=table(
        basic=table(
            name=TEXT,
            data_curators={"type": "array", "items": TEXT, "minItems": 1},
            data_product_type={"enum": ["Machine learning model"]},
            publication_date=TEXT,
        ),
        dp_variant=table(variant_name={"enum": ["Pure DP", "Approximate DP"]}),
        privacy_loss=table(
            privacy_unit=TEXT,
            privacy_unit_details=TEXT,
            privacy_parameters=table(epsilon={"type": "number"}, delta={"type": "number"}),
            privacy_parameters_details=TEXT,
        ),
        deployment_model=table(model_name={"enum": ["Central"]}),
        accounting=table(composition=TEXT),
        implementation=table(mechanisms=TEXT),
    ),
)


@lru_cache
def page(titled: bool, ran: bool = True) -> Page:
    said: dict[str, Any] = {"kind": "training", "private": True, "not_private_because": ()}
    said |= {"steps": 9, "clip": "FlatClip", "sensitivity": 1.0, "noise": "n", "sampling": "s"}
    facts = RunFacts(settings={"arithmetic": "strict"}, length="planned", **said)
    process = NoisySGD(FullBatch(), noise_multiplier=8.0, steps=9)
    made = certify(process, DELTA, facts if ran else None, TITLE if titled else Title())
    return Page(json.loads(json.dumps(made)))


@pytest.mark.parametrize("titled", [True, False])
@pytest.mark.parametrize("ran", [True, False])
def test_the_record_fits_the_registry_and_names_what_is_missing(titled: bool, ran: bool) -> None:
    record = record_of(page(titled, ran))
    jsonschema.validate(record, REGISTRY)
    wanted = missing(record)
    assert {"url_slug", "deployment.basic.intended_use"} <= set(wanted)
    assert ("deployment.basic.name" in wanted) != titled
    assert ("deployment_model" in record["deployment"]) == ran, "a declared process has no place"
    text = json.dumps(record)
    assert ("Hospital" in text) == titled
    loss = record["deployment"]["privacy_loss"]["privacy_parameters"]
    assert (
        loss["delta"] == DELTA
        and loss["epsilon"] >= page(titled, ran).guarantee.epsilon(DELTA).lower
    )


def test_yaml_quotes_every_text() -> None:
    text = as_yaml(record_of(page(True)))
    assert 'publication_date: "2026-11-01"' in text and "# To be filled in by you: url_slug" in text
    assert '      - "Example <b>Hospital"' in text
    yaml = pytest.importorskip("yaml", reason="a reader of YAML")
    assert yaml.safe_load(text) == record_of(page(True))


def test_the_sheet_says_who_answers_for_each_row() -> None:
    text = evaluation_sheet(page(True))
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    states = ("recomputed here |", "stated by the writer |", "yours to check |", "state |")
    assert len(rows) > 20 and all(row.endswith(states) for row in rows)
    assert "<b>" not in text and "not published" in evaluation_sheet(page(False))


def test_the_model_card_has_the_statement_and_its_limits() -> None:
    text = model_card(page(True))
    assert text.startswith("## Privacy") and "differential privacy for one record" in text
    assert "No file can show" in text and "tightrope verify" in text


def test_what_does_not_verify_is_not_exported() -> None:
    forged = json.loads(json.dumps(certify(GaussianMechanism(2.0), DELTA)))
    forged["process"]["noise_multiplier"] = 20.0
    for write in (record_of, evaluation_sheet, model_card):
        with pytest.raises(InvalidInput, match="holds and promises"):
            write(Page(forged))  # type: ignore[operator]
    infinite = json.loads(json.dumps(certify(GaussianMechanism(2.0), 0.0)))
    with pytest.raises(InvalidInput, match="promises"):
        record_of(Page(infinite))


def test_a_card_says_of_its_signature_what_is_known() -> None:
    card = model_card(Page(certify(GaussianMechanism(1.0), DELTA)))
    assert "Signature: none, so anybody could have written this file." in card
