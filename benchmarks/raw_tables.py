"""Raw tables at equal epsilon: nothing known, bounds and categories known, and no privacy.

    TIGHTROPE_DATA=... python benchmarks/raw_tables.py

Reads $TIGHTROPE_DATA/adult and $TIGHTROPE_DATA/tabular, writes benchmarks/results/raw_tables.json
and prints the tables of RESULTS.md. Less than a minute on one idle core. Adult and Bank served to
choose the defaults; the others did not.
"""

from __future__ import annotations

import csv
import json
import lzma
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from tightrope.tables import Category, Number, PrivatePipeline, TableSchema

EPSILONS, SEEDS, DELTA = (0.5, 1.0, 3.0), 3, 1e-6
RESULTS = Path(__file__).parent / "results" / "raw_tables.json"
Table = dict[str, Any]

_ADULT = """age workclass fnlwgt education education-num marital-status occupation relationship race
sex capital-gain capital-loss hours-per-week native-country income"""
ADULT = _ADULT.split()
ADULT_NUMBERS = {"age", "fnlwgt", "education-num", "capital-gain", "capital-loss", "hours-per-week"}


def lines(path: Path, delimiter: str = ",") -> list[list[str]]:
    with lzma.open(path, "rt") as file:
        rows = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
        return [[cell.strip() for cell in row] for row in rows if len(row) > 1]


def halves(rows: list[list[str]], names: list[str]) -> tuple[Table, Table]:
    """Three quarters to fit on and one to test, by a fixed seed."""
    order = np.random.default_rng(0).permutation(len(rows))
    cut = 3 * len(rows) // 4
    columns = [np.array(column, dtype=object) for column in zip(*rows, strict=True)]
    first, second = (
        {name: column[part] for name, column in zip(names, columns, strict=True)}
        for part in (order[:cut], order[cut:])
    )
    return first, second


def tables(folder: Path) -> dict[str, tuple[Table, Table, set[str], str, tuple[str, str]]]:
    """Name: (to fit on, to test on, columns of numbers, target, labels)."""
    adult = [lines(folder / "adult" / f"adult.{part}.xz") for part in ("data", "test")]
    found: Any = {}
    train, test = (
        {name: np.array(c, object) for name, c in zip(ADULT, zip(*rows, strict=True), strict=True)}
        for rows in ([row for row in part if len(row) == 15] for part in adult)
    )
    test["income"] = np.array([label.rstrip(".") for label in test["income"]], dtype=object)
    found["adult"] = (train, test, ADULT_NUMBERS, "income", ("<=50K", ">50K"))
    tabular = folder / "tabular"
    bank = lines(tabular / "bank-full.csv.xz", ";")
    numbers = {"age", "balance", "day", "duration", "campaign", "pdays", "previous"}
    found["bank"] = (*halves(bank[1:], bank[0]), numbers, "y", ("no", "yes"))
    credit = lines(tabular / "UCI_Credit_Card.csv.xz")
    texts = {"ID", "SEX", "EDUCATION", "MARRIAGE", *(f"PAY_{k}" for k in (0, 2, 3, 4, 5, 6))}
    rows, names = [row[1:] for row in credit[1:]], credit[0][1:]
    found["credit"] = (*halves(rows, names), set(names[:-1]) - texts, names[-1], ("0", "1"))
    for name, file, labels in (
        ("magic", "magic04.data.xz", ("h", "g")),
        ("spam", "spambase.data.xz", ("0", "1")),
    ):
        rows = lines(tabular / file)
        names = [*(f"x{k}" for k in range(len(rows[0]) - 1)), "y"]
        found[name] = (*halves(rows, names), set(names[:-1]), "y", labels)
    german = lines(tabular / "german.data.xz", " ")
    names = [*(f"x{k}" for k in range(20)), "y"]
    numbers = {f"x{k}" for k in (1, 4, 7, 10, 12, 15, 17)}
    found["german"] = (*halves(german, names), numbers, "y", ("1", "2"))
    return found


