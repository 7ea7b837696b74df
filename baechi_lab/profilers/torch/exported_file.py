"""Reads the JSON in a `.pt2` file of `torch.export` as `Program`.

`torch.export.load` reads weights, constants and sample inputs that may be pickles, which can run any code. An estimate needs
none of them, so only `models/*.json` of the archive is read here: operators, their arguments, and shape and type of every
tensor.

Sizes that torch writes as expressions of symbols (`2*s0 + 1`, `Mul(Integer(2), Symbol('s0'))`) are evaluated.
"""

from __future__ import annotations

import ast
import io
import operator
import zipfile
import zlib
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import torch

from ...errors import FormatError, in_short
from ...graph.formats.reading import MOST_FILE_BYTES, parse
from ..programs.records import Program
from .program_builder import WRAPPERS, OpenSizes, ProgramBuilder, innermost, without_gradients

_OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CALLS: dict[str, Callable[..., int]] = {
    "Add": lambda *x: sum(x),
    "Mul": lambda *x: prod(x),
    "Integer": lambda x: x,
    "Max": max,
    "Min": min,
    "Mod": operator.mod,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "PythonMod": operator.mod,
}


def evaluate_size(text: str, size_of: Callable[[str], int]) -> int:
    """Evaluates an expression; `size_of` returns the value of a symbol.

    Raises:
        FormatError: the text has anything but symbols, whole numbers and arithmetic.

    >>> evaluate_size("2*s0 + 1", {"s0": 4}.get), evaluate_size("Mul(Integer(2), Symbol('s1', positive=True))", {"s1": 3}.get)
    (9, 6)
    """
    try:
        return _value(ast.parse(text[:2000], mode="eval").body, size_of)
    except (SyntaxError, TypeError, ZeroDivisionError, RecursionError, MemoryError, KeyError) as error:
        raise FormatError(f"the size {text!r:.80} is no expression of symbols that is read") from error


def _value(node: ast.AST, size_of: Callable[[str], int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return size_of(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, size_of)
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, size_of), _value(node.right, size_of))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id == "Symbol" and node.args and isinstance(node.args[0], ast.Constant):
            return size_of(str(node.args[0].value))
        return _CALLS[node.func.id](*(_value(a, size_of) for a in node.args))
    raise TypeError(ast.dump(node)[:60])


SCHEMA_VERSIONS = range(7, 9)
"""Supported major versions of the program's schema."""

ARCHIVE_VERSIONS = (b"0",)
"""Supported layouts of the files in the archive."""

# torch._export.serde.schema: ScalarType
_TYPES = (
    None,
    *"uint8 int8 int16 int32 int64 float16 float32 float64 complex32 complex64 complex128 bool bfloat16".split(),
)
_MOST_ELEMENTS = 2**48  # of a tensor; a larger one is an error in the file


def _operator(target: str) -> Any:
    """Returns the operator of a name like `torch.ops.aten.mm.default`, or None if it is not an operator of torch."""
    path = target.removeprefix("torch.ops.").split(".")
    if len(path) != 3 or path[0] not in ("aten", "prims"):
        return None
    packet = getattr(getattr(torch.ops, path[0]), path[1], None)
    return getattr(packet, path[2], None)


