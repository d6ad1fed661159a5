"""A recurrent layer's steps as one node of the graph, with the backward pass written out.

Autograd would keep a dozen small nodes for each position. What a step's gradient is multiplied by
depends on the forward pass alone, so it is computed for all positions at once; what is left for
each position is one matrix product and a few small operations. In half precision the recursions of
the backward pass are kept in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tightrope.errors import InvalidInput
from tightrope.train.gradients.rounding import no_autocast

State = tuple[Tensor, ...]
_AT_A_TIME = 16  # steps

# A cell is two functions. forward: (input projection, hidden projection, state) -> new state, and
# what is to be kept. backward: gradients at the input projections (T, B, gates) and at the first
# state; from what was kept, stacked, the gradients of all outputs (T, B, h) and of the last state,
# and the hidden weights.


def _lstm(x: Tensor, h: Tensor, state: State) -> tuple[State, State]:
    if x.is_cuda:
        out, c, gates = torch.ops.aten._thnn_fused_lstm_cell(x, h, state[1])
        return (out, c), (gates, state[1], c)
    gates = x + h
    i, f, g, o = gates.chunk(4, dim=1)
    for part in (i, f, o):
        part.sigmoid_()
    c = torch.addcmul(f * state[1], i, g.tanh_())
    return (o * torch.tanh(c), c), (gates, state[1], c)


def _lstm_back(
    kept: State, outs: Tensor, last: list[Tensor], weight: Tensor
) -> tuple[Tensor, State]:
    dh, dc = last
    found = torch.empty_like(kept[0])
    if found.is_cuda:  # two launches for each position: CUDA's own step, and the matrix product
        gates, before, c = kept
        outs, dh, dc = (part.to(gates.dtype) for part in (outs, dh, dc))
        for step in reversed(range(len(outs))):
            found[step], dc, _ = torch.ops.aten._thnn_fused_lstm_cell_backward_impl(
                dh + outs[step], dc, before[step], c[step], gates[step], False
            )
            dh = found[step] @ weight
        return found, (dh, dc)
    gates, before, c = (_wide(part) for part in kept)
    i, f, g, o = gates.unflatten(2, (4, -1)).unbind(2)
    t = torch.tanh(c)
    slopes = torch.stack(
        [g * i * (1 - i), before * f * (1 - f), i * (1 - g * g), t * o * (1 - o)], dim=2
    )  # (T, B, 4, h): of the first three by the cell's gradient, of the last by the output's
    through = o * (1 - t * t)
    for step in reversed(range(len(outs))):
        dh = dh + outs[step]
        total = torch.addcmul(dc, dh, through[step])
        parts = found[step].unflatten(1, (4, -1))
        torch.mul(slopes[step, :, :3], total[:, None], out=parts[:, :3])
        torch.mul(slopes[step, :, 3], dh, out=parts[:, 3])
        dh, dc = _wide(found[step] @ weight), total * f[step]
    return found, (dh, dc)


def _gru(x: Tensor, h: Tensor, state: State) -> tuple[State, State]:
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, dim=1), h.chunk(3, dim=1)
    r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
    n = torch.tanh(torch.addcmul(xn, r, hn))
    return (n + z * (state[0] - n),), (r, z, n, hn, state[0])


def _gru_back(
    kept: State, outs: Tensor, last: list[Tensor], weight: Tensor
) -> tuple[Tensor, State]:
    r, z, n, hn, before = (_wide(part) for part in kept)
    new = (1 - z) * (1 - n * n)
    slopes = torch.stack([hn * r * (1 - r) * new, (before - n) * z * (1 - z), new], dim=2)
    hidden = slopes.clone()
    hidden[:, :, 2] *= r
    return _unrolled((slopes, hidden, z), kept[0].dtype, outs, last, weight)


def _tanh(x: Tensor, h: Tensor, state: State) -> tuple[State, State]:
    out = torch.tanh(x + h)
    return (out,), (out,)


def _relu(x: Tensor, h: Tensor, state: State) -> tuple[State, State]:
    out = torch.relu(x + h)
    return (out,), (out,)


def _tanh_back(
    kept: State, outs: Tensor, last: list[Tensor], weight: Tensor
) -> tuple[Tensor, State]:
    return _simple_back(1 - _wide(kept[0]).square(), kept, outs, last, weight)


def _relu_back(
    kept: State, outs: Tensor, last: list[Tensor], weight: Tensor
) -> tuple[Tensor, State]:
    return _simple_back((_wide(kept[0]) > 0).to(outs.dtype), kept, outs, last, weight)


def _simple_back(
    slopes: Tensor, kept: State, outs: Tensor, last: list[Tensor], weight: Tensor
) -> tuple[Tensor, State]:
    none, slopes = torch.zeros_like(slopes[:, :1, :1]), slopes.unsqueeze(2)
    return _unrolled((slopes, slopes, none), kept[0].dtype, outs, last, weight)


def _unrolled(
    slopes: tuple[Tensor, Tensor, Tensor],
    dtype: torch.dtype,
    outs: Tensor,
    last: list[Tensor],
    weight: Tensor,
) -> tuple[Tensor, State]:
    """Cells whose state is their output. slopes: (T, B, parts, h) at the input and at the hidden
    projection, and by how much of the output's gradient the state before gets directly."""
    inputs, hidden, direct = slopes
    reached = torch.empty_like(outs)
    (dh,) = last
    for step in reversed(range(len(outs))):
        reached[step] = dh + outs[step]
        product = (hidden[step] * reached[step][:, None]).flatten(1).to(dtype)
        dh = torch.addcmul(_wide(product @ weight), direct[step], reached[step])
    return (inputs * reached[:, :, None]).flatten(2).to(dtype), (dh,)


