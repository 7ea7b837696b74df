"""Programs of `torch.export` -> `Program`: from memory, or from the JSON in a `.pt2` file.

`torch.export.load` reads weights, constants and sample inputs that may be pickles, which can run any code. None of them is
needed for an estimate, so only `models/*.json` of the archive is read here: operators, their arguments, and shape and type
of every tensor. Calls run on meta tensors, so that operators that consist of others are counted by what these do (`kernels`).
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...errors import FormatError, InvalidInput
from ...graph.formats.reading import MOST_FILE_BYTES, located, parse, read, stem
from ...torch.runtime.tree import map_tensors, tensors
from ..programs.records import Program, ProgramOp
from ..roofline import Kernel
from .kernels import kernel_of

SCHEMA_VERSIONS = range(7, 9)
"""Major versions of the program's schema that are read."""

# torch._export.serde.schema: ScalarType
_TYPES = (
    None, "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64", "complex128",
    "bool", "bfloat16",
)  # fmt: skip
_MOST_ELEMENTS = 2**48


def program_of(source: Any, batch_size: int | None = None, sizes: Mapping[str, int] | None = None) -> Program:
    """The operators of an `ExportedProgram`, or of a `.pt2` file.

    Raises:
        FormatError, InvalidInput: see `bl.profile_program`.
    """
    if isinstance(source, torch.export.ExportedProgram):
        return _of_memory(source, batch_size, sizes or {})
    document = located(source, lambda: _document(read(source)))
    found: Program = located(source, lambda: _of_document(document, stem(source), batch_size, sizes or {}))
    return found


