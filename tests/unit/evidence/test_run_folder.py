"""A run folder is verified as one: what its files do not say together does not hold."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("typer", reason="the command needs typer")
pytest.importorskip("sqlalchemy", reason="the ledger needs it")

from typer.testing import CliRunner  # noqa: E402

from tightrope.cli.app import app  # noqa: E402
from tightrope.errors import InvalidInput  # noqa: E402
from tightrope.evidence import Verdict, verdict, verify  # noqa: E402
from tightrope.evidence.certificate import certify, chain_of, read, write  # noqa: E402
from tightrope.evidence.commitment import new_key, write_key  # noqa: E402
from tightrope.evidence.run_folder import Mark, next_mark  # noqa: E402
from tightrope.evidence.statement import statement  # noqa: E402
from tightrope.ledger import Terms, Total, create_ledger  # noqa: E402
from tightrope.process import NoisySGD, PoissonSampling, Sequence, StoppedAtWill  # noqa: E402
from tightrope.train import (  # noqa: E402
    AdaptiveClip,
    Budget,
    FlatClip,
    GaussianNoise,
    PoissonSampler,
    noisy_sgd,
)
from tightrope.train.files import read_snapshot  # noqa: E402
from tightrope.train.users import UserData, Users  # noqa: E402

STEPS = 30
X = torch.randn(60, 5, generator=torch.Generator().manual_seed(3))
Y = X[:, 0]


def squares(model: Any, x: Any, y: Any) -> Any:
    return (model(x).squeeze(1) - y) ** 2


def train(
    folder: Path, steps: int | None, taken: int | None = None, data: Any = (X, Y), **options: Any
) -> Any:
    """`steps` releases, or fewer, stored after half of them and at the end."""
    parts = {"sampler": PoissonSampler(0.1), "clip": FlatClip(1.0), "noise": GaussianNoise(2.0)}
    run = noisy_sgd(
        torch.nn.Linear(5, 1),
        data,
        squares,
        learning_rate=0.1,
        expected_batch_size=6,
        steps=steps,
        folder=folder,
        save_every=(steps or 10) // 2,
        **parts | options,
    )
    for step in run:
        if step.number == taken:
            break
    run.folder.save()
    run.folder.certify(1e-5)
    run.close()
    return run.record()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`run`, with its ledger, and `alone`, without one."""
    place = tmp_path_factory.mktemp("runs")
    url = str(place / "ledger.db")
    create_ledger(url).add(Terms("people", Total(epsilon=3.0, delta=1e-5)))
    train(place / "run", STEPS, budget=Budget(ledger=url, dataset="people"))
    train(place / "alone", STEPS)
    return place


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole / "run", tmp_path / "run"))


def failed(folder: Path, ledger: str | None = None) -> list[str]:
    lines = verify(read(folder), folder=folder, ledger=ledger)
    assert (verdict(lines) is Verdict.FAILS) == any(line.holds is False for line in lines)
    return [line.name for line in lines if line.holds is False]


def command(*words: str) -> tuple[int, dict[str, Any]]:
    ended = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    return ended.exit_code, json.loads(ended.stdout)


def journal_of(folder: Path) -> list[bytes]:
    return (folder / "journal.jsonl").read_bytes().splitlines(keepends=True)


def chained(contents: list[bytes]) -> tuple[bytes, Mark]:
    """A journal as its forger writes it who knows the format."""
    mark, lines = Mark(0, ""), []
    for content in contents:
        mark = next_mark(mark, content)
        lines.append(content + b" " + mark.chain.encode() + b"\n")
    return b"".join(lines), mark


