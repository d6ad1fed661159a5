"""What one record can move: golden numbers, and no less than every pattern and every sign."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tightrope.correlated import (
    BandedToeplitz,
    BufferedToeplitz,
    InverseToeplitz,
    SquareRoot,
    Strategy,
    Triangular,
    banded_inverse_square_root,
    noise_left,
    previous_step,
    square_root,
    white,
)
from tightrope.correlated.sensitivity import (
    Cycle,
    OnceAnEpoch,
    Pattern,
    Separated,
    column_norms,
    sensitivity,
)
from tightrope.correlated.workloads import root_mean_square
from tightrope.errors import InvalidInput, NotCertified

FILE = Path(__file__).parents[2] / "golden" / "correlated.json"
GOLDEN = [
    case
    for case in json.loads(FILE.read_text())
    if case["name"] in {"prefix_sum_multi_participation", "prefix_sum_single_participation"}
]


def named(strategy: str, size: str) -> Strategy:
    if strategy == "previous step":
        return previous_step(float(size))
    if strategy == "inverse square root":
        return banded_inverse_square_root(int(size))
    return white() if strategy == "white" else square_root(int(size))


@pytest.mark.parametrize(
    "case", GOLDEN, ids=lambda case: " ".join(map(str, case["inputs"].values()))
)
def test_golden_sensitivities_and_errors(case) -> None:  # type: ignore[no-untyped-def]
    given, wanted = case["inputs"], {k: float(v) for k, v in case["outputs"].items()}
    strategy = named(given["strategy"], given["size"])
    found = sensitivity(strategy, Separated(given["count"], given["gap"]), given["steps"])
    assert found.upper == pytest.approx(wanted["sensitivity"], rel=1e-11)
    assert found.relative_width < 1e-9
    left = noise_left(strategy, given["steps"])
    assert found.upper * root_mean_square(left) == pytest.approx(wanted["mean_error"], rel=1e-9)
    assert found.upper * max(left) == pytest.approx(wanted["max_error"], rel=1e-9)


def allowed(pattern: Pattern, steps: int) -> Iterator[list[int]]:
    """Every set of steps that a pattern allows, by its own words."""
    for coins in itertools.product([False, True], repeat=steps):
        at = [i for i, coin in enumerate(coins) if coin]
        if isinstance(pattern, Separated):
            apart = all(b - a >= pattern.gap for a, b in itertools.pairwise(at))
            fits = apart and len(at) <= pattern.count
        elif isinstance(pattern, OnceAnEpoch):
            fits = len({i // pattern.length for i in at}) == len(at)
        else:
            fits = len({i % pattern.period for i in at}) <= 1
        if fits:
            yield at


def largest_move(matrix: np.ndarray, pattern: Pattern) -> float:
    moved = 0.0
    for at in allowed(pattern, len(matrix)):
        for signs in itertools.product([1.0, -1.0], repeat=max(len(at) - 1, 0)):
            if at:
                moved = max(moved, float(np.linalg.norm(matrix[:, at] @ np.array([1.0, *signs]))))
    return moved


def some_strategies(seed: int) -> list[Strategy]:
    rng = np.random.default_rng(seed)
    rows = 7
    columns = tuple((1.0, *rng.normal(size=rows - 1 - j)) for j in range(rows))
    return [
        square_root(int(rng.integers(1, 8))),
        BandedToeplitz((1.0, *rng.normal(size=3) * 0.6)),
        BandedToeplitz((1.0, 0.3, 0.9)),
        InverseToeplitz((1.0, *rng.normal(size=2) * 0.4)),
        BufferedToeplitz((0.3, 0.2), (0.9, 0.5)),
        Triangular(columns),
        Triangular(tuple(tuple(abs(x) for x in column[:2]) for column in columns)),
    ]


PATTERNS = [Separated(2, 3), Separated(3, 2), Separated(4, 1), Separated(1, 7), Separated(9, 2)]
PATTERNS += [Cycle(1), Cycle(3), OnceAnEpoch(1), OnceAnEpoch(3), OnceAnEpoch(4)]


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_pattern_moves_more_than_the_sensitivity(pattern: Pattern, seed: int) -> None:
    for strategy in some_strategies(seed):
        for steps in (1, 4, 7):
            truth = largest_move(strategy.matrix(steps), pattern)
            found = sensitivity(strategy, pattern, steps)
            assert found.lower <= truth * (1 + 1e-12), strategy
            assert truth <= found.upper * (1 + 1e-12), strategy


def test_it_is_exact_where_columns_do_not_meet() -> None:
    for seed in (0, 1, 2):
        strategy = some_strategies(seed)[6]
        found = sensitivity(strategy, Separated(2, 3), 7)
        assert found.relative_width < 1e-9
        truth = largest_move(strategy.matrix(7), Separated(2, 3))
        assert found.lower <= truth * (1 + 1e-12) <= found.upper * (1 + 2e-12)


def test_fixed_cycles_are_exact_for_entries_that_are_not_negative() -> None:
    strategy = BandedToeplitz((1.0, 0.3, 0.9, 0.1))  # rises once
    found = sensitivity(strategy, Cycle(2), 7)
    assert found.relative_width < 1e-9
    assert found.upper == pytest.approx(largest_move(strategy.matrix(7), Cycle(2)), rel=1e-12)


def test_lengths_of_columns_are_those_of_the_matrix() -> None:
    for strategy in some_strategies(3):
        lengths = np.linalg.norm(strategy.matrix(7), axis=0)
        found = column_norms(strategy, 7)
        assert np.all(found >= lengths)
        assert found == pytest.approx(lengths, rel=1e-11)


def test_what_is_not_known_is_not_answered() -> None:
    with pytest.raises(NotCertified, match="fixed cycle, or plan fewer"):
        sensitivity(SquareRoot(), OnceAnEpoch(100), 100_000)


@pytest.mark.parametrize(
    ("strategy", "steps", "words"),
    [
        (BandedToeplitz((1.0, 1.2)), 200, "singular or badly scaled"),
        (InverseToeplitz((1.0, -1.5)), 100, "singular or badly scaled"),
        (BandedToeplitz((1e-9, 1.0)), 3, "singular or badly scaled"),
        (InverseToeplitz((1.0, 1e300)), 5, "singular or badly scaled"),
        (Triangular(((1.0,), (1.0,))), 3, "at most 2 steps"),
        ("square root", 3, "one of tightrope.correlated"),
    ],
    ids=str,
)
def test_what_cannot_be_run_is_refused(strategy, steps: int, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInput, match=words):
        sensitivity(strategy, Separated(1, steps), steps)
