"""The records of a run, and how drawn records become the arguments of a loss.

Every record is made into arguments alone, and records are stacked afterwards. So nothing that
happens on the way (collation, padding to a length) can depend on the other records of a batch.
Shapes are public: they are those of the first record, and of each length in a public list.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
import torch.utils._pytree as pytree
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from tightrope.errors import InvalidInput
from tightrope.evidence.commitment import opens
from tightrope.validate import check_count

Indices = NDArray[np.int64]
Arguments = tuple[Any, ...]  # what a loss takes after the model, tensors with a row for each record
_AT_ONCE = 2**24  # bytes hashed at a time, so that memory-mapped arrays are streamed


class Group(NamedTuple):
    """Records of one shape: their arguments, stacked, and how many they are."""

    arguments: Arguments
    size: int


class LoaderSettings(NamedTuple):
    """What is taken from an ordinary DataLoader: everything but the order of its records."""

    dataset: Any
    batch_size: int
    collate: Callable[[list[Any]], Any] | None
    workers: dict[str, Any]


def loader_settings(loader: DataLoader[Any]) -> LoaderSettings:
    """The data set, batch size, collation and workers of a loader; refused if it picks records."""
    if loader.batch_size is None:
        raise InvalidInput(
            "The DataLoader has a batch sampler of its own (or no batches). A private run draws "
            "its batches itself, with a known chance for every record. Make the DataLoader with "
            "batch_size=, or pass its dataset."
        )
    sampler: Any = loader.sampler
    plain = type(sampler) in (SequentialSampler, RandomSampler)
    if plain and type(sampler) is RandomSampler:
        plain = not sampler.replacement and sampler._num_samples is None
    if not plain or sampler.data_source is not loader.dataset:
        raise InvalidInput(
            f"The DataLoader draws by a {type(sampler).__name__} that may prefer or leave out "
            "records. A private run gives every record of the data set the same chance. Leave the "
            "sampler out; for some of the records pass a Subset of the data set."
        )
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise InvalidInput(
            f"{type(loader).__name__} changes its batches in an __iter__ of its own, which would "
            "not run here. Do that work in the data set, or in collate_fn."
        )
    options = {"num_workers": loader.num_workers, "worker_init_fn": loader.worker_init_fn}
    if loader.num_workers:
        options["multiprocessing_context"] = loader.multiprocessing_context
        options["prefetch_factor"] = loader.prefetch_factor
    own = loader.collate_fn
    return LoaderSettings(
        loader.dataset, loader.batch_size, None if own is default_collate else own, options
    )


@final
class Records:
    """The data of a run: a tensor, arrays, a TensorDataset, or a data set with length and items.

    collate: makes arguments of a list of ONE item; PyTorch's default if left out.
    lengths: public lengths of sequences, which are filled up to the smallest that holds them.
    padding: what they are filled up with. With one number, every part of an item but single numbers
        is a sequence. Numbers by key (or position) of the item name the parts that are sequences.
    workers: options of DataLoader about worker processes.
    fingerprint: a name that the owner gives the data, whose content is then not compared.

    of_arrays: whether they are rows of arrays, so that no Python runs when they are read.
    """

    def __init__(
        self,
        data: Any,
        *,
        collate: Callable[[list[Any]], Any] | None = None,
        lengths: Sequence[int] = (),
        padding: float | Mapping[Any, float] = 0,
        workers: Mapping[str, Any] | None = None,
        fingerprint: str | None = None,
    ) -> None:
        if collate is not None and not callable(collate):
            raise InvalidInput(f"collate must be a function of [item]; got {collate!r}.")
        if isinstance(lengths, str | int):
            raise InvalidInput(
                f"lengths must list lengths, such as (64, 128, 512); got {lengths!r}."
            )
        check_count((workers or {}).get("num_workers", 0), "workers", low=0)
        self._collate = default_collate if collate is None else collate
        self._lengths = tuple(sorted(check_count(n, "lengths", low=1) for n in lengths))
        self._padding, self._workers = padding, dict(workers or {})
        self._arrays = arrays_of(data) if collate is None and not lengths else None
        self._items, self._shapes = data, set[Any]()
        self.of_arrays, self.named = self._arrays is not None, fingerprint is not None
        self.length = _length_of(data) if self._arrays is None else len(self._arrays[0])
        self._writes = self._counted_writes()
        self.fingerprint = fingerprint
        if fingerprint is None and self._arrays is not None:
            self.fingerprint = _hash(self._arrays)

    def are_of(self, other: Records) -> bool:
        """Whether both are of one data set, or of parts of it that overlap."""
        (whole, places), (others, theirs) = _places(self._items), _places(other._items)
        apart = places is not None and theirs is not None and places.isdisjoint(theirs)
        return whole is others and not apart

    def examples(self, *, of_many: bool = False) -> list[Arguments]:
        """Arguments of each shape that a record may have; of arrays without a record, no rows.

        of_many: whether other ranks have records where this one may have none.
        """
        if self.length == 0 and (self._arrays is None or not of_many):
            raise InvalidInput("The data set is empty, so the shapes of its records are not known.")
        if self._arrays is not None:
            return [tuple(part[:1] for part in self._arrays)]
        bare = self._bare(self._items[0])
        each = [self._filled(bare, n, shorten=True) for n in self._lengths] or [bare]
        self._shapes = set(map(shape_of, each))
        return each

    # ---- drawn records -----------------------------------------------------------------------
    def batches(self, draws: Iterable[Indices]) -> Iterator[list[Group]]:
        """The groups of each draw, in order; worker processes read ahead where there are any."""
        if self._arrays is not None or not self._workers.get("num_workers"):
            yield from map(self.groups, draws)
            return
        listed: Any = (indices.tolist() for indices in draws)
        records: Any = self
        yield from DataLoader(records, batch_sampler=listed, collate_fn=_stacked, **self._workers)  # type: ignore[misc]

    def groups(self, indices: Indices) -> list[Group]:
        """The records at these places, by shape."""
        if len(indices) == 0:
            return []
        if self._arrays is not None:
            index = torch.from_numpy(indices)
            parts = tuple(part.index_select(0, index.to(part.device)) for part in self._arrays)
            return [Group(parts, len(indices))]
        return _stacked([self.arguments(int(i)) for i in indices])

    def arguments(self, index: int) -> Arguments:
        """One record's arguments, of a shape that is public."""
        bare = self._bare(self._items[index])
        if self._lengths:
            length = self._sequence_length(bare)
            fitting = next((n for n in self._lengths if n >= length), None)
            if fitting is None:
                raise InvalidInput(
                    f"A record is longer than the longest of lengths={self._lengths}. Cut records "
                    "in the data set, each by itself, or state a larger length."
                )
            bare = self._filled(bare, fitting)
        if self._shapes and shape_of(bare) not in self._shapes:
            raise InvalidInput(
                "A record has another shape than the first one, so it would need a program of its "
                "own. Give all records one shape, or state the lengths that sequences may have: "
                "lengths=(64, 128, 512) fills each one up to the smallest that holds it."
            )
        return bare

    __getitem__ = arguments  # for worker processes

    def _bare(self, item: Any) -> Arguments:
        """One item as arguments with one row each."""
        try:
            made = self._collate([item])
        except Exception as error:
            raise InvalidInput(
                f"An item of type {type(item).__name__} cannot be collated "
                f"({type(error).__name__}, see above). Let items hold tensors, arrays and numbers "
                "only, or give a collate function of [item]."
            ) from error
        if isinstance(made, Mapping):  # in one order, whatever order an item has its keys in
            made = dict(sorted(made.items(), key=lambda pair: str(pair[0])))
        several = isinstance(made, tuple | list) and not hasattr(made, "_fields")
        made = tuple(made) if several else (made,)
        for leaf in pytree.tree_leaves(made):
            if isinstance(leaf, str | bytes):
                raise InvalidInput(
                    "An item of the data set holds a text, which no program of tensors can take. "
                    "Leave it out of the item, or turn it into numbers in the data set."
                )
            tensor = isinstance(leaf, Tensor)
            if not tensor or leaf.dim() == 0 or len(leaf) != 1:
                got = f"shape {tuple(leaf.shape)}" if tensor else type(leaf).__name__
                raise InvalidInput(
                    f"Collated alone, an item gives a {got}; every part must be a tensor with one "
                    "row. Let the item hold tensors, arrays or numbers, and collate_fn stack them."
                )
        return made

    # ---- sequences ---------------------------------------------------------------------------
    def _filled(self, arguments: Arguments, length: int, *, shorten: bool = False) -> Arguments:
        own = self._sequence_length(arguments)

        def fill(path: Any, leaf: Tensor) -> Tensor:
            value = self._padding_of(path, leaf)
            if value is None or (own >= length and not shorten):
                return leaf
            more = leaf.new_full((1, max(length - own, 0), *leaf.shape[2:]), value)
            return torch.cat([leaf[:, :length], more], 1)

        return pytree.tree_map_with_path(fill, arguments)  # type: ignore[no-any-return]

    def _padding_of(self, path: Any, leaf: Tensor) -> float | None:
        """What a part of an item is filled up with; None of one that is no sequence."""
        if leaf.dim() < 2:
            return None
        if not isinstance(self._padding, Mapping):
            return self._padding
        names = (getattr(key, "key", getattr(key, "idx", None)) for key in reversed(path))
        return next((self._padding[name] for name in names if name in self._padding), None)

    def _sequence_length(self, arguments: Arguments) -> int:
        parts = pytree.tree_leaves_with_path(arguments)
        sizes = {leaf.shape[1] for path, leaf in parts if self._padding_of(path, leaf) is not None}
        if len(sizes) != 1:
            raise InvalidInput(
                "lengths= fills up sequences, and the parts of an item that would be filled up "
                f"have {'no length' if not sizes else 'different lengths'}. Name the parts that "
                "are sequences with what each is filled up with: padding={'tokens': 0}, or by "
                "position: padding={0: 0}."
            )
        return int(sizes.pop())

    # ---- what the certificate commits to -----------------------------------------------------
    @property
    def description(self) -> str:
        """How far the content was compared, for the certificate."""
        if self.named:
            return "named by the owner; their content was not compared"
        if self.fingerprint is None:
            return "a data set of items, not compared"
        return "every record fingerprinted at the start and at the end"

    def check_unwritten(self) -> None:
        """Refuse to go on with tensors that were written to: records could join twice an epoch."""
        if self._writes != self._counted_writes():
            raise InvalidInput(
                "The data of this run were written to since it began. Its account is about the "
                "records it began with, in their order. Go on with data that stay as they are, or "
                "start a new run, with history=run.record() to count this one."
            )

    def _counted_writes(self) -> list[int | None]:
        """PyTorch's count of writes to each array; NumPy writes without counting."""
        return [None if part.is_inference() else part._version for part in self._arrays or ()]

    def changed(self) -> bool:
        """Whether arrays differ from what they were at the start; reads them in whole."""
        if self._arrays is None or self.named:
            return False
        return _hash(self._arrays) != self.fingerprint


