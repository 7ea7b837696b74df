"""Trace: one forward of a model as calls of layers and functions, and the data that flows between them.

Idea: the model runs once on the sample inputs under an `Interceptor`. Every tensor is stored with the call that computed it,
so a layer's inputs name its parents. Views, metadata and constants belong to no layer: whoever reads them depends on the call
that computed their data. Functions that compute (`add`, `cat`, `softmax`, ...) are operators.

Why not the autograd graph (Shetty 2022) or `torch.export`: the autograd graph has no edges through integer and boolean tensors
(token ids, masks), and none in inference. `torch.export` rejects Python side effects and data-dependent control flow that the
assigner can run. `autograd_edges` derives the paper's graph from autograd; the tests compare the two on every model.

Complexity: one forward, plus O(arguments) bookkeeping per call. Source: Shetty 2022, section 1.3.1. Deviations: functions
between layers are recognised. A call that writes into a tensor (in-place layer) shares a colocation group with the call that
computed the tensor, and runs after everything that read the tensor before. Modules that share a parameter share a colocation
group (the paper's limitation 3). So do a layer and the call that computed a tensor which it reads as an attribute, such as a
weight that `torch.func.functional_call` replaces.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules._functions import BackwardHookFunction
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakIdKeyDictionary

from ..checks import is_list
from ..errors import InvalidInput, describe_error, in_short
from ..graph.groups import join_groups
from ..graph.tensors import shapes_in_words
from ..torch_runtime.context import kept_activations
from ..torch_runtime.intercept import Frame, Handler, Intercepted, Interceptor, layer_names
from ..torch_runtime.random import generator_states, host_states, same_host_states, same_states, seed_generators
from ..torch_runtime.storage import has_one_storage, storage_bytes, storage_key, tensor_bytes, version
from ..torch_runtime.tree import (
    Args,
    Function,
    Kwargs,
    as_arguments,
    attribute_tensors,
    map_tensors,
    tensors,
    understood,
)
from ..torch_runtime.values_read import ValuesRead
from .flow import Flow
from .lost_gradients import without_lost_gradients
from .pinned_calls import PinnedCalls, plainly, recomputes
from .records import Call, Trace
from .snapshot import ModelSnapshot
from .state import State
from .step import FAILURES

_LIKE_FIRST = (
    "index_add index_copy index_fill index_put scatter scatter_add scatter_reduce masked_scatter masked_fill setitem"
)
"""Functions that return a tensor like the first that they take."""

_FAILURES = (*FAILURES, NameError, ArithmeticError, ImportError)
"""What the code of a model raises on inputs that it was not made for."""


def draw_as_traced() -> None:
    """Seeds the random generators as for a trace: a model that draws which of its layers run then runs the traced ones."""
    seed_generators(0)


def trace(model: nn.Module, sample_inputs: object, *, atomic: Collection[str | type] = ()) -> Trace:
    """Runs the model once on `sample_inputs` (a tensor, a tuple, a dict of keywords, or both) and records its calls.

    The model runs in its present mode (`train()` or `eval()`), always with the same random numbers: a model that draws which
    of its layers run has the same calls in a profile and in a run. The model, the inputs and the random generators are left
    unchanged. `atomic` names module classes that are not divided.

    Raises:
        InvalidInput: a layer, or the model's own code, that failed on the sample inputs; a layer that returns an object
            that may hide tensors, by name; a model that computes nothing from the sample inputs.

    >>> model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    >>> [call.key for call in trace(model, torch.ones(1, 4)).calls]
    ['0', '1']
    """
    check_model(model)
    check_atomic(atomic)
    args, kwargs = as_arguments(sample_inputs, model)
    layers = layer_names(model, atomic)
    with ModelSnapshot(model, (args, kwargs)) as snapshot:
        draw_as_traced()
        tracer = Tracer(model)
        with Interceptor(model, layers, tracer), _noticing_backward() as backward_roots:
            outputs = run_call(type(model).__name__, model, args, kwargs, model)
        tracer.differentiates = bool(backward_roots)
        # keep objects that might hide tensors alive, and with them these tensors
        hiding = map_tensors(outputs, lambda t: None)
        del outputs
        modules = [call.module for call in tracer.calls]
        tracer.pinned_calls.pin_outliving_tensors(tracer.flow.release_tensors())
        tracer.pinned_calls.pin_attribute_changes(tracer.model, snapshot, modules)
        tracer.state.pin_unseen_writes(snapshot.written_tensors(), modules)
        del hiding
        if tracer.pinned_calls.has_outliving_tensors():
            snapshot.restore()
            draw_as_traced()
            index = {call.key: i for i, call in enumerate(tracer.calls)}
            tracer.held_outputs = _held_outputs(model, layers, index, args, kwargs)
            if tracer.held_outputs is not None:
                tracer.pinned_calls.release_saved_tensors({call for call, _ in tracer.held_outputs})
    if not tracer.calls:
        raise InvalidInput(
            f"model {type(model).__name__} computes nothing from the sample inputs: it calls no layer or function that reads "
            "them, so that there is nothing to place"
        )
    return tracer.finish(layers)


def _held_outputs(
    model: nn.Module, layers: Sequence[str], index: Mapping[str, int], args: Args, kwargs: Kwargs
) -> set[tuple[int, int]] | None:
    """Returns (call, position) of outputs that an object such as a cache holds after the forward; None if that cannot be told.

    Such a tensor also holds its autograd graph, and with it what all calls before it have saved. So autograd saves nothing here.
    """
    watch = _OutputWatch()
    try:
        with Interceptor(model, layers, watch), saved_tensors_hooks(lambda tensor: None, _refuse):
            outputs = model(*args, **kwargs)
    except RuntimeError:  # the forward has a backward pass of its own
        return None
    hiding = map_tensors(outputs, lambda t: None)
    del outputs
    gc.collect()
    held_outputs = {(index[key], k) for key, k, storage in watch.outputs if key in index and not storage.expired()}
    del hiding
    return held_outputs


def _refuse(packed: None) -> NoReturn:
    raise RuntimeError("autograd saves nothing in this forward pass")


class _OutputWatch(Handler):
    """Refers to the memory of the outputs of all calls, without keeping it alive."""

    def __init__(self) -> None:
        self.outputs: list[tuple[str, int, StorageWeakRef]] = []

    def call(
        self, frame: Frame, key: str, run: Function, args: Args, kwargs: Kwargs, module: nn.Module | None
    ) -> object:
        with kept_activations():
            outputs = run(*args, **kwargs)
        for position, tensor in tensors_with_new_memory(outputs, tensors((args, kwargs))):
            self.outputs.append((key, position, StorageWeakRef(tensor.untyped_storage())))
        return outputs

    def region(self, frame: Frame, subject: str | type, run: Function, args: Args, kwargs: Kwargs) -> object:
        return plainly(run, args, kwargs) if recomputes(subject, args) else run(*args, **kwargs)


def tensors_with_new_memory(outputs: object, inputs: Iterable[torch.Tensor]) -> Iterator[tuple[int, torch.Tensor]]:
    """Yields position and tensor of the outputs of a call that do not lie in the memory of its inputs."""
    input_storages = {storage_key(t) for t in inputs}
    for position, tensor in enumerate(tensors(outputs)):
        if has_one_storage(tensor) and storage_key(tensor) not in input_storages:
            yield position, tensor


def check_atomic(atomic: object) -> None:
    """Raises `InvalidInput` unless `atomic` lists classes of modules, or their names."""
    if isinstance(atomic, str) or not is_list(atomic) or not all(isinstance(one, (str, type)) for one in atomic):  # type: ignore[attr-defined]
        raise InvalidInput(f"atomic is {in_short(atomic)}; it must be a list of classes of modules, or of their names")


def check_model(model: nn.Module) -> None:
    """Raises `InvalidInput` for a model that cannot be intercepted."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
    for name, module in model.named_modules():
        module_label = f"layer {name!r}" if name else "the model"
        if isinstance(module, torch.jit.ScriptModule):
            raise InvalidInput(
                f"{module_label} is a TorchScript module, whose forward cannot be wrapped; use the Python module"
            )
        if type(module).__name__ == "OptimizedModule":
            raise InvalidInput(
                f"{module_label} is compiled by torch.compile; distribute the module that was compiled, its `_orig_mod` "
                "(a distributed model runs uncompiled)"
            )
        has_state = any(True for _ in (*module.parameters(), *module.buffers()))
        if isinstance(module.__dict__.get("forward"), Intercepted) and (has_state or not name):
            raise InvalidInput(f"{module_label} is already distributed; gather the model first")
        if any(map(is_lazy, module._parameters.values())):
            raise InvalidInput(
                f"{module_label} ({type(module).__name__}) is lazy, and has parameters without a shape; call the model "
                "once on the sample inputs before"
            )


