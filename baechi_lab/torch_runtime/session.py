"""Session: the distributed forward (Shetty 2022, Algorithm 1), as a handler of the interception.

Every planned call runs on its device; its inputs are brought there. If the plan reorders calls, the host submits the calls
that are not waiting. Any other call gets a thread, and the host goes on with stand-ins for its outputs. The first forward
with a new signature (shapes, types, mode) runs in code order and learns what the stand-ins must look like.

If the host reads the data of a stand-in, or writes in place while calls are waiting, the order is dropped for the rest of
that forward (`forced` counts this). Python code between layers thus always sees the values that code order gives.

A call waits only if this is proven to change no result. Within a Function, a module with hooks or a region under settings of
its own (`ambient`), calls run where the code has them, after all that waited before. In a plan made from a trace these calls
are `fixed`, so its order need not be dropped for them. Some forwards run in code order as a whole: those with arguments that
might hide tensors (a cache), with hooks that the plan does not know, of a part of the model, or within a backward pass
(recomputation).
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from ..errors import CodeOrderKept, InvalidInput
from .activation_policy import ActivationPolicy, ActivationSources
from .context import Context, ambient, autocast_state, casts_shared, function_modes, in_backward, ordinary
from .deferred import METADATA_FUNCTIONS, Deferred, Future, defer, deferred_tensors, resolve, spec_of
from .divisors import Replacements, divided_by
from .forward_state import ForwardState, LearnedSpecs, Observer, run_observed
from .gate import Gate
from .intercept import Frame, Handler, has_hooks
from .plan import Plan
from .random import generator_states, same_states
from .sequence import inputs_of, next_sequence_number, renumber, set_aside
from .storage import only_views, version
from .transport import HostTransport, make_transport
from .tree import Args, Function, Kwargs, map_tensors, outline, tensors
from .waiting_calls import Threads, WaitingCall

_DIFFERENTIATING = (torch.autograd.grad, torch.Tensor.backward)


class Session(Handler):
    """The handler of a distributed model.

    Of the last forward, `threads_started` counts the calls that waited in a thread, `forced` counts how often the order was
    dropped, and `submitted` lists the calls in the order in which they were submitted.
    """

    def __init__(
        self, model: nn.Module, plan: Plan, *, transport: HostTransport | None = None, output_device: str | None = None
    ):
        self.model, self.plan = model, plan
        self.transport = transport or make_transport(plan.devices)
        self.plain = type(self.transport) is HostTransport and len(set(plan.devices)) == 1
        self.output_device = None if output_device is None else torch.device(output_device)
        self.index = plan.index
        self.reorders = bool(plan.order.waiting)
        self.fixed = frozenset(plan.fixed)
        self.modules = [(name, module) for name, module in model.named_modules() if name]
        self.sources = ActivationSources(plan.activation_rows) if plan.activation_rows else None
        modules = dict(self.modules)
        self.layer = {i: modules[name] for i, key in enumerate(plan.keys) if (name := key.partition("#")[0]) in modules}
        self.hooked = {name for name, module in self.modules if has_hooks(module)}
        self.issued_warnings: set[str] = set()
        self.learned = LearnedSpecs()
        self.observer: Observer | None = None
        self.divisors: Replacements = {}  # divisors of the calls' means in the next forward
        self.allowed = {torch.device("cpu"), *self.transport.devices}
        self.threads_started = self.forced = 0
        self.submitted: list[int] = []
        self.threads = Threads(len(plan.keys))

    # -- one forward ---------------------------------------------------------------------------------

    def begin(self, frame: Frame, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        input_tensors = list(tensors((args, kwargs)))
        for tensor in input_tensors:
            if tensor.device not in self.allowed:
                devices = ", ".join(dict.fromkeys(self.plan.devices))
                raise InvalidInput(
                    f"an input is on {tensor.device}; the model is distributed over {devices}: "
                    "put inputs on the CPU or on one of these devices"
                )
        state = frame.state = ForwardState({}, None)
        if self.sources is not None and not in_backward() and not torch._C._are_functorch_transforms_active():  # type: ignore[attr-defined]
            observation = () if self.observer is None else (self.observer.repeating(), self.observer.host_copier())
            state.activations = ActivationPolicy(self.sources, *observation)
        self.threads_started = self.forced = 0
        if self.reorders:
            args, kwargs = resolve((args, kwargs))
            self._prepare(frame, state, args, kwargs)
        if not self.plain:
            self.transport.begin(state)
            state.output_device = self.output_device or (input_tensors[0].device if input_tensors else None)
        return args, kwargs

    def _prepare(self, frame: Frame, state: ForwardState, args: Args, kwargs: Kwargs) -> None:
        """Creates a gate if this forward may follow the order: it is like an earlier one, and nothing requires code order."""
        input_outline = outline((args, kwargs))
        if frame.scopes[0] or not ordinary() or self._unplanned_hooks():
            return
        if input_outline is None:
            self._warn_once("an argument of the model may hide tensors (a cache): this forward runs in code order")
            return
        if casts_shared() and (self.plan.shares or any(t.is_leaf and t.requires_grad for t in tensors((args, kwargs)))):
            self._warn_once(
                "autocast casts a tensor once for several layers that read it: this forward runs in code order"
            )
            return
        state.ambient_settings, state.modes = ambient(), function_modes() + 1
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), self.model.training
        is_known, state.learned = self.learned.lookup((input_outline, autocast_state(), *modes))
        state.gate = Gate(self.plan.order) if is_known else None

    def _unplanned_hooks(self) -> bool:
        hooked_names = [name for name, module in self.modules if name not in self.hooked and has_hooks(module)]
        if hooked_names:
            self._warn_once(f"{hooked_names[0]!r} has hooks that the plan does not know: the model runs in code order")
        return bool(hooked_names)

    def _warn_once(self, text: str) -> None:
        """Issues a warning, each text once."""
        if text not in self.issued_warnings:
            self.issued_warnings.add(text)
            warnings.warn(text, CodeOrderKept, stacklevel=_stacklevel_of_user())

    def region(self, frame: Frame, subject: str | type, run: Function, args: Args, kwargs: Kwargs) -> object:
        state: ForwardState = frame.state
        state.pinned_regions += 1
        with torch._C.DisableTorchFunction():
            self._settle(state)
            args, kwargs = resolve((args, kwargs))
        try:
            return run(*args, **kwargs)
        finally:
            state.pinned_regions -= 1

    def end(self, frame: Frame, outputs: object) -> object:
        state: ForwardState = frame.state
        if state.jobs:
            if state.gate is not None and not all(state.gate.is_reached):
                state.gate.release()  # the code took another path and left calls out
            state.join()
            outputs = resolve(outputs)
        self.submitted = [op for op in state.order if op >= 0]
        state.futures.clear()
        state.pending.clear()
        state.jobs.clear()
        if self.plain:
            return outputs
        outputs = self.transport.end(state, outputs)
        output_device = state.output_device
        return outputs if output_device is None else map_tensors(outputs, lambda t: t.to(output_device))

    def abort(self, frame: Frame, error: BaseException) -> None:
        state: ForwardState | None = frame.state
        if state is not None and state.gate is not None:
            state.error = error
            state.gate.release()
            state.wait_for_calls()

    def run_alone(self, name: str, run: Function, args: Args, kwargs: Kwargs) -> object:
        """Runs the layer on its device, with its inputs there."""
        layer_device = torch.device(self.plan.devices[self.plan.layer_device.get(name, 0)])
        args, kwargs = resolve((args, kwargs))
        args, kwargs = map_tensors((args, kwargs), lambda t: t.to(layer_device))
        return run(*args, **kwargs)

    def metadata(self, run: Function, args: Args, kwargs: Kwargs) -> object:
        if self.reorders and args and type(args[0]) is Deferred:
            return self._function_of(run, args, kwargs)
        return run(*args, **kwargs)

    # -- one call ------------------------------------------------------------------------------------

    def call(
        self, frame: Frame, key: str, run: Function, args: Args, kwargs: Kwargs, module: nn.Module | None
    ) -> object:
        op = self.index.get(key, -1)
        state: ForwardState = frame.state
        if key in self.divisors:
            run = divided_by(run, self.divisors[key])
        if not self.reorders:
            return self.submit(state, op, run, args, kwargs)
        if state.gate is None:
            return self._learn(state, key, op, run, *resolve((args, kwargs)))
        is_pinned = self._is_pinned(state, module)
        if is_pinned:
            self._settle(state)
        if op < 0:
            return self._run_unplanned(state, key, run, args, kwargs, is_pinned)
        if op < state.latest and not state.gate.free:
            # The code calls in another order than the planned one.
            self._flush(state)
        state.latest = max(state.latest, op)
        if not state.gate.reach(op):
            spec, numbers = self._promise(state, key, args, kwargs)
            stays = is_pinned or op in self.fixed  # a fixed call waits only if the code took another path
            if spec is not None and not stays and not (module is None and op in self.plan.inplace):
                return self._start(state, key, op, run, args, kwargs, spec, numbers)
            self._flush(state)
        state.gate.wait(op)
        args, kwargs = self._await((args, kwargs))
        state.order.append(op)
        try:
            return self.submit(state, op, run, args, kwargs)
        finally:
            state.gate.submit(op)

    def _is_pinned(self, state: ForwardState, module: nn.Module | None) -> bool:
        """Whether this call must run where the code has it."""
        if state.pinned_regions or ambient() != state.ambient_settings:
            return True
        return module is not None and (has_hooks(module) or function_modes() != state.modes)

    def submit(self, state: ForwardState, op: int, run: Function, args: Args, kwargs: Kwargs) -> object:
        """Runs a call on its device: lines 4-15 of Algorithm 1."""
        differentiates = run in _DIFFERENTIATING
        if state.activations is not None and op >= 0:
            run = partial(state.activations.call, op, run, self.layer.get(op))
        if self.plain:
            if op < 0 or self.observer is None:
                return run(*args, **kwargs)
            return run_observed(self.observer, op, run, args, kwargs)
        device = self.plan.device[op] if op >= 0 else self.transport.device_of_value(state, (args, kwargs))
        if device is None or differentiates:  # gradients are those of the tensors themselves, not of copies
            if op < 0 or self.observer is None:
                return run(*args, **kwargs)
            return run_observed(self.observer, op, run, args, kwargs)
        originals = (args, kwargs)
        args, kwargs = self.transport.arrive(state, originals, device)
        if state.activations is not None:
            state.activations.note_copies(originals, (args, kwargs))
        pairs = zip(tensors(originals), tensors((args, kwargs)), strict=True)
        copies = [(original, copy, version(copy)) for original, copy in pairs if copy is not original]
        writes = op in self.plan.inplace or _writes_in_place(run, kwargs)
        arguments_before: list[tuple[torch.Tensor, int]] = []
        if writes:
            self.transport.wait_for_sends(state, (args, kwargs), device)
            arguments_before = [(tensor, version(tensor)) for tensor in tensors((args, kwargs))]
        with self.transport.on(state, device):
            if op >= 0 and self.observer is not None:
                outputs = run_observed(self.observer, op, run, args, kwargs)
            else:
                outputs = run(*args, **kwargs)
        # Tensors of inference mode have no version.
        self.transport.note_writes(
            state, (t for t, before in arguments_before if version(t) != before or t.is_inference())
        )
        overwritten_copies = [
            (original, copy)
            for original, copy, before in copies
            if version(copy) != before or (writes and copy.is_inference())
        ]
        if op >= 0:
            self.transport.release_copies(state, originals, device)
            sends = () if overwritten_copies else self.plan.sends[op]
            self.transport.depart(state, outputs, op, device, sends, self.plan.remote[op])
        else:
            self.transport.inherit(state, outputs, (args, kwargs), device)
        for original, copy in overwritten_copies:
            # The code goes on with the original: an input, a constant or a buffer that is on another device.
            self.transport.write_back(state, original, copy, device)
        if overwritten_copies:
            original_of = {id(copy): original for original, copy in overwritten_copies}
            outputs = map_tensors(outputs, lambda t: original_of.get(id(t), t))
        return outputs

    def _promise(self, state: ForwardState, key: str, args: Args, kwargs: Kwargs) -> tuple[object, int]:
        """Returns the learned outputs of a call; None if its arguments have other shapes or numbers than the learned ones."""
        spec, numbers, learned_outline = state.learned.get(key, (None, 0, None))
        if spec is None or learned_outline is None or learned_outline != outline((args, kwargs), shapes=True):
            return None, numbers
        return spec, numbers

    def _learn(self, state: ForwardState, key: str, op: int, run: Function, args: Args, kwargs: Kwargs) -> object:
        before, generator_before = next_sequence_number(), generator_states()
        outputs = self.submit(state, op, run, args, kwargs)
        # A call outside the plan is deferred only if it is a view: then nothing is lost if it runs later.
        lazy = op >= 0 or (only_views(outputs, (args, kwargs)) and not _view_depends_on_values(run, args, kwargs))
        spec = spec_of(outputs) if lazy else None
        if spec is not None or op >= 0 or same_states(generator_before, generator_states()):
            state.learned[key] = (spec, next_sequence_number() - before, outline((args, kwargs), shapes=True))
        state.order.append(op)
        return outputs

    # -- waiting calls -------------------------------------------------------------------------------

    def _start(
        self,
        state: ForwardState,
        key: str,
        op: int,
        run: Callable[..., object],
        args: Args,
        kwargs: Kwargs,
        spec: object,
        numbers: int,
    ) -> object:
        """Starts a thread in which the call waits for its turn, and returns stand-ins: line 1 of Algorithm 1."""
        future = Future(state.gate, op, (args, kwargs))
        device = self.plan.devices[self.plan.device[op]]
        first, cores = set_aside(numbers), torch.get_num_threads()
        call = WaitingCall(key, device, run, args, kwargs, spec, first, numbers, Context(), cores)
        state.futures.append(future)
        state.pending.append(future)
        state.inplace_pending |= op in self.plan.inplace
        self.threads_started += 1
        state.jobs.append(self.threads.start(call, state, future, self.submit))
        return defer(spec, future, self._function_of)

    def _run_unplanned(
        self, state: ForwardState, key: str, run: Function, args: Args, kwargs: Kwargs, is_pinned: bool
    ) -> object:
        """Runs a view, a constant, or a call that the trace did not see. Nothing is assumed of a call that no forward has
        learned.
        """
        writes = is_pinned or key not in state.learned or _writes_in_place(run, kwargs)
        stand_ins = deferred_tensors((args, kwargs))
        spec, numbers = self._promise(state, key, args, kwargs)
        reads = spec is None  # a view reads no data
        if state.pending and (writes or (state.inplace_pending and reads and not stand_ins)):
            self._settle(state)
        if not stand_ins or writes or spec is None:
            return self.submit(state, -1, run, *self._await((args, kwargs)))
        first, context = set_aside(numbers), Context()

        def pull() -> object:
            with context.restore(), torch._C.DisableTorchFunction():
                arguments = resolve((args, kwargs))
                outputs = self.submit(state, -1, run, *arguments)
                renumber(outputs, inputs_of(arguments), first, numbers)
            return outputs

        return defer(spec, Future(state.gate, -1, (args, kwargs), pull), self._function_of)

    def _function_of(self, run: Function, args: Args, kwargs: Kwargs) -> object:
        """Runs a function of a stand-in that bypasses the interception. Metadata is known; anything else needs the data."""
        with torch._C.DisableTorchFunction():
            if run in METADATA_FUNCTIONS:
                return run(*args, **kwargs)
            args, kwargs = self._await((args, kwargs))
            return run(*args, **kwargs)

    def _await(self, value: Any) -> Any:
        """Returns the tensors of `value`, for the host. If they would not be computed by themselves, the order is dropped."""
        for stand_in in deferred_tensors(value):
            if not stand_in.future.coming:
                self.forced += 1
                stand_in.future.gate.release()
        return resolve(value)

    def _flush(self, state: ForwardState) -> None:
        """Drops the order and waits for every waiting call."""
        gate: Gate = state.gate  # type: ignore[assignment]
        self.forced += 1
        gate.release()
        self._settle(state)

    def _settle(self, state: ForwardState) -> None:
        """Waits for every waiting call. If some would not be submitted by themselves, the order is dropped."""
        if not all(future.coming for future in state.pending):
            self.forced += 1
            state.gate.release()  # type: ignore[union-attr]
        for future in state.pending:
            future.get()
        state.pending.clear()

    def close(self) -> None:
        """Ends the parked threads."""
        self.threads.close()


_INNER_MODULE = re.compile(r"(baechi_lab|torch)(\.|$)|placed_")
"""Names of modules of PyTorch and of this package, which exported scripts have as `placed_*.py`."""


def _stacklevel_of_user() -> int:
    """Returns the `stacklevel` with which a `warnings.warn` of the calling function names the line that called the model."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _INNER_MODULE.match(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    return level


def _view_depends_on_values(run: Function, args: Args, kwargs: Kwargs) -> bool:
    """Whether a view may depend on the values of a tensor. This is so if it takes another tensor besides its base."""
    several = len(list(tensors((args, kwargs)))) > 1
    return several and getattr(run, "__name__", "") not in ("view_as", "expand_as", "reshape_as")


def _writes_in_place(run: Callable[..., object], kwargs: dict[str, object]) -> bool:
    """Whether a function changes a tensor in place."""
    name = getattr(run, "__name__", "")
    ends_in_underscore = name.endswith("_") and not name.endswith("__")
    return (
        ends_in_underscore
        or name == "__setitem__"
        or (name.startswith("__i") and name not in ("__invert__", "__int__", "__index__"))
        or (kwargs.get("out") is not None)
    )
