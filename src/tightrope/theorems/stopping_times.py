"""Runs that are stopped at will."""

from __future__ import annotations

import bisect
import math
from dataclasses import replace
from functools import cache
from typing import final

from tightrope.errors import InvalidInput
from tightrope.guarantee.base import Validity
from tightrope.process import Process, Sequence, StoppedAtWill, UserLevel
from tightrope.process.composite import steps_of, with_steps
from tightrope.theorems.base import Source


@final
class StoppingTimes:
    """An epsilon that holds whenever a run is stopped, also by looking at what it released.

    Statement: let M_1, M_2, ... be the steps of a run whose parameters were fixed in advance (each
        may depend on what the earlier ones released), let N_1 < N_2 < ... be lengths and s_1, s_2,
        ... shares with sum at most 1, all fixed in advance. Let epsilon_k be such that the first
        N_k steps are (epsilon_k, s_k delta)-DP. Stop by any rule that looks at what was released so
        far, at step T, and state epsilon_k of the least N_k >= T. Then for all neighbours D, D' and
        all events E about what was released until T (and so about what was stated),
            P_D(E) <= integral over E of e^(what is stated) dP_D' + delta.
        In particular, stated values of at most epsilon are (epsilon, delta)-DP: P_D(E) <= e^epsilon
        P_D'(E) + delta for every event E on which at most epsilon is stated. Proof: let E_k be the
        part of E with N_(k-1) < T <= N_k. Whether T <= N_k, and what was released until then, is a
        function of the first N_k steps, so E_k is an event about those steps: P_D(E_k) <=
        e^(epsilon_k) P_D'(E_k) + s_k delta. Add these up over k.
    Conditions: noise, sampling and clipping of all steps were fixed before the first one. The
        lengths here are 1, 2, ..., each at least 1.1 times the one before, up to 2^40, with equal
        shares. Where a length was named before the first step, it has 99 hundredths of delta, and
        those beyond it share the rest. A run that stayed within its named length N may be followed
        by others: events about all of them in which the first stopped by N are events about its N
        steps and what follows, at 0.99 of the delta that the others have. What follows was fixed
        before the first run too.
    Validity: bound.
    Source: Rogers, Roth, Ullman, Vadhan 2016 (arXiv:1605.08294), odometers; the union over lengths
        is elementary and proved above.
    Error: epsilon is larger than that of a length fixed in advance, by the share of delta and the
        next length: at delta = 1e-5 about 1.3 times for thousands of steps, 1.6 for hundreds.
    Vectors: tests/attacks/test_stopping.py
    """

    NAME = "Stopped at will"
    SOURCE = Source(
        "Rogers, Roth, Ullman, Vadhan 2016 (arXiv:1605.08294)",
        "privacy odometers",
        "Rogers et al. 2016",
    )
    VALIDITY = Validity.BOUND


# The share of delta that a length has which was named before the first step; the rest is for
# going on beyond it.
KEPT = 0.99
_GROWTH, _LONGEST = 1.1, 2**40


def covers(process: Process) -> bool:
    """Does this theorem answer? For runs stopped at will, and for sequences with such runs in them.

    Only the last run may have gone beyond a length that was named for it.
    """
    if isinstance(process, UserLevel):
        return covers(process.run)
    if isinstance(process, StoppedAtWill):
        return _bounded(process.run)
    return isinstance(process, Sequence) and _stopped(process) and _bounded(process)


def _stopped(process: Process) -> bool:
    parts = process.parts if isinstance(process, Sequence) else ()
    return isinstance(process, StoppedAtWill) or any(_stopped(part) for part in parts)


def _bounded(process: Process) -> bool:
    if isinstance(process, StoppedAtWill):
        return process.within and _bounded(process.run)
    parts = process.parts if isinstance(process, Sequence) and _stopped(process) else ()
    return all(_bounded(part) for part in parts)


def covering(process: Process) -> tuple[Process, float]:
    """The process of the lengths that are stated, and its share of delta."""
    if isinstance(process, StoppedAtWill):
        length, own = stated(steps_of(process) or 0, process.first)
        whole, share = covering(with_steps(process, length))
        return whole, own * share
    if isinstance(process, UserLevel):
        whole, share = covering(process.run)
        return replace(process, run=whole), share
    if not isinstance(process, Sequence):
        return process, 1.0
    parts = [covering(part) for part in process.parts]
    return Sequence(tuple(part for part, _ in parts)), math.prod(share for _, share in parts)


def stated(steps: int, first: int | None) -> tuple[int, float]:
    """The length that is stated for a run stopped after so many steps, and its share of delta."""
    if first is not None and steps <= first:
        return first, KEPT
    lengths = _lengths()
    if steps > lengths[-1]:
        raise InvalidInput(f"At most {lengths[-1]} steps are covered; got {steps}.")
    share = (1.0 if first is None else 1.0 - KEPT) / len(lengths)
    return lengths[bisect.bisect_left(lengths, steps)], share


@cache
def _lengths() -> tuple[int, ...]:
    lengths = [1]
    while lengths[-1] < _LONGEST:
        lengths.append(min(max(lengths[-1] + 1, math.ceil(_GROWTH * lengths[-1])), _LONGEST))
    return tuple(lengths)
