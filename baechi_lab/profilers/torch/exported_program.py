"""Reads programs of `torch.export` as `Program`, from memory or from a `.pt2` file.

Calls run on meta tensors, so that composite operators are counted by the operators that they run (`kernels`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...graph.formats.reading import read_bytes, stem, with_file_name
from ...torch_runtime.tree import map_tensors, tensors
from ..precision import Precision
from ..programs.records import Program
from .exported_file import read_document, read_program
from .fake_tensors import named_dtype
from .program_builder import WRAPPERS, OpenSizes, ProgramBuilder, innermost, without_gradients


def program_of(
    source: Any,
    batch_size: int | None = None,
    sizes: Mapping[str, int] | None = None,
    precision: Precision | None = None,
    on_cpu: bool = False,
) -> Program:
    """Reads the operators of an `ExportedProgram` or a `.pt2` file, with the floating-point types that `precision` chooses.

    `on_cpu`: its calls run as on a CPU, not as on a GPU.

    Raises:
        FormatError, InvalidInput: see `bl.profile_program`.
    """
    open_sizes = OpenSizes(batch_size, sizes or {}, named_dtype(precision and precision.dtype))
    if isinstance(source, torch.export.ExportedProgram):
        reader = _Reader(type(source.graph_module).__name__.lower(), open_sizes, on_cpu)
        signature, is_trained = source.graph_signature, {}
        for node in source.graph.nodes:
            if node.op == "placeholder":
                reader.input(node)
                is_trained[node.name] = getattr(node.meta.get("val"), "requires_grad", False)
        reader.read(source.graph_module)
        parameters = {name: is_trained[name] for name in signature.inputs_to_parameters}
        output_nodes = (node for node in source.graph.nodes if node.op == "output")
        outputs = [reader.name_of(node) for end in output_nodes for node in end.all_input_nodes]
        reader.open_sizes.check()
        return reader.builder.program(parameters | dict.fromkeys(signature.inputs_to_buffers, False), outputs)
    document = with_file_name(source, lambda: read_document(read_bytes(source)))
    return with_file_name(source, lambda: read_program(document, stem(source), open_sizes, on_cpu))


def _is_item(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and str(node.target).startswith("<built-in function getitem>")


class _Reader:
    """Reads the graph of an `ExportedProgram` and its nested graphs."""

    def __init__(self, name: str, open_sizes: OpenSizes, on_cpu: bool):
        self.builder, self.open_sizes = ProgramBuilder(name, on_cpu), open_sizes
        self.value: dict[torch.fx.Node, Any] = {}
        # input of a nested graph -> the argument passed for it
        self.passed_for: dict[torch.fx.Node, torch.fx.Node] = {}
        self.returned: dict[torch.fx.Node, list[torch.fx.Node]] = {}  # call of a nested graph -> what it returns
        self.prefix: dict[torch.fx.Graph, str] = {}  # nested graph -> prefix of the names of its values
        self.is_detached = False

    def input(self, node: torch.fx.Node) -> None:
        """Reads an input of the program as meta tensors."""
        self.value[node] = _as_meta_tensors(node.meta.get("val"), node.name, self.open_sizes)
        self.builder.size[node.name] = sum(t.numel() * t.element_size() for t in tensors(self.value[node]))

    def read(self, module: torch.fx.GraphModule) -> None:
        """Adds the operators of a graph, and those of its nested graphs where they are called."""
        for node in module.graph.nodes:
            if node.op != "call_function" or _is_item(node):
                continue
            if str(node.target).endswith(WRAPPERS):
                k = next(k for k, a in enumerate(node.args) if isinstance(a, torch.fx.Node) and a.op == "get_attr")
                inner = module.get_submodule(node.args[k].target)
                inputs = [n for n in inner.graph.nodes if n.op == "placeholder"]
                self.passed_for.update(zip(inputs, node.args[k + 1 :], strict=True))
                self.prefix[inner.graph] = f"{self.name_of(node)}."
                outer = self.is_detached
                self.is_detached |= without_gradients(str(node.target), node.args)
                self.read(inner)
                self.is_detached = outer
                (end,) = (n for n in inner.graph.nodes if n.op == "output")
                self.returned[node] = list(end.args[0]) if isinstance(end.args[0], (list, tuple)) else [end.args[0]]
            else:
                self._call(node)

    def _call(self, node: torch.fx.Node) -> None:
        value = _as_meta_tensors(node.meta.get("val"), node.name, self.open_sizes)
        self.value[node] = value
        if not list(tensors(value)):  # arithmetic of sizes
            return
        args, kwargs = torch.fx.node.map_aggregate((node.args, dict(node.kwargs)), self._argument)
        target = node.target if isinstance(node.target, torch._ops.OpOverload) else None
        name, is_sequence = self.name_of(node), isinstance(value, (list, tuple))
        outputs = {f"{name}.{k}" if is_sequence else name: t for k, t in enumerate(tensors(value))}
        reads = {self.name_of(n): self._argument(n) for n in node.all_input_nodes}
        module = innermost(node.meta.get("nn_module_stack"))
        self.builder.add(node.name, module, str(node.target), (target, args, kwargs), reads, outputs, self.is_detached)

    def _source(self, node: torch.fx.Node) -> torch.fx.Node:
        """Returns the node of the same value outside nested graphs, or in the nested graph that returns it."""
        while True:
            if node in self.passed_for:
                node = self.passed_for[node]
            elif _is_item(node) and node.args[0] in self.returned:
                node = self.returned[node.args[0]][node.args[1]]
            elif node in self.returned:
                node = self.returned[node][0]
            else:
                return node

    def name_of(self, node: torch.fx.Node) -> str:
        """Returns the name of a node's value; an item of a result is named by its position in it."""
        node = self._source(node)
        if _is_item(node):
            return f"{self.name_of(node.args[0])}.{node.args[1]}"
        return self.prefix.get(node.graph, "") + str(node.name)

    def _argument(self, argument: object) -> Any:
        if isinstance(argument, torch.fx.Node):
            node = self._source(argument)
            if node not in self.value:
                source = self._source(node.args[0]) if _is_item(node) else None
                if source in self.value:
                    self.value[node] = self.value[source][node.args[1]]
                else:
                    self.value[node] = _as_meta_tensors(node.meta.get("val"), node.name, self.open_sizes)
            return self.value[node]
        return torch.device("meta") if isinstance(argument, torch.device) else argument


def _as_meta_tensors(value: object, name: str, open_sizes: OpenSizes) -> Any:
    """Replaces fake tensors by meta tensors and symbols by whole numbers."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return open_sizes.of(value, name, 1)
    return map_tensors(
        value, lambda t: open_sizes.meta([open_sizes.of(d, name, k) for k, d in enumerate(t.shape)], t.dtype)
    )
