"""Optimizer state that waits on the host, and is on its device only while the parameters are updated to which it belongs.

Idea: an optimizer leaves alone what has no gradient. So its `step` is called once for each group of parameters, with the
gradients of all others put aside: the group's state comes, the group is updated, its state goes back. torch's own optimizers
update every parameter by itself, whatever is updated with it, so results are the same bit for bit. Others may look at all
gradients (at their norm, say), and so may hooks and closures: then all state comes at once, before the one call.

Devices that are CPUs have the host's memory: nothing moves.
"""

from __future__ import annotations

import functools
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer as of_all

from ...errors import InvalidInput, StateAtOnce
from .tree import map_tensors

Copy = Callable[[torch.Tensor, nn.Parameter], torch.Tensor]


def lend(optimizer: torch.optim.Optimizer, model: nn.Module, names: Iterable[Sequence[str]]) -> LentState:
    """Keep an optimizer's state of groups of `model`'s parameters on the host from now on; `step` is called as before.

    Raises `InvalidInput` where that was done already.
    """
    known = dict(model.named_parameters())
    return LentState(optimizer, [[known[name] for name in group if name in known] for group in names])


class LentState:
    """What brings the state of `groups` of parameters to their devices and back whenever `optimizer.step` is called.

    >>> weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    >>> optimizer = torch.optim.SGD(weights, lr=0.5, momentum=0.9)
    >>> lent = LentState(optimizer, [weights[:1]])
    >>> for w in weights:
    ...     w.grad = torch.ones(2)
    >>> optimizer.step()
    >>> [w.detach().tolist() for w in weights]
    [[0.5, 0.5], [0.5, 0.5]]
    """

    def __init__(self, optimizer: torch.optim.Optimizer, groups: Iterable[Sequence[nn.Parameter]]):
        if lent_state(optimizer) is not None:
            raise InvalidInput(f"state of the {type(optimizer).__name__} is lent already; lend it once")
        self.optimizer, self.groups = optimizer, [list(group) for group in groups]
        self.copy: Copy | None = None
        """Brings a tensor where nothing must move, so that it can be followed."""
        self.homes: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        self.away: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # what was brought, and where it waits otherwise
        self.plain = optimizer.step
        # Schedulers of learning rates look at attributes of `step`, and want a method.
        method = functools.wraps(self.plain)(lambda _, *args, **kwargs: self.step(*args, **kwargs))
        optimizer.step = types.MethodType(method, optimizer)  # type: ignore[method-assign]
        optimizer.__dict__["_baechi_lent"] = self

    @torch.no_grad()
    def step(self, *args: Any, **kwargs: Any) -> Any:
        """One update of all parameters."""
        given = [p for group in self.optimizer.param_groups for p in group["params"]]
        gradients = [(p, p.grad) for p in given if p.grad is not None]
        why = self._looks_at_all(any(value is not None for value in (*args, *kwargs.values())))
        if why and gradients:
            warnings.warn(f"{why}: state that waits on the host comes all at once", StateAtOnce, stacklevel=3)
        if why or not gradients:
            with self._here([p for group in self.groups for p in group]):
                loss = self.plain(*args, **kwargs)
        else:
            loss = None
            self._in_turns(gradients)
        for device in {p.device for p in given if p.is_cuda}:  # what waits on the host may be read from now on
            torch.cuda.synchronize(device)
        return loss

    def _looks_at_all(self, closure: bool) -> str:
        """What may look at several parameters at once; empty where nothing does."""
        kind, hooks = type(self.optimizer), [f"_optimizer_step_{when}_hooks" for when in ("pre", "post")]
        if closure:
            return f"the step of the {kind.__name__} has a closure"
        if not f"{kind.__module__}.".startswith("torch.optim."):
            return f"{kind.__name__} is no optimizer of torch's own, so it may look at all gradients"
        if any(getattr(self.optimizer, name, None) for name in hooks) or any(
            getattr(of_all, name, None) for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
        ):
            return f"the step of the {kind.__name__} has hooks, which may look at all gradients"
        return ""

    def _in_turns(self, gradients: Sequence[tuple[nn.Parameter, torch.Tensor]]) -> None:
        turn_of = {id(p): turn for turn, group in enumerate(self.groups) for p in group}
        turns: list[list[tuple[nn.Parameter, torch.Tensor]]] = [[] for _ in range(len(self.groups) + 1)]
        for p, gradient in gradients:
            turns[turn_of.get(id(p), -1)].append((p, gradient))
            p.grad = None
        try:
            for turn in filter(None, turns):
                for p, gradient in turn:
                    p.grad = gradient
                with self._here([p for p, _ in turn if id(p) in turn_of]):
                    self.plain()
                for p, _ in turn:
                    p.grad = None
        finally:
            for p, gradient in gradients:
                p.grad = gradient

    @contextmanager
    def _here(self, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        """State of the parameters on their devices; on the host afterwards."""
        self._change(parameters, self._come)
        try:
            yield
        finally:
            self._change(parameters, self._go)
            self.away.clear()

    def _change(self, parameters: Sequence[nn.Parameter], change: Copy) -> None:
        kept = [d for d in vars(self.optimizer).values() if isinstance(d, dict)]
        for p in parameters:
            for states in (d for d in kept if p in d):
                states[p] = map_tensors(states[p], lambda tensor, p=p: change(tensor, p))  # type: ignore[misc]

    def _come(self, tensor: torch.Tensor, p: nn.Parameter) -> torch.Tensor:
        if self.copy is not None and tensor.numel() > 1:
            brought = self.copy(tensor, p)
        elif id(tensor) in self.homes:  # which holds what is alive alone, so it is this one
            brought = tensor.to(p.device, non_blocking=True)
        else:
            return tensor
        self.away[id(brought)] = brought, tensor
        return brought

    def _go(self, tensor: torch.Tensor, p: nn.Parameter) -> torch.Tensor:
        if id(tensor) in self.away:
            home = self.away[id(tensor)][1]
        elif tensor.device.type == "cpu" or tensor.numel() <= 1:
            return tensor
        else:
            home = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        home.copy_(tensor, non_blocking=True)
        self.homes[id(home)] = home
        return home


def lent_state(optimizer: torch.optim.Optimizer | None) -> LentState | None:
    """What lends an optimizer's state; None where nothing does."""
    found: LentState | None = vars(optimizer).get("_baechi_lent") if optimizer is not None else None
    return found
