"""Interception of custom functions: `torch.autograd.Function.apply` is C code that no `TorchFunctionMode` sees.

Idea: while a model is intercepted, the class between `Function` and its C base gets an `apply` of its own. Every `apply` ends
there, even one that was bound to a name earlier. Stand-ins among the arguments become tensors, because a stand-in has no
autograd graph. The handler of a running forward is told where such code begins and ends (`Handler.region`). Custom functions,
reentrant checkpointing and backward hooks of modules all pass through here. So does `torch.func.functional_call`, which
replaces the parameters of a layer for one call: a layer that ran later would use its own parameters.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import _SingleLevelFunction
from torch.nn.utils import stateless

from .deferred import resolve

if TYPE_CHECKING:
    from .intercept import Interceptor

_lock = threading.Lock()
_users = 0


class Running(threading.local):
    """The interceptor whose forward runs in this thread, or None."""

    interceptor: Interceptor | None = None


running = Running()


def _apply(cls: type, *args: Any, **kwargs: Any) -> Any:
    straight = super(_SingleLevelFunction, cls).apply
    interceptor = running.interceptor
    if interceptor is not None and interceptor.between_layers:
        return interceptor.region(cls, straight, args, kwargs)
    with torch._C.DisableTorchFunction():
        args, kwargs = resolve((args, kwargs))
    return straight(*args, **kwargs)


_functional_call = stateless._functional_call


def _lend(*args: object, **kwargs: object) -> object:
    interceptor = running.interceptor
    if interceptor is not None and interceptor.between_layers:
        return interceptor.region("torch.func.functional_call", _functional_call, args, kwargs)
    return _functional_call(*args, **kwargs)


def watch() -> None:
    """Intercepts `apply` and `functional_call` until `unwatch` was called as often as this."""
    global _users
    with _lock:
        if _users == 0:
            stateless._functional_call = _lend
            _SingleLevelFunction.apply = classmethod(_apply)  # type: ignore[method-assign,assignment]
        _users += 1


def unwatch() -> None:
    """Ends the interception that `watch` began."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            stateless._functional_call = _functional_call
            del _SingleLevelFunction.apply
