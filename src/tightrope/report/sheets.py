"""A certificate as an evaluation sheet (after NIST SP 800-226) and as a section of a model card.

Both are Markdown, both say of every answer who answers for it, and neither answers a question that
the certificate does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tightrope.evidence.check import State
from tightrope.evidence.statement import main_claim
from tightrope.numerics.rounding import rounded_up
from tightrope.report.blocks import Bullets, Heading, TableBlock, Text, as_markdown
from tightrope.report.page_sections import UNSAID, Page
from tightrope.report.words import headline, meaning

__all__ = ["evaluation_sheet", "model_card"]

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
    yield "statement", page.said, _HERE
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
            Text(page.said),
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
