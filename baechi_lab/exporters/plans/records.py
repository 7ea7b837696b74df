"""The records of plan writers: `Request`, `Written` and `WrittenPlan`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidInput
from ...graph import HOST, Cluster, OpGraph, Timeline
from ...graph.kernels.csr import Integers
from ...graph.tensors import NAMED, RECOMPUTED, TARGETS


@dataclass(frozen=True)
class WrittenPlan:
    """A placement in the format of another runtime.

    Args:
        format: the name of the format.
        value: what the runtime is given: a mapping, a list, or a text.
        text: the same as text, to paste or to save.
        unsupported: one sentence for each thing of the plan that the format could not express; empty where it expresses all.
        files: for formats that are binary, ending of a file's name -> its bytes.
    """

    format: str
    value: Any
    text: str
    unsupported: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def lost(self) -> tuple[str, ...]:
        """Deprecated name of `unsupported`."""
        warnings.warn("lost is deprecated; use unsupported", DeprecationWarning, stacklevel=2)
        return self.unsupported

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Request:
    """A plan to write: `device` is int32[n], the device of every op of `graph`; `timeline` has their times."""

    graph: OpGraph
    device: Integers
    cluster: Cluster | None
    model: Any
    layers: str | None
    timeline: Timeline | None = None

    @property
    def forward(self) -> NDArray[np.int32]:
        """The ops of the forward pass, in topological order (code order, where that is one).

        Backward ops, updates, and ops that stand for no call (`Named`, `Targets`, `Recomputed`) are left out.
        """
        is_excluded = np.array(
            [kind in ("Update", NAMED, TARGETS, RECOMPUTED) for kind in self.graph.op_types], dtype=np.bool_
        )
        return self.graph.order[((self.graph.forward_of < 0) & ~is_excluded)[self.graph.order]]

    def device_name(self, device: int) -> str:
        """Returns the name of a device, or its index without a cluster."""
        return str(device) if self.cluster is None else self.cluster.names[device]

    def accelerators(self) -> Mapping[int, int]:
        """Returns device index -> its number among the devices that are not CPUs; without a cluster, no device is a CPU."""
        used = range(int(self.device.max(initial=0)) + 1) if self.cluster is None else range(self.cluster.n)
        gpus = [d for d in used if self.cluster is None or self.cluster.devices[d].family not in ("cpu", HOST)]
        return {d: i for i, d in enumerate(gpus)}


@dataclass(frozen=True)
class Written:
    """A plan in one format: `device` is the device of each op, -1 if the format does not express it."""

    value: Any
    text: str
    device: Integers
    unsupported: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


def heaviest(request: Request, ops: list[int]) -> int:
    """Returns the device with most of the ops' persistent bytes; ties go by duration, then to the lowest index."""
    graph = request.graph
    devices = sorted({int(request.device[i]) for i in ops})

    def weight(device: int) -> tuple[int, float]:
        on_device = [i for i in ops if request.device[i] == device]
        return int(graph.persistent_bytes[on_device].sum()), float(graph.duration_us[on_device].sum())

    return max(devices, key=weight)


def stem(name: str) -> str:
    """Returns the module in an op's name: `layers.0.1` of `layers.0.1#2`."""
    return name.partition("#")[0]


def is_call(graph: OpGraph, op: int) -> bool:
    """Whether an op is a plain function's call (`layers.0/add#1` of type `add`) or a part of an output (`layers.0/parts`)."""
    name = stem(graph.names[op])
    return name.rpartition("/")[2] == graph.op_types[op] or name.rstrip("'").endswith("/parts")


def check_modules(request: Request, names: Sequence[str]) -> None:
    """Raises `InvalidInput` for a name that is no submodule of the given model."""
    if not hasattr(request.model, "named_modules"):
        return
    module_names = {name for name, _ in request.model.named_modules(remove_duplicate=False)}
    unknown = [name for name in names if name not in module_names]
    if unknown:
        raise InvalidInput(
            f"{unknown[0]!r} of the graph is no module of the model; give the model that was profiled, and a placement in which "
            "no stage begins with the loss"
        )


def moved_ops_sentence(request: Request, written_device: NDArray[np.int32]) -> tuple[str, ...]:
    """Returns a sentence if ops will run on other devices than planned."""
    wrong = np.flatnonzero((written_device >= 0) & (written_device != request.device))
    if not wrong.size:
        return ()
    share = request.graph.duration_us[wrong].sum() / max(request.graph.duration_us.sum(), 1e-300)
    examples = ", ".join(
        f"{request.graph.names[i]!r} on {request.device_name(int(written_device[i]))} instead of "
        f"{request.device_name(int(request.device[i]))}"
        for i in wrong[:3]
    )
    more_text = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    return (f"{len(wrong)} of {request.graph.n} ops, {share:.0%} of the time, run elsewhere: {examples}{more_text}",)