def to_device(arguments: Arguments, device: torch.device) -> Arguments:
    """The same arguments on a device."""
    if all(isinstance(part, Tensor) and part.device == device for part in arguments):
        return arguments
    return pytree.tree_map(lambda leaf: leaf.to(device, non_blocking=True), arguments)  # type: ignore[no-any-return]


def is_data_of(certificate: dict[str, Any], key: str, data: Any) -> bool:
    """Was this run made on these arrays? For those who hold the data and the key of the run."""
    published = (certificate.get("run") or {}).get("data")
    arrays = arrays_of(data)
    if published is None or arrays is None:
        raise InvalidInput(
            "This certificate carries no commitment to the data of a run, or the data are no "
            "arrays. Only the content of arrays and tensors is committed to."
        )
    return opens(published, key, _hash(arrays))


def _stacked(each: list[Arguments]) -> list[Group]:
    """Records of equal shape side by side."""
    by_shape: dict[Any, list[Arguments]] = {}
    for arguments in each:
        by_shape.setdefault(shape_of(arguments), []).append(arguments)
    return [
        Group(pytree.tree_map(lambda *column: torch.cat(column), *same), len(same))
        for same in by_shape.values()
    ]


def shape_of(arguments: Arguments) -> Any:
    """What records of one program have in common: structure, shapes of a row, and types."""
    leaves, spec = pytree.tree_flatten(arguments)
    return str(spec), tuple((tuple(leaf.shape[1:]), leaf.dtype) for leaf in leaves)


