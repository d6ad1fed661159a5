"""Going on from a released model with rows of other people (partial_fit).

Nobody is in two of the fits, so each person is protected as their own fit says (parallel
composition). The model as a whole can claim only what holds for all of them.
"""

from __future__ import annotations

from dataclasses import replace

from tightrope.convex.budget import Budget
from tightrope.convex.learn import Learned, Plan
from tightrope.errors import InvalidInput, NotCertified
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import Adjacency

__all__ = ["check_promise", "continued"]


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
        f"No one of the guarantees of {before.name!r} and {after.name!r} on parts of these sizes "
        "covers the other. Use algorithm='descent', or parts of equal size, in all calls of "
        "partial_fit."
    )
