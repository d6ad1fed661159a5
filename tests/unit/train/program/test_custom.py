"""Backward passes of the user's own: kept and proved, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tightrope.train.program import Mixes, NotCaptured, Program, capture, digest, load, prove, save
from tightrope.train.program.labels import Rows

B, D, C = 4, 5, 3


def function(back: Callable[[Tensor], Tensor], name: str = "Own") -> Any:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
            return back(g)

    Own.__name__ = name
    return Own.apply


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(B, D), torch.randint(0, C, (B,))


def loss_with(apply: Any) -> Callable[..., Tensor]:
    return lambda m, x, y: functional.cross_entropy(apply(m(x)), y, reduction="none")


def proved(loss: Callable[..., Tensor], model: nn.Module) -> Program:
    program = capture(model, loss, batch(), rows=B)
    prove(program, B)
    return program


def gradient(program: Program, data: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    leaves = iter(data)
    inputs = [next(leaves) if p.kind == "batch" else program.tensor(p) for p in program.places]
    (grad,) = torch.autograd.grad(program.module(*inputs)[-1].sum(), weight)
    return grad


@pytest.mark.parametrize(
    "back",
    [
        lambda g: -g,
        lambda g: g * 3,
        lambda g: g.clamp(-0.1, 0.1),
        lambda g: g / g.norm(dim=1, keepdim=True),
        lambda g: torch.where(g > 0, g, 0.5 * g),
    ],
    ids=["reversed", "scaled", "clamped", "normalised row by row", "bent"],
)
def test_a_function_that_keeps_rows_apart(back: Callable[[Tensor], Tensor]) -> None:
    model, data = nn.Linear(D, C), batch()
    loss = loss_with(function(back))
    program = proved(loss, model)
    (wanted,) = torch.autograd.grad(loss(model, *data).sum(), model.weight)
    torch.testing.assert_close(gradient(program, data, model.weight), wanted)


@pytest.mark.parametrize(
    "back",
    [
        lambda g: g - g.mean(0),
        lambda g: g / g.std(),
        lambda g: g.flip(0),
        lambda g: g / g.norm(),
        lambda g: g + g[:1],
        lambda g: torch.round(g / g.abs().max() * 127) * g.abs().max() / 127,
    ],
    ids=["centred", "std", "flipped", "norm of all", "first row", "one int8 scale"],
)
@pytest.mark.parametrize("hook", [False, True], ids=["function", "hook"])
def test_gradients_that_meet_on_the_way_back(back: Callable[[Tensor], Tensor], hook: bool) -> None:
    def hooked(x: Tensor) -> Tensor:
        x.register_hook(back)
        return x

    apply = hooked if hook else function(back, "Meets")
    with pytest.raises(Mixes, match="backward" if hook else r"Meets\.backward"):
        proved(loss_with(apply), nn.Linear(D, C))


def test_a_hook_that_scales() -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out = m(x)
        out.register_hook(lambda g: g * 2)
        return functional.cross_entropy(out, y, reduction="none")

    model, data = nn.Linear(D, C), batch()
    (wanted,) = torch.autograd.grad(loss(model, *data).sum(), model.weight)
    torch.testing.assert_close(gradient(proved(loss, model), data, model.weight), wanted)


def test_a_public_output_may_not_carry_gradients_between_examples() -> None:
    """Its gradient is a sum over examples; a backward pass could hand it to each of them."""

    class Leaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.clone(), torch.ones(1, C)

        @staticmethod
        def backward(ctx: Any, g: Tensor, h: Tensor) -> Tensor:  # type: ignore[override]
            return g + h

    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        z, one = Leaks.apply(m(x))
        return functional.cross_entropy(z * one, y, reduction="none")

    with pytest.raises(Mixes, match="public tensor"):
        proved(loss, nn.Linear(D, C))


def test_rows_and_a_weight_in_one_function() -> None:
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return x @ w.t()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            x, w = ctx.saved_tensors
            return g @ w, g.t() @ x

    def loss(m: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(Product.apply(x, m.weight), y, reduction="none")

    with pytest.raises(Mixes, match=r"Product\.backward"):
        proved(loss, nn.Linear(D, C))


def test_a_function_of_a_weight() -> None:
    rounds = function(lambda g: g)

    def loss(m: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(functional.linear(x, rounds(m.weight)), y, reduction="none")

    program = proved(loss, nn.Linear(D, C))
    assert all(prove(program, B)[node] == Rows(0) for node in program.losses)


@pytest.mark.parametrize(
    ("words", "back"),
    [
        ("draws random numbers", lambda g: g * torch.rand_like(g)),
        ("cannot be written as two graphs", lambda g: g if g.sum() > 0 else -g),
    ],
    ids=["random", "branch"],
)
def test_what_cannot_be_traced(words: str, back: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(NotCaptured, match=words):
        proved(loss_with(function(back)), nn.Linear(D, C))


def test_functions_work_as_before_after_a_capture() -> None:
    apply = function(lambda g: -g)
    proved(loss_with(apply), nn.Linear(D, C))
    x = torch.ones(2, requires_grad=True)
    apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [-1.0, -1.0]


def test_a_function_is_a_part_of_the_text(tmp_path: Any) -> None:
    programs = [
        proved(loss_with(function(back)), nn.Linear(D, C)) for back in (lambda g: -g, lambda g: g)
    ]
    assert digest(programs[0]) != digest(programs[1])
    save(programs[0], tmp_path / "program.pt2")
    again = load(tmp_path / "program.pt2")
    assert digest(again) == digest(programs[0])
    prove(again, B)
