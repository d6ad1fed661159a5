"""Audits of the private linear estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tightrope.audit import audit_estimator, audit_estimator_runs
from tightrope.convex.entropy import Entropy
from tightrope.convex.rows import Scaling
from tightrope.errors import InvalidInput
from tightrope.estimators import PrivateLogisticRegression, PrivateRidge

DELTA = 1e-4


def rows(classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(60, 60)) / 50  # little of their own to say
    return features, np.arange(60) % classes


def model(epsilon: float, **changed: Any) -> PrivateLogisticRegression:
    settings = {"delta": DELTA, "data_norm": 1.0, "algorithm": "descent", "centering": 0.0}
    settings["labels_public"] = True
    if changed.get("adjacency") == "add-or-remove":
        settings["records"] = 85
    return PrivateLogisticRegression(epsilon, **(settings | {"random_state": 1} | changed))


@pytest.mark.parametrize("adjacency", ["replace-one", "add-or-remove"])
def test_an_honest_fit_stays_below_its_claim(adjacency: str) -> None:
    found = audit_estimator(
        model(2.0, adjacency=adjacency), *rows(), labels=(1, 0), delta=DELTA, canaries=50, seed=0
    )
    assert found.epsilon_lower < 2.0 and found.canaries == 50


def test_a_fit_with_little_noise_is_found_out() -> None:
    """Claims epsilon 200; a code that claimed 1 for it would be refuted."""
    found = audit_estimator(model(200.0), *rows(), labels=(1, 0), delta=DELTA, canaries=60, seed=0)
    assert found.epsilon_lower > 1.0


def test_many_classes() -> None:
    found = audit_estimator(model(200.0), *rows(3), labels=(2, 0), delta=DELTA, canaries=60, seed=0)
    assert found.epsilon_lower > 0.5


def test_many_fits_need_fresh_noise() -> None:
    with pytest.raises(InvalidInput, match="same noise"):
        audit_estimator_runs(model(20.0), *rows(), labels=(1, 0), delta=DELTA, runs=60)


def test_regression_targets_are_the_two_states() -> None:
    features, _ = rows()
    ridge = PrivateRidge(
        200.0, delta=DELTA, data_norm=1.0, target_bound=1.0, random_state=1, algorithm="descent"
    )
    found = audit_estimator(
        ridge, features, features[:, 0], labels=(1.0, -1.0), delta=DELTA, canaries=60, seed=0
    )
    assert found.epsilon_lower > 1.0


def test_labels_must_be_classes() -> None:
    with pytest.raises(InvalidInput, match="two of the classes"):
        audit_estimator(
            model(2.0, adjacency="add-or-remove", classes=[0, 1]),
            *rows(),
            labels=(1, 7),
            delta=DELTA,
            canaries=4,
            seed=0,
        )


# ---- planted leaks: code that claims epsilon 1 and does something else
def leaking(monkeypatch: pytest.MonkeyPatch, leak: str) -> None:
    honest = Entropy.normal

    def normal(self: Entropy, shape: tuple[int, ...]) -> Any:
        if leak == "noise off":
            return np.zeros(shape)
        if leak == "noise divided by the number of rows":
            return honest(self, shape) / 120
        return np.random.default_rng(7).standard_normal(shape)  # the same noise reused

    monkeypatch.setattr(Entropy, "normal", normal)


@pytest.mark.parametrize("leak", ["noise off", "noise divided by the number of rows"])
def test_a_leaking_fit_exceeds_its_claim_in_one_run(
    monkeypatch: pytest.MonkeyPatch, leak: str
) -> None:
    leaking(monkeypatch, leak)
    found = audit_estimator(model(1.0), *rows(), labels=(1, 0), delta=DELTA, canaries=60, seed=0)
    assert found.epsilon_lower > 1.0


def test_a_leaking_fit_exceeds_its_claim_in_many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    leaking(monkeypatch, "same noise reused")
    fresh = model(1.0, random_state=None)
    found = audit_estimator_runs(fresh, *rows(), labels=(1, 0), delta=DELTA, runs=60, seed=0)
    assert found.epsilon_lower > 1.0 and found.runs == 60


def test_a_clip_that_forgets_to_shorten_exceeds_the_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise is made for rows of norm 1; rows of norm 30 are let through as they are."""

    def factors(self: Scaling, features: Any) -> tuple[Any, Any]:
        kept = np.full(features.shape[0], self._shrunk)
        return kept / self.data_norm, kept

    monkeypatch.setattr(Scaling, "factors", factors)

    class LongRows:
        adjacency, data_norm, random_state = "replace-one", 30.0, 1

        def fit(self, features: Any, targets: Any) -> Any:
            return model(1.0, data_norm=1.0).fit(features, targets)

    found = audit_estimator(LongRows(), *rows(), labels=(1, 0), delta=DELTA, canaries=60, seed=0)
    assert found.epsilon_lower > 1.0