def test_a_whole_folder_holds_with_its_ledger(whole: Path) -> None:
    for name in ("run", "alone"):
        lines = {line.name: line for line in verify(read(whole / name), folder=whole / name)}
        assert verdict(list(lines.values())) is Verdict.HOLDS, lines
        for part in ("journal", "releases", "stored settings", "data", "weights"):
            assert lines[part].holds, part
        assert lines["ledger"].holds is None
    code, answer = command("verify", str(whole / "run"), "--ledger", str(whole / "ledger.db"))
    (ledger,) = [line for line in answer["checks"] if line["name"] == "ledger"]
    assert code == 0 and ledger["holds"] is True


def cut(folder: Path) -> None:
    (folder / "journal.jsonl").write_bytes(b"".join(journal_of(folder)[:10]))


def cut_with_its_head(folder: Path) -> None:
    """The stored state still names the place that is gone."""
    text, mark = chained([line.rpartition(b" ")[0] for line in journal_of(folder)[:10]])
    (folder / "journal.jsonl").write_bytes(text)
    (folder / "journal.head").write_text(f"{mark.lines} {mark.chain}\n")


def one_line_less(folder: Path) -> None:
    (folder / "journal.jsonl").write_bytes(b"".join(journal_of(folder)[:-1]))


def a_line_changed(folder: Path) -> None:
    lines = journal_of(folder)
    lines[5] = lines[5].replace(b"true", b"false")
    (folder / "journal.jsonl").write_bytes(b"".join(lines))


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def a_state_elsewhere(folder: Path) -> None:
    name = (folder / "latest").read_text().strip()
    shutil.move(folder / name, folder.parent / name)
    (folder / "latest").write_text(f"../{name}")


def a_state_behind_a_link(folder: Path) -> None:
    name = (folder / "latest").read_text().strip()
    shutil.move(folder / name, folder.parent / name)
    (folder / name).symlink_to(folder.parent / name)


def a_state_edited(folder: Path) -> None:
    (path,) = folder.glob("step-*/state.json")
    path.write_text(path.read_text().replace('"noise_multiplier": 2.0', '"noise_multiplier": 3.0'))


HARMS = {
    cut: "lines were written",
    cut_with_its_head: "lines were written",
    one_line_less: "lines were written",
    a_line_changed: "line 6 is not as it was written",
    remove("journal.jsonl"): "journal.jsonl: there is no such file",
    remove("journal.head"): "journal.head: there is no such file",
    remove("latest"): "latest: there is no such file",
    a_state_elsewhere: "names no stored state of this folder",
    a_state_behind_a_link: "is a link",
    a_state_edited: "is not what its name says",
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_folder_that_was_changed_does_not_hold(harm: Callable[[Path], None], run: Path) -> None:
    harm(run)
    (line,) = (one for one in verify(read(run), folder=run) if one.holds is False)
    assert line.name == "journal" and HARMS[harm] in line.said
    if harm is cut:
        page = run.parent / "report.html"
        code, _ = command("report", str(run), "--out", str(page))
        assert code == 1 and "Do not trust this certificate" in page.read_text()


def test_other_weights_do_not_hold(run: Path) -> None:
    (path,) = run.glob("step-*/model.safetensors")
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    assert failed(run) == ["weights"]


def test_a_certificate_of_fewer_releases_does_not_hold(run: Path, tmp_path: Path) -> None:
    """As of a run that went on after it was certified, or of another one of the same settings."""
    train(tmp_path / "shorter", STEPS // 2)
    shutil.copy(tmp_path / "shorter" / "certificate.json", run / "certificate.json")
    expected = ["releases", "stored settings", "data"]  # nor is its plan this one, nor its key
    assert failed(run) == expected


def test_a_declared_process_is_not_the_training_of_the_folder(run: Path) -> None:
    write(certify(NoisySGD(PoissonSampling(0.1), 2.0, STEPS), 1e-5), run / "certificate.json")
    assert failed(run) == ["releases"]


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("stored settings", lambda run: run.update(clip="FlatClip(clip_norm=0.5)")),
        ("stored settings", lambda run: run["settings"].update(arithmetic="strict")),
        ("data", lambda run: run.update(data="hmac-sha256:" + "0" * 64)),
        ("data", lambda run: run.update(data=None)),
    ],
)
def test_what_the_stored_run_knows_better_does_not_hold(
    name: str, edit: Callable[[dict[str, Any]], None], run: Path
) -> None:
    certificate = read(run)
    edit(certificate["run"])
    write({**certificate, "chain": chain_of(certificate)}, run / "certificate.json")
    assert name in failed(run)


