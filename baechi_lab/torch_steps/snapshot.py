"""`ModelSnapshot`: records what a forward or backward pass may change, so that tracing and profiling leave a model unchanged.

It records the parameters and buffers (values and identity), the gradients, the attributes of every module with the lists, dicts
and plain objects in them, the sample inputs, and the random generators of torch, NumPy and Python. Values are copied to the
host's memory, once for every tensor, and written back only where they have changed.
"""

from __future__ import annotations

import collections
import types
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from ..torch_runtime.intercept import Intercepted
from ..torch_runtime.random import generator_states, host_states
from ..torch_runtime.storage import is_wrapper
from ..torch_runtime.tree import PLAIN, outline

DEPTH = 4
"""How many objects deep an attribute is searched: the attributes of its value, those of their values, and so on."""

_OPAQUE = (types.ModuleType, types.FunctionType, types.MethodType, *PLAIN)
_LAZY = (UninitializedBuffer, UninitializedParameter)


class ModelSnapshot:
    """Context that restores the model, its inputs and the random generators at its end, or when `restore` is called.

    >>> norm = nn.BatchNorm1d(2)
    >>> with ModelSnapshot(norm):
    ...     _ = norm(torch.ones(3, 2))
    >>> norm.running_mean
    tensor([0., 0.])
    """

    def __init__(self, model: nn.Module, inputs: object = ()):
        self.model, self.inputs = model, inputs

    def __enter__(self) -> ModelSnapshot:
        self.visited: dict[int, object] = {}  # keeps visited objects alive, so that no id is used twice
        self.holders: dict[int, ContainerSnapshot] = {}
        self.tensors: list[tuple[torch.Tensor, torch.Tensor]] = []  # with a copy of its values
        self.generators: list[tuple[torch.Generator, torch.Tensor]] = []
        modules = dict(self.model.named_modules())
        self.registered = {id(module) for module in modules.values()}
        for name, module in modules.items():
            self._walk(name, module.__dict__)
        self._walk("an input", self.inputs)
        leaves = [t for t in self.visited.values() if isinstance(t, torch.Tensor) and t.is_leaf and t.requires_grad]
        # Hooks that train (an optimizer within the backward pass) are suspended.
        self.gradients = [(t, t.grad, t._post_accumulate_grad_hooks) for t in leaves]
        for t in leaves:
            t.grad, t._post_accumulate_grad_hooks = None, None
        self.torch_states, self.host_states = generator_states(), host_states()
        return self

    def __exit__(self, *exc: object) -> None:
        self.restore()
        for leaf, gradient, hooks in self.gradients:
            leaf.grad, leaf._post_accumulate_grad_hooks = gradient, hooks

    def restore(self) -> None:
        """Restores everything but the gradients, which it removes; the end of the context restores those."""
        for holder in self.holders.values():
            holder.restore()
        for tensor, copy in self.tensors:
            if _differs(tensor, copy):
                with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                    if tensor.shape == copy.shape:
                        tensor.copy_(copy)
                    else:
                        tensor.data = copy.to(tensor.device)
        for generator, state in self.generators:
            generator.set_state(state)
        for leaf, _, _ in self.gradients:
            leaf.grad = None
        self.torch_states.restore()
        self.host_states.restore()

    def changes(self) -> list[ContainerSnapshot]:
        """Returns the containers that have changed."""
        return [holder for holder in self.holders.values() if holder.changed_keys()]

    def written_tensors(self) -> list[torch.Tensor]:
        """Returns the tensors whose values have changed."""
        return [tensor for tensor, copy in self.tensors if _differs(tensor, copy)]

    def _walk(self, place: str, start: object) -> None:
        """Records all that is reached from `start`: tensors, generators and containers. `place` names the module, or an input."""
        stack = [(start, DEPTH, True)]
        while stack:
            visited, depth, attributes = stack.pop()
            if visited is None or isinstance(visited, _OPAQUE) or id(visited) in self.registered:
                continue
            if id(visited) in self.visited:
                if id(visited) in self.holders:
                    self.holders[id(visited)].places.add(place)
                continue
            self.visited[id(visited)] = visited
            if isinstance(visited, torch.Tensor) and is_wrapper(visited):
                stack.append((visited.__dict__, depth, True))  # the data are the tensors within
            elif isinstance(visited, torch.Tensor):
                has_values = not visited.is_meta and not hasattr(visited, "fake_mode")
                if has_values and visited.layout is torch.strided and not isinstance(visited, _LAZY):
                    copy = visited.detach().to("cpu", copy=True)
                    if not hasattr(copy, "fake_mode"):  # under a fake-tensor mode, nothing real is written
                        self.tensors.append((visited, copy))
            elif isinstance(visited, torch.Generator):
                self.generators.append((visited, visited.get_state()))
            else:
                if isinstance(visited, (dict, list, set, collections.deque)):
                    self.holders[id(visited)] = ContainerSnapshot({place}, visited, visited.copy(), attributes)
                stack.extend((entry, depth, False) for entry in _entries_of(visited))
                attribute_dict = getattr(visited, "__dict__", None)
                if type(attribute_dict) is dict and depth > 0:
                    stack.append((attribute_dict, depth - 1, True))


def _entries_of(container: object) -> list[object]:
    if isinstance(container, (list, tuple, set, frozenset, collections.deque)):
        return list(iter(container))  # the length of a derived tuple may be no number
    return list(container.values()) if isinstance(container, dict) else []


@dataclass
class ContainerSnapshot:
    """A container and its former contents. `places` names the modules that refer to it ("an input" if an input does).

    `attributes` says that it holds the attributes of an object.
    """

    places: set[str]
    container: Any
    before: Any
    attributes: bool

    def changed_keys(self) -> list[object]:
        """Returns the keys that were added, removed or replaced. Of a container without keys, `[""]` if it has changed."""
        if isinstance(self.container, dict):

            def same(after: object, before: object) -> bool:
                return after is before or (isinstance(after, PLAIN) and outline(after) == outline(before))

            new_keys = [k for k, v in self.container.items() if k not in self.before and not isinstance(v, Intercepted)]
            return new_keys + [
                k
                for k, v in self.before.items()
                if not same(self.container.get(k, _MISSING), v) and not isinstance(self.container.get(k), Intercepted)
            ]
        pairs = zip(self.container, self.before, strict=False)
        return [""] if len(self.container) != len(self.before) or any(a is not b for a, b in pairs) else []

    def restore(self) -> None:
        """Restores the former contents. What intercepts a module stays."""
        if not self.changed_keys():
            return
        before = self.before
        if isinstance(self.container, dict):
            before = {**before, **{k: v for k, v in self.container.items() if isinstance(v, Intercepted)}}
        self.container.clear()
        if isinstance(self.container, (list, collections.deque)):
            self.container.extend(before)
        else:
            self.container.update(before)


_MISSING = object()


def _differs(tensor: torch.Tensor, copy: torch.Tensor) -> bool:
    """Whether a tensor has other values than its copy. NaN equals NaN."""
    if tensor.shape != copy.shape:
        return True
    values = tensor.detach().to("cpu")
    if torch.equal(values, copy):
        return False
    return values.is_quantized or not torch.equal(_as_bytes(values), _as_bytes(copy))


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
