"""Makes a model follow a plan: moves its parameters, then intercepts its calls."""

from __future__ import annotations

import torch
from torch import nn

from .intercept import Interceptor
from .plan import Plan
from .session import Session
from .transport import HostTransport


def launch(
    model: nn.Module,
    plan: Plan,
    *,
    output_device: str | None = None,
    transport: HostTransport | None = None,
    always: bool = False,
) -> tuple[Session, Interceptor | None]:
    """Distributes `model` as planned, in place.

    A plan with one device, code order and no recomputation needs no interception: the model runs as it is, at no cost, and
    takes inputs on its device like any PyTorch model.

    Args:
        model: the model that the plan was made for; its parameters stay the same objects.
        plan: the device and the order of every call.
        output_device: where the caller gets the outputs; None for the device of the first input.
        transport: how tensors get from device to device; None for the one that suits the devices.
        always: intercept the calls even if nothing needs it, for example to observe them.

    Returns:
        The session that runs the calls, and the interceptor that gives them to it, or None if the model runs as it is.
    """
    names = [name for name, _ in (*model.named_parameters(), *model.named_buffers())]
    # Parameters that no call uses go to the first device.
    parameter_devices = {name: plan.parameters.get(name, 0) for name in names}
    move(model, {name: torch.device(plan.devices[d]) for name, d in parameter_devices.items()})
    session = Session(model, plan, output_device=output_device, transport=transport)
    follows_code = len(set(plan.device)) <= 1 and not plan.activation_rows and not plan.order.waiting
    if follows_code and output_device is None and transport is None and not always:
        return session, None
    return session, Interceptor(model, plan.layers, session).install()


def move(model: nn.Module, device_of: dict[str, torch.device]) -> None:
    """Moves parameters, gradients and buffers to devices by name. Parameters stay the same objects, as optimizers need."""
    for name, parameter in model.named_parameters():
        if name in device_of and parameter.device != device_of[name]:
            gradient = parameter.grad
            parameter.data = parameter.data.to(device_of[name])
            if gradient is not None:
                parameter.grad = gradient.to(device_of[name])
    for name, buffer in model.named_buffers():
        if name in device_of and buffer.device != device_of[name]:
            owner, _, key = name.rpartition(".")
            model.get_submodule(owner)._buffers[key] = buffer.to(device_of[name])
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # cuDNN requires one chunk of memory
