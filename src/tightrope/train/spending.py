"""What a run plans, what it has released so far, and what it may still release.

The ledger is the only place that counts steps. Its process is built from the sampler and the noise
that run, so what is accounted is what is trained.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, final

from tightrope.accounting import account
from tightrope.calibrate import Target, find_noise, find_steps
from tightrope.correlated.strategies import Strategy
from tightrope.entropy import here
from tightrope.errors import BudgetExceeded, InvalidInput
from tightrope.ledger import open_ledger
from tightrope.ledger.book import noise_that_fits
from tightrope.ledger.spending import check_private, in_force
from tightrope.numerics.interval import Interval
from tightrope.process import (
    CorrelatedSGD,
    NoisySGD,
    Process,
    Sequence,
    StoppedAtWill,
    UserLevel,
)
from tightrope.process.composite import steps_of
from tightrope.theorems.stopping_times import stated
from tightrope.train.noise import GaussianNoise, Noise
from tightrope.train.ranks import by_rank_0, rank_and_size
from tightrope.train.record import RunRecord, not_private_because
from tightrope.train.samplers import AbstractSampler
from tightrope.validate import check_count, check_delta, check_epsilon

if TYPE_CHECKING:
    from tightrope.ledger.office import BudgetLedger
    from tightrope.ledger.reservation import Reservation

LONGEST_RUN = 2**40  # steps; an infinite allowance is reported as this number
_BLOCKS = 100  # announcements of one run, about


class Claim(NamedTuple):
    """What a run may state, the guarantee of `process`, and why it is that process.

    length: "planned", "budget", "at will", or "nothing released".
    """

    process: Process
    length: str


@final
@dataclass
class Length:
    """What was stated about the length of a run before its first step."""

    planned: int | None = None
    at_will: bool = False

    def __str__(self) -> str:
        if self.at_will:
            return "to stop at will"
        return "none" if self.planned is None else f"{self.planned} steps"

    def state(self) -> dict[str, Any]:
        return asdict(self)

    def resume(self, state: dict[str, Any]) -> None:
        """The plan that the run began with holds; no other can be made now."""
        before = Length(**state)
        if self not in (Length(), before):
            raise InvalidInput(
                f"This run was begun with the plan {before}, and now it is to be {self}. A plan "
                "holds only if it was made before the first step: resume without one, or with the "
                "same."
            )
        self.planned, self.at_will = before.planned, before.at_will


@final
@dataclass(frozen=True)
class Budget:
    """The most privacy a run may spend: (epsilon, delta), what a ledger has left, or both.

    ledger, dataset: a ledger (or its url) and the data set in it that the run learns from. The run
    reserves there what it may spend before its first step (docs/ledger.md).
    """

    epsilon: float | None = None
    delta: float | None = None
    ledger: Any = field(default=None, kw_only=True, repr=False, compare=False)
    dataset: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if (self.ledger is None) != (self.dataset is None):
            raise InvalidInput(
                "A budget from a ledger names both: Budget(ledger='ledger.db', dataset='patients')."
            )
        if self.dataset is not None and self.epsilon is None and self.delta is None:
            return
        object.__setattr__(self, "epsilon", float(check_epsilon(self.epsilon)))
        object.__setattr__(self, "delta", float(check_delta(self.delta)))
        if self.delta == 1.0:
            raise InvalidInput(
                f"A budget with delta = {self.delta} protects no one. Choose delta far below one "
                "over the number of people in the data, for example 1e-5."
            )

    @property
    def pair(self) -> tuple[float, float] | None:
        """(epsilon, delta) of the run itself, where it has one."""
        return None if self.epsilon is None or self.delta is None else (self.epsilon, self.delta)


def noise_for(budget: Budget, sampler: AbstractSampler, *, steps: int) -> GaussianNoise:
    """The least Gaussian noise with which `steps` steps stay within the budget, certified.

    Of what a ledger has left, the least in hundredths.
    """
    return GaussianNoise(least_noise(budget, sampler, GaussianNoise(1.0), steps))


def least_noise(budget: Budget, sampler: AbstractSampler, kind: Noise, steps: int) -> float:
    """The least multiplier of noise of this kind, whose own is 1."""
    run = sampler.process(kind, check_count(steps, "steps", low=1))
    protected: Any = sampler.protected(run)
    noise = 0.0
    if budget.pair is not None:
        noise = find_noise(protected, Target.approx_dp(*budget.pair)).value
    if budget.dataset is None:
        return noise
    start = replace(run, noise_multiplier=max(noise, 1.0))
    excess = Reserved(budget.ledger, budget.dataset).excess
    left = by_rank_0(lambda: noise_that_fits(start, excess))
    if left is None:
        raise BudgetExceeded(f"No noise makes {steps} steps fit into {budget.dataset!r}.")
    return max(noise, left)


@final
class Reserved:
    """The reservation of one run in a BudgetLedger, given as such or by its url."""

    def __init__(self, ledger: BudgetLedger | str, dataset: str) -> None:
        self._ledger: Any = None
        if rank_and_size()[0] == 0:
            self._ledger = ledger if hasattr(ledger, "reserve") else open_ledger(ledger)
        self.dataset, self._home = dataset, here()
        self.id: str | None = None
        self.steps = self.announced = 0

    def excess(self, process: Process) -> float:
        """By how much the limit would be passed, if it were reserved now."""
        book = self._ledger.book(self.dataset)
        over: float = book.excess(process and book.terms.of_one(process))
        return over

    def begin(self, run: NoisySGD | CorrelatedSGD) -> None:
        """Reserve; BudgetExceeded, with what would fit, if it is too much."""

        def reserve() -> Any:
            terms = self._ledger.book(self.dataset).terms
            return self._ledger.reserve(self.dataset, terms.of_one(run))

        self._take(by_rank_0(reserve))

    def resume(self, name: str) -> None:
        """Go on with a reservation that was made before a crash, after what was announced."""
        self._take(by_rank_0(lambda: self._ledger.book(self.dataset).reservation(name)))

    def _take(self, held: Reservation) -> None:
        self.id, self.steps, self.announced = held.id, held.steps, held.spent

    def announce(self, step: int) -> None:
        """Step `step` is about to be released."""
        if self.id is None:
            raise InvalidInput("This run has no reservation in its ledger, so it takes no step.")
        if self._home != here():
            raise InvalidInput(
                "The reservation of this run belongs to the process that made it, and this is a "
                "forked copy, whose steps would not be counted. Give each process a run of its own."
            )
        if step <= self.announced:
            return
        last = max(step, min(self.steps, step - 1 + max(self.steps // _BLOCKS, 1)))
        by_rank_0(lambda: self._ledger.spend(self.dataset, self.id, last, self.announced))
        self.announced = last

    def settle(self, certificate: str | None) -> None:
        """The run is over: what was not announced is free again."""
        if self.id is None or self._ledger is None:
            return
        if self._ledger.book(self.dataset).reservation(self.id).open:
            self._ledger.settle(self.dataset, self.id, self.announced, certificate)


def _terms(sampler: AbstractSampler, noise: Noise) -> tuple[Any, ...]:
    """All that `sampler.process` and the users make of the two, without making it at each step."""
    return (
        type(sampler), sampler.sampling, sampler.adjacency, sampler.users,
        noise.noise_multiplier, getattr(noise, "strategy", None),
    )  # fmt: skip


@final
class Ledger:
    """Counts releases and turns the count into a process and its certified epsilon.

    released: how many releases may have been seen.
    taken: the number of the last one that went into the weights. Smaller only while a seeded run
    computes again what a crash has lost.
    forfeited: why the run is not private, and never will be.
    journal: gets each number before the release is made; may refuse it by raising.
    reserved: its place in the ledger of the data set; on_reserved gets its name.
    """

    def __init__(
        self,
        sampler: AbstractSampler,
        noise: Noise,
        budget: Budget | None,
        history: Process | RunRecord | None,
    ) -> None:
        self._sampler, self._noise, self._users = sampler, noise, sampler.users
        self._step = sampler.process(noise, 1)  # whatever becomes of the objects
        self._terms = _terms(sampler, noise)
        self.budget = None if budget is None or budget.pair is None else budget
        self.reserved: Reserved | None = None
        if budget is not None and budget.dataset is not None:
            self.reserved = Reserved(budget.ledger, budget.dataset)
        elif (place := in_force()) is not None:
            self.reserved = Reserved(*place)
        self.released = self.taken = 0
        self.forfeited: tuple[str, ...] = ()
        self.journal: Callable[[int], None] | None = None
        self.on_reserved: Callable[[str], None] | None = None
        self.length = Length()
        self._epsilons: dict[tuple[int, float], Interval] = {}
        self._allowed: int | None = None
        self._before = history if isinstance(history, RunRecord) else None
        self.history: Process | None = (
            history.process if isinstance(history, RunRecord) else history
        )
        if self._before is not None:
            self.forfeit(f"of the run before it: {why}" for why in self._before.not_private_because)
        self._check_users()
        if isinstance(self.history, StoppedAtWill) and not self.history.within:
            raise InvalidInput(
                "The run before this one was stopped at will, so no fixed epsilon bounds it, and "
                "the two cannot be counted in one budget. Give the first run a budget or a length "
                "(steps=), or state both runs, each at a delta of its own: their epsilons and "
                "their deltas add up."
            )
        self._check_history()

    def _check_users(self) -> None:
        """What ran before must have protected the same users; it is then counted beside the run."""
        users = self._users
        if users is not None and self.reserved is not None:
            raise InvalidInput(
                "A ledger keeps its account by records, and this run protects users. Reserve "
                "outside of the run, or give it Budget(epsilon, delta)."
            )
        if self.history is None or (users is None and not isinstance(self.history, UserLevel)):
            return
        same = users is not None and users.process(getattr(self.history, "run", self._step))
        if not isinstance(self.history, UserLevel) or same != self.history:
            raise InvalidInput(
                f"This run protects {users or 'single records'}, and the one before it "
                f"{self.history!r}: what they lost together is not known. Let both protect the "
                "same users, drawn in the same way."
            )
        self.history = self.history.run

    def _check_history(self) -> None:
        """The run before must not have gone on beyond what its record states."""
        if self._before is not None and not self._before.is_current():
            raise InvalidInput(
                "The run whose record is the history of this one released more since the record "
                "was taken, which nothing here counts. Let the first run end, and begin this one "
                "with the record() it has at its end."
            )

    # ---- counting ------------------------------------------------------------------------------
    def count(self, step: int) -> None:
        """Release number `step` is about to be made.

        Counted, and written down where there is a journal, before anything of it can be seen:
        whatever goes wrong afterwards, it stays counted.
        """
        self._check_history()
        if self.reserved is not None:
            check_private(self.forfeited)
            self.reserved.announce(step)
        self.taken = step
        self.released = max(self.released, step)
        for past in [key for key in self._epsilons if 0 < key[0] < self.released]:
            del self._epsilons[past]
        if self.journal is not None:
            self.journal(step)

    def forfeit(self, reasons: Iterable[str]) -> None:
        """From now on the run is not private, for these reasons; there is no way back."""
        if reasons != ():
            self.forfeited = tuple(dict.fromkeys((*self.forfeited, *reasons)))

    def accounts_for(self, sampler: AbstractSampler, noise: Noise) -> bool:
        """Are these the sampling and the noise that are accounted?"""
        if noise is not self._noise and self.strategy is not None:
            return False  # another object does not take back what this one has added
        return _terms(sampler, noise) == self._terms

    # ---- what was released, and what that costs ------------------------------------------------
    @property
    def strategy(self) -> Strategy | None:
        """How the noise is correlated over the steps, where it is."""
        return self._step.strategy if isinstance(self._step, CorrelatedSGD) else None

    def process(self, steps: int | None = None) -> Process:
        """The process of `steps` steps (those released so far) and of the history before them."""
        return self._protected(self._whole(self.released if steps is None else steps))

    def _protected(self, process: Process) -> Process:
        """The same for the users, where users are protected."""
        return process if self._users is None else self._users.process(process)

    def _whole(self, steps: int) -> Process:
        """The same, of single records."""
        run = replace(self._step, steps=steps)
        return run if self.history is None else Sequence((self.history, run))

    def epsilon(self, delta: float, steps: int | None = None) -> Interval:
        """Certified epsilon of `steps` steps (those released so far).

        Epsilon never falls with more steps, so the bounds found for longer runs hold as well.
        """
        count = self.released if steps is None else steps
        if count == 0 and self.history is None:
            check_delta(delta)
            return Interval.exact(0.0)
        if (count, delta) not in self._epsilons:
            self._epsilons[count, delta] = account(self.process(count)).epsilon(delta)
        found = self._epsilons[count, delta]
        longer = [e.upper for (n, d), e in self._epsilons.items() if d == delta and n > count]
        return Interval(found.lower, max(min([found.upper, *longer]), found.lower))

    def claim(self) -> Claim:
        """What may be stated about the run, however its end was chosen."""
        self._check_history()
        if self.released == 0:
            return Claim(self.process(), "nothing released")
        if self.budget is None and self.length.planned is None:
            stopped = StoppedAtWill(self._whole(self.released))
            return Claim(self._protected(stopped), "at will")
        steps = max(self.steps_allowed, self.released)
        planned = self.length.planned is not None and steps == self.length.planned
        return Claim(self.process(steps), "planned" if planned else "budget")

    def claimed_epsilon(self, delta: float) -> Interval:
        """Epsilon of the claim; its safe end holds whenever the run is stopped."""
        process, level = self.claim().process, float(check_delta(delta))
        if isinstance(process, UserLevel):
            process = process.run
        if not isinstance(process, StoppedAtWill):
            return self.epsilon(level, steps_of(process))
        length, share = stated(self.released, process.first)
        return self.epsilon(share * level * (1 - 1e-15), length)  # as StoppedGuarantee has it

    # ---- what may still be released ------------------------------------------------------------
    def plan(self, steps: int | None) -> None:
        """Fix the length of a run that is being made; None: it will be stopped at will."""
        planned = None if steps is None else check_count(steps, "steps", low=1)
        self.length = Length(planned, at_will=steps is None)
        self.forget_allowance()

    def check_strategy(self) -> None:
        """Refuse correlated noise that no account covers with these batches, or of no length."""
        if self.strategy is None:
            return
        if self.length.planned is None:
            raise InvalidInput(
                "What correlated noise, or batches that keep apart, lose is accounted for all "
                "steps together, so their number must be known before the first one. Say steps= "
                "or epochs=."
            )
        one = replace(self._step, steps=self.length.planned)
        account(one).guarantee()  # raises with every reason

    @property
    def steps_allowed(self) -> int:
        """The largest number of steps that plan and budget (by certified epsilon) allow."""
        if self._allowed is None:
            if self.reserved is not None and self.reserved.id is None:
                self._reserve(self.reserved)
            self._allowed = self._within(self.length.planned)
        return self._allowed

    def _within(self, planned: int | None) -> int:
        """A plan that the budget allows needs one account; else the longest run is searched for."""
        if self.budget is None or self.budget.pair is None:
            return LONGEST_RUN if planned is None else planned
        epsilon, delta = self.budget.pair

        def fits(steps: int) -> bool:
            return self.epsilon(delta, steps).upper <= epsilon

        if self._step.noise_multiplier == 0:
            return 0
        if planned is not None and fits(planned):
            return planned
        most = LONGEST_RUN if planned is None else planned
        if isinstance(self._step, NoisySGD):  # alone: with a history, or for users, no more fit
            alone = find_steps(self._step, Target.approx_dp(epsilon, delta)).value
            most = min(most, int(alone))
        if fits(most):
            return most
        return bisect_left(range(most), True, key=lambda before: not fits(before + 1))

    def _reserve(self, reserved: Reserved) -> None:
        """The longest run that may happen, which is its plan from now on."""
        longest = self.length.planned
        if longest is None:
            raise InvalidInput(
                "A run that spends from a ledger reserves its length before its first step, so it "
                "must be known how long it is. Say steps= or epochs=."
            )
        check_private((*self.forfeited, *not_private_because(self._sampler, self._noise)))
        self.length.planned = steps = self._within(longest)
        if steps:
            reserved.begin(replace(self._step, steps=steps))
        if self.on_reserved is not None and reserved.id is not None:
            self.on_reserved(reserved.id)

    def resume_reservation(self, name: str | None) -> None:
        """Of a stored run: it goes on with the reservation that it began with, or with none."""
        if (name is None) != (self.reserved is None) and (name is not None or self.released):
            raise InvalidInput(
                "This run was begun with a ledger and goes on without one, or the other way "
                "round: its steps would not be counted there. Resume it with the budget it had."
            )
        if name is not None and self.reserved is not None:
            self.reserved.resume(name)
            self.length.planned = self.reserved.steps
            self.released = self.taken = max(self.released, self.reserved.announced)

    def settle(self, certificate: str | None = None) -> None:
        """The run is over: the ledger of its data set gets back what it did not announce."""
        if self.reserved is not None:
            self.reserved.settle(certificate)

    @property
    def exhausted(self) -> bool:
        """Would one more step exceed the budget or the plan?"""
        return self.taken >= self.steps_allowed

    def check_allowance(self) -> None:
        """Refuse a step beyond the budget or the plan."""
        if not self.exhausted:
            return
        if self.length.planned == self.steps_allowed:
            limit = f"plan of {self.length.planned} steps"
            way_out = "Make a longer plan for the next run, or stop here."
        else:
            limit = str(self.budget)
            way_out = "Raise the budget or the noise multiplier, or stop here."
        raise BudgetExceeded(
            f"Step {self.taken + 1} would exceed the {limit}: {self.steps_allowed} steps are "
            f"allowed. The weights are those of the last allowed step. {way_out}"
        )

    def forget_allowance(self) -> None:
        """The budget was changed; work the allowance out anew when it is needed."""
        self._allowed = None
