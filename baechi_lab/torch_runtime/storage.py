"""The memory in which a tensor lies. For a sparse tensor it is the memory of its values.

A wrapper subclass, such as a quantized weight of torchao, has no memory of its own: that of the tensors within counts.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..errors import InvalidInput
from .tree import tensors

_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def storage_key(tensor: torch.Tensor) -> int:
    """Returns a number that is equal for tensors that share memory, as long as one of them lives.

    Raises:
        InvalidInput: a tensor within `torch.vmap` or a transform of `torch.func`, which has no memory of its own.

    >>> table = torch.ones(4)
    >>> storage_key(table) == storage_key(table[1:]), storage_key(table) == storage_key(table + 1)
    (True, False)
    """
    try:
        return int(dense_components(tensor)[0].untyped_storage()._cdata)
    except NotImplementedError as error:
        raise InvalidInput(
            "the model uses torch.vmap or a transform of torch.func between its layers, where tensors have no memory to be "
            "followed; put that code into a module of its own, with the layers that it calls, and name its class in atomic=[...]"
        ) from error


def storages(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """Returns the storages that hold a tensor.

    Of a sparse tensor: that of its values, then those of its indices. Of a wrapper subclass: those of the tensors within.

    >>> len(storages(torch.ones(2))), len(storages(torch.eye(2).to_sparse()))
    (1, 2)
    """
    return [component.untyped_storage() for component in dense_components(tensor)]


def storage_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the storages that hold a tensor, including the indices of a sparse tensor.

    >>> storage_bytes(torch.ones(4)[1:]), storage_bytes(torch.eye(2).to_sparse())    # 2 * 4 + 2 * 2 * 8
    (16, 40)
    """
    return sum(storage.nbytes() for storage in storages(tensor))


def distinct_bytes(structure: object) -> int:
    """Bytes of the tensors of a structure. A tensor that it has twice counts once.

    >>> ids = torch.ones(4)
    >>> distinct_bytes({"input_ids": ids, "labels": ids}), distinct_bytes((ids, ids.clone()))
    (16, 32)
    """
    distinct_tensors = {id(t): t for t in tensors(structure)}.values()
    return sum(min(tensor_bytes(t), storage_bytes(t)) for t in distinct_tensors)


def tensor_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements, including the indices of a sparse tensor.

    >>> tensor_bytes(torch.ones(4)[1:]), tensor_bytes(torch.eye(2).to_sparse())
    (12, 40)
    """
    return sum(t.nbytes for t in dense_components(tensor))


def offset_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the storage before the tensor begins; 0 for a sparse or nested tensor.

    >>> offset_bytes(torch.ones(4)[1:])
    4
    """
    return tensor.storage_offset() * tensor.element_size() if tensor.layout == torch.strided else 0


def only_views(outputs: object, inputs: object) -> bool:
    """Whether `outputs` has tensors and each of them shares its data with one of `inputs`."""
    input_storages = {storage_key(t) for t in tensors(inputs)}
    output_tensors = list(tensors(outputs))
    return bool(output_tensors) and all(storage_key(t) in input_storages for t in output_tensors)


def storage_reference(tensor: torch.Tensor) -> StorageWeakRef:
    """Returns a reference that is equal for tensors that share memory, and stays unique after they are freed."""
    return StorageWeakRef(tensor.untyped_storage())


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a strided view of a storage and nothing else."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_quantized
    )


def has_one_storage(tensor: torch.Tensor) -> bool:
    """Whether the data of a tensor, which may be fake, are in one storage: it is neither sparse nor a wrapper."""
    return tensor.layout is torch.strided and not is_wrapper(tensor)


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether a plain tensor covers all of its storage, element by element in order."""
    return tensor.is_contiguous() and tensor.nbytes == tensor.untyped_storage().nbytes()


def version(tensor: torch.Tensor) -> int:
    """Returns how often a tensor was written in place. Tensors of inference mode do not count this."""
    return 0 if tensor.is_inference() else tensor._version


def whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the whole storage of a tensor, as a flat tensor."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)  # type: ignore[call-overload,no-any-return]


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a wrapper subclass, whose data are other tensors: a quantized weight of torchao, a `DTensor`."""
    return type(tensor) not in (torch.Tensor, nn.Parameter) and is_traceable_wrapper_subclass(tensor)


def tensors_within(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns the tensors that a wrapper subclass consists of, at any depth; otherwise the tensor itself.

    >>> [len(tensors_within(t)) for t in (torch.ones(2), torch.eye(2).to_sparse())]
    [1, 1]
    """
    if not is_wrapper(tensor):
        return (tensor,)
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    attributes = (getattr(tensor, name) for name in names)
    return tuple(
        inner for attribute in attributes if isinstance(attribute, torch.Tensor) for inner in tensors_within(attribute)
    )


def dense_components(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Values and indices of a sparse tensor, the components of the tensors within a wrapper; otherwise the tensor itself."""
    if is_wrapper(tensor):
        return tuple(component for inner in tensors_within(tensor) for component in dense_components(inner)) or (
            tensor,
        )
    if tensor.layout is torch.sparse_coo:
        return (tensor._values(), tensor._indices())
    if tensor.layout in _COMPRESSED:
        rows = tensor.layout in (torch.sparse_csr, torch.sparse_bsr)
        indices = (
            (tensor.crow_indices(), tensor.col_indices()) if rows else (tensor.ccol_indices(), tensor.row_indices())
        )
        return (tensor.values(), *indices)
    return (tensor,)
