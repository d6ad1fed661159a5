"""Models that are measured side by side: one at a time, and whatever becomes of the others."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # the processes need it too
from training_tables import wide_tables
from training_turns import side_by_side

LONG = 600.0


def result(**more):
    return {"failures": {}, "seconds": {}, "times": {"plain": {"ms": 2.0}}, **more}


def ready(name, options, turns):
    turns.mine()
    turns.tell(result())
    turns.tell(result(clip={"float32": 0.5}))  # the last word counts


def crashing(name, options, turns):
    raise ValueError("this one cannot be made")


def crashing_in_its_turn(name, options, turns):
    turns.mine()
    raise ValueError("this one cannot be measured")


def waiting(name, options, turns):
    time.sleep(LONG)


def compiling(name, options, turns):
    """Until its neighbour was measured."""
    place, count = Path(options.folder), 0
    while not (place / "measured").exists():
        count += 1
        (place / "count.new").write_text(str(count))
        (place / "count.new").replace(place / "count")
    turns.mine()
    turns.tell(result())


def looking(name, options, turns):
    """What the neighbour does meanwhile."""
    count = Path(options.folder) / "count"
    while not count.exists():
        time.sleep(0.01)
    turns.mine()
    time.sleep(0.1)
    before = count.read_text()
    time.sleep(0.5)
    count.with_name("measured").touch()
    turns.tell(result(seen=[before, count.read_text()]))


def without_room(name, options, turns):
    """Asks again until nobody is left."""
    asked = 1
    while not turns.mine():
        asked += 1
    turns.tell(result(asked=asked))


def go(tmp_path, *workers, minutes=2.0):
    shown = []
    options = argparse.Namespace(folder=str(tmp_path), workers={w.__name__: w for w in workers})
    names = list(options.workers)
    results = side_by_side(begin, names, options, minutes, lambda name, _: shown.append(name))
    assert list(results) == names
    return results, shown


def begin(name, options, turns):
    options.workers[name](name, options, turns)


def test_whoever_fails_says_so_and_the_others_are_measured(tmp_path):
    results, shown = go(tmp_path, crashing, crashing_in_its_turn, ready)
    assert shown == ["ready"] and results["ready"]["clip"] == {"float32": 0.5}
    for name in ("crashing", "crashing_in_its_turn"):
        assert results[name]["failures"] == {"all": "its process ended with exit code 1"}
    told = wide_tables(results, "cpu")
    assert "| ready | 2.00 |" in told and "clip norm: 0.500000" in told
    assert "crashing, all: its process ended" in told


def test_nobody_computes_while_another_is_measured(tmp_path):
    results, shown = go(tmp_path, compiling, looking)
    assert shown == ["looking", "compiling"], "the other one goes on"
    before, after = results["looking"]["seen"]
    assert before == after


def test_who_finds_no_room_is_measured_when_others_have_ended(tmp_path):
    results, _ = go(tmp_path, without_room, ready)
    assert results["ready"]["times"] and results["without_room"]["asked"] in (1, 2, 3)


def test_after_so_many_minutes_it_says_what_is_missing(tmp_path):
    results, shown = go(tmp_path, waiting, minutes=0.02)
    assert not shown
    assert results["waiting"]["failures"] == {"all": "not measured after 0.02 minutes"}
