"""How people distribute PyTorch models today, as placers for comparison.

- `Naive`: contiguous parts of the code with equal memory, moved with `.to()` (Shetty 2022, section 1.2.1).
- `Accelerate`: Hugging Face accelerate's `infer_auto_device_map` (package `accelerate`).
- `Pipelining`: the stages that `torch.distributed.pipelining` makes at split points of equal time.

Each is a placer object, so `bl.compare(graph, cluster, ["m-sct", Naive(), Accelerate(step)])` compares them.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ..errors import ExecutionError, InfeasiblePlacement, MissingPackage
from ..graph import Cluster, OpGraph, Placement
from ..graph.tensors import TARGETS
from ..placers.base import Placer
from ..torch_steps.records import UPDATE
from ..torch_steps.step import TorchStep
from .models.experts import join_companions


@dataclass(frozen=True)
class Naive(Placer):
    """Contiguous parts of the code with equal memory, as a manual split with `.to()`."""

    name: ClassVar[str] = "naive-to"

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        forward = forward_calls(graph)
        # Bytes of the optimizer count for the call whose parameters it updates.
        persistent_bytes = graph.persistent_bytes.copy()
        for op in (k for k, kind in enumerate(graph.op_types) if kind == UPDATE):
            call = graph.index.get(graph.names[op].removesuffix("/update"), op)
            persistent_bytes[call] += graph.persistent_bytes[op] * (call != op)
        weight = (persistent_bytes + graph.output_bytes)[forward].astype(np.float64)
        return _placement(self, graph, equal_parts(weight, cluster.n))


@dataclass(frozen=True)
class Accelerate(Placer):
    """Hugging Face accelerate: modules in code order fill one device after the other, up to a balanced share."""

    name: ClassVar[str] = "accelerate"
    step: TorchStep
    balanced: bool = True
    """False fills each device before the next is used, as `device_map="sequential"` does."""

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        model = self.step.model()
        modules = device_map(model, cluster, balanced=self.balanced, whole=self.step.atomic)
        return _placement(self, graph, _by_module(graph, modules))


@dataclass(frozen=True)
class Pipelining(Placer):
    """torch.distributed.pipelining: stages of equal forward time, without microbatches."""

    name: ClassVar[str] = "torch-pipelining"
    step: TorchStep
    _stages: dict[tuple[str, ...], dict[str, int]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By split points, what `stages` returned: it exports the model, which takes seconds."""

    def assign(self, graph: OpGraph, cluster: Cluster) -> Placement:
        splits = split_points(graph, self.step.model(), cluster.n)
        if tuple(splits) not in self._stages:
            self._stages[tuple(splits)] = stages(self.step, splits) if splits else {}
        return _placement(self, graph, _by_module(graph, self._stages[tuple(splits)]))


def forward_calls(graph: OpGraph) -> NDArray[np.int64]:
    """Returns the forward ops, in code order."""
    update = np.array([t in (UPDATE, TARGETS, "Loss") for t in graph.op_types], dtype=np.bool_)
    return np.flatnonzero((graph.forward_of < 0) & ~update)


def equal_parts(weight: NDArray[np.float64], count: int) -> NDArray[np.int32]:
    """Contiguous parts of nearly equal weight: int32, the part of each entry.

    >>> equal_parts(np.array([1.0, 1.0, 2.0]), 2).tolist()
    [0, 0, 1]
    """
    total = weight.sum()
    middle = np.cumsum(weight) - weight / 2
    share = middle / total if total > 0 else np.arange(len(weight)) / max(len(weight), 1)
    return np.minimum((share * count).astype(np.int32), count - 1)