def read_document(data: bytes) -> object:
    """Reads the JSON of the program in an archive.

    Raises:
        FormatError: `data` is not an archive, is cut off or has another version, or does not hold exactly one program.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            # Archives of PyTorch before 2.8 do not state their version.
            for name in archive.namelist():
                if name.rpartition("/")[2] == "archive_version":
                    with archive.open(name) as stream:
                        version = stream.read(20).strip()
                    if version not in ARCHIVE_VERSIONS:
                        raise FormatError(f"archive_version is {version.decode(errors='replace')!r}; version 0 is read")
            names = [n for n in archive.namelist() if "/models/" in n and n.endswith(".json")]
            earlier_name = "serialized_exported_program.json"
            names = names or [n for n in archive.namelist() if n.rpartition("/")[2] == earlier_name]
            if len(names) != 1:
                raise FormatError(f"holds {len(names)} programs of torch.export; it must hold one (is it cut off?)")
            if archive.getinfo(names[0]).file_size > MOST_FILE_BYTES:
                raise FormatError(f"the program is larger than {MOST_FILE_BYTES} bytes")
            with archive.open(names[0]) as stream:
                return parse(stream.read(MOST_FILE_BYTES))
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError("not an archive of torch.export (.pt2), or cut off") from error
    except zlib.error as error:
        raise FormatError("the archive is damaged") from error


def read_program(document: Any, name: str, open_sizes: OpenSizes, on_cpu: bool = False) -> Program:
    """Reads the program in a document; `on_cpu` as in `program_of`.

    Raises:
        FormatError: the version is not supported, or the program is damaged.
        InvalidInput: an open dimension has no size.
    """
    version = document.get("schema_version") if isinstance(document, dict) else None
    major = version.get("major") if isinstance(version, dict) else None
    if major not in SCHEMA_VERSIONS:
        raise FormatError(
            f"schema_version is {in_short(version, 80)}; versions {SCHEMA_VERSIONS[0]} to {SCHEMA_VERSIONS[-1]} of torch.export "
            "are read"
        )
    try:
        module = document["graph_module"]
        program = _Reader(module["graph"], name, open_sizes, on_cpu).program(module["signature"])
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise FormatError(f"the program is damaged: {type(error).__name__} at {str(error)!r:.80}") from error
    open_sizes.check()
    return program


def _entry(argument: object) -> tuple[str, Any]:
    """Returns kind and value of an argument, which is an object of one field."""
    if not isinstance(argument, dict) or len(argument) != 1:
        raise FormatError(f"the program is damaged: an argument is {in_short(argument, 80)}; it must have one field")
    return next(iter(argument.items()))


def _label(tensor: Any) -> str:
    if not isinstance(tensor["name"], str):
        raise FormatError(
            f"the program is damaged: a tensor is named {in_short(tensor['name'], 80)}; it must be a text"
        )
    return tensor["name"]


def _tensors_in(argument: object) -> Iterator[object]:
    """Yields the tensors in an argument, as they are written there."""
    kind, value = _entry(argument)
    if kind == "as_tensor":
        yield value
    elif kind == "as_tensors":
        yield from value
    elif kind == "as_optional_tensors":
        yield from (entry["as_tensor"] for entry in value if "as_tensor" in entry)


class _Reader:
    """Reads the JSON of a graph."""

    def __init__(self, graph: Any, name: str, open_sizes: OpenSizes, on_cpu: bool):
        self.graph, self.open_sizes = graph, open_sizes
        self.builder = ProgramBuilder(name, on_cpu)
        self.value: dict[str, torch.Tensor] = {}
        self.tensor_values: dict[str, Any] = {}
        self.symbols: dict[str, Any] = {}
        self.alias: dict[str, str] = {}  # names in a nested graph, and what it returns -> values outside
        self.prefix, self.is_detached = "", False
        self._add_values(graph)

    def program(self, signature: Any) -> Program:
        """Reads the whole graph; `signature` says which inputs are parameters, buffers and constants."""
        parameters = {}
        for spec in signature["input_specs"]:
            for kind, is_trained in (("parameter", True), ("buffer", False), ("tensor_constant", False)):
                if kind in spec:
                    label = _label(spec[kind]["arg"])
                    parameters[label] = is_trained and self.tensor_values[label]["requires_grad"] is True
        # Inputs first: their open dimensions have positions; those of inner values have only names.
        for entry in self.graph["inputs"]:
            for label in self.labels(entry):
                self.tensor(label)
        for node in self.graph["nodes"]:
            self.call(node)
        outputs = [label for entry in self.graph["outputs"] for label in self.labels(entry)]
        return self.builder.program(parameters, outputs)

    def _add_values(self, graph: Any) -> None:
        """Adds the descriptions of a graph's tensors, and its symbols, to those that are known."""
        for label, description in graph["tensor_values"].items():
            self.tensor_values.setdefault(self._value_name(label), description)
        self.symbols = {**self.symbols, **graph.get("sym_int_values", {})}

    def _value_name(self, label: str) -> str:
        """Returns the value that a name refers to in the current graph."""
        return self.alias.get(self.prefix + label, self.prefix + label)

    def call(self, node: Any) -> None:
        """Adds the op of a node, or the ops of the graph that it wraps."""
        target = str(node["target"])
        if target.endswith(WRAPPERS):
            # The operators of a nested graph are read as those of the graph itself.
            arguments = [_entry(entry["arg"]) for entry in node["inputs"]]
            k = next(k for k, (kind, _) in enumerate(arguments) if kind == "as_graph")
            inner = arguments[k][1]["graph"]
            argument_labels = [label for entry in node["inputs"][k + 1 :] for label in self.labels(entry["arg"])]
            output_labels = [self.prefix + _label(value) for entry in node["outputs"] for value in _tensors_in(entry)]
            outer = self.prefix, self.is_detached
            self.is_detached |= without_gradients(str(node["target"]), [value for _, value in arguments])
            self.prefix += f"{node.get('name') or output_labels[0]}."
            names = [self.prefix + _label(value) for entry in inner["inputs"] for value in _tensors_in(entry)]
            self.alias.update(zip(names, argument_labels, strict=True))
            self._add_values(inner)
            for call in inner["nodes"]:
                self.call(call)
            inner_labels = [label for entry in inner["outputs"] for label in self.labels(entry)]
            self.alias.update(zip(output_labels, inner_labels, strict=True))
            self.prefix, self.is_detached = outer
            return
        func = _operator(target)
        keyword_only = {a.name: a.kwarg_only for a in func._schema.arguments} if func is not None else {}
        args, kwargs = [], {}
        reads: dict[str, torch.Tensor] = {}
        for entry in node["inputs"]:
            reads |= {label: self.tensor(label) for label in self.labels(entry["arg"])}
            if keyword_only.get(entry["name"], False):
                kwargs[entry["name"]] = self.argument(entry["arg"])
            else:
                args.append(self.argument(entry["arg"]))
        labels = [label for entry in node["outputs"] for label in self.labels(entry)]
        if target.endswith("getitem>") or (not labels and not reads):
            return
        outputs = {label: self.tensor(label) for label in labels}
        op_name = str(node.get("name") or (labels[0] if labels else target.split(".")[-2]))
        module = innermost((node.get("metadata") or {}).get("nn_module_stack"))
        self.builder.add(op_name, module, target, (func, args, kwargs), reads, outputs, self.is_detached)

    def tensor(self, label: str) -> torch.Tensor:
        """Returns a meta tensor with the shape and type that the graph stores for a value."""
        if label not in self.value:
            description = self.tensor_values[label]
            number = description["dtype"]
            if type(number) is not int or not 0 < number < len(_TYPES):
                raise FormatError(f"value {label!r:.80} has the data type {in_short(number, 40)}, which is not known")
            shape = [self.size(d, label, k) for k, d in enumerate(description["sizes"])]
            elements = 1
            for d in shape:
                elements *= d
            if any(d < 0 for d in shape) or elements > _MOST_ELEMENTS:
                raise FormatError(f"value {label!r:.80} has the shape {in_short(shape, 120)}; no tensor has it")
            self.value[label] = self.open_sizes.meta(shape, getattr(torch, _TYPES[number]))  # type: ignore[arg-type]
            self.builder.size[label] = self.value[label].numel() * self.value[label].element_size()
        return self.value[label]

    def size(self, entry: Any, label: str, position: int) -> int:
        """Returns a size, which is a whole number or an expression of symbols."""
        if "as_int" in entry:
            if type(entry["as_int"]) is not int:
                raise FormatError(f"value {label!r:.80} has the size {in_short(entry['as_int'], 40)}")
            return int(entry["as_int"])
        return self.expression(str((entry.get("as_expr") or {}).get("expr_str", "?")), label, position)

    def expression(self, text: str, label: str, position: int) -> int:
        """Evaluates an expression such as `2*s0`; only symbols, numbers and arithmetic are allowed."""
        return evaluate_size(text, lambda symbol: self.open_sizes.symbol(symbol, label, position))

    def labels(self, argument: object) -> Iterator[str]:
        """Yields the names of the values that are tensors of an argument."""
        for value in _tensors_in(argument):
            yield self._value_name(_label(value))

    def argument(self, argument: object) -> object:
        """Returns an argument as the operator takes it, with meta tensors."""
        kind, value = _entry(argument)
        if kind == "as_tensor":
            return self.tensor(self._value_name(value["name"]))
        if kind == "as_tensors":
            return [self.tensor(self._value_name(entry["name"])) for entry in value]
        if kind == "as_optional_tensors":
            return [self.argument(entry) if "as_tensor" in entry else None for entry in value]
        if kind in ("as_sym_int", "as_sym_float", "as_sym_bool"):
            return self.symbolic(value)
        if kind in ("as_sym_ints", "as_sym_floats"):
            return [self.symbolic(entry) for entry in value]
        if kind == "as_scalar_type":
            return getattr(torch, _TYPES[value])  # type: ignore[arg-type]
        if kind == "as_device":
            return torch.device("meta")
        if kind in ("as_none", "as_layout", "as_memory_format"):
            return None
        return value

    def symbolic(self, entry: object) -> object:
        """Returns a number, which may be given by name."""
        kind, value = _entry(entry)
        if kind != "as_name":
            return value
        symbol = self.symbols.get(value, {})
        is_size = "as_expr" in symbol or "as_int" in symbol
        return self.size(symbol if is_size else {"as_expr": {"expr_str": value}}, value, 0)
