"""Bytes that lists of tensors hold, and that a loop holds in one iteration.

TensorFlow's loops keep what their gradients read in lists, one item per iteration; TensorArrays are lists, too. A list is one
tensor of the graph, of a type without a size, and no trace has records of what is allocated inside a loop. So the bytes are
counted from the bodies. The lists of a loop share items with each other and with variables: an item counts once, with a list
that the gradient reads; a variable or an argument that does not change counts with its owner. An item of a list that is
passed in counts again, because it stays when that list is released. O(ops of the bodies).
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ...graph.kernels.csr import Ints
from .function_bodies import Library, returned_reference, tensor_specs
from .nodes import HANDLE_BYTES, VIEWS, bytes_per_element
from .recurrent_layers import is_fused

if TYPE_CHECKING:
    from tensorflow.core.framework.function_pb2 import FunctionDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef

    from .structure import Structure

_OWNED_ELSEWHERE = frozenset({"ReadVariableOp", "Const"})
_TAKES_ITEM = frozenset({"TensorListGetItem", "TensorListPopBack"})
_COPIES = frozenset({"TensorListFromTensor", "TensorListScatter", "TensorListScatterV2", "TensorListSplit"})
"""Ops that make a list as large as their first input."""


def count_lists(structure: Structure) -> tuple[dict[int, int], Ints]:
    """Returns list -> bytes, and int64[ops], the most bytes that one iteration of a loop holds besides lists and arguments.

    Lists are tensors of the structure, and bytes are those of items that no other list, variable or tensor holds.
    """
    library = Library(structure.graph_def)
    sizes: dict[int, int] = {}
    unchanged_lists: dict[int, int] = {}  # lists that loops hand on as they are
    iteration_bytes = np.zeros(structure.n, dtype=np.int64)
    for i, node in enumerate(structure.nodes):
        outputs, inputs = structure.output_tensors[i], structure.data_inputs[i]
        if node.op in _COPIES:
            sizes[outputs[0]] = int(structure.tensor_bytes[inputs[0]])
        elif node.op == "ZerosLike" and (inputs[0] in sizes or inputs[0] in unchanged_lists):
            sizes[outputs[0]] = sizes.get(inputs[0], unchanged_lists.get(inputs[0], 0))
        elif node.op.endswith("While") and library.has_body(node):
            body = _Body(library.functions[node.attr["body"].func.name], is_fused(node))
            bytes_by_argument = body.list_bytes(library.iterations(node) or 1)
            sizes.update((outputs[k], bytes_by_argument[k]) for k in bytes_by_argument)
            unchanged_lists.update(
                (outputs[k], sizes[t]) for k, t in enumerate(inputs) if t in sizes and body.hands_on(k)
            )
            iteration_bytes[i] = body.iteration_bytes()
    return sizes, iteration_bytes


class _Body:
    """The body of a loop; built and used once."""

    def __init__(self, function: FunctionDef, is_fused: bool) -> None:
        self.function = function
        self.fused = is_fused  # one kernel, which reads weights once and holds no copies of them
        self.nodes = {node.name: node for node in function.node_def}
        self.specs = tensor_specs(function)
        self.arguments = {argument.name: k for k, argument in enumerate(function.signature.input_arg)}

    def list_bytes(self, iterations: int) -> dict[int, int]:
        """Returns the bytes of the items that each list gets in all iterations, by its position among the arguments."""
        items = {k: item for name, k in self.arguments.items() if (item := self._item(name, k)) is not None}
        visited: set[str] = set()
        bytes_by_argument = {}
        for k in sorted(items, key=lambda k: items[k][1]):
            reference, _, times = items[k]
            bytes_by_argument[k] = HANDLE_BYTES
            owner = self._owner(reference)
            if owner is not None and owner not in visited:
                visited.add(owner)
                bytes_by_argument[k] = self._bytes(reference) * (iterations if times is None else times)
        return bytes_by_argument

    def hands_on(self, k: int) -> bool:
        """Whether no iteration changes an argument."""
        return self._source(returned_reference(self.function, k)) == self.function.signature.input_arg[k].name

    def _item(self, name: str, k: int) -> tuple[str, bool, int | None] | None:
        """Returns what each iteration adds to a list, whether it sets an item of an array, and how many items there are."""
        at = self._source(returned_reference(self.function, k))
        node = self.nodes.get(at.split(":")[0])
        if node is None or node.op not in ("TensorListPushBack", "TensorListSetItem"):
            return None
        if self._source(node.input[0]) != name:
            return None
        is_array = node.op == "TensorListSetItem"
        index = self.nodes.get(self._source(node.input[1]).split(":")[0]) if is_array else None
        times = 1 if index is not None and index.op == "Const" else None
        return node.input[2 if is_array else 1], is_array, times

    def _source(self, reference: str) -> str:
        """Returns the reference whose memory a reference has."""
        node = self.nodes.get(reference.split(":")[0])
        return self._source(node.input[0]) if node is not None and node.op in VIEWS and node.input else reference

    def _owner(self, reference: str) -> str | None:
        """Returns what made an item; None if something else holds its memory. A state is an output of the iteration before."""
        source = self._source(reference)
        if source in self.arguments:
            before = self._source(returned_reference(self.function, self.arguments[source]))
            return None if before == source else before
        node = self.nodes[source.split(":")[0]]
        if node.op in _OWNED_ELSEWHERE or (self.fused and node.op == "Cast"):
            return None
        return source

    def _bytes(self, reference: str) -> int:
        shape, dtype = self.specs.get(reference, ((), 0))
        return prod(shape) * bytes_per_element().get(dtype, 0)

    def iteration_bytes(self) -> int:
        """Returns the most live bytes of one iteration, in the order of the body's ops; items of lists are not counted."""
        last: dict[str, int] = {}
        for position, node in enumerate(self.function.node_def):
            last.update((self._source(r), position) for r in node.input if not r.startswith("^"))
        released_bytes: list[int] = [0] * (len(self.function.node_def) + 1)
        alive = peak = 0
        for position, node in enumerate(self.function.node_def):
            for reference in self._outputs(node):
                size = self._bytes(reference)
                alive += size
                released_bytes[max(last.get(reference, position), position)] += size
            peak = max(peak, alive)
            alive -= released_bytes[position]
        return peak

    def _outputs(self, node: NodeDef) -> list[str]:
        """Returns the outputs of an op that have memory of their own."""
        if node.op in VIEWS or node.op in _OWNED_ELSEWHERE or node.op in _TAKES_ITEM:
            return []
        return [reference for reference in self.specs if reference.startswith(node.name + ":")]
