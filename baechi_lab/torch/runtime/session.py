"""Session: the distributed forward (paper P, Algorithm 1), as a handler of the interception.

Every planned call runs on its device with its inputs brought there. When the plan reorders calls, the host submits
what is not waiting; any other call gets a thread, and the host goes on with stand-ins for its outputs. The first
forward with a new signature (shapes, types, mode) runs in code order and learns what the stand-ins must look like.

When the host reads the data of a stand-in, or writes in place while calls are waiting, the order is dropped for the
rest of that forward (`forced` counts it): Python between layers always sees the values that code order gives.

Where nothing proves that waiting changes no result, nothing waits. Within a Function, a module with hooks or a region
under settings of its own (`ambient`), calls run where the code has them, after all that waited before; a plan made from
a trace has these calls `fixed`, so its order need not be dropped for them. A forward with arguments that might hide
tensors (a cache), with hooks that the plan does not know, of a part of the model, or in the midst of a backward pass
(recomputation) runs in code order as a whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from ...errors import CodeOrderKept, InvalidInput
from .again import Activations, Sources
from .context import Context, ambient, autocast_state, casts_shared, function_modes, in_backward, ordinary
from .deferred import KNOWN, Deferred, Future, defer, deferred, resolve, spec_of
from .divisors import Replacements, divided_by
from .flight import Flight, Learned, Observer, observed
from .gate import Gate
from .intercept import Frame, Handler, hooked
from .plan import Plan
from .random import generator_states, same_states
from .sequence import count, inputs_of, renumber, set_aside
from .storage import only_views
from .transport import HostTransport, make_transport
from .tree import map_tensors, outline, tensors
from .waiting import Threads, WaitingCall


class Session(Handler):
    """The handler.

    Of the last forward: `threads_started` counts calls that waited in a thread, `forced` how often the order was
    dropped, `submitted` lists the calls in the order in which they were submitted.
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
        self.sources = Sources(plan.again) if plan.again else None
        named = dict(self.modules)
        self.layer = {i: named[name] for i, key in enumerate(plan.keys) if (name := key.partition("#")[0]) in named}
        self.hooked = {name for name, module in self.modules if hooked(module)}
        self.told: set[str] = set()
        self.learned = Learned()
        self.observer: Observer | None = None
        self.divisors: Replacements = {}  # what the means of calls divide by in the next forward
        self.allowed = {torch.device("cpu"), *self.transport.devices}
        self.threads_started = self.forced = 0
        self.submitted: list[int] = []
        self.threads = Threads(len(plan.keys))

    # -- one forward ---------------------------------------------------------------------------------

    def begin(self, frame: Frame, args: Any, kwargs: Any) -> tuple[Any, Any]:
        given = list(tensors((args, kwargs)))
        for tensor in given:
            self._check_device(tensor)
        flight = frame.state = Flight({}, None)
        if self.sources is not None and not in_backward() and not torch._C._are_functorch_transforms_active():  # type: ignore[attr-defined]
            seen = () if self.observer is None else (self.observer.repeating(), self.observer.carrier())
            flight.activations = Activations(self.sources, *seen)
        self.threads_started = self.forced = 0
        if self.reorders:
            args, kwargs = resolve((args, kwargs))
            self._prepare(frame, flight, args, kwargs)
        if not self.plain:
            self.transport.begin(flight)
            flight.home = self.output_device or (given[0].device if given else None)
        return args, kwargs

    def _prepare(self, frame: Frame, flight: Flight, args: Any, kwargs: Any) -> None:
        """A gate where the order may be followed: this forward is like an earlier one, and nothing speaks against it."""
        given = outline((args, kwargs))
        if frame.scopes[0] or not ordinary() or self._unplanned_hooks():
            return
        if given is None:
            self._say("an argument of the model may hide tensors (a cache): this forward runs in code order")
            return
        if casts_shared() and (self.plan.shares or any(t.is_leaf and t.requires_grad for t in tensors((args, kwargs)))):
            self._say("autocast casts a tensor once for several layers that read it: this forward runs in code order")
            return
        flight.before, flight.modes = ambient(), function_modes() + 1
        key = (given, autocast_state(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(), self.model.training)
        known, flight.learned = self.learned.of(key)
        flight.gate = Gate(self.plan.order) if known else None

    def _unplanned_hooks(self) -> bool:
        new = [name for name, module in self.modules if name not in self.hooked and hooked(module)]
        if new:
            self._say(f"{new[0]!r} has hooks that the plan does not know: the model runs in code order")
        return bool(new)

    def _say(self, text: str) -> None:
        """Warn once."""
        if text not in self.told:
            self.told.add(text)
            warnings.warn(text, CodeOrderKept, stacklevel=6)

    def region(self, frame: Frame, what: str | type, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        flight: Flight = frame.state
        flight.held += 1
        with torch._C.DisableTorchFunction():
            self._settle(flight)
            args, kwargs = resolve((args, kwargs))
        try:
            return run(*args, **kwargs)
        finally:
            flight.held -= 1

    def end(self, frame: Frame, outputs: Any) -> Any:
        flight: Flight = frame.state
        if flight.jobs:
            if flight.gate is not None and not all(flight.gate.reached):
                flight.gate.release()  # the code took another path: some calls will never come
            flight.join()
            outputs = resolve(outputs)
        self.submitted = [op for op in flight.order if op >= 0]
        flight.futures.clear()
        flight.pending.clear()
        flight.jobs.clear()
        if self.plain:
            return outputs
        outputs = self.transport.end(flight, outputs)
        home = flight.home
        return outputs if home is None else map_tensors(outputs, lambda t: t.to(home))

    def abort(self, frame: Frame, error: BaseException) -> None:
        flight: Flight | None = frame.state
        if flight is not None and flight.gate is not None:
            flight.error = error
            flight.gate.release()
            flight.ended()

    def lone(self, name: str, run: Callable[..., Any], args: Any, kwargs: Any, module: nn.Module) -> Any:
        here = torch.device(self.plan.devices[self.plan.layer_device.get(name, 0)])
        args, kwargs = resolve((args, kwargs))
        args, kwargs = map_tensors((args, kwargs), lambda t: t.to(here))
        return run(*args, **kwargs)

    def metadata(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self.reorders and args and type(args[0]) is Deferred:
            return self._function_of(run, args, kwargs)
        return run(*args, **kwargs)

    # -- one call ------------------------------------------------------------------------------------

    def call(
        self, frame: Frame, key: str, run: Callable[..., Any], args: Any, kwargs: Any, module: nn.Module | None
    ) -> Any:
        op = self.index.get(key, -1)
        flight: Flight = frame.state
        if key in self.divisors:
            run = divided_by(run, self.divisors[key])
        if not self.reorders:
            return self._submit(flight, op, run, args, kwargs)
        if flight.gate is None:
            return self._learn(flight, key, op, run, *resolve((args, kwargs)))
        held = self._held(flight, module, args, kwargs)
        if held:
            self._settle(flight)
        if op < 0:
            return self._unplanned(flight, key, run, args, kwargs, held)
        if op < flight.latest and not flight.gate.free:
            # The code calls in another order than the plan's, which would have later calls come first.
            self._flush(flight)
        flight.latest = max(flight.latest, op)
        if not flight.gate.reach(op):
            spec, numbers = self._promise(flight, key, args, kwargs)
            stays = held or op in self.fixed  # a fixed call waits only where the code took another path
            if spec is not None and not stays and not (module is None and op in self.plan.inplace):
                return self._start(flight, key, op, run, args, kwargs, spec, numbers)
            self._flush(flight)
        flight.gate.wait(op)
        args, kwargs = self._await((args, kwargs))
        flight.order.append(op)
        try:
            return self._submit(flight, op, run, args, kwargs)
        finally:
            flight.gate.submit(op)

    def _held(self, flight: Flight, module: nn.Module | None, args: Any, kwargs: Any) -> bool:
        """Whether this call must run where the code has it."""
        if flight.held or ambient() != flight.before:
            return True
        return module is not None and (hooked(module) or function_modes() != flight.modes)

    def _submit(self, flight: Flight, op: int, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Lines 4-15 of Algorithm 1."""
        if flight.activations is not None and op >= 0:
            run = partial(flight.activations.call, op, run, self.layer.get(op))
        if self.plain:
            if op < 0 or self.observer is None:
                return run(*args, **kwargs)
            return observed(self.observer, op, run, args, kwargs)
        device = self.plan.device[op] if op >= 0 else self.transport.home(flight, (args, kwargs))
        if device is None:
            return run(*args, **kwargs)
        given = (args, kwargs)
        args, kwargs = self.transport.arrive(flight, given, device)
        if flight.activations is not None:
            flight.activations.arrived(given, (args, kwargs))
        with self.transport.on(flight, device):
            if op >= 0 and self.observer is not None:
                outputs = observed(self.observer, op, run, args, kwargs)
            else:
                outputs = run(*args, **kwargs)
        if op >= 0:
            self.transport.taken(flight, given, device)
            self.transport.depart(flight, outputs, op, device, self.plan.sends[op], self.plan.remote[op])
        else:
            self.transport.inherit(flight, outputs, (args, kwargs), device)
        return outputs

    def _promise(self, flight: Flight, key: str, args: Any, kwargs: Any) -> tuple[Any, int]:
        """What is learned of a call with such arguments; no promise where their shapes or numbers are others."""
        spec, numbers, taken = flight.learned.get(key, (None, 0, None))
        if spec is None or taken is None or taken != outline((args, kwargs), shapes=True):
            return None, numbers
        return spec, numbers

    def _learn(self, flight: Flight, key: str, op: int, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        before, drawn = count(), generator_states()
        outputs = self._submit(flight, op, run, args, kwargs)
        # A call outside the plan may only be put off when it is a view: nothing is lost if it runs later.
        lazy = op >= 0 or (only_views(outputs, (args, kwargs)) and not _viewed_by_values(run, args, kwargs))
        spec = spec_of(outputs) if lazy else None
        if spec is not None or op >= 0 or same_states(drawn, generator_states()):
            flight.learned[key] = (spec, count() - before, outline((args, kwargs), shapes=True))
        flight.order.append(op)
        return outputs

    # -- waiting calls -------------------------------------------------------------------------------

    def _start(
        self, flight: Flight, key: str, op: int, run: Callable[..., Any], args: Any, kwargs: Any, spec: Any,
        numbers: int,
    ) -> Any:  # fmt: skip
        """Line 1 of Algorithm 1: a thread waits for the call's turn, the host goes on with stand-ins."""
        future = Future(flight.gate, op, (args, kwargs))
        device = self.plan.devices[self.plan.device[op]]
        call = WaitingCall(key, device, run, args, kwargs, spec, set_aside(numbers), numbers, Context())
        flight.futures.append(future)
        flight.pending.append(future)
        flight.inplace_pending |= op in self.plan.inplace
        self.threads_started += 1
        flight.jobs.append(self.threads.start(call, flight, future, self._submit))
        return defer(spec, future, self._function_of)

    def _unplanned(self, flight: Flight, key: str, run: Callable[..., Any], args: Any, kwargs: Any, held: bool) -> Any:
        """A view, a constant, or a call that the trace did not see; of one that no forward has learned nothing is known."""
        writes = held or key not in flight.learned or _writes(run, kwargs)
        late = deferred((args, kwargs))
        spec, numbers = self._promise(flight, key, args, kwargs)
        reads = spec is None  # a view reads no data
        if flight.pending and (writes or (flight.inplace_pending and reads and not late)):
            self._settle(flight)
        if not late or writes:
            return self._submit(flight, -1, run, *self._await((args, kwargs)))
        if spec is None:
            return self._submit(flight, -1, run, *self._await((args, kwargs)))
        first, context = set_aside(numbers), Context()

        def pull() -> Any:
            with context.entered(), torch._C.DisableTorchFunction():
                taken = resolve((args, kwargs))
                outputs = self._submit(flight, -1, run, *taken)
                renumber(outputs, inputs_of(taken), first, numbers)
            return outputs

        return defer(spec, Future(flight.gate, -1, (args, kwargs), pull), self._function_of)

    def _function_of(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A function of a stand-in that reaches us directly: metadata is known, anything else needs the data."""
        with torch._C.DisableTorchFunction():
            if run in KNOWN:
                return run(*args, **kwargs)
            args, kwargs = self._await((args, kwargs))
            return run(*args, **kwargs)

    def _await(self, value: Any) -> Any:
        """The tensors of `value`, on the host: what would not come by itself is let go."""
        for stand_in in deferred(value):
            if not stand_in.future.coming:
                self.forced += 1
                stand_in.future.gate.release()
        return resolve(value)

    def _flush(self, flight: Flight) -> None:
        """Let every waiting call go and wait for it."""
        gate: Gate = flight.gate  # type: ignore[assignment]
        self.forced += 1
        gate.release()
        self._settle(flight)

    def _settle(self, flight: Flight) -> None:
        """Wait for every waiting call; those that would not come by themselves are let go."""
        if not all(future.coming for future in flight.pending):
            self.forced += 1
            flight.gate.release()  # type: ignore[union-attr]
        for future in flight.pending:
            future.get()
        flight.pending.clear()

    def close(self) -> None:
        """End the parked threads."""
        self.threads.close()

    # -- checks --------------------------------------------------------------------------------------

    def _check_device(self, tensor: torch.Tensor) -> None:
        if tensor.device not in self.allowed:
            raise InvalidInput(
                f"an input is on {tensor.device}; the model is distributed over {', '.join(dict.fromkeys(self.plan.devices))}: "
                "put inputs on the CPU or on one of these devices"
            )


def _viewed_by_values(run: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether a view may depend on the values of a tensor: it takes another than the one that it is of."""
    several = len(list(tensors((args, kwargs)))) > 1
    return several and getattr(run, "__name__", "") not in ("view_as", "expand_as", "reshape_as")


def _writes(run: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    """Whether a function changes a tensor in place."""
    name = getattr(run, "__name__", "")
    ends = name.endswith("_") and not name.endswith("__")
    return (
        ends
        or name == "__setitem__"
        or (name.startswith("__i") and name not in ("__invert__", "__int__", "__index__"))
        or (kwargs.get("out") is not None)
    )
