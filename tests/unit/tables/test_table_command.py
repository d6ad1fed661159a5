"""`tightrope table`: describe, plan, fit, predict; a model file without code."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer", reason="the command needs typer")

from typer.testing import CliRunner

from tightrope.cli.app import app
from tightrope.errors import InvalidInput, TightropeError
from tightrope.evidence.certificate import read
from tightrope.evidence.check import holds
from tightrope.evidence.verify import verify
from tightrope.tables import PrivatePipeline, TableSchema
from tightrope.tables.model_file import from_data, read_model, write_model

PAGE = (Path(__file__).parents[3] / "docs" / "json.md").read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    age = generator.integers(18, 90, 1500)
    job = generator.choice(["clerk", "cook", "smith"], 1500)
    y = np.where(age / 10 + 3 * (job == "smith") + generator.normal(size=1500) > 6, "yes", "no")
    rows = "".join(f"{a};{j};{v}\n" for a, j, v in zip(age, job, y, strict=True))
    (tmp_path / "t.csv").write_text("age;job;rich\n" + rows)
    return tmp_path


def run(*words: str, code: int = 0) -> str:
    told = CliRunner().invoke(app, list(words))
    if code == 0:
        assert told.exit_code == 0, told.output + repr(told.exception)
        return told.stdout
    assert isinstance(told.exception, TightropeError) or told.exit_code == code
    return str(told.exception)


def described(folder: Path, categories: str = "job", *more: str) -> None:
    run("table", "describe", "t.csv", "--target", "rich", "--classes", "no,yes",
        "--numbers", "age=0:120", "--categories", categories, *more)  # fmt: skip


def test_from_a_raw_file_to_predictions(folder: Path) -> None:
    described(folder)
    assert TableSchema.read("schema.yaml").features == ("age", "job")
    planned = run("table", "plan", "--schema", "schema.yaml", "--epsilon", "2", "--records", "1500")
    assert "stands by itself from" in planned
    said = run("table", "fit", "t.csv", "--schema", "schema.yaml", "--epsilon", "2")
    assert "Preprocessing: 2 releases" in said
    assert holds(verify(read("certificate.json")))
    run("table", "predict", "model.json", "t.csv", "--out", "p.csv")
    guesses = [row[0] for row in csv.reader(Path("p.csv").read_text().splitlines())]
    truth = [line.split(";")[2] for line in Path("t.csv").read_text().splitlines()]
    assert guesses[0] == "rich" and len(guesses) == 1501
    assert np.mean(np.array(guesses) == np.array(truth)) > 0.8
    chances = run("table", "predict", "model.json", "t.csv", "--probabilities").splitlines()
    assert chances[0] == "no,yes"
    assert sum(map(float, chances[1].split(","))) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("command", ["plan", "fit"])
def test_every_field_of_json_is_described(folder: Path, command: str) -> None:
    described(folder)
    words = {"plan": ["--records", "1500"], "fit": ["t.csv"]}[command]
    given = run("table", command, *words, "--schema", "schema.yaml", "--epsilon", "1", "--json")
    document = json.loads(given.splitlines()[-1])
    (section,) = [s for s in PAGE.split("\n## ") if f"`{document['schema']}`" in s.split("\n")[0]]
    assert [key for key in document if key != "schema" and f"`.{key}" not in section] == []


def test_a_fit_is_booked_in_a_ledger(folder: Path) -> None:
    pytest.importorskip("sqlalchemy", reason="the ledger needs SQLAlchemy")
    described(folder)
    run("ledger", "init", "--ledger", "l.db")
    run("ledger", "add", "people", "--epsilon", "3", "--delta", "1e-3", "--ledger", "l.db",
        "--adjacency", "replace-one")  # fmt: skip
    fit = ("table", "fit", "t.csv", "--schema", "schema.yaml", "--epsilon", "2", "--delta", "1e-4",
           "--ledger", "l.db", "--dataset", "people")  # fmt: skip
    assert "List the values" in run(*fit, code=2)
    described(folder, "job=clerk|cook|smith", "--force")
    run(*fit)
    again = [word if word != "2" else "20" for word in fit]
    assert "exceed" in run(*again, "--out", "again/model.json", code=2)
    assert not Path("again/model.json").exists()


def test_a_model_file_predicts_as_the_model_and_a_damaged_one_is_refused(folder: Path) -> None:
    described(folder)
    model = PrivatePipeline(TableSchema.read("schema.yaml"), epsilon=2.0).fit("t.csv")
    again = read_model(write_model(model, "m.json"))
    np.testing.assert_array_equal(model.predict_proba("t.csv"), again.predict_proba("t.csv"))
    data = json.loads(Path("m.json").read_text())
    edits: list[Any] = [
        lambda d: d.pop("weights"),
        lambda d: d["weights"].pop(),
        lambda d: d["weights"].__setitem__(0, "x"),
        lambda d: d["rows"].update(data_norm=-1.0),
        lambda d: d["rows"].update(center=[0.0]),
        lambda d: d["encoding"]["codes"]["age"].update(code="os.system"),
        lambda d: d["encoding"].update(places=[7, 9]),
        lambda d: d.update(model="pickle"),
        lambda d: d.update(table={}),
        lambda d: d.update(schema="tightrope.certificate/2"),
    ]
    for edit in edits:
        broken = json.loads(json.dumps(data))
        edit(broken)
        with pytest.raises(InvalidInput, match=r"damaged|not a model"):
            from_data(broken)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["describe", "t.csv", "--target", "z", "--classes", "a,b"], "no column 'z'"),
        (["describe", "t.csv", "--target", "rich", "--classes", "no,yes"], "is not said: age, job"),
        (["describe", "t.csv", "--target", "rich"], "Give --classes"),
        (["fit", "t.csv", "--schema", "none.yaml", "--epsilon", "1"], "no such file"),
        (["predict", "t.csv", "t.csv"], "t.csv"),
    ],
)
def test_mistakes_are_answered_in_words(folder: Path, words: list[str], message: str) -> None:
    assert message in run("table", *words, code=2)
