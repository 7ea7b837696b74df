"""Files of ONNX: reading them safely, and the names that their nodes have as ops."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ...errors import FormatError, MissingPackage, in_short
from .reading import PathLike, absolute, name_of, read_bytes

if TYPE_CHECKING:
    from types import ModuleType

    from onnx import GraphProto, ModelProto, NodeProto


LONGEST_SHAPE_BYTES = 4096
"""Bytes of the longest list of integers that is read from another file."""


def onnx_package() -> ModuleType:
    """Returns the package `onnx`; raises `MissingPackage` where it is not installed."""
    try:
        import onnx
        import onnx.checker
        import onnx.defs
        import onnx.external_data_helper
        import onnx.inliner
        import onnx.shape_inference
        import onnx.version_converter
    except ImportError:
        raise MissingPackage.of("onnx", "onnx", "an ONNX model") from None
    return onnx


def load_model(path: PathLike) -> ModelProto:
    """Returns the model in a file. Of tensors in other files, only short lists of integers are read, since shapes are such lists.

    Raises:
        FormatError: no ONNX model, cut off, or tensors in a file that is missing or too short.
    """
    onnx = onnx_package()
    from google.protobuf.message import DecodeError

    data = read_bytes(path)
    try:
        model = onnx.ModelProto.FromString(data)
    except (DecodeError, ValueError) as error:
        raise FormatError(
            f"{name_of(path)}: not an ONNX model, or cut off: the protocol buffer cannot be decoded"
        ) from error
    if not model.ir_version:
        raise FormatError(f"{name_of(path)}: not an ONNX model: it has no ir_version")
    if not model.graph.node:
        raise FormatError(f"{name_of(path)}: the ONNX model has no operators")
    undecoded_name = next((text for text in _names(model.graph) if isinstance(text, bytes)), None)
    if undecoded_name is not None:
        raise FormatError(f"{name_of(path)}: the name {undecoded_name!r:.80} is no UTF-8 text; the file is damaged")
    check_versions(model, name_of(path))
    folder = os.path.dirname(absolute(path))
    for tensor in model.graph.initializer:
        external = {entry.key: entry.value for entry in tensor.external_data}
        file = external.get("location")
        if file is None:
            continue
        if not os.path.isfile(os.path.join(folder, file)):
            raise FormatError(
                f"{name_of(path)}: the weights of {tensor.name!r:.80} are in {in_short(file, 200)}, which is not beside it"
            )
        element_bytes = {onnx.TensorProto.INT32: 4, onnx.TensorProto.INT64: 8}.get(tensor.data_type, 0)
        size = element_bytes * math.prod(tensor.dims)
        if 0 < size <= LONGEST_SHAPE_BYTES and external.get("length") == str(size):
            try:
                onnx.external_data_helper.load_external_data_for_tensor(tensor, folder)
            except (OSError, ValueError, onnx.checker.ValidationError) as error:
                raise FormatError(
                    f"{name_of(path)}: {tensor.name!r:.80} cannot be read from {in_short(file, 200)}: {error}"
                ) from error
    return model


def check_versions(model: ModelProto, path: str) -> None:
    """Refuses a model of a version that the installed `onnx` does not read, or of none.

    Raises:
        FormatError: its format, or its operators, are newer, or it names no version of its operators.
    """
    onnx = onnx_package()
    reads = f"onnx {onnx.__version__}, which is installed, reads up to"
    if model.ir_version > onnx.IR_VERSION:
        raise FormatError(f"{path}: ir_version is {model.ir_version}; {reads} {onnx.IR_VERSION}")
    version, newest = opset_version(model), onnx.defs.onnx_opset_version()
    if version > newest:
        raise FormatError(f"{path}: its operators are of version {version}; {reads} {newest}")
    has_standard_ops = any(node.domain in ("", "ai.onnx") for node in model.graph.node)
    if has_standard_ops and version < 1:
        raise FormatError(f"{path}: the version of its operators is {version}; opset_import must name 1 to {newest}")


def opset_version(model: ModelProto) -> int:
    """Returns the version of ONNX's own operators that a model names; 1 where the oldest formats name none, else 0."""
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    return max(versions, default=int(0 < model.ir_version < 3))


def _names(graph: GraphProto) -> Iterator[str | bytes]:
    """Returns everything that refers to something; the decoder leaves what is no text as bytes."""
    for node in graph.node:
        yield from (node.op_type, node.domain, node.name, *node.input, *node.output)
    for tensor in graph.initializer:
        yield from (tensor.name, *(e.value for e in tensor.external_data))
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name


def inline_functions(model: ModelProto) -> ModelProto:
    """Returns the model with its local functions put in the place of their calls."""
    if not model.functions:
        return model
    onnx = onnx_package()
    self_contained = onnx.ModelProto()
    self_contained.CopyFrom(model)
    imported_domains = {o.domain for o in model.opset_import}
    for function in model.functions:  # whose operators may be of domains that the graph does not use
        for entry in function.opset_import:
            if entry.domain not in imported_domains:
                self_contained.opset_import.add(domain=entry.domain, version=entry.version)
                imported_domains.add(entry.domain)
    try:  # functions may be of another version of the operators than the graph
        return onnx.inliner.inline_local_functions(self_contained, convert_version=True)
    except (RuntimeError, onnx.version_converter.ConvertError):  # calls of functions that cannot be converted stay
        return onnx.inliner.inline_local_functions(self_contained)


def op_names(nodes: Iterable[NodeProto]) -> list[str]:
    """Returns a distinct name for every node: its own, else of its type and first output.

    >>> from onnx import helper
    >>> op_names([helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Relu", ["y"], ["z"], name="last")])
    ['Relu_y', 'last']
    """
    use_count: dict[str, int] = {}
    names = []
    for node in nodes:
        name = node.name or f"{node.op_type or 'op'}_{next((v for v in node.output if v), len(use_count))}"
        while name in use_count:
            use_count[name] += 1
            name = f"{name}#{use_count[name]}"
        use_count[name] = 1
        names.append(name)
    return names
