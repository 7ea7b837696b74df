"""What torch keeps per thread and a waiting layer's thread must take over: gradient mode, inference mode, autocast."""

from __future__ import annotations

import contextlib

import torch

_KINDS = ("cpu", "cuda")


class Context:
    """The state of the thread that makes it; `entered()` sets it for another thread."""

    __slots__ = ("autocast", "cache", "grad", "inference")

    def __init__(self) -> None:
        self.grad = torch.is_grad_enabled()
        self.inference = torch.is_inference_mode_enabled()
        self.autocast = autocast_state()
        self.cache = torch.is_autocast_cache_enabled()

    @contextlib.contextmanager
    def entered(self):  # type: ignore[no-untyped-def]
        """The same state, for the length of a `with` block."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            for kind, dtype in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=self.cache))
            yield


def autocast_state() -> tuple[tuple[str, torch.dtype], ...]:
    """The device kinds for which autocast is on, with its type."""
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in _KINDS if torch.is_autocast_enabled(kind))


def saved_tensor_hooks_active() -> bool:
    """Whether activations are being packed (checkpointing, offloading): such hooks are per thread."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(False) is not None
