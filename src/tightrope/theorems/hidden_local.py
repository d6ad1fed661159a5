"""What one device sends: its noisy gradient, by itself (local privacy).

Statement: a gradient of norm <= L plus N(0, noise_std^2 I) is mu-GDP with mu = 2 L / noise_std for
    any change of the device's record.
Conditions: bounded gradients; nothing else.
Validity: exact for the worst gradients (+L v against -L v).
Source: Feldman et al. 2018 (arXiv:1808.06651), Lemma 27. Corrected: the printed
    "(eps, delta) for every eps > 0 with noise_std = 2 L sqrt(2 ln(1.25/delta))/eps" is proved for
    eps < 1 only and false above 7.46, 8.42, 9.37 at delta = 1e-3, 1e-5, 1e-8; the exact Gaussian
    calibration is used instead everywhere.
Error: one rounding; mu is raised by 1e-15 relative.
Vectors: gaussian_sigma.
"""

from __future__ import annotations

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.process import Adjacency, Process
from tightrope.process.convex import LocalGradient
from tightrope.theorems.base import REPLACED, Refusal, Source, foreign, require

NAME = "Local privacy of one noisy gradient"
SOURCE = Source("Feldman et al. 2018", "Lemma 27", "fmtt18")
VALIDITY = Validity.BOUND
RELATIONS = REPLACED


def applies(process: Process) -> Refusal | None:
    if not isinstance(process, LocalGradient):
        return foreign(NAME, "LocalGradient", process)
    if process.adjacency is not Adjacency.REPLACE_ONE:
        return Refusal(
            f"{NAME} compares two records of one device (replace-one); got {process.adjacency}.",
            "neighbours",
        )
    return None


def guarantee(process: LocalGradient) -> Guarantee:
    require(applies(process))
    mu = 2.0 * process.loss.lipschitz / process.noise_std * (1.0 + 1e-15)
    return GaussianGuarantee(mu, process.adjacency, VALIDITY)