class _Counting(TorchDispatchMode):
    """Notes the kernel of every operator that runs under it."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Kernel] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.kernels.append(kernel_of(func, args, kwargs or {}, out))
        return out


def _kernels(func: Any, args: Any, kwargs: Any, made: Sequence[torch.Tensor]) -> tuple[tuple[Kernel, ...], str]:
    """What a call computes, and why that is a guess, if it is one."""
    if func is not None:
        counting = _Counting()
        with suppress(RuntimeError, TypeError, ValueError, IndexError, AssertionError), counting, torch.no_grad():
            func(*args, **kwargs)
            return tuple(k for k in counting.kernels if not k.metadata) or (Kernel(metadata=True),), ""
    moved = sum(t.numel() * t.element_size() for t in (*tensors((args, kwargs)), *made))
    return (Kernel(moved_bytes=float(moved)),), "an operator that does not run on meta tensors"


class _Collector:
    """Ops while they are read."""

    def __init__(self, name: str):
        self.name = name
        self.ops: list[ProgramOp] = []
        self.size: dict[str, int] = {}
        self.guessed: dict[int, str] = {}
        self.taken: dict[str, int] = {}

    def add(
        self,
        name: str,
        module: str,
        target: str,
        call: tuple[Any, Any, Any],
        reads: Sequence[str],
        made: Mapping[str, Any],
    ) -> None:
        """One call: `call` is (function or None, arguments, keywords), `made` value -> meta tensor."""
        if not made:  # a check of shapes or types
            return
        kernels, why = _kernels(*call, list(made.values()))
        if why:
            self.guessed[len(self.ops)] = why
        label = f"{module}/{name}" if module else name
        self.taken[label] = self.taken.get(label, 0) + 1
        label = label if self.taken[label] == 1 else f"{label}#{self.taken[label]}"
        self.ops.append(ProgramOp(label, target.removeprefix("torch.ops."), kernels, tuple(reads), tuple(made)))
        self.size.update({v: t.numel() * t.element_size() for v, t in made.items()})


def _meta(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=dtype, device="meta")


def _operator(target: str) -> Any:
    """`torch.ops.aten.mm.default`, or None for what is no operator of torch."""
    parts = target.removeprefix("torch.ops.").split(".")
    if len(parts) != 3 or parts[0] not in ("aten", "prims"):
        return None
    packet = getattr(getattr(torch.ops, parts[0]), parts[1], None)
    return getattr(packet, parts[2], None)


# -- a program in memory ---------------------------------------------------------------------------------


def _of_memory(program: Any, batch_size: int | None, sizes: Mapping[str, int]) -> Program:
    signature = program.graph_signature
    made = _Collector(type(program.graph_module).__name__.lower())
    value: dict[Any, Any] = {}
    open_sizes = _Sizes(batch_size, sizes)
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
            args, kwargs = torch.fx.node.map_arg(
                (node.args, dict(node.kwargs)), lambda n: _value_of(n, value, open_sizes)
            )
            target = node.target if isinstance(node.target, torch._ops.OpOverload) else None
            names = {
                f"{node.name}.{k}" if isinstance(found, (list, tuple)) else node.name: t
                for k, t in enumerate(tensors(found))
            }
            reads = [_name_of(n) for n in node.all_input_nodes]
            made.add(
                node.name,
                _module(node.meta.get("nn_module_stack")),
                str(node.target),
                (target, args, kwargs),
                reads,
                names,
            )
    parameters = dict.fromkeys(signature.inputs_to_parameters, True) | dict.fromkeys(signature.inputs_to_buffers, False)
    outputs = [_name_of(n) for node in program.graph.nodes if node.op == "output" for n in node.all_input_nodes]
    return _finished(made, parameters, outputs)


def _name_of(node: Any) -> str:
    """The value that a node stands for: an item of what another returned is named by its place there."""
    if node.op == "call_function" and str(node.target).startswith("<built-in function getitem>"):
        return f"{_name_of(node.args[0])}.{node.args[1]}"
    return str(node.name)


def _value_of(node: Any, value: dict[Any, Any], open_sizes: _Sizes) -> Any:
    if node not in value:
        source = node.args[0] if node.op == "call_function" else None
        value[node] = (
            value[source][node.args[1]] if source in value else _tensors_of(node.meta.get("val"), node.name, open_sizes)
        )
    return value[node]


def _tensors_of(found: Any, name: str, open_sizes: _Sizes) -> Any:
    """Meta tensors in place of fake ones; whole numbers in place of symbols."""
    if isinstance(found, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return open_sizes.of(found, name, 1)
    return map_tensors(found, lambda t: _meta([open_sizes.of(d, name, k) for k, d in enumerate(t.shape)], t.dtype))


class _Sizes:
    """Open dimensions and what is put in their place."""

    def __init__(self, batch_size: int | None, sizes: Mapping[str, int]):
        self.batch_size, self.sizes = batch_size, dict(sizes)
        self.chosen: dict[str, int] = {}

    def of(self, size: Any, value: str, position: int) -> int:
        """A whole number for a size that may be a symbol or an expression of several."""
        if isinstance(size, int):
            return size
        import sympy

        expression = sympy.sympify(size.node.expr if hasattr(size, "node") else size)
        return int(expression.subs({s: self.symbol(str(s), value, position) for s in expression.free_symbols}))

    def symbol(self, label: str, value: str, position: int) -> int:
        """What stands for a symbol: as named, else the batch size where it is first met as a first dimension."""
        if label not in self.chosen:
            if label in self.sizes:
                self.chosen[label] = self.sizes[label]
            elif position == 0 and self.batch_size is not None:
                self.chosen[label] = self.batch_size
            else:
                how = (
                    "give batch_size (--batch-size)"
                    if position == 0
                    else f"give sizes={{{label!r}: ...}} (-p {label}=...)"
                )
                raise InvalidInput(
                    f"value {value!r:.80} has the open dimension {label!r:.80} at position {position}; {how}"
                )
        return self.chosen[label]


def _module(stack: Any) -> str:
    """The innermost module of a call, by its path in the model."""
    if isinstance(stack, Mapping) and stack:
        return str(list(stack.values())[-1][0])
    if isinstance(stack, str) and stack:
        last = stack.split(";")[-1].split(",")
        return last[1] if len(last) > 1 else ""
    return ""


def _finished(made: _Collector, parameters: Mapping[str, bool], outputs: Sequence[str]) -> Program:
    return Program(made.name, tuple(made.ops), made.size, parameters, tuple(outputs), guessed=made.guessed)


# -- a program in a file ---------------------------------------------------------------------------------


def _document(data: bytes) -> Any:
    """The JSON of the program in an archive.

    Raises:
        FormatError: no archive, cut off, or none or several programs in it.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [n for n in archive.namelist() if "/models/" in n and n.endswith(".json")]
            names = names or [
                n for n in archive.namelist() if n.rpartition("/")[2] == "serialized_exported_program.json"
            ]
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


def _of_document(document: Any, name: str, batch_size: int | None, sizes: Mapping[str, int]) -> Program:
    version = document.get("schema_version") if isinstance(document, dict) else None
    major = version.get("major") if isinstance(version, dict) else None
    if major not in SCHEMA_VERSIONS:
        raise FormatError(
            f"schema_version is {version!r:.80}; versions {SCHEMA_VERSIONS[0]} to {SCHEMA_VERSIONS[-1]} of torch.export are read"
        )
    try:
        module = document["graph_module"]
        return _Reader(module["graph"], name, _Sizes(batch_size, sizes)).program(module["signature"])
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise FormatError(f"the program is damaged: {type(error).__name__} at {str(error)!r:.80}") from error


def _entry(found: Any) -> tuple[str, Any]:
    """Kind and value of an argument, which is an object of one field."""
    if not isinstance(found, dict) or len(found) != 1:
        raise FormatError(f"the program is damaged: an argument is {found!r:.80}; it must have one field")
    return next(iter(found.items()))


def _label(found: Any) -> str:
    """The name of a tensor."""
    if not isinstance(found["name"], str):
        raise FormatError(f"the program is damaged: a tensor is named {found['name']!r:.80}; it must be a text")
    return found["name"]


