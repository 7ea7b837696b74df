"""Step + devices -> a TensorFlow graph with every op on its device, and the session that runs it.

The placed graph is the step's GraphDef with `device` set on every node and nothing rewritten, so that names in a
trace are the names of the step. Three kinds of nodes are added under `baechi_lab/`: a placeholder that feeds each
input (the input's own node becomes an Identity on the device where the placement wants it, because TensorFlow drops
the device of a fed placeholder), and for each variable an assignment from a fed value and a read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ExecutionError
from ...graph.step import Step
from ...profilers.tensorflow.apart import keep_apart

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

PREFIX = "baechi_lab"

_FEED_BYTES = 256 << 20
_INT32 = 3  # TensorFlow's DT_INT32


PLACED_FREELY = frozenset(
    ["Const", "Shape", "ShapeN", "Size", "Rank", "VariableShape", "BroadcastGradientArgs", "ConcatOffset", "NoOp"]
)
"""Constants and what computes shapes: they move no data, and TensorFlow may place them as it likes."""


@dataclass(frozen=True)
class VariableOps:
    """The names that set and read one variable in the placed graph."""

    name: str
    value: str
    assign: str
    read: str


@dataclass(frozen=True)
class PlacedGraph:
    """A placed GraphDef (serialized) and the names needed to run it; `moved` are ops put elsewhere than asked.

    `targets` are tensors, one for each device with updates, that are there once its updates have run: TensorFlow says
    nothing of an op that it did not reach, but does of a value that is missing.
    """

    graph_def: bytes
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]
    targets: tuple[str, ...]
    variables: tuple[VariableOps, ...]
    moved: tuple[str, ...]

    def names(self) -> dict[str, Any]:
        """Everything but the graph, ready for JSON."""
        return {key: value for key, value in asdict(self).items() if key != "graph_def"}


def node_of(name: str) -> str:
    """The node of a tensor or control input name: `^a` -> `a`, `a:1` -> `a`."""
    return name.lstrip("^").split(":")[0]


def tensor_of(name: str) -> str:
    """The tensor name of a node or tensor name: `a` -> `a:0`."""
    return name if ":" in name else f"{name}:0"


def parse_graph(data: bytes) -> GraphDef:
    """The GraphDef of a step; `ExecutionError` when the bytes are not one."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework.graph_pb2 import GraphDef

    graph = GraphDef()
    try:
        graph.ParseFromString(data)
    except DecodeError as error:
        raise ExecutionError(f"the step's graph_def is not a serialized TensorFlow GraphDef ({error})") from error
    return graph


def place_graph(step: Step, device_of: Mapping[str, str]) -> PlacedGraph:
    """Put every op of `step` on `device_of[name]`.

    Ops that `device_of` does not name go where their first placed neighbour is. Ops that share a resource
    (a variable and what reads or writes it) run together in TensorFlow: all go to the device of the resource's own
    handle, and those that this moves are listed in `moved`.
    """
    graph = parse_graph(step.graph_def)
    nodes = {node.name: node for node in graph.node}
    device = _complete(nodes, device_of)
    together = _resource_groups(graph)
    moved = tuple(
        name
        for name, owner in together.items()
        if device[name] != device[owner] and nodes[name].op not in PLACED_FREELY
    )
    for name, node in nodes.items():
        node.device = device[together.get(name, name)]
        node.attr.pop("_class", None)
        if "_lower_using_switch_merge" in node.attr:
            node.attr["_lower_using_switch_merge"].b = False
    keep_apart(graph, f"{PREFIX}/apart", only_ordered=True)
    feeds = tuple(_feed(graph, nodes, node_of(spec.name)) for spec in step.inputs)
    variables = tuple(_variable(graph, nodes, node_of(spec.name)) for spec in step.variables)
    fetches = tuple(tensor_of(spec.name) for spec in step.outputs)
    for name in map(node_of, (*fetches, *step.updates)):
        _node(nodes, name)
    targets = _updated(graph, [nodes[node_of(name)] for name in step.updates])
    return PlacedGraph(graph.SerializeToString(deterministic=True), feeds, fetches, targets, variables, moved)


def _node(nodes: Mapping[str, NodeDef], name: str) -> NodeDef:
    if name not in nodes:
        raise ExecutionError(f"the step names {name!r}, which its graph_def does not have")
    return nodes[name]


def _complete(nodes: Mapping[str, NodeDef], device_of: Mapping[str, str]) -> dict[str, str]:
    """A device for every node: as given, else a neighbour's (producers first), else that of the first op."""
    known = {name: device_of[name] for name in nodes if name in device_of}
    missing = [name for name in nodes if name not in known]
    if not missing:
        return known
    if not known:
        raise ExecutionError("the placement names no op of the step's graph")
    consumers: dict[str, list[str]] = {}
    for node in nodes.values():
        for name in node.input:
            consumers.setdefault(node_of(name), []).append(node.name)
    while missing:
        left = []
        for name in missing:
            near = (n for n in (*map(node_of, nodes[name].input), *consumers.get(name, ())) if n in known)
            found = next(near, None)
            if found is None:
                left.append(name)
            else:
                known[name] = known[found]
        if len(left) == len(missing):
            known.update(dict.fromkeys(left, next(iter(known.values()))))
            left = []
        missing = left
    return known


