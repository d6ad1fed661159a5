"""Whose influence is bounded, and by which norm: users, and clips that change under way."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from tightrope.errors import InvalidInput
from tightrope.evidence.verify_run import run_checks
from tightrope.ledger.terms import Terms, Total
from tightrope.process import NoisySGD, PoissonSampling, StoppedAtWill
from tightrope.process.codec import to_json
from tightrope.train import (
    AdaptiveClip,
    Budget,
    FlatClip,
    PoissonSampler,
    UserData,
    Users,
    first_rows,
)
from tightrope.train.clip import Clip


class Narrowing(Clip):
    """States another bound once the first part of a batch was clipped."""

    def __init__(self):
        self.bound = 10.0

    @property
    def sensitivity(self):
        return self.bound

    def factors(self, squared_norms):
        found = FlatClip(self.bound).factors(squared_norms)
        self.bound = 0.001
        return found


def test_a_clip_that_changes_between_the_parts_of_a_batch_is_refused(small_run, take_steps):
    """The first parts were clipped to 10, and the noise was scaled to 0.001."""
    run = small_run(sampler=PoissonSampler(1.0), micro_batch=20)
    run.clip = Narrowing()
    with pytest.raises(InvalidInput, match="middle of a step"):
        take_steps(run, 1)
    assert run.steps == run.ledger.released == 0
    for clip in (FlatClip(0.001), FlatClip(2.0)):  # between steps it may change
        run.clip = clip
        take_steps(run, 1)
    assert run.steps == 2


def test_an_adaptive_clip_follows_one_run(small_run):
    """Two runs had one norm: the steps of one moved it between the parts of the other's batch."""
    clip = AdaptiveClip(1.0)
    small_run(clip=clip)
    for again in (clip, copy.deepcopy(clip)):
        with pytest.raises(InvalidInput, match="follows another run"):
            small_run(clip=again)


def test_users_of_a_run_stopped_at_will_are_refused_in_the_same_words(small_run, small_data):
    """It was an analysis that was missing, said of a process of twenty lines."""
    people, users = UserData(small_data, np.repeat(np.arange(15), 4)), Users(4)
    first = small_run(records=people, sampler=PoissonSampler(0.2, users=users), steps=None)
    first.take_step()
    with pytest.raises(InvalidInput, match="stopped at will"):
        small_run(
            records=people,
            sampler=PoissonSampler(0.2, users=users),
            history=first.record(),
            budget=Budget(9.0, 1e-5),
        )


@pytest.mark.parametrize("together", [True, False])
def test_certificates_of_users_verify_though_the_run_had_no_plan(small_run, small_data, together):
    """Every one of them failed: "the process is not stopped", said of the users around it."""
    people = UserData(small_data, np.repeat(np.arange(30), 2))
    run = small_run(
        records=people, sampler=PoissonSampler(0.2, users=Users(2, together)), steps=None
    )
    run.take_step()
    for length, wrong in (("at will", []), ("asked", ["length"]), ("planned", ["length"])):
        facts = run.record().facts(length=length).as_dict()
        lines = run_checks({"run": facts, "process": to_json(run.process)}, run.process, 1e-3, "")
        assert [line.name for line in lines if line.holds is False] == wrong, length


@pytest.mark.parametrize("records", [1, 2])
def test_a_ledger_reserves_no_run_that_is_stopped_at_will(records):
    """It was refused for records, and taken where users have several of them."""
    terms = Terms("people", Total(epsilon=8.0, delta=1e-5), records=records)
    run = StoppedAtWill(NoisySGD(PoissonSampling(0.1), 1.0, 5))
    with pytest.raises(InvalidInput, match="longest run that may happen"):
        terms.check_process(run.group(records))


def test_names_of_users_as_tables_keep_them():
    """Texts in an array of objects were refused, as being neither numbers nor texts."""
    texts = np.array(["b", "a", "b"], dtype=object)
    assert UserData(torch.zeros(3), texts).most == 2
    assert first_rows(texts, 1).tolist() == [True, True, False]


@pytest.mark.parametrize(
    "names",
    [
        [1, 1.0, True],
        [float("nan"), float("nan"), 1.0],
        [True, False, True],
        np.array([1, "1", 2], dtype=object),
        [None, "a", "a"],
        [2**63, -1, 1],
    ],
)
def test_names_that_may_be_one_or_two_are_refused(names):
    """`first_rows` took some of them that `UserData` refuses, or failed in NumPy's words."""
    for use in (lambda: UserData(torch.zeros(3), names), lambda: first_rows(names, 1)):
        with pytest.raises(InvalidInput, match="whole numbers or texts"):
            use()


def test_a_stored_run_of_records_does_not_go_on_as_one_of_users(small_run, small_data, tmp_path):
    """Rows drawn one by one were stored; resumed, they were stated as users drawn as a whole."""
    named = {"fingerprint": "people, 2026", "folder": tmp_path}
    first = small_run(**named)
    first.take_step()
    first.close()
    people = UserData(small_data, np.arange(60) // 30)
    with pytest.raises(InvalidInput, match=r"users: stored None, now 'Users\(most=30"):
        small_run(records=people, sampler=PoissonSampler(0.2, users=Users(30)), **named)
