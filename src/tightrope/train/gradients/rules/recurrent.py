"""RNN, LSTM and GRU, and their cells, step by step.

The gradient at the input projection (all positions at once) is also, for the gates, the gradient at
the hidden projection, so one edge of the graph gives every parameter's gradient:
w_ih from the inputs, w_hh from the previous hidden states. The hidden weights enter the graph
detached: nothing else needs them there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from tightrope.errors import InvalidInput
from tightrope.train.gradients.forms import Outer
from tightrope.train.gradients.recorder import Recorder, Use, autocast_input
from tightrope.train.gradients.rules.base import Forms, show, shows, trainable
from tightrope.train.gradients.rules.linear import bias_form
from tightrope.train.gradients.rules.recurrence import recurrence

__all__ = ["RULES", "forward_of", "forward_of_cell", "not_shown"]

State = tuple[Tensor, ...]


def forward_of(module: nn.RNNBase, recorder: Recorder) -> Callable[..., Any]:
    """The replacement for `module.forward`, as a method; a copy of the module keeps its own."""
    mine, original = module, cast(Any, type(module).forward)

    def forward(module: nn.RNNBase, x: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Any]:
        if module is not mine or not shows(recorder):
            return original(module, x, hx)  # type: ignore[no-any-return]
        if isinstance(x, PackedSequence):
            padded, lengths = pad_packed_sequence(x, batch_first=True)
            out, final = _layers(module, recorder, padded, hx, lengths.to(padded.device))
            return _packed_like(x, out, lengths), final
        if x.dim() != 3:
            raise InvalidInput(
                f"{module.mode} needs a batch: an input of three dimensions (or a PackedSequence); "
                f"got {x.dim()}. A single sequence is a batch of one: x[None]"
            )
        out, final = _layers(module, recorder, x if module.batch_first else x.transpose(0, 1), hx)
        return out if module.batch_first else out.transpose(0, 1), final

    return forward


def _layers(
    module: nn.RNNBase,
    recorder: Recorder,
    x: Tensor,
    hx: Tensor | None,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Any]:
    """All layers over (B, T, d); the last states as the module gives them.

    lengths: (B,) where sequences end before T. Their states stay as they were at their end.
    """
    states = _initial(module, x, hx)
    last: list[State] = []
    for layer in range(module.num_layers):
        x = functional.dropout(x, module.dropout, training=module.training) if layer else x
        x, ends = _layer(module, recorder, layer, x, states, lengths)
        last += ends
    final = tuple(torch.stack(part) for part in zip(*last, strict=True))
    return x, final if module.mode == "LSTM" else final[0]


def _packed_like(packed: PackedSequence, out: Tensor, lengths: Tensor) -> PackedSequence:
    """(B, T, h) packed in the order of another."""
    order = packed.sorted_indices
    if order is not None:
        out, lengths = out.index_select(0, order), lengths[order.cpu()]
    data = pack_padded_sequence(out, lengths, batch_first=True).data
    return PackedSequence(data, packed.batch_sizes, order, packed.unsorted_indices)


def forward_of_cell(module: nn.RNNCellBase, recorder: Recorder) -> Callable[..., Any]:
    """The replacement for the forward pass of a cell: a sequence of one position."""
    mine, original, mode = module, cast(Any, type(module).forward), _mode(module)

    def forward(module: nn.RNNCellBase, x: Tensor, hx: Tensor | None = None) -> Any:
        if module is not mine or not shows(recorder):
            return original(module, x, hx)
        if x.dim() != 2:
            raise InvalidInput(
                f"{type(module).__name__} needs a batch: an input of two dimensions, got {x.dim()}"
            )
        zeros = x.new_zeros(len(x), module.hidden_size)
        if hx is None:
            state: State = (zeros, zeros) if mode == "LSTM" else (zeros,)
        else:
            state = tuple(hx) if mode == "LSTM" else (hx,)
        _, end = _run(module, recorder, mode, "", x[:, None], state)
        return end if mode == "LSTM" else end[0]

    return forward


def _mode(module: nn.RNNBase | nn.RNNCellBase) -> str:
    if isinstance(module, nn.RNNBase):
        return module.mode
    if isinstance(module, nn.RNNCell):
        return f"RNN_{module.nonlinearity.upper()}"
    return "LSTM" if isinstance(module, nn.LSTMCell) else "GRU"


def _initial(module: nn.RNNBase, x: Tensor, hx: Tensor | None) -> tuple[Tensor, ...]:
    if hx is not None:
        return tuple(hx) if module.mode == "LSTM" else (hx,)
    directions = 2 if module.bidirectional else 1
    zeros = x.new_zeros(module.num_layers * directions, x.shape[0], module.hidden_size)
    return (zeros, zeros) if module.mode == "LSTM" else (zeros,)


def _layer(
    module: nn.RNNBase,
    recorder: Recorder,
    layer: int,
    x: Tensor,
    states: tuple[Tensor, ...],
    lengths: Tensor | None,
) -> tuple[Tensor, list[State]]:
    """Both directions of one layer, side by side."""
    outs, ends = [], []
    for direction in range(2 if module.bidirectional else 1):
        number = layer * (2 if module.bidirectional else 1) + direction
        state = tuple(s[number] for s in states)
        sequence = _backwards(x, lengths) if direction else x
        suffix = f"_l{layer}" + "_reverse" * direction
        out, end = _run(module, recorder, module.mode, suffix, sequence, state, lengths)
        outs.append(_backwards(out, lengths) if direction else out)
        ends.append(end)
    return torch.cat(outs, dim=2) if len(outs) > 1 else outs[0], ends


def _backwards(x: Tensor, lengths: Tensor | None) -> Tensor:
    """(B, T, d) with each sequence turned round within its own length."""
    if lengths is None:
        return x.flip(1)
    places = torch.arange(x.shape[1], device=x.device)
    turned = lengths[:, None] - 1 - places  # (B, T)
    index = torch.where(turned >= 0, turned, places)
    return x.gather(1, index[:, :, None].expand_as(x))


def _run(
    module: nn.Module,
    recorder: Recorder,
    mode: str,
    suffix: str,
    x: Tensor,
    state: State,
    lengths: Tensor | None = None,
) -> tuple[Tensor, State]:
    """One direction of one layer over (B, T, d)."""
    names = [f"{kind}{suffix}" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    w_ih, w_hh, b_ih, b_hh = (module._parameters.get(name) for name in names)
    assert w_ih is not None
    assert w_hh is not None
    x = autocast_input(x)
    projected = functional.linear(x, w_ih, b_ih)  # (B, T, gates)
    if not projected.requires_grad:
        projected.requires_grad_()
    outs, end, aside = recurrence(mode, projected, state, (w_hh, b_hh), lengths)
    parameters = (w_ih, w_hh, b_ih, b_hh)
    show(recorder, module, _rule, (x, *aside), (projected,), parameters=parameters)
    return outs, end


def _rule(module: nn.Module, *values: Tensor, parameters: tuple[nn.Parameter | None, ...]) -> Forms:
    x, before, *resets, g = values
    h = g
    if resets:  # the GRU's reset gate scales the hidden part of its last third
        r, z, n = g.chunk(3, dim=2)
        h = torch.cat([r, z, n * resets[0]], dim=2)
    w_ih, w_hh, b_ih, b_hh = parameters
    forms: Forms = []
    if w_ih is not None and trainable(w_ih):
        forms.append((w_ih, Outer(x, g)))
    if w_hh is not None and trainable(w_hh):
        forms.append((w_hh, Outer(before, h)))
    for bias, values_ in ((b_ih, g), (b_hh, h)):
        if bias is not None and trainable(bias):
            forms.append((bias, bias_form(values_)))
    return forms


RULES = (_rule,)


def not_shown(use: Use) -> tuple[nn.Parameter | None, ...]:
    """The hidden weight and bias, which only the recurrence reads."""
    _, w_hh, _, b_hh = use.keywords["parameters"]
    return w_hh, b_hh
