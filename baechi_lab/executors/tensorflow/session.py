"""Builds a TensorFlow graph with every op on its device, and runs it in a session.

The placed graph is the step's GraphDef with `device` set on every node. Nothing is rewritten, so names in a trace are the
names of the step. Nodes of three kinds are added under `baechi_lab/`: a placeholder that feeds each input, and for each
variable an assignment from a fed value and a read. The input's own node becomes an Identity on the device of the placement,
because TensorFlow ignores the device of a fed placeholder.
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
from ...profilers.tensorflow.prevent_fusion import prevent_fusion

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.protobuf.config_pb2 import ConfigProto

PREFIX = "baechi_lab"

_FEED_BYTES = 256 << 20  # of initial values that are in memory twice at a time
_INT32 = 3  # TensorFlow's DT_INT32


PLACED_FREELY = frozenset(
    ["Const", "Shape", "ShapeN", "Size", "Rank", "VariableShape", "BroadcastGradientArgs", "ConcatOffset", "NoOp"]
)
"""Constants and ops that compute shapes. They move no data, so TensorFlow may place them anywhere."""


@dataclass(frozen=True)
class VariableOps:
    """The names of the ops that set and read one variable in the placed graph."""

    name: str
    value: str
    assign: str
    read: str


@dataclass(frozen=True)
class PlacedGraph:
    """A placed GraphDef (serialized) and the names needed to run it. `moved_ops` are on another device than requested.

    `targets` are tensors, one per device with updates, that are available once its updates have run. TensorFlow does not
    report an op that it did not reach, but it reports a missing tensor.
    """

    graph_def: bytes
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]
    targets: tuple[str, ...]
    variables: tuple[VariableOps, ...]
    moved_ops: tuple[str, ...]

    def names(self) -> dict[str, object]:
        """Everything but the graph, ready for JSON."""
        return {key: value for key, value in asdict(self).items() if key != "graph_def"}


def node_of(name: str) -> str:
    """Returns the node of a tensor or control input name: `^a` -> `a`, `a:1` -> `a`."""
    return name.lstrip("^").split(":")[0]


def tensor_of(name: str) -> str:
    """Returns the tensor name of a node or tensor name: `a` -> `a:0`."""
    return name if ":" in name else f"{name}:0"


def parse_graph(data: bytes) -> GraphDef:
    """Parses a GraphDef. Raises `ExecutionError` if the bytes are not one."""
    from google.protobuf.message import DecodeError
    from tensorflow.core.framework.graph_pb2 import GraphDef

    graph = GraphDef()
    try:
        graph.ParseFromString(data)
    except DecodeError as error:
        raise ExecutionError(f"the step's graph_def is not a serialized TensorFlow GraphDef ({error})") from error
    return graph


def place_graph(step: Step, device_of: Mapping[str, str]) -> PlacedGraph:
    """Puts every op of `step` on `device_of[name]`.

    Ops that `device_of` does not name go to the device of their first placed neighbour. Ops that share a resource (a
    variable, its readers and its writers) must be on one device in TensorFlow. They go to the device of the resource's
    handle; `moved_ops` lists the ops that this moves.
    """
    graph = parse_graph(step.graph_def)
    nodes = {node.name: node for node in graph.node}
    device = _device_of_every_node(nodes, device_of)
    # The op of the resource's first handle, for every op that holds or receives a resource.
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
    together = {name: root(name) for name in sorted(members)}
    moved_ops = tuple(
        name
        for name, owner in together.items()
        if device[name] != device[owner] and nodes[name].op not in PLACED_FREELY
    )
    for name, node in nodes.items():
        node.device = device[together.get(name, name)]
        node.attr.pop("_class", None)
        if "_lower_using_switch_merge" in node.attr:
            node.attr["_lower_using_switch_merge"].b = False
    prevent_fusion(graph, f"{PREFIX}/apart", only_ordered=True)
    feeds = tuple(_add_feed(graph, nodes, node_of(spec.name)) for spec in step.inputs)
    variables = tuple(_add_variable_ops(graph, nodes, node_of(spec.name)) for spec in step.variables)
    fetches = tuple(tensor_of(spec.name) for spec in step.outputs)
    for name in map(node_of, (*fetches, *step.updates)):
        _node(nodes, name)
    targets = _add_update_markers(graph, [nodes[node_of(name)] for name in step.updates])
    return PlacedGraph(graph.SerializeToString(deterministic=True), feeds, fetches, targets, variables, moved_ops)


def _node(nodes: Mapping[str, NodeDef], name: str) -> NodeDef:
    if name not in nodes:
        raise ExecutionError(f"the step names {name!r}, which its graph_def does not have")
    return nodes[name]


def _device_of_every_node(nodes: Mapping[str, NodeDef], device_of: Mapping[str, str]) -> dict[str, str]:
    """Returns a device for every node: as given, else a neighbour's (producers first), else that of the first op."""
    device_by_name = {name: device_of[name] for name in nodes if name in device_of}
    missing = [name for name in nodes if name not in device_by_name]
    if not missing:
        return device_by_name
    if not device_by_name:
        raise ExecutionError("the placement names no op of the step's graph")
    consumers: dict[str, list[str]] = {}
    for node in nodes.values():
        for name in node.input:
            consumers.setdefault(node_of(name), []).append(node.name)
    while missing:
        still_missing = []
        for name in missing:
            near = (n for n in (*map(node_of, nodes[name].input), *consumers.get(name, ())) if n in device_by_name)
            neighbour = next(near, None)
            if neighbour is None:
                still_missing.append(name)
            else:
                device_by_name[name] = device_by_name[neighbour]
        if len(still_missing) == len(missing):
            device_by_name.update(dict.fromkeys(still_missing, next(iter(device_by_name.values()))))
            still_missing = []
        missing = still_missing
    return device_by_name


