"""A search makes as many trials as its law says, draws settings evenly, and adds its noise.

False-alarm rate: at most 1e-6 for each test.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tightrope.convex import Entropy
from tightrope.entropy import open_stream
from tightrope.errors import NotCertified
from tightrope.estimators import PrivateLogisticRegression, PrivateSearch
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import Adjacency
from tightrope.search import PoissonTrials, PrivateSelection, TruncatedNegativeBinomial

FALSE_ALARM = 1e-6
X, Y = np.zeros((40, 1)), np.tile([-1.0, 1.0], 20)
CANDIDATES = [{"regularization": 1.0}, {"regularization": 2.0}, {"regularization": 3.0}]


def _check_counts(seen: Any, law: Callable[[int], float], most: int = 12) -> None:
    """Counts 0, ..., most - 1 and all larger ones together."""
    chances = np.array([law(k) for k in range(most)])
    expected = np.append(chances, 1.0 - chances.sum()) * len(seen)
    found = np.bincount(np.minimum(seen, most), minlength=most + 1)
    assert not found[expected == 0.0].any()
    kept = expected > 0.0
    assert stats.chisquare(found[kept], expected[kept]).pvalue > FALSE_ALARM


@pytest.mark.parametrize(
    "law", [TruncatedNegativeBinomial(0.0, 0.1), TruncatedNegativeBinomial(1.0, 0.3)], ids=repr
)
def test_a_selection_makes_a_secret_number_of_trials(law: TruncatedNegativeBinomial) -> None:
    counts = [_trials_made(law) for _ in range(4000)]
    _check_counts(counts, law.chance)


def test_a_selection_of_poisson_trials_may_make_none() -> None:
    counts = [_trials_made(PoissonTrials(3.0)) for _ in range(4000)]
    _check_counts(counts, stats.poisson(3.0).pmf)


class Drawing:
    """The law alone: what it costs does not depend on what was drawn, and takes long to bound."""

    def __init__(self, law: Any) -> None:
        self.draw = law.draw

    def guarantee(self, trial: Guarantee) -> Guarantee:
        return trial


def _trials_made(law: Any) -> int:
    made: list[float] = []

    def trial() -> tuple[float, int]:
        made.append(float(np.random.default_rng(len(made)).random()))
        return made[-1], len(made)

    try:
        found = PrivateSelection(trial, GaussianGuarantee(0.2), Drawing(law)).run()
    except NotCertified:  # of a search without any trial
        assert not made
        return 0
    assert found.score == max(made) and found.result == 1 + made.index(found.score)
    return len(made)


class Model:
    """Predicts 1 whatever it is given: half of the validation rows are right."""

    classes_ = np.array([-1.0, 1.0])

    def __init__(self, mu: float = 0.0, **params: Any) -> None:
        self.params = params
        self.guarantee_ = GaussianGuarantee(mu, Adjacency.REPLACE_ONE)

    def get_params(self, deep: bool = False) -> dict[str, Any]:
        return {}

    def set_params(self, **params: Any) -> Model:
        return Model(**params)

    def fit(self, features: Any, targets: Any) -> Model:
        return self

    def predict(self, features: Any) -> Any:
        return np.ones(len(features))


def _search(**changes: Any) -> PrivateSearch:
    return PrivateSearch(PrivateLogisticRegression(labels_public=True), CANDIDATES, **changes)


def test_the_score_of_a_trial_has_the_noise_that_its_share_of_the_budget_asks_for() -> None:
    """One row moves the number of right answers by 1, so 1/mu is mu-GDP (A31)."""
    search, mu = _search(), 0.7
    search.delta_ = 1e-5
    held = np.arange(40) % 5 == 0
    right = float(np.sum(Y[held] == 1.0))
    entropy = Entropy()
    trials = [search._trial(Model(), X, Y, held, mu, entropy) for _ in range(2000)]
    noise = (np.array([score for score, _, _ in trials]) * held.sum() - right) * mu
    low, high = stats.chi2.ppf([FALSE_ALARM / 4, 1 - FALSE_ALARM / 4], len(noise))
    assert low < noise @ noise < high
    assert stats.kstest(noise, "norm").pvalue > FALSE_ALARM / 4
    chosen = np.bincount([int(params["regularization"]) for _, params, _ in trials], minlength=4)[
        1:
    ]
    assert stats.chisquare(chosen).pvalue > FALSE_ALARM / 4


def test_a_search_makes_the_number_of_trials_of_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mean of the process, which is what the account reads; the best score is released."""
    made: list[float] = []
    seen, released = [], []

    def trial(*_: Any) -> Any:
        made.append(float(len(made) % 3))
        return made[-1], {}, SimpleNamespace()

    def release(search: Any, process: Any, secret: bool) -> None:
        released.append(process)
        search.guarantee_ = None

    monkeypatch.setattr(PrivateSearch, "_trial", trial)
    monkeypatch.setattr(PrivateSearch, "_release", release)
    monkeypatch.setattr("tightrope.estimators.search.tell", lambda *_: None)
    for _ in range(400):
        made.clear()
        search = _search(epsilon=1.0, delta=1e-5, mean_trials=4.0)
        try:
            search.fit(X, Y)
        except NotCertified:  # of a search without any trial
            assert not made
        else:
            assert search.best_score_ == max(made)
        seen.append(len(made))
    assert {process.mean_trials for process in released} == {4.0}
    _check_counts(seen, stats.poisson(4.0).pmf, most=9)