def arrays_of(data: Any) -> tuple[Tensor, ...] | None:
    """The tensors behind data that are nothing but rows of tensors."""

    def is_array(part: object) -> bool:
        return isinstance(part, Tensor | np.ndarray) and part.ndim > 0

    if isinstance(data, TensorDataset):
        plain = type(data).__getitem__ is TensorDataset.__getitem__
        parts: Any = data.tensors if plain else ()
    elif isinstance(data, Tensor | np.ndarray):
        parts = (data,)
    else:
        parts = data if isinstance(data, tuple | list) and all(map(is_array, data)) else ()
    if not parts:
        return None
    tensors = [part if isinstance(part, Tensor) else _tensor_of(part) for part in parts]
    odd = [part.layout for part in tensors if part.layout is not torch.strided]
    if odd:
        raise InvalidInput(
            f"The data have a tensor of layout {odd[0]}, whose rows cannot be selected. "
            "Pass dense tensors, with one row for each record."
        )
    if len({len(part) for part in tensors}) != 1:  # how long they are is private
        raise InvalidInput(
            "The parts of the data have different lengths; row i of each must belong to the same "
            "record."
        )
    return tuple(part.detach() for part in tensors)


def _tensor_of(array: NDArray[Any]) -> Tensor:
    if array.dtype.kind not in "biufc":
        raise InvalidInput(
            f"The data have an array of type {array.dtype}. Pass arrays of numbers; texts and "
            "objects are turned into numbers before, each record by itself."
        )
    if not array.dtype.isnative or any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a read-only memory map; it is never written
        return torch.from_numpy(array)


