"""One certificate, whoever writes it: declared processes, training runs, convex fits.

For each of them: it follows the schema, holds, and every edited leaf is caught and located; what a
forger with new hashes changes is caught wherever it can be recomputed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tightrope import GaussianMechanism
from tightrope.errors import InvalidInput
from tightrope.evidence.certificate import certify, chain_of, read
from tightrope.evidence.check import Check, State, holds
from tightrope.evidence.commitment import new_key, read_key
from tightrope.evidence.form import schema_of
from tightrope.evidence.verify import _chain, verify

torch = pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("sklearn", reason="the estimators need scikit-learn")

from tightrope.convex.fit_certificate import is_data_of_fit  # noqa: E402
from tightrope.estimators import PrivateLogisticRegression  # noqa: E402
from tightrope.train import (  # noqa: E402
    Budget,
    Evaluation,
    FlatClip,
    FullBatchSampler,
    GaussianNoise,
    accuracy,
    noisy_sgd,
)
from tightrope.train.data import is_data_of  # noqa: E402

torch.set_num_threads(1)  # two test processes share two cores
SCHEMA = schema_of("tightrope.certificate/2")
DELTA = 1e-5
Place = tuple[str | int, ...]


def rows(seed: int = 0) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(40, 3, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def losses(model: Any, inputs: Any, labels: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(inputs), labels, reduction="none")


def private_run(**changed: Any) -> Any:
    torch.manual_seed(0)
    parts: dict[str, Any] = {
        "sampler": FullBatchSampler(),
        "clip": FlatClip(1.0),
        "noise": GaussianNoise(8.0),
        "expected_batch_size": 40,
        "steps": 20,
        "learning_rate": 0.1,
    }
    return noisy_sgd(torch.nn.Linear(3, 2), rows(), losses, **(parts | changed))


def ten_lines(**changed: Any) -> Any:
    run = private_run(**changed)
    for _ in run:
        pass
    return run


def trained(folder: Path) -> dict[str, Any]:
    """By fit(), into a run folder; the budget ends it."""
    run = private_run(budget=Budget(1.5, DELTA), folder=folder)
    run.fit(delta=DELTA, evaluation=Evaluation(rows(1), accuracy, every=5), progress=False)
    run.close()
    return read(folder)


def fitted() -> PrivateLogisticRegression:
    inputs, labels = rows()
    model = PrivateLogisticRegression(
        1.0, delta=DELTA, data_norm=3.0, algorithm="last-iterate", labels_public=True
    )
    return model.fit(inputs.numpy(), labels.numpy())


@lru_cache
def written(kind: str) -> str:
    if kind == "declared":
        return json.dumps(certify(GaussianMechanism(2.0), DELTA))
    if kind == "loop":
        return json.dumps(ten_lines().certificate(DELTA))
    if kind == "convex":
        data = tuple(part.numpy() for part in rows())
        return json.dumps(fitted().certificate(data, new_key()))
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return json.dumps(trained(Path(folder)))


KINDS = ["declared", "loop", "trainer", "convex"]


def fresh(kind: str) -> dict[str, Any]:
    return json.loads(written(kind))  # type: ignore[no-any-return]


def failed(checks: list[Check]) -> set[str]:
    return {check.name for check in checks if check.holds is False}


def rehashed(certificate: dict[str, Any]) -> dict[str, Any]:
    return {**certificate, "chain": chain_of(certificate)}


# ---- the same certificate
@pytest.mark.parametrize("kind", KINDS)
def test_every_writer_follows_the_schema_and_holds(kind: str) -> None:
    certificate = fresh(kind)
    jsonschema.validate(certificate, SCHEMA)
    assert failed(verify(certificate)) == set()
    assert certificate["library"]["code"].startswith("sha256:")
    theorem = certificate["analysis"]["theorems"][0]
    assert theorem["source"] and theorem["error"] != "not stated"
    assert len(certificate["claims"]["epsilon"]) >= 9
    if kind != "declared":
        assert certificate["run"]["data"].startswith("hmac-sha256:") and certificate["run"]["clip"]


def test_the_trainer_certifies_what_really_ran() -> None:
    run = fresh("trainer")["run"]
    assert 0 < run["steps"] < 20, "the budget ended it"
    assert run["steps"] == fresh("trainer")["process"]["steps"]
    assert run["budget"] == {"epsilon": 1.5, "delta": DELTA}
    assert run["history"][-1]["step"] == run["steps"] and run["history"][-1]["epsilon"] <= 1.5
    assert [row["step"] for row in run["measured"]] == list(range(5, run["steps"] + 1, 5))


# ---- every edited field
def leaves(node: Any, place: Place = ()) -> Iterator[Place]:
    items: Any = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        if isinstance(value, (dict, list)) and value:
            yield from leaves(value, (*place, key))
        else:
            yield (*place, key)


def changed(value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return 1
    return value * 1.5 + 1.0 if isinstance(value, (int, float)) else f"{value}x"


def edited(kind: str, place: Place) -> dict[str, Any]:
    certificate = fresh(kind)
    node: Any = certificate
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = changed(node[place[-1]])
    return certificate


@pytest.mark.parametrize("kind", KINDS)
def test_every_edited_leaf_is_caught_and_located(kind: str) -> None:
    places = list(leaves(fresh(kind)))
    assert len(places) > 90
    for place in places:
        check = _chain(edited(kind, place))
        assert not check.holds, place
        section = place[1] if place[0] == "chain" else place[0]
        assert f"'{section}'" in check.said, (place, check.said)


@pytest.mark.parametrize("kind", KINDS)
def test_every_removed_leaf_is_caught(kind: str) -> None:
    for place in leaves(fresh(kind)):
        certificate = fresh(kind)
        node: Any = certificate
        for key in place[:-1]:
            node = node[key]
        del node[place[-1]]
        assert not holds(verify(certificate)), place


# ---- a forger who writes new hashes
SAFE_WHEN_EDITED = {  # nobody can recompute these; see docs/evidence.md
    ("library", "version"),
    ("library", "code"),
    ("title",),
    ("run", "clip"),
    ("run", "sensitivity"),
    ("run", "noise"),
    ("run", "sampling"),
    ("run", "settings"),
    ("run", "budget"),  # a larger one than it was
    ("run", "data"),
    ("run", "measured"),
}


def test_what_a_forger_can_still_change_is_only_what_nobody_can_recompute() -> None:
    kind = "trainer"  # the certificate with most in it
    for place in leaves(fresh(kind)):
        if place[0] in ("chain", "claims"):  # claims: row by row in test_certificate.py
            continue
        wrong = failed(verify(rehashed(edited(kind, place))))
        if place[:2] == ("run", "history") and place[-1] == "epsilon":
            continue  # a larger one than it was; a smaller one is refused below
        assert wrong or {place[:1], place[:2]} & SAFE_WHEN_EDITED, place
    assert "hash chain" not in failed(verify(rehashed(fresh(kind))))


def forged(writer: str, **changes: Any) -> set[str]:
    certificate = fresh(writer)
    certificate["run"].update(changes)
    return failed(verify(rehashed(certificate)))


def test_forged_runs_are_refused() -> None:
    assert "history" in forged("trainer", steps=1)
    assert "steps" in forged("trainer", steps=1000)
    assert "length" in forged("trainer", length="at will")
    assert "length" in forged("trainer", length="asked")
    assert "length" in forged("trainer", length="budget", budget=None)
    assert "history" in forged("trainer", history=[{"step": 3, "epsilon": 0.1}])
    assert "form" in forged("trainer", history=[{"step": 3}])
    assert "budget" in forged("trainer", budget={"epsilon": 1.0, "delta": DELTA})
    assert "form" in forged("trainer", luck=1)
    assert "secrecy" in forged("trainer", private=False)
    assert "form" in forged("trainer", history=7)
    assert "steps" in forged("convex", steps=3)
    assert "steps" in forged("convex", kind="training")


def test_a_forged_statement_is_refused() -> None:
    certificate = fresh("trainer")
    certificate["statement"] = certificate["statement"].replace("The", "Surely the")
    assert failed(verify(rehashed(certificate))) == {"statement"}


def test_other_code_is_told_but_its_claims_are_still_recomputed() -> None:
    certificate = fresh("declared")
    certificate["library"]["code"] = "sha256:" + "0" * 64
    certificate["analysis"]["theorems"][0]["error"] = "worded otherwise in that version"
    checks = verify(rehashed(certificate))
    assert holds(checks) and any("OTHER source files" in check.said for check in checks)
    certificate["analysis"]["key"] = "magic"  # the writer's word; what proves it is said beside it
    lines = {check.name: check for check in verify(rehashed(certificate))}
    assert lines["analysis"].state is State.STATED
    assert lines["proof"].holds and "magic" not in lines["proof"].said


def test_seeded_runs_are_not_certified_private() -> None:
    run = ten_lines(noise=GaussianNoise(8.0, seed=1))
    certificate = run.certificate(DELTA)
    assert certificate["statement"].startswith("NOT PRIVATE: the noise is seeded")
    assert failed(verify(certificate)) == {"secrecy"}


def test_a_run_without_noise_claims_nothing() -> None:
    certificate = json.loads(json.dumps(ten_lines(noise=GaussianNoise(0.0)).certificate(DELTA)))
    jsonschema.validate(certificate, SCHEMA)
    assert certificate["statement"].startswith("NOT PRIVATE")
    assert not holds(verify(certificate))


def test_a_run_before_its_first_step_has_a_certificate_too() -> None:
    certificate = private_run().certificate(DELTA)
    assert certificate["run"]["steps"] == 0 and holds(verify(certificate))


# ---- commitments to data
def test_the_holder_of_the_key_can_show_which_data_were_used(tmp_path: Path) -> None:
    certificate = trained(tmp_path)
    key = read_key(tmp_path / "data.key")
    assert (tmp_path / "data.key").stat().st_mode & 0o077 == 0
    inputs, labels = rows()
    assert is_data_of(certificate, key, (inputs, labels))
    other = inputs.clone()
    other[7, 1] += 1e-6
    assert not is_data_of(certificate, key, (other, labels))
    assert not is_data_of(certificate, new_key(), (inputs, labels))
    assert key not in json.dumps(certificate)
    # two runs on the same data cannot be linked
    assert fresh("trainer")["run"]["data"] != certificate["run"]["data"]


def test_a_fit_commits_to_its_arrays() -> None:
    model, key = fitted(), new_key()
    inputs, labels = (part.numpy() for part in rows())
    certificate = model.certificate((inputs, labels), key)
    assert is_data_of_fit(certificate, key, (inputs, labels))
    assert not is_data_of_fit(certificate, key, (inputs, 1 - labels))
    assert model.certificate()["run"]["data"] is None
    with pytest.raises(InvalidInput, match="key"):
        model.certificate((inputs, labels))
    with pytest.raises(InvalidInput, match="no commitment"):
        is_data_of_fit(model.certificate(), key, (inputs, labels))
