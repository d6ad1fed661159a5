"""One style for all pictures: colour-blind safe, labelled, quiet."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from tightrope.errors import InvalidInput, MissingTool
from tightrope.evidence.files import write_bytes

# Okabe-Ito: distinct for people with any common colour-vision deficiency
COLOURS = {
    "exact": "#009E73",
    "bound": "#1f83c4",
    "estimate": "#E69F00",
    "attack": "#D55E00",
    "other": "#CC79A7",
    "plain": "#808080",
}
_DARK_GROUND, _DARK_INK = "#14181d", "#e6e6e6"
_DARK = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), _DARK_GROUND),
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"),
        _DARK_INK,
    ),
}
_FORMATS = {".png", ".svg", ".pdf"}


@contextmanager
def figure(
    columns: int = 1,
    rows: int = 1,
    width: float = 6.4,
    height: float = 4.2,
    ground: Literal["light", "dark"] = "light",
) -> Iterator[Any]:
    """A figure and its axes in the house style, on a light or a dark ground."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise MissingTool("Pictures need Matplotlib: pip install 'tightrope[plot]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    second: dict[Any, Any] = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "font.size": 10,
        "legend.frameon": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "tightrope",  # the same picture gives the same file
    }
    if ground == "dark":
        second |= _DARK
    with plt.rc_context(second):
        made, axes = plt.subplots(rows, columns, figsize=(width * columns, height * rows))
        try:
            yield made, axes
        finally:
            plt.close(made)


def save(made: Any, path: str | Path) -> Path:
    target = Path(path)
    if target.suffix.lower() not in _FORMATS:
        raise InvalidInput(f"Pictures are written as .png, .svg or .pdf; got {target.name!r}.")
    form = target.suffix.lower().removeprefix(".")
    undated = {"Date": None} if form == "svg" else None
    drawn = io.BytesIO()
    made.savefig(drawn, format=form, dpi=150, bbox_inches="tight", metadata=undated)
    return write_bytes(target, drawn.getvalue())
