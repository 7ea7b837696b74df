"""Interception: every layer call, and every torch function between layers, goes through one handler.

Idea: the `forward` of each instance is replaced. Classes stay as they are, so `state_dict`, hooks, `train()` and optimizers
see the same model. While a container runs, a `TorchFunctionMode` sees the functions that are called between layers: `a + b`,
`torch.cat`, `F.softmax`. Inside a layer the mode is off, because a layer is one operator. The tracer, the profiler and the
distributed run are handlers of this interception, so they see the same calls under the same keys.

Keys: the key of a layer is its qualified name (`encoder.0.linear`), with `#1`, `#2`, ... for further calls within one
forward. The key of a function is `scope/function`; the scope is the innermost container that is running.

Source: Shetty 2022, section 1.3.2 (wrapping `forward`). Deviation: functions between layers are intercepted too. The paper asks
the user to wrap `add` and `cat` in modules (section 1.3.4).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Collection
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn.modules import module as every
from torch.overrides import TorchFunctionMode

from .custom_functions import running, unwatch, watch
from .tree import Args, Function, Kwargs

WHOLE_TYPES: tuple[type[nn.Module], ...] = (nn.MultiheadAttention,)
"""Modules of torch that have children but never call them: one operator each."""

_PROPERTIES = (
    "shape dtype device ndim requires_grad is_cuda is_leaf layout grad_fn is_sparse is_quantized is_nested names grad"
)
_METHODS = (
    "size dim numel stride element_size is_floating_point is_complex is_contiguous get_device __len__ ndimension nelement "
    "__repr__ __hash__"
)
METADATA = frozenset(
    [
        getattr(torch.Tensor, name).__get__
        for name in _PROPERTIES.split()
        if hasattr(getattr(torch.Tensor, name, None), "__get__")
    ]
    + [getattr(torch.Tensor, name) for name in _METHODS.split()]
    + [torch.is_floating_point, torch.is_complex, torch.numel, torch.is_tensor]
)
"""Functions that read no data: they are passed through without a look at their arguments."""


class Handler:
    """Handles the calls of one forward. The default implementation only runs them."""

    def begin(self, frame: Frame, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Called before the outermost container runs. Returns the arguments to run it with."""
        return args, kwargs

    def call(
        self, frame: Frame, key: str, run: Function, args: Args, kwargs: Kwargs, module: nn.Module | None
    ) -> object:
        """Runs one layer (`module`) or one function between layers (`module` is None)."""
        return run(*args, **kwargs)

    def metadata(self, run: Function, args: Args, kwargs: Kwargs) -> object:
        """Runs a function that reads no data."""
        return run(*args, **kwargs)

    def region(self, frame: Frame, subject: str | type, run: Function, args: Args, kwargs: Kwargs) -> object:
        """Runs code that needs real tensors and must keep its place: an autograd Function, or what `subject` names."""
        return run(*args, **kwargs)

    def end(self, frame: Frame, outputs: object) -> object:
        """Called with the outputs of the outermost container. Returns what the caller gets."""
        return outputs

    def abort(self, frame: Frame, error: BaseException) -> None:
        """Called when the forward raised."""

    def run_alone(self, name: str, run: Function, args: Args, kwargs: Kwargs) -> object:
        """Runs layer `name`, which was called outside any forward of the model: by the user, or by recomputation."""
        return run(*args, **kwargs)


class Frame:
    """One running forward: which containers are running, and how often each key was called."""

    __slots__ = ("counts", "scopes", "state")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.scopes: list[str] = []
        self.state: Any = None

    def key(self, name: str) -> str:
        """Returns the key of this call of `name`."""
        count = self.counts.get(name, 0)
        self.counts[name] = count + 1
        return name if count == 0 else f"{name}#{count}"


class _Local(threading.local):
    frame: Frame | None = None
    inside = False


