"""Streams: never equal for two purposes, ranks or requests; the seeded continue and stay so."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tightrope.entropy import open_stream
from tightrope.errors import InvalidInput


@pytest.mark.parametrize("cryptographic", [False, True])
def test_streams_differ_by_purpose_rank_and_seed(cryptographic):
    def first(purpose, seed, rank):
        stream = open_stream(purpose, seed=seed, rank=rank, cryptographic=cryptographic)
        return stream.words(4).tolist()

    seen = [first(p, s, r) for p in ("noise", "sampling") for s in (0, 1) for r in (0, 1)]
    assert len({tuple(words) for words in seen}) == len(seen)
    assert first("noise", 1, 0) == first("noise", 1, 0)


@pytest.mark.parametrize("cryptographic", [False, True])
def test_operating_system_entropy_never_repeats_and_is_private(cryptographic):
    streams = [open_stream("noise", cryptographic=cryptographic) for _ in range(3)]
    assert len({tuple(stream.words(2).tolist()) for stream in streams}) == 3
    assert all(stream.private for stream in streams)
    assert not open_stream("noise", seed=1, cryptographic=cryptographic).private


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("cryptographic", [False, True])
def test_no_two_requests_are_answered_alike(seed, cryptographic):
    stream = open_stream("noise", seed=seed, cryptographic=cryptographic)
    assert len({int(word) for _ in range(50) for word in stream.words(3)}) == 150
    assert len({float(stream.generator().random()) for _ in range(50)}) == 50


@pytest.mark.parametrize("cryptographic", [False, True])
def test_a_stored_seeded_stream_continues_where_it_was(cryptographic):
    stream = open_stream("noise", seed=4, cryptographic=cryptographic)
    stream.words(5)
    stored = json.loads(json.dumps(stream.state()))
    other = open_stream("noise", seed=9, cryptographic=cryptographic)
    other.restore(stored)
    assert np.array_equal(stream.words(7), other.words(7)) and not other.private


def test_nothing_of_a_private_stream_is_stored():
    stream, other = open_stream("noise"), open_stream("noise")
    other.restore(json.loads(json.dumps(stream.state())))
    assert stream.state() == other.state() and other.private
    assert not np.array_equal(stream.words(7), other.words(7))


@pytest.mark.parametrize("cryptographic", [False, True])
def test_a_stream_that_was_seeded_never_becomes_private(cryptographic):
    seeded = open_stream("noise", seed=1, cryptographic=cryptographic)
    private = open_stream("noise", cryptographic=cryptographic)
    stored = private.state()
    private.restore(seeded.state())
    assert not private.private
    seeded.restore(stored)
    assert not seeded.private


def test_a_stream_of_another_kind_is_refused():
    with pytest.raises(InvalidInput, match="kind"):
        open_stream("noise").restore(open_stream("noise", cryptographic=True).state())


@pytest.mark.parametrize("seed", [-1, 0.5, True, "1"])
def test_seeds_are_whole_numbers(seed):
    with pytest.raises(InvalidInput, match="whole number"):
        open_stream("noise", seed=seed)
