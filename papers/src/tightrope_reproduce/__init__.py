"""The papers' figures and tables, made again, with the truth beside the claim."""

from tightrope_reproduce.catalog import find
from tightrope_reproduce.item import Item, Line, Outcome, Picture, Setting, Table, Verdict, check

__all__ = [
    "Item",
    "Line",
    "Outcome",
    "Picture",
    "Setting",
    "Table",
    "Verdict",
    "check",
    "find",
]
