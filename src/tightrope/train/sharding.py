"""Models in parts: each rank keeps its rows of every parameter, as a DTensor of torch.

    with torch.device("meta"):
        model = Transformer()          # no memory yet
    shard(model)                       # each rank makes and keeps its rows of each weight
    run = private(model, optimizer, share, loss, ...)

A whole weight is on a rank only around its uses (`executors.sharded`). Sums, noise, gradients and
the optimizer's state are in the same parts: the rank that owns a coordinate adds up what all ranks
have for it, in float64, and draws its noise, once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.overrides import TorchFunctionMode

from tightrope.errors import InvalidInput
from tightrope.train.gradients.rounding import full_precision
from tightrope.train.noise import Noise
from tightrope.train.ranks import is_cut, local, rank_and_size

# Older versions of torch have other names for them.
_all_gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def shard(
    model: nn.Module,
    *,
    device: torch.device | str | None = None,
    initialise: Callable[[nn.Module], Any] | None = None,
) -> nn.Module:
    """Cut every parameter of a model by rows, in place: each rank keeps its own, rank 0's values.

    Of a model on the meta device no rank ever has more than one module whole: its modules are made
    one after another on `device` (the GPU of this process where there is one), by `initialise`, or
    by their own reset_parameters(). Call it before the optimizer is made.

    `torch.distributed.checkpoint.state_dict` loads and stores whole weights, as for other DTensors.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise InvalidInput(
            "shard(model) cuts weights over processes. Start them with torchrun, and call "
            "torch.distributed.init_process_group first."
        )
    if isinstance(model, FSDPModule) or any(isinstance(p, DTensor) for p in model.parameters()):
        raise InvalidInput("This model is in parts already. Pass shard() the bare model.")
    if device is None:
        places = {p.device for p in model.parameters() if not p.is_meta}
        device = places.pop() if places else "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(torch.device(device).type, (dist.get_world_size(),))
    cut: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}  # tied ones stay tied
    for name, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False, remove_duplicate=False))
        if any(t.is_meta for t in (*own.values(), *module.buffers(recurse=False))):
            _make(module, name, device, initialise)
        for key, before in own.items():
            if id(before) not in cut:
                now = module.get_parameter(key).detach()
                rows = distribute_tensor(now, mesh, [Shard(0) if now.dim() else Replicate()])
                cut[id(before)] = before, nn.Parameter(rows, before.requires_grad)
            setattr(module, key, cut[id(before)][1])
    return model


def _make(
    module: nn.Module, name: str, device: Any, initialise: Callable[[nn.Module], Any] | None
) -> None:
    own = (getattr(type(module), key, None) for key in ("reset_parameters", "_reset_parameters"))
    make = initialise or next((method for method in own if method is not None), None)
    if make is None:
        raise InvalidInput(
            f"{name or 'The model'} ({type(module).__name__}) has weights or buffers on the meta "
            "device and no reset_parameters() to fill them. Give shard(model, initialise=function) "
            "a function that fills the module's own, or build the model on its device."
        )
    module.to_empty(device=device, recurse=False)
    with torch.no_grad():
        make(module)


def check_sharding(
    model: nn.Module, *, executor: str, isolation: str, arithmetic: str, noise: Noise
) -> None:
    """Refuse what does not work with a model in parts."""
    every = list(range(rank_and_size()[1]))
    for name, p in model.named_parameters():
        fits = isinstance(p, DTensor) and p.device_mesh.mesh.tolist() == every
        if not fits or p.placements[0] not in (Shard(0), Replicate()):  # type: ignore[attr-defined]
            raise InvalidInput(
                f"Some parameters of the model are in parts, and {name} is not one that is cut by "
                "rows over all ranks. Call shard(model) on the bare model, which cuts all of them."
            )
    for option, given, allowed in (
        ("executor", executor, ("plain",)),
        ("isolation", isolation, ("proved",)),
        ("arithmetic", arithmetic, ("bounded", "uncovered")),
    ):
        if given not in allowed:
            raise InvalidInput(
                f"A model in parts runs a proved program without a compiler, on sums in floating "
                f"point; got {option}={given!r}, and it must be {' or '.join(map(repr, allowed))}. "
                "Leave it out, or train without shard(model)."
            )
    if not hasattr(noise, "for_rank"):
        raise InvalidInput(
            f"Each rank draws the noise of its own rows, and {type(noise).__name__} has no "
            "for_rank(rank) that keeps their draws apart. Use GaussianNoise."
        )


# Between a part and the whole.


