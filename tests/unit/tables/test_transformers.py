"""Transformers that carry their guarantee: scikit-learn's contract, sums, and one budget."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from tightrope import account
from tightrope.errors import InvalidInput
from tightrope.estimators import PrivateLogisticRegression, TransformerNotPrivate
from tightrope.evidence.check import holds
from tightrope.evidence.verify import verify
from tightrope.tables import (
    PrivateImputer,
    PrivateOneHotEncoder,
    PrivatePipeline,
    PrivateScaler,
    PrivateStandardScaler,
    account_of,
    certificate_of,
    share_budget,
    transformers,
)

NUMERIC = (PrivateScaler, PrivateStandardScaler, PrivateImputer)
LOOSE: dict[str, Any] = {"epsilon": 1e4, "delta": 1e-3, "random_state": 0}


@parametrize_with_checks(
    [
        PrivateScaler(**LOOSE),
        PrivateScaler(bounds=(-3.0, 3.0), ranks=False),
        PrivateStandardScaler(**LOOSE, bounds=(-30.0, 30.0)),
        PrivateImputer(**LOOSE),
        PrivateOneHotEncoder(**LOOSE),
    ]
)
@pytest.mark.filterwarnings("ignore::tightrope.estimators.FitsAddUp")
@pytest.mark.filterwarnings("ignore::tightrope.estimators.PromisesNothing")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def numbers(rows: int = 20_000, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    array = np.column_stack([generator.normal(3, 2, rows), generator.exponential(100, rows)])
    array[::10, 0] = np.nan
    return array


@pytest.mark.filterwarnings("ignore::tightrope.estimators.FitsAddUp")
def test_means_scales_and_medians_are_near_the_truth() -> None:
    array = numbers()
    scaler = PrivateStandardScaler(1.0, delta=1e-6, bounds=[(-10, 10), None]).fit(array)
    assert scaler.mean_ == pytest.approx(np.nanmean(array, axis=0), rel=0.1)
    assert scaler.scale_ == pytest.approx(np.nanstd(array, axis=0), rel=0.2)
    imputer = PrivateImputer(1.0, delta=1e-6).fit(array)
    assert imputer.statistics_[0] == pytest.approx(np.nanmedian(array[:, 0]), abs=0.5)
    found = imputer.transform(array)
    assert found.shape == (20_000, 4)
    assert (found[:, 2] == np.isnan(array[:, 0])).all()


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove"])
def test_sums_of_neighbours_are_within_what_is_accounted(
    relation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worst rows attain at least nine tenths of it."""
    seen: list[Any] = []
    monkeypatch.setattr(transformers, "noisy", lambda c, s, w: (seen.append((c, s)), c)[1])
    how = {"bounds": (-1.0, 1.0), "adjacency": relation, "records": 50, "random_state": 1}
    if relation == "replace-one":
        how["records"] = None
    base = np.full((50, 3), 0.5)
    worst = 0.0
    for old, new in ((1.0, -1.0), (1.0, 0.0), (0.3, -0.77), (1.0, np.nan), (-1.0, np.nan)):
        one, two = base.copy(), base.copy()
        one[0], two[0] = old, new
        if relation == "add-or-remove":
            two = two[1:]
        seen.clear()
        for array in (one, two):
            part = PrivateStandardScaler(1.0, delta=1e-4, **how).fit(array)  # type: ignore[arg-type]
        (a, scale), (b, _) = seen
        assert scale == part.process_.sigma
        moved = float(np.linalg.norm(a - b))
        assert moved <= part.process_.sensitivity
        worst = max(worst, moved / part.process_.sensitivity)
    assert worst > (0.8 if relation == "replace-one" else 0.999)


def mixed(rows: int = 3000, seed: int = 0) -> tuple[Any, Any]:
    generator = np.random.default_rng(seed)
    array = np.empty((rows, 3), dtype=object)
    array[:, 0] = generator.normal(size=rows)
    array[:, 1] = generator.exponential(size=rows)
    array[:, 2] = generator.choice(["a", "b"], rows)
    return array, np.where(array[:, 0].astype(float) + (array[:, 2] == "a") > 0.5, 1, 0)