def certified_again(folder: Path, process: Any, **changes: Any) -> None:
    """By somebody who writes another process or other facts, and claims and a chain that fit."""
    run = read(folder)["run"] | {"history": []} | changes
    made = json.loads(json.dumps(certify(process, 1e-5))) | {"run": run}
    made["statement"] = statement(made)
    write({**made, "chain": chain_of(made)}, folder / "certificate.json")


RAN = NoisySGD(PoissonSampling(0.1), 2.0, STEPS)


@pytest.mark.parametrize(
    ("process", "changes"),
    [
        (replace(RAN, sampling=PoissonSampling(0.01)), {}),
        (Sequence((RAN, replace(RAN, noise_multiplier=9.0))), {}),
        (Sequence((replace(RAN, noise_multiplier=9.0), RAN)), {}),
        (RAN.group(2), {}),
        (RAN, {"budget": {"epsilon": 9.0, "delta": 1e-5}}),
        (RAN, {"sensitivity": 0.5}),
    ],
)
def test_a_certificate_of_another_process_does_not_hold(
    process: Any, changes: dict[str, Any], run: Path
) -> None:
    certified_again(run, RAN)
    assert failed(run) == []
    certified_again(run, process, **changes)
    assert failed(run) == ["stored settings"]


def test_a_certificate_of_another_program_does_not_hold(run: Path) -> None:
    written = read(run)["run"]["isolation"]
    other = written["examples"][0] | {"programs": ["0" * 64]}
    certified_again(run, RAN, isolation=written | {"examples": [other]})
    assert failed(run) == ["stored programs"]
    certified_again(run, RAN, isolation=written)
    assert failed(run) == []
    restored(run, lambda state: state["isolation"].update(private_values_shown=True))
    assert failed(run) == ["stored programs"]


def test_a_plan_that_was_made_afterwards_does_not_hold(run: Path) -> None:
    """Of a run that was stopped at will: its certificate must cost what that costs."""
    restored(run, lambda state: state.update(length={"planned": None, "at_will": True}))
    assert failed(run) == ["stored settings"]
    certified_again(run, StoppedAtWill(RAN), length="at will")
    assert failed(run) == []


def test_a_run_folder_without_any_journal_is_noticed(run: Path) -> None:
    for name in ("journal.jsonl", "journal.head", "latest"):
        (run / name).unlink()
    for state in run.glob("step-*"):
        shutil.rmtree(state)
    assert failed(run) == ["journal"]