def schema_of(
    table: Table, numbers: set[str], target: str, labels: Any, known: bool
) -> TableSchema:
    """With everything unknown; or with bounds and categories as a codebook would have them.

    The codebook is made from the table here, as the real ones are not at hand: a benchmark may.
    """
    columns: dict[str, Any] = {}
    for name, column in table.items():
        if name == target:
            columns[name] = Category(labels)
        elif name in numbers:
            values = column.astype(float)
            ends = (float(values.min()), float(max(values.max(), values.min() + 1)))
            columns[name] = Number(*ends) if known else Number()
        else:
            values = sorted(set(column) - {"?", ""})
            columns[name] = Category(tuple(values)) if known else Category()
    return TableSchema(columns, target=target)


def scores(model: Any, test: Table, truth: Any) -> tuple[float, float, float]:
    chances = np.clip(model.predict_proba(test)[:, 1], 1e-9, 1 - 1e-9)
    accuracy = float(np.mean((chances > 0.5) == truth))
    return accuracy, float(roc_auc_score(truth, chances)), float(log_loss(truth, chances))


def ordinary(train: Table, test: Table, numbers: set[str], target: str, label: str) -> Any:
    """scikit-learn without privacy."""
    names = [name for name in train if name != target]
    order = [name for name in names if name in numbers] + [n for n in names if n not in numbers]
    count = sum(name in numbers for name in names)
    encode = make_column_transformer(
        (StandardScaler(), list(range(count))),
        (OneHotEncoder(handle_unknown="ignore"), list(range(count, len(names)))),
    )
    model = make_pipeline(encode, LogisticRegression(max_iter=2000))

    def array(table: Table) -> Any:
        return np.column_stack([table[name] for name in order])

    model.fit(array(train), train[target] == label)
    chances = np.clip(model.predict_proba(array(test))[:, 1], 1e-9, 1 - 1e-9)
    truth = test[target] == label
    accuracy = float(np.mean((chances > 0.5) == truth))
    return accuracy, float(roc_auc_score(truth, chances)), float(log_loss(truth, chances))


def main() -> None:
    warnings.simplefilter("ignore")
    folder = Path(os.environ["TIGHTROPE_DATA"])
    found: dict[str, Any] = {}
    for name, (train, test, numbers, target, labels) in tables(folder).items():
        truth = test[target] == labels[1]
        rows = len(train[target])
        plain = ordinary(train, test, numbers, target, labels[1])
        found[name] = {"rows": rows, "ordinary": plain, "private": {}}
        for epsilon in EPSILONS:
            for known in (False, True):
                schema = schema_of(train, numbers, target, labels, known)
                start, runs = time.process_time(), []
                for seed in range(SEEDS):
                    model = PrivatePipeline(schema, epsilon=epsilon, delta=DELTA, random_state=seed)
                    runs.append(scores(model.fit(train), test, truth))
                key = f"{epsilon:g} {'known' if known else 'unknown'}"
                found[name]["private"][key] = {
                    "mean": np.mean(runs, axis=0).tolist(),
                    "std": np.std(runs, axis=0, ddof=1).tolist(),
                    "seconds": (time.process_time() - start) / SEEDS,
                }
                print(name, key, found[name]["private"][key], file=sys.stderr, flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(table_of(found))


def table_of(found: dict[str, Any]) -> str:
    head = "| table (rows) | epsilon | nothing known | bounds and categories known | no privacy |"
    out = [head, "|---|---|---|---|---|"]
    for name, one in found.items():
        for epsilon in EPSILONS:
            cells = []
            for key in ("unknown", "known"):
                run = one["private"][f"{epsilon:g} {key}"]
                (a, u, loss), (s, _, _) = run["mean"], run["std"]
                cells.append(f"{100 * a:.2f} ± {100 * s:.2f}, {u:.3f}, {loss:.3f}")
            a, u, loss = one["ordinary"]
            cells.append(f"{100 * a:.2f}, {u:.3f}, {loss:.3f}")
            out.append(f"| {name} ({one['rows']}) | {epsilon:g} | {' | '.join(cells)} |")
    return "\n".join(out)


if __name__ == "__main__":
    main()
