"""A loss as a proved program: capture it, prove it, store it."""

from tightrope.train.program.capture import Place, Program, capture, leaves_of
from tightrope.train.program.labels import (
    PUBLIC,
    SIZE,
    Index,
    Label,
    Mixes,
    NotCaptured,
    Rows,
    Unknown,
)
from tightrope.train.program.proof import prove
from tightrope.train.program.text import digest, load, save, text

__all__ = [
    "PUBLIC", "SIZE", "Index", "Label", "Mixes", "NotCaptured", "Place", "Program", "Rows",
    "Unknown", "capture", "digest", "leaves_of", "load", "prove", "save", "text",
]  # fmt: skip
