"""Makes the plan that the distributed model follows from a trace and a placement."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace

import torch

from ..errors import CodeOrderKept, ExecutionError, InvalidInput, UnknownNameError, in_short
from ..graph import HOST, Cluster, OpGraph, Placement
from ..graph.arguments import refuse_replicas
from ..internal_warnings import outer_stacklevel
from ..torch_runtime.order import CRITERIA
from ..torch_runtime.plan import Plan
from .activation_rows import activation_rows, offloaded_state_groups
from .devices import device_name
from .pinned_calls import describe_reasons
from .records import Trace


def make_plan(
    trace: Trace, placement: Placement, devices: tuple[str, ...], *, reorder: str = "gpu", graph: OpGraph | None = None
) -> Plan:
    """Makes the plan for the calls of `trace`. Their ops come first in the placement; backward ops may follow.

    Calls that draw random numbers on one physical device keep their code order, so that a seed gives the same numbers as code
    order. So do calls of one module with buffers. Calls of one group must share a device. Pinned calls keep their place in
    the code; if the placement wants another place, a `CodeOrderKept` warning says so. If `graph` recomputes ops or has
    outputs on a host, the model does the same. If it has optimizer state on a host, the plan names the parameters.

    Raises:
        UnknownNameError: an unknown `reorder`.
        InvalidInput: a placement of other size or with replicas, or one that splits a group.
    """
    if not isinstance(reorder, str) or reorder not in CRITERIA:
        raise UnknownNameError.of("reorder", str(reorder), CRITERIA)
    refuse_replicas(placement, "a PyTorch plan")
    n = len(trace.calls)
    if placement.n < n:
        raise InvalidInput(f"the placement has {placement.n} ops; the model has {n} calls")
    device = tuple(int(d) for d in placement.device[:n])
    if device and max(device) >= len(devices):
        raise InvalidInput(f"the placement uses device {max(device)}; there are devices 0..{len(devices) - 1}")
    for group in trace.groups:
        if len({device[i] for i in group}) > 1:
            examples = ", ".join(f"{trace.calls[i].key!r} on {device[i]}" for i in group[:4])
            raise InvalidInput(
                f"the placement splits calls that share parameters or memory: {examples}; put them on one device"
            )
    last: dict[str, int] = {}
    parents: list[tuple[int, ...]] = []
    for i, call in enumerate(trace.calls):
        above = set(trace.parents(i))
        if call.random:
            generator = devices[device[i]]
            if generator in last:
                above.add(last[generator])
            last[generator] = i
        parents.append(tuple(sorted(above)))
    # Per call: (output, device, number of readers there) for every other device that reads it.
    readers: list[dict[tuple[int, int], set[int]]] = [{} for _ in trace.calls]
    parameters: dict[str, int] = {}
    for i, call in enumerate(trace.calls):
        for v in call.reads:
            value = trace.values[v]
            if value.position >= 0 and device[value.producer] != device[i]:
                readers[value.producer].setdefault((value.position, device[i]), set()).add(i)
    # A layer reads its own buffers where they are; a function gets copies.
    for i in sorted(range(n), key=lambda i: trace.calls[i].module is None):
        for name in (*trace.calls[i].parameters, *trace.calls[i].buffers):
            parameters.setdefault(name, device[i])
    plan = Plan(
        keys=tuple(c.key for c in trace.calls),
        device=device,
        devices=devices,
        parents=tuple(parents),
        sends=tuple(tuple((position, target, len(by)) for (position, target), by in row.items()) for row in readers),
        layers=trace.layers,
        layer_device={c.module: device[i] for i, c in reversed(list(enumerate(trace.calls))) if c.module is not None},
        parameters=parameters,
        rank=None if placement.rank is None else tuple(float(r) for r in placement.rank[:n]),
        reorder=reorder,
        inplace=frozenset(i for i, c in enumerate(trace.calls) if c.inplace),
        fixed=tuple(sorted(trace.fixed)),
        activation_rows=activation_rows(trace, graph),
        offloaded_state=tuple(names for _, names in offloaded_state_groups(trace, graph)),
        shares=max(Counter(name for c in trace.calls for name in c.parameters).values(), default=0) > 1,
    )
    if plan.fixed and plan.order.waiting != replace(plan, fixed=()).order.waiting:
        count = f"{len(trace.fixed)} of {len(plan.keys)} calls"
        message = f"{count} keep code order, because waiting could change results: "
        warnings.warn(message + describe_reasons(trace.fixed, plan.keys), CodeOrderKept, stacklevel=outer_stacklevel())
    return plan


def torch_devices(cluster: Cluster, devices: tuple[str, ...] | list[str] | None = None) -> tuple[str, ...]:
    """Returns the torch device of every device of the cluster. Kinds `cpu` and `host` are torch's `cpu`, others the GPUs in turn.

    `devices` names them instead, for example `["cuda:0", "cuda:0"]` for two stream groups on one GPU. Raises `ExecutionError`
    if the cluster has more GPUs than are attached.
    """
    if devices is not None:
        if not isinstance(devices, list | tuple):
            raise InvalidInput(f"devices is {in_short(devices)}; it must be a list of torch devices, or None")
        device_names = tuple(device_name(f"devices[{k}]", device) for k, device in enumerate(devices))
        if len(device_names) != cluster.n:
            raise InvalidInput(f"devices names {len(device_names)} torch devices; the cluster has {cluster.n} devices")
        return device_names
    gpu_count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = [d for d in cluster.devices if d.family not in ("cpu", HOST)]
    if len(gpus) > gpu_count:
        raise ExecutionError(
            f"the cluster has {len(gpus)} GPUs ({', '.join(d.name for d in gpus)}) and torch sees {gpu_count}; "
            "use kind='cpu' devices, or name the torch devices with devices=[...]"
        )
    next_gpu = iter(range(gpu_count))
    return tuple("cpu" if d.family in ("cpu", HOST) else f"cuda:{next(next_gpu)}" for d in cluster.devices)
