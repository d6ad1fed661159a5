"""kill -9 at random moments: never an under-count, and the weights of an undisturbed run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("crash_worker.py")


def storm(folder: Path, kills: int, seed: int) -> dict:
    command = [sys.executable, str(WORKER), str(folder), str(kills), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def check(report: dict, kills: int) -> None:
    assert report["killed"] == kills and report["failures"] == 0
    assert all(report["same"])
    released = 0
    for line in report["log"].splitlines():
        word, *number = line.split()
        if word == "new":
            released = 0
        elif word == "released":
            released = max(released, int(number[0]))
        elif word == "resumed":
            assert int(number[0]) >= released, "fewer releases counted than were made"


def test_a_few_kills(tmp_path):
    check(storm(tmp_path, kills=6, seed=1), 6)


@pytest.mark.slow
def test_fifty_kills(tmp_path):
    check(storm(tmp_path, kills=50, seed=2), 50)
