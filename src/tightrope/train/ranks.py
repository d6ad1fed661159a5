"""Several processes as one mechanism: noise once, sums added, the same step on every rank.

Every rank draws from records of its own with a stream of its own; for samplers that treat records
independently this is exactly the sampler of one process on all records. Rank 0 adds the noise to
its sum before the sums are added over the ranks, so no rank ever sees a total without noise.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch import Tensor

from tightrope.errors import InvalidInput, TightropeError
from tightrope.train.data import Records
from tightrope.train.noise import Noise, neighbours
from tightrope.train.samplers import AbstractSampler

_IN_ONE_MESSAGE = 2**22  # numbers, copied for it
_MARKS_IN_ONE_MESSAGE = 2**20  # marks of each rank, of eight bytes


def rank_and_size() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def check_ranks_stayed(ranks: int) -> None:
    """There must be as many as when the run was made."""
    if rank_and_size()[1] != ranks:
        raise InvalidInput(
            "The run was made before torch.distributed.init_process_group, so each process would "
            "take and count steps of its own. Initialise first, then make the run."
        )


def from_all_ranks(local: object) -> list[Any]:
    """The value of every rank, in order of rank."""
    ranks = rank_and_size()[1]
    if ranks == 1:
        return [local]
    values: list[Any] = [None] * ranks
    dist.all_gather_object(values, local)
    return values


def by_rank_0(action: Callable[[], Any]) -> Any:
    """What rank 0 gets of it, on every rank; what it is refused, all are. The others do nothing."""
    answer: tuple[Any, TightropeError | None] = (None, None)
    if rank_and_size()[0] == 0:
        try:
            answer = (action(), None)
        except TightropeError as refusal:
            answer = (None, refusal)
        except Exception as error:  # the others wait
            answer = (None, InvalidInput(f"On rank 0: {type(error).__name__}: {error}"))
    value, refused = from_all_ranks(answer)[0]
    if refused is not None:
        raise refused
    return value


def sum_over_ranks_(sums: Sequence[Tensor]) -> None:
    """Add the sums of all ranks in place; many small ones in one message."""
    for group in neighbours(sums, _IN_ONE_MESSAGE):
        flat = torch.cat([total.reshape(-1) for total in group])
        dist.all_reduce(flat)
        parts = torch.split(flat, [total.numel() for total in group])
        for total, part in zip(group, parts, strict=True):
            total.copy_(part.view_as(total))


def agree(
    facts: tuple[int, float, float], forfeited: tuple[str, ...], device: torch.device
) -> tuple[str, ...]:
    """Refuse a release that is not the same on all ranks; why it is not private on any of them.

    facts: the step, the clip norm and the expected batch size. Of most steps a hash is all that is
    exchanged.
    """
    if rank_and_size()[1] == 1:
        return ()
    digest = hashlib.sha256(repr((facts, sorted(forfeited))).encode()).digest()
    mark = int.from_bytes(digest[:7], "big")
    ends = torch.tensor([mark, -mark], device=device)
    dist.all_reduce(ends, op=dist.ReduceOp.MAX)
    if int(ends.sum()) == 0:  # the largest is the smallest
        return ()
    stated = from_all_ranks((facts, forfeited))
    all_facts = [each for each, _ in stated]
    if any(each != facts for each in all_facts):
        raise InvalidInput(
            "The ranks are about to release different things; (step, clip norm, expected batch "
            f"size) are {all_facts}, in order of rank. Nothing was released. Change settings on "
            "all ranks alike, and resume all of them from the same snapshot."
        )
    return tuple(why for _, reasons in stated for why in reasons)


def total_over_ranks(values: Sequence[Tensor]) -> float:
    """The sum of numbers of all ranks."""
    total = torch.stack([v.double() for v in values]).sum()
    dist.all_reduce(total)
    return float(total)


def start_together(model: torch.nn.Module, facts: dict[str, Any]) -> None:
    """Same privacy settings on every rank, and the weights and buffers of rank 0."""
    named = [*model.named_parameters(), *model.named_buffers()]
    kinds = [(name, tuple(t.shape), str(t.dtype)) for name, t in named]
    if any(other != kinds for other in from_all_ranks(kinds)):
        raise InvalidInput(
            "The models of the ranks have parameters or buffers of different names, shapes or "
            "types. Build the same model on every rank."
        )
    gathered = from_all_ranks(facts)
    if any(other != facts for other in gathered):
        raise InvalidInput(
            f"The ranks were started with different private settings: {gathered}. Build the same "
            "sampler, clip, noise and expected batch size on every rank."
        )
    with torch.no_grad():
        whole = [] if in_parts(model) else model.parameters()  # a part is on one rank alone
        for tensor in [*whole, *model.buffers()]:
            dist.broadcast(tensor, src=0)


def check_splits(sampler: AbstractSampler, noise: Noise, exact: bool) -> None:
    """exact: sums are whole numbers, which add up to the same in any order."""
    if not exact and not noise.splits_over_ranks:
        raise InvalidInput(
            f"{type(noise).__name__} must see the whole sum to put it on its grid; sums that other "
            "ranks add afterwards would lie beside it. With several ranks use GaussianNoise, or "
            'arithmetic="strict".'
        )
    if not sampler.splits_over_ranks:
        raise InvalidInput(
            f"{type(sampler).__name__} on each rank's shard is not the same sampler on the whole "
            "dataset, so its accounting does not apply. With several ranks use PoissonSampler or "
            "BallsInBinsSampler."
        )


def check_one_copy(model: torch.nn.Module) -> None:
    """Each rank must have the bare model, whole or cut by `sharding.shard`."""
    if isinstance(model, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)):
        raise InvalidInput(
            f"Got a model wrapped in {type(model).__name__}, which adds up raw gradients over the "
            "ranks on its own. Pass the bare model: the private step adds the clipped sums up."
        )
    kinds = {base.__name__ for module in model.modules() for base in type(module).__mro__}
    if kinds & {"FSDPModule", "FullyShardedDataParallel"}:
        raise InvalidInput(
            "Got a model that FSDP has cut, which gathers weights and adds up raw gradients by "
            "hooks of its own. Pass the bare model to tightrope.train.shard(model) instead: the "
            "private step gathers weights and adds clipped sums up."
        )


def in_parts(model: torch.nn.Module) -> bool:
    """Whether each rank has only its rows of the parameters; see `sharding`."""
    return any(map(is_part, model.parameters()))


def is_part(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor; the module that has this class takes a second to load."""
    return type(tensor).__name__ == "DTensor"


