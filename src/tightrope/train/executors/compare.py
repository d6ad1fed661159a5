"""At the start of a run: the executor's clipped sum against one example at a time, on made data.

Nothing of the user's data is read. Both sides draw the same constants wherever they draw at random,
and both compute in float32 what they would compute in half precision, whose rounding would hide a
difference. What differs by more than rounding is refused: what runs would not be what the user
wrote.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode  # documented, in a private place

from tightrope.errors import InvalidInput
from tightrope.train.clip import FlatClip
from tightrope.train.executors.plain import Parameters
from tightrope.train.executors.unproved import gradients_of_one
from tightrope.train.gradients.rounding import exact_layers
from tightrope.train.program.capture import flatten
from tightrope.train.program.lines import line_of_error
from tightrope.train.ranks import is_part

aten = torch.ops.aten
COMPARED = 3  # rows
_ROUNDING = 2e-3  # by which sums of one program may differ
_HALVES = (torch.float16, torch.bfloat16)


def compare(
    executor: Any,
    model: nn.Module,
    loss: Callable[..., Any],
    example: tuple[Any, ...],
    parameters: Parameters,
    *,
    of_one: Callable[..., Any] = gradients_of_one,
    total_of: Callable[[list[Tensor]], float] = sum,  # type: ignore[assignment]
) -> None:
    """example: a batch of the shapes that will come; none of its values is used.

    of_one: the gradients of one example; total_of: adds numbers, those of all ranks where each
        has a part.
    """
    rows = min(COMPARED, executor.size)
    batch = _widened(made_data(example, rows))
    leaves, build = flatten(batch)
    # Fused attention draws inside of its kernel; the plain formula draws by an operator.
    plain_attention = sdpa_kernel(SDPBackend.MATH)
    with (
        _wide(model), exact_layers(), _without_cudnn(), plain_attention,
        FloatForHalf(), ConstantDraws(),
    ):  # fmt: skip
        buffers = {name: value.clone() for name, value in model.named_buffers()}
        try:
            found, _ = executor.clipped_sum(batch, FlatClip(1e12), rows)
        except RuntimeError as error:
            check_runs(model, loss, example)
            raise InvalidInput(_fails(error)) from error
        off = [total.double() for total in found.sums]
        size = math.sqrt(float(total_of([total.square().sum() for total in off])))
        for row in range(rows):
            one = build([leaf[row : row + 1] for leaf in leaves])
            _, gradients = of_one(model, loss, one, parameters)
            for total, g in zip(off, gradients, strict=True):
                if g is not None:
                    total -= g.double()
            with torch.no_grad():  # each example finds them as the program does
                for name, value in model.named_buffers():
                    value.copy_(buffers[name])
    length = math.sqrt(float(total_of([total.square().sum() for total in off])))
    if found.nonfinite or not math.isfinite(length):
        return  # made data show nothing: a logarithm of zero, say
    if length > _ROUNDING * size + 1e-12:
        raise InvalidInput(
            f"On made data the {executor.how} executor's sum of gradients differs from that of one "
            f"example at a time by {length:.3g}, where the sum is {size:.3g} long. The program "
            "that was captured does not do what the loss does in Python; please open an issue with "
            'the model. Until then give isolation="one at a time".'
        )


def _fails(error: Exception) -> str:
    at = line_of_error(error)
    return (
        f"The loss fails by itself on made data of the shapes and types of a record"
        f"{f', at {at}' if at else ''}: {type(error).__name__}: {error}"
    )


def check_runs(model: nn.Module, loss: Callable[..., Any], example: tuple[Any, ...]) -> None:
    """Refuse a loss that fails on made data too: what is wrong is no matter of programs."""
    if any(map(is_part, model.parameters())):
        return
    try:
        alike = copy.deepcopy(model)
    except Exception:  # some parametrised weights cannot be copied
        return
    try:
        with torch.no_grad(), torch.random.fork_rng():
            loss(alike, *made_data(example, COMPARED))
    except Exception as error:
        raise InvalidInput(_fails(error)) from error


def check_mapped(executor: Any, example: tuple[Any, ...]) -> None:
    """Refuse a loss that fails on one example alone, of made data."""
    try:
        with torch.random.fork_rng():
            executor.clipped_sum(made_data(example, 1), FlatClip(1.0), 1)
    except Exception as error:
        raise InvalidInput(_fails(error)) from error


def made_data(example: tuple[Any, ...], rows: int) -> tuple[Any, ...]:
    """Rows of the same form: random numbers, zeros and ones for whole numbers and truth values."""
    leaves, build = flatten(example)
    chance = torch.Generator(device="cpu").manual_seed(0)
    made = []
    for leaf in leaves:
        shape = (rows, *leaf.shape[1:])
        if leaf.is_floating_point() or leaf.is_complex():
            value = torch.rand(shape, generator=chance, device="cpu")
        else:
            value = torch.randint(0, 2, shape, generator=chance, device="cpu")
        made.append(value.to(device=leaf.device, dtype=leaf.dtype))
    built: tuple[Any, ...] = build(made)
    return built


@final
class ConstantDraws(TorchDispatchMode):
    """Inside, random operators give constants that depend on nothing but their arguments."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **named)
        name = func.overloadpacket.__name__
        if name == "native_dropout":
            x, p, train = args
            if train is False or p == 0:
                return x.clone(), torch.ones_like(x, dtype=torch.bool)
            kept = torch.full_like(x, p < 1, dtype=torch.bool)
            return x * kept / (1.0 - p if p < 1 else 1.0), kept
        if name in ("bernoulli_", "bernoulli"):
            out = args[0] if name.endswith("_") else torch.empty_like(args[0])
            return out.fill_(1)
        if name == "rrelu_with_noise":
            return func(*args, **named)
        out = func(*args, **named)
        return out.fill_(0.5 if out.is_floating_point() else 0) if isinstance(out, Tensor) else out


@final
class FloatForHalf(TorchDispatchMode):
    """Inside, operators that would work in half precision work in float32.

    Views and operators that write in place keep their memory, and with it their type.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if not (func.is_view or func._schema.is_mutable):
            args, named = _widened((args, named))
        return func(*args, **named)


def _widened(values: Any) -> Any:
    def one(value: Any) -> Any:
        if isinstance(value, Tensor) and value.dtype in _HALVES:
            return value.float()
        return torch.float32 if isinstance(value, torch.dtype) and value in _HALVES else value

    return pytree.tree_map(one, values)


@contextmanager
def _without_cudnn() -> Iterator[None]:
    """Its recurrent layers lay out weights by the type that autocast asked for."""
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = False
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before


@contextmanager
def _wide(model: nn.Module) -> Iterator[None]:
    """Weights and buffers in half precision are float32 for a while; their memory comes back."""
    halves = [t for t in (*model.parameters(), *model.buffers()) if t.dtype in _HALVES]
    halves = [t for t in halves if not is_part(t)]  # widened where it is gathered
    before = [tensor.data for tensor in halves]
    try:
        for tensor in halves:
            tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, data in zip(halves, before, strict=True):
            tensor.data = data
