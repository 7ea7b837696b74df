"""Recording: one forward of a model as a straight program, from which stages are cut.

Idea: the model runs once on one micro-batch under the interception that traces and profiles use. So every call of a layer and
every function between layers appears under the key of the profile. Each becomes a node of a `torch.fx.Graph`; tensors are
identified by object. All micro-batches have one size, so sizes that Python has read may be numbers in the program. So may
values computed from constants and sizes alone (positions from `arange`, causal masks). Values that depend on inputs,
parameters, random numbers or buffers that change may not: they are varying.

A model that reads varying values is recorded once more as `torch.export` would see it (`torch.compiler.is_exporting()` is
True). Models of transformers and others then leave out shortcuts that depend on values, such as dropping a padding mask that
is all ones. Functions that only one of the two recordings calls belong to no call of the trace.

Rejected, because a program could not repeat it: varying values read in Python, hooks and autograd Functions between layers,
and calls under settings of their own (checkpointing, autocast). Such a model runs in the session.
"""

from __future__ import annotations

import contextlib
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import GetSetDescriptorType
from typing import Any

import torch
from torch import fx, nn
from torch.fx.node import _get_qualified_name

from ...errors import InvalidInput
from ...torch_runtime.context import ambient, autocast_state
from ...torch_runtime.intercept import Frame, Handler, Interceptor, has_hooks
from ...torch_runtime.random import generator_states, same_states
from ...torch_runtime.storage import storage_key, version
from ...torch_runtime.tree import (
    Args,
    Function,
    Kwargs,
    as_arguments,
    is_record,
    map_tensors,
    parts_of,
    tensors,
    understood,
)
from ...torch_runtime.values_read import READERS
from ..records import Trace
from ..snapshot import ModelSnapshot

SIZES_ONLY = {
    **dict.fromkeys("zeros_like ones_like full_like new_zeros new_ones new_full new_tensor".split(), 0),
    **dict.fromkeys(("expand_as", "view_as", "reshape_as", "type_as"), 1),
}
"""Functions that read size and type alone of one argument, with its position."""


VARYING_SIZES = frozenset({"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"})
"""Functions whose outputs have sizes that depend on values; so has an index of booleans."""

SIZE_READERS = frozenset(getattr(torch.Tensor, name) for name in ("size", "numel", "nelement", "__len__"))
SIZE_READERS |= {torch.Tensor.shape.__get__, torch.numel}


class VaryingRead(InvalidInput):
    """Raised if Python reads values that differ between micro-batches."""


@dataclass(eq=False)
class Program:
    """A straight program. `calls` are the nodes of the trace's calls; `call_of` maps a node to the call that it is or is
    selected from.

    Other nodes are views and constants.

    - `after`: nodes that write in place into what a node reads.
    - `outputs`: the nodes of the model's output tensors.
    - `template`: how they make the output, as plain values that `worker.rebuild_output` reads.
    - `constants`: tensors that are neither parameters nor buffers.
    - `together`: pairs of calls that must share a stage because the later one changes what the earlier one computed or uses
      (memory, or buffers of a layer), with the words for it.
    - `fills_output`: calls that fill an output which no call made, so that the last stage must run them.
    """

    graph: fx.Graph
    inputs: list[fx.Node] = field(default_factory=list)
    calls: list[fx.Node] = field(default_factory=list)
    call_of: dict[fx.Node, int] = field(default_factory=dict)
    after: dict[fx.Node, set[fx.Node]] = field(default_factory=dict)
    outputs: list[fx.Node] = field(default_factory=list)
    template: object = None
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    together: list[tuple[int, int, str]] = field(default_factory=list)
    fills_output: list[int] = field(default_factory=list)


