"""Optimizer state that is on a host between steps (`bl.offload(..., state=True)`), in a TensorFlow graph.

The variable itself is on the host. A step reads it there (`name/state`) and assigns the value to a temporary variable on the
device. Every op that read or wrote the original uses the temporary variable instead, so any optimizer updates it in place with
its own kernels. When all of these ops have ended, the value goes back into the variable on the host (`name/stored`), and the
temporary variable is destroyed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import InvalidInput
from ...graph import OpGraph, Placement
from ...memory_saving.offload import STATE, STORED, sent_tensor
from ...profilers.tensorflow.nodes import data_inputs, join

if TYPE_CHECKING:
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

DEVICE_VARIABLE, DEVICE_ASSIGN, DEVICE_READ, DEVICE_DESTROY = "/variable", "/assign", "/value", "/destroy"
"""Name suffixes of the ops on the temporary variable: its handle, its assignment, its read, its destruction."""


def state_ops(graph: OpGraph, kind: str = STATE) -> dict[str, int]:
    """Returns variable name -> the op of the graph that reads its value, or with `STORED` the op that writes it back.

    Raises `InvalidInput` if the variable is no op of the graph.

    >>> graph = OpGraph.from_edges([0, 0], names=["slot", "slot/state"], op_types=["VarHandleOp", "State"])
    >>> state_ops(graph)
    {'slot': 1}
    """
    op_of_variable = {}
    for op, op_type in enumerate(graph.op_types):
        if op_type == kind:
            name, _, suffix = graph.names[op].rpartition("/")
            if name not in graph.index or suffix.rstrip("'") != kind.lower():
                raise InvalidInput(
                    f"op {graph.names[op]!r} of graph {graph.name!r} keeps the state of no op of that graph; "
                    f"bl.offload names it NAME/{kind.lower()}"
                )
            op_of_variable[name] = op
    return op_of_variable


def returned_state_tensors(graph: OpGraph) -> dict[int, list[int]]:
    """Returns the tensors that carry offloaded state back to the host, by the op that uses the state."""
    returned_tensors: dict[int, list[int]] = {}
    store_ops = state_ops(graph, STORED)
    for name, op in state_ops(graph).items():
        for reader in graph.tensor_consumers(int(graph.output_ptr[op])).tolist() if name in store_ops else ():
            returned_tensors.setdefault(reader, []).append(sent_tensor(graph, store_ops[name]))
    return returned_tensors


def with_state_on_hosts(graph: OpGraph, placement: Placement) -> Placement:
    """Returns the placement with every offloaded variable on its host."""
    load_ops = state_ops(graph)
    if not load_ops:
        return placement
    device = placement.device.copy()
    device[[graph.index[name] for name in load_ops]] = device[list(load_ops.values())]
    return placement.replace(device=device)


def add_state_transfers(definition: GraphDef, graph: OpGraph, waits: dict[int, list[str]]) -> tuple[str, ...]:
    """Adds to a step's GraphDef the ops that read and write back the state that `graph` keeps on hosts.

    Args:
        definition: changed in place. Readers of such a variable use the temporary variable on the device.
        graph: its ops of types `State` and `Stored` name the variables.
        waits: the control inputs of each of these ops.

    Returns:
        Names of ops that a step must run besides its updates.

    Raises:
        InvalidInput: the state belongs to no variable, or is never written back.
    """
    nodes = {node.name: node for node in definition.node}
    readers: dict[str, list[NodeDef]] = {}
    for node in definition.node:
        for name in {name for name, output in data_inputs(node) if output == 0}:
            readers.setdefault(name, []).append(node)
    store_ops, roots = state_ops(graph, STORED), list[str]()
    for name, op in state_ops(graph).items():
        if name not in nodes or nodes[name].op != "VarHandleOp" or name not in store_ops:
            raise InvalidInput(
                f"op {name!r} of graph {graph.name!r} is no variable of the step; it has no state to lend"
            )
        store_op = store_ops[name]
        load_and_store = (graph.names[op], waits[op]), (graph.names[store_op], waits[store_op])
        roots += _use_temporary_variable(definition, nodes[name], readers.get(name, []), *load_and_store)
    return tuple(roots)


def _use_temporary_variable(
    definition: GraphDef,
    variable: NodeDef,
    readers: list[NodeDef],
    state: tuple[str, list[str]],
    store_op: tuple[str, list[str]],
) -> tuple[str, str]:
    """Redirects the readers of one variable. Returns the ops that write it back and destroy the temporary variable."""
    kind = variable.attr["dtype"].type

    def add(op: str, name: str, inputs: list[str]) -> str:
        node = definition.node.add(op=op, name=name)
        node.input.extend(dict.fromkeys(inputs))
        if op != "DestroyResourceOp":
            node.attr["dtype"].type = kind
        return name

    device_variable = add("VarHandleOp", f"{state[0]}{DEVICE_VARIABLE}", [])
    definition.node[-1].attr["shape"].CopyFrom(variable.attr["shape"])
    definition.node[-1].attr["shared_name"].s = device_variable.encode()
    host_value = add("ReadVariableOp", state[0], [variable.name, *state[1]])
    assign_op = add("AssignVariableOp", f"{state[0]}{DEVICE_ASSIGN}", [device_variable, host_value])
    for node in readers:
        references = [
            device_variable if reference in (variable.name, f"{variable.name}:0") else reference
            for reference in node.input
        ]
        del node.input[:]
        node.input.extend([*references, join(assign_op, -1)])
    ended_readers = [join(node.name, -1) for node in readers]
    current_value = add(
        "ReadVariableOp", f"{store_op[0]}{DEVICE_READ}", [device_variable, *store_op[1], *ended_readers]
    )
    destroy_op = add("DestroyResourceOp", f"{store_op[0]}{DEVICE_DESTROY}", [device_variable, join(current_value, -1)])
    return add("AssignVariableOp", store_op[0], [variable.name, current_value]), destroy_op
