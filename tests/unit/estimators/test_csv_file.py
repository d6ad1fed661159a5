"""Private models from CSV files: what the command line calls."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tightrope.errors import InvalidInput
from tightrope.estimators.csv_file import fit, model_card, plan, read_csv


@pytest.fixture
def table(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((2000, 2))
    label = np.where(x[:, 0] > 0.1 * generator.standard_normal(2000), "yes", "no")
    lines = [f"{a:.4f},{name},{b:.4f}" for (a, b), name in zip(x, label, strict=True)]
    path = tmp_path / "data.csv"
    path.write_text("age,bought,income\n" + "\n".join(lines) + "\n")
    return path


def test_a_file_is_fitted_and_its_card_says_everything(table: Path) -> None:
    passes: list[int] = []
    model = fit(
        table,
        target="bought",
        epsilon=1.0,
        data_norm=3.0,
        labels_public=True,
        on_pass=lambda: passes.append(1),
    )
    card = json.loads(model_card(model))
    assert card["private"] is True
    assert card["epsilon"] <= 1.0 + 1e-9
    assert card["neighbours"] == "replace-one"
    assert card["features"] == ["age", "income"]
    assert card["classes"] == ["no", "yes"]
    assert card["choice"].startswith("descent")
    assert len(passes) == model.n_iter_ + 1  # one for the mean
    read = read_csv(table, "bought")
    assert np.mean(model.predict(read.features) == read.target) > 0.9


def test_a_card_is_enough_to_predict(table: Path) -> None:
    """Scores from the card's numbers alone equal the model's."""
    model = fit(table, target="bought", epsilon=1.0, data_norm=3.0, classes=["no", "yes"])
    card = json.loads(model_card(model))
    rows, weights = card["rows"], np.array(card["weights"])
    x = read_csv(table, "bought").features
    u = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), rows["data_norm"])
    v = u - np.array(rows["center"])
    v /= np.maximum(np.linalg.norm(v, axis=1, keepdims=True), rows["radius"])
    scaled = np.column_stack([v, np.full(len(v), rows["intercept"])])
    scores = scaled @ weights / np.hypot(1.0, rows["intercept"])
    np.testing.assert_allclose(scores, model.decision_function(x), rtol=1e-5, atol=1e-5)


def test_regression_reads_numbers(tmp_path: Path) -> None:
    path = tmp_path / "line.csv"
    x = np.linspace(-1, 1, 500)
    path.write_text("x,y\n" + "\n".join(f"{a},{2 * a}" for a in x))
    model = fit(path, target="y", epsilon=5.0, data_norm=1.0, model="regression", target_bound=2.0)
    assert model.coef_[0] == pytest.approx(2.0, abs=0.5)


def test_a_plan_needs_sizes_only() -> None:
    planned = plan(records=30_000, features=50, epsilon=1.0)
    assert planned.name == "descent"
    assert planned.guarantee.delta(1.0).upper <= 30_000**-1.1
    assert "hidden-state" in planned.reason
    with pytest.raises(InvalidInput):
        plan(records=1, features=5, epsilon=1.0)
    with pytest.raises(InvalidInput, match="model must be one of"):
        plan(records=100, features=5, epsilon=1.0, model="forest")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no column 'bought'"),
        ("a,b\n1,2\n", "no column 'bought'"),
        ("a,bought\n", "at least one row"),
        ("a,bought\n1\n", "as many fields"),
        ("a,bought\nsecret7,yes\n1,no\n", "Column 'a' holds text"),
        ("a,bought\n,yes\n1,no\n", "Column 'a' holds text or empty"),
    ],
)
def test_bad_files_are_refused_without_telling_values(
    tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=said) as told:
        fit(path, target="bought", epsilon=1.0, data_norm=1.0, labels_public=True)
    assert "secret7" not in str(told.value)


def test_an_unknown_model_is_refused(table: Path) -> None:
    with pytest.raises(InvalidInput, match="logistic, svc, regression"):
        fit(table, target="bought", epsilon=1.0, data_norm=1.0, model="forest")
