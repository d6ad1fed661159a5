"""A guarantee in words for a reader who never heard of epsilon."""

from __future__ import annotations

import math
from typing import Any

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.process import NoisySGD, PoissonSampling
from tightrope.process.codec import from_json

__all__ = ["headline", "assumptions", "what_would_change"]

PEOPLE = 1000


def headline(guarantee: Guarantee, false_alarms: int = 10) -> str:
    """What the best attacker finds among a thousand people, at so many false alarms."""
    rate = guarantee.true_positive_rate(false_alarms / PEOPLE).upper
    found = math.ceil(PEOPLE * rate - 1e-9)
    if found >= PEOPLE:
        return (
            "This guarantee does not rule out that an attacker who is allowed "
            f"{false_alarms} false alarms among {PEOPLE:,} people finds everyone in the data."
        )
    return (
        f"Of {PEOPLE:,} people like you in the data, an attacker who is allowed {false_alarms} "
        f"false alarms among {PEOPLE:,} others finds at most {found}, whatever they know about "
        f"everyone else. Guessing would find {false_alarms}."
    )


def assumptions(certificate: dict[str, Any], validity: Validity) -> list[tuple[bool, str]]:
    """Each assumption with whether it is met, as far as the certificate can tell."""
    run = certificate.get("run") or {}
    neighbours = certificate["setting"]["adjacency"]
    process = from_json(certificate["process"])
    rows = [
        (True, f"The guarantee is about one record ({neighbours} neighbours)."),
        (validity is not Validity.ESTIMATE, "The number is a proved bound, not an estimate."),
        (
            bool(run) and not run.get("seeded", False),
            "Noise and sampling came from the operating system's entropy.",
        ),
    ]
    if isinstance(process, NoisySGD) and isinstance(process.sampling, PoissonSampling):
        rows.append((True, "Batches were drawn by Poisson sampling, and stayed secret."))
    rows.append((bool(run), "The process was derived from the objects that really ran."))
    rows.append((True, "Everything else done with the released model is free: post-processing."))
    return rows


def what_would_change(certificate: dict[str, Any]) -> list[str]:
    """What a reader must not do, or must account for."""
    return [
        "Training again on the same people adds to the loss: compose the certificates.",
        "Choosing among several runs by their accuracy costs privacy unless it is accounted for.",
        f"A household of k people is protected less: the guarantee is for "
        f"{certificate['setting']['unit_of_privacy']}.",
        "Releasing the training batches, the seed or the exact gradients voids the guarantee.",
    ]
