"""Programs of `torch.export` -> `Program`, from memory or from a `.pt2` file.

Calls run on meta tensors, so that operators that consist of others are counted by what these do (`kernels`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...graph.formats.reading import read, stem, with_file_name
from ...torch.runtime.tree import map_tensors, tensors
from ..programs.records import Program, check_named
from .collecting import WRAPPERS, Collector, OpenSizes, innermost, meta, without_gradients
from .exported_file import read_document, read_program


def program_of(source: Any, batch_size: int | None = None, sizes: Mapping[str, int] | None = None) -> Program:
    """The operators of an `ExportedProgram`, or of a `.pt2` file.

    Raises:
        FormatError, InvalidInput: see `bl.profile_program`.
    """
    if isinstance(source, torch.export.ExportedProgram):
        return _of_memory(source, batch_size, sizes or {})
    document = with_file_name(source, lambda: read_document(read(source)))
    return with_file_name(source, lambda: read_program(document, stem(source), batch_size, sizes or {}))


def _of_memory(program: Any, batch_size: int | None, sizes: Mapping[str, int]) -> Program:
    reader = _Reader(type(program.graph_module).__name__.lower(), OpenSizes(batch_size, sizes))
    signature, trained = program.graph_signature, {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            reader.input(node)
            trained[node.name] = getattr(node.meta.get("val"), "requires_grad", False)
    reader.read(program.graph_module)
    parameters = {name: trained[name] for name in signature.inputs_to_parameters}
    outputs = [reader.name_of(n) for node in program.graph.nodes if node.op == "output" for n in node.all_input_nodes]
    check_named(reader.open_sizes.sizes, reader.open_sizes.chosen)
    return reader.made.program(parameters | dict.fromkeys(signature.inputs_to_buffers, False), outputs)


def _is_item(node: Any) -> bool:
    return node.op == "call_function" and str(node.target).startswith("<built-in function getitem>")


class _Reader:
    """The graph of an `ExportedProgram`, and graphs within it, read."""

    def __init__(self, name: str, open_sizes: OpenSizes):
        self.made, self.open_sizes = Collector(name), open_sizes
        self.value: dict[Any, Any] = {}
        self.same: dict[Any, Any] = {}  # an input of a graph within the graph -> what is passed for it
        self.returned: dict[Any, list[Any]] = {}  # the call of such a graph -> what it returns
        self.prefix: dict[Any, str] = {}  # such a graph -> what the names of its values begin with
        self.detached = False

    def input(self, node: Any) -> None:
        """An input or a parameter."""
        self.value[node] = _tensors_of(node.meta.get("val"), node.name, self.open_sizes)
        self.made.size[node.name] = sum(t.numel() * t.element_size() for t in tensors(self.value[node]))

    def read(self, module: Any) -> None:
        """All calls of a graph."""
        for node in module.graph.nodes:
            if node.op != "call_function" or _is_item(node):
                continue
            if str(node.target).endswith(WRAPPERS):
                self._wrapped(node, module)
            else:
                self._call(node)

    def _wrapped(self, node: Any, module: Any) -> None:
        k = next(k for k, a in enumerate(node.args) if isinstance(a, torch.fx.Node) and a.op == "get_attr")
        inner = module.get_submodule(node.args[k].target)
        inputs = [n for n in inner.graph.nodes if n.op == "placeholder"]
        self.same.update(zip(inputs, node.args[k + 1 :], strict=True))
        self.prefix[inner.graph] = f"{self.name_of(node)}."
        outer = self.detached
        self.detached |= without_gradients(str(node.target), node.args)
        self.read(inner)
        self.detached = outer
        (end,) = (n for n in inner.graph.nodes if n.op == "output")
        self.returned[node] = list(end.args[0]) if isinstance(end.args[0], (list, tuple)) else [end.args[0]]

    def _call(self, node: Any) -> None:
        found = _tensors_of(node.meta.get("val"), node.name, self.open_sizes)
        self.value[node] = found
        if not list(tensors(found)):  # arithmetic of sizes
            return
        args, kwargs = torch.fx.node.map_aggregate((node.args, dict(node.kwargs)), self._argument)
        target = node.target if isinstance(node.target, torch._ops.OpOverload) else None
        name, several = self.name_of(node), isinstance(found, (list, tuple))
        made = {f"{name}.{k}" if several else name: t for k, t in enumerate(tensors(found))}
        reads = [self.name_of(n) for n in node.all_input_nodes]
        module = innermost(node.meta.get("nn_module_stack"))
        self.made.add(node.name, module, str(node.target), (target, args, kwargs), reads, made, self.detached)

    def _source(self, node: Any) -> Any:
        """The node that stands for the same value outside of graphs within the graph, or in them where they return it."""
        while True:
            if node in self.same:
                node = self.same[node]
            elif _is_item(node) and node.args[0] in self.returned:
                node = self.returned[node.args[0]][node.args[1]]
            elif node in self.returned:
                node = self.returned[node][0]
            else:
                return node

    def name_of(self, node: Any) -> str:
        """The value that a node stands for: an item of what another returned is named by its place there."""
        node = self._source(node)
        if _is_item(node):
            return f"{self.name_of(node.args[0])}.{node.args[1]}"
        return self.prefix.get(node.graph, "") + str(node.name)

    def _argument(self, found: Any) -> Any:
        """An argument of a call, for a call on meta tensors."""
        if isinstance(found, torch.fx.Node):
            return self._value_of(self._source(found))
        return torch.device("meta") if isinstance(found, torch.device) else found

    def _value_of(self, node: Any) -> Any:
        if node not in self.value:
            source = self._source(node.args[0]) if _is_item(node) else None
            self.value[node] = (
                self.value[source][node.args[1]]
                if source in self.value
                else _tensors_of(node.meta.get("val"), node.name, self.open_sizes)
            )
        return self.value[node]


def _tensors_of(found: Any, name: str, open_sizes: OpenSizes) -> Any:
    """Meta tensors in place of fake ones; whole numbers in place of symbols."""
    if isinstance(found, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return open_sizes.of(found, name, 1)
    return map_tensors(found, lambda t: meta([open_sizes.of(d, name, k) for k, d in enumerate(t.shape)], t.dtype))
