"""`tightrope convert`: between (epsilon, delta)-DP, Renyi DP, and Gaussian DP."""

from __future__ import annotations

from typing import Annotated

import typer

from tightrope.cli import options as opt
from tightrope.cli.options import option
from tightrope.guarantee.base import Guarantee

app = typer.Typer(
    help="Convert between (epsilon, delta)-DP, Renyi DP and Gaussian DP, by every route.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_DELTAS = "1e-2,1e-3,1e-5,1e-7,1e-10"
_TYPE_I = "1e-3,1e-2,0.05,0.25,0.5"
_ORDERS = "1.5,2,4,8,16,32"
Deltas = Annotated[str, option("Deltas, separated by commas.", "LIST")]
TypeOne = Annotated[str, option("Type I errors, separated by commas.", "LIST")]
Orders = Annotated[str, option("Renyi orders, separated by commas.", "LIST")]


@app.command("renyi")
def renyi(
    order: Annotated[str, option("Order of the Renyi divergence, above 1.", "ORDER")],
    gamma: Annotated[str, option("Level of the Renyi divergence.", "GAMMA")],
    delta: Annotated[str | None, option("Give delta to get epsilon.", "DELTA")] = None,
    epsilon: Annotated[str | None, option("Give epsilon to get delta.", "EPS")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """(order, gamma)-Renyi DP to (epsilon, delta)-DP.

    Example: `tightrope convert renyi --order 8 --gamma 0.5 --delta 1e-5`
    """
    from tightrope.report.views import renyi_view
    from tightrope.validate import check_epsilon, check_non_negative, check_order

    view = renyi_view(
        check_order(opt.parse_number(order, "order")),
        check_non_negative(opt.parse_number(gamma, "gamma"), "gamma"),
        None if delta is None else opt.parse_delta(delta),
        None if epsilon is None else check_epsilon(opt.parse_number(epsilon, "epsilon")),
    )
    opt.answer(view, as_json, "routes")


@app.command("to-renyi")
def to_renyi(
    epsilon: Annotated[str, option("Epsilon to be guaranteed.", "EPS")],
    delta: Annotated[str, option("Delta to be guaranteed.", "DELTA")],
    order: Annotated[str, option("Order of the Renyi divergence, above 1.", "ORDER")],
    as_json: opt.AsJson = False,
) -> None:
    """The largest Renyi level of one order that still forces (epsilon, delta)-DP."""
    from tightrope.report.views import to_renyi_view
    from tightrope.validate import check_epsilon, check_order

    view = to_renyi_view(
        check_epsilon(opt.parse_number(epsilon, "epsilon")),
        opt.parse_delta(delta),
        check_order(opt.parse_number(order, "order")),
    )
    opt.answer(view, as_json, "routes")


@app.command("gaussian")
def gaussian(
    mu: Annotated[str, option("Parameter of Gaussian DP.", "MU")],
    deltas: Annotated[
        str, option("Delta, or several with commas.", "LIST", "--delta", "--deltas")
    ] = _DELTAS,
    type_i: TypeOne = _TYPE_I,
    orders: Orders = _ORDERS,
    as_json: opt.AsJson = False,
) -> None:
    """mu-Gaussian DP seen as (epsilon, delta)-DP, trade-off curve and Renyi DP (all exact)."""
    from tightrope.guarantee.kinds.gaussian import GaussianGuarantee

    _show_views(GaussianGuarantee(opt.parse_number(mu, "mu")), deltas, type_i, orders, as_json)


@app.command("approx")
def approx(
    epsilon: Annotated[str, option("Epsilon of the guarantee.", "EPS")],
    delta: Annotated[str, option("Delta of the guarantee.", "DELTA")] = "0",
    deltas: Deltas = _DELTAS,
    type_i: TypeOne = _TYPE_I,
    orders: Orders = _ORDERS,
    as_json: opt.AsJson = False,
) -> None:
    """(epsilon, delta)-DP seen as every other pair it implies, trade-off curve and Renyi DP."""
    from tightrope.guarantee.kinds.approx import ApproxGuarantee

    level, failure = opt.parse_number(epsilon, "epsilon"), opt.parse_number(delta, "delta")
    _show_views(ApproxGuarantee(level, failure), deltas, type_i, orders, as_json)


def _numbers(text: str, name: str) -> list[float]:
    return [opt.parse_number(part, name) for part in text.split(",")]


def _show_views(guarantee: Guarantee, deltas: str, type_i: str, orders: str, as_json: bool) -> None:
    from tightrope.report.views import guarantee_view
    from tightrope.validate import check_delta, check_order, check_probability

    view = guarantee_view(
        guarantee,
        [check_delta(d) for d in _numbers(deltas, "deltas")],
        [check_probability(a, "type_i") for a in _numbers(type_i, "type_i")],
        [check_order(a) for a in _numbers(orders, "orders")],
    )
    opt.answer(view, as_json, "guarantee")