# By mode: torch's own function of the whole layer, and a cell of ours.
_LAYERS: dict[str, tuple[Any, Any, Any]] = {
    "LSTM": (torch.lstm, _lstm, _lstm_back),
    "GRU": (torch.gru, _gru, _gru_back),
    "RNN_TANH": (torch.rnn_tanh, _tanh, _tanh_back),
    "RNN_RELU": (torch.rnn_relu, _relu, _relu_back),
}


def _wide(values: Tensor) -> Tensor:
    return values if values.element_size() > 2 else values.float()


def _stacked(steps: Iterator[State], length: int) -> list[Tensor]:
    """Values of one step after another, each kind in one tensor: two along 1, the others along 0.

    They are moved there some at a time. Small tensors of all steps, stacked at the end, would be
    twice the memory; on a GPU, where small tensors have pages of their own, for good.
    """
    whole, waiting = list[Tensor](), list[State]()
    for done, values in enumerate(steps, start=1):
        waiting.append(values)
        if len(waiting) < _AT_A_TIME and done < length:
            continue
        for kind, one in enumerate(values):
            dim = 1 if kind < 2 else 0
            if kind == len(whole):
                whole.append(one.new_empty([*one.shape[:dim], length, *one.shape[dim:]]))
            place = whole[kind].narrow(dim, done - len(waiting), len(waiting))
            torch.stack([each[kind] for each in waiting], dim, out=place)
        waiting.clear()
    return whole


