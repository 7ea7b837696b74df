"""Functions: `torch.autograd.Function.apply` is C code that no `TorchFunctionMode` sees, so it is met on its way there.

Idea: while a model is intercepted, the class between `Function` and its C base has an `apply` of its own, which every
`apply` ends in, one that was bound to a name long before included. Stand-ins among the arguments become tensors, since
a stand-in has no autograd graph; and the handler of a running forward is told where such code begins and ends
(`Handler.region`). Custom functions, reentrant checkpointing and backward hooks of modules all come
through here. So does `torch.func.functional_call`, which lends a layer other parameters for the length of one call: a layer
that ran later would find its own again.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.autograd.function import _SingleLevelFunction
from torch.nn.utils import stateless

from .deferred import resolve

_lock = threading.Lock()
_users = 0


class Running(threading.local):
    """The interceptor whose forward runs in this thread; None where none does."""

    interceptor: Any = None


running = Running()


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    straight = super(_SingleLevelFunction, cls).apply
    interceptor = running.interceptor
    if interceptor is not None and interceptor.between_layers:
        return interceptor.region(cls, straight, args, kwargs)
    with torch._C.DisableTorchFunction():
        args, kwargs = resolve((args, kwargs))
    return straight(*args, **kwargs)


_functional_call = stateless._functional_call


def _lend(*args: Any, **kwargs: Any) -> Any:
    interceptor = running.interceptor
    if interceptor is not None and interceptor.between_layers:
        return interceptor.region("torch.func.functional_call", _functional_call, args, kwargs)
    return _functional_call(*args, **kwargs)


def watch() -> None:
    """Meet every `apply` and `functional_call` from now on; `unwatch` as often as this was called ends it."""
    global _users
    with _lock:
        if _users == 0:
            stateless._functional_call = _lend
            _SingleLevelFunction.apply = classmethod(_apply)  # type: ignore[method-assign,assignment]
        _users += 1


def unwatch() -> None:
    """See `watch`."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            stateless._functional_call = _functional_call
            del _SingleLevelFunction.apply
