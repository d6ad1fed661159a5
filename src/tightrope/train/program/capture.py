"""Writes `loss(model, *batch)` as one graph of ATen operators, from tensors without values.

The loss is exported once (torch.export, not strict), for any number of examples if it allows that.
No example is ever read: of the batch only shapes, types and devices are used. Parameters, buffers
and constants become inputs of the graph and are read live, so that an optimizer's update is seen.

torch.export drops or changes some things without a word. Each of them is kept here by other means
(regions without gradients; backward passes of the user's own, in custom.py) or refused in a
sentence: hooks on gradients, attributes and Python objects that change from call to call, buffers
that are assigned, random numbers of Python, tensors from outside. The model is left as it was.
"""

from __future__ import annotations

import io
import logging
import math
import operator
import random
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.fx.traceback import preserve_node_meta
from torch.nn.modules import module as module_hooks

from tightrope.errors import InvalidInput
from tightrope.train.gradients.recurrence import CAPTURED_LAYERS
from tightrope.train.program.custom import (
    OWN_SAVED_VALUES,
    calls,
    kept_as_nodes,
    trace_own_functions,
)
from tightrope.train.program.labels import NotCaptured
from tightrope.train.program.lines import Lines, line_of, line_of_error
from tightrope.train.program.python_state import Memory
from tightrope.train.program.rules.table import overloads
from tightrope.train.program.text import Place, Program

__all__ = ["Place", "Program", "capture", "flatten", "leaves_of"]

aten = torch.ops.aten

# Composite operators that stay whole, because each has a rule of its own in the proof and often a
# form of its own for its gradient. All other composites are taken apart.
KEPT_WHOLE = set(
    overloads(
        "linear layer_norm group_norm rms_norm conv1d conv2d conv3d conv_transpose1d "
        "conv_transpose2d conv_transpose3d matmul scaled_dot_product_attention "
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"
    )
)


def leaves_of(batch: tuple[Any, ...]) -> list[Tensor]:
    """The tensors of a batch in the order of the program's inputs."""
    return flatten(batch)[0]


def capture(
    model: nn.Module,
    loss: Callable[..., Any],
    batch: tuple[Any, ...],
    *,
    rows: int,
    public: Sequence[Tensor] = (),
) -> Program:
    """Export the loss: for any number of examples if it allows that, else for `rows`.

    batch: the arguments of the loss after the model, with one row for each example; only shapes,
    types and devices are used. public: tensors that the loss takes from outside and which do not
    depend on any example. Raises NotCaptured; its `final` says whether another way to run the loss
    would be wrong as well.
    """
    _check_arguments(model, loss, batch, rows)
    try:
        return _capture(model, loss, batch, max(rows, 2), public, symbolic=True)
    except NotCaptured as reason:
        if reason.final:
            raise
    return _capture(model, loss, batch, rows, public, symbolic=False)


def _wrong(text: str) -> NotCaptured:
    """A refusal of what is wrong however the loss is run."""
    return NotCaptured(text, final=True)


def _check_arguments(model: Any, loss: Any, batch: Any, rows: int) -> None:
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    if type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
        raise _wrong(
            f"The model is wrapped in {type(model).__name__}, which adds up gradients of whole "
            "batches. Pass the model inside it: model.module."
        )
    if not callable(loss):
        raise InvalidInput(
            f"loss must be a function loss(model, *batch); got {type(loss).__name__}."
        )
    if not isinstance(batch, tuple):
        raise InvalidInput(
            f"batch must be the tuple of arguments of the loss; got {type(batch).__name__}."
        )
    if rows < 1:
        raise InvalidInput(f"rows must be at least 1; got {rows}.")
    leaves = leaves_of(batch)
    if not leaves:
        raise InvalidInput("The batch has no tensors, so there are no examples.")
    for leaf in leaves:
        if leaf.dim() == 0:
            raise _wrong(
                "The batch has a tensor of one number. Each tensor needs one row for each "
                "example; make a number that is the same for all a buffer of the model."
            )
    used = {t.device.type for t in [*model.parameters(), *model.buffers()]}
    given = {leaf.device.type for leaf in leaves}
    if used and given - used:
        raise _wrong(
            f"The batch is on {' and '.join(sorted(given))} and the model on "
            f"{' and '.join(sorted(used))}. Move the model with model.to(device) before the run is "
            "made."
        )
    _refuse_hooks(model)


