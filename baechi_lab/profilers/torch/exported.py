"""Programs of `torch.export` -> `Program`, from memory or from a `.pt2` file.

Calls run on meta tensors, so that operators that consist of others are counted by what these do (`kernels`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...graph.formats.reading import located, read, stem
from ...torch.runtime.tree import map_tensors, tensors
from ..programs.records import Program, check_named
from .collecting import Collector, OpenSizes, innermost, meta
from .exported_file import read_document, read_program


def program_of(source: Any, batch_size: int | None = None, sizes: Mapping[str, int] | None = None) -> Program:
    """The operators of an `ExportedProgram`, or of a `.pt2` file.

    Raises:
        FormatError, InvalidInput: see `bl.profile_program`.
    """
    if isinstance(source, torch.export.ExportedProgram):
        return _of_memory(source, batch_size, sizes or {})
    document = located(source, lambda: read_document(read(source)))
    found: Program = located(source, lambda: read_program(document, stem(source), batch_size, sizes or {}))
    return found


def _of_memory(program: Any, batch_size: int | None, sizes: Mapping[str, int]) -> Program:
    signature = program.graph_signature
    made = Collector(type(program.graph_module).__name__.lower())
    value: dict[Any, Any] = {}
    open_sizes = OpenSizes(batch_size, sizes)
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
    for node in inputs:
        value[node] = _tensors_of(node.meta.get("val"), node.name, open_sizes)
        made.size[node.name] = sum(t.numel() * t.element_size() for t in tensors(value[node]))
    for node in program.graph.nodes:
        if node.op == "get_attr" or (
            node.op == "call_function" and str(node.target).startswith("<built-in function getitem>")
        ):
            continue
        if node.op == "call_function":
            found = _tensors_of(node.meta.get("val"), node.name, open_sizes)
            value[node] = found
            if not list(tensors(found)):  # arithmetic of sizes
                continue
            args, kwargs = torch.fx.node.map_aggregate(
                (node.args, dict(node.kwargs)), lambda n: _argument(n, value, open_sizes)
            )
            target = node.target if isinstance(node.target, torch._ops.OpOverload) else None
            names = {
                f"{node.name}.{k}" if isinstance(found, (list, tuple)) else node.name: t
                for k, t in enumerate(tensors(found))
            }
            reads = [_name_of(n) for n in node.all_input_nodes]
            made.add(
                node.name,
                innermost(node.meta.get("nn_module_stack")),
                str(node.target),
                (target, args, kwargs),
                reads,
                names,
            )
    parameters = dict.fromkeys(signature.inputs_to_parameters, True) | dict.fromkeys(signature.inputs_to_buffers, False)
    outputs = [_name_of(n) for node in program.graph.nodes if node.op == "output" for n in node.all_input_nodes]
    check_named(open_sizes.sizes, open_sizes.chosen)
    return made.program(parameters, outputs)


def _name_of(node: Any) -> str:
    """The value that a node stands for: an item of what another returned is named by its place there."""
    if node.op == "call_function" and str(node.target).startswith("<built-in function getitem>"):
        return f"{_name_of(node.args[0])}.{node.args[1]}"
    return str(node.name)


def _argument(found: Any, value: dict[Any, Any], open_sizes: OpenSizes) -> Any:
    """An argument of a call, for a call on meta tensors."""
    if isinstance(found, torch.fx.Node):
        return _value_of(found, value, open_sizes)
    return torch.device("meta") if isinstance(found, torch.device) else found


def _value_of(node: Any, value: dict[Any, Any], open_sizes: OpenSizes) -> Any:
    if node not in value:
        source = node.args[0] if node.op == "call_function" else None
        value[node] = (
            value[source][node.args[1]] if source in value else _tensors_of(node.meta.get("val"), node.name, open_sizes)
        )
    return value[node]


def _tensors_of(found: Any, name: str, open_sizes: OpenSizes) -> Any:
    """Meta tensors in place of fake ones; whole numbers in place of symbols."""
    if isinstance(found, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return open_sizes.of(found, name, 1)
    return map_tensors(found, lambda t: meta([open_sizes.of(d, name, k) for k, d in enumerate(t.shape)], t.dtype))
