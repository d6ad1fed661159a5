"""kill -9 at random moments: never an under-count; a seeded run ends as an undisturbed one does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("crash_worker.py")


def storm(folder: Path, kills: int, kind: str) -> dict:
    command = [sys.executable, str(WORKER), str(folder), str(kills), str(kills), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def check(report: dict, kills: int, kind: str) -> None:
    assert report["killed"] == kills and report["failures"] == 0
    assert all(same is (kind == "seeded") for same in report["same"])
    released = 0
    for line in report["log"].splitlines():
        word, *number = line.split()
        if word == "new":
            released = 0
        elif word == "released":
            released = max(released, int(number[0]))
        elif word == "resumed":
            assert int(number[0]) >= released, "fewer releases counted than were made"


@pytest.mark.parametrize("kind", [pytest.param("seeded", marks=pytest.mark.slow), "private"])
def test_a_few_kills(tmp_path, kind):
    check(storm(tmp_path, kills=6, kind=kind), 6, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["seeded", "private"])
def test_two_hundred_kills(tmp_path, kind):
    check(storm(tmp_path, kills=200, kind=kind), 200, kind)