def gather(part: Tensor) -> Tensor:
    """The whole tensor, in memory of its own; all ranks together."""
    own = local(part)
    if not is_cut(part):
        return own
    ranks, rows = part.device_mesh.size(), part.shape[0]  # type: ignore[attr-defined]
    each = -(-rows // ranks)
    whole = own.new_empty(each * ranks, *part.shape[1:])
    _all_gather(whole, _filled(own, each))
    return whole[:rows]


def reduce_to_part(total: Tensor, part: Tensor) -> Tensor:
    """What all ranks have for this rank's rows, added in float64; all ranks together."""
    if not is_cut(part):
        return total.double()
    ranks = part.device_mesh.size()  # type: ignore[attr-defined]
    each = -(-part.shape[0] // ranks)
    own = total.new_empty(each, *part.shape[1:], dtype=torch.float64)
    _reduce_scatter(own, _filled(total.double(), each * ranks))
    return own[: len(local(part))]


def _filled(values: Tensor, rows: int) -> Tensor:
    more = rows - len(values)
    if more == 0:
        return values.contiguous()
    return torch.cat([values, values.new_zeros(more, *values.shape[1:])])


def _own_rows(whole: Tensor, part: Tensor) -> Tensor:
    if not is_cut(part):
        return whole
    each = -(-part.shape[0] // part.device_mesh.size())  # type: ignore[attr-defined]
    start = min(dist.get_rank() * each, len(whole))
    return whole[start : start + each]


def most_over_ranks(counts: list[int], device: torch.device) -> list[int]:
    """The largest of each number."""
    most = torch.tensor(counts, device=device)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return most.tolist()  # type: ignore[no-any-return]


@contextmanager
def blank_weights(model: nn.Module) -> Iterator[dict[int, nn.Parameter]]:
    """Inside, tensors of whole shapes without memory stand for the weights; by the weight's id.

    A program is captured from them: it is the program of the model with whole weights.
    """
    blanks: dict[int, nn.Parameter] = {}
    before: list[tuple[nn.Module, str, nn.Parameter]] = []
    for module in model.modules():
        own = module.named_parameters(recurse=False, remove_duplicate=False)
        before += [(module, key, p) for key, p in own]
    try:
        for module, key, p in before:
            if id(p) not in blanks:
                blank = torch.empty(p.shape, dtype=p.dtype, device=p.device)
                blank.untyped_storage().resize_(0)
                blanks[id(p)] = nn.Parameter(blank, p.requires_grad)
            setattr(module, key, blanks[id(p)])
        yield blanks
    finally:
        for module, key, p in before:
            setattr(module, key, p)


# Python code on weights in parts.


@final
class whole_weights(TorchFunctionMode):  # noqa: N801
    """Inside, every function gets whole weights, which are let go of after it: `model(x)` works.

    All ranks call the same functions together. Backward passes gather again; `sums` then has
    the gradient of this rank's rows, by the id of the parameter.
    """

    def __init__(self, *, widen: bool = False) -> None:
        """widen: whether half precision is gathered as float32."""
        super().__init__()
        self.widen, self.sums = widen, dict[int, Tensor]()
        self._live: dict[int, tuple[weakref.ref[Tensor], DTensor]] = {}

    def __enter__(self) -> whole_weights:
        self._saving = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._saving.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._saving.__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in ("__get__", "__set__"):  # of attributes
            args, kwargs = pytree.tree_map_only(DTensor, self._whole, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _whole(self, part: DTensor) -> Tensor:
        if torch.is_grad_enabled() and part.requires_grad:
            start = torch.zeros((), device=part.device, requires_grad=True)
            whole: Tensor = _Gathered.apply(start, part, self)  # type: ignore[no-untyped-call]
        else:
            whole = self.get(part)
        self._live[whole.untyped_storage().data_ptr()] = weakref.ref(whole), part
        return whole

    def _pack(self, saved: Tensor) -> Any:
        whole, part = self._live.get(saved.untyped_storage().data_ptr(), (lambda: None, None))
        if part is None or whole() is None or not is_cut(part):
            return saved
        return part, saved.size(), saved.stride(), saved.storage_offset()

    def _unpack(self, kept: Any) -> Tensor:
        return kept if isinstance(kept, Tensor) else self.get(kept[0]).as_strided(*kept[1:])

    def get(self, part: Tensor) -> Tensor:
        """The whole of it, now."""
        with torch.no_grad():
            return full_precision(gather(part)) if self.widen else gather(part)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, start: Tensor, part: DTensor, weights: whole_weights) -> Tensor:
        ctx.part, ctx.sums = part, weights.sums
        return weights.get(part)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        own = _own_rows(gradients[0], ctx.part)
        before = ctx.sums.get(id(ctx.part))
        ctx.sums[id(ctx.part)] = own.clone() if before is None else before.add_(own)
        return None, None, None


def gradients_in_parts(
    model: nn.Module, loss: Callable[..., Any], one: tuple[Any, ...], parameters: Any
) -> tuple[Tensor, list[Tensor | None]]:
    """As `unproved.gradients_of_one`, of this rank's rows; times the ranks, which all do the same.

    Of several losses, each is differentiated by its own parameters.
    """
    _, ranks = rank_and_size()
    groups = parameters if isinstance(parameters, dict) else {"": parameters}
    gradients = list[Tensor | None]()
    with whole_weights(widen=True) as weights, torch.enable_grad():
        found = loss(model, *one)
        each = found if isinstance(found, dict) else {"": found}
        for name, own in groups.items():
            value = each[name] if name else next(iter(each.values()))
            weights.sums.clear()
            if value.requires_grad:
                value.sum().backward(retain_graph=len(groups) > 1)
            for p in own:
                g = weights.sums.pop(id(p), None)
                gradients.append(g.mul_(ranks) if g is not None and is_cut(p) else g)
    return value.detach(), gradients
