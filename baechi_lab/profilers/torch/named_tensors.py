"""Finds tensors that the forward code holds by a name, a list or a closure after their last reader.

Examples are skip connections of a U-Net, or `q = ...`. Python holds them until the name is gone, at the latest when the forward
pass returns. In a plain training step the backward pass needs most of them anyway, but a step that recomputes them still holds
them all. One forward pass, in which autograd retains nothing, shows which are alive when each call begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from ...torch_runtime.context import kept_activations
from ...torch_runtime.intercept import Frame, Handler, Interceptor
from ...torch_runtime.tree import Args, Function, Kwargs, tensors
from ...torch_steps.pinned_calls import plainly, recomputes
from ...torch_steps.records import Trace
from ...torch_steps.tracing import tensors_with_new_memory

Named = dict[tuple[int, int], int]
"""(call, position of one of its outputs) -> the last call at whose start that tensor is alive."""


def named_tensors(trace: Trace, interceptor: Interceptor, forward: Callable[[], object]) -> Named:
    """Runs `forward` once more; returns an empty dict if its code needs what autograd retains."""
    before, watch = interceptor.handler, _Watch(trace)
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
    """Checks at each call which outputs of earlier calls are still alive."""

    def __init__(self, trace: Trace):
        self.index = trace.index
        self.alive: dict[tuple[int, int], StorageWeakRef] = {}
        self.last: Named = {}

    def call(
        self, frame: Frame, key: str, run: Function, args: Args, kwargs: Kwargs, module: nn.Module | None
    ) -> object:
        op = self.index.get(key, -1)
        self.alive = {key_of_output: storage for key_of_output, storage in self.alive.items() if not storage.expired()}
        if op >= 0:
            self.last.update(dict.fromkeys(self.alive, op))
        with kept_activations():
            outputs = run(*args, **kwargs)
        for position, tensor in tensors_with_new_memory(outputs, tensors((args, kwargs))) if op >= 0 else ():
            self.alive[op, position] = StorageWeakRef(tensor.untyped_storage())
        return outputs

    def region(self, frame: Frame, region_kind: str | type, run: Function, args: Args, kwargs: Kwargs) -> object:
        """Runs a checkpointed region without checkpointing."""
        return plainly(run, args, kwargs) if recomputes(region_kind, args) else run(*args, **kwargs)
