"""The devices that torch sees on this machine, as a Cluster, and a placement as accelerate's map of modules to devices."""

from __future__ import annotations

import contextlib
import os

import torch
from torch import nn

from ..checks import check_whole
from ..errors import InvalidInput, in_short
from ..graph import Cluster, Device
from ..graph.link import PCIE, Link


def attached_cluster(
    virtual: int | None = None, kind: str = "auto", link: Link = PCIE, comm: str = "sequential"
) -> Cluster:
    """Returns the GPUs that torch sees. Without a GPU, CPU devices that share the machine's memory evenly.

    Args:
        virtual: the number of CPU devices; by default two, as each of them computes with all of torch's threads.
        kind: "gpu", "cpu", or "auto" for GPUs where there are any; in any case.
        link: between any two of them; an assumption (PCIe 3.0) until it is measured.
        comm: as of `Cluster`.

    Raises:
        InvalidInput: an unknown kind, GPUs where torch sees none, `virtual` with GPUs.

    >>> attached_cluster(virtual=3, kind="cpu").names
    ('cpu:0', 'cpu:1', 'cpu:2')
    """
    kind = kind.lower() if isinstance(kind, str) else kind
    if kind not in ("auto", "cpu", "gpu"):
        raise InvalidInput(f"kind is {kind!r}; it must be 'auto', 'cpu' or 'gpu'")
    gpu_count = torch.cuda.device_count() if torch.cuda.is_available() and kind != "cpu" else 0
    if kind == "gpu" and not gpu_count:
        raise InvalidInput("kind is 'gpu' and torch sees no GPU; use kind='cpu'")
    if gpu_count:
        if virtual is not None:
            raise InvalidInput(f"virtual is {virtual!r}; it is the number of CPU devices, so it needs kind='cpu'")
        sizes = [torch.cuda.get_device_properties(i).total_memory for i in range(gpu_count)]
        return Cluster(tuple(Device(f"gpu:{i}", "gpu", size) for i, size in enumerate(sizes)), link, comm)
    count = check_whole("virtual", 2 if virtual is None else virtual)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Cluster(tuple(Device(f"cpu:{i}", "cpu", memory // count) for i in range(count)), link, comm)


def device_name(field: str, value: object) -> str:
    """Returns torch's name of a device.

    >>> device_name("output_device", "cuda")
    'cuda'

    Raises:
        InvalidInput: `value` names no device.
    """
    if isinstance(value, (str, torch.device)):
        with contextlib.suppress(RuntimeError):
            return str(torch.device(value))
    raise InvalidInput(f"{field} is {in_short(value)}; it must name a device of torch, such as 'cpu' or 'cuda:0'")


def device_map(model: nn.Module) -> dict[str, int | str]:
    """Returns the devices of parameters and buffers in accelerate's format: the largest modules that lie on one device."""
    device_of: dict[str, int | str] = {}
    _add_modules(model, "", device_of)
    return device_of


def _add_modules(module: nn.Module, name: str, device_of: dict[str, int | str]) -> None:
    tensors = [*module.parameters(), *module.buffers()]
    places = {t.device for t in tensors}
    if len(places) == 1:
        device_of[name] = _label(places.pop())
        return
    direct_tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    device_of.update({f"{name}.{key}".lstrip("."): _label(t.device) for key, t in direct_tensors})
    for key, child in module.named_children():
        _add_modules(child, f"{name}.{key}".lstrip("."), device_of)


def _label(device: torch.device) -> int | str:
    return device.index or 0 if device.type == "cuda" else str(device)
