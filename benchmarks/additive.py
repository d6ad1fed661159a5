"""Additive models of private tables, beside the DP-EBM of the package `interpret`.

    TIGHTROPE_DATA=... python benchmarks/additive.py --peer-python PATH

PATH is a Python with interpret-core in an environment of its own. Both get the same rows and the
same public facts (bounds of numbers, lists of categories), the same epsilon and delta, the same
neighbours (add-or-remove: DP-EBM scales its noise to one record's slope), and run with their own
defaults otherwise. Raw columns; nothing is scaled or encoded by hand.
"""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

EPSILONS = (0.5, 1.0, 3.0)
SEEDS = 5

ADULT = [
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week"),
    *("native-country", "income"),
]
ADULT_BOUNDS = {
    "age": (17, 90),
    "fnlwgt": (0, 1_500_000),
    "education-num": (1, 16),
    "capital-gain": (0, 99_999),
    "capital-loss": (0, 5_000),
    "hours-per-week": (1, 99),
}
BANK_BOUNDS = {
    "age": (18, 95),
    "balance": (-10_000, 110_000),
    "day": (1, 31),
    "duration": (0, 5_000),
    "campaign": (1, 63),
    "pdays": (-1, 900),
    "previous": (0, 300),
}
CREDIT_BOUNDS = {
    "LIMIT_BAL": (0, 1_000_000),
    "AGE": (18, 80),
    **{f"PAY_{month}": (-2, 8) for month in (0, 2, 3, 4, 5, 6)},
    **{f"BILL_AMT{month}": (-100_000, 1_000_000) for month in range(1, 7)},
    **{f"PAY_AMT{month}": (0, 1_000_000) for month in range(1, 7)},
}


@dataclass(frozen=True)
class Table:
    """Training and test rows of raw columns, and what is public; target_range of a regression."""

    train: Any
    target: Any
    test: Any
    test_target: Any
    bounds: dict[int, tuple[float, float]]
    categories: dict[int, list[str]]
    target_range: tuple[float, float] | None

    @property
    def delta(self) -> float:
        return float(len(self.target)) ** -1.1


def _rows(path: str, delimiter: str) -> list[list[str]]:
    with lzma.open(Path(os.environ["TIGHTROPE_DATA"]) / path, "rt") as file:
        rows = [[field.strip() for field in row] for row in csv.reader(file, delimiter=delimiter)]
    return [row for row in rows if len(row) > 2]


def _table(
    names: list[str], train: Any, test: Any, bounds: dict[str, Any], target: str, positive: str
) -> Table:
    """positive: what the label of class 1 begins with; "" for a regression."""
    at = names.index(target)
    kept = [i for i in range(len(names)) if i != at]
    both = [_columns(rows, [names[i] for i in kept], kept, bounds) for rows in (train, test)]
    numeric = {new: bounds[names[old]] for new, old in enumerate(kept) if names[old] in bounds}
    listed = {
        i: sorted({*both[0][:, i], *both[1][:, i]}) for i in range(len(kept)) if i not in numeric
    }
    targets = [
        np.array([row[at].startswith(positive) if positive else float(row[at]) for row in rows])
        for rows in (train, test)
    ]
    targets = [t.astype(int if positive else float) for t in targets]
    range_ = None if positive else bounds[target]
    return Table(both[0], targets[0], both[1], targets[1], numeric, listed, range_)


def _columns(rows: Any, names: list[str], places: list[int], bounds: dict[str, Any]) -> Any:
    made = np.empty((len(rows), len(names)), dtype=object)
    for i, (name, place) in enumerate(zip(names, places, strict=True)):
        column = [row[place] for row in rows]
        made[:, i] = [float(field) for field in column] if name in bounds else column
    return made


def _split(rows: Any) -> tuple[Any, Any]:
    """Four fifths for training, by a fixed permutation."""
    order = np.random.default_rng(0).permutation(len(rows))
    cut = int(0.8 * len(rows))
    return [rows[i] for i in order[:cut]], [rows[i] for i in order[cut:]]


def _adult(target: str, positive: str) -> Table:
    train, test = _rows("adult/adult.data.xz", ","), _rows("adult/adult.test.xz", ",")
    test = [[*row[:-1], row[-1].rstrip(".")] for row in test]  # labels of the test part have a dot
    return _table(ADULT, train, test, ADULT_BOUNDS, target, positive)


def _bank(target: str, positive: str) -> Table:
    names, *rows = _rows("tabular/bank-full.csv.xz", ";")
    return _table(names, *_split(rows), BANK_BOUNDS, target, positive)


def _credit(target: str, positive: str) -> Table:
    names, *rows = ([*row[1:]] for row in _rows("tabular/UCI_Credit_Card.csv.xz", ","))
    return _table([*names[:-1], "default"], *_split(rows), CREDIT_BOUNDS, target, positive)