class _Recurrence(torch.autograd.Function):
    """Outputs (B, T, h), the last state, states before each step, the GRU's reset gates."""

    @staticmethod
    def forward(
        ctx: Any,
        mode: str,
        weight: Tensor,
        bias: Tensor | None,
        projected: Tensor,
        *state: Tensor,
    ) -> tuple[Tensor, ...]:
        length = projected.shape[1]

        def steps() -> Iterator[State]:
            nonlocal state
            for t in range(length):
                before = state[0]
                hidden = functional.linear(before, weight, bias)
                state, kept = _LAYERS[mode][1](projected[:, t], hidden, state)
                yield (before, state[0], *kept)

        before, outs, *kept = _stacked(steps(), length)
        ctx.mode = mode
        ctx.save_for_backward(weight, *kept)
        ctx.set_materialize_grads(False)
        read = [before, kept[0].transpose(0, 1)] if mode == "GRU" else [before]
        ctx.mark_non_differentiable(*read)
        # clones: what the caller may write to is not what is kept
        return (outs, *(part.clone() for part in state), *read)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        weight, *kept = ctx.saved_tensors
        shape = (*kept[-1].shape[:2], weight.shape[1])
        wide = _wide(kept[0][:0])
        outs = wide.new_zeros(shape) if grads[0] is None else _wide(grads[0]).transpose(0, 1)
        states = 2 if ctx.mode == "LSTM" else 1
        last = [wide.new_zeros(shape[1:]) if g is None else _wide(g) for g in grads[1 : 1 + states]]
        with torch.no_grad(), no_autocast(weight.device):
            found, first = _LAYERS[ctx.mode][2](tuple(kept), outs, last, weight)
        narrow = [part.to(found.dtype) for part in first]
        return (None, None, None, found.transpose(0, 1), *narrow)


def recurrence(
    mode: str, projected: Tensor, weight: Tensor, bias: Tensor | None, *state: Tensor
) -> State:
    """All steps over the input projections (B, T, gates), from a state, in their type.

    weight, bias: of the hidden projection; they are not differentiated here.
    Returns the outputs (B, T, h), the last state, and what the layer's rule reads: the hidden
    states before each step and, of a GRU, the reset gates.
    """
    if projected.shape[1] == 0:
        raise InvalidInput("A recurrent layer came with sequences of no steps; give at least one.")
    hidden = [None if p is None else p.detach().to(projected.dtype) for p in (weight, bias)]
    start = [part.to(projected.dtype) for part in state]
    with no_autocast(projected.device):
        found = _Recurrence.apply(mode, *hidden, projected, *start)  # type: ignore[no-untyped-call]
    return tuple(found)


_SCHEMA = (
    "(str mode, Tensor x, Tensor[] hx, Tensor[] params, bool has_biases, int num_layers, "
    "float dropout, bool train, bool bidirectional, bool batch_first) -> Tensor[]"
)
torch.library.define("tightrope::recurrent", _SCHEMA)


@torch.library.impl("tightrope::recurrent", "CompositeExplicitAutograd")
def _layer(mode: str, x: Tensor, hx: list[Tensor], params: list[Tensor], *rest: Any) -> Any:
    """A whole recurrent layer as one operator of a captured program: outputs, last states.

    torch's own would be taken apart, step by step, each time a program is traced. What a run
    computes with is `sites.Recurrent`; this is the same by torch's function, without gradients.
    """
    with torch.no_grad():
        return [
            part.clone()
            for part in _LAYERS[mode][0](x, hx if mode == "LSTM" else hx[0], params, *rest)
        ]


@torch.library.register_fake("tightrope::recurrent")
def _shapes(mode: str, x: Tensor, hx: list[Tensor], params: list[Tensor], *rest: Any) -> Any:
    bidirectional = rest[4]
    width = hx[0].shape[2] * (2 if bidirectional else 1)
    return [x.new_empty(*x.shape[:2], width), *(x.new_empty(state.shape) for state in hx)]


def captured_layer(mode: str, function: Any) -> Any:
    """What stands for `torch.lstm` and its like while a loss is captured."""

    def run(x: Tensor, hx: Any, params: Any, *rest: Any) -> Any:
        if isinstance(params, Tensor) or x.dim() != 3:  # a packed sequence, or one without examples
            return function(x, hx, params, *rest)
        states = [hx] if isinstance(hx, Tensor) else list(hx)
        if len(states) == 2 and states[0].shape[2] != states[1].shape[2]:  # an LSTM's projections
            return function(x, hx, params, *rest)
        return tuple(torch.ops.tightrope.recurrent(mode, x, states, list(params), *rest))

    return run


# By torch's function.
CAPTURED_LAYERS = {layer[0]: captured_layer(mode, layer[0]) for mode, layer in _LAYERS.items()}