def pipeline() -> Pipeline:
    columns = ColumnTransformer(
        [
            ("numbers", PrivateScaler(), [0, 1]),
            ("texts", PrivateOneHotEncoder(), [2]),
        ]
    )
    return make_pipeline(columns, PrivateLogisticRegression(data_norm=3.0, classes=[0, 1]))


@pytest.mark.filterwarnings("ignore::tightrope.estimators.FitsAddUp")
def test_a_pipeline_has_one_budget_and_one_certificate() -> None:
    X, y = mixed()
    whole = share_budget(pipeline(), epsilon=2.0, delta=1e-5).fit(X, y)
    spent = account(account_of(whole)).epsilon(1e-5).upper
    assert 1.7 < spent <= 2.0
    assert len(account_of(whole).parts) == 3
    assert whole.score(X, y) > 0.85
    certificate = certificate_of(whole, 1e-5)
    assert holds(verify(certificate))
    assert certificate["run"]["settings"]["parts"].startswith("PrivateScaler, PrivateOneHot")
    certificate["process"]["parts"].pop(0)
    assert not holds(verify(certificate))
    again = pickle.loads(pickle.dumps(whole))
    np.testing.assert_array_equal(again.predict(X), whole.predict(X))


@pytest.mark.filterwarnings("ignore::tightrope.estimators.FitsAddUp")
def test_private_parts_are_not_warned_of_and_others_have_no_account() -> None:
    X, y = mixed()
    pipeline().fit(X, y)
    leaky = make_pipeline(StandardScaler(), PrivateScaler())
    with pytest.warns(TransformerNotPrivate, match="StandardScaler"):
        leaky.fit(numbers(300))
    with pytest.raises(InvalidInput, match="StandardScaler learns"):
        account_of(leaky)
    with pytest.raises(InvalidInput, match="StandardScaler learns"):
        share_budget(leaky, 1.0, 1e-5)


def test_what_is_public_costs_nothing() -> None:
    scaler = PrivateScaler(bounds=[(0, 1), (0, 1000)], ranks=False).fit(numbers(50))
    assert scaler.process_ is None
    assert account_of(scaler) is None
    encoder = PrivateOneHotEncoder(categories=[["a", "b"]]).fit([["a"], ["c"], [None]])
    assert encoder.process_ is None
    assert encoder.transform([["a"], ["c"], [None]]).tolist() == [
        [1, 0, 0, 0],
        [0, 0, 1, 0],
        [0, 0, 0, 1],
    ]
    assert encoder.get_feature_names_out(["job"])[0] == "job=a"
    with pytest.raises(InvalidInput, match="nothing to certify"):
        certificate_of(scaler, 1e-5)


def test_rare_categories_are_merged_and_common_ones_are_found() -> None:
    values = np.array(["common"] * 900 + ["usual"] * 600 + [f"rare {k}" for k in range(40)])
    encoder = PrivateOneHotEncoder(1.0, delta=1e-6).fit(values[:, None])
    assert list(encoder.get_feature_names_out())[:2] == ["x0=common", "x0=usual"]
    assert encoder.transform(values[:, None]).shape == (1540, 4)
    assert encoder.guarantee_.epsilon(1e-6).upper <= 1.0
    assert holds(verify(encoder.certificate()))


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (PrivateScaler(bounds=[(0, 1)]), "1 pairs for 2"),
        (PrivateScaler(bounds=(1, 0)), "low < high"),
        (PrivateScaler(-1.0), "epsilon"),
        (PrivateScaler(adjacency="add-or-remove"), "public number"),
        (PrivateScaler(adjacency="zero-out"), "null record"),
        (PrivateOneHotEncoder(categories=[["a"]]), "1 lists for 2"),
    ],
)
def test_bad_settings_are_refused(part: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        part.fit(np.nan_to_num(numbers(20)))


def test_a_pipeline_of_tables_has_no_warning_of_transformers(
    recwarn: pytest.WarningsRecorder,
) -> None:
    schema_free = PrivatePipeline(None, PrivateLogisticRegression(classes=[0, 1]), delta=1e-5)
    array = np.nan_to_num(numbers(500, seed=9))
    schema_free.fit(array, (array[:, 0] > 3).astype(int))
    assert not [w for w in recwarn if issubclass(w.category, TransformerNotPrivate)]
    assert math.isfinite(schema_free.score(array, (array[:, 0] > 3).astype(int)))
