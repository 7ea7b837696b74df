"""Optimizer state that lies on a host between steps (`bl.offload(..., state=True)`), as TensorFlow runs it.

The variable itself is on the host. A step reads it there (`name/state`) and keeps what it read in a variable of the device's
own, which every op that wrote or read the variable takes instead: any optimizer runs on it, in place, with its own kernels.
When all of them have ended, the value goes back into the variable on the host (`name/stored`), and the device's is destroyed.
"""

from __future__ import annotations

from typing import Any

from ...errors import InvalidInput
from ...graph import OpGraph, Placement
from ...memory_saving.offload import STATE, STORED, sent_tensor
from ...profilers.tensorflow.nodes import data_inputs, join

HERE, PUT, GOT, GONE = "/here", "/put", "/got", "/gone"
"""Ends of the names of what is added to a step: the device's variable, its assignment, its value, its end."""


def state_ops(graph: OpGraph, kind: str = STATE) -> dict[str, int]:
    """Name of the variable -> the op of the graph that lends its value, or with `STORED` the one that stores it.

    Raises `InvalidInput` for one that names no op of the graph.

    >>> graph = OpGraph.from_edges([0, 0], names=["slot", "slot/state"], op_types=["VarHandleOp", "State"])
    >>> state_ops(graph)
    {'slot': 1}
    """
    found = {}
    for op, op_type in enumerate(graph.op_types):
        if op_type == kind:
            name, _, part = graph.names[op].rpartition("/")
            if name not in graph.index or part.rstrip("'") != kind.lower():
                raise InvalidInput(
                    f"op {graph.names[op]!r} of graph {graph.name!r} keeps the state of no op of that graph; "
                    f"bl.offload names it NAME/{kind.lower()}"
                )
            found[name] = op
    return found


def values_given_back(graph: OpGraph) -> dict[int, list[int]]:
    """Op that takes variables whose state a host lends -> the tensors in which their values go back."""
    found: dict[int, list[int]] = {}
    stored = state_ops(graph, STORED)
    for name, op in state_ops(graph).items():
        for reader in graph.tensor_consumers(int(graph.output_ptr[op])).tolist() if name in stored else ():
            found.setdefault(reader, []).append(sent_tensor(graph, stored[name]))
    return found


def with_state_on_hosts(graph: OpGraph, placement: Placement) -> Placement:
    """The placement with every variable where its state is between steps."""
    lent = state_ops(graph)
    if not lent:
        return placement
    device = placement.device.copy()
    device[[graph.index[name] for name in lent]] = device[list(lent.values())]
    return placement.replace(device=device)


def lend_state(definition: Any, graph: OpGraph, waits: dict[int, list[str]]) -> tuple[str, ...]:
    """Add to a step's GraphDef what lends and stores the state that `graph` has on hosts.

    Args:
        definition: is changed in place; a reader of such a variable takes the device's own instead.
        graph: says which, by ops of types `State` and `Stored`.
        waits: what each of these ops waits for, as control inputs.

    Returns:
        Names of ops that a step must run beside its updates.

    Raises:
        InvalidInput: state of what is no variable, or that is lent and never stored.
    """
    nodes = {node.name: node for node in definition.node}
    readers: dict[str, list[Any]] = {}
    for node in definition.node:
        for name in {name for name, output in data_inputs(node) if output == 0}:
            readers.setdefault(name, []).append(node)
    stored, roots = state_ops(graph, STORED), list[str]()
    for name, op in state_ops(graph).items():
        if name not in nodes or nodes[name].op != "VarHandleOp" or name not in stored:
            raise InvalidInput(
                f"op {name!r} of graph {graph.name!r} is no variable of the step; it has no state to lend"
            )
        back = stored[name]
        there = (graph.names[op], waits[op]), (graph.names[back], waits[back])
        roots += _lent(definition, nodes[name], readers.get(name, []), *there)
    return tuple(roots)


def _lent(
    definition: Any, variable: Any, readers: list[Any], state: tuple[str, list[str]], stored: tuple[str, list[str]]
) -> tuple[str, str]:
    """One variable lent to its readers; names of the ops that store it and that end the device's copy."""
    kind = variable.attr["dtype"].type

    def add(op: str, name: str, inputs: list[str]) -> str:
        node = definition.node.add(op=op, name=name)
        node.input.extend(dict.fromkeys(inputs))
        if op != "DestroyResourceOp":
            node.attr["dtype"].type = kind
        return name

    here = add("VarHandleOp", f"{state[0]}{HERE}", [])
    definition.node[-1].attr["shape"].CopyFrom(variable.attr["shape"])
    definition.node[-1].attr["shared_name"].s = here.encode()
    lent = add("ReadVariableOp", state[0], [variable.name, *state[1]])
    put = add("AssignVariableOp", f"{state[0]}{PUT}", [here, lent])
    for node in readers:
        given = [here if reference in (variable.name, f"{variable.name}:0") else reference for reference in node.input]
        del node.input[:]
        node.input.extend([*given, join(put, -1)])
    ended = [join(node.name, -1) for node in readers]
    got = add("ReadVariableOp", f"{stored[0]}{GOT}", [here, *stored[1], *ended])
    gone = add("DestroyResourceOp", f"{stored[0]}{GONE}", [here, join(got, -1)])
    return add("AssignVariableOp", stored[0], [variable.name, got]), gone