def test_every_kind_of_run_holds(tmp_path: Path) -> None:
    """Also one whose clip moves, that protects users, ends early or at will, or goes on."""
    before = train(tmp_path / "before", 4)
    users = Users(3)
    rows = UserData((X, Y), np.arange(len(X)) // 3)
    kinds: dict[str, dict[str, Any]] = {
        "a clip that moves": {"steps": 12, "clip": AdaptiveClip(1.0, quantile=0.5)},
        "users": {"steps": 4, "data": rows, "sampler": PoissonSampler(0.1, users=users)},
        "after another": {"steps": 4, "history": before},
        "early": {"steps": 40, "taken": 3},
        "at will": {"steps": None, "taken": 3},
        "a budget": {"steps": 3000, "budget": Budget(0.5, 1e-5)},
    }
    for name, options in kinds.items():
        train(tmp_path / name, **options)
        assert failed(tmp_path / name) == [], name


def test_another_data_key_does_not_hold_and_none_is_not_checked(run: Path) -> None:
    write_key(new_key(), run / "data.key")
    assert failed(run) == ["data"]
    (run / "data.key").unlink()
    lines = verify(read(run), folder=run)
    assert verdict(lines) is Verdict.HOLDS
    assert next(line for line in lines if line.said.startswith("data.key")).holds is None


def test_a_torn_last_line_is_no_hindrance(run: Path) -> None:
    with (run / "journal.jsonl").open("ab") as file:
        file.write(b'{"release": 31, "pri')
    assert failed(run) == []


def test_a_certificate_alone_says_that_nothing_counted(run: Path, tmp_path: Path) -> None:
    (tmp_path / "published").mkdir()
    shutil.copy(run / "certificate.json", tmp_path / "published")
    lines = verify(read(run), folder=tmp_path / "published")
    (journal,) = [line for line in lines if line.name == "journal"]
    assert journal.holds is None and verdict(lines) is Verdict.HOLDS


# ---- the ledger
def test_a_ledger_that_counted_less_contradicts_a_forged_folder(whole: Path, run: Path) -> None:
    assert failed(run, str(whole / "ledger.db")) == []
    url = str(run.parent / "other.db")
    other = create_ledger(url)
    other.add(Terms("people", Total(epsilon=3.0, delta=1e-5)))
    assert failed(run, url) == ["ledger"], "it knows no such reservation"
    for process, name in (
        (NoisySGD(PoissonSampling(0.1), 2.0, STEPS), "fewer steps are counted"),
        (NoisySGD(PoissonSampling(0.1), 3.0, STEPS), "another process"),
    ):
        made = other.reserve("people", process)
        count = STEPS - 1 if process.noise_multiplier == 2.0 else STEPS
        other.spend("people", made.id, count)
        rewritten(run, lambda entry, to=made.id: entry | {"reservation": to})  # type: ignore[misc]
        assert failed(run, url) == ["ledger"], name


def rewritten(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Journal, head and stored state forged together: only the ledger is left to contradict."""
    contents = []
    for line in journal_of(folder):
        entry = json.loads(line.rpartition(b" ")[0])
        contents.append(json.dumps(change(entry) if "reservation" in entry else entry).encode())
    text, mark = chained(contents)
    (folder / "journal.jsonl").write_bytes(text)
    (folder / "journal.head").write_text(f"{mark.lines} {mark.chain}\n")
    restored(folder, lambda state: state.update(journal=list(mark)))


def restored(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The stored state forged, with a name that fits."""
    (old,) = folder.glob("step-*")
    state = json.loads((old / "state.json").read_text())
    change(state)
    raw = json.dumps(state)
    (old / "state.json").write_text(raw)
    name = f"{old.name.rpartition('-')[0]}-{hashlib.sha256(raw.encode()).hexdigest()}"
    old.rename(folder / name)
    (folder / "latest").write_text(name)


def test_a_run_without_a_reservation_is_not_in_the_ledger(whole: Path) -> None:
    assert failed(whole / "alone", str(whole / "ledger.db")) == ["ledger"]


def test_a_ledger_that_cannot_be_read_decides_nothing(whole: Path, tmp_path: Path) -> None:
    code, answer = command("verify", str(whole / "run"), "--ledger", str(tmp_path / "none.db"))
    assert code == 3 and answer["verdict"] == "not decided"


def test_a_ledger_is_held_against_a_folder(whole: Path) -> None:
    with pytest.raises(InvalidInput, match="Give the folder"):
        verify(read(whole / "run"), ledger=str(whole / "ledger.db"))


# ---- resuming
@pytest.mark.parametrize("harm", [a_state_elsewhere, a_state_behind_a_link])
def test_latest_leads_nowhere_else(harm: Callable[[Path], None], run: Path) -> None:
    assert read_snapshot(run) is not None
    harm(run)
    with pytest.raises(InvalidInput, match="damaged"):
        read_snapshot(run)
