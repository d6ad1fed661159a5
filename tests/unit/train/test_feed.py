"""Batches in parts: nothing lost, nothing twice, exactly one last part."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tightrope.train.feed import Ticket, as_rows, fresh, slice_rows, split_ticket
from tightrope.train.fingerprint import fingerprint_of


@given(size=st.integers(0, 200), micro=st.none() | st.integers(1, 250))
def test_parts_cover_the_batch_once_and_in_order(size, micro):
    parts = split_ticket(Ticket(size, True, size, {}), micro)
    slices = [part for part, _ in parts]
    assert slices[0].start == 0 and slices[-1].stop == size
    assert all(a.stop == b.start for a, b in pairwise(slices))
    assert [t.size for _, t in parts] == [s.stop - s.start for s in slices]
    assert [t.last for _, t in parts] == [False] * (len(parts) - 1) + [True]
    assert all(t.size <= (micro or size) for _, t in parts)
    assert size == 0 or all(t.size > 0 for _, t in parts)


def test_a_part_of_a_part_is_last_only_if_its_whole_is():
    assert [t.last for _, t in split_ticket(Ticket(5, False, 5, {}), 2)] == [False] * 3


def test_nested_batches_are_cut_in_every_tensor():
    batch = {"x": torch.arange(6).view(3, 2), "more": [torch.arange(3), "text"]}
    cut = slice_rows(batch, slice(1, 2))
    assert cut["x"].tolist() == [[2, 3]] and cut["more"][0].tolist() == [1]
    assert cut["more"][1] == "text"


@pytest.mark.parametrize(
    "data",
    [torch.arange(8.0), np.arange(8.0), (torch.arange(8.0), np.arange(8))],
    ids=["tensor", "array", "pair"],
)
def test_arrays_are_taken_by_index(data):
    rows = as_rows(data)
    taken = rows.take(np.array([5, 1]))
    first = taken[0] if isinstance(taken, tuple) else taken
    assert rows.length == 8 and first.tolist() == [5.0, 1.0]


def test_fingerprints_notice_one_changed_value_and_nothing_else():
    x = torch.randn(50, 3)
    changed = x.clone()
    changed[17, 1] += 1e-6
    assert fingerprint_of(as_rows(x)) == fingerprint_of(as_rows(x.clone()))
    assert fingerprint_of(as_rows(x)) != fingerprint_of(as_rows(changed))
    assert fingerprint_of(as_rows(x)) != fingerprint_of(as_rows(x.double()))
    assert fingerprint_of(as_rows(x)) != fingerprint_of(as_rows(x[:49]))


class Pictures:
    def __init__(self, shift=0.0):
        self.shift = shift

    def __len__(self):
        return 300

    def __getitem__(self, i):
        return {"x": torch.full((2,), i + self.shift), "name": f"row {i}"}


def test_fingerprints_of_items():
    assert fingerprint_of(as_rows(Pictures())) == fingerprint_of(as_rows(Pictures()))
    assert fingerprint_of(as_rows(Pictures())) != fingerprint_of(as_rows(Pictures(1.0)))


def test_a_fresh_batch_can_be_written_to():
    x, y = torch.ones(3, 2), torch.zeros(3)
    batch = {"x": x, "labels": [y, x]}
    copy = fresh(batch)
    copy["x"].add_(1)
    assert torch.equal(x, torch.ones(3, 2)) and copy["labels"][1] is copy["x"]
    assert torch.equal(copy["labels"][0], y) and copy["labels"][0] is not y