def _resource_groups(graph: GraphDef) -> dict[str, str]:
    """Node -> the node whose device decides: for ops that hold or receive a resource, the first handle's op."""
    owner: dict[str, str] = {}
    resource_outputs = {node.name for node in graph.node if _makes_resource(node)}

    def root(name: str) -> str:
        while owner.get(name, name) != name:
            name = owner[name]
        return name

    for node in graph.node:
        for name in node.input:
            if not name.startswith("^") and node_of(name) in resource_outputs:
                owner[root(node.name)] = root(node_of(name))
    members = {*owner, *owner.values()}
    return {name: root(name) for name in sorted(members)}


def _makes_resource(node: NodeDef) -> bool:
    from tensorflow.core.framework.types_pb2 import DT_RESOURCE

    return any(
        kind == DT_RESOURCE or (attribute and node.attr[attribute].type == DT_RESOURCE)
        for kind, attribute in _output_kinds(node.op)
    )


@cache
def _output_kinds(op: str) -> tuple[tuple[int, str], ...]:
    """(DataType or 0, name of the attribute that has it) of every output of an op type."""
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(op)
    return () if definition is None else tuple((output.type, output.type_attr) for output in definition.output_arg)


def _feed(graph: GraphDef, nodes: Mapping[str, NodeDef], name: str) -> str:
    node = _node(nodes, name)
    if node.op not in ("Placeholder", "PlaceholderWithDefault", "PlaceholderV2"):
        raise ExecutionError(f"input {name!r} of the step is an op of type {node.op}; it must be a Placeholder")
    source = graph.node.add(op="Placeholder", name=f"{PREFIX}/feed/{name}")
    for key in ("dtype", "shape"):
        source.attr[key].CopyFrom(node.attr[key])
    kind = node.attr["dtype"].type
    device, waits = node.device, list(node.input)
    node.Clear()
    node.op, node.name, node.device = "Identity", name, device
    node.attr["T"].type = kind
    node.input.extend([source.name, *waits])  # a schedule's order holds for inputs as well
    return f"{source.name}:0"


def _updated(graph: GraphDef, updates: Sequence[NodeDef]) -> tuple[str, ...]:
    """On every device with updates a constant that waits for them; the tensors."""
    at: dict[str, list[str]] = {}
    for node in updates:
        at.setdefault(node.device, []).append(node.name)
    found = []
    for k, (device, names) in enumerate(at.items()):
        node = graph.node.add(op="Const", name=f"{PREFIX}/updated/{k}", device=device)
        node.attr["dtype"].type = node.attr["value"].tensor.dtype = _INT32
        node.attr["value"].tensor.int_val.append(k)
        node.attr["value"].tensor.tensor_shape.SetInParent()
        node.input.extend(f"^{name}" for name in dict.fromkeys(names))
        found.append(f"{node.name}:0")
    return tuple(found)


def _variable(graph: GraphDef, nodes: Mapping[str, NodeDef], name: str) -> VariableOps:
    handle = _node(nodes, name)
    if handle.op != "VarHandleOp":
        raise ExecutionError(f"variable {name!r} of the step is an op of type {handle.op}; it must be a VarHandleOp")
    handle.attr["shared_name"].s = name.encode()
    kind = handle.attr["dtype"].type
    base = f"{PREFIX}/variable/{name}"
    value = graph.node.add(op="Placeholder", name=f"{base}/value")
    value.attr["dtype"].type = kind
    value.attr["shape"].shape.CopyFrom(handle.attr["shape"].shape)
    assign = graph.node.add(op="AssignVariableOp", name=f"{base}/assign", device=handle.device)
    assign.input.extend([name, value.name])
    read = graph.node.add(op="ReadVariableOp", name=f"{base}/read", device=handle.device)
    read.input.append(name)
    for node in (assign, read):
        node.attr["dtype"].type = kind
    return VariableOps(name, f"{value.name}:0", assign.name, f"{read.name}:0")


# -- running ---------------------------------------------------------------------------------------------


