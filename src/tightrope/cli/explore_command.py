"""`tightrope explore`: a local page that answers while you drag."""

from __future__ import annotations

from typing import Annotated

from tightrope.cli import options as opt
from tightrope.cli.options import option


def explore(
    port: opt.Port = 8700,
    host: Annotated[str, option("Address; one that others can reach needs a token.", "HOST")] = (
        "127.0.0.1"
    ),
    token: Annotated[
        str | None, option("Visitors must give it, where others can reach the page.", "TOKEN")
    ] = None,
) -> None:
    """A page on this machine: noise, batch and length as sliders, epsilon while you drag."""
    import uvicorn

    from tightrope.explore.page import explore_app

    app = explore_app(host, token)
    print(f"http://{host}:{port}/  (Ctrl-C ends it)", flush=True)
    uvicorn.run(app, host=host, port=port, log_level="warning")
