"""Guarantees: what is proved about a process.

>>> from tightrope.guarantee import GaussianGuarantee, compose
>>> once = GaussianGuarantee(0.5)
>>> round(compose([once, once]).mu, 6)
0.707107
"""

from tightrope.guarantee.base import Guarantee, Validity
from tightrope.guarantee.compose import compose
from tightrope.guarantee.estimate import Estimate
from tightrope.guarantee.kinds.approx import ApproxGuarantee
from tightrope.guarantee.kinds.gaussian import GaussianGuarantee
from tightrope.guarantee.kinds.loss import LossGuarantee
from tightrope.guarantee.kinds.renyi import RenyiGuarantee

__all__ = [
    "Guarantee",
    "Validity",
    "Estimate",
    "compose",
    "ApproxGuarantee",
    "GaussianGuarantee",
    "LossGuarantee",
    "RenyiGuarantee",
]