def device_map(
    model: nn.Module, cluster: Cluster, *, balanced: bool = True, whole: tuple[str, ...] = ()
) -> dict[str, int]:
    """Returns accelerate's map of module names to device indices. Raises `InfeasiblePlacement` if it would offload."""
    try:
        from accelerate import infer_auto_device_map
        from accelerate.utils import get_balanced_memory
    except ImportError as error:
        raise MissingPackage.of("accelerate", "torch", "the reference placer 'accelerate'") from error
    limits: dict[int | str, int | str] = {d: int(m) for d, m in enumerate(cluster.memory_bytes)}
    logger = logging.getLogger("accelerate.utils.modeling")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns that simulated devices are not attached
    try:
        if balanced:
            limits = get_balanced_memory(model, limits, no_split_module_classes=list(whole))
        device_of = infer_auto_device_map(model, limits, no_split_module_classes=list(whole))
    finally:
        logger.setLevel(level)
    away = [name for name, device in device_of.items() if not isinstance(device, int) and model_bytes(model, name)]
    if away:
        needed_bytes = sum(p.nbytes for p in model.parameters())
        raise InfeasiblePlacement(
            f"accelerate would offload {away[0]!r} to {device_of[away[0]]}: the parameters do not fit",
            needed_bytes,
            cluster.memory_bytes.tolist(),
        )
    return {name: device for name, device in device_of.items() if isinstance(device, int)}


def model_bytes(model: nn.Module, name: str) -> int:
    """Bytes of the parameters of the module or parameter `name`."""
    return sum(p.nbytes for n, p in model.named_parameters() if n == name or n.startswith(f"{name}."))


def split_points(graph: OpGraph, model: nn.Module, count: int) -> list[str]:
    """Layers at which stages of equal forward time begin."""
    forward = forward_calls(graph)
    stage_of_call = equal_parts(graph.duration_us[forward], count)
    # a layer with several calls would begin a stage at every call
    repeated_modules = {name.partition("#")[0] for name in graph.names if "#" in name}
    modules = {name for name, _ in model.named_modules()} - repeated_modules
    splits: list[str] = []
    for k in range(1, count):
        later_names = (graph.names[op] for op in forward[stage_of_call >= k])
        first = next((name for name in later_names if name in modules), None)
        if first is not None and first not in splits:
            splits.append(first)
    return splits


def stages(step: TorchStep, splits: list[str]) -> dict[str, int]:
    """Returns parameter name -> stage, as `torch.distributed.pipelining` cuts the model. Raises `ExecutionError` if it cannot."""
    from torch.distributed.pipelining import SplitPoint, pipeline

    model = step.model()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pipe = pipeline(model, mb_args=step.inputs, split_spec=dict.fromkeys(splits, SplitPoint.BEGINNING))
    except (RuntimeError, AttributeError, ValueError, TypeError, AssertionError) as error:
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise ExecutionError(
            f"torch.distributed.pipelining could not cut the model {step.name!r}: {text[0]}"
        ) from error
    stage_of: dict[str, int] = {}
    for k in range(pipe.num_stages):
        for name, _ in pipe.get_stage_module(k).named_parameters():
            stage_of.setdefault(name, k)
    return stage_of


def _by_module(graph: OpGraph, device_of: Mapping[str, int]) -> NDArray[np.int32]:
    """Returns the device of each call, from a map of names. A call without an entry gets the device of the call before it."""
    device, device_of_call = np.zeros(len(forward_calls(graph)), dtype=np.int32), 0
    for k, op in enumerate(forward_calls(graph)):
        name = graph.names[op].partition("#")[0].partition("/")[0]
        device_of_call = _covering(name, device_of, device_of_call)
        device[k] = device_of_call
    return device


def _covering(name: str, device_of: Mapping[str, int], otherwise: int) -> int:
    prefix = name
    while prefix:
        if prefix in device_of:
            return device_of[prefix]
        prefix = prefix.rpartition(".")[0]
    below = [device for module, device in device_of.items() if module.startswith(f"{name}.")]
    return below[0] if below else device_of.get("", otherwise)


def _placement(placer: Placer, graph: OpGraph, device: NDArray[np.int32]) -> Placement:
    """Builds the placement. Colocation groups follow their first call, backward ops follow their forward op."""
    column = np.zeros(graph.n, dtype=np.int32)
    column[forward_calls(graph)] = device
    join_companions(graph, column)
    return Placement(device=column, placer=placer.name, graph_key=graph.key)