def is_cut(part: Any) -> bool:
    """Whether each rank has other rows of it."""
    return is_part(part) and bool(part.placements[0].is_shard())


def local(tensor: Tensor) -> Tensor:
    """This rank's memory of a parameter, or of a state of the optimizer."""
    return tensor.detach().to_local() if is_part(tensor) else tensor  # type: ignore[attr-defined]


def as_part(values: Tensor, like: Any) -> Tensor:
    """A rank's own values as its part of what `like` is a part of; or as they are."""
    if not is_part(like):
        return values
    mesh, shape, stride = like.device_mesh, like.shape, like.stride()
    part: Tensor = type(like).from_local(values, mesh, like.placements, shape=shape, stride=stride)
    return part


def common_fingerprint(records: Records) -> str | None:
    """One fingerprint for the data of all ranks; None where none of them has one."""
    found = from_all_ranks((records.named, records.fingerprint))
    if len({named for named, _ in found}) > 1:
        raise InvalidInput(
            "Some ranks name their data (fingerprint=...) and others do not, so nothing can be "
            "said of the whole. Give a name on all ranks, or on none."
        )
    every = [fingerprint for _, fingerprint in found]
    if len(every) == 1 or None in every:
        return every[0] if len(every) == 1 else None
    return hashlib.sha256("\n".join(every).encode()).hexdigest()


def check_apart(records: Records) -> None:
    """Refuse records of two ranks that are equal; all ranks refuse together.

    Every record is read once for that. What is compared are hashes of 64 bits.
    """
    hashes = [hashlib.blake2b(raw, digest_size=8).digest() for raw in _contents(records)]
    marks = np.frombuffer(b"".join(hashes), dtype=np.uint64)
    rounds = -(-max(from_all_ranks(len(marks))) // _MARKS_IN_ONE_MESSAGE)
    for number in range(rounds):
        every = from_all_ranks(np.unique(marks[marks % np.uint64(rounds) == number]))
        for first, second in itertools.combinations(range(len(every)), 2):
            common = len(np.intersect1d(every[first], every[second], assume_unique=True))
            if common:
                raise InvalidInput(
                    f"Ranks {first} and {second} hold equal records ({common:,} of them were "
                    "compared so far), which would join more often than is accounted. Give each "
                    "rank its own part, for example data[rank::ranks] of every tensor. If they "
                    "are different people's, name the data on every rank (fingerprint='people "
                    "2026, part 3'); their content is then not compared."
                )


def _contents(records: Records) -> Iterator[bytes]:
    """Of each record, equal for equal records wherever they lie."""
    for index in range(records.length):
        (group,) = records.groups(np.array([index]))
        leaves, spec = pytree.tree_flatten(group.arguments)
        raw = [str(spec).encode()]
        for leaf in leaves:
            flat = leaf.detach().cpu().contiguous().reshape(-1)
            content = flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""
            raw.append(f"{leaf.dtype}{tuple(leaf.shape)}".encode() + content)
        yield b"".join(raw)
