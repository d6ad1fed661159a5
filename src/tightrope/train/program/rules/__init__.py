"""The table of operators, a family in each file.

A rule is a function from a call of an operator (`proof.Call`) to the label of its outputs. It
raises `Mixes` where examples would meet and `Unknown` where it cannot say.
"""

from tightrope.train.program.rules import (  # noqa: F401 (each enters its rules into the table)
    entries,
    picking,
    products,
    shapes,
    slices,
)