def _refuse_hooks(model: nn.Module) -> None:
    """Hooks on gradients of modules and parameters would not run, and see whole batches."""
    do = "Remove it: the run clips and adds noise to gradients of single examples."
    if module_hooks._global_backward_hooks or module_hooks._global_backward_pre_hooks:
        raise _wrong(f"A backward hook is registered on all modules. {do}")
    for name, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            where = f"the module {name}" if name else "the model"
            raise _wrong(f"A backward hook is registered on {where}. {do}")
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise _wrong(f"A hook is registered on the gradient of {name}. {do}")


def flatten(batch: tuple[Any, ...]) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any]]:
    """The tensors of a batch, and a function that builds a batch of the same form from others."""
    leaves: list[Tensor] = []

    def plan(value: Any) -> Callable[[Sequence[Tensor]], Any]:
        if isinstance(value, Tensor):
            at = len(leaves)
            leaves.append(value)
            return lambda tensors: tensors[at]
        if value is None or isinstance(value, bool):
            return lambda tensors: value
        if isinstance(value, tuple | list):
            parts = [plan(v) for v in value]
            if hasattr(value, "_fields"):  # a named tuple
                return lambda tensors: type(value)(*[part(tensors) for part in parts])
            return lambda tensors: type(value)([part(tensors) for part in parts])
        if hasattr(value, "items") and hasattr(value, "keys"):
            # A dictionary, or what behaves like one: BatchEncoding, ModelOutput.
            named = {key: plan(v) for key, v in value.items()}
            return lambda tensors: type(value)({k: part(tensors) for k, part in named.items()})
        raise _wrong(
            f"The batch has a value of type {type(value).__name__}. A Python value would be fixed "
            "when the loss is captured. Make it a tensor with one row for each example, or leave "
            "it out."
        )

    build = plan(batch)
    return leaves, build


# Export.


