"""Tensors that the code of a forward holds by a name, a list or a closure after their last reader: skips of a U-Net, `q = ...`.

Python holds them until the name goes, at the latest when the forward returns. In a plain training step the backward pass needs
most of them anyway; but a step that computes them again holds them all the same. One forward pass, in which autograd keeps
nothing, shows what is alive when each call begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from ...torch.pinned_calls import plainly, recomputes
from ...torch.records import Trace
from ...torch.runtime.context import kept_activations
from ...torch.runtime.intercept import Frame, Handler, Interceptor
from ...torch.runtime.storage import is_plain, storage_key
from ...torch.runtime.tree import tensors

Named = dict[tuple[int, int], int]
"""A call and the position of one of its outputs -> the last call at whose start that tensor is alive."""


def named_tensors(found: Trace, interceptor: Interceptor, forward: Callable[[], Any]) -> Named:
    """Run `forward` once more; empty where its code needs what autograd keeps."""
    before, watch = interceptor.handler, _Watch(found)
    interceptor.handler = watch
    try:
        with saved_tensors_hooks(lambda tensor: None, _refuse):
            forward()
    except RuntimeError:  # from `_refuse`
        return {}
    finally:
        interceptor.handler = before
    return watch.last


def _refuse(packed: None) -> Any:
    raise RuntimeError("autograd keeps nothing in this forward pass")


class _Watch(Handler):
    """Looks at each call which tensors of earlier ones are still alive."""

    def __init__(self, found: Trace):
        self.index = found.index
        self.alive: dict[tuple[int, int], StorageWeakRef] = {}
        self.last: Named = {}

    def call(
        self, frame: Frame, key: str, run: Callable[..., Any], args: Any, kwargs: Any, module: nn.Module | None
    ) -> Any:
        op = self.index.get(key, -1)
        self.alive = {made: storage for made, storage in self.alive.items() if not storage.expired()}
        if op >= 0:
            self.last.update(dict.fromkeys(self.alive, op))
        with kept_activations():
            outputs = run(*args, **kwargs)
        old = {storage_key(t) for t in tensors((args, kwargs))}
        for position, tensor in enumerate(tensors(outputs)) if op >= 0 else ():
            if is_plain(tensor) and storage_key(tensor) not in old:
                self.alive[op, position] = StorageWeakRef(tensor.untyped_storage())
        return outputs

    def region(self, frame: Frame, what: str | type, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A checkpointed region runs plainly."""
        return plainly(run, args, kwargs) if recomputes(what, args) else run(*args, **kwargs)
