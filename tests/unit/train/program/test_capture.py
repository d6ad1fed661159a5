"""What is captured, what is refused in words, and that the model is left as it was."""

from __future__ import annotations

import collections
import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tightrope.errors import InvalidInput
from tightrope.train.program import (
    Mixes,
    NotCaptured,
    Program,
    Rows,
    capture,
    digest,
    leaves_of,
    prove,
)

B, D, C = 5, 6, 3
Loss = Callable[..., Any]


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(B, D), torch.randint(0, C, (B,))


def plain(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), y, reduction="none")


def proved(loss: Loss, model: nn.Module | None = None, data: Any = None, **options: Any) -> Program:
    program = capture(model or nn.Linear(D, C), loss, data or batch(), rows=B, **options)
    prove(program, B)
    return program


def refused(words: str, loss: Loss, model: nn.Module | None = None, data: Any = None) -> None:
    """Refused in every tier, with these words."""
    with pytest.raises(NotCaptured, match=words) as caught:
        capture(model or nn.Linear(D, C), loss, data or batch(), rows=B)
    assert caught.value.final


def values(program: Program, data: Any) -> Any:
    """Losses of the captured graph."""
    leaves = iter(leaves_of(data))
    inputs = [next(leaves) if p.kind == "batch" else program.tensor(p) for p in program.places]
    return program.module(*inputs)[-len(program.losses) :]


# What works.


def test_the_graph_computes_the_losses() -> None:
    model, data = nn.Linear(D, C), batch()
    program = proved(plain, model)
    assert program.batch is None
    torch.testing.assert_close(values(program, data)[0], plain(model, *data))


def test_weights_are_read_live() -> None:
    model, data = nn.Linear(D, C), batch()
    program = proved(plain, model)
    with torch.no_grad():
        model.weight.mul_(2.0)
    torch.testing.assert_close(values(program, data)[0], plain(model, *data))


def test_no_value_of_the_batch_is_read() -> None:
    model, (x, y) = nn.Linear(D, C), batch()
    first = capture(model, plain, (x, y), rows=B)
    other = capture(model, plain, (x * float("nan"), y - 99), rows=B)
    assert digest(other) == digest(first)
    prove(other, B)


def test_a_dictionary_of_losses() -> None:
    program = proved(lambda m, x, y: {"a": plain(m, x, y), "b": m(x).sum(1)})
    assert program.names == ("a", "b")
    labels = prove(program, B)
    assert [labels[node] for node in program.losses] == [Rows(0), Rows(0)]


class Encoding(collections.UserDict):  # type: ignore[type-arg]
    """As a tokenizer of Hugging Face returns it."""

    def __getattr__(self, name: str) -> Any:
        return self.data[name]


Pair = collections.namedtuple("Pair", "x y")


@pytest.mark.parametrize("kind", [dict, Encoding, collections.OrderedDict, Pair], ids=str)
def test_batches_of_many_forms(kind: Any) -> None:
    x, y = batch()
    item = Pair(x, y) if kind is Pair else kind({"x": x, "y": y})

    def loss(m: nn.Module, item: Any) -> Tensor:
        assert type(item) is kind
        first, second = (item.x, item.y) if kind is Pair else (item["x"], item["y"])
        return plain(m, first, second)

    program = proved(loss, data=(item,))
    assert [p.kind for p in program.places].count("batch") == 2


def test_regions_without_gradients_stay_without() -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            weight = m(x).softmax(1)[:, 0]
        return plain(m, x, y) * weight

    model, data = nn.Linear(D, C), batch()
    program = proved(loss, model)
    (found,) = torch.autograd.grad(values(program, data)[0].sum(), model.weight)
    (wanted,) = torch.autograd.grad(loss(model, *data).sum(), model.weight)
    torch.testing.assert_close(found, wanted)


class Counter(nn.Module):
    n: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(D, C)
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.n += 1
        out: Tensor = self.layer(x) * self.n
        return out


def test_public_buffers_are_updates_and_are_not_written_by_a_capture() -> None:
    model = Counter()
    program = proved(plain, model)
    assert [name for name, _ in program.updates] == ["n"]
    assert float(model.n) == 0


