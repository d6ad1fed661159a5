"""A batch of one example: whatever no layer rule saw is differentiated as a whole."""

from __future__ import annotations

from collections.abc import Container

from torch import Tensor, nn

from tightrope.errors import ModelNotPrivate
from tightrope.train.gradients.custom import custom_rule
from tightrope.train.gradients.graph import explore
from tightrope.train.gradients.owners import Owners
from tightrope.train.gradients.passes import Work
from tightrope.train.gradients.plan import shared_parameters
from tightrope.train.gradients.recorder import Use
from tightrope.train.gradients.rules import recurrent

__all__ = ["single_example_work"]


def single_example_work(
    parameters: list[nn.Parameter], losses: Tensor, uses: list[Use], scale: float, owners: Owners
) -> Work:
    """The gradient of one example is the ordinary gradient, so no junction has to be found."""
    layers = [use for use in uses if use.rule is not custom_rule and _counts(use, owners.rows)]
    leaves = explore(losses, layers, {id(p) for p in parameters}).leaves
    direct = [p for p in parameters if id(p) in leaves]
    _refuse_hidden(layers, leaves)
    rows = {id(p): i for i, p in enumerate(parameters)}
    shared = shared_parameters(layers, direct)
    return Work(
        losses, parameters, rows, layers, [], scale, owners, shared, direct, hooked=True
    )  # no plan says whether there are hooks


def _counts(use: Use, rows: int) -> bool:
    """Whether a layer's rule is used. All its rows are the example's, however many there are."""
    return use.rule in recurrent.RULES or set(use.rows) == {rows}


def _refuse_hidden(layers: list[Use], leaves: Container[int]) -> None:
    """The graph does not show all uses of a recurrent layer's hidden weight: nobody else has it."""
    inside: set[int] = set()
    others: set[int] = set()
    for use in layers:
        hidden = recurrent.not_shown(use) if use.rule in recurrent.RULES else ()
        inside |= {id(p) for p in hidden}
        own = use.keywords["parameters"] if hidden else use.owner._parameters.values()
        others |= {id(p) for p in own if p is not None and all(p is not h for h in hidden)}
        others |= {id(p) for p in hidden if sum(p is q for q in own) > 1}
    if any(key in leaves for key in inside & others):
        raise ModelNotPrivate(
            "a weight inside a recurrent layer is also that of another layer, and used outside of "
            "both; give one of them a weight of its own, or pass gradients=OneByOne(model)"
        )
