"""A Dask cluster of two workers: the same sums as on one machine, and noise at the client only."""

from __future__ import annotations

import io
import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tightrope.convex import ArrayData, Logistic, Problem, Scaling
from tightrope.errors import InvalidInput
from tightrope.estimators import PrivateLogisticRegression
from tightrope.evidence.check import holds
from tightrope.evidence.verify import verify
from tightrope.tables import Category, Flag, Number, PrivatePipeline, TableSchema

distributed = pytest.importorskip("distributed", reason="Dask is not installed")
pandas = pytest.importorskip("pandas", reason="pandas is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

SCHEMA = TableSchema({"age": Number(), "job": Category(), "y": Flag()}, target="y")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as found,
    ):
        yield found


def frame(rows: int = 3000, parts: int = 5) -> Any:
    import dask.dataframe

    generator = np.random.default_rng(0)
    age = generator.integers(18, 90, rows)
    job = generator.choice(["clerk", "cook-7731", "smith"], rows)
    y = (age / 10 + 3 * (job == "smith") + generator.normal(size=rows) > 6).astype(int)
    plain = pandas.DataFrame({"age": age, "job": job, "y": y})
    return plain, dask.dataframe.from_pandas(plain, npartitions=parts)


def seeded(estimator: Any = None) -> PrivatePipeline:
    return PrivatePipeline(SCHEMA, estimator, epsilon=2.0, delta=1e-5, random_state=4)


def test_the_model_is_that_of_one_machine(client: Any) -> None:
    plain, away = frame()
    here, there = seeded().fit(plain), seeded().fit(away)
    assert here.design_ == there.design_
    assert here.process_ == there.process_
    np.testing.assert_allclose(there.estimator_.coef_, here.estimator_.coef_, rtol=1e-9, atol=1e-9)
    assert there.score(plain) > 0.8
    model = PrivatePipeline(SCHEMA, epsilon=2.0, delta=1e-5).fit(away)
    assert model.private_ and holds(verify(model.certificate()))


def test_sums_over_parts_are_the_sum_to_the_last_digits(client: Any) -> None:
    from tightrope.tables.on_dask import DaskRows
    from tightrope.tables.rows import encoded_targets, read_rows
    from tightrope.tables.sources import open_source

    plain, away = frame(parts=3)
    design = seeded().fit(plain).design_
    table = DaskRows(away, SCHEMA)
    caught: list[Any] = []

    class Caught:
        def fit_elsewhere(self, make: Any, rows: int) -> Any:
            caught.append((make(Scaling(2.0)), rows))

    table.fit(Caught(), design)
    data, count = caught[0]
    rows = read_rows(open_source(plain, SCHEMA), SCHEMA)
    targets = np.concatenate([encoded_targets(chunk, SCHEMA) for chunk in rows.chunks()])
    near = ArrayData(rows.encoded(design), targets, Scaling(2.0))
    assert count == near.count == data.count == 3000
    weights = np.random.default_rng(1).normal(size=near.width)
    sums = [Problem(one, Logistic()).gradient_sum(weights) for one in (near, data)]
    np.testing.assert_allclose(sums[0], sums[1], rtol=1e-13, atol=1e-12)


def test_nothing_private_is_logged_or_named(client: Any) -> None:
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    logging.getLogger("distributed").addHandler(handler)
    try:
        _, away = frame()
        broken = away.rename(columns={"age": "years"})
        with pytest.raises(InvalidInput, match="lacks columns") as refused:
            seeded().fit(broken)
        seeded().fit(away)
        names = " ".join(map(str, client.run_on_scheduler(_task_names)))
    finally:
        logging.getLogger("distributed").removeHandler(handler)
    for text in (heard.getvalue(), names, str(refused.value)):
        assert "7731" not in text


def _task_names(dask_scheduler: Any) -> list[str]:
    return list(dask_scheduler.tasks)


def test_a_lost_worker_is_made_up_for() -> None:
    """Its parts are computed again; only the client draws noise, so no release is repeated."""
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster),
    ):
        plain, away = frame()
        here = seeded().fit(plain)
        lost: list[int] = []

        def lose_one() -> None:
            if not lost:
                lost.append(1)
                os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)

        from tightrope.tables import on_dask

        before = on_dask.DaskData.total_of

        def total_of(self: Any, part: Any) -> Any:
            lose_one()
            return before(self, part)

        on_dask.DaskData.total_of = total_of  # type: ignore[method-assign]
        try:
            there = seeded().fit(away)
        finally:
            on_dask.DaskData.total_of = before  # type: ignore[method-assign]
    assert lost
    np.testing.assert_allclose(there.estimator_.coef_, here.estimator_.coef_, rtol=1e-9, atol=1e-9)


def test_what_needs_all_rows_in_one_place_is_refused(client: Any) -> None:
    _, away = frame()
    keyed = TableSchema(SCHEMA.columns, target="y", key="job", rows=2)
    with pytest.raises(InvalidInput, match="one place"):
        PrivatePipeline(keyed).fit(away)
    cyclic = PrivateLogisticRegression(algorithm="cyclic")
    with pytest.raises(InvalidInput, match="full-batch algorithm"):
        seeded(cyclic).fit(away)
    with pytest.raises(InvalidInput, match="map_partitions"):
        seeded().fit(away).predict(away)


def test_arrays_of_dask_are_tables(client: Any) -> None:
    import dask.array

    generator = np.random.default_rng(0)
    array = generator.normal(size=(2000, 3))
    array[:, 2] = array[:, 0] > 0
    schema = TableSchema({"a": Number(), "b": Number(), "y": Flag()}, target="y")
    model = PrivatePipeline(schema, epsilon=2.0, delta=1e-5)
    assert model.fit(dask.array.from_array(array, chunks=(700, 2))).score(array) > 0.9