# --- where all of it is drawn from ----------------------------------------------------------------
@pytest.mark.parametrize("cryptographic", [False, True])
@pytest.mark.parametrize("count", [3, 5000])  # of a request; long ones are expanded in another way
@pytest.mark.parametrize("seed", [None, 7])
def test_words_are_uniform(cryptographic: bool, count: int, seed: int | None) -> None:
    stream = open_stream("law", seed=seed, cryptographic=cryptographic)
    words = np.concatenate([stream.words(count) for _ in range(15_000 // count)])
    bits = np.unpackbits(words.view(np.uint8))
    assert stats.binomtest(int(bits.sum()), bits.size).pvalue > FALSE_ALARM / 3
    octets = np.bincount(words.view(np.uint8), minlength=256)
    assert stats.chisquare(octets).pvalue > FALSE_ALARM / 3
    assert stats.kstest(words * 2.0**-64, "uniform").pvalue > FALSE_ALARM / 3


@pytest.mark.parametrize("cryptographic", [False, True])
@pytest.mark.parametrize("seed", [None, 7])
def test_fractions_are_uniform(cryptographic: bool, seed: int | None) -> None:
    stream = open_stream("law", seed=seed, cryptographic=cryptographic)
    drawn = np.array([stream.uniform() for _ in range(20_000)])
    assert (drawn >= 0.0).all() and (drawn < 1.0).all()
    assert stats.kstest(drawn, "uniform").pvalue > FALSE_ALARM
    assert len(np.unique(drawn)) == len(drawn)  # 53 bits: a repetition has a chance of 3e-8


@pytest.mark.parametrize("cryptographic", [False, True])
def test_noise_coins_and_numbers_of_a_fit_have_their_laws(cryptographic: bool) -> None:
    entropy = Entropy(cryptographic=cryptographic)
    noise = entropy.normal((300, 200)).ravel()
    assert stats.kstest(noise, "norm").pvalue > FALSE_ALARM / 6
    low, high = stats.chi2.ppf([FALSE_ALARM / 12, 1 - FALSE_ALARM / 12], noise.size)
    assert low < noise @ noise < high
    assert stats.pearsonr(noise[:-1], noise[1:]).pvalue > FALSE_ALARM / 6
    assert np.abs(noise).max() > 3.6  # its tails: without them the chance is below 6e-9
    for rate in (0.01, 0.3, 0.9):
        hits = int(entropy.included(50_000, rate).sum())
        assert stats.binomtest(hits, 50_000, rate).pvalue > FALSE_ALARM / 9
    counts = np.bincount([entropy.whole_number(2, 11) for _ in range(10_000)], minlength=12)
    assert not counts[:2].any() and len(counts) == 12
    assert stats.chisquare(counts[2:]).pvalue > FALSE_ALARM / 6