TABLES: dict[str, Callable[[], Table]] = {
    "adult": lambda: _adult("income", ">"),
    "bank": lambda: _bank("y", "yes"),
    "credit-card": lambda: _credit("default", "1"),
    "age in adult": lambda: _adult("age", ""),
    "limit in credit-card": lambda: _credit("LIMIT_BAL", ""),
}
SEEN = ("adult", "bank", "age in adult")


def ours(table: Table, epsilon: float, seed: int) -> Any:
    from tightrope.estimators import PrivateAdditiveClassifier, PrivateAdditiveRegressor

    public: dict[str, Any] = {
        "delta": table.delta,
        "feature_ranges": table.bounds,
        "categories": table.categories,
        "adjacency": "add-or-remove",
        "records": len(table.target),
        "random_state": seed,
    }
    if table.target_range is None:
        return PrivateAdditiveClassifier(epsilon, classes=[0, 1], **public)
    return PrivateAdditiveRegressor(epsilon, target_range=table.target_range, **public)


def peer(table: Table, epsilon: float, seed: int) -> Any:
    from interpret.privacy import (
        DPExplainableBoostingClassifier,
        DPExplainableBoostingRegressor,
    )

    width = table.train.shape[1]
    public: dict[str, Any] = {
        "epsilon": epsilon,
        "delta": table.delta,
        "feature_types": [table.categories.get(i, "continuous") for i in range(width)],
        "privacy_bounds": table.bounds,
        "random_state": seed,
        "n_jobs": 1,
    }
    if table.target_range is None:
        return DPExplainableBoostingClassifier(**public)
    low, high = table.target_range
    return DPExplainableBoostingRegressor(privacy_target_min=low, privacy_target_max=high, **public)


def scores(make: Callable[[Table, float, int], Any], name: str) -> dict[str, Any]:
    """For each epsilon: (accuracy, AUC, log loss) or (R2,) of each seed, and processor time."""
    from sklearn.metrics import log_loss, roc_auc_score

    warnings.simplefilter("ignore")
    table, found = TABLES[name](), {}
    for epsilon in EPSILONS:
        rows = []
        for seed in range(SEEDS):
            model, began = make(table, epsilon, seed), time.process_time()
            model.fit(table.train, table.target)
            took = time.process_time() - began
            if table.target_range is None:
                chance, y = model.predict_proba(table.test)[:, 1], table.test_target
                right = float(np.mean((chance > 0.5) == y))
                rows.append([right, roc_auc_score(y, chance), log_loss(y, chance), took])
            else:
                rows.append([float(model.score(table.test, table.test_target)), took])
        found[f"{epsilon:g}"] = rows
    return found


def _of_peer(python: str, name: str) -> dict[str, Any]:
    command = [python, __file__, "--only", name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def lines(names: Iterable[str], python: str) -> list[str]:
    made = ["| data | eps | | Tightrope | DP-EBM |", "|---|---|---|---|---|"]
    for name in names:
        both = [scores(ours, name), _of_peer(python, name)]
        regression = len(both[0]["1"][0]) == 2
        measures = ["R2"] if regression else ["accuracy, %", "AUC", "log loss"]
        for epsilon in both[0]:
            for column, measure in enumerate([*measures, "seconds"]):
                cells = [_cell(measure, [row[column] for row in one[epsilon]]) for one in both]
                made.append(f"| {name} | {epsilon} | {measure} | {' | '.join(cells)} |")
                print(made[-1], flush=True)
    return made


def _cell(measure: str, values: list[float]) -> str:
    factor = 100.0 if measure.endswith("%") else 1.0
    mean, error = factor * np.mean(values), factor * np.std(values, ddof=1) / np.sqrt(len(values))
    digits = 2 if factor > 1.0 else 1 if measure == "seconds" else 4
    return f"{mean:.{digits}f} ± {error:.{digits}f}"


def picture(path: Path) -> None:
    """Six shapes of a model of adult at epsilon 1."""
    table = TABLES["adult"]()
    model = ours(table, 1.0, 0).fit(table.train, table.target)
    chosen = [0, 4, 12, 10, 5, 6]
    figure = model.plot_shapes(chosen)
    for axis, column in zip(figure.axes, chosen, strict=True):
        axis.set_title(ADULT[column], fontsize=10)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", default=sys.executable, help="one with interpret-core")
    parser.add_argument("--only", choices=list(TABLES), help=argparse.SUPPRESS)
    parser.add_argument("--tables", nargs="*", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--picture", type=Path, help="draw six shapes of adult there instead")
    asked = parser.parse_args()
    if asked.picture:
        picture(asked.picture)
        return
    if asked.only:
        print(json.dumps(scores(peer, asked.only)))
        return
    print(f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}")
    lines(asked.tables, asked.peer_python)


if __name__ == "__main__":
    main()
