"""Applies a recomputation or offloading plan (`bl.recompute`, `bl.offload`) to a traced step.

An op that the graph repeats has a copy under the graph's name. A copy has its original's type and attributes. It reads the
producers that the graph names (originals or other copies), and waits for ops by control dependencies as in the graph. An
output that the graph offloads passes an Identity op on the host, so TensorFlow sends it there and back. Optimizer state on
hosts is handled in `offloaded_state`. Nothing else changes. Sessions of placed steps run without graph rewriters, which would
otherwise remove copies as common subexpressions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import InvalidInput
from ...graph import Cluster, OpGraph, Placement, Step
from ...graph.arguments import refuse_replicas
from ...memory_saving.offload import OFFLOADED, STATE, STORED, sent_tensor
from ...profilers.tensorflow.nodes import has_side_effect, join, output_types, split
from ...profilers.tensorflow.prevent_fusion import prevent_fusion
from ..structure import graph_of
from .offloaded_state import add_state_transfers, with_state_on_hosts
from .session import PREFIX, parse_graph

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef

COPY_SUFFIX = "/again"

Origin = tuple[str, int | None]
"""An op of the step, and the output of it that is offloaded, if any."""


def step_to_run(
    step: Step, placement: Placement, graph: OpGraph | None, cluster: Cluster | None, caller: str
) -> tuple[Step, OpGraph, Placement]:
    """Returns the step, graph and placement that `caller` runs. The placement must be for `graph` (None: the step's own).

    Raises `InvalidInput`: replicas, a placement for another graph or for more devices, and what `recomputed_step` refuses.
    """
    refuse_replicas(placement, caller)
    graph = graph_of(step) if graph is None else graph
    step = recomputed_step(step, graph)
    op_placement = placement.on(graph) if cluster is None else placement.checked(graph, cluster.n)
    return step, graph, with_state_on_hosts(graph, op_placement)


def recomputed_step(step: Step, graph: OpGraph) -> Step:
    """Returns `step` with the copies and offloaded outputs of `graph`; the step itself if there are none.

    Raises:
        InvalidInput: a copied op is missing in the step or has side effects, or state belongs to no variable.
    """
    definition = parse_graph(step.graph_def)
    changed_nodes = (
        OFFLOADED in graph.op_types
        or STATE in graph.op_types
        or any(name.endswith(COPY_SUFFIX) for name in graph.names)
    )
    if not changed_nodes and graph.tensor_count <= graph_of(step).tensor_count:
        return step  # no copies and no further control dependencies
    nodes = {node.name: node for node in definition.node}
    origin = {name: _origin(graph, op, nodes) for op, name in enumerate(graph.names)}
    templates = {name: (nodes[name].op, list(nodes[name].input)) for name in nodes}
    inputs_of_load: dict[int, list[str]] = {}
    for op, name in enumerate(graph.names):
        first, output = origin[name]
        if name not in nodes and graph.op_types[op] in (STATE, STORED):
            inputs_of_load[op] = _inputs(graph, op, [], origin)
            continue
        if output is not None:
            target = definition.node.add(name=name, op="Identity")
            target.attr["T"].type = output_types(nodes[first])[output]
            target.input.extend(_inputs(graph, op, [join(first, output)], origin))
            continue
        if name not in nodes:
            if has_side_effect(nodes[first].op):
                raise InvalidInput(
                    f"op {first!r} of type {nodes[first].op} has side effects; it cannot be computed again"
                )
            target = definition.node.add()
            target.CopyFrom(nodes[first])
            target.name = name
            target.attr.pop("_class", None)
        else:
            target = nodes[name]
        if target.op == "VarHandleOp":
            continue  # setting a variable between steps must not wait for ops of a step
        del target.input[:]
        target.input.extend(_inputs(graph, op, templates[first][1], origin))
    updates = (*step.updates, *add_state_transfers(definition, graph, inputs_of_load))
    prevent_fusion(definition, f"{PREFIX}/apart")
    return replace(step, updates=updates, graph_def=definition.SerializeToString(deterministic=True))


def _origin(graph: OpGraph, op: int, nodes: dict[str, NodeDef]) -> Origin:
    """Returns the op of the step that an op of the graph is, repeats, or offloads an output of."""
    name, kind = graph.names[op], graph.op_types[op]
    if name not in nodes and kind == OFFLOADED:
        tensor = sent_tensor(graph, op)
        return _origin(graph, int(graph.tensor_producer[tensor]), nodes)[0], int(graph.tensor_names[tensor])
    if name not in nodes and kind in (STATE, STORED):
        return name, None
    while graph.names[op] not in nodes:
        before = int(graph.forward_of[op])
        if before < 0 or not graph.names[op].startswith(graph.names[before] + COPY_SUFFIX):
            raise InvalidInput(f"op {name!r} of graph {graph.name!r} is no op of the step, and no copy of one")
        op = before
    return graph.names[op], None


def _inputs(graph: OpGraph, op: int, template: Iterable[str], origin: dict[str, Origin]) -> list[str]:
    """Returns the data and control inputs of an op: as in the step, but from the producers in the graph."""
    pointer, tensors = graph.inputs
    read = [
        (graph.names[int(graph.tensor_producer[t])], graph.tensor_names[t])
        for t in tensors[pointer[op] : pointer[op + 1]].tolist()
    ]
    source: dict[tuple[str, str], str] = {}
    for producer, label in read:
        first, output = origin[producer]
        output_label = label if output is None else str(output)
        if label.isdigit():
            source[first, output_label] = join(producer, int(label))
    data, waits = [], []
    for reference in template:
        name, output = split(reference)
        if output < 0:
            waits.append(name)
        else:
            data.append(source.get((name, str(output)), reference))
    waits += [producer for producer, label in read if not label.isdigit()]
    return [*data, *(join(name, -1) for name in dict.fromkeys(waits))]