class _Reader:
    """The JSON of a graph, read."""

    def __init__(self, graph: Any, name: str, open_sizes: _Sizes):
        self.graph, self.open_sizes = graph, open_sizes
        self.made = _Collector(name)
        self.value: dict[str, torch.Tensor] = {}
        self.symbols = graph.get("sym_int_values", {})

    def program(self, signature: Any) -> Program:
        """The program."""
        parameters = {}
        for spec in signature["input_specs"]:
            for kind, trained in (("parameter", True), ("buffer", False), ("tensor_constant", False)):
                if kind in spec:
                    label = _label(spec[kind]["arg"])
                    parameters[label] = trained and self.graph["tensor_values"][label]["requires_grad"] is True
        # Inputs first: their open dimensions have positions, those of inner values only names.
        for entry in self.graph["inputs"]:
            for label in self.labels(entry):
                self.tensor(label)
        for node in self.graph["nodes"]:
            self.call(node)
        outputs = [label for entry in self.graph["outputs"] for label in self.labels(entry)]
        return _finished(self.made, parameters, outputs)

    def call(self, node: Any) -> None:
        """One operator."""
        target = str(node["target"])
        func = _operator(target)
        known = {a.name: a.kwarg_only for a in func._schema.arguments} if func is not None else {}
        args, kwargs, reads = [], {}, []
        for entry in node["inputs"]:
            reads += list(self.labels(entry["arg"]))
            if known.get(entry["name"], False):
                kwargs[entry["name"]] = self.argument(entry["arg"])
            else:
                args.append(self.argument(entry["arg"]))
        labels = [label for entry in node["outputs"] for label in self.labels(entry)]
        if target.endswith("getitem>") or (not labels and not reads):
            return
        made = {label: self.tensor(label) for label in labels}
        first = str(node.get("name") or (labels[0] if labels else target.split(".")[-2]))
        module = _module((node.get("metadata") or {}).get("nn_module_stack"))
        self.made.add(first, module, target, (func, args, kwargs), reads, made)

    def tensor(self, label: str) -> torch.Tensor:
        """A meta tensor of the shape and type that the graph notes for a value."""
        if label not in self.value:
            noted = self.graph["tensor_values"][label]
            number = noted["dtype"]
            if type(number) is not int or not 0 < number < len(_TYPES):
                raise FormatError(f"value {label!r:.80} has the data type {number!r:.40}, which is not known")
            shape = [self.size(d, label, k) for k, d in enumerate(noted["sizes"])]
            elements = 1
            for d in shape:
                elements *= d
            if any(d < 0 for d in shape) or elements > _MOST_ELEMENTS:
                raise FormatError(f"value {label!r:.80} has the shape {shape!r:.120}; no tensor has it")
            self.value[label] = _meta(shape, getattr(torch, _TYPES[number]))  # type: ignore[arg-type]
            self.made.size[label] = self.value[label].numel() * self.value[label].element_size()
        return self.value[label]

    def size(self, found: Any, label: str, position: int) -> int:
        """A size: a whole number, or an expression of symbols."""
        if "as_int" in found:
            if type(found["as_int"]) is not int:
                raise FormatError(f"value {label!r:.80} has the size {found['as_int']!r:.40}")
            return int(found["as_int"])
        return self.expression(str((found.get("as_expr") or {}).get("expr_str", "?")), label, position)

    def expression(self, text: str, label: str, position: int) -> int:
        """The value of an expression such as `2*s0`; only symbols, numbers and arithmetic are read."""
        from .symbols import evaluated

        return evaluated(text, lambda symbol: self.open_sizes.symbol(symbol, label, position))

    def labels(self, found: Any) -> Iterator[str]:
        """The tensors that an argument names."""
        kind, value = _entry(found)
        if kind == "as_tensor":
            yield _label(value)
        elif kind == "as_tensors":
            for entry in value:
                yield _label(entry)
        elif kind == "as_optional_tensors":
            for entry in value:
                if "as_tensor" in entry:
                    yield _label(entry["as_tensor"])

    def argument(self, found: Any) -> Any:
        """An argument of a call."""
        kind, value = _entry(found)
        if kind == "as_tensor":
            return self.tensor(value["name"])
        if kind == "as_tensors":
            return [self.tensor(entry["name"]) for entry in value]
        if kind == "as_optional_tensors":
            return [self.tensor(entry["as_tensor"]["name"]) if "as_tensor" in entry else None for entry in value]
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

    def symbolic(self, found: Any) -> Any:
        """A number that may be named."""
        kind, value = _entry(found)
        if kind != "as_name":
            return value
        noted = self.symbols.get(value, {})
        return self.size(
            noted if "as_expr" in noted or "as_int" in noted else {"as_expr": {"expr_str": value}}, value, 0
        )
