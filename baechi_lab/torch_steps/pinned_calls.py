"""Pinned calls: which calls of a traced forward must run where the code has them, and why.

A call that waits runs in another thread, later than the code says, while the code goes on with a stand-in. This changes no
result as long as everything that touches its inputs, its outputs and its state is a call that the trace has seen. Otherwise
the call is pinned: it comes after all calls before it and before all calls after it. So it runs where it stands, and the code
gets its real outputs. Pinned are

- calls within a checkpointed region, a region under settings of its own, an autograd Function or a module with hooks. The
  call before such a region is pinned too, so that nothing is still waiting when it begins, and so are the calls that computed
  what the region reads;
- calls whose outputs outlive the forward without being returned (a cache, an attribute);
- calls that change attributes of their module, or draw from generators other than torch's;
- calls that read values of tensors, and calls that take the results, because their shapes may depend on values;
- calls of layers that take an object which might hide tensors, and all calls before them.

If a module or an argument keeps state in another form from one forward to the next, all calls are pinned, because later
forwards may depend on that state in any way.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction

from ..torch_runtime.context import ambient, function_modes, saved_tensor_hooks_active
from ..torch_runtime.intercept import has_hooks
from ..torch_runtime.tree import Args, Kwargs, outline, tensors
from .snapshot import ContainerSnapshot, ModelSnapshot

OUTLIVING = "tensors that are kept after the forward"
"""Why calls are pinned whose outputs outlive the forward."""


class PinnedCalls:
    """Collects the pinned calls of one trace. `reasons` maps their indices to the reason."""

    def __init__(self) -> None:
        self.reasons: dict[int, str] = {}
        self.lasting_reasons: dict[int, str] = {}  # the first one that is not released
        self.outliving: set[int] = set()  # calls whose outputs are kept, whatever else they are pinned for
        self.before = ambient()
        self.modes = function_modes() + 1  # the interception's own
        self.regions: list[str] = []

    def pin(self, calls: Iterable[int], why: str) -> None:
        """Pins calls. Negative indices stand for no call."""
        for call in calls:
            if call >= 0:
                self.reasons.setdefault(call, why)
                if why != OUTLIVING:
                    self.lasting_reasons.setdefault(call, why)

    def reason_to_pin(self, module: nn.Module | None) -> str | None:
        """Returns the reason why the call that is about to run must keep its place, or None."""
        if self.regions:
            return self.regions[-1]
        if ambient() != self.before:
            return "checkpointing" if saved_tensor_hooks_active() != self.before[0] else "settings of a region"
        if module is not None and function_modes() != self.modes:
            return "settings of a region"
        return "hooks" if module is not None and has_hooks(module) else None

    def pin_outliving_tensors(self, tensors: Iterable[tuple[torch.Tensor, tuple[int, ...]]]) -> None:
        """Pins the calls that computed tensors which are still alive although nobody should hold them.

        `tensors` must hold the last references to the tensors.
        """
        references = [(weakref.ref(tensor), behind) for tensor, behind in tensors]
        if any(reference() is not None for reference, _ in references):
            gc.collect()
        for reference, behind in references:
            if reference() is not None:
                self.pin(behind, OUTLIVING)
                self.outliving.update(behind)

    def has_outliving_tensors(self) -> bool:
        """Whether calls are pinned because a tensor of theirs is kept."""
        return OUTLIVING in self.reasons.values()

    def release_saved_tensors(self, kept_calls: set[int] | None) -> None:
        """Releases calls of tensors that only autograd keeps: those that are not among `kept_calls`, if these are known.

        Calls that have another reason stay pinned for that.
        """
        if kept_calls is not None:
            self.outliving &= kept_calls
            kept_reasons = {call: why for call, why in self.reasons.items() if why == OUTLIVING and call in kept_calls}
            self.reasons = {**self.lasting_reasons, **kept_reasons}

    def pin_attribute_changes(self, model: nn.Module, snapshot: ModelSnapshot, modules: list[str | None]) -> None:
        """Pins calls because of what the forward changed besides values. `modules` has the layer of every call."""
        module_by_name = dict(model.named_modules())
        for holder in snapshot.changes():
            calls_to_pin = [
                i
                for i, layer in enumerate(modules)
                if layer is not None and any(place == layer or place.startswith(f"{layer}.") for place in holder.places)
            ]
            if any(
                holder.container is module_by_name[p]._buffers for p in holder.places if p in module_by_name
            ) and _replaced_by_same_kind(holder):
                self.pin(calls_to_pin, "a buffer that is replaced")
            elif not holder.attributes and _is_log(holder.container):
                self.pin(calls_to_pin, "attributes that change")
            else:
                name = ".".join(step for step in (min(holder.places), str(holder.changed_keys()[0])) if step)
                self.pin(range(len(modules)), f"the forward changes {name!r}")


def recomputes(function: object, args: Args) -> bool:
    """Whether a region of reentrant checkpointing will be recomputed: some input needs a gradient."""
    return function is CheckpointFunction and any(t.requires_grad for t in tensors(args[2:]))


def plainly(run: object, args: Args, kwargs: Kwargs) -> object:
    """Runs a checkpointed region without checkpointing, so that its calls build their graph now."""
    return args[0](*args[2:])


def describe_reasons(reasons: dict[int, str], keys: Sequence[str]) -> str:
    """Returns each reason with the number of its calls and the key of the first."""
    groups: dict[str, list[str]] = {}
    for call, why in sorted(reasons.items()):
        groups.setdefault(why, []).append(keys[call])
    return "; ".join(f"{why} ({len(calls)}, such as {calls[0]!r})" for why, calls in groups.items())


def _replaced_by_same_kind(buffers: ContainerSnapshot) -> bool:
    """Whether every replaced buffer was replaced by a tensor of the same shape, dtype and device."""
    pairs = [(buffers.container.get(key), buffers.before.get(key)) for key in buffers.changed_keys()]
    return all(isinstance(before, torch.Tensor) and outline(after) == outline(before) for after, before in pairs)


def _is_log(container: Any) -> bool:
    """Whether this is a list, set or dict of plain values and no object's attributes. Only its owner's code can read it."""
    entries = [*container, *container.values()] if isinstance(container, dict) else list(container)
    return outline(entries) is not None and not any(True for _ in tensors(entries))
