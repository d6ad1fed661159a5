"""The main claim of a certificate, proved again in ball arithmetic: no rounding left unbounded.

What is proved: for the certificate's epsilon (times 1 + slack) the composition of the dominating
pairs of its process has delta(epsilon) <= delta, in both orders of the neighbours. What remains is
the theorem (a sampled Gaussian step is dominated by its pair: Zhu, Dong and Wang 2022, Theorem 11;
pairs compose) and the correctness of Arb.

Needs python-flint: pip install 'tightrope[rigorous]'.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tightrope.errors import InvalidInput, NotCertified, TightropeError
from tightrope.evidence.check import Check, yours
from tightrope.evidence.statement import main_claim
from tightrope.process import (
    Adjacency,
    DeclaredGaussianDP,
    FullBatch,
    GaussianMechanism,
    NoisySGD,
    PoissonSampling,
    Process,
    parts_of,
)
from tightrope.process.codec import from_json
from tightrope.theorems.stopping_times import covering

# Relative slack in epsilon, smallest first: the claim itself is often exact to 13 digits.
SLACKS = (0.0, *(10.0**-k for k in range(13, 1, -1)))
ROUNDING = 1e-6
# Shares of delta that the sum may lose: the first that is affordable is taken.
TOLERANCES = (1e-11, 1e-8, 1e-5, 1e-3)
_BITS = 96


class Proof(NamedTuple):
    """(epsilon (1 + slack), delta)-DP is proved; slack is None where no listed one could be.

    A slack within the rounding of the claim counts as a proof of it; a larger one proves less.
    """

    epsilon: float
    delta: float
    slack: float | None

    @property
    def holds(self) -> bool:
        return self.slack is not None and self.slack <= ROUNDING


def reprove(certificate: dict[str, Any]) -> Check:
    """Prove the certificate's epsilon at its delta from its process alone."""
    name = "ball arithmetic"
    try:
        delta = float(certificate["setting"]["delta"])
        claimed = main_claim(certificate["claims"], delta)
        if claimed is None or not (claimed > 0.0 and 0.0 < delta < 1.0):
            return yours(name, "balls prove a finite epsilon > 0 at a delta in (0, 1)")
        process, share = covering(from_json(certificate["process"]))
        proof = prove_epsilon(process, float(claimed), share * delta)
    except NotCertified as error:
        return yours(name, str(error))
    except (TightropeError, KeyError, TypeError, ValueError) as error:
        return Check(name, False, f"not proved: {error}")
    if proof.slack is None:
        words = f"epsilon = {proof.epsilon!r} could not be proved, nor {1 + SLACKS[-1]} times it"
        return Check(name, False, words)
    extra = f" (1 + {proof.slack:g})" if proof.slack else ""
    shown = f"({proof.epsilon!r}{extra}, {delta:g})-DP"
    if not proof.holds:
        return Check(name, False, f"only {shown} could be proved: claim that epsilon")
    return Check(name, True, f"proved: {shown}")


def prove_epsilon(process: Process, epsilon: float, delta: float) -> Proof:
    """The smallest listed slack with which (epsilon, delta)-DP of the process is proved."""
    try:
        import flint
    except ImportError:
        raise NotCertified(
            "A rigorous proof needs python-flint: pip install 'tightrope[rigorous]'."
        ) from None
    if not (epsilon > 0.0 and 0.0 < delta < 1.0):
        raise InvalidInput(
            f"A rigorous proof needs epsilon > 0 and delta in (0, 1); got epsilon {epsilon}, "
            f"delta {delta}."
        )
    with flint.ctx.workprec(_BITS):
        slacks = [_slack(law, epsilon, delta) for law in _laws(process)]
    proved = [slack for slack in slacks if slack is not None]
    return Proof(epsilon, delta, max(proved, default=0.0) if proved == slacks else None)


def _slack(law: Any, epsilon: float, delta: float) -> float | None:
    """With the finest sum that is affordable; a coarser one proves a little less."""
    from flint import arb

    from tightrope.evidence import ball_arithmetic as balls

    exact, bound = arb(epsilon), balls.gaussian_delta(law.variance)
    if law.never_above(exact):
        return 0.0
    if law.steps:
        reaches = (balls.Reach.of(law, epsilon, delta, tolerance) for tolerance in TOLERANCES)
        reach = next((reach for reach in reaches if reach.effort <= balls.MOST_EFFORT), None)
        if reach is None:
            raise NotCertified(balls.TOO_SLOW)
        bound = balls.RigorousLine(law, reach).delta_upper
    holding = (s for s in SLACKS if bound(exact * (1 + arb(s))) <= arb(delta))
    return next(holding, None)


def _laws(process: Process) -> list[Any]:
    """One composition for each order of the neighbours."""
    from flint import arb

    from tightrope.evidence.ball_arithmetic import Composition, SampledStep

    variance, sampled = arb(0), []
    for part, times in parts_of(process).items():
        if times == 0:
            continue
        rate, distance, noise = _step(part)
        mu = distance / arb(noise) if noise is not None else arb(distance)
        if rate == 1.0:
            variance += times * mu**2
        elif rate > 0.0:
            sampled.append((arb(rate), mu, times))
    if not sampled:
        return [Composition((), variance)] if variance > 0 else []
    return [
        Composition(tuple((SampledStep(q, mu, sign), n) for q, mu, n in sampled), variance)
        for sign in (1, -1)
    ]


def _step(part: Process) -> tuple[float, float, float | None]:
    """(rate, d, noise) of one release, of mu = d/noise, or d itself; refuses what has no pair."""
    if isinstance(part, DeclaredGaussianDP):
        return 1.0, part.mu, None
    if isinstance(part, GaussianMechanism) and part.noise_multiplier > 0:
        return 1.0, 1, part.noise_multiplier
    if isinstance(part, NoisySGD) and part.noise_multiplier > 0:
        replaced = part.adjacency is Adjacency.REPLACE_ONE
        if isinstance(part.sampling, FullBatch):
            return 1.0, 2 if replaced else 1, part.noise_multiplier
        if isinstance(part.sampling, PoissonSampling) and not replaced:
            return part.sampling.rate, 1, part.noise_multiplier
    raise NotCertified(
        f"{part} has no proof in balls; there is one for Gaussian mechanisms, full batches, and "
        "Poisson sampling under add-or-remove or zero-out neighbours."
    )
