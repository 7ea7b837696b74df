"""Assigner: moves a model's parameters to their devices and makes its forward follow the plan. `gather` undoes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ..errors import InvalidInput
from ..graph import Cluster, OpGraph, Placement
from ..torch_runtime.intercept import Interceptor
from ..torch_runtime.launch import launch, move
from ..torch_runtime.plan import Plan
from ..torch_runtime.session import Session
from ..torch_runtime.transport import HostTransport
from .devices import device_map
from .plan import make_plan, torch_devices
from .records import Trace
from .tracing import check_model

_SHOWN = 8
"""Devices that a `repr` shows."""


@dataclass(frozen=True, eq=False, repr=False)
class Distribution:
    """How a model is distributed; `distribution(model)` returns it."""

    plan: Plan
    placement: Placement
    trace: Trace
    session: Session
    interceptor: Interceptor | None
    original_devices: dict[str, torch.device]
    graph: OpGraph | None = None
    device_map_before: dict[str, int | str] | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> object:
        raise TypeError("the model is distributed; gather the model before copying or pickling it")

    __reduce__ = __deepcopy__  # type: ignore[assignment]

    def __repr__(self) -> str:
        """Returns one line per device: how many calls, parameters and buffers it has."""
        lines = [f"<Distribution of {len(self.plan.keys)} calls over {len(self.plan.devices)} devices"]
        for device, name in enumerate(self.plan.devices[:_SHOWN]):
            calls = self.plan.device.count(device)
            states = sum(d == device for d in self.plan.parameters.values())
            lines.append(f"  {device} on {name}: {calls} calls, {states} parameters and buffers")
        hidden_devices = len(self.plan.devices) - _SHOWN
        return "\n".join(lines) + (f"\n  and {hidden_devices} more>" if hidden_devices > 0 else ">")


def assign(
    model: nn.Module,
    model_trace: Trace,
    placement: Placement,
    cluster: Cluster,
    *,
    reorder: str = "gpu",
    devices: list[str] | None = None,
    output_device: str | None = None,
    graph: OpGraph | None = None,
    transport: HostTransport | None = None,
    always: bool = False,
) -> nn.Module:
    """Distributes `model` as placed and returns the same object, as `nn.Module.to` does.

    Its `hf_device_map` says where its modules are, so Hugging Face's Trainer leaves them there.

    `transport` replaces the streams, for example by `HostTransport(devices)`, which moves tensors with blocking `.to()`.
    `always` intercepts the calls even if all of them are on one device.
    """
    check_model(model)
    plan = make_plan(model_trace, placement, torch_devices(cluster, devices), reorder=reorder, graph=graph)
    original_devices = {name: t.device for name, t in (*model.named_parameters(), *model.named_buffers())}
    session, interceptor = launch(model, plan, output_device=output_device, transport=transport, always=always)
    before = model.__dict__.get("hf_device_map")
    model.__dict__["hf_device_map"] = device_map(model)
    model.__dict__["_baechi"] = Distribution(
        plan, placement, model_trace, session, interceptor, original_devices, graph, before
    )
    return model


def distribution(model: nn.Module) -> Distribution:
    """Returns how `model` is distributed. Raises `InvalidInput` if it is not distributed."""
    distribution_record = model.__dict__.get("_baechi") if isinstance(model, nn.Module) else None
    if not isinstance(distribution_record, Distribution):
        raise InvalidInput(f"the {type(model).__name__} is not distributed; use bl.torch.distribute first")
    return distribution_record


def gather(model: nn.Module, device: str | None = None) -> nn.Module:
    """Undoes `distribute`: moves parameters back to where they were (or to `device`) and restores the model's own `forward`.

    Raises `InvalidInput` when the model is not distributed.
    """
    distribution_record = distribution(model)
    if distribution_record.interceptor is not None:
        distribution_record.interceptor.remove()
    distribution_record.session.close()
    del model.__dict__["_baechi"], model.__dict__["hf_device_map"]
    if distribution_record.device_map_before is not None:
        model.__dict__["hf_device_map"] = distribution_record.device_map_before
    devices = distribution_record.original_devices
    move(model, devices if device is None else dict.fromkeys(devices, torch.device(device)))
    return model
