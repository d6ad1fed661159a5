"""The command, its folder and its index pages, on the quick run that all tests share."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tightrope.cli.app import add_commands, app, run
from tightrope.errors import InvalidInput
from tightrope_reproduce import screen
from tightrope_reproduce.catalog import MODULES, find
from tightrope_reproduce.folder import RECORD
from tightrope_reproduce.index import records_in
from tightrope_reproduce.index_markdown import markdown
from tightrope_reproduce.index_page import page
from tightrope_reproduce.index_words import objections
from tightrope_reproduce.item import Objection, Outcome, Setting


def _reproduce(*words: str) -> str:
    outcome = CliRunner().invoke(app, ["reproduce", *words], catch_exceptions=False)
    assert outcome.exit_code == 0
    return outcome.output


@pytest.fixture(scope="module")
def whole(quick_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything, run quickly; a copy, because other test processes may still write there."""
    _reproduce("all", "--quick", "--out", str(quick_folder))
    copy = tmp_path_factory.mktemp("reproduced") / "whole"
    shutil.copytree(quick_folder, copy)
    return copy


@pytest.mark.slow
def test_all_items_leave_a_record_and_their_files(whole: Path) -> None:
    for name in MODULES:
        record = json.loads((whole / name / RECORD).read_text())
        assert record["lines"] and record["item"] == name
        for table in record["tables"]:
            assert (whole / name / f"{table}.csv").stat().st_size > 20
        for picture in record["pictures"]:
            for ending in ("-light.svg", "-dark.svg", ".png"):
                file = whole / name / f"{picture['name']}{ending}"
                assert file.stat().st_size > 2000


@pytest.mark.slow
def test_a_second_run_runs_nothing(whole: Path) -> None:
    ran = [r["item"] for r in records_in(whole) if not _some_not_run(r)]
    before = {name: (whole / name / RECORD).stat().st_mtime_ns for name in ran}
    output = _reproduce("all", "--quick", "--out", str(whole))
    assert f"{len(ran)} of {len(MODULES)} were finished before" in " ".join(output.split())
    assert before == {name: (whole / name / RECORD).stat().st_mtime_ns for name in ran}


def _some_not_run(record: dict[str, Any]) -> bool:
    lines = (line for line in record["lines"] if line["verdict"] == "not run")
    return any(not line["because"].startswith("quick run") for line in lines)


@pytest.mark.slow
def test_one_item_alone_keeps_the_others_in_the_index(whole: Path) -> None:
    output = _reproduce("variants-fig-6", "--quick", "--out", str(whole))
    assert "0.126937" in output
    text = (whole / "index.html").read_text()
    assert all(f'<article id="{name}">' in text for name in MODULES)


@pytest.mark.slow
def test_every_claim_has_a_line_in_both_pages(whole: Path) -> None:
    records = records_in(whole)
    page_rows = re.findall(r"<tr class=.*?</tr>", (whole / "index.html").read_text(), flags=re.S)
    lines = [line for record in records for line in record["lines"]]
    assert len(page_rows) == len(lines) > 100
    for row, line in zip(page_rows, lines, strict=True):
        assert html.escape(line["what"]) in row
        assert line["verdict"] in row
        assert html.escape(line["because"]) in row
    text = (whole / "index.md").read_text()
    table_rows = [row for row in text.splitlines() if row.startswith("| ")]
    assert len(table_rows) == len(lines) + 2 * len(records) + len(objections(records)) + 2


@pytest.mark.slow
def test_differences_say_why(whole: Path) -> None:
    for record in records_in(whole):
        for line in record["lines"]:
            plain = line["verdict"] in ("reproduced", "holds here")
            assert plain or len(line["because"]) > 10, line["what"]


@pytest.mark.slow
def test_the_page_asks_nobody_and_its_links_lead_somewhere(whole: Path) -> None:
    text = (whole / "index.html").read_text()
    assert not re.search(r"<script|<link|<iframe|@import|url\(", text)
    targets = re.findall(r'(?:src|srcset|href)="([^"]*)"', text)
    assert len(targets) > 100
    for target in targets:
        assert "//" not in target
        if target.startswith("#"):
            assert f'id="{target[1:]}"' in text
        else:
            assert (whole / target).is_file(), target
    for drawing in whole.glob("*/*.svg"):
        assert not re.search(r'(?:href|src)="(?!#)', drawing.read_text()), drawing


def test_the_list_names_every_item() -> None:
    output = _reproduce("--list")
    assert all(name in output for name in MODULES)