def _makes_resource(node: NodeDef) -> bool:
    from tensorflow.core.framework.types_pb2 import DT_RESOURCE

    return any(
        kind == DT_RESOURCE or (attribute and node.attr[attribute].type == DT_RESOURCE)
        for kind, attribute in _output_kinds(node.op)
    )


@cache
def _output_kinds(op: str) -> tuple[tuple[int, str], ...]:
    """Returns (DataType or 0, name of the attribute that has it) of every output of an op type."""
    from tensorflow.python.framework import op_def_registry

    definition = op_def_registry.get(op)
    return () if definition is None else tuple((output.type, output.type_attr) for output in definition.output_arg)


def _add_feed(graph: GraphDef, nodes: Mapping[str, NodeDef], name: str) -> str:
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
    node.input.extend([source.name, *waits])  # the control dependencies of a schedule apply to inputs as well
    return f"{source.name}:0"


def _add_update_markers(graph: GraphDef, updates: Sequence[NodeDef]) -> tuple[str, ...]:
    """Adds, on every device with updates, a constant that waits for them. Returns the tensors."""
    at: dict[str, list[str]] = {}
    for node in updates:
        at.setdefault(node.device, []).append(node.name)
    tensors = []
    for k, (device, names) in enumerate(at.items()):
        node = graph.node.add(op="Const", name=f"{PREFIX}/updated/{k}", device=device)
        node.attr["dtype"].type = node.attr["value"].tensor.dtype = _INT32
        node.attr["value"].tensor.int_val.append(k)
        node.attr["value"].tensor.tensor_shape.SetInParent()
        node.input.extend(f"^{name}" for name in dict.fromkeys(names))
        tensors.append(f"{node.name}:0")
    return tuple(tensors)


