"""`tightrope explore`: a local page that answers while you drag."""

from __future__ import annotations

from typing import Annotated

import typer

from tightrope.cli import options as opt

__all__ = ["explore"]


def explore(
    port: opt.Port = 8700,
    host: Annotated[
        str, typer.Option(help="Address; one that others can reach needs a token.", metavar="HOST")
    ] = ("127.0.0.1"),
    token: Annotated[
        str | None,
        typer.Option(
            help="Visitors must give it, where others can reach the page.", metavar="TOKEN"
        ),
    ] = None,
) -> None:
    """A page on this machine: noise, batch and length as sliders, epsilon while you drag."""
    import uvicorn

    from tightrope.explore.page import explore_app

    app = explore_app(host, token)
    print(f"http://{host}:{port}/  (Ctrl-C ends it)", flush=True)
    uvicorn.run(app, host=host, port=port, log_level="warning")