def test_every_item_bears_the_name_it_is_found_by() -> None:
    assert [item.name for item in find("all")] == list(MODULES)


def test_one_item_does_not_import_the_others() -> None:
    code = (
        "import sys; from tightrope_reproduce.catalog import MODULES, find; find('variants-fig-6');"
        "print(*(m for m in MODULES.values() if f'tightrope_reproduce.{m}' in sys.modules))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["variants.fig_6_region"]


def test_without_the_package_the_command_says_where_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tightrope.cli.app.entry_points", lambda group: ())
    bare = typer.Typer()
    bare.command("other")(lambda: None)
    add_commands(bare)
    with pytest.raises(InvalidInput, match=r"pip install \./papers"):
        CliRunner().invoke(
            bare, ["reproduce", "all", "--quick", "--out", "x"], catch_exceptions=False
        )


def test_an_unknown_item_is_refused_with_the_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tightrope", "reproduce", "variants-fig-99"])
    with pytest.raises(SystemExit) as leaving:
        run()
    assert leaving.value.code == 2
    words = " ".join(capsys.readouterr().err.split())
    assert "no item 'variants-fig-99'" in words
    assert all(name in words for name in MODULES)


def _record(quick: bool, **line: Any) -> dict[str, Any]:
    told = {
        "what": "w",
        "claim": 1.0,
        "printed": True,
        "ours": {"lower": 1.0, "upper": 1.5},
        "truth": None,
    }
    return {
        "item": "made-up",
        "paper": "A <paper>",
        "title": "Fig. 1",
        "made_by": {"quick": quick},
        "lines": [{**told, "verdict": "reproduced", "because": "", **line}],
        "tables": [],
        "pictures": [],
    }


def test_a_quick_run_is_said_to_be_one() -> None:
    for write in (page, markdown):
        assert "quick run" in write([_record(quick=True)])
        assert "quick run" not in write([_record(quick=False)])


def test_words_cannot_break_the_pages() -> None:
    records = [_record(False, what="a < b | c", verdict="differs", because="<b>x</b>")]
    assert "a &lt; b | c" in page(records)
    assert "&lt;b&gt;x&lt;/b&gt;" in page(records)
    assert "A &lt;paper&gt;" in page(records)
    assert "a < b \\| c" in markdown(records)


def test_invalid_claims_are_counted_by_what_they_come_down_to() -> None:
    limit, other = str(Objection.LIMIT), str(Objection.HARMONIC)
    invalid = [{"verdict": "claim invalid", "objection": name} for name in (limit, limit, other)]
    records = [_record(False, **line) for line in invalid] + [_record(False)]
    assert objections(records) == [(limit, 2, ["made-up"]), (other, 1, ["made-up"])]
    assert "3 claim invalid (2 distinct objections)" in markdown(records)
    assert "2 distinct objections" in page(records)


def test_a_reproduced_number_names_its_tolerance() -> None:
    records = [_record(False, within=0.0061)]
    assert "reproduced within 0.0061" in page(records)
    assert "reproduced within 0.0061" in markdown(records)


def test_each_invalid_claim_of_the_published_pages_names_its_objection() -> None:
    published = records_in(Path(__file__).parents[3] / "docs" / "reproduction")
    lines = [line for record in published for line in record["lines"]]
    invalid = [line for line in lines if line["verdict"] == "claim invalid"]
    assert {line["objection"] for line in invalid} == {str(each) for each in Objection}
    assert len(invalid) == 60


def test_intervals_are_shown_by_both_ends() -> None:
    assert "<td>1 to 1.5</td>" in page([_record(False)])
    assert "<td>-</td>" in page([_record(False)])


def test_a_formula_is_told_from_a_printed_number() -> None:
    for write in (page, markdown):
        assert "1 (formula)" in write([_record(False, printed=False)])
        assert "1 (formula)" not in write([_record(False)])


@pytest.mark.slow
def test_a_stopped_run_leaves_an_index_of_what_it_finished(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,), (second,) = map(find, tuple(MODULES)[:2])
    shutil.copytree(whole / first.name, tmp_path / first.name)

    def stopped(setting: Setting) -> Outcome:
        raise KeyboardInterrupt

    broken = replace(second, run=stopped)
    monkeypatch.setattr(screen, "find", lambda name: (first, broken))
    outcome = CliRunner().invoke(app, ["reproduce", "--quick", "--out", str(tmp_path)])
    assert outcome.exit_code != 0
    text = (tmp_path / "index.html").read_text()
    assert f'<article id="{first.name}">' in text
    assert f'<article id="{second.name}">' not in text