def _add_variable_ops(graph: GraphDef, nodes: Mapping[str, NodeDef], name: str) -> VariableOps:
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

    `call(inputs)` runs one step and returns its outputs; `trace(inputs)` also returns the RunMetadata. After a call of
    `run_and_record_partition`, traced steps run like untraced ones.
    """

    def __init__(self, placed_graph: PlacedGraph, config: ConfigProto, target: str = "") -> None:
        import tensorflow as tf

        self.placed_graph = placed_graph
        self._partition_graphs: list[object] = []
        self._tf = tf.compat.v1
        graph = self._tf.Graph()
        with graph.as_default():
            self._tf.import_graph_def(parse_graph(placed_graph.graph_def), name="")
        self.session = self._tf.Session(target=target, graph=graph, config=config)

    def devices(self) -> tuple[tuple[str, str, int], ...]:
        """Name, type and memory limit in bytes of every device of the session."""
        return tuple((d.name, d.device_type, int(d.memory_limit_bytes)) for d in self.session.list_devices())

    def start(self, values: Sequence[NDArray[np.generic]]) -> None:
        """Sets the variables and builds the step."""
        self.assign(values)
        fetches = [*self.placed_graph.fetches, *self.placed_graph.targets]
        self._call = self.session.make_callable(fetches, list(self.placed_graph.feeds), accept_options=True)

    def assign(self, values: Sequence[NDArray[np.generic]]) -> None:
        """Sets the variables.

        TensorFlow prepares the graph again for every set of feeds, which takes longer than most assignments. Assigning all
        variables at once would double the memory. So variables are assigned in portions of up to `_FEED_BYTES`.
        """
        for portion in _portions([v.nbytes for v in values]):
            feeds = {self.placed_graph.variables[i].value: values[i] for i in portion}
            self.session.run([self.placed_graph.variables[i].assign for i in portion], feeds)

    def call(self, inputs: Sequence[NDArray[np.generic]]) -> tuple[object, ...]:
        """Runs one step; the values of its outputs."""
        return self._run(inputs)

    def run_and_record_partition(self, inputs: Sequence[NDArray[np.generic]]) -> tuple[object, ...]:
        """Runs one step that records how TensorFlow partitioned the graph, for later traces. Returns the outputs.

        A worker that records its partition does so before it starts (`GraphMgr::ExecuteAsync`). The worker with the larger
        partition then starts later than in other steps, after its tensors were requested, so they leave at once instead of
        waiting until it has time. Such a step may use half the memory of others.
        """
        metadata = self._tf.RunMetadata()
        outputs = self._run(inputs, options=self._tf.RunOptions(output_partition_graphs=True), run_metadata=metadata)
        self._partition_graphs = list(metadata.partition_graphs)
        return outputs

    def trace(self, inputs: Sequence[NDArray[np.generic]]) -> tuple[tuple[object, ...], object]:
        """Runs one step under a full trace. Returns outputs and RunMetadata, including partition graphs."""
        divided_before = bool(self._partition_graphs)
        full = self._tf.RunOptions.FULL_TRACE
        options = self._tf.RunOptions(trace_level=full, output_partition_graphs=not divided_before)
        metadata = self._tf.RunMetadata()
        outputs = self._run(inputs, options=options, run_metadata=metadata)
        if divided_before:
            metadata.partition_graphs.extend(self._partition_graphs)
        self._partition_graphs = list(metadata.partition_graphs)
        return outputs, metadata

    def _run(self, inputs: Sequence[NDArray[np.generic]], **options: object) -> tuple[object, ...]:
        try:
            return tuple(self._call(*inputs, **options)[: len(self.placed_graph.fetches)])
        except self._tf.errors.OpError as error:
            if "does not have value" not in error.message:
                raise
            raise ExecutionError(
                "TensorFlow ended the step without having run all of it: ops of the placed graph wait for each other"
            ) from error

    def values(self) -> tuple[NDArray[np.generic], ...]:
        if not self.placed_graph.variables:
            return ()
        return tuple(np.asarray(value) for value in self.session.run([v.read for v in self.placed_graph.variables]))

    def close(self) -> None:
        self.session.close()


def _portions(sizes: Sequence[int]) -> list[list[int]]:
    """Groups consecutive indices into portions of at most `_FEED_BYTES`; a larger one is a portion of its own.

    >>> _portions([1, 2, 3]), _portions([])
    ([[0, 1, 2]], [])
    """
    portions: list[list[int]] = []
    remaining = 0
    for index, size in enumerate(sizes):
        if not portions or size > remaining:
            portions.append([])
            remaining = _FEED_BYTES
        portions[-1].append(index)
        remaining -= size
    return portions


def session_config(
    cpus: int = 1, *, soft: bool = False, threads: int | None = None, workers: Sequence[str] = ()
) -> ConfigProto:
    """Returns a ConfigProto that leaves the placed graph unchanged: no optimizer, no rewriter, no silent move.

    `cpus`: logical CPU devices. `threads`: ops that run at a time (default: one per CPU device), each with one thread.
    `soft`: ops without a kernel on their device go to the CPU. `workers`: the addresses of a cluster.
    """
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(allow_soft_placement=soft)
    config.device_count["CPU"] = cpus
    config.inter_op_parallelism_threads = threads or cpus
    config.intra_op_parallelism_threads = 1
    # Without it all sessions of a process have the pool of its first one. Servers have pools of their own.
    config.use_per_session_threads = not workers
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


def time_call(call: Callable[[], object]) -> tuple[Any, float]:
    """Returns the result of a call and the seconds it took."""
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start
