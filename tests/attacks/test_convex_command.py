"""Holes G2 and G5 on the command: labels, regression, and tables as spreadsheets write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tightrope.cli.app import app
from tightrope.errors import InvalidInput
from tightrope.estimators.csv_file import fit, plan
from tightrope.estimators.table import read_csv

RUNNER = CliRunner()


def _lines(rows: int = 200) -> list[str]:
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (rows, 2))
    names = np.where(x[:, 0] > 0, "yes", "no")
    return [f"{a:.4f},{b:.4f},{name}" for (a, b), name in zip(x, names, strict=True)]


def _text(rows: int = 200) -> str:
    return "\n".join(["age,income,bought", *_lines(rows)]) + "\n"


def _fitted(path: Path, **changes: Any) -> Any:
    usual = {"target": "bought", "epsilon": 1.0, "data_norm": 2.0, "labels_public": True}
    return fit(path, **(usual | changes))


WRITTEN = {
    "UTF-8": lambda text: text.encode(),
    "with a byte order mark": lambda text: text.encode("utf-8-sig"),
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16, big end first": lambda text: b"\xfe\xff" + text.encode("utf-16-be"),
    "semicolons": lambda text: text.replace(",", ";").encode(),
    "tabs": lambda text: text.replace(",", "\t").encode(),
    "quotes": lambda text: text.replace("age,income", '"age","income"').encode(),
    "spaces in the header": lambda text: text.replace("age,income,", "age, income, ").encode(),
    "line ends of old Macs": lambda text: text.replace("\n", "\r").encode(),
    "empty lines first": lambda text: ("\n\n" + text.replace(",", ";")).encode(),
    "Windows line ends": lambda text: text.replace("\n", "\r\n").encode(),
    "empty lines": lambda text: (text + "\n\n").encode(),
}


@pytest.mark.parametrize("form", WRITTEN)
def test_tables_are_read_as_they_are_written(form: str, tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(WRITTEN[form](_text()))
    table = read_csv(path, "bought")
    assert table.names == ("age", "income")
    assert table.features.shape == (200, 2)
    assert set(table.target) == {"yes", "no"}


REFUSED = {
    "a nan cell": (_text() + "nan,0.1,yes\n", "Column 'age' holds NaN"),
    "an infinite cell": (_text() + "0.3,-inf,yes\n", "Column 'income' holds NaN or infinity"),
    "an empty label": (_text() + "0.1,0.2,\n", "has empty fields"),
    "a blank label": (_text() + "0.1,0.2,  \n", "has empty fields"),
    "decimal commas": (_text().replace(",", ";").replace(".", ","), "decimal point"),
    "two columns of one name": (_text().replace("income", "age"), "more than one column 'age'"),
    "a zero byte": (_text() + "0.1,\0,yes\n", "neither UTF-8"),
    "no header": ("\n".join(_lines()), "values, not names"),
    "an open quote": ('"' + _text(), "values, not names"),
    "a name too long": ("a" * 200_000 + _text(), "not a table"),
    "a target alone": ("bought\nyes\nno\n", "nothing to predict it from"),
    "a row too long": (_text() + "0.1,0.2,yes,7\n", "as many fields as the header"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_and_no_value_told(name: str, tmp_path: Path) -> None:
    content, said = REFUSED[name]
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=said) as refused:
        _fitted(path)
    assert _lines()[0].split(",")[0] not in str(refused.value)


@pytest.mark.parametrize("content", [b"\xff\xff\x00\x01", "bought\n\xe4".encode("latin-1")])
def test_files_of_no_known_encoding_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="UTF-8"):
        _fitted(path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        _fitted(tmp_path / "absent.csv")


@pytest.mark.parametrize(
    "change", [{"classes": ["yes", ""]}, {"adjacency": "somehow"}, {"model": "magic"}]
)
def test_settings_without_a_meaning_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text(_text())
    with pytest.raises(InvalidInput):
        _fitted(path, **change)


def _command(*words: str) -> Any:
    return RUNNER.invoke(app, ["convex", *words])


def test_the_command_does_not_publish_labels_unasked(tmp_path: Path) -> None:
    path, out = tmp_path / "data.csv", tmp_path / "out" / "model.json"
    out.parent.mkdir()
    path.write_text(_text())
    usual = ("fit", str(path), "--target", "bought", "--epsilon", "1", "--data-norm", "2")
    usual += ("--out", str(out), "--algorithm", "descent")
    told = _command(*usual)
    assert told.exit_code != 0 and isinstance(told.exception, InvalidInput)
    assert "labels_public" in str(told.exception)
    assert not out.exists()
    done = _command(*usual, "--classes", "yes,no,never")
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["classes"] == ["never", "no", "yes"]


def test_salaries_are_no_classes(tmp_path: Path) -> None:
    path = tmp_path / "salaries.csv"
    rows = [f"{i / 300:.3f},{20_000 + 137 * i}" for i in range(300)]
    path.write_text("\n".join(["age,salary", *rows]))
    told = _command(
        *("fit", str(path), "--target", "salary", "--epsilon", "1", "--data-norm", "1"),
        *("--labels-public", "--out", str(tmp_path / "model.json")),
    )
    assert isinstance(told.exception, InvalidInput)
    assert "regression" in str(told.exception) and "20137" not in str(told.exception)
    assert not (tmp_path / "model.json").exists()


@pytest.mark.parametrize("model", ["regression", "ridge"])
def test_a_regression_is_planned_and_fitted_from_the_command(model: str, tmp_path: Path) -> None:
    planned = _command(
        "plan", "--records", "500", "--features", "1", "--epsilon", "5", "--model", model
    )
    assert planned.exit_code == 0, planned.output
    path, out = tmp_path / "line.csv", tmp_path / "model.json"
    path.write_text("x,y\n" + "\n".join(f"{a},{2 * a}" for a in np.linspace(-1, 1, 500)))
    words = ("fit", str(path), "--target", "y", "--epsilon", "5", "--data-norm", "1")
    words += ("--model", model, "--out", str(out))
    without = _command(*words)
    assert isinstance(without.exception, InvalidInput)
    assert "target_bound" in str(without.exception)
    done = _command(*words, "--target-bound", "2")
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["private"] is True


@pytest.mark.parametrize("model", ["logistic", "svc", "regression", "ridge"])
@pytest.mark.parametrize("adjacency", ["replace-one", "add-or-remove"])
def test_a_plan_is_what_a_fit_of_these_sizes_does(model: str, adjacency: str) -> None:
    planned = plan(records=300, features=4, epsilon=1.0, model=model, adjacency=adjacency)
    assert planned.guarantee.epsilon(300**-1.1).upper <= 1.0 + 1e-9
    assert 0.0 < planned.rounding <= 1e-2


def test_add_or_remove_works_from_the_command(tmp_path: Path) -> None:
    path, out = tmp_path / "data.csv", tmp_path / "model.json"
    path.write_text(_text())
    words = ("fit", str(path), "--target", "bought", "--epsilon", "1", "--data-norm", "2")
    words += ("--classes", "yes,no", "--out", str(out), "--adjacency", "add-or-remove")
    assert isinstance(_command(*words).exception, InvalidInput)
    assert _command(*words, "--records", "250").exit_code == 0
    assert json.loads(out.read_text())["neighbours"] == "add-or-remove"
