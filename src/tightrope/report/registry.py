"""A draft for the public registry of deployments of differential privacy (opendp, schema of 2026).

It holds what the certificate holds, and nothing else: what the registry also requires is listed
for a person to fill in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tightrope.evidence.statement import main_claim
from tightrope.numerics.rounding import rounded_up
from tightrope.report.page_sections import Page

__all__ = ["REQUIRED", "record_of", "missing", "as_yaml"]

# What the registry requires of every record (deployments-schema.yaml), by place.
_BASIC = ["name", "data_curators", "intended_use", "data_product_type", "data_product_region"]
_BASIC += ["description", "publication_date"]
REQUIRED = (
    ("url_slug",),
    ("status",),
    ("tier",),
    *(("deployment", "basic", name) for name in _BASIC),
    ("deployment", "administrative", "registry_authors"),
)


def record_of(page: Page) -> dict[str, Any]:
    """The record, as far as a verified certificate tells it."""
    page.require_promise()
    deployment = {
        "basic": _basic(page),
        "dp_variant": {"variant_name": "Approximate DP" if page.delta > 0.0 else "Pure DP"},
        "privacy_loss": _loss(page),
        **({} if page.run is None else {"deployment_model": {"model_name": "Central"}}),
        "accounting": {"composition": _composition(page)},
        "implementation": {"mechanisms": "\n".join(_mechanisms(page))},
    }
    kept = {name: part for name, part in deployment.items() if part}
    return {"status": "Draft", "tier": 2, "deployment": kept}


def missing(record: dict[str, Any]) -> list[str]:
    """What the registry requires and no certificate can say."""
    return [".".join(place) for place in REQUIRED if not _has(record, place)]


def _has(node: Any, place: tuple[str, ...]) -> bool:
    for name in place:
        if name not in node:
            return False
        node = node[name]
    return True


def _basic(page: Page) -> dict[str, Any]:
    title = page.certificate.get("title") or {}
    organisation = title.get("organisation")
    said = {
        "name": title.get("model"),
        "data_curators": None if organisation is None else [organisation],
        "data_product_type": None if page.run is None else "Machine learning model",
        "publication_date": title.get("date"),
    }
    return {name: value for name, value in said.items() if value is not None}


def _loss(page: Page) -> dict[str, Any]:
    setting = page.certificate["setting"]
    epsilon = float(rounded_up(main_claim(page.certificate["claims"], page.delta), 6))
    return {
        "privacy_unit": setting["unit_of_privacy"],
        "privacy_unit_details": f"Neighbouring data sets differ by the {setting['adjacency']} "
        f"relation in {setting['unit_of_privacy']}.",
        "privacy_parameters": {"epsilon": epsilon, "delta": page.delta},
        "privacy_parameters_details": page.said,
    }


def _composition(page: Page) -> str:
    answer = page.view["answer"]
    return f"{answer['analysis']} ({answer['kind']}; {answer['source']})."


def _mechanisms(page: Page) -> Iterator[str]:
    library, run = page.certificate["library"], page.run
    yield f"- Process: {json.dumps(page.certificate['process'], sort_keys=True)}"
    yield f"- Library: Tightrope {library['version']} (code {library['code']})."
    if run is None:
        yield "- Nothing was run: the process is declared."
        return
    yield f"- Clipping: {run['clip']}. Noise: {run['noise']}. Randomness: {run['sampling']}."
    arithmetic = run["settings"].get("arithmetic")
    if arithmetic is not None:
        yield f"- Floating point: arithmetic mode '{arithmetic}'."


def as_yaml(record: dict[str, Any]) -> str:
    """YAML with every text in double quotes, as dates must be; what is missing stands on top."""
    lines = [f"# To be filled in by you: {name}" for name in missing(record)]
    return "\n".join([*lines, *_yaml(record, "")]) + "\n"


def _yaml(node: dict[str, Any], margin: str) -> Iterator[str]:
    for name, value in node.items():
        if isinstance(value, dict):
            yield f"{margin}{name}:"
            yield from _yaml(value, f"{margin}  ")
        elif isinstance(value, list):
            yield f"{margin}{name}:"
            yield from (f"{margin}  - {_scalar(item)}" for item in value)
        else:
            yield f"{margin}{name}: {_scalar(value)}"


def _scalar(value: object) -> str:
    """JSON, which YAML reads; but YAML 1.1 takes 1e-05 for a text, and 1.0e-05 for a number."""
    text = json.dumps(value, ensure_ascii=False)
    bare = isinstance(value, float) and "e" in text and "." not in text
    return text.replace("e", ".0e") if bare else text
