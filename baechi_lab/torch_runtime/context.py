"""State of torch that is kept per thread or process and must be the same when a call runs later.

`Context` has gradient mode, inference mode and autocast; a thread in which a layer waits enters it. `ambient` has what else a
region of code may have set; no call waits where it has changed. `Settings` are the settings of the process, which a call that
runs again in the backward pass restores.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad

_KINDS = tuple(kind for kind in ("cpu", "cuda", "xpu", "mps") if torch.amp.is_autocast_available(kind))


class Context:
    """Gradient mode, inference mode and autocast of the thread that creates it. `restore()` sets them in another thread."""

    __slots__ = ("autocast", "cache", "grad", "inference")

    def __init__(self) -> None:
        self.grad = torch.is_grad_enabled()
        self.inference = torch.is_inference_mode_enabled()
        self.autocast = autocast_state()
        self.cache = torch.is_autocast_cache_enabled()

    @contextlib.contextmanager
    def restore(self, rerun: bool = False) -> Iterator[None]:
        """Sets the same state for the length of a `with` block.

        With `rerun`, the call neither reads autocast's cache of casts nor leaves entries there. The next forward pass would
        take such an entry for a cast of its own weights.
        """
        before, autocast_types = dict(autocast_state()), dict(self.autocast)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            if before or autocast_types:
                # all threads share one cache of casts; it is emptied when a thread leaves its outermost region
                torch.autocast_increment_nesting()
                stack.callback(_leave_autocast, rerun)
            for kind in {**before, **autocast_types}:
                cache = self.cache and not rerun
                stack.enter_context(torch.autocast(kind, autocast_types.get(kind), kind in autocast_types, cache))
            yield


def _leave_autocast(rerun: bool) -> None:
    if torch.autocast_decrement_nesting() == 0 and rerun:
        torch.clear_autocast_cache()  # a region within the call has filled it


class Settings:
    """Settings of the process that change how kernels compute. `restore()` restores them."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values = [read() for read, _ in _SETTINGS]

    @contextlib.contextmanager
    def restore(self) -> Iterator[None]:
        """Restores the settings for the length of a `with` block."""
        contexts = [
            (write, value, current)
            for (read, write), value in zip(_SETTINGS, self.values, strict=True)
            if (current := read()) != value
        ]
        try:
            for write, value, _ in contexts:
                write(value)
            yield
        finally:
            for write, _, current in contexts:
                write(current)


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


_FLAGS = (
    ("_get_math_sdp_enabled", "_set_sdp_use_math"),
    ("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
    ("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
    ("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
    ("_get_cudnn_enabled", "_set_cudnn_enabled"),
    ("_get_cudnn_benchmark", "_set_cudnn_benchmark"),
    ("_get_cudnn_deterministic", "_set_cudnn_deterministic"),
    ("_get_mkldnn_enabled", "_set_mkldnn_enabled"),
)

_SETTINGS: tuple[tuple[Callable[[], object], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (_deterministic, _set_deterministic),
    *(
        (getattr(torch._C, getter), getattr(torch._C, setter))
        for getter, setter in _FLAGS
        if hasattr(torch._C, getter) and hasattr(torch._C, setter)
    ),
)


def autocast_state() -> tuple[tuple[str, torch.dtype], ...]:
    """Returns the device kinds for which autocast is on, each with its dtype."""
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in _KINDS if torch.is_autocast_enabled(kind))


def ambient() -> tuple[object, ...]:
    """Returns the state beyond `Context` that a region of code may have set.

    A call that finds it changed must run where the code has it.

    It covers hooks on saved tensors (checkpointing, offloading), dispatch modes, transforms (`vmap`), forward-mode derivatives,
    the default dtype and the choice of kernels. It also covers autocast, because its cache of casts ends with the region.
    """
    return (
        saved_tensor_hooks_active(),
        autocast_state(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._functorch.maybe_current_level() if torch._C._are_functorch_transforms_active() else None,  # type: ignore[attr-defined]
        forward_ad._current_level,
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch._C._get_math_sdp_enabled(),
        torch._C._get_flash_sdp_enabled(),
        torch._C._get_mem_efficient_sdp_enabled(),
    )


def casts_shared() -> bool:
    """Whether autocast casts a leaf once for all calls that read it. Otherwise gradients differ by rounding."""
    return bool(autocast_state()) and torch.is_autocast_cache_enabled() and torch.is_grad_enabled()


def function_modes() -> int:
    """Returns the number of active `TorchFunctionMode`s in this thread."""
    return int(torch._C._len_torch_function_stack())  # type: ignore[attr-defined]


def ordinary() -> bool:
    """Whether a forward that begins here may run layers in other threads."""
    quiet = not saved_tensor_hooks_active() and not torch._C._len_torch_dispatch_stack() and not function_modes()
    return (
        quiet
        and not torch._C._are_functorch_transforms_active()  # type: ignore[attr-defined]
        and forward_ad._current_level < 0
        and not in_backward()
    )


def in_backward() -> bool:
    """Whether this thread runs a backward pass. A forward that runs now is a recomputation."""
    return bool(torch._C._current_graph_task_id() != -1)  # type: ignore[attr-defined]


def saved_tensor_hooks_active() -> bool:
    """Whether hooks on saved tensors are active in this thread (checkpointing, offloading)."""
    return _saved_tensor_hooks() is not None


def is_checkpointed() -> bool:
    """Whether non-reentrant checkpointing drops activations here and will compute them again."""
    hooks = _saved_tensor_hooks()
    return hooks is not None and getattr(hooks[0], "__module__", None) == "torch.utils.checkpoint"


@contextlib.contextmanager
def kept_activations():  # type: ignore[no-untyped-def]
    """Keeps activations for the length of a `with` block, even within non-reentrant checkpointing.

    Yields the hooks of the suspended regions, the innermost first.
    """
    hooks = []
    while is_checkpointed():
        hooks.append(_saved_tensor_hooks())
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield hooks
    finally:
        for pack, unpack in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


def _saved_tensor_hooks() -> Any:
    """Returns the innermost pair of hooks on saved tensors, or None."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return None if top is None else top(False)


@contextlib.contextmanager
def in_training_modes(modes: Sequence[tuple[nn.Module, bool]]) -> Iterator[None]:
    """Puts modules into a mode, True as by `train()` or False as by `eval()`, for the length of a `with` block."""
    modes_before = [(module, module.training) for module, _ in modes]
    try:
        for module, training in modes:
            module.training = training
        yield
    finally:
        for module, training in modes_before:
            module.training = training
