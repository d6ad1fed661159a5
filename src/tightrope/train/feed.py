"""From drawn indices to batches of tensors, empty ones included."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from tightrope.errors import InvalidInput
from tightrope.train.samplers import AbstractSampler, Indices

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from tightrope.train.users import UserData

__all__ = [
    "Batch",
    "Data",
    "Items",
    "Ticket",
    "Rows",
    "as_rows",
    "item_rows",
    "draw_ticket",
    "first_of",
    "fresh",
    "split_ticket",
    "rows_at",
    "slice_rows",
    "tensors_of",
    "to_device",
    "with_tensors",
]


Batch: TypeAlias = "Tensor | Sequence[Any] | Mapping[str, Any]"  # what a step is computed from
Data: TypeAlias = "Items | Dataset[Any] | UserData | Rows"


class Items(Protocol):
    """Anything with a length and rows: a tensor, an array, a list, most datasets."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


NOT_STEPPED = (
    "A batch was drawn but step(losses) was not called for it. Skipping batches by what they "
    "contain is not private: step on every batch, empty ones too."
)


@final
@dataclass(frozen=True)
class Ticket:
    """What the private step must find: one part, of `size` examples, of a batch of `whole`.

    place: how many batches were drawn before it, where the sampler has epochs.
    """

    size: int
    last: bool
    whole: int
    sampler_state: dict[str, Any]
    place: int | None = None


@final
@dataclass(frozen=True)
class Rows:
    """A dataset of known length that can be asked for any rows at once.

    arrays: the tensors behind it; counts_writes: do they notice being written to? Or else
    items: the dataset behind it, with the function that collates its items.
    """

    length: int
    take: Callable[[Indices], Any]
    arrays: tuple[Tensor, ...] | None = None
    counts_writes: bool = False
    items: Any = None
    collate: Callable[[list[Any]], Any] = default_collate


def as_rows(data: Any, collate: Callable[[list[Any]], Any] | None = None) -> Rows:
    """A tensor, a tuple of tensors or arrays, a TensorDataset, or a dataset with length."""
    if isinstance(data, Rows):
        return data
    if isinstance(data, DataLoader):
        raise InvalidInput(
            "Got a DataLoader, which chooses (and perhaps shuffles) batches on its own; what it "
            "does is not what would be accounted. Pass its dataset: the sampler of the private "
            "run draws the batches."
        )
    if isinstance(data, TensorDataset) and _is_plain(data, collate):
        return _array_rows(data.tensors)
    if isinstance(data, (Tensor, np.ndarray)):
        return _array_rows((data,))
    if isinstance(data, (tuple, list)) and data and all(_is_array(part) for part in data):
        return _array_rows(data)
    return item_rows(data, default_collate if collate is None else collate)


def _is_plain(data: TensorDataset, collate: object) -> bool:
    """Are its batches just rows of its tensors?"""
    own = type(data).__getitem__ is not TensorDataset.__getitem__ or hasattr(data, "__getitems__")
    return not own and collate in (None, default_collate)


def _is_array(part: object) -> bool:
    return isinstance(part, (Tensor, np.ndarray)) and part.ndim > 0


def _array_rows(parts: Sequence[Any]) -> Rows:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of read-only memory maps: nobody writes here
        tensors = tuple(p if isinstance(p, Tensor) else torch.from_numpy(p) for p in parts)
    lengths = {len(tensor) for tensor in tensors}
    if len(lengths) != 1:
        raise InvalidInput(
            f"The parts of the dataset have different lengths {sorted(lengths)}; row i of each "
            "must belong to the same example."
        )

    def take(indices: Indices) -> Any:
        index = torch.from_numpy(indices)
        rows = tuple(tensor[index.to(tensor.device)] for tensor in tensors)
        return rows if len(rows) > 1 else rows[0]

    counts_writes = all(isinstance(part, Tensor) for part in parts)
    return Rows(lengths.pop(), take, tensors, counts_writes)


def item_rows(data: Items, collate: Callable[[list[Any]], Any]) -> Rows:
    """A dataset of items as rows."""
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
        raise InvalidInput(
            f"{type(data).__name__} can only be read in its own order. Private sampling must be "
            "able to pick any example: use a dataset with __len__ and __getitem__."
        )
    try:
        length = len(data)
    except TypeError as error:
        raise InvalidInput(
            f"{type(data).__name__} has no length, so no record's chance of being drawn is known. "
            "Give the dataset a __len__."
        ) from error

    def take(indices: Indices) -> Any:
        if len(indices) == 0 and length == 0:
            raise InvalidInput("The dataset is empty and has no example to learn the shapes from.")
        if len(indices) == 0:  # only the shapes of example 0 are used
            return slice_rows(collate([data[0]]), slice(0, 0))
        return collate([data[int(i)] for i in indices])

    return Rows(length, take, items=data, collate=collate)