class Intercepted:
    """Replaces the `forward` of an instance. It cannot be copied, because the copy would call the original model.

    Models may share a module without state, such as an activation that is a default argument. Then the interception of the
    later model calls that of the earlier one, `earlier`, unless the later model runs. `of_instance` is a `forward` that the
    instance had of its own.
    """

    def __init__(self, interceptor: Interceptor, name: str, module: nn.Module):
        functools.update_wrapper(self, module.forward, updated=())  # type: ignore[arg-type]
        self.interceptor, self.name, self.module = interceptor, name, module
        forward: Function | LayerForward | ContainerForward = module.forward
        self.earlier = forward if isinstance(forward, (LayerForward, ContainerForward)) else None
        self.original: Function = forward.original if isinstance(forward, Intercepted) else forward
        self.of_instance: Function | None = module.__dict__.get("forward")
        if isinstance(forward, Intercepted):
            self.of_instance = forward.of_instance
        self.local = interceptor.local

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise TypeError(f"layer {self.name!r} is distributed; gather the model before copying or pickling it")

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"layer {self.name!r} is distributed; gather the model before copying or pickling it")


class LayerForward(Intercepted):
    """The `forward` of a layer. A model that is one layer opens the frame itself; the key of its call is its class."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        local = self.local
        if self.earlier is not None and local.frame is None:
            return self.earlier(*args, **kwargs)
        if local.inside:
            return self.original(*args, **kwargs)
        frame = local.frame
        if frame is None and not self.name:
            return self.interceptor.run(self.name, self, args, kwargs)
        with torch._C.DisableTorchFunction():
            local.inside = True
            try:
                handler = self.interceptor.handler
                if frame is None:
                    return handler.run_alone(self.name, self.original, args, kwargs)
                key = frame.key(self.name or type(self.module).__name__)
                return handler.call(frame, key, self.original, args, kwargs, self.module)
            finally:
                local.inside = False


class ContainerForward(Intercepted):
    """The `forward` of a module that calls layers. The outermost one opens the frame."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        local = self.local
        if self.earlier is not None and local.frame is None:
            return self.earlier(*args, **kwargs)
        if local.inside:
            return self.original(*args, **kwargs)
        if local.frame is None:
            return self.interceptor.run(self.name, self.original, args, kwargs)
        scopes = local.frame.scopes
        scopes.append(self.name)
        try:
            if has_hooks(self.module):
                return self.interceptor.region(f"hooks of {self.name!r}", self.original, args, kwargs)
            return self.original(*args, **kwargs)
        finally:
            scopes.pop()


def _skip_in_compiler(function: Any) -> None:
    """Makes `torch.compile` skip `function` and all that it calls.

    A compiled graph can hold no threads, streams or stand-ins. `torch.compiler.disable` does the same, but it loads the
    compiler, which takes seconds even if nobody compiles.
    """
    function._torchdynamo_disable = function._torchdynamo_disable_recursive = True
    function._torchdynamo_disable_msg = "a distributed model runs uncompiled"
    frames = torch._C._dynamo.eval_frame  # type: ignore[attr-defined]
    if hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))


_skip_in_compiler(LayerForward.__call__)
_skip_in_compiler(ContainerForward.__call__)


