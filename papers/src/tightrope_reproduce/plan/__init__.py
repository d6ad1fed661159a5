"""Plans for private convex learning: step size, noise, excess loss and everybody's epsilon.

Each function turns a budget into a process whose guarantee the theorems about last iterates prove,
with the exact Gaussian calibration in place of sigma = S sqrt(2 ln(1.25/delta))/epsilon, which is
proved for epsilon < 1 only and wasteful there.
"""

from tightrope_reproduce.plan.local import local_pass
from tightrope_reproduce.plan.outcome import ConvexPlan
from tightrope_reproduce.plan.per_person import per_person
from tightrope_reproduce.plan.public_last import public_last
from tightrope_reproduce.plan.smoothing import Smoothed, smoothed
from tightrope_reproduce.plan.tasks import many_tasks

__all__ = [
    "ConvexPlan",
    "local_pass",
    "per_person",
    "public_last",
    "many_tasks",
    "smoothed",
    "Smoothed",
]
