"""Strategies: C times C^-1 is I, streaming is the matrix, and a stored stream goes on."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tightrope.correlated import (
    BandedToeplitz,
    BufferedToeplitz,
    InverseToeplitz,
    SquareRoot,
    Strategy,
    Stream,
    ToeplitzStrategy,
    Triangular,
    Workload,
    banded_inverse_square_root,
    noise_left,
    previous_step,
    square_root,
    taps,
    white,
)
from tightrope.correlated.streaming import multiply
from tightrope.errors import InvalidInput
from tightrope.process.codec import from_json, to_json

STEPS = 23
_RNG = np.random.default_rng(5)


def triangular(bands: int) -> Triangular:
    sizes = [min(bands, STEPS - j) - 1 for j in range(STEPS)]
    return Triangular(
        tuple((1.5 + 0.1 * j, *(0.3 * _RNG.normal(size=s))) for j, s in enumerate(sizes))
    )


STRATEGIES = [
    white(),
    SquareRoot(),
    square_root(1),
    square_root(5),
    square_root(99),
    BandedToeplitz((2.0,)),
    BandedToeplitz((2.0, 0.5, 0.3)),
    InverseToeplitz((0.5,)),
    banded_inverse_square_root(4),
    banded_inverse_square_root(40),
    previous_step(0.9),
    BufferedToeplitz((0.3,), (0.0,)),
    BufferedToeplitz((0.3, 0.2), (0.9, 0.5)),
    triangular(1),
    triangular(3),
    triangular(STEPS),
]
EVERY = pytest.mark.parametrize("strategy", STRATEGIES, ids=str)


@EVERY
def test_the_two_faces_are_inverse_to_each_other(strategy: Strategy) -> None:
    product = strategy.matrix(STEPS) @ strategy.inverse(STEPS)
    assert np.allclose(product, np.eye(STEPS), atol=1e-12)
    bands = STEPS if strategy.bands is None else strategy.bands
    assert not np.tril(strategy.matrix(STEPS), -bands).any()


@EVERY
def test_streaming_is_the_matrix(strategy: Strategy) -> None:
    draws = np.random.default_rng(0).normal(size=(STEPS, 3, 2))
    whole = np.einsum("ij,jab->iab", strategy.inverse(STEPS), draws)
    assert np.allclose(multiply(strategy, draws), whole, atol=1e-12)


@EVERY
def test_a_stored_stream_goes_on_in_torch_too(strategy: Strategy) -> None:
    torch = pytest.importorskip("torch", reason="arrays of torch")
    draws = torch.randn((STEPS, 4), generator=torch.Generator().manual_seed(1))
    straight = Stream(strategy, STEPS)
    wanted = torch.stack([straight.next(draw) for draw in draws])
    assert wanted.dtype == torch.float32
    whole = strategy.inverse(STEPS) @ draws.double().numpy()
    assert np.allclose(wanted.numpy(), whole, atol=1e-4)
    parts = []
    stream = Stream(strategy, STEPS)
    for step, draw in enumerate(draws):
        if step in (0, 1, 9):
            stored = stream.state()
            stream.next(draw)  # what happens after it was stored is forgotten
            stream = Stream(strategy, STEPS)
            stream.restore(stored)
        parts.append(stream.next(draw))
    assert torch.equal(torch.stack(parts), wanted)
    assert stream.buffers == strategy.buffers(STEPS)


@EVERY
def test_lost_noise_is_left_out_and_no_record_moves_further(strategy: Strategy) -> None:
    stream, draws = Stream(strategy, STEPS), np.random.default_rng(2).normal(size=(STEPS, 4))
    lost = [3, 4, 9]
    if not strategy.non_negative(STEPS):
        with pytest.raises(InvalidInput, match="negative entries"):
            stream.skip(2)
        return
    noise = np.zeros((STEPS, 4))
    for step, draw in enumerate(draws):
        if step in lost:
            stream.skip(1)
        else:
            noise[step] = stream.next(draw)
    whole = strategy.matrix(STEPS)
    matrix = whole.copy()
    for step in lost:
        matrix[step + 1 :, step] = 0.0
    kept = [step for step in range(STEPS) if step not in lost]
    assert np.allclose((matrix @ noise)[kept], draws[kept], atol=1e-10)
    assert (matrix.T @ matrix <= whole.T @ whole + 1e-12).all()


@EVERY
def test_a_change_of_unit_or_precision_changes_nothing_else(strategy: Strategy) -> None:
    draws = np.random.default_rng(3).normal(size=(STEPS, 4))
    stream, rows = Stream(strategy, STEPS), []
    for step, draw in enumerate(draws):
        if step == 5:
            stream.rescale(4.0)
        given = draw.astype(np.float32) if step < 8 else draw
        scale = 4.0 if step >= 5 else 1.0
        rows.append(stream.next(stream.widened(scale * given)) / scale)
    assert np.allclose(rows, multiply(strategy, draws), atol=1e-4)
    assert rows[-1].dtype == np.float64


@EVERY
def test_files_hold_strategies(strategy: Strategy) -> None:
    again = from_json(json.loads(json.dumps(to_json(strategy))))
    assert again == strategy
    assert again.digest == strategy.digest


def test_a_strategy_of_ones_own_is_refused() -> None:
    class Own(ToeplitzStrategy):  # which could run another C than it accounts for
        def column(self, steps: int) -> np.ndarray:
            return np.ones(steps)

        def __str__(self) -> str:
            return "own"

    with pytest.raises(InvalidInput, match=r"one of tightrope\.correlated"):
        Stream(Own(), 3)


def test_names_differ() -> None:
    assert len({strategy.digest for strategy in STRATEGIES}) == len(set(STRATEGIES))


def test_taps_say_which_draws_a_step_needs() -> None:
    strategy = banded_inverse_square_root(3)
    assert taps(strategy, 0) == (1.0,)
    assert taps(strategy, 10) == (1.0, -0.5, -0.125)
    assert taps(white(), 3) == (1.0,)
    assert taps(square_root(3), 3) is None


def test_noise_left_is_the_workload_times_the_inverse() -> None:
    workload = Workload(0.9, tuple(np.linspace(1.0, 0.1, STEPS)))
    matrix = np.zeros((STEPS, STEPS))
    for i in range(STEPS):
        for j in range(i + 1):
            matrix[i, j] = sum(workload.rates[t] * 0.9 ** (t - j) for t in range(j, i + 1))
    for strategy in STRATEGIES:
        wanted = np.linalg.norm(matrix @ strategy.inverse(STEPS), axis=1)
        assert np.allclose(noise_left(strategy, STEPS, workload), wanted, rtol=1e-10)
        plain = np.linalg.norm(np.tri(STEPS) @ strategy.inverse(STEPS), axis=1)
        assert np.allclose(noise_left(strategy, STEPS), plain, rtol=1e-10)
        slow = np.linalg.norm(Workload(0.5).times(strategy.inverse(STEPS)), axis=1)
        assert np.allclose(noise_left(strategy, STEPS, Workload(0.5)), slow, rtol=1e-10)


def test_more_steps_than_planned_and_other_strategies_are_refused() -> None:
    stream = Stream(square_root(2), 2)
    for _ in range(2):
        stream.next(np.zeros(3))
    with pytest.raises(InvalidInput, match="planned for 2 steps"):
        stream.next(np.zeros(3))
    with pytest.raises(InvalidInput, match="another strategy or plan"):
        Stream(square_root(3), 2).restore(stream.state())
    with pytest.raises(InvalidInput, match="another strategy or plan"):
        Stream(square_root(2), 3).restore(stream.state())
    with pytest.raises(InvalidInput, match="written whole"):
        Stream(square_root(2), 2).restore(stream.state() | {"kept": None})
    other = Stream(square_root(2), 2)
    other.next(np.zeros(3))
    with pytest.raises(InvalidInput, match="its own stream"):
        other.next(np.zeros(4))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BandedToeplitz((0.0, 1.0)), "begins with a positive one"),
        (lambda: BandedToeplitz((1.0, float("nan"))), "finite number"),
        (lambda: InverseToeplitz(()), "empty"),
        (lambda: BufferedToeplitz((1.0,), (1.5,)), r"\[0, 1\]"),
        (lambda: BufferedToeplitz((1.0, 0.1), (0.5,)), "one scale and one decay"),
        (lambda: square_root(0), "whole number from 1"),
        (lambda: previous_step(1.5), r"\[0, 1\]"),
        (lambda: Triangular(((1.0,), (1.0, 2.0))), "from the diagonal"),
        (lambda: Triangular(((1.0,),) * 5000), "carried in a certificate"),
        (lambda: Workload(1.0), "never forgets"),
        (lambda: noise_left(white(), 5, Workload(rates=(1.0, 0.5))), "One rate for each|one rate"),
        (lambda: SquareRoot().matrix(100_000), "whole matrix"),
    ],
)
def test_what_is_no_strategy_is_refused(make, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInput, match=words):
        make()
