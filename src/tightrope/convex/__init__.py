"""Private convex learning: losses with known constants, algorithms, calibrated noise."""

from tightrope.convex.algorithms import AveragedDescent, PoissonDescent
from tightrope.convex.budget import Budget, calibrated
from tightrope.convex.centred import CentredDescent
from tightrope.convex.choose import (
    ALGORITHMS,
    CLASSIFICATION,
    REGRESSION,
    Candidate,
    Expected,
    Facts,
    Options,
)
from tightrope.convex.entropy import Entropy
from tightrope.convex.last_iterate import (
    CyclicDescent,
    LastIterateDescent,
    SkipDescent,
    StopDescent,
)
from tightrope.convex.learn import Learned, Plan, learn, plan
from tightrope.convex.losses import (
    Huber,
    Logistic,
    Loss,
    MultinomialLogistic,
    OneVersusRest,
    SmoothedHinge,
    Squared,
)
from tightrope.convex.problem import Problem
from tightrope.convex.public import PublicRows
from tightrope.convex.rows import ArrayData, Data, Scaling, SizeOnly, StreamData, WatchedData

__all__ = [
    "learn",
    "plan",
    "Learned",
    "Plan",
    "Budget",
    "Options",
    "calibrated",
    "ALGORITHMS",
    "Candidate",
    "Facts",
    "Expected",
    "CLASSIFICATION",
    "REGRESSION",
    "Problem",
    "PublicRows",
    "Data",
    "ArrayData",
    "StreamData",
    "SizeOnly",
    "WatchedData",
    "Scaling",
    "Entropy",
    "Loss",
    "Logistic",
    "MultinomialLogistic",
    "OneVersusRest",
    "Squared",
    "Huber",
    "SmoothedHinge",
    "AveragedDescent",
    "CentredDescent",
    "LastIterateDescent",
    "CyclicDescent",
    "SkipDescent",
    "StopDescent",
    "PoissonDescent",
]
