"""Files that the command is given: endless ones, links, odd contents, and little memory."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer", reason="the command needs typer")

from typer.testing import CliRunner

from tightrope import GaussianMechanism, NoisySGD, PoissonSampling, Target, find_noise
from tightrope.cli.app import app
from tightrope.errors import InvalidInput
from tightrope.evidence import certify, write
from tightrope.evidence.commitment import read_key
from tightrope.process import Adjacency

RUN = ["--rate", "0.1", "--noise", "1", "--steps", "10"]
GIB = 1 << 30


def ended(*words: str, seconds: float = 60.0, memory: int = 0, **more: Any) -> Any:
    """The command as a process of its own, with bounded time and, if asked, bounded memory."""

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    asked = [sys.executable, "-m", "tightrope", *words]
    return subprocess.run(
        asked,
        capture_output=True,
        text=True,
        timeout=seconds,
        preexec_fn=bound if memory else None,
        check=False,
        **more,
    )


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A pipe that nothing is ever written to."""
    os.mkfifo(tmp_path / "pipe.json")
    return tmp_path / "pipe.json"


# ---- files without an end
@pytest.mark.parametrize(
    "words",
    [
        ["account", "--from", "{}"],
        ["compose", "{}"],
        ["compare", "{}"],
        ["certify", "--from", "{}"],
        ["account", "--batch", "{}"],
        ["audit", "{}"],
        ["verify", "{}"],
        ["report", "{}"],
        ["certify", *RUN, "--title", "{}"],
        ["ledger", "reserve", "x", "--from", "{}"],
        ["table", "describe", "{}", "--target", "y", "--classes", "0,1"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_file_without_an_end_is_refused(words: list[str], pipe: Path, tmp_path: Path) -> None:
    """A pipe here, /dev/zero for every second command: both are met by one function."""
    path = str(pipe) if len(words) % 2 else "/dev/zero"
    done = ended(*(word.format(path) for word in words), memory=6 * GIB, cwd=tmp_path)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "not an ordinary file" in " ".join(done.stderr.split())


def test_a_certificate_to_settle_with_has_an_end(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    at = ["--ledger", str(tmp_path / "ledger.db")]
    for words in (["init"], ["add", "people", "--mu", "1"]):
        assert CliRunner().invoke(app, ["ledger", *words, *at]).exit_code == 0
    settle = ["ledger", "settle", "people", "x", "--certificate", "/dev/zero", *at]
    with pytest.raises(InvalidInput, match="not an ordinary file"):
        CliRunner().invoke(app, settle, catch_exceptions=False)


@pytest.mark.parametrize("port", ["0", "99999", "-1"])
@pytest.mark.parametrize("page", [["ledger", "serve"], ["explore"]])
def test_a_port_that_there_cannot_be_is_refused_in_words(page: list[str], port: str) -> None:
    told = CliRunner().invoke(app, [*page, "--port", port])
    assert told.exit_code == 2 and isinstance(told.exception, SystemExit), told.exception


def test_a_key_has_an_end(pipe: Path) -> None:
    for path in ("/dev/zero", pipe):
        with pytest.raises(InvalidInput, match="not a readable key"):
            read_key(path)


def test_a_line_of_a_batch_has_an_end() -> None:
    with open("/dev/zero", "rb") as zeros:
        done = ended("account", "--batch", "-", stdin=zeros, memory=6 * GIB)
    assert done.returncode == 2 and "longer than" in done.stderr, done.stderr


# ---- links
def test_a_certificate_of_several_is_written_over_nothing(tmp_path: Path) -> None:
    path = write(certify(GaussianMechanism(2.0)), tmp_path / "c.json")
    before = path.read_bytes()
    words = ["compose", str(path), str(path), "--out", str(path)]
    with pytest.raises(InvalidInput, match="--force"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert path.read_bytes() == before
    done = CliRunner().invoke(app, [*words, "--force"], catch_exceptions=False)
    assert done.exit_code == 0 and path.read_bytes() != before


def test_a_picture_is_not_drawn_through_a_link(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    target, link = tmp_path / "precious", tmp_path / "p.png"
    target.write_text("precious")
    link.symlink_to(target)
    done = CliRunner().invoke(app, ["account", *RUN, "--plot", str(link)], catch_exceptions=False)
    assert done.exit_code == 0 and target.read_text() == "precious"
    assert link.read_bytes().startswith(b"\x89PNG") and not link.is_symlink()


@pytest.mark.parametrize("command", [["certify", *RUN], ["report", "{}"]])
def test_a_link_that_leads_nowhere_is_there_all_the_same(
    command: list[str], tmp_path: Path
) -> None:
    path = write(certify(GaussianMechanism(2.0)), tmp_path / "c.json")
    link = tmp_path / "link.html"
    link.symlink_to(tmp_path / "elsewhere")
    words = [*(word.format(path) for word in command), "--out", str(link)]
    with pytest.raises(InvalidInput, match="--force"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    assert not (tmp_path / "elsewhere").exists()


# ---- odd contents
ODD = [
    {"schema": [1]},
    {"schema": {}},
    {"schema": None},
    {"type": ["NoisySGD"]},
    {"type": {"a": 1}},
    {"history": 3, "mechanism": []},
    {"history": [[1]], "mechanism": "rdp"},
    {"class_name": ["x"]},
    {"num_epochs": []},
    {"noise": [], "rate": {}, "steps": None},
    {"noise": 1, "rate": 0.1, "steps": 3, "sampling": [1]},
    {"dp_event": 3},
    {"iterations": "x"},
    [[1]],
    [{"noise": [1]}],
    [],
    3,
    "x",
    None,
]


@pytest.mark.parametrize("content", ODD, ids=lambda content: json.dumps(content)[:40])
def test_an_odd_file_is_refused_in_words(content: Any, tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text(json.dumps(content))
    for words in (["account", "--from", str(path)], ["compose", str(path)]):
        with pytest.raises(InvalidInput):
            CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("f.json", '{"noise": 9, "rate": 0.1, "steps": 3, "delta": 1e-5, "noise": 1}'),
        ("f.json", '{"type": "GaussianMechanism", "noise_multiplier": 9, "noise_multiplier": 1}'),
        ("f.csv", "rate,noise,steps,noise\n0.1,1,3,9\n"),
    ],
)
def test_a_number_that_is_given_twice_is_refused(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    for words in (["account", "--from", str(tmp_path / name)], ["compose", str(tmp_path / name)]):
        with pytest.raises(InvalidInput, match="comes twice"):
            CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.mark.parametrize(
    ("rate", "steps", "epsilon", "delta", "adjacency"),
    [
        (1e-300, 2, 52.0, 1e-15, Adjacency.REPLACE_ONE),
        (1e-300, 66198, 0.58, 1e-5, Adjacency.ADD_OR_REMOVE),
    ],
)
def test_a_rate_at_the_edge_has_a_noise(
    rate: float, steps: int, epsilon: float, delta: float, adjacency: Adjacency
) -> None:
    run = NoisySGD(PoissonSampling(rate), 1.0, steps, adjacency)
    target = Target.approx_dp(epsilon, delta)
    found = find_noise(run, target)
    assert target.met_by(found.account().guarantee(delta))


# ---- little memory
def test_verify_works_below_a_limit_that_the_system_sets(tmp_path: Path) -> None:
    path = write(certify(NoisySGD(PoissonSampling(0.01), 1.0, 100)), tmp_path / "c.json")
    done = ended("verify", str(path), memory=6 * GIB)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    out = str(tmp_path / "page.html")
    assert ended("report", str(path), "--out", out, memory=6 * GIB).returncode == 0


# ---- stored programs
def test_a_stored_program_has_an_end(pipe: Path) -> None:
    pytest.importorskip("torch")
    from tightrope.train.program.text import load

    for path in ("/dev/zero", pipe):
        with pytest.raises(InvalidInput, match="not an ordinary file"):
            load(path)
