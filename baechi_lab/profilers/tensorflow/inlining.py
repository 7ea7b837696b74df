"""Replaces function calls by the ops that they call; While, If and Case stay one op each.

TensorFlow's own graph rewriter does the inlining (its `function` optimizer, with all others switched off), as in
`convert_to_constants`. Cost: linear in the size of the inlined graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import InvalidInput

if TYPE_CHECKING:
    from tensorflow.core.framework.function_pb2 import FunctionDef
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

CALL_OPS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
CONTROL_FLOW_OPS = frozenset({"While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase"})


def calls(graph_def: GraphDef) -> list[NodeDef]:
    """Returns the top-level nodes that call a function of the library."""
    library = {f.signature.name for f in graph_def.library.function}
    return [n for n in graph_def.node if n.op in CALL_OPS or n.op in library]


def keep_control_flow(graph_def: GraphDef) -> None:
    """Marks loops and conditionals so that no later pass breaks them into Switch and Merge ops."""
    for node in graph_def.node:
        if node.op in CONTROL_FLOW_OPS and "_lower_using_switch_merge" in node.attr:
            node.attr["_lower_using_switch_merge"].b = False


def inline(graph_def: GraphDef, fetches: list[str]) -> GraphDef:
    """Returns a GraphDef without function calls at its top level that still computes every op of `fetches`.

    Ops of a body are named `<calling op>/<name in the body>`. A call named in `fetches` leaves an Identity op with its name.

    Raises:
        InvalidInput: TensorFlow cannot inline a function.
    """
    import tensorflow as tf
    from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, rewriter_config_pb2
    from tensorflow.python.grappler import tf_optimizer

    keep_control_flow(graph_def)
    for holder in (*graph_def.node, *graph_def.library.function):
        for attr in ("api_implements", "_XlaMustCompile", "_noinline"):
            if attr in holder.attr:
                del holder.attr[attr]
    if not calls(graph_def):
        return graph_def
    meta_graph = meta_graph_pb2.MetaGraphDef()
    meta_graph.graph_def.CopyFrom(graph_def)
    meta_graph.collection_def["train_op"].node_list.value.extend(fetches)
    config = config_pb2.ConfigProto()
    rewrite = config.graph_options.rewrite_options
    rewrite.min_graph_nodes = -1  # small graphs too
    rewrite.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
    rewrite.optimizers.append("function")
    rewrite.function_optimization = rewriter_config_pb2.RewriterConfig.AGGRESSIVE
    try:
        inlined_graph = tf_optimizer.OptimizeGraph(config, meta_graph)
    except (tf.errors.OpError, ValueError) as error:
        raise InvalidInput(f"the step's function calls cannot be inlined: {error}") from error
    keep_control_flow(inlined_graph)
    remaining_calls = calls(inlined_graph)
    if remaining_calls:
        raise InvalidInput(
            f"function called by op {remaining_calls[0].name!r} cannot be inlined; call plain Python functions in the step, "
            "or decorate only the outermost with tf.function"
        )
    return inlined_graph


def used_functions(graph_def: GraphDef, nodes: list[NodeDef]) -> list[FunctionDef]:
    """Returns the functions that `nodes` run, directly or through other functions, in the library's order."""
    library = {f.signature.name: f for f in graph_def.library.function}
    used: set[str] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        names = [node.op] if node.op in library else []
        for value in node.attr.values():
            names += [value.func.name] if value.HasField("func") else [f.name for f in value.list.func]
        for name in names:
            if name in library and name not in used:
                used.add(name)
                waiting.extend(library[name].node_def)
    return [f for f in graph_def.library.function if f.signature.name in used]
