"""Theorems: each a class in the file of its family, listed as analyses.

>>> from tightrope.theorems import ANALYSES
>>> print(ANALYSES[0].lead.SOURCE)
Zhu, Dong, Wang 2022, Theorem 11
"""

from tightrope.theorems.base import Refusal, Source, Theorem
from tightrope.theorems.catalog import ANALYSES, THEOREMS, Analysis

__all__ = ["ANALYSES", "THEOREMS", "Analysis", "Theorem", "Source", "Refusal"]