class _Loss(nn.Module):
    """What is exported: the loss as a function of the batch's tensors."""

    def __init__(self, model: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.training, self.call = model, model.training, call

    def forward(self, *leaves: Tensor) -> Any:
        return self.call(*leaves)


def _tensors_of(model: nn.Module) -> dict[str, tuple[Any, ...]]:
    """Buffers, parameters and tensors kept as plain attributes.

    Each with what can be exchanged in it without a trace in the graph: memory, gradient, flag.
    """
    found = {}
    for name, module in model.named_modules():
        for place in (module.__dict__, module._buffers, module._parameters):
            for key, value in place.items():
                if isinstance(value, Tensor):
                    try:
                        memory = value.untyped_storage()
                    except NotImplementedError:  # sparse, for instance
                        memory = None
                    path = f"{name}.{key}" if name else key
                    found[path] = (value, memory, value.grad, value.requires_grad)
    return found


def _check_tensors(model: nn.Module, before: dict[str, tuple[Any, ...]]) -> None:
    """Refuse tensors that the loss assigned."""
    for where, now in _tensors_of(model).items():
        same = [a is b for a, b in zip(before.get(where, ()), now, strict=False)]
        if not same or not all(same):
            at = same.index(False) if same else 0
            what = ("", ".data", ".grad", ".requires_grad")[at]
            raise _wrong(
                f"The loss assigns {'a tensor ' if at < 2 else ''}to {where}{what} of the model. "
                "It would be done once, when the loss is captured, and not again. Register a "
                "buffer and write it in place with copy_ or add_, from numbers that do not depend "
                "on the batch."
            )


def _checked(losses: Any, rows: Any) -> Any:
    """What the loss returned, if it is one number for each example."""
    if losses is None:
        raise _wrong(
            "The loss returned nothing. It must return a tensor with one loss for each example."
        )
    each = losses if isinstance(losses, dict) else {"loss": losses}
    if not each:
        raise _wrong("The loss returned an empty dictionary.")
    for name, value in each.items():
        if not isinstance(value, Tensor):
            raise _wrong(
                f"The loss returned {type(value).__name__} where a tensor with one loss for each "
                "example is needed, or a dictionary of such tensors. Of a model's output, return "
                "a loss that is computed from its logits."
            )
        if value.dim() == 0:
            raise _wrong(
                f"The loss returned one number for the whole batch ({name}). Return one for each "
                'example: pass reduction="none", and do not take the mean over the batch.',
            )
        if value.dim() != 1 or value.shape[0] != rows:
            raise _wrong(
                f"The loss returned a tensor of sizes {tuple(value.shape)} ({name}) for {rows} "
                "examples. Return one loss for each: take the sum or the mean over the other "
                "dimensions, for instance losses.flatten(1).mean(1)."
            )
        if not value.is_floating_point():
            raise _wrong(
                f"The loss returned numbers of type {value.dtype} ({name}). Return floating point "
                "numbers that depend on the model."
            )
    return losses


def _embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Bags of one length: rows of a table, then a sum, mean or maximum over each bag."""
    if offsets is not None or input.dim() != 2:
        raise NotCaptured(
            "An EmbeddingBag gets offsets, so the bags of all examples lie in one list. Pass "
            "numbers of two dimensions, one row for each example, filled up with padding_idx."
        )
    if max_norm is not None or scale_grad_by_freq:
        raise _wrong(
            "An EmbeddingBag with max_norm or scale_grad_by_freq changes its table by what the "
            "batch has. Leave these options out."
        )
    picked = nn.functional.embedding(input, weight)
    used = torch.ones_like(input, dtype=weight.dtype)
    if padding_idx is not None:
        used = (input != padding_idx % weight.shape[0]).to(weight.dtype)
    if mode == "max":
        low = picked.masked_fill((used == 0).unsqueeze(-1), float("-inf")).amax(1)
        return torch.where((used == 0).all(1).unsqueeze(-1), torch.zeros_like(low), low)
    if per_sample_weights is not None:
        picked = picked * per_sample_weights.unsqueeze(-1)
    total = (picked * used.unsqueeze(-1)).sum(1)
    return total if mode == "sum" else total / used.sum(1, keepdim=True).clamp(min=1)


def _gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """As torch computes it, without its check in Python that no variance is negative."""
    variance = var if isinstance(var, Tensor) else torch.full_like(input, var)
    if variance.dim() + 1 == input.dim() and variance.shape == input.shape[:-1]:
        variance = variance.unsqueeze(-1)
    variance = variance + (variance.clamp(min=eps) - variance).detach()
    losses = 0.5 * (variance.log() + (input - target) ** 2 / variance)
    losses = losses + 0.5 * math.log(2 * math.pi) if full else losses
    return losses if reduction == "none" else getattr(losses, reduction)()


def _refuse(words: str) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> Any:
        raise NotCaptured(words)

    return refused


_INSTEAD: dict[Any, Callable[..., Any]] = {
    **CAPTURED_LAYERS,
    torch._VF._pack_padded_sequence: _refuse(
        "The loss packs sequences (pack_padded_sequence): the steps of all examples are put into "
        "one list by their lengths, which Python reads. Give the layer the padded sequences, and "
        "leave out what lies behind the lengths afterwards, by a mask or an index."
    ),
    torch.autograd.grad: _refuse(
        "The loss computes gradients by itself (torch.autograd.grad), which cannot be captured."
    ),
    nn.functional.embedding_bag: _embedding_bag,
    nn.functional.gaussian_nll_loss: _gaussian_nll_loss,
}


_NO_MEMORY = (
    "Remove this, or make it a buffer that is written in place with numbers that do not depend on "
    "the batch."
)


def _capture(
    model: nn.Module,
    loss: Callable[..., Any],
    batch: tuple[Any, ...],
    rows: int,
    public: Sequence[Tensor],
    *,
    symbolic: bool,
) -> Program:
    leaves, build = flatten(batch)
    blank = tuple(torch.empty((rows, *t.shape[1:]), dtype=t.dtype, device=t.device) for t in leaves)
    dim = torch.export.Dim("batch", min=2)
    shapes = (tuple({0: dim} for _ in blank),) if symbolic else None
    memory = Memory(model, loss)
    try:
        exported, changes, again = _export(model, loss, build, blank, shapes)
        changes += memory.changes()
        if changes:
            # Models that set themselves up at their first call do not change at their second.
            tensors = [c for c in changes if c.endswith("(a tensor)")]
            if tensors:
                raise _wrong(
                    f"The loss keeps a tensor outside of the program: {tensors[0]}. It would carry "
                    f"something from one batch to the next. {_NO_MEMORY}"
                )
            for put in again:
                put()
            exported, changes, _ = _export(model, loss, build, blank, shapes)
            if changes:
                raise _wrong(
                    f"The loss changes {', '.join(changes[:3])} at each call, so it would carry "
                    "something from one batch to the next, and in the captured program it would "
                    f"not change at all. {_NO_MEMORY}"
                )
    finally:
        memory.restore()
    _refuse_hooks(model)
    if symbolic and calls:
        raise NotCaptured("backward passes of one's own are traced at one size")
    with _in_words(), _quiet(), preserve_node_meta():
        _inline_regions_without_gradients(exported.graph_module)
        literals = _literals(exported.graph_module)
        exported = exported.run_decompositions(_decompositions())
        trace_own_functions(exported.graph_module)
    _without_memory_as_found(exported.graph_module)
    return _program(exported, model, None if symbolic else rows, public, literals)


def _export(
    model: nn.Module, loss: Callable[..., Any], build: Any, blank: tuple[Tensor, ...], shapes: Any
) -> tuple[Any, list[str], list[Callable[[], None]]]:
    """Also what the call changed in Python, and functions that change it so again."""
    changes, again = list[str](), list[Callable[[], None]]()

    def call(*leaves: Tensor) -> Any:
        before, memory = _tensors_of(model), Memory(model, loss)
        with Lines(_INSTEAD), disable_saved_tensors_hooks(OWN_SAVED_VALUES):
            losses = loss(model, *build(leaves))
        # Compared here, because torch.export puts plain attributes back itself.
        changes[:], again[:] = memory.changes(tensors=False), memory.again()
        _check_tensors(model, before)
        return _checked(losses, leaves[0].shape[0])

    drawn, generator = _drawn(), torch.get_rng_state()
    try:
        with _in_words(), _quiet(), kept_as_nodes(), torch.enable_grad(), preserve_node_meta():
            exported = torch.export.export(
                _Loss(model, call), blank, dynamic_shapes=shapes, strict=False
            )
    finally:
        torch.set_rng_state(generator)
        now = _drawn()
        random.setstate(drawn[0])
    if now != drawn:
        raise _wrong(
            "The loss draws a random number with Python's random or numpy. It would be drawn once, "
            "when the loss is captured. Draw with torch, for instance torch.rand(())."
        )
    return exported, changes, again


def _drawn() -> tuple[Any, ...]:
    """The state of the generators of Python and numpy."""
    _, key, at, *_ = np.random.get_state()  # noqa: NPY002 (reads it only)
    return random.getstate(), np.asarray(key).tobytes(), at


_REASONS = (
    (
        r"data-dependent|GuardOnDataDependent|\.item\(\)|aten::_local_scalar_dense|is_nonzero",
        "Python reads a value that is computed from tensors, or branches on one. Use torch.where "
        "or a mask. Layer drop branches on a random number: set it to 0 (config.layerdrop = 0, "
        "config.encoder_layerdrop = 0, config.decoder_layerdrop = 0), or put the container of the "
        "layers into evaluation mode",
    ),
    (r"numpy|__array__", "the loss turns a tensor into a numpy array. Use torch's operators"),
    (
        r"functorch|vmap|grad_increment|BatchedTensor|GradTrackingTensor|torch\.func",
        "the loss uses torch.func. Write it for a batch of examples without it",
    ),
    (
        r"does not require grad|autograd\.grad|set_materialize|create_graph|allow_unused",
        "the loss computes gradients by itself, which cannot be captured",
    ),
    (
        r"two different devices",
        "tensors are on different devices. Move model, buffers and constants to one device",
    ),
)


@contextmanager
def _in_words() -> Iterator[None]:
    """Why torch.export failed, in words, with the user's line."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:  # a refusal of our own, which torch may have wrapped
            if isinstance(cause, NotCaptured):
                raise cause from None
            cause = cause.__cause__ or cause.__context__
        text = f"{type(error).__name__}: {error}"
        reason = next((say for pattern, say in _REASONS if re.search(pattern, text)), "")
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        first = f"{type(error).__name__}: {first[:300]}"
        at = line_of_error(error)
        raise NotCaptured(
            f"The loss cannot be captured{f' at {at}' if at else ''}: "
            f"{f'{reason}. ({first})' if reason else first}"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warnings about its own parts, and what it prints and logs on failure."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


# The graph.


def _decompositions() -> dict[Any, Callable[..., Any]]:
    """Of all composite operators but those that stay whole."""
    found = {
        op: rule
        for op, rule in torch.export.default_decompositions().items()
        if isinstance(op, torch._ops.OpOverload) and op not in KEPT_WHOLE and op._can_decompose()
    }
    return {**found, aten.copy.default: _copied, aten.prod.dim_int: _product}


def _copied(into: Tensor, values: Tensor, non_blocking: bool = False) -> Tensor:
    """As assignments to slices are written; of `copy` itself torch knows no derivative."""
    return values.to(into.dtype).expand(into.shape).clone()


def _product(
    x: Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Of pairs, and again of pairs. The derivative of `prod` reads whether the batch has a zero."""
    count, whole = x.shape[dim], not (x.is_floating_point() or x.is_complex())
    if not isinstance(count, int) or count == 0:
        return NotImplemented  # type: ignore[no-any-return]
    x = x.to(dtype or (torch.int64 if whole else x.dtype))
    while count > 1:
        half = count // 2
        pairs = x.narrow(dim, 0, half) * x.narrow(dim, half, half)
        rest = [x.narrow(dim, 2 * half, 1)] if count % 2 else []
        x, count = torch.cat([pairs, *rest], dim) if rest else pairs, half + count % 2
    return x.clone() if keepdim else x.squeeze(dim)


def _inline_regions_without_gradients(module: fx.GraphModule) -> None:
    """`torch.no_grad()` regions become plain nodes with detached outputs.

    run_decompositions() would inline them too, and forget that no gradient flows there.
    """
    for node in list(module.graph.nodes):
        if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
            _inline_region(module, node)
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            for inner in _regions(module, node).values():  # such as autocast
                _inline_regions_without_gradients(inner)
                inner.forward = fx.Interpreter(inner).run  # keeps the user's lines
    module.graph.eliminate_dead_code()
    module.recompile()


def _regions(module: fx.GraphModule, node: fx.Node) -> dict[fx.Node, fx.GraphModule]:
    """The graphs among the arguments of a node."""
    named = [a for a in node.args if isinstance(a, fx.Node) and a.op == "get_attr"]
    found = {a: getattr(module, str(a.target)) for a in named}
    return {a: inner for a, inner in found.items() if isinstance(inner, fx.GraphModule)}


def _inline_region(module: fx.GraphModule, node: fx.Node) -> None:
    enabled, _, *args = node.args
    ((submodule, inner),) = _regions(module, node).items()
    _inline_regions_without_gradients(inner)
    env: dict[Any, Any] = dict(zip(inner.graph.find_nodes(op="placeholder"), args, strict=True))
    with module.graph.inserting_before(node):
        for n in inner.graph.nodes:
            if n.op == "call_function":
                env[n] = module.graph.node_copy(n, lambda old: env[old])
            elif n.op == "get_attr":
                name = f"{submodule.target}_{n.target}".replace(".", "_")
                setattr(module, name, getattr(inner, n.target))
                env[n] = module.graph.get_attr(name)
        (output,) = inner.graph.find_nodes(op="output")
        values = [env[v] if isinstance(v, fx.Node) else v for v in output.args[0]]
        for at, value in enumerate([] if enabled else values):
            if isinstance(value, fx.Node) and isinstance(value.meta.get("val"), Tensor):
                values[at] = module.graph.call_function(aten.detach.default, (value,))
                values[at].meta = dict(value.meta)
    for user in list(node.users):
        if user.target is not operator.getitem:
            raise NotCaptured("a region without gradients is used in a way that is not understood")
        user.replace_all_uses_with(values[user.args[1]])  # type: ignore[index]
        module.graph.erase_node(user)
    module.graph.erase_node(node)


_EMPTY = {
    aten.empty.memory_format: aten.zeros.default,
    aten.empty_like.default: aten.zeros_like.default,
    aten.new_empty.default: aten.new_zeros.default,
}
_CHECKS = {
    aten._assert_tensor_metadata.default,
    aten._assert_scalar.default,
    aten._assert_async.msg,
    aten._assert_async.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
}


def _without_memory_as_found(module: fx.GraphModule) -> None:
    """`empty` returns memory with old numbers, perhaps of other examples: zeros take its place.

    Checks of sizes at run time are dropped: the sizes are those of the proof.
    """
    graph = module.graph
    for node in list(graph.nodes):
        if node.target in _EMPTY:
            node.target = _EMPTY[node.target]
            node.kwargs = {k: v for k, v in node.kwargs.items() if k != "memory_format"}
        elif node.target in _CHECKS and not node.users:
            graph.erase_node(node)
    graph.eliminate_dead_code()
    module.recompile()


def _literals(module: fx.GraphModule) -> set[str]:
    """Inputs that are written as torch.tensor([...]) in the text of the loss."""

    def only_lifted(graph: fx.GraphModule, node: fx.Node) -> bool:
        for user in node.users:
            if user.target in (aten.lift_fresh_copy.default, aten.lift_fresh.default):
                continue
            if not isinstance(user.target, torch._ops.HigherOrderOperator):
                return False
            regions = _regions(graph, user)
            tensors = [a for a in user.args if isinstance(a, fx.Node) and a not in regions]
            for region in regions.values():
                inputs = region.graph.find_nodes(op="placeholder")
                if len(inputs) != len(tensors) or not only_lifted(
                    region, inputs[tensors.index(node)]
                ):
                    return False
        return True

    inputs = module.graph.find_nodes(op="placeholder")
    return {n.name for n in inputs if n.users and only_lifted(module, n)}


_KINDS = {
    "PARAMETER": "parameter",
    "BUFFER": "buffer",
    "CONSTANT_TENSOR": "constant",
    "USER_INPUT": "batch",
}


def _program(
    exported: Any,
    model: nn.Module,
    size: int | None,
    public: Sequence[Tensor],
    literals: set[str],
) -> Program:
    signature = exported.graph_signature
    nodes = {n.name: n for n in exported.graph.nodes}
    constants = {name.removeprefix("model."): value for name, value in exported.constants.items()}
    constants = {k: v.detach() for k, v in constants.items() if isinstance(v, Tensor)}
    places = []
    for spec in signature.input_specs:
        if spec.kind.name not in _KINDS:
            raise NotCaptured(f"The loss has an input of kind {spec.kind.name}, which has no rule.")
        target = spec.target.removeprefix("model.") if spec.target else None
        kind = _KINDS[spec.kind.name]
        if kind == "parameter" and not model.get_parameter(str(target)).requires_grad:
            kind = "frozen"  # so that a layer unfrozen later makes another program
        places.append(Place(nodes[spec.arg.name], kind, target))
        if kind == "constant" and spec.arg.name not in literals:
            _check_constant(places[-1].node, constants.get(target or ""), public)
    losses, updates = [], []
    for spec in signature.output_specs:
        name = getattr(spec.arg, "name", None)
        if spec.kind.name == "USER_OUTPUT":
            losses.append(nodes[name])
        elif spec.kind.name == "BUFFER_MUTATION":
            updates.append((spec.target.removeprefix("model."), nodes[name]))
        elif spec.kind.name == "USER_INPUT_MUTATION":
            raise _wrong("The loss writes into the batch in place. Work on a copy: x = x.clone().")
        else:
            raise _wrong(
                f"The loss writes into {spec.target or spec.kind.name}, which is no buffer. A "
                "parameter is changed by the optimizer only."
            )
    tree = exported.call_spec.out_spec
    names = tuple(str(n) for n in tree.context) if tree.type is dict else None
    module = exported.graph_module
    return Program(module, places, tuple(losses), names, updates, model, size, constants)


def _check_constant(node: fx.Node, value: Tensor | None, public: Sequence[Tensor]) -> None:
    """One number is like a number in the program's text; more of them may be data."""
    if node.meta["val"].numel() <= 1:
        return
    given = [(x.shape, x.data_ptr()) for x in public]
    if given and value is not None and (value.shape, value.data_ptr()) in given:
        return
    at = next((f" at {line}" for line in map(line_of, node.users) if line), "")
    raise _wrong(
        f"The loss uses a tensor from outside{at}, of sizes {list(node.meta['val'].shape)}, "
        "which may hold data. If it does not depend on the examples, make it a buffer of the model "
        "with register_buffer, or pass it in public=[...]."
    )
