"""One private fit: choose, calibrate, run, and say what was done."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from tightrope.convex import public
from tightrope.convex.algorithms import charged
from tightrope.convex.budget import Budget, calibrated
from tightrope.convex.choose import (
    CLASSIFICATION,
    Candidate,
    Expected,
    Facts,
    Options,
    build,
    candidates,
    regularisation,
)
from tightrope.convex.entropy import Entropy
from tightrope.convex.problem import Problem
from tightrope.convex.row_keys import refuse_overlap
from tightrope.convex.rows import Scaling
from tightrope.errors import InvalidInput, NotCertified
from tightrope.guarantee.base import Guarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.ledger.spending import reserved
from tightrope.process import Adjacency
from tightrope.validate import FloatArray, check_non_negative


@final
@dataclass(frozen=True)
class Plan:
    """Everything about a fit that is decided before a private row is read."""

    name: str
    algorithm: Any
    process: Any
    guarantee: Guarantee
    budget: Budget
    strength: float
    compared: tuple[Candidate, ...]
    rounding: float
    sensitivity: float
    searched: int = 0  # settings among which a private search chose; process and budget are its own

    @property
    def reason(self) -> str:
        """Which algorithm, and why."""
        if not self.compared:
            return f"{self.name}: asked for"
        lines = [f"{self.name}: least predicted excess loss for the budget"]
        lines += [f"  {c.name:12} {c.excess:9.3g}  {c.why}" for c in self.compared]
        return "\n".join(lines)


@final
@dataclass(frozen=True)
class Learned:
    """Weights on scaled rows, that scaling, and the plan that produced them.

    randomness: which generator, and where its key came from.
    public_rows, public_digest: how many public rows were used, and the SHA-256 of them.
    """

    weights: FloatArray
    scaling: Scaling
    plan: Plan
    private: bool
    randomness: str = ""
    public_rows: int = 0
    public_digest: str | None = None


def plan(
    problem: Problem,
    budget: Budget,
    *,
    algorithm: str = "auto",
    strength: float | None = None,
    expected: Expected = CLASSIFICATION,
    options: Options | None = None,
) -> tuple[Plan, Problem]:
    """Choose and calibrate; the problem comes back with its regularisation filled in."""
    options = options or Options()
    facts = facts_of(problem, budget, expected)
    chosen = regularisation(facts) if strength is None else check_non_negative(strength, "strength")
    problem = replace(problem, strength=chosen)
    compared = _possible(problem, facts, chosen, options) if algorithm == "auto" else ()
    name = compared[0].name if compared else algorithm
    ready, guarantee = calibrated(build(name, facts, chosen, options), problem, budget)
    planned = Plan(
        name,
        ready,
        ready.process(problem),
        guarantee,
        budget,
        chosen,
        compared,
        ready.rounding(problem),
        charged(ready, problem),
    )
    return planned, problem


def _possible(
    problem: Problem, facts: Facts, strength: float, options: Options
) -> tuple[Candidate, ...]:
    """The candidates that can describe what they would do with this problem, best first."""

    def describes(candidate: Candidate) -> bool:
        try:
            build(candidate.name, facts, strength, options).process(problem)
        except InvalidInput:
            return False
        return True

    possible = tuple(filter(describes, candidates(facts, strength, options)))
    if not possible:  # 'descent' takes every adjacency and public rows: let it say what is wrong
        build("descent", facts, strength, options).rounding(problem)
    return possible


def learn(
    problem: Problem,
    budget: Budget,
    *,
    algorithm: str = "auto",
    strength: float | None = None,
    expected: Expected = CLASSIFICATION,
    options: Options | None = None,
    seed: int | None = None,
    cryptographic: bool = False,
    start: FloatArray | None = None,
) -> Learned:
    """A private minimiser of the problem within the budget.

    A `start` belongs to the scaling of the problem's rows, so they are not centred anew. With
    public rows the descent starts at their solution and is centred at their mean.
    """
    options = options or Options()
    if problem.public is not None and not problem.other_people:
        refuse_overlap(problem.data, problem.public)
    if problem.public is not None and start is None:
        problem, options = _with_public(problem, options)
        start = problem.anchor
    elif start is not None:
        options = replace(options, centring=0.0)
    planned, problem = plan(
        problem, budget, algorithm=algorithm, strength=strength, expected=expected, options=options
    )
    entropy = Entropy(seed, cryptographic=cryptographic)
    first = np.zeros(problem.shape) if start is None else np.asarray(start, dtype=np.float64)
    if first.shape != problem.shape:
        raise InvalidInput(
            f"start must hold the weights of this problem, shape {problem.shape}; got "
            f"{first.shape}."
        )
    with reserved(planned.process, planned.name, private=entropy.private):
        weights, scaling = planned.algorithm.run(problem, entropy, first)
    if problem.public is None:
        return Learned(weights, scaling, planned, entropy.private, entropy.description)
    seen = (entropy.description, problem.public.count, public.digest(problem.public))
    return Learned(weights, scaling, planned, entropy.private, *seen)


def _with_public(problem: Problem, options: Options) -> tuple[Problem, Options]:
    """Centred and anchored at what the public rows say, which costs no budget."""
    assert problem.public is not None
    if options.centring:
        problem = public.with_public_centre(problem, options.row_reach)
    anchored = replace(problem, anchor=public.public_solution(problem))
    return anchored, replace(options, centring=0.0)


def facts_of(problem: Problem, budget: Budget, expected: Expected) -> Facts:
    """The public numbers of a problem."""
    return Facts(
        records=problem.records,
        private=problem.counted,
        weights=int(np.prod(problem.shape)),
        lipschitz=problem.loss.slope_bound,
        curvature=problem.loss.curvature_bound,
        moved=problem.moved,
        public=0 if problem.public is None else problem.public.count,
        expected=expected,
        budget=budget,
    )


# ---- going on from a released model with rows of other people (partial_fit) ----------------------
# No one is in two of the fits, so each person is protected as their own fit says (parallel
# composition). The model as a whole can claim only what holds for all of them.


def check_promise(before: Learned, budget: Budget, adjacency: Adjacency) -> None:
    """Refuse to go on under another promise than the first people were given."""
    plan = before.plan
    if plan.searched:
        raise InvalidInput(
            "The winner of a PrivateSearch carries the cost of the search, and partial_fit would "
            "put that of one fit in its place. Fit a new estimator with its parameters instead."
        )
    if plan.budget != budget or plan.guarantee.adjacency is not adjacency:
        raise InvalidInput(
            f"This model was released under epsilon {plan.budget.epsilon:g}, delta "
            f"{plan.budget.delta:g} and {plan.guarantee.adjacency} neighbours; partial_fit was "
            f"asked to go on under epsilon {budget.epsilon:g}, delta {budget.delta:g} and "
            f"{adjacency}. One model has one promise for all its people: keep the settings of the "
            "first call, or start anew with fit."
        )


def continued(before: Learned, after: Learned) -> Learned:
    """What was learnt, with what holds for the people of all fits."""
    weaker = _weaker(before.plan, after.plan)
    return replace(
        after,
        plan=replace(after.plan, process=weaker.process, guarantee=weaker.guarantee),
        private=before.private and after.private,
        public_rows=before.public_rows,
        public_digest=before.public_digest,
    )


def _weaker(before: Plan, after: Plan) -> Plan:
    if before.process == after.process:
        return after
    one, other = before.guarantee, after.guarantee
    if isinstance(one, GaussianGuarantee) and isinstance(other, GaussianGuarantee):
        return before if one.mu >= other.mu else after
    raise NotCertified(
        f"The guarantees of {before.name!r} and {after.name!r} on parts of these sizes do not "
        "cover each other. Use algorithm='descent', or parts of equal size, in all calls of "
        "partial_fit."
    )
