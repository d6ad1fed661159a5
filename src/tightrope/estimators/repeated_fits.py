"""A ledger of the private fits of this process: fits on the same people add up.

scikit-learn's meta-estimators clone an estimator and fit the clones, so no single fit can know of
the others. The ledger does: it keeps keys of rows (see `row_keys`; features only, since labels are
recoded for one class against the rest) and the guarantee of each fit. Of a large fit only the rows
with the smallest keys are kept, the same ones in every fit, so overlapping parts of the data are
recognised and memory stays small. Rows that scikit-learn changed before the fit are known by what
they were (see `watch`); rows that the user changed by hand are not recognised.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import scipy.sparse as sp

from tightrope.convex.exact import Features
from tightrope.convex.row_keys import Keys, row_keys
from tightrope.errors import TightropeError
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.compose import compose
from tightrope.numerics.rounding import rounded_up
from tightrope.process import Adjacency
from tightrope.validate import warn

_KEPT_ROWS, _KEPT_FITS, _COLUMNS = 4096, 512, 128  # 16 MB at most


class FitsAddUp(UserWarning):
    """Several private fits of this process used the same people."""


@final
@dataclass(frozen=True)
class _Fit:
    keys: Keys  # the smallest ones
    guarantee: Guarantee
    epsilon: float


@final
class FitLedger:
    """What was fitted on whom."""

    def __init__(self) -> None:
        self._fits: deque[_Fit] = deque(maxlen=_KEPT_FITS)
        self._quiet = threading.local()
        self._lock = threading.Lock()

    @property
    def quiet(self) -> bool:
        """Are the fits of this thread accounted for together?"""
        return getattr(self._quiet, "on", False)

    @contextmanager
    def accounted_together(self) -> Iterator[None]:
        """Fits inside are accounted for as one by whoever calls this."""
        before = self.quiet
        self._quiet.on = True
        try:
            yield
        finally:
            self._quiet.on = before

    def enter(self, features: Features, guarantee: Guarantee, delta: float) -> None:
        """Count one fit; warn where its people were in others before."""
        if self.quiet:
            return
        keys = np.unique(row_keys(_some_columns(features)))[:_KEPT_ROWS]
        new = _Fit(keys, guarantee, guarantee.epsilon(delta).upper)
        with self._lock:  # fits may run in threads
            together = self._worst(new)
            self._fits.append(new)
        fits = len(together)  # at 2, 3, 4, 6, 8, 12, ...: long loops must not flood the screen
        power = 1 << (fits.bit_length() - 1)
        if fits > 1 and fits in (power, power + power // 2):
            _warn(together, delta)

    def _worst(self, new: _Fit) -> list[Guarantee]:
        """The guarantees of all fits of the person that they cost most, the new one too."""
        spent = np.zeros(len(new.keys))
        inside = []
        for old in self._fits:
            found = np.isin(new.keys, old.keys)
            if found.any():
                spent += found * min(old.epsilon, 1e9)
                inside.append((old.guarantee, found))
        if not inside:
            return [new.guarantee]
        person = int(spent.argmax())
        return [guarantee for guarantee, found in inside if found[person]] + [new.guarantee]


def _some_columns(features: Any) -> Any:
    """At most 128 of the columns, the same ones for each width: enough to know a row."""
    width = features.shape[1]
    if width <= _COLUMNS:
        return features
    features = features.tocsc() if sp.issparse(features) else features
    return features[:, np.random.default_rng(width).choice(width, _COLUMNS, replace=False)]


def _warn(together: list[Guarantee], delta: float) -> None:
    found = (together[-1].epsilon(delta).upper, _composed(together, delta))
    one, whole = (rounded_up(e, 3) if math.isfinite(e) else "infinity" for e in found)
    warn(
        f"Some of these rows were in {len(together)} private fits of this process (equal rows "
        f"count as one person). Each fit speaks for itself: this one spends epsilon {one}, all of "
        f"them together spend {whole} at delta {delta:.3g} for a person who is in all, if every "
        "model (or anything computed from it, scores included) is seen. Cross-validation, "
        "searches, one against the rest, bagging, calibration, loops and partial_fit on the same "
        "rows all do this. Give each fit its share of the budget (epsilon divided by the number "
        "of fits is safe), tune with PrivateSearch, use the estimators' own multiclass fit, or "
        "give different people to each fit.",
        FitsAddUp,
    )


def _composed(together: list[Guarantee], delta: float) -> float:
    """Of all of them; where relations differ, for replace-one neighbours."""
    if len({guarantee.adjacency for guarantee in together}) > 1:
        together = [
            one if one.adjacency is Adjacency.REPLACE_ONE else one.as_replace_one()
            for one in together
        ]
    try:
        return compose(together).epsilon(delta).upper
    except TightropeError:  # kinds that have no common law: epsilons and deltas add up
        return math.fsum(guarantee.epsilon(delta / len(together)).upper for guarantee in together)


LEDGER = FitLedger()