class PlacedSession:
    """A TensorFlow session that holds a placed step with its variables initialised.

    `call(inputs)` runs one step and returns its outputs; `trace(inputs)` also returns the RunMetadata. Traces show the step
    as it runs untraced once `divided` was called.
    """

    def __init__(self, placed: PlacedGraph, config: Any, target: str = "") -> None:
        import tensorflow as tf

        self.placed = placed
        self._parts: list[Any] = []
        self._tf = tf.compat.v1
        graph = self._tf.Graph()
        with graph.as_default():
            self._tf.import_graph_def(parse_graph(placed.graph_def), name="")
        self.session = self._tf.Session(target=target, graph=graph, config=config)

    def devices(self) -> tuple[tuple[str, str, int], ...]:
        """Name, type and memory limit in bytes of every device of the session."""
        return tuple((d.name, d.device_type, int(d.memory_limit_bytes)) for d in self.session.list_devices())

    def start(self, values: Sequence[NDArray[Any]]) -> None:
        """Set the variables and build the step."""
        self.assign(values)
        wanted = [*self.placed.fetches, *self.placed.targets]
        self._call = self.session.make_callable(wanted, list(self.placed.feeds), accept_options=True)

    def assign(self, values: Sequence[NDArray[Any]]) -> None:
        """Set the variables.

        TensorFlow prepares the graph anew for every set of feeds, which takes longer than the values of most
        variables; all at once would double the memory. So many go together, up to `_FEED_BYTES`.
        """
        for some in _portions([v.nbytes for v in values]):
            feeds = {self.placed.variables[i].value: values[i] for i in some}
            self.session.run([self.placed.variables[i].assign for i in some], feeds)

    def call(self, inputs: Sequence[NDArray[Any]]) -> tuple[Any, ...]:
        """Run one step; the values of its outputs."""
        return self._run(inputs)

    def divided(self, inputs: Sequence[NDArray[Any]]) -> tuple[Any, ...]:
        """Run one step that tells how TensorFlow divided the graph, for the traces to come; the values of its outputs.

        A worker that is to tell writes its part down before it begins (`GraphMgr::ExecuteAsync`). The one with the larger part
        begins later than in other steps, when it was asked for its tensors already: they leave at once instead of waiting
        for it to have time. Such a step may hold half of what others do.
        """
        metadata = self._tf.RunMetadata()
        outputs = self._run(inputs, options=self._tf.RunOptions(output_partition_graphs=True), run_metadata=metadata)
        self._parts = list(metadata.partition_graphs)
        return outputs

    def trace(self, inputs: Sequence[NDArray[Any]]) -> tuple[tuple[Any, ...], Any]:
        """Run one step under a full trace; outputs and RunMetadata with partition graphs, known from before if possible."""
        known = bool(self._parts)
        full = self._tf.RunOptions.FULL_TRACE
        options = self._tf.RunOptions(trace_level=full, output_partition_graphs=not known)
        metadata = self._tf.RunMetadata()
        outputs = self._run(inputs, options=options, run_metadata=metadata)
        if known:
            metadata.partition_graphs.extend(self._parts)
        self._parts = list(metadata.partition_graphs)
        return outputs, metadata

    def _run(self, inputs: Sequence[NDArray[Any]], **options: Any) -> tuple[Any, ...]:
        try:
            return tuple(self._call(*inputs, **options)[: len(self.placed.fetches)])
        except self._tf.errors.OpError as error:
            if "does not have value" not in error.message:
                raise
            raise ExecutionError(
                "TensorFlow ended the step without having run all of it: ops of the placed graph wait for each other"
            ) from error

    def values(self) -> tuple[NDArray[Any], ...]:
        """The current value of every variable."""
        if not self.placed.variables:
            return ()
        return tuple(np.asarray(value) for value in self.session.run([v.read for v in self.placed.variables]))

    def close(self) -> None:
        """Free the session."""
        self.session.close()


def _portions(sizes: Sequence[int]) -> list[list[int]]:
    """Consecutive indices in portions of at most `_FEED_BYTES`, or of one that is larger.

    >>> _portions([1, 2, 3]), _portions([])
    ([[0, 1, 2]], [])
    """
    portions: list[list[int]] = []
    room = 0
    for index, size in enumerate(sizes):
        if not portions or size > room:
            portions.append([])
            room = _FEED_BYTES
        portions[-1].append(index)
        room -= size
    return portions


def session_config(
    cpus: int = 1, *, soft: bool = False, threads: int | None = None, workers: Sequence[str] = (), isolate: bool = False
) -> Any:
    """A ConfigProto that leaves the graph as placed: no optimizer, no rewrite, no silent move.

    `cpus` logical CPU devices; `threads` that run ops at a time (default: one per CPU device, one thread in each
    op); `soft` lets ops without a kernel on their device go to the CPU; `workers` are the addresses of a cluster.
    """
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(allow_soft_placement=soft)
    config.device_count["CPU"] = cpus
    config.inter_op_parallelism_threads = threads or cpus
    config.intra_op_parallelism_threads = 1
    config.graph_options.optimizer_options.opt_level = -1
    config.graph_options.optimizer_options.do_function_inlining = False
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.gpu_options.allow_growth = True
    if workers:
        config.isolate_session_state = True
        job = config.cluster_def.job.add(name="worker")
        for task, address in enumerate(workers):
            job.tasks[task] = address
    return config


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The result of a call and the seconds it took."""
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start