def _places(data: Any) -> tuple[Any, set[int] | None]:
    """The data set that parts were taken of, and which of its items; None for all of them."""
    places: list[int] | None = None
    while isinstance(data, Subset):
        own = [int(index) for index in data.indices]
        places = own if places is None else [own[place] for place in places]
        data = data.dataset
    return data, None if places is None else {*places}


def _length_of(data: Any) -> int:
    if isinstance(data, Mapping):
        raise InvalidInput(
            f"The data are a {type(data).__name__}, whose items are not its records. Pass a tuple "
            "of its arrays, (data['x'], data['y']), or a data set whose items are dictionaries."
        )
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
        raise InvalidInput(
            f"{type(data).__name__} can only be read in its own order. Private sampling must be "
            "able to pick any record: use a data set with __len__ and __getitem__."
        )
    try:
        return len(data)
    except TypeError as error:
        raise InvalidInput(
            f"{type(data).__name__} has no length, so the chance that a record is drawn is not "
            "known. Give the data set a __len__."
        ) from error


def _hash(arrays: Sequence[Tensor]) -> str:
    """Every value of every record, with types, shapes and order."""
    digest = hashlib.blake2b(f"arrays:{len(arrays)}".encode(), digest_size=32)
    for part in arrays:
        digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
        rows = max(_AT_ONCE // max(part[:1].numel() * part.element_size(), 1), 1)
        for chunk in part.split(rows):
            flat = chunk.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy() if len(flat) else b"")
    return digest.hexdigest()
