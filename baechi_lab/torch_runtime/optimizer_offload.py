"""Optimizer state that stays on the host and is on its device only while its parameters are updated.

Idea: an optimizer skips parameters without a gradient. So its `step` is called once for each group of parameters, with the
gradients of all others set aside: the group's state is copied to the device, the group is updated, and the state is copied
back. torch's own optimizers update every parameter by itself, so results are the same bit for bit. Other optimizers may look
at all gradients (for example at their norm), and so may hooks and closures. Then all state is copied before one call.

Devices that are CPUs share the host's memory: nothing moves.
"""

from __future__ import annotations

import functools
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.optim import optimizer as of_all

from ..errors import InvalidInput, StateAtOnce
from .tree import map_tensors

Copy = Callable[[torch.Tensor, nn.Parameter], torch.Tensor]


def offload_state_groups(
    optimizer: torch.optim.Optimizer, model: nn.Module, names: Iterable[Sequence[str]]
) -> OffloadedOptimizerState:
    """Keeps the optimizer state of groups of `model`'s parameters on the host from now on. `step` is called as before.

    Raises `InvalidInput` where that was done already.
    """
    parameter_of = dict(model.named_parameters())
    return OffloadedOptimizerState(
        optimizer, [[parameter_of[name] for name in group if name in parameter_of] for group in names]
    )


class OffloadedOptimizerState:
    """Copies the state of `groups` of parameters to their devices and back whenever `optimizer.step` is called.

    >>> weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    >>> optimizer = torch.optim.SGD(weights, lr=0.5, momentum=0.9)
    >>> offloaded = OffloadedOptimizerState(optimizer, [weights[:1]])
    >>> for w in weights:
    ...     w.grad = torch.ones(2)
    >>> optimizer.step()
    >>> [w.detach().tolist() for w in weights]
    [[0.5, 0.5], [0.5, 0.5]]
    """

    def __init__(self, optimizer: torch.optim.Optimizer, groups: Iterable[Sequence[nn.Parameter]]):
        if offloaded_state_of(optimizer) is not None:
            raise InvalidInput(f"state of the {type(optimizer).__name__} is offloaded already; offload it once")
        self.optimizer, self.groups = optimizer, [list(group) for group in groups]
        self.copy: Copy | None = None
        """Copies a tensor on devices where nothing must move, so that an observer can follow the copy."""
        self.host_copies: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        # id of a device copy -> the device copy, and its host copy
        self.device_copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.plain_step = optimizer.step
        # Learning-rate schedulers read attributes of `step` and require a method.
        method = functools.wraps(self.plain_step)(lambda _, *args, **kwargs: self.step(*args, **kwargs))
        optimizer.step = types.MethodType(method, optimizer)  # type: ignore[method-assign]
        optimizer.__dict__["_baechi_offloaded_state"] = self

    @torch.no_grad()
    def step(self, *args: object, **kwargs: object) -> object:
        """Updates all parameters once."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        gradients = [(p, p.grad) for p in parameters if p.grad is not None]
        why = self._looks_at_all(any(value is not None for value in (*args, *kwargs.values())))
        if why and gradients:
            warnings.warn(f"{why}: state that waits on the host comes all at once", StateAtOnce, stacklevel=3)
        if why or not gradients:
            with self._state_on_devices([p for group in self.groups for p in group]):
                loss = self.plain_step(*args, **kwargs)
        else:
            loss = None
            group_of = {id(p): group_index for group_index, group in enumerate(self.groups) for p in group}
            gradients_of_group: list[list[tuple[nn.Parameter, torch.Tensor]]] = [
                [] for _ in range(len(self.groups) + 1)
            ]
            for p, gradient in gradients:
                gradients_of_group[group_of.get(id(p), -1)].append((p, gradient))
                p.grad = None
            try:
                for group_index in filter(None, gradients_of_group):
                    for p, gradient in group_index:
                        p.grad = gradient
                    with self._state_on_devices([p for p, _ in group_index if id(p) in group_of]):
                        self.plain_step()
                    for p, _ in group_index:
                        p.grad = None
            finally:
                for p, gradient in gradients:
                    p.grad = gradient
        for device in {p.device for p in parameters if p.is_cuda}:  # from now on the host copies may be read
            torch.cuda.synchronize(device)
        return loss

    def _looks_at_all(self, closure: bool) -> str:
        """Returns the reason why the update may look at several parameters at once; empty if there is none."""
        kind, hooks = type(self.optimizer), [f"_optimizer_step_{moment}_hooks" for moment in ("pre", "post")]
        if closure:
            return f"the step of the {kind.__name__} has a closure"
        if not f"{kind.__module__}.".startswith("torch.optim."):
            return f"{kind.__name__} is no optimizer of torch's own, so it may look at all gradients"
        if any(getattr(self.optimizer, name, None) for name in hooks) or any(
            getattr(of_all, name, None) for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
        ):
            return f"the step of the {kind.__name__} has hooks, which may look at all gradients"
        return ""

    @contextmanager
    def _state_on_devices(self, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        """Copies the state of parameters to their devices for the length of a `with` block, and back to the host afterwards."""
        self._move_state(parameters, self._bring)
        try:
            yield
        finally:
            self._move_state(parameters, self._send_back)
            self.device_copies.clear()

    def _move_state(self, parameters: Sequence[nn.Parameter], change: Copy) -> None:
        state_dicts = [d for d in vars(self.optimizer).values() if isinstance(d, dict)]
        for p in parameters:
            for states in (d for d in state_dicts if p in d):
                states[p] = map_tensors(states[p], lambda tensor, p=p: change(tensor, p))  # type: ignore[misc]

    def _bring(self, tensor: torch.Tensor, p: nn.Parameter) -> torch.Tensor:
        if self.copy is not None and tensor.numel() > 1:
            device_copy = self.copy(tensor, p)
        elif id(tensor) in self.host_copies:  # only living tensors have an entry, so the id is this tensor's
            device_copy = tensor.to(p.device, non_blocking=True)
        else:
            return tensor
        self.device_copies[id(device_copy)] = device_copy, tensor
        return device_copy

    def _send_back(self, tensor: torch.Tensor, p: nn.Parameter) -> torch.Tensor:
        if id(tensor) in self.device_copies:
            host_copy = self.device_copies[id(tensor)][1]
        elif tensor.device.type == "cpu" or tensor.numel() <= 1:
            return tensor
        else:
            host_copy = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        host_copy.copy_(tensor, non_blocking=True)
        self.host_copies[id(host_copy)] = host_copy
        return host_copy


def offloaded_state_of(optimizer: torch.optim.Optimizer | None) -> OffloadedOptimizerState | None:
    """Returns the object that offloads an optimizer's state, or None."""
    state: OffloadedOptimizerState | None = (
        vars(optimizer).get("_baechi_offloaded_state") if optimizer is not None else None
    )
    return state