class FunctionMode(TorchFunctionMode):
    """Sees the torch functions that are called between layers."""

    def __init__(self, handler: Handler, frame: Frame):
        super().__init__()
        self.handler, self.frame = handler, frame

    def __torch_function__(
        self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        kwargs = kwargs or {}
        if func in METADATA:
            return self.handler.metadata(func, args, kwargs)
        frame = self.frame
        scope = frame.scopes[-1]
        name = getattr(func, "__name__", "function")
        with torch._C.DisableTorchFunction():
            return self.handler.call(frame, frame.key(f"{scope}/{name}" if scope else name), func, args, kwargs, None)


class Interceptor:
    """Installs a handler on a model; `remove` leaves the model as it was. Within a `with` block it is installed.

    `layers` are the qualified names of the modules that are one operator each; see `layer_names`.
    """

    def __init__(self, model: nn.Module, layers: Collection[str], handler: Handler):
        self.model, self.handler, self.local = model, handler, _Local()
        self.layers = frozenset(layers)
        self.installed: list[tuple[nn.Module, LayerForward | ContainerForward]] = []

    def install(self) -> Interceptor:
        """Replaces the `forward` of the instances."""
        watch()
        for name, module, is_layer in walk(self.model, self.layers):
            intercepted = (LayerForward if is_layer else ContainerForward)(self, name, module)
            module.forward = intercepted
            self.installed.append((module, intercepted))
        return self

    def remove(self) -> None:
        """Restores the `forward` of every instance."""
        if self.installed:
            unwatch()
        for module, intercepted in self.installed:
            latest = module.__dict__.get("forward")  # of a model that shares the module
            while isinstance(latest, Intercepted) and latest.earlier not in (None, intercepted):
                latest = latest.earlier
            if isinstance(latest, Intercepted) and latest.earlier is intercepted:
                latest.earlier = intercepted.earlier
                continue
            del module.forward
            forward_before = intercepted.earlier or intercepted.of_instance
            if forward_before is not None:
                module.forward = forward_before
        self.installed.clear()

    def __enter__(self) -> Interceptor:
        return self.install()

    def __exit__(self, *_: object) -> None:
        self.remove()

    def run(self, name: str, forward: Function, args: Args, kwargs: Kwargs) -> object:
        """Runs one forward of the outermost container `name`."""
        frame, local, handler = Frame(), self.local, self.handler
        frame.scopes.append(name)
        with torch._C.DisableTorchFunction():
            args, kwargs = handler.begin(frame, args, kwargs)
        local.frame, outer, running.interceptor = frame, running.interceptor, self
        try:
            with FunctionMode(handler, frame):
                outputs = forward(*args, **kwargs)
        except BaseException as error:  # release the layers that wait in other threads
            handler.abort(frame, error)
            raise
        finally:
            local.frame, running.interceptor = None, outer
        with torch._C.DisableTorchFunction():
            return handler.end(frame, outputs)

    def region(self, subject: str | type, run: Function, args: Args, kwargs: Kwargs) -> object:
        """Passes a region between layers to the handler."""
        return self.handler.region(self.local.frame, subject, run, args, kwargs)  # type: ignore[arg-type]

    @property
    def between_layers(self) -> bool:
        """Whether the running code of a forward belongs to no layer."""
        return self.local.frame is not None and not self.local.inside


def has_hooks(module: nn.Module) -> bool:
    """Whether calling the module runs anything besides `forward`."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or every._global_forward_hooks
        or every._global_forward_pre_hooks
        or every._global_backward_hooks
        or every._global_backward_pre_hooks
    )


def walk(model: nn.Module, layers: Collection[str]) -> list[tuple[str, nn.Module, bool]]:
    """Returns `(qualified name, module, is a layer)` of every layer and container; modules inside a layer are left out.

    A module with several names appears under the first one.
    """
    modules: list[tuple[str, nn.Module, bool]] = []
    inside: set[int] = set()
    for name, module in model.named_modules():
        if id(module) in inside or not has_forward(module):
            continue
        modules.append((name, module, name in layers))
        if name in layers:
            inside.update(id(submodule) for submodule in module.modules() if submodule is not module)
    return modules


def has_forward(module: nn.Module) -> bool:
    """Whether the module has a `forward`. Lists and dicts of modules or parameters have none."""
    forward = getattr(type(module), "forward", None)
    return forward is not getattr(nn.Module, "forward", None) or "forward" in module.__dict__


def layer_names(model: nn.Module, atomic: Collection[str | type] = ()) -> list[str]:
    """Returns the modules that are one operator each: modules without children, and modules of a class named in `atomic`.

    `atomic` has classes or class names of the model (Shetty 2022, section 1.3.1). The model itself is always a container,
    unless it is of an atomic class.
    """
    layers: list[str] = []
    inside: set[int] = set()
    names = {a for a in atomic if isinstance(a, str)}
    classes = tuple(a for a in atomic if isinstance(a, type)) + WHOLE_TYPES
    for name, module in model.named_modules():
        if id(module) in inside:
            continue
        is_atomic = isinstance(module, classes) or bool(names & {c.__name__ for c in type(module).__mro__})
        leaf = name != "" and next(module.children(), None) is None and has_forward(module)
        if is_atomic or leaf:
            layers.append(name)
            inside.update(id(submodule) for submodule in module.modules())
    return layers
