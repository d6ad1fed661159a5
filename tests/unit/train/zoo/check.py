"""Black boxes: is what a program computes right, and is the model left as it was?"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from tightrope.train.clip import FlatClip
from tightrope.train.executors.plain import Plain
from tightrope.train.program import Program, capture, prove

DROPS = ("p", "drop", "dropout", "drop_prob", "drop_path", "drop_path_rate")
MARGIN = 2.0**-10  # a norm that is used for clipping may lie above the true one by so much


def without_dropout(model: nn.Module) -> None:
    """Rates to zero, wherever a module keeps one."""
    for module in model.modules():
        for name, value in vars(module).items():
            rate = isinstance(value, float) and 0 < value <= 1
            if rate and (name in DROPS or "dropout" in name or "layerdrop" in name):
                setattr(module, name, 0.0)


def in_double(values: Any) -> Any:
    def wide(x: Any) -> Any:
        return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x

    return pytree.tree_map(wide, values)


def gradients(
    model: nn.Module, loss: Callable[..., Tensor], batch: Any, names: list[str]
) -> Tensor:
    """Of each example alone, in the precision of the model."""
    found = []
    for i in range(len(pytree.tree_leaves(batch)[0])):
        own = copy.deepcopy(model)  # anew: some count their calls or iterate on their weights
        one = pytree.tree_map(lambda x, i=i: x[i : i + 1].clone(), batch)
        weights = [own.get_parameter(name) for name in names]
        grads = torch.autograd.grad(loss(own, *one).sum(), weights, allow_unused=True)
        pairs = zip(weights, grads, strict=True)
        flat = [(torch.zeros_like(w) if g is None else g).double().flatten() for w, g in pairs]
        found.append(torch.cat(flat))
    return torch.stack(found)


def snapshot(model: nn.Module) -> tuple[Any, dict[str, Tensor]]:
    """What must stay: tensors and what hangs on them, modes, attributes and hooks; and values."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    kept = {name: (id(t), t.requires_grad, t.grad) for name, t in tensors.items()}
    modules = [
        (name, m.training, len(m._forward_hooks), len(m._forward_pre_hooks),
         len(m._backward_hooks), sorted(vars(m)))
        for name, m in model.named_modules()
    ]  # fmt: skip
    return (kept, modules), {name: t.detach().clone() for name, t in tensors.items()}


def assert_left_as_it_was(model: nn.Module, before: tuple[Any, dict[str, Tensor]]) -> None:
    kept, values = snapshot(model)
    assert kept == before[0]
    assert all(torch.equal(values[name], value) for name, value in before[1].items())


def assert_right(
    model: nn.Module,
    batch: tuple[Any, ...],
    loss: Callable[..., Tensor],
    tolerance: float = 1e-4,
) -> Program:
    """Norms, factors and sums of a batch that is filled up by one row, as a run will do it."""
    rows = len(pytree.tree_leaves(batch)[0])
    program = capture(model, loss, batch, rows=rows + 1)
    labels = prove(program, rows + 1)
    parameters = [p for p in model.parameters() if p.requires_grad]
    name_of = {id(p): name for name, p in model.named_parameters()}
    names = [name_of[id(p)] for p in parameters]
    exact = gradients(copy.deepcopy(model).double(), loss, in_double(batch), names)
    norms = exact.norm(dim=1)
    clip = FlatClip(float(norms.median()) or 1.0)
    plain = Plain(program, labels, rows + 1, parameters)
    found, losses = plain.clipped_sum(batch, clip, 1000)
    assert losses.shape == (rows,) and found.examples == rows
    far = float(((found.norms.double() - norms) / norms.clamp(min=1e-12)).abs().max())
    factors = found.factors.double()[0]
    sums = torch.cat([s.double().flatten() for s in found.sums])
    truth, size = (factors[:, None] * exact).sum(0), (factors * norms).norm().clamp(min=1e-12)
    off = float((sums - truth).norm() / size)
    if max(far - MARGIN, off) > tolerance:  # as far off as float32 itself is?
        short = gradients(model, loss, batch, names)
        of_float32 = (short - exact).norm(dim=1) / norms.clamp(min=1e-12)
        tolerance = max(tolerance, 3 * float(of_float32.max()))
    assert far <= tolerance + MARGIN, f"norms are off by {far:.1e}"
    assert off <= tolerance, f"sums are off by {off:.1e}"
    assert bool((factors * norms <= clip.clip_norm * (1 + tolerance)).all())
    return program