def record(model: nn.Module, inputs: object, trace: Trace) -> Program:
    """Records one forward of `model` on `inputs` (as a `TorchStep` has them). The model is left unchanged.

    The calls of the program are those of `trace`. Its inputs are the tensors of `inputs` in the order of
    `torch_runtime.tree.tensors`.

    Raises `InvalidInput` that names what no program can repeat.
    """
    recorder = Recorder(model, trace)
    try:
        _run(model, inputs, trace, recorder)
    except VaryingRead as error:
        plain, recorder = KeyCounter(), Recorder(model, trace)
        _run(model, inputs, trace, plain)
        try:
            with _exporting():
                _run(model, inputs, trace, recorder)
            stems = plain.counts.keys() | recorder.counts.keys()
            # If a function is called more or less often than in `trace`, the numbers in its keys say nothing.
            stems = {stem for stem in stems if plain.counts[stem] != recorder.counts[stem]}
            dropped_calls = {i for i, call in enumerate(trace.calls) if stem(call.key) in stems}
            for call in (trace.calls[i] for i in sorted(dropped_calls)):
                if call.random or call.inplace or call.module is not None:
                    raise InvalidInput(
                        f"call {call.key!r} cannot be repeated in several stages: it draws numbers, writes in place or is a layer"
                    )
            recorder.program.calls = [
                node for node in recorder.program.calls if recorder.program.call_of[node] not in dropped_calls
            ]
            recorder.program.call_of = {
                node: i for node, i in recorder.program.call_of.items() if i not in dropped_calls
            }
        except InvalidInput:
            raise error from None
    return recorder.program


def _run(model: nn.Module, inputs: object, trace: Trace, handler: Handler) -> None:
    args, kwargs = as_arguments(inputs, model)
    with ModelSnapshot(model, (args, kwargs)), Interceptor(model, trace.layers, handler):
        model(*args, **kwargs)