def output_shapes(outputs: Iterable[torch.Tensor]) -> str:
    """Types and shapes of tensors, as `OpGraph.output_shapes` has them.

    >>> output_shapes([torch.ones(2, 3), torch.tensor(1)])
    'f32[2,3], i64[]'
    """
    sizes = lambda t: (-1,) * t.dim() if t.is_nested else t.shape  # noqa: E731
    return shapes_in_words((str(t.dtype).removeprefix("torch."), sizes(t)) for t in outputs)


class Tracer(Handler):
    """The handler that records a trace."""

    def __init__(self, model: nn.Module):
        self.model, self.training = model, model.training
        self.calls: list[Call] = []
        self.flow, self.pinned_calls = Flow(model), PinnedCalls()
        self.state = State(model, self.pinned_calls)
        self.results: tuple[int, ...] = ()
        self.differentiates = False
        self.held_outputs: set[tuple[int, int]] | None = None
        self.returned: dict[int, int] = {}
        self.parameter_bytes = {name: tensor_bytes(p) for name, p in model.named_parameters()}
        self.module_names = {id(m): name for name, m in model.named_modules()}
        self.name_of = {id(p): name for name, p in model.named_parameters()}
        self.buffer_of = {id(b): name for name, b in model.named_buffers()}
        # a buffer may be replaced in the forward: then only its name is known
        buffers = model.named_buffers(remove_duplicate=False)
        self.buffer_names = {name: self.buffer_of[id(b)] for name, b in buffers}
        self.states_after_call = generator_states()
        self.recomputing = 0
        self.reentrant_region = -1  # the outermost region of reentrant checkpointing that is running
        self.region_count = 0
        self.region_of_hook: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of non-reentrant checkpointing
        self.shaped_by_values = WeakIdKeyDictionary()  # tensors whose shape may depend on values
        self.random_numbers = WeakIdKeyDictionary()  # tensors that functions draw, and what is computed of them alone
        self.random_choices: dict[str, None] = {}

    # -- the handler ---------------------------------------------------------------------------------

    def begin(self, frame: Frame, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        for tensor in tensors((args, kwargs)):
            self.flow.value_of[id(tensor)] = (tensor, -1)
        return args, kwargs

    def end(self, frame: Frame, outputs: object) -> object:
        producers = {self.flow.producer(t) for t in tensors(outputs) if id(t) in self.flow.value_of}
        self.results = tuple(sorted(producers - {-1}))
        self.returned = self.flow.read(list(tensors(outputs)), -1)
        return outputs

    def call(
        self, frame: Frame, key: str, run: Function, args: Args, kwargs: Kwargs, module: nn.Module | None
    ) -> object:
        inputs = list(tensors((args, kwargs)))
        # A layer also uses the modules that it takes as arguments, as DoRA's does.
        module_arguments = (
            a for a in (*args, *kwargs.values()) if isinstance(a, nn.Module) and id(a) in self.module_names
        )
        modules = [] if module is None else [module, *module_arguments]
        state = [t for m in modules for t in (*m.parameters(), *m.buffers())]
        versions = [version(t) for t in (*inputs, *state)]
        before, hosts = generator_states(), host_states()
        # Calls before the one that is about to run are pinned here.
        if not same_states(before, self.states_after_call):
            self.pinned_calls.pin([len(self.calls) - 1], "random numbers drawn between calls")
        opaque = next((a for a in (*args, *kwargs.values()) if not understood(a)), None) if module is not None else None
        why = self.pinned_calls.reason_to_pin(module)
        if opaque is not None:
            why = f"a {type(opaque).__name__} that might hide tensors"
            self.pinned_calls.pin(range(len(self.calls)), why)
        if why is not None:
            self._pin_before(inputs, why)
        with ValuesRead() as values:
            outputs = run_call(key, run, args, kwargs, module)
        output_tensors = list(tensors(outputs))
        written_storages = {storage_key(t) for t, v in zip((*inputs, *state), versions, strict=True) if version(t) != v}
        written_state = written_storages - {storage_key(t) for t in inputs}
        written_storages = written_storages & {storage_key(t) for t in inputs}
        self.states_after_call = generator_states()
        random = not same_states(before, self.states_after_call)
        if module is not None:  # a layer that returns the very tensors that it took, such as an identity
            input_ids = {id(t) for t in inputs}
            idle = bool(output_tensors) and all(id(t) in input_ids for t in output_tensors) and not written_storages
        else:  # a function that computes no new data, writes nothing of the model's and draws no random numbers
            input_storages = {storage_key(t) for t in inputs}
            computes = written_storages or any(storage_key(t) not in input_storages for t in output_tensors)
            idle = not random and not (computes and self.flow.tracked_tensors(inputs))
        if module is None:  # what is drawn of nothing computed is followed until its values are given to the code
            drawn = (
                random and not self.flow.tracked_tensors(inputs) and not any(id(t) in self.buffer_of for t in inputs)
            )
            if drawn or (inputs and all(t in self.random_numbers for t in inputs)):
                self.random_numbers.update(dict.fromkeys(output_tensors, True))
                if values.reads_values and not output_tensors:
                    self.random_choices[key] = None
        has_value_shapes = self._shaped_by_values(values.reads_values, run, inputs, output_tensors, written_storages)
        if idle:
            self.state.touched_between(inputs, written_storages)
            self.flow.shunt(inputs, output_tensors)
            return outputs
        if module is not None and not understood(outputs):
            raise InvalidInput(
                f"layer {key!r} returns a {type(outputs).__name__}, which may hide tensors; "
                "a layer must return tensors in tuples, lists, dicts or dataclasses"
            )
        if module is not None and not same_host_states(hosts, host_states()):
            why = "random numbers that are not torch's"
            self._pin_before(inputs, why)
        why = why or ("shapes that may depend on values" if has_value_shapes else None)
        if why is not None:
            self.pinned_calls.pin([len(self.calls)], why)
        self._record(key, run, modules, inputs, output_tensors, written_storages, written_state, random)
        return outputs

    def region(self, frame: Frame, subject: str | type, run: Function, args: Args, kwargs: Kwargs) -> object:
        """Runs a region whose calls keep code order. One that is recomputed in the backward pass runs without checkpointing."""
        is_recomputed = recomputes(subject, args)
        if is_recomputed:
            why = "checkpointing"
        elif isinstance(subject, str):
            why = subject
        else:
            why = "hooks" if subject is BackwardHookFunction else f"the autograd Function {subject.__name__}"
        with torch._C.DisableTorchFunction():
            inputs, start = list(tensors((args, kwargs))), len(self.calls)
            self._pin_before(inputs, why)
        self.pinned_calls.regions.append(why)
        if is_recomputed and not self.recomputing:
            with kept_activations() as hooks:
                self.reentrant_region = self._region_number(hooks, reentrant=True)
        self.recomputing += is_recomputed
        try:
            outputs = plainly(run, args, kwargs) if is_recomputed else run(*args, **kwargs)
        finally:
            self.pinned_calls.regions.pop()
            self.recomputing -= is_recomputed
        if not isinstance(subject, str) and not is_recomputed and len(self.calls) > start + 1:
            # One backward pass reads what all calls of the region saved.
            self.flow.groups.append(tuple(range(start, len(self.calls))))
        with torch._C.DisableTorchFunction():
            # The outputs depend on the calls behind the region's inputs, unless calls in it computed them.
            output_tensors = list(tensors(outputs))
            self.flow.shunt(inputs, output_tensors)
            latest = max((self.flow.producer(t) for t in inputs if id(t) in self.flow.value_of), default=-1)
            for tensor in output_tensors:
                if not self.flow.tracked_tensors([tensor]):
                    self.flow.add_carried(tensor, latest)
            # Calls within a Function build no graph; the Function has gradients.
            if any(t.requires_grad for t in output_tensors):
                for i in range(start, len(self.calls)):
                    self.calls[i] = replace(self.calls[i], requires_grad=True)
                for k, value in enumerate(self.flow.values):
                    if value.producer >= start and value.dtype.startswith(("float", "bfloat", "complex")):
                        self.flow.values[k] = replace(value, requires_grad=True)
        return outputs

    # -- bookkeeping ---------------------------------------------------------------------------------

    def _shaped_by_values(
        self,
        reads: bool,
        run: Callable[..., object],
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        written_storages: set[int],
    ) -> bool:
        """Whether the shapes of a call's outputs may depend on values: the call reads values, or takes a tensor with such a
        shape.
        """
        name = getattr(run, "__name__", "").strip("_")
        like_first = bool(written_storages) or name in _LIKE_FIRST.split()
        sources = inputs[:1] if like_first else inputs
        has_value_shapes = reads or any(t in self.shaped_by_values for t in sources)
        outputs = [t for t in outputs if t.dim() > 0]
        if has_value_shapes:
            self.shaped_by_values.update(dict.fromkeys(outputs, True))
        return has_value_shapes and bool(outputs)

    def _region_number(self, hooks: Sequence[Any], reentrant: bool = False) -> int:
        """Returns the number of the outermost checkpointed region that is running, -1 for none.

        `hooks` are those of non-reentrant regions, the innermost first. With `reentrant`, such a region is beginning.
        """
        if self.recomputing:
            return self.reentrant_region
        if not hooks and not reentrant:
            return -1
        number = self.region_of_hook.get(hooks[-1][0]) if hooks else None
        if number is None:
            number = self.region_count
            self.region_count += 1
        if hooks:
            self.region_of_hook[hooks[-1][0]] = number
        return number

    def _pin_before(self, inputs: list[torch.Tensor], why: str) -> None:
        """Pins the previous call, so that nothing is waiting any more, and the calls that computed the inputs."""
        self.pinned_calls.pin([len(self.calls) - 1], why)
        for tensor in inputs:
            self.pinned_calls.pin(self.flow.behind(tensor), why)

    def _record(
        self,
        key: str,
        run: Function,
        modules: list[nn.Module],
        input_tensors: list[torch.Tensor],
        outputs: list[torch.Tensor],
        written_storages: set[int],
        state_written: set[int],
        random: bool,
    ) -> None:
        """Records a call that has run, with the storages that it wrote, among its inputs and of its own state.

        `modules` are the layer and the modules that it took as arguments; none for a function.
        """
        index, module = len(self.calls), next(iter(modules), None)
        flow, state = self.flow, self.state
        inputs = {storage_key(t) for t in input_tensors if id(t) in flow.value_of}
        state.seen_writes |= (written_storages | state_written) & (state.latest.keys() | inputs)
        attributes = [] if module is None else attribute_tensors(module)
        reads = flow.read([*input_tensors, *attributes], index)
        # No transport sees these: they stay on the device of the call that computed them.
        attribute_producers = {flow.producer(t) for t in attributes if id(t) in flow.value_of} - {-1}
        if attribute_producers:
            flow.groups.append(tuple(sorted({*attribute_producers, index})))
            self.pinned_calls.pin([*attribute_producers, index], "a computed tensor that is an attribute of a layer")
        after = flow.write(written_storages, index) | state.called_again(module, self._name(module) or "", index)
        used = {storage_key(t) for t in input_tensors}
        used |= {storage_key(t) for m in modules for t in (*m.parameters(), *m.buffers())}
        after |= state.touch(index, used, written_storages | state_written)
        input_storages = {storage_key(t) for t in input_tensors}
        fresh = {storage_key(t): storage_bytes(t) for t in outputs if storage_key(t) not in input_storages}
        overwritten_inputs = [
            t for t in input_tensors if storage_key(t) in written_storages
        ]  # `y[i] = x` has no other result
        names = [flow.parameter_of[id(t)][1] for t in input_tensors if id(t) in flow.parameter_of]
        buffers = [self.buffer_of[id(t)] for t in input_tensors if id(t) in self.buffer_of]
        for used_module in modules:
            names += [self.name_of[id(p)] for p in used_module.parameters() if id(p) in self.name_of]
            prefix = f"{self._name(used_module)}.".removeprefix(".")
            buffer_names = (self.buffer_names.get(prefix + name) for name, _ in used_module.named_buffers())
            buffers += [name for name in buffer_names if name is not None]
        with kept_activations() as regions:
            checkpoints = len(regions)
            region = self._region_number(regions)
        self.calls.append(
            Call(
                key=key,
                op_type=getattr(run, "__name__", "function") if module is None else self._layer_type(module),
                module=self._name(module),
                reads=tuple(reads),
                read_at=reads,
                reads_batch=any(flow.value_of.get(id(t), (t, 0))[1] < 0 for t in input_tensors),
                after=tuple(sorted(after - {flow.values[v].producer for v in reads})),
                parameters=tuple(dict.fromkeys(names)),
                buffers=tuple(dict.fromkeys(buffers)),
                random=random,
                inplace=bool(written_storages),
                output_bytes=sum(fresh.values()),
                requires_grad=any(t.requires_grad for t in (*outputs, *overwritten_inputs)),
                recomputed=self.recomputing + checkpoints,
                region=region,
                reentrant=self.recomputing > 0,
                output_shapes=output_shapes(outputs),
            )
        )
        for position, tensor in enumerate(outputs):
            # An input that was returned unchanged is no new value.
            if id(tensor) not in flow.value_of or storage_key(tensor) in written_storages:
                flow.add_value(tensor, index, position)
        for tensor in overwritten_inputs:
            if not any(tensor is t for t in outputs):
                flow.add_value(tensor, index)

    def _layer_type(self, module: nn.Module) -> str:
        """Returns the layer's class; of a batch norm that a model in training normalises by stored statistics, with `Frozen`."""
        frozen = (
            isinstance(module, _BatchNorm) and self.training and not module.training and module.running_mean is not None
        )
        return ("Frozen" if frozen else "") + type(module).__name__

    def _name(self, module: nn.Module | None) -> str | None:
        return None if module is None else self.module_names[id(module)]

    def finish(self, layers: Iterable[str]) -> Trace:
        users: dict[str, list[int]] = {}
        for i, call in enumerate(self.calls):
            for name in {*call.parameters, *(f"buffer {b}" for b in call.buffers if call.module is not None)}:
                users.setdefault(name, []).append(i)
        shared_groups = [tuple(u) for u in users.values() if len(u) > 1]
        groups = join_groups(len(self.calls), [*self.flow.groups, *shared_groups])
        roots = {*self.results, *self.pinned_calls.outliving}
        calls = without_lost_gradients(self.calls, self.flow.values, self.flow.groups, roots)
        values, sizes = tuple(self.flow.values), dict(self.parameter_bytes)
        reasons = self.pinned_calls.reasons
        return Trace(
            tuple(layers),
            calls,
            values,
            groups,
            sizes,
            self.training,
            self.results,
            self.returned,
            frozenset(k for k, v in enumerate(values) if (v.producer, v.position) in (self.held_outputs or ())),
            reasons,
            random_choices=tuple(self.random_choices),
            differentiates=self.differentiates,
        )


_NOTICING = threading.RLock()


@contextmanager
def _noticing_backward() -> Iterator[list[type]]:
    """Collects the types of what this thread gives to `torch.autograd.backward` meanwhile, which `Tensor.backward` calls.

    One thread at a time does so: if the first one left first, the function of the second would stay in PyTorch.
    """
    with _NOTICING:
        root_types: list[type] = []
        run_backward, own_thread = torch.autograd.backward, threading.get_ident()

        def noticed_backward(tensors: object, *args: object, **kwargs: object) -> None:
            if threading.get_ident() == own_thread:
                root_types.append(type(tensors))
            run_backward(tensors, *args, **kwargs)

        torch.autograd.backward = noticed_backward
        try:
            yield root_types
        finally:
            torch.autograd.backward = run_backward


class FailedCall(InvalidInput):
    """A layer, a function or the model failed on the sample inputs; `call` names which."""

    def __init__(self, message: str, call: str = ""):
        super().__init__(message)
        self.call = call


def run_call(key: str, run: Function, args: Args, kwargs: Kwargs, module: nn.Module | None) -> object:
    """Runs a call; raises `InvalidInput` that names it if it fails."""
    try:
        return run(*args, **kwargs)
    except InvalidInput:
        raise
    except _FAILURES as error:
        call_label = f"layer {key!r} ({type(module).__name__})" if module is not None else f"function {key!r}"
        call_label = f"model {key}" if module is run else call_label
        message = f"{call_label} failed on the sample inputs: {describe_error(error, 500)}"
        if module is run and not any(True for _ in tensors((args, kwargs))):
            message += " (they hold no tensor: a tokenizer makes some with return_tensors='pt')"
        raise FailedCall(message, call_label) from error
