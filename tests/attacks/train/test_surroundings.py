"""What stands around a run: modes of the caller's, clips of his own, odd models, data and options.

Black boxes: each is refused in a sentence of the library's, or the sum is that of the slow loop.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tightrope.errors import InvalidInput
from tightrope.train import FullBatchSampler, GaussianNoise, PrivateRun, private
from tightrope.train.clip import Clip, FlatClip
from tightrope.train.isolation import isolate

pytestmark = pytest.mark.filterwarnings("ignore")
N, D = 12, 4


def loss(m, x, y):
    return (m(x).flatten(1).sum(1) - y) ** 2


def made(model=None, data=None, own=loss, optimizer=torch.optim.SGD, **options):
    model = nn.Linear(D, 3) if model is None else model
    rule = optimizer(model.parameters(), lr=0.1)
    data = (torch.randn(N, D), torch.rand(N)) if data is None else data
    wanted = {"records": N, "batch_size": 4, "steps": 2, "epsilon": 5.0} | options
    return private(model, rule, data, own, **wanted)


# ---- modes of the caller's ----------------------------------------------------------------------
class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Function(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "mode",
    [Dispatch, Function, lambda: saved_tensors_hooks(lambda x: x, lambda x: x),
     torch.inference_mode],
    ids=["dispatch", "function", "saved values", "inference"],
)  # fmt: skip
def test_nothing_of_the_callers_sees_what_a_step_computes(mode):
    run = made()
    with mode(), pytest.raises(InvalidInput, match="outside of it"):
        run.take_step()
    run.take_step()
    with mode(), pytest.raises(InvalidInput, match="outside of it"):
        made()


# ---- clips --------------------------------------------------------------------------------------
class ByTheLargest(Clip):
    """Factors by the largest norm of those it is given."""

    sensitivity = 1.0

    def factors(self, squared_norms):
        return (1.0 / squared_norms.max().sqrt()).clamp(max=1.0).expand_as(squared_norms[:1])


def test_a_clip_of_ones_own_sees_one_example_at_a_time():
    model, x = nn.Linear(D, 1, bias=False), torch.randn(N, D)
    x[0] *= 1e3
    found = isolate(
        model, lambda m, x: m(x)[:, 0], [(x[:1],)], list(model.parameters()), size=N,
        executor="plain", wanted="proved",
    )  # fmt: skip
    each = [
        found.executor_for((x[:1],)).clipped_sum((b,), ByTheLargest(), 1)[0] for b in (x, x[1:])
    ]
    moved = each[0].sums[0] - each[1].sums[0]
    assert float(moved.norm()) <= 1.0 + 1e-4  # it was 11


# ---- programs -----------------------------------------------------------------------------------
class Assigns(nn.Linear):
    def __init__(self):
        super().__init__(D, D)
        self.first = nn.Parameter(torch.randn(D))

    def forward(self, x):
        h = super().forward(x)
        out = h.new_zeros(len(x), 3, D)
        out[:, 0] = self.first
        out[:, 1:] = h[:, None]
        out[..., 0] = 0
        out[:, 1] += 1
        return out.tanh().sum(1)


@pytest.mark.parametrize("place", ["assigned to slices", "at the numbers of the rows"])
def test_a_weight_that_is_assigned_has_the_gradient_of_the_slow_loop(place):
    torch.manual_seed(0)
    model, x, y = Assigns(), torch.randn(N, D), torch.rand(N)

    def by_number(m, x, y):
        h = m(x)[:, None].repeat(1, 2, 1)
        h[torch.arange(len(x)), 0] = m.first
        return (h.tanh().sum((1, 2)) - y) ** 2

    own = loss if place == "assigned to slices" else by_number
    found = isolate(
        model, own, [(x[:1], y[:1])], list(model.parameters()), size=N, executor="plain",
        wanted="proved",
    )  # fmt: skip
    batch, _ = found.executor_for((x, y)).clipped_sum((x, y), FlatClip(1e9), 1)
    slow = torch.autograd.grad(own(model, x, y).sum(), list(model.parameters()))
    for ours, g in zip(batch.sums, slow, strict=True):
        assert torch.allclose(ours, g, rtol=1e-3, atol=1e-4)


# ---- bad input ----------------------------------------------------------------------------------
class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(D, 3, dtype=torch.cfloat))

    def forward(self, x):
        return (x.to(torch.cfloat) @ self.w).abs()


class Expanded(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(1).expand(D))

    def forward(self, x):
        return x * self.w


class NeedsClosure(torch.optim.SGD):
    def step(self, closure):
        return super().step(closure)


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Linear(D, 3))


X, Y = torch.randn(N, D), torch.rand(N)
ITEMS = [(torch.randn(D), 1.0) for _ in range(N)]


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("lazy layer", {"model": nn.LazyLinear(3)}),
        ("compiled by torch.jit", {"model": scripted()}),
        ("is complex", {"model": Complex()}),
        ("is expanded", {"model": Expanded()}),
        ("fails by itself.*dtype", {"model": nn.Linear(D, 3).double()}),
        ("fails by itself.*positional", {"own": lambda m, x: m(x).sum(1)}),
        ("fails by itself.*shapes", {"model": nn.Linear(D + 1, 3)}),
        ("2 losses", {"own": lambda m, x, y: {"a": loss(m, x, y), "b": loss(m, x, y)}}),
        ("SparseAdam", {"optimizer": torch.optim.SparseAdam}),
        ("several times a step", {"optimizer": NeedsClosure}),
        ("the class StepLR", {"schedule": torch.optim.lr_scheduler.StepLR}),
        ("views must be", {"views": 0}),
        ("public must list", {"public": [3]}),
        ("sampler must be", {"sampler": 3}),
        ("are a dict", {"data": {"x": X, "y": Y}}),
        ("array of type", {"data": (np.array(["a"] * N),)}),
        ("layout", {"data": (X.to_sparse(), Y)}),
        ("cannot be collated", {"data": [(torch.randn(D), None)] * N}),
        ("collate must be", {"data": ITEMS, "collate": 3}),
        ("lengths must list", {"data": ITEMS, "lengths": 5}),
        ("workers must be", {"data": ITEMS, "workers": -1}),
    ],
)
def test_bad_input_is_refused_in_words_before_anything_is_drawn(words, options):
    with pytest.raises(InvalidInput, match=f"(?s){words}"):
        made(**options)


@pytest.mark.parametrize(
    "x", [X.numpy()[::-1], X.numpy().astype(">f4")], ids=["turned round", "big endian"]
)
def test_arrays_in_any_order_of_memory_are_read(x):
    def moved(values):
        torch.manual_seed(0)
        model = nn.Linear(D, 3)
        run = PrivateRun(
            model, torch.optim.SGD(model.parameters(), lr=0.1), (values, Y), loss,
            sampler=FullBatchSampler(), clip=FlatClip(1.0), noise=GaussianNoise(0.0),
            expected_batch_size=N, steps=1,
        )  # fmt: skip
        run.take_step()
        return model.weight.detach()

    plain = np.ascontiguousarray(x).astype(np.float32)
    torch.testing.assert_close(moved(x), moved(torch.from_numpy(plain)))


class Sentences:
    """Tokens of different lengths, and features of a fixed one, which come first."""

    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, i):
        return {"features": torch.ones(16), "tokens": torch.ones(self.lengths[i], dtype=torch.long)}


def of_sentences(m, batch):
    return m["table"](batch["tokens"]).mean((1, 2)) + m["layer"](batch["features"])[:, 0]


def test_parts_that_are_filled_up_are_named():
    """A part whose size is by chance the length of a record stays as it is."""
    model = nn.ModuleDict({"table": nn.Embedding(5, 4), "layer": nn.Linear(16, 1)})

    def run(padding):
        return PrivateRun(
            model, torch.optim.SGD(model.parameters(), lr=0.1), Sentences([5, 16, 7]),
            of_sentences, sampler=FullBatchSampler(), clip=FlatClip(1.0), steps=1,
            noise=GaussianNoise(1.0), expected_batch_size=3, lengths=(8, 32), padding=padding,
        )  # fmt: skip

    with pytest.raises(InvalidInput, match="Name the parts"):
        run(0)
    run({"tokens": 0}).take_step()
