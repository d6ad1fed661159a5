"""A batch of one example: whatever no layer rule saw is differentiated as a whole."""

from __future__ import annotations

from torch import Tensor, nn

from tightrope.train.gradients.custom import custom_rule
from tightrope.train.gradients.graph import explore, has_batch
from tightrope.train.gradients.owners import Owners
from tightrope.train.gradients.passes import Work
from tightrope.train.gradients.plan import shared_parameters
from tightrope.train.gradients.recorder import Use

__all__ = ["single_example_work"]


def single_example_work(
    parameters: list[nn.Parameter], losses: Tensor, uses: list[Use], scale: float, owners: Owners
) -> Work:
    """The gradient of one example is the ordinary gradient, so no junction has to be found."""
    layers = [use for use in uses if use.rule is not custom_rule and has_batch(use, owners.rows)]
    leaves = explore(losses, layers, {id(p) for p in parameters}).leaves
    direct = [p for p in parameters if id(p) in leaves]
    rows = {id(p): i for i, p in enumerate(parameters)}
    shared = shared_parameters(layers, direct)
    return Work(
        losses, parameters, rows, layers, [], scale, owners, shared, direct, hooked=True
    )  # no plan says whether there are hooks
