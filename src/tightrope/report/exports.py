"""A certificate in other forms: a draft for a registry, an evaluation sheet, a model card section.

The registry is the public one of deployments of differential privacy (opendp, schema of 2026); the
sheet follows NIST SP 800-226. Each holds what the certificate holds and names who answers for it.
What a form also requires is listed for a person to fill in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tightrope.evidence.check import State
from tightrope.evidence.statement import main_claim
from tightrope.numerics.rounding import rounded_up
from tightrope.report.blocks import Bullets, Heading, TableBlock, Text, as_markdown
from tightrope.report.page import UNSAID, Page
from tightrope.report.words import headline, meaning

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
    answer = page.view["answer"]
    deployment = {
        "basic": _basic(page),
        "dp_variant": {"variant_name": "Approximate DP" if page.delta > 0.0 else "Pure DP"},
        "privacy_loss": _loss(page),
        **({} if page.run is None else {"deployment_model": {"model_name": "Central"}}),
        "accounting": {
            "composition": f"{answer['analysis']} ({answer['kind']}; {answer['source']})."
        },
        "implementation": {"mechanisms": "\n".join(_mechanisms(page))},
    }
    kept = {name: part for name, part in deployment.items() if part}
    return {"status": "Draft", "tier": 2, "deployment": kept}


def missing(record: dict[str, Any]) -> list[str]:
    """What the registry requires and no certificate can say."""
    absent = []
    for place in REQUIRED:
        node: Any = record
        for name in place:
            node = node.get(name, {})
        if node == {}:
            absent.append(".".join(place))
    return absent


def _basic(page: Page) -> dict[str, Any]:
    title = page.certificate.get("title") or {}
    organisation = title.get("organisation")
    claim = {
        "name": title.get("model"),
        "data_curators": None if organisation is None else [organisation],
        "data_product_type": None if page.run is None else "Machine learning model",
        "publication_date": title.get("date"),
    }
    return {name: value for name, value in claim.items() if value is not None}


def _loss(page: Page) -> dict[str, Any]:
    setting = page.certificate["setting"]
    epsilon = float(rounded_up(main_claim(page.certificate["claims"], page.delta), 6))
    return {
        "privacy_unit": setting["unit_of_privacy"],
        "privacy_unit_details": f"Neighbouring data sets differ by the {setting['adjacency']} "
        f"relation in {setting['unit_of_privacy']}.",
        "privacy_parameters": {"epsilon": epsilon, "delta": page.delta},
        "privacy_parameters_details": page.statement,
    }


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


Row = tuple[str, str, str]
_HERE, _SAID, _YOURS = str(State.RECOMPUTED), str(State.STATED), str(State.YOURS)


def evaluation_sheet(page: Page) -> str:
    """The questions of SP 800-226 (March 2025), with what this certificate says to each."""
    page.require_promise()
    head = ("question", "answer", "state")
    return as_markdown(
        [
            Heading("Evaluation of a differential privacy guarantee", 1),
            Text(
                "After NIST SP 800-226, Guidelines for Evaluating Differential Privacy Guarantees."
            ),
            TableBlock("What it is about", head, tuple(_subject(page))),
            TableBlock("The guarantee", head, tuple(_guarantee(page))),
            TableBlock("The algorithm", head, tuple(_algorithm(page))),
            TableBlock("Deployment", head, _DEPLOYMENT),
            Text("Repeat it with `tightrope verify certificate.json`."),
        ]
    )


def _subject(page: Page) -> Iterator[Row]:
    title = page.certificate.get("title") or {}
    for key in ("organisation", "model", "data_set", "date", "people"):
        value = title.get(key)
        yield key.replace("_", " "), UNSAID if value is None else str(value), _SAID
    signed = next(check for check in page.checks if check.name == "signature")
    yield "signature", signed.said, str(signed.state)


def _guarantee(page: Page) -> Iterator[Row]:
    setting = page.certificate["setting"]
    epsilon = rounded_up(main_claim(page.certificate["claims"], page.delta))
    yield "statement", page.statement, _HERE
    yield "privacy parameter epsilon", epsilon, _HERE
    yield "probability of failure delta", rounded_up(page.delta), _HERE
    yield "unit of privacy", setting["unit_of_privacy"], _HERE
    yield "neighbouring relation", setting["adjacency"], _HERE
    yield "what an attacker can do", headline(page.guarantee), _HERE
    yield "is one person one unit?", "not in the certificate", _YOURS
    yield "what else was released from these data?", "not in the certificate", _YOURS


def _algorithm(page: Page) -> Iterator[Row]:
    run, answer = page.run, page.view["answer"]
    yield "process", str(page.certificate["process"]["type"]), _HERE
    yield "composition", f"{answer['analysis']} ({answer['kind']}; {answer['source']})", _HERE
    if run is None:
        yield "what ran", "nothing: the process is declared", _SAID
        return
    yield "what ran", run["kind"], _SAID
    yield "clipping", run["clip"], _SAID
    yield "source of randomness", f"{run['noise']}; {run['sampling']}", _SAID
    arithmetic = run["settings"].get("arithmetic")
    yield (
        "floating point",
        "not in the certificate" if arithmetic is None else str(arithmetic),
        _SAID,
    )
    for row in run["measured"][-1:]:
        named = f" on {row['data']}" if "data" in row else ""
        yield "utility on public data", f"{row['name']} {row['value']:.4g}{named}", _SAID


_DEPLOYMENT: tuple[Row, ...] = (
    ("is the process what ran?", "not in the certificate; `tightrope audit` looks", _YOURS),
    ("who holds the raw data, and how are they kept?", "not in the certificate", _YOURS),
    ("who sees which results (trust model)?", "not in the certificate", _YOURS),
    ("side channels, such as the time of an answer", "not in the certificate", _YOURS),
    ("bias and utility for small groups", "not in the certificate", _YOURS),
)


def model_card(page: Page) -> str:
    """A section `Privacy` to paste into a model card."""
    page.require_promise()
    title: dict[str, Any] = page.certificate.get("title") or {}
    signed = next(check for check in page.checks if check.name == "signature")
    link = page.certificate["chain"]["statement"][:16]
    return as_markdown(
        [
            Heading("Privacy"),
            Text(page.statement),
            Bullets(
                (
                    headline(page.guarantee),
                    *meaning(page.guarantee, page.delta, title.get("people")),
                )
            ),
            Text(
                "The numbers were recomputed from the process when this section was made. No file "
                "can show that the process is what ran, that one person is "
                f"{page.certificate['setting']['unit_of_privacy']}, or what else the data went "
                "into."
            ),
            Text(
                f"Certificate `{link}`. Signature: {signed.said}. Check it with "
                "`tightrope verify certificate.json`."
            ),
        ]
    )