class KeyCounter(Handler):
    """Counts how often each function and layer is called in each container."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def call(
        self, frame: Frame, key: str, run: Function, args: Args, kwargs: Kwargs, module: nn.Module | None
    ) -> object:
        self.counts[stem(key)] += 1
        return run(*args, **kwargs)


def stem(key: str) -> str:
    """Returns a call's key without its number.

    >>> stem("layers.0/add#1")
    'layers.0/add'
    """
    return key.partition("#")[0]


@contextlib.contextmanager
def _exporting() -> Iterator[None]:
    """Makes `torch.compiler.is_exporting()` True for the length of a `with` block."""
    compiler = torch.compiler
    before = compiler._is_compiling_flag, compiler._is_exporting_flag
    compiler._is_compiling_flag = compiler._is_exporting_flag = True
    try:
        yield
    finally:
        compiler._is_compiling_flag, compiler._is_exporting_flag = before


class Recorder(Handler):
    """The handler that records a program."""

    def __init__(self, model: nn.Module, trace: Trace):
        self.index = trace.index
        self.program = Program(fx.Graph())
        self.names = {id(t): name for name, t in (*model.named_buffers(), *model.named_parameters())}
        self.layer_of = {id(module): name for name, module in model.named_modules()}
        # id -> the tensor, which keeps it alive, and its node
        self.node_of: dict[int, tuple[torch.Tensor, fx.Node]] = {}
        self.writers: dict[int, list[fx.Node]] = {}
        self.maker: dict[int, int] = {}  # storage -> the call that made it
        self.users: dict[int, list[int]] = {}  # id of a layer's buffer -> the calls of layers that use it
        self.changed: dict[int, str] = {}  # buffers that calls change, with their names
        self.settings: tuple[object, ...] = ()
        self.within_call = False  # custom operators end in autograd Functions of their own
        self.counts: Counter[str] = Counter()  # how often each call was met, by its stem
        self.parameters = {id(p) for p in model.parameters()}
        self.varying: set[int] = set()  # storages whose values differ between micro-batches or steps
        self.sized: dict[int, str] = {}  # id of a tensor whose size depends on values -> the call that caused it
        self.lasting: set[int] = set()  # storages of buffers and constants, which outlive the forward
        self.filled: dict[int, int] = {}  # storage that every stage makes itself -> the call that fills it
        self.read: dict[int, str] = {}  # storages whose values Python has read -> the call that did

    # -- the handler ---------------------------------------------------------------------------------

    def begin(self, frame: Frame, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        for i, tensor in enumerate(tensors((args, kwargs))):
            node = self.program.graph.placeholder(f"input_{i}")
            self.program.inputs.append(node)
            self._set_node(tensor, node)
            self.varying.add(storage_key(tensor))
        self.settings = _settings()
        return args, kwargs

    def call(
        self, frame: Frame, key: str, run: Function, args: Args, kwargs: Kwargs, module: nn.Module | None
    ) -> object:
        self.counts[stem(key)] += 1
        inputs = list(tensors((args, kwargs)))
        if module is None and not inputs and getattr(run, "__name__", "").startswith("_set_"):
            return run(*args, **kwargs)  # entering and leaving no_grad and similar contexts are torch functions too
        if _settings() != self.settings:
            raise InvalidInput(
                f"call {key!r} runs under settings of its own (no_grad, autocast or checkpointing); {_ELSE}"
            )
        if getattr(run, "__name__", "") in READERS and module is None:
            return self._read_values(key, run, args, kwargs, inputs)
        state = [] if module is None else list(module.buffers())
        versions = [(t, version(t)) for t in [*inputs, *state]]
        target = self._target(key, run, module)
        nodes = [self._node_of(t) for t in inputs]
        behind = {w for t in inputs for w in self.writers.get(storage_key(t), ())}
        node_arguments = map_tensors((tuple(args), dict(kwargs)), self._node_of)
        varying = self._is_varying(run, args, kwargs, module)
        before = None if varying else generator_states()
        self.within_call = True
        try:
            outputs = run(*args, **kwargs)
        finally:
            self.within_call = False
        varying = before is None or not same_states(before, generator_states())
        output_tensors = list(tensors(outputs))
        if (
            output_tensors
            and all(any(t is g for g in inputs) for t in output_tensors)
            and all(version(t) == v for t, v in versions)
        ):
            return outputs  # an input that was returned unchanged
        node = self._add(target, *node_arguments)
        self.program.after[node] = behind - {node, *nodes}
        if key in self.index:
            writers = {self.filled[storage_key(t)] for t in inputs if storage_key(t) in self.filled}
            why = "which fills a tensor that it reads"
            self.program.together += [(writer, self.index[key], why) for writer in sorted(writers)]
            self.program.calls.append(node)
            self.program.call_of[node] = self.index[key]
            for buffer in state:
                self.users.setdefault(id(buffer), []).append(self.index[key])
        written_tensors = [t for t, v in versions if version(t) != v]
        for t in written_tensors:
            self.writers.setdefault(storage_key(t), []).append(node)
            producer = self.maker.get(storage_key(t), -1)
            if producer < 0 and key in self.index and (varying or t.requires_grad) and id(t) not in self.names:
                self.filled.setdefault(storage_key(t), self.index[key])
            if producer >= 0 and key in self.index:
                self.program.together.append((producer, self.index[key], "which it writes into"))
            if id(t) in self.users:
                self.changed[id(t)] = self.names.get(id(t), "")
        if varying:
            self._mark_varying([*output_tensors, *written_tensors])
        self._mark_varying([t for t in written_tensors if storage_key(t) in self.lasting])
        self._outputs(node, outputs)
        if module is None or any(id(t) in self.sized for t in inputs):
            self._mark_sized(key, run, args, inputs, output_tensors)
        for t in output_tensors:
            self.maker.setdefault(storage_key(t), self.index.get(key, -1))
        return outputs

    def metadata(self, run: Function, args: Args, kwargs: Kwargs) -> object:
        if run in SIZE_READERS and args and id(args[0]) in self.sized:
            raise VaryingRead(
                f"a size that follows from values, of what {self.sized[id(args[0])]!r} makes, is read; {_ELSE}"
            )
        return run(*args, **kwargs)

    def _mark_sized(
        self, key: str, run: Function, args: Args, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> None:
        """Records tensors whose sizes depend on varying values."""
        name = getattr(run, "__name__", "")
        index = args[1] if name == "__getitem__" and len(args) > 1 else ()
        masks = any(t.dtype in (torch.bool, torch.uint8) for t in tensors(index))
        source = next((self.sized[id(t)] for t in inputs if id(t) in self.sized), None)
        if source is None and (name in VARYING_SIZES or masks or (name == "where" and len(args) == 1)):
            source = key if any(storage_key(t) in self.varying for t in inputs) else None
        plain = {storage_key(t) for t in inputs if id(t) not in self.sized}
        for t in outputs:
            if source is not None and t.dim() > 0 and storage_key(t) not in plain:
                self.sized[id(t)] = source
                self.node_of[id(t)][1].meta["sized"] = source

    def _is_varying(self, run: Function, args: Args, kwargs: Kwargs, module: nn.Module | None) -> bool:
        """Whether the results of a call may differ between micro-batches or steps, apart from random numbers."""
        position = SIZES_ONLY.get(getattr(run, "__name__", "")) if module is None else None
        read_tensors = [] if module is None else [*module.parameters(), *module.buffers()]
        read_tensors += tensors((*(value for k, value in enumerate(args) if k != position), kwargs))
        return any(id(t) in self.parameters or storage_key(t) in self.varying for t in read_tensors)

    def _mark_varying(self, tensors: list[torch.Tensor]) -> None:
        for t in tensors:
            self.varying.add(storage_key(t))
            if storage_key(t) in self.read:
                raise VaryingRead(
                    f"call {self.read[storage_key(t)]!r} reads values that the model changes later; {_ELSE}"
                )

    def _read_values(self, key: str, run: Function, args: Args, kwargs: Kwargs, inputs: list[torch.Tensor]) -> object:
        """Lets Python read values that are equal in all micro-batches and steps; rejects others."""
        if any(id(t) in self.parameters or storage_key(t) in self.varying for t in inputs):
            raise VaryingRead(
                f"call {key!r} reads a tensor's values in Python, which follow from the model's inputs or parameters; {_ELSE}"
            )
        self.read.update((storage_key(t), key) for t in inputs)
        return run(*args, **kwargs)

    def region(self, frame: Frame, subject: str | type, run: Function, args: Args, kwargs: Kwargs) -> object:
        if self.within_call:
            return run(*args, **kwargs)
        name = subject if isinstance(subject, str) else f"the autograd Function {subject.__name__}"
        raise InvalidInput(f"{name} cannot be cut into stages; {_ELSE}")

    def end(self, frame: Frame, outputs: object) -> object:
        self.program.template = self._describe_output(outputs)
        for buffer, name in self.changed.items():
            first, *later_users = self.users[buffer]
            self.program.together += [(first, i, f"which changes the same buffer {name!r}") for i in later_users]
        self.node_of.clear()
        return outputs

    def _describe_output(self, value: object) -> object:
        if isinstance(value, torch.Tensor):
            self.program.outputs.append(self._node_of(value))
            if storage_key(value) in self.filled:
                self.program.fills_output.append(self.filled[storage_key(value)])
            return {"slot": len(self.program.outputs) - 1}
        if type(value) is tuple or type(value) is list:
            return {"is": type(value).__name__, "of": [self._describe_output(entry) for entry in value]}
        if type(value) is dict:
            return {"is": "dict", "of": [[key, self._describe_output(entry)] for key, entry in value.items()]}
        if isinstance(value, dict) or is_record(value):
            items = value if isinstance(value, dict) else {name: entry for (_, name), entry in parts_of(value).items()}
            # Objects such as caches of keys and values stay in the stages that created them.
            return {
                "is": "output",
                "of": [[key, self._describe_output(entry)] for key, entry in items.items() if understood(entry)],
            }
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise InvalidInput(
            f"the model returns a {type(value).__name__}; a pipeline's model returns tensors in tuples, lists or dicts"
        )

    # -- nodes ---------------------------------------------------------------------------------------

    def _target(self, key: str, run: Callable[..., object], module: nn.Module | None) -> tuple[str, object]:
        if module is not None:
            if has_hooks(module):
                raise InvalidInput(f"the hooks of {self.layer_of[id(module)]!r} may reach across stages; {_ELSE}")
            return "call_module", self.layer_of[id(module)]
        name = getattr(run, "__name__", "")
        if name == "__get__" and isinstance(getattr(run, "__self__", None), (property, GetSetDescriptorType)):
            return "getattr", getattr(run.__self__, "__name__", None) or run.__self__.fget.__name__  # type: ignore[attr-defined]
        if name and getattr(torch.Tensor, name, None) is run:
            return "call_method", name
        if not _importable(run):
            raise InvalidInput(f"call {key!r} is of a function that has no public name in torch; {_ELSE}")
        return "call_function", run

    def _add(self, target: tuple[str, object], args: tuple[object, ...], kwargs: dict[str, object]) -> fx.Node:
        kind, operation = target
        if kind == "getattr":
            return self.program.graph.call_function(getattr, (args[0], operation))
        try:
            return self.program.graph.create_node(kind, operation, args, kwargs)
        except (SystemError, TypeError, ValueError, AttributeError) as error:  # such as a PackedSequence
            kinds = sorted({type(a).__name__ for a in (*args, *kwargs.values()) if not isinstance(a, fx.Node)})
            raise InvalidInput(
                f"a call of {operation!r:.80} takes a {' or '.join(kinds)} that cannot be sent between stages; {_ELSE}"
            ) from error

    def _node_of(self, tensor: torch.Tensor) -> fx.Node:
        if id(tensor) not in self.node_of:
            name = self.names.get(id(tensor))
            if name is None:
                if tensor.requires_grad:
                    raise InvalidInput(
                        f"a tensor of shape {list(tensor.shape)} was made within a layer, which did not return it, and is used "
                        f"outside of it; {_ELSE}"
                    )
                name = f"constant_{len(self.program.constants)}"
                self.program.constants[name] = tensor.detach().clone()
            self._set_node(tensor, self.program.graph.create_node("get_attr", name))
            self.lasting.add(storage_key(tensor))
        return self.node_of[id(tensor)][1]

    def _outputs(self, node: fx.Node, outputs: object) -> None:
        """Adds a node for every tensor of `outputs`, selected along its path."""
        for path, tensor in _tensor_paths(outputs):
            output_node = node
            for read, step in path:
                output_node = self.program.graph.call_function(read, (output_node, step))
                if node in self.program.call_of:
                    self.program.call_of[output_node] = self.program.call_of[node]
            self._set_node(tensor, output_node)

    def _set_node(self, tensor: torch.Tensor, node: fx.Node) -> None:
        self.node_of[id(tensor)] = (tensor, node)
        node.meta["value"] = (tuple(tensor.shape), tensor.dtype, bool(tensor.requires_grad))


_ELSE = "run the placement in the session (pipeline=False)"


def _tensor_paths(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, (tuple, list)):
        for i, entry in enumerate(value):
            yield from _tensor_paths(entry, (*path, (operator.getitem, i)))
    elif isinstance(value, dict) or is_record(value):
        for (kind, key), entry in parts_of(value).items():
            yield from _tensor_paths(entry, (*path, (operator.getitem if kind == "item" else getattr, key)))


def _settings() -> tuple[object, ...]:
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast_state(), ambient())


def _importable(run: Callable[..., object]) -> bool:
    """Whether the name that fx writes leads back to the function."""
    try:
        first, *attributes = _get_qualified_name(run).split(".")
        attribute: Any = {"torch": torch}.get(first)
        for name in attributes:
            attribute = getattr(attribute, name)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return attribute is run