def draw_ticket(sampler: AbstractSampler, population: int) -> tuple[Indices, Ticket]:
    """The next batch of the sampler, and its announcement."""
    place = sampler.place
    indices = sampler.draw(population)
    return indices, Ticket(len(indices), True, len(indices), sampler.state(), place)


def first_of(tickets: Sequence[Ticket]) -> Ticket:
    """The announcement that the next step is about."""
    if not tickets:
        raise InvalidInput(
            "step() was called for a batch that the sampler of this run did not draw, so its "
            "chance of being drawn is unknown. Loop over batches(...) of this object."
        )
    return tickets[0]


def split_ticket(ticket: Ticket, size: int | None) -> list[tuple[slice, Ticket]]:
    """A batch in parts of at most `size` examples; an empty batch is one empty part."""
    reach = max(ticket.size, 1) if size is None else size
    starts = range(0, max(ticket.size, 1), reach)
    parts = []
    for start in starts:
        stop = min(start + reach, ticket.size)
        last = ticket.last and start == starts[-1]
        parts.append((slice(start, stop), replace(ticket, size=stop - start, last=last)))
    return parts


def slice_rows(batch: Batch, part: slice) -> Any:
    """Some of the examples of a collated batch."""
    size = next((len(tensor) for tensor in tensors_of(batch) if tensor.ndim), None)

    def texts(listed: Any) -> Any:
        return listed[part] if len(listed) == size else listed

    return _map(batch, lambda tensor: tensor[part], texts)


def rows_at(batch: Batch, size: int, places: Sequence[int]) -> Any:
    """The examples at these places of a batch of so many; what has no row for each stays."""
    index = torch.tensor(places, dtype=torch.long, device="cpu")

    def rows(tensor: Tensor) -> Tensor:
        return tensor[index.to(tensor.device)] if len(tensor) == size else tensor

    def texts(listed: Any) -> Any:
        return type(listed)(listed[i] for i in places) if len(listed) == size else listed

    return _map(batch, rows, texts)


def to_device(batch: Batch, device: torch.device) -> Any:
    return _map(batch, lambda tensor: tensor.to(device, non_blocking=True))


def tensors_of(batch: Batch) -> list[Tensor]:
    """All tensors of a collated batch, in the order of `with_tensors`."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, Mapping):
        return [tensor for value in batch.values() for tensor in tensors_of(value)]
    if isinstance(batch, PackedSequence):
        return [part for part in (batch.data, *batch[2:]) if part is not None]
    if isinstance(batch, (tuple, list)):
        return [tensor for value in batch for tensor in tensors_of(value)]
    return []


def with_tensors(
    batch: Batch, tensors: Sequence[Tensor], texts: Callable[[Any], Any] = lambda t: t
) -> Any:
    """The same structure around other tensors; texts: what becomes of a list of texts."""
    left = iter(tensors)
    return _map(batch, lambda _: next(left), texts)


def fresh(batch: Batch) -> Any:
    """A copy, for code that may write to it; a tensor that stands twice is one tensor here too."""
    given = tensors_of(batch)
    copies = {id(tensor): tensor.clone() for tensor in given}
    return with_tensors(batch, [copies[id(tensor)] for tensor in given])


def _map(
    batch: Batch, change: Callable[[Tensor], Tensor], texts: Callable[[Any], Any] = lambda t: t
) -> Any:
    """texts: what becomes of a list of texts, as `default_collate` leaves them."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: _map(value, change, texts) for key, value in batch.items()}
    if isinstance(batch, PackedSequence):  # its batch sizes stay on the CPU
        data = change(batch.data)
        order = [None if part is None else change(part) for part in batch[2:]]
        return PackedSequence(data, batch.batch_sizes, *order)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_map(value, change, texts) for value in batch))
    if type(batch) in (tuple, list) and batch and all(isinstance(v, (str, bytes)) for v in batch):
        return texts(batch)
    if isinstance(batch, (tuple, list)):
        return type(batch)(_map(value, change, texts) for value in batch)
    return batch
