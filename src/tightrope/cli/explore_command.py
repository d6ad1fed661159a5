"""`tightrope explore`: a local page that answers while you drag."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["explore"]


def explore(
    port: Annotated[int, typer.Option(help="Port on this machine.", min=1, max=65535)] = 8700,
    host: Annotated[str, typer.Option(help="Address; others than loopback need a token.")] = (
        "127.0.0.1"
    ),
    token: Annotated[str | None, typer.Option(help="Asked for where others can look.")] = None,
) -> None:
    """A page on this machine: noise, batch and length as sliders, epsilon while you drag."""
    import uvicorn

    from tightrope.explore.serve import explore_app

    app = explore_app(host, token)
    print(f"http://{host}:{port}/  (Ctrl-C ends it)", flush=True)
    uvicorn.run(app, host=host, port=port, log_level="warning")
