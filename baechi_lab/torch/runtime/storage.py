"""Which memory a tensor lies in: that of its values, where it is sparse."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from ...errors import InvalidInput
from .tree import tensors

_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def storage_key(tensor: torch.Tensor) -> int:
    """The same number for tensors that share memory, for as long as one of them lives.

    Raises:
        InvalidInput: a tensor within `torch.vmap` or a transform of `torch.func`, which has no memory of its own.

    >>> table = torch.ones(4)
    >>> storage_key(table) == storage_key(table[1:]), storage_key(table) == storage_key(table + 1)
    (True, False)
    """
    return int(_storage(tensor)._cdata)


def storages(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """The memory that holds a tensor: of a sparse one that of its values, then of its indices.

    >>> len(storages(torch.ones(2))), len(storages(torch.eye(2).to_sparse()))
    (1, 2)
    """
    return [component.untyped_storage() for component in _components(tensor)]


def storage_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the memory that holds a tensor, with the indices of a sparse one.

    >>> storage_bytes(torch.ones(4)[1:]), storage_bytes(torch.eye(2).to_sparse())    # 2 * 4 + 2 * 2 * 8
    (16, 40)
    """
    return sum(storage.nbytes() for storage in storages(tensor))


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements, with the indices of a sparse one.

    >>> tensor_bytes(torch.ones(4)[1:]), tensor_bytes(torch.eye(2).to_sparse())
    (12, 40)
    """
    return sum(t.nbytes for t in _components(tensor))


def offset_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's memory that lie before it; 0 for a sparse or a nested one.

    >>> offset_bytes(torch.ones(4)[1:])
    4
    """
    return tensor.storage_offset() * tensor.element_size() if tensor.layout == torch.strided else 0


def only_views(outputs: Any, inputs: Any) -> bool:
    """Whether every tensor in `outputs`, of which there is one at least, shares its data with one in `inputs`."""
    input_storages = {storage_key(t) for t in tensors(inputs)}
    output_tensors = list(tensors(outputs))
    return bool(output_tensors) and all(storage_key(t) in input_storages for t in output_tensors)


def storage_reference(tensor: torch.Tensor) -> StorageWeakRef:
    """The same for tensors that share memory, also after they are gone; its address is not given out again."""
    return StorageWeakRef(tensor.untyped_storage())


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a part of a storage and nothing else."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_quantized
    )


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether a plain tensor is all of its storage, element by element in order."""
    return tensor.is_contiguous() and tensor.nbytes == tensor.untyped_storage().nbytes()


def version(tensor: torch.Tensor) -> int:
    """How often a tensor was written in place; tensors of inference mode do not count."""
    return 0 if tensor.is_inference() else tensor._version


def whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor's storage."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)  # type: ignore[call-overload,no-any-return]


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage:
    try:
        return _components(tensor)[0].untyped_storage()
    except NotImplementedError as error:
        raise InvalidInput(
            "the model uses torch.vmap or a transform of torch.func between its layers, where tensors have no memory to be "
            "followed; put that code into a module of its own, with the layers that it calls, and name its class in atomic=[...]"
        ) from error


def _components(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Values and indices of a sparse tensor; else the tensor itself."""
    if tensor.layout is torch.sparse_coo:
        return (tensor._values(), tensor._indices())
    if tensor.layout in _COMPRESSED:
        rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
        indices = (
            (tensor.crow_indices(), tensor.col_indices()) if rows else (tensor.ccol_indices(), tensor.row_indices())
        )
        return (tensor.values(), *indices)
    return (tensor,)
