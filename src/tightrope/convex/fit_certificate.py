"""The certificate of a private convex fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tightrope.convex.arithmetic import MODE
from tightrope.convex.budget import Budget
from tightrope.convex.learn import Learned
from tightrope.errors import InvalidInput
from tightrope.evidence.certificate import certify
from tightrope.evidence.commitment import commit, fingerprint_of_arrays, opens
from tightrope.evidence.run_facts import RunFacts
from tightrope.process import DiscreteGaussianVector, Sequence

_SEEDED = "the noise is seeded, so anybody who knows the seed can subtract it"


def certificate_of_fit(
    learned: Learned, data: tuple[Any, ...] | None = None, key: str | None = None
) -> dict[str, Any]:
    """The chained certificate of one fit; data, key as in `certificate_of_run`."""
    plan = learned.plan
    return certificate_of_run(plan.process, plan.budget, _facts(learned), data, key)


def certificate_of_run(
    process: Any,
    budget: Budget,
    facts: RunFacts,
    data: tuple[Any, ...] | None = None,
    key: str | None = None,
) -> dict[str, Any]:
    """The chained certificate of a process that ran once within a budget.

    data, key: arrays to commit to, and the secret key under which (evidence.commitment.new_key());
    keep both. Without them the certificate says nothing about the data.
    """
    if (data is None) != (key is None):
        raise InvalidInput(
            "A commitment needs both the data and a key that stays with them: pass data=(X, y) and "
            "key=tightrope.evidence.commitment.new_key(), and keep the key; or neither."
        )
    committed = None if data is None or key is None else commit(fingerprint_of_arrays(*data), key)
    ran = replace(facts, data=committed, budget=(budget.epsilon, budget.delta))
    return certify(process, budget.delta, ran)


def not_private_because(private: bool) -> tuple[str, ...]:
    """Why the noise of a fit is no secret, if it is none."""
    return () if private else (_SEEDED,)


def _facts(learned: Learned) -> RunFacts:
    plan, scaling = learned.plan, learned.scaling
    return RunFacts(
        kind="convex fit",
        private=learned.private,
        not_private_because=not_private_because(learned.private),
        steps=None,
        clip=f"rows shortened to norm {scaling.data_norm:g}, a {_bound(plan.process)} bound",
        sensitivity=plan.sensitivity,
        noise="Gaussian" + ("" if learned.private else " (seeded)"),
        sampling=learned.randomness,
        settings={
            "algorithm": plan.name,
            "regularization": plan.strength,
            "arithmetic": MODE,
            "rho": plan.rounding,
            "searched_settings": plan.searched,
            "public_rows": learned.public_rows,
            "public_rows_sha256": learned.public_digest,
        },
    )


def _bound(process: Any) -> str:
    """Where the bound on rows is from: counts that were released ahead of the fit, or outside."""
    parts = process.parts if isinstance(process, Sequence) else ()
    return "released" if parts and isinstance(parts[0], DiscreteGaussianVector) else "public"


def is_data_of_fit(certificate: dict[str, Any], key: str, data: tuple[Any, ...]) -> bool:
    """Was this fit made on these arrays? For whoever holds them and the key."""
    published = (certificate.get("run") or {}).get("data")
    if published is None:
        raise InvalidInput("This certificate carries no commitment to the data of a fit.")
    return opens(published, key, fingerprint_of_arrays(*data))
