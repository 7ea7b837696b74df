"""The state of one forward pass while it runs, and the protocol of its observers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future as Job
from concurrent.futures import wait
from typing import TYPE_CHECKING
from weakref import ReferenceType

import torch
from torch.autograd.graph import Node

from .activation_policy import ActivationPolicy
from .deferred import Future
from .gate import Gate
from .rerun import HostCopier
from .tree import Args, Kwargs

if TYPE_CHECKING:
    from .transport import Tag


class Observer:
    """Observes every planned call of a forward. The measured timeline is an observer."""

    def start(self, op: int, arguments: object) -> set[Node]:
        """Called before a call runs; its inputs are on its device. Returns the autograd nodes that `stop` is given."""
        return set()

    def stop(self, op: int, nodes: set[Node], outputs: object) -> None:
        """Called when a call is submitted. A call that raises, as the last one of a recomputation does, gets no `stop`."""

    def repeating(self) -> Callable[[int, int], contextlib.AbstractContextManager[object]]:
        """Called when a forward begins. Returns the context to enter around the `run`-th run of a call in the backward pass."""
        return lambda op, run: contextlib.nullcontext()

    def host_copier(self) -> HostCopier:
        """Returns the object that copies tensors to the host and back."""
        return HostCopier()


class ForwardState:
    """The state of one forward pass.

    `learned` maps the key of a call to its outputs' specification, its number of autograd nodes, and the outline of its inputs.
    """

    def __init__(self, learned: dict[str, tuple[object, int, object]], gate: Gate | None):
        self.learned, self.gate = learned, gate
        self.futures: list[Future] = []
        self.pending: list[Future] = []  # futures that nobody has waited for
        self.pinned_regions = 0  # number of running regions in which no call may wait
        self.ambient_settings: tuple[object, ...] = ()  # autograd, autocast and hooks, when it began
        self.modes = 0  # number of active function modes
        self.latest = -1  # the call that is last in the plan, of those reached so far
        self.jobs: list[Job[None]] = []
        self.error: BaseException | None = None
        self.inplace_pending = False  # whether a call that writes in place was reached, which may still wait
        self.caller_streams: dict[torch.device, torch.cuda.Stream] = {}
        self.output_device: torch.device | None = None  # of what the model returns
        self.order: list[
            int
        ] = []  # calls as they were submitted, by their number in the plan; -1 for one that it lacks
        # A tag is an attribute of a tensor: its device and its copies on others (`transport.Tag`).
        self.tags: list[ReferenceType[Tag]] = []
        self.adopted: list[torch.Tensor] = []  # tensors that no call made, with a tag
        # storage of a tensor that was sent -> events after which the copies no longer read it
        self.sends_under_way: dict[int, list[torch.cuda.Event]] = {}
        # storage -> how often calls have written into it in place
        self.storage_writes: Counter[int] = Counter()
        self.activations: ActivationPolicy | None = None

    def wait_for_calls(self) -> None:
        """Waits until all submitted calls have ended."""
        wait(self.jobs)

    def join(self) -> None:
        """Waits until no call is waiting. Raises the error of the first call that failed."""
        self.wait_for_calls()
        failed_futures = [f for f in self.futures if f.error is not None]
        if failed_futures:
            raise min(failed_futures, key=lambda f: f.op).error  # type: ignore[misc]


class LearnedSpecs:
    """Specifications of what each call returns, by the signature of a forward pass. The oldest of too many is dropped."""

    def __init__(self, max_signatures: int = 256):
        self.max_signatures = max_signatures
        self.signatures: dict[object, dict[str, tuple[object, int, object]]] = {}

    def lookup(self, signature: object) -> tuple[bool, dict[str, tuple[object, int, object]]]:
        """Returns whether a signature is known, and what is learned of each call, by its key."""
        is_known = signature in self.signatures
        if not is_known and len(self.signatures) >= self.max_signatures:
            self.signatures.pop(next(iter(self.signatures)))
        return is_known, self.signatures.setdefault(signature, {})


def run_observed(observer: Observer, op: int, run: Callable[..., object], args: Args, kwargs: Kwargs) -> object:
    """Runs a call between `observer.start` and `observer.stop`."""
    nodes = observer.start(op, (args, kwargs))
    outputs = run(*args, **kwargs)
    observer.stop(op, nodes, outputs)
    return outputs
