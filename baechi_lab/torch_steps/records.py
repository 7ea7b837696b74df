"""Records of a trace: values, calls, and the trace of one forward."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

UPDATE = "Update"
"""Type of the ops of a graph that update parameters."""
STATE = "State"
"""Type of the ops of an offloaded graph that have an optimizer's state on a host."""


@dataclass(frozen=True)
class Value:
    """A tensor that is passed between calls. `producer` is the index of the call that computed its data."""

    producer: int
    size_bytes: int
    dtype: str
    shape: tuple[int, ...]
    requires_grad: bool
    position: int
    """Which output of the call it is; -1 for a view that was made between layers."""
    storage: int
    """Values that share memory have the same number."""
    offset: int = 0
    """Bytes of that memory before it."""


@dataclass(frozen=True)
class Call:
    """One call of a layer, or of a function between layers.

    `reads` are the values it takes (indices into `Trace.values`). `after` are the calls it must follow without reading their
    data (in-place writes, state shared between calls).
    """

    key: str
    op_type: str
    module: str | None
    reads: tuple[int, ...]
    after: tuple[int, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    random: bool
    inplace: bool
    output_bytes: int
    requires_grad: bool
    """Whether its outputs get a gradient."""
    recomputed: int = 0
    """How many checkpointed regions it is within: so often it runs again in the backward pass, or less often where
    non-reentrant checkpointing stops early."""
    region: int = -1
    """The outermost checkpointed region that it is within, numbered from 0; -1 for none."""
    reentrant: bool = False
    """Whether that region is one of reentrant checkpointing."""
    read_at: dict[int, int] = field(default_factory=dict)
    """Value -> its first position among the tensors passed in."""
    reads_batch: bool = False
    """Whether it takes an input of the model, or a view of one."""
    output_shapes: str = ""
    """Types and shapes of what it returns, as `OpGraph.output_shapes` has them."""
    graph_until: int = -1
    """The last call at which the call's autograd graph is alive, where no gradient reaches it; otherwise -1."""


@dataclass(frozen=True)
class Trace:
    """The calls of one forward in code order. `groups` lists calls that must share a device."""

    layers: tuple[str, ...]
    calls: tuple[Call, ...]
    values: tuple[Value, ...]
    groups: tuple[tuple[int, ...], ...]
    parameter_bytes: dict[str, int]
    training: bool
    results: tuple[int, ...] = ()
    """Calls that make the model's outputs."""
    returned: dict[int, int] = field(default_factory=dict)
    """Value that the model returns -> its first position among the tensors of the outputs."""
    held_values: frozenset[int] = frozenset()
    """Values that an object holds after the forward, such as a cache that the model returns."""
    fixed: dict[int, str] = field(default_factory=dict)
    """Calls that keep their place in the code, with the reason; see `baechi_lab.torch_steps.pinned_calls`."""
    info: dict[str, object] = field(default_factory=dict)
    random_choices: tuple[str, ...] = ()
    """Functions through which the model's code reads random numbers, so that each forward may run other layers."""
    differentiates: bool = False
    """Whether the model's code calls `backward` in its forward pass, as a step of several optimizers does."""

    def parents(self, index: int) -> tuple[int, ...]:
        """Returns the calls that call `index` depends on, ascending, each once."""
        call = self.calls[index]
        return tuple(sorted({self.values[v].producer for v in call.reads} | set(call.after)))

    @cached_property
    def index(self) -> dict[str, int]:
        """Key -> index of the call."""
        return {call.key: i for i, call in enumerate(self.calls)}

    @cached_property
    def owner(self) -> dict[str, int]:
        """Parameter -> the first call that uses it."""
        return {name: i for i, call in reversed(list(enumerate(self.calls))) for name in call.parameters}

    @property
    def edges(self) -> set[tuple[str, str]]:
        """`(parent key, child key)` of every dependency."""
        return {(self.calls[p].key, c.key) for i, c in enumerate(self.calls) for p in self.parents(i)}