def test_bags_of_one_length_become_a_table() -> None:
    for mode in ("sum", "mean", "max"):
        model = nn.EmbeddingBag(20, C, mode=mode, padding_idx=0)
        ids = torch.randint(0, 3, (B, 4))
        ids[0] = 0

        def loss(m: nn.Module, ids: Tensor) -> Tensor:
            return m(ids).square().sum(1)

        program = proved(loss, model, (ids,))
        torch.testing.assert_close(values(program, (ids,))[0], loss(model, ids))


LOSSES: dict[str, Loss] = {
    "cross_entropy of images": lambda m, x, y: functional.cross_entropy(
        m(x)[:, :, None].expand(-1, -1, 2), y[:, None].expand(-1, 2), reduction="none"
    ).mean(1),
    "label smoothing": lambda m, x, y: functional.cross_entropy(
        m(x), y, reduction="none", label_smoothing=0.1
    ),
    "weights of classes": lambda m, x, y: functional.cross_entropy(
        m(x), y, reduction="none", weight=torch.tensor([1.0, 2.0, 3.0])
    ),
    "soft labels": lambda m, x, y: functional.cross_entropy(
        m(x), m(x).softmax(1), reduction="none"
    ),
    "nll": lambda m, x, y: functional.nll_loss(m(x).log_softmax(1), y, reduction="none"),
    "bce": lambda m, x, y: functional.binary_cross_entropy(
        m(x)[:, 0].sigmoid(), (y > 0).float(), reduction="none"
    ),
    "bce with logits": lambda m, x, y: functional.binary_cross_entropy_with_logits(
        m(x)[:, 0], (y > 0).float(), reduction="none"
    ),
    "mse": lambda m, x, y: functional.mse_loss(m(x)[:, 0], y.float(), reduction="none"),
    "l1": lambda m, x, y: functional.l1_loss(m(x)[:, 0], y.float(), reduction="none"),
    "smooth l1": lambda m, x, y: functional.smooth_l1_loss(m(x)[:, 0], y.float(), reduction="none"),
    "huber": lambda m, x, y: functional.huber_loss(m(x)[:, 0], y.float(), reduction="none"),
    "kl": lambda m, x, y: functional.kl_div(
        m(x).log_softmax(1), x[:, :C].softmax(1), reduction="none"
    ).sum(1),
    "poisson": lambda m, x, y: functional.poisson_nll_loss(m(x)[:, 0], y.float(), reduction="none"),
    "gaussian": lambda m, x, y: functional.gaussian_nll_loss(
        m(x)[:, 0], y.float(), m(x)[:, 1].exp(), reduction="none"
    ),
    "hinge": lambda m, x, y: functional.hinge_embedding_loss(
        m(x)[:, 0], y.float().sign() * 2 - 1, reduction="none"
    ),
    "soft margin": lambda m, x, y: functional.soft_margin_loss(
        m(x)[:, 0], y.float(), reduction="none"
    ),
    "multilabel soft margin": lambda m, x, y: functional.multilabel_soft_margin_loss(
        m(x), (x[:, :C] > 0).float(), reduction="none"
    ),
    "multi margin": lambda m, x, y: functional.multi_margin_loss(m(x), y, reduction="none"),
    "multilabel margin": lambda m, x, y: functional.multilabel_margin_loss(
        m(x), y[:, None].expand(-1, C), reduction="none"
    ),
    "margin ranking": lambda m, x, y: functional.margin_ranking_loss(
        m(x)[:, 0], m(x)[:, 1], y.float().sign(), reduction="none"
    ),
    "cosine embedding": lambda m, x, y: functional.cosine_embedding_loss(
        m(x), x[:, :C], y.sign() * 2 - 1, reduction="none"
    ),
    "triplet": lambda m, x, y: functional.triplet_margin_loss(
        m(x), m(x + 1), m(x - 1), reduction="none"
    ),
    "triplet with cosine distance": lambda m, x, y: functional.triplet_margin_with_distance_loss(
        m(x),
        m(x + 1),
        m(x - 1),
        distance_function=lambda a, b: 1 - functional.cosine_similarity(a, b),
        reduction="none",
    ),
    "focal": lambda m, x, y: (
        (1 - m(x).softmax(1).gather(1, y[:, None])[:, 0]) ** 2 * plain(m, x, y)
    ),
    "negatives of one's own": lambda m, x, y: functional.cross_entropy(
        torch.einsum("bc,bkc->bk", m(x), m(x)[:, None].expand(-1, 4, -1)),
        torch.zeros_like(y),
        reduction="none",
    ),
    "picked by row numbers": lambda m, x, y: -m(x).log_softmax(1)[torch.arange(x.shape[0]), y],
    "complex numbers": lambda m, x, y: torch.fft.rfft(m(x), dim=1).abs().square().sum(1),
    "a mask that is written": lambda m, x, y: (
        m(x).index_put((x[:, :C] > 0,), torch.zeros(())).sum(1)
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_that_people_use(name: str) -> None:
    torch.manual_seed(0)
    model, data = nn.Linear(D, C), batch()
    program = proved(LOSSES[name], model)
    torch.testing.assert_close(values(program, data)[0], LOSSES[name](model, *data))


# What is refused in words.


@pytest.mark.parametrize(
    ("words", "loss"),
    [
        ('reduction="none"', lambda m, x, y: functional.cross_entropy(m(x), y)),
        ("returned nothing", lambda m, x, y: None),
        ("mean over the other dimensions", lambda m, x, y: m(x)),
        ("returned tuple", lambda m, x, y: (plain(m, x, y),)),
        ("empty dictionary", lambda m, x, y: {}),
        ("floating point", lambda m, x, y: y),
    ],
)
def test_what_a_loss_may_not_return(words: str, loss: Loss) -> None:
    refused(words, loss)


@pytest.mark.parametrize(
    ("words", "more"), [("Python value", 3), ("one number", torch.ones(()))], ids=["int", "tensor"]
)
def test_what_a_batch_may_not_have(words: str, more: Any) -> None:
    refused(words, lambda m, x, y, k: plain(m, x, y) * k, data=(*batch(), more))


def test_a_model_on_another_device() -> None:
    refused("on cpu and the model on meta", plain, nn.Linear(D, C, device="meta"))


def test_a_batch_that_is_no_tuple() -> None:
    with pytest.raises(InvalidInput, match="tuple"):
        capture(nn.Linear(D, C), plain, [*batch()], rows=B)  # type: ignore[arg-type]


def test_backward_hooks_of_modules() -> None:
    model = nn.Sequential(nn.Linear(D, C))
    model[0].register_full_backward_hook(lambda module, g, h: None)
    refused("backward hook is registered on the module 0", plain, model)


def test_hooks_of_parameters() -> None:
    model = nn.Linear(D, C)
    model.weight.register_hook(lambda g: g * 2)
    refused("gradient of weight", plain, model)


def test_hooks_of_parameters_within_the_loss() -> None:
    def loss(m: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
        m.weight.register_hook(lambda g: g / g.norm())
        return plain(m, x, y)

    refused("parameter", loss)


def test_a_buffer_that_is_assigned() -> None:
    def loss(m: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
        m.last = x.detach().mean(0)
        return plain(m, x, y)

    model = nn.Linear(D, C)
    model.register_buffer("last", torch.zeros(D))
    kept = model.last
    refused("assigns a tensor to last", loss, model)
    assert model.last is kept


def test_a_buffer_that_is_written_from_data() -> None:
    def loss(m: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
        m.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return plain(m, x, y)

    model = nn.Linear(D, C)
    model.register_buffer("mean", torch.zeros(D))
    with pytest.raises(Mixes):
        proved(loss, model)


LIST: list[Any] = []
TALLY = {"n": 0}


def remembers_in_a_list(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    past = LIST[-1] if LIST else 0.0
    LIST.append(x.detach().mean(0))
    return plain(m, x - past, y)


def remembers_in_a_global(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    TALLY["n"] += 1
    return plain(m, x, y) * TALLY["n"]


def remembers_in_the_model(m: Any, x: Tensor, y: Tensor) -> Tensor:
    m.calls = getattr(m, "calls", 0) + 1
    return plain(m, x, y)


def remembers_a_tensor(m: Any, x: Tensor, y: Tensor) -> Tensor:
    m.last = x.detach().sum()
    return plain(m, x, y)


@pytest.mark.parametrize(
    "loss",
    [remembers_in_a_list, remembers_in_a_global, remembers_in_the_model, remembers_a_tensor],
)
def test_memory_between_calls(loss: Loss) -> None:
    model = nn.Linear(D, C)
    before = dict(model.__dict__)
    refused("from one batch to the next|assigns a tensor", loss, model)
    assert LIST == []
    assert TALLY == {"n": 0}
    assert model.__dict__ == before


def test_memory_in_a_closure() -> None:
    seen: list[int] = []
    count = 0

    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        nonlocal count
        count += 1
        seen.append(count)
        return plain(m, x, y) * count

    refused("from one batch to the next", loss)
    assert (seen, count) == ([], 0)


class SetsItselfUp(nn.Module):
    """As models of Hugging Face do at their first call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(D, C)
        self.ready = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.ready:
            self.layer.register_forward_hook(lambda module, args, out: out * 2)
            self.ready = True
        out: Tensor = self.layer(x)
        return out


def test_a_model_that_sets_itself_up_is_captured_and_left_as_it_was() -> None:
    model, data = SetsItselfUp(), batch()
    program = proved(plain, model)
    assert not model.ready
    assert not model.layer._forward_hooks
    torch.testing.assert_close(values(program, data)[0], plain(copy.deepcopy(model), *data))


def test_writes_to_the_batch() -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2.0)
        return plain(m, x, y)

    refused("writes into the batch", loss)


def test_writes_to_a_parameter() -> None:
    def loss(m: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            m.bias.mul_(0.5)
        return plain(m, x, y)

    refused("writes into bias|parameter", loss)


OUTSIDE = torch.randn(D)


def uses_a_tensor_from_outside(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return plain(m, x - OUTSIDE, y)


def test_tensors_from_outside() -> None:
    refused("register_buffer", uses_a_tensor_from_outside)
    proved(uses_a_tensor_from_outside, public=[OUTSIDE])


@pytest.mark.parametrize("draw", [random.random, np.random.rand], ids=["random", "numpy"])
def test_random_numbers_of_python(draw: Callable[[], float]) -> None:
    refused("random number", lambda m, x, y: plain(m, x, y) * (1 + draw()))


def test_layer_drop() -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return plain(m, x, y) if torch.rand([]) > 0.1 else plain(m, 2 * x, y)

    with pytest.raises(NotCaptured, match="layerdrop = 0"):
        capture(nn.Linear(D, C), loss, batch(), rows=B)


@pytest.mark.parametrize(
    "loss",
    [
        lambda m, x, y: plain(m, x, y) * x.sum().item(),
        lambda m, x, y: plain(m, x if x.sum() > 0 else -x, y),
        lambda m, x, y: plain(m, x, y) * x[0, 0].item(),
    ],
    ids=["item", "branch", "one number"],
)
def test_values_that_are_read(loss: Loss) -> None:
    with pytest.raises((NotCaptured, Mixes)):
        proved(loss)


def test_a_refusal_names_operator_line_and_what_to_do() -> None:
    def loss(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return plain(m, x - x.mean(0), y)  # this line

    line = loss.__code__.co_firstlineno + 1
    with pytest.raises(Mixes) as caught:
        proved(loss)
    assert str(caught.value).startswith(f"aten.mean.dim at {__file__}:{line}: ")
    assert "Reduce over the other dimensions" in str(caught.value)


def test_the_generator_is_left_as_it_was() -> None:
    model, data = nn.Sequential(nn.Linear(D, C), nn.Dropout(0.5)), batch()
    state = torch.get_rng_state()
    proved(plain, model, data)
    assert torch.equal(state, torch.get_rng_state())


def test_gradients_inside_the_loss() -> None:
    def penalty(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        losses = plain(m, x, y)
        (g,) = torch.autograd.grad(losses.sum(), x, create_graph=True)
        return losses + g.square().sum(1)

    def inner_step(m: nn.Linear, x: Tensor, y: Tensor) -> Tensor:
        slopes = torch.func.grad(lambda w: plain(m, x @ w, y).sum())(m.weight.t() @ m.weight)
        return plain(m, x @ slopes, y)

    for loss in (penalty, inner_step):
        with pytest.raises(NotCaptured, match="computes gradients by itself"):
            capture(nn.Linear(D, C), loss, batch(), rows=B)
