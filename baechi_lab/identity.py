"""Digests that identify values in stored and remembered results by their content.

Records are identified by their content, arrays by their bytes, parameter objects by their fields, other objects by what
pickle would store. Functions, and classes that are not installed, are identified by their compiled code, defaults,
closures and the globals that they read. Installed code (Python, packages, this one) is identified by name and version.
"""

from __future__ import annotations

import builtins
import copyreg
import dis
import functools
import hashlib
import importlib.metadata
import os
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np

from .graph import Cluster, OpGraph, Placement, Step

MOST_OBJECTS = 200_000
"""Most objects that a value may refer to: one with more is a program's state, not an input."""
_PACKAGE = __name__.partition(".")[0]
_ATOMS = (str, int, float, complex, bool, bytes, type(None), type(...), type(NotImplemented))
_DESCRIPTORS = (GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType)
_CLASS_ENTRIES = (
    "__dict__ __weakref__ __module__ __doc__ __firstlineno__ __static_attributes__ _abc_impl __abstractmethods__"
)
_NOT_OF_A_CLASS = frozenset(_CLASS_ENTRIES.split())
"""Entries of a class that do not affect what it does, or follow from others."""
_ONLY_ADD = {"append", "appendleft", "add", "extend"}
"""Methods of collections that return nothing: a collection that a function only adds to is not its input."""
_COLLECTIONS = (list, set, deque)
_READER_NAMES = (
    "open load load_graph load_trace read_text read_bytes read_csv read_json from_pretrained environ getenv input "
    "urlopen"
)
_READERS = frozenset(_READER_NAMES.split())
"""Names with which a function reads files or settings, which its digest cannot cover."""
_LOOKS_UP = frozenset("eval exec globals __import__ import_module".split())
"""Names with which a function reads variables or modules that its code does not name."""


class Unidentified(Exception):
    """Raised for a value that cannot be identified in another process; the message is a noun that says why."""


def content_digest(value: object) -> str:
    """Returns a digest that is equal for equal contents, in this process or another.

    Raises:
        Unidentified: the value holds something that has no content to compare (a lock, an open file, a generator), or a
            function that reads files.

    >>> content_digest({"a": [1, 2]}) == content_digest({"a": [1, 2]})
    True
    >>> content_digest(lambda b: b + 1) == content_digest(lambda b: b + 2)
    False
    """
    try:
        return _Digester().of(value)
    except RecursionError:
        raise Unidentified("deeply nested objects") from None


class _Digester:
    """Describes objects as bytes that are equal for equal objects, in every process."""

    def __init__(self) -> None:
        self.path: dict[int, int] = {}  # id of an object that is being digested -> its depth
        self.digests: dict[int, str] = {}
        self.alive: list[object] = []  # keeps objects alive, so that no id is used twice

    def of(self, value: object) -> str:
        """Returns the digest of a value."""
        if type(value) in _ATOMS:
            return _hash_chunks(type(value).__name__, hex(value) if type(value) is int else repr(value))
        key = id(value)
        if key in self.digests:
            return self.digests[key]
        if key in self.path:
            return _hash_chunks("cycle", str(len(self.path) - self.path[key]))
        if len(self.alive) > MOST_OBJECTS:
            raise Unidentified(f"more than {MOST_OBJECTS} objects")
        self.alive.append(value)
        self.path[key] = len(self.path)
        self.digests[key] = _hash_chunks(*self.describe(value))
        del self.path[key]
        return self.digests[key]

    def each(self, values: Any) -> list[str]:
        return [self.of(value) for value in values]

    def pairs(self, mapping: Any) -> list[str]:
        """Returns the digests of keys and values, in the mapping's order: code may read it."""
        return self.each(entry for pair in mapping.items() for entry in pair)

    def describe(self, value: object) -> Iterator[str]:
        """Yields the texts and digests that describe a value, its kind first."""
        kind = type(value)
        if isinstance(value, (OpGraph, Cluster)):
            yield from (kind.__name__, value.content_key)
        elif isinstance(value, Step):
            yield from ("Step", value.key, *self.each([value.initial_values, value.example_inputs]))
        elif isinstance(value, Placement):
            columns = [value.device, value.rank, value.group_of, value.replicas, value.graph_key, value.source_key]
            columns += [] if value.member_order is None else [value.member_order]
            yield from ("Placement", *self.each(columns))
        elif isinstance(value, (np.ndarray, np.generic)) and kind.__module__ == "numpy":
            yield from self.array(np.asarray(value))
        elif isinstance(value, np.dtype):
            yield from ("dtype", repr(value))
        elif kind in (dict, MappingProxyType):
            yield from ("mapping", *self.pairs(value))
        elif kind in (list, tuple, deque):
            yield from (kind.__name__, *self.each(value))
        elif kind in (set, frozenset):
            yield from (kind.__name__, *sorted(self.each(value)))
        elif isinstance(value, ModuleType):
            yield from ("module", value.__name__, version_of(value.__name__))
        elif isinstance(value, type):
            yield from self.class_(value)
        elif isinstance(value, FunctionType):
            yield from self.function(value)
        elif isinstance(value, CodeType):
            yield from self.code(value)
        elif isinstance(value, MethodType):
            yield from ("method", *self.each([value.__func__, value.__self__]))
        elif isinstance(value, property):
            yield from ("property", *self.each([value.fget, value.fset, value.fdel]))
        elif isinstance(value, (classmethod, staticmethod)):
            yield from (kind.__name__, self.of(value.__func__))
        elif isinstance(value, functools.cached_property):
            yield from ("cached_property", self.of(value.func))
        elif isinstance(value, _DESCRIPTORS):
            yield from ("descriptor", value.__qualname__)
        elif kind.__module__.partition(".")[0] == "torch" and hasattr(value, "detach") and hasattr(value, "layout"):
            yield from self.tensor(value)
        elif isinstance(value, functools._lru_cache_wrapper):
            yield from ("cached", self.of(value.__wrapped__))
        elif kind.__module__.partition(".")[0] == "numba" and hasattr(value, "py_func"):
            yield from ("compiled", self.of(value.py_func))
        elif is_dataclass(value):
            state = {} if kind.__module__.startswith(_PACKAGE) else getattr(value, "__dict__", {})
            other_state = {k: v for k, v in state.items() if k not in _cached_names(kind)}
            field_values = {f.name: getattr(value, f.name, None) for f in fields(value)}
            yield from ("dataclass", self.of(kind), self.of({**other_state, **field_values}))
        else:
            yield from self.describe_by_reduce(value)

    def array(self, value: Any) -> Iterator[str]:
        yield from ("array", repr(value.dtype), str(value.shape))
        if value.dtype.hasobject:
            yield from self.each(value.reshape(-1).tolist())
        else:
            yield _hash_chunks(np.ascontiguousarray(value).tobytes())

    def tensor(self, value: Any) -> Iterator[str]:
        """Yields what identifies a tensor of PyTorch; one on the device "meta" has no bytes."""
        import torch

        yield from ("tensor", str(value.dtype), str(tuple(value.shape)), str(value.device), str(value.requires_grad))
        if value.device.type != "meta":
            try:
                yield _hash_chunks(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
            except (RuntimeError, TypeError, NotImplementedError) as error:
                raise Unidentified(f"a {type(value).__name__}") from error

    def class_(self, value: type) -> Iterator[str]:
        yield from ("class", value.__module__, value.__qualname__)
        if is_installed(value.__module__):
            yield version_of(value.__module__)
            return
        members = {k: v for k, v in vars(value).items() if k not in _NOT_OF_A_CLASS}
        yield from (self.of(type(value)), *self.each(value.__bases__), self.of(members))

    def function(self, value: FunctionType) -> Iterator[str]:
        cells = {}
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                contents = cell.cell_contents
            except ValueError:  # not assigned yet
                contents = Unidentified
            if name not in _only_added_to(value.__code__) or type(contents) not in _COLLECTIONS:
                cells[name] = contents
        inputs = [value.__code__, value.__defaults__, value.__kwdefaults__, cells, vars(value)]
        yield from ("function", *self.each(inputs))
        if is_installed(value.__module__):
            yield from (value.__module__, value.__qualname__, version_of(value.__module__))
        else:
            yield from self.globals_of(value)

    def globals_of(self, value: FunctionType) -> Iterator[str]:
        """Describes the global variables that the function and its nested functions read."""
        names = {name for code in _codes(value.__code__) for name in code.co_names}  # of globals and attributes
        if reads := names & _READERS:
            raise Unidentified(f"a function that reads what may change ({', '.join(sorted(reads))})")
        global_names = _instruction_arguments(value.__code__, "LOAD_GLOBAL", "LOAD_NAME")
        if looks_up := {*global_names, *(names & {"import_module"})} & _LOOKS_UP:  # not `model.eval()`
            raise Unidentified(f"a function that looks up what its code does not name ({', '.join(sorted(looks_up))})")
        only_added_to = _only_added_to(value.__code__)
        for name in global_names:
            if name in value.__globals__:
                contents = value.__globals__[name]
                if name not in only_added_to or type(contents) not in _COLLECTIONS:
                    yield name
                    yield from self.describe_global(contents, names)
            elif not hasattr(builtins, name):
                yield f"{name} is not defined"
        for name in _instruction_arguments(value.__code__, "IMPORT_NAME"):
            if not is_installed(name):
                raise Unidentified(f"a function that imports {name or 'by a relative name'}")
            yield from ("import", name, version_of(name))

    def describe_global(self, value: object, names: set[str]) -> Iterator[str]:
        """Describes a global variable, and the named attributes of a module that is not installed."""
        yield self.of(value)
        if isinstance(value, ModuleType) and not is_installed(value.__name__):
            for name in sorted(names & vars(value).keys()):
                yield from self.describe_global(vars(value)[name], names)

    def code(self, value: CodeType) -> Iterator[str]:
        """Describes code without line numbers and file name, which change when other code does."""
        yield _hash_chunks(value.co_code, getattr(value, "co_exceptiontable", b""))
        columns = (
            value.co_consts,
            value.co_names,
            value.co_varnames,
            value.co_freevars,
            value.co_cellvars,
            value.co_flags,
            value.co_argcount,
            value.co_posonlyargcount,
            value.co_kwonlyargcount,
            sys.version_info[:2],
        )
        yield from self.each(columns)

    def describe_by_reduce(self, value: object) -> Iterator[str]:
        """Describes any other object by what `__reduce_ex__` returns, as pickle would."""
        kind = type(value)
        description = f"a {kind.__name__}"
        if kind is object:
            raise Unidentified("an object() that is equal to itself only")
        if isinstance(value, BuiltinFunctionType) and isinstance(value.__self__, (ModuleType, type(None))):
            yield from ("builtin", str(value.__module__), value.__qualname__, version_of(value.__module__ or ""))
            return
        try:
            described_by = copyreg.dispatch_table.get(kind)
            reduction = value.__reduce_ex__(4) if described_by is None else described_by(value)
        except Exception as error:
            raise Unidentified(description) from error
        if isinstance(reduction, str):
            module = getattr(value, "__module__", None) or kind.__module__
            if not is_installed(module) and kind.__module__ != "typing":  # a type variable is its name
                raise Unidentified(description)
            yield from ("global", module, reduction, version_of(module))
            return
        padded_reduction = [*reduction, None, None, None]
        made_by, arguments, state, list_items, items = padded_reduction[:5]
        if isinstance(state, dict):
            state = {k: v for k, v in state.items() if k not in _cached_names(kind)}
        yield from ("object", self.of(kind), *self.each([made_by, arguments, state]))
        attributes = {k: v for k, v in getattr(value, "__dict__", {}).items() if k not in _cached_names(kind)}
        if attributes and not isinstance(value, type) and not is_installed(kind.__module__):
            yield self.of(attributes)  # pickle may leave some out
        yield from self.each(list_items or ())
        yield from self.each(items or ())


def _hash_chunks(*chunks: str | bytes) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for chunk in chunks:
        data = chunk.encode("utf-8", "surrogatepass") if isinstance(chunk, str) else chunk
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def _cached_names(kind: type) -> set[str]:
    return {k for c in kind.__mro__ for k, v in vars(c).items() if isinstance(v, functools.cached_property)}


# -- code ----------------------------------------------------------------------------------------------


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yields the code and the code of nested functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _instruction_arguments(code: CodeType, *opnames: str) -> list[str]:
    return sorted({str(i.argval) for c in _codes(code) for i in dis.get_instructions(c) if i.opname in opnames})


def _only_added_to(code: CodeType) -> set[str]:
    """Returns the names of globals and closed-over variables whose every use is `name.append(...)` or similar."""
    added_names: set[str] = set()
    read: set[str] = set()
    loads = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF")
    for each in _codes(code):
        instructions = list(dis.get_instructions(each))
        for k, one in enumerate(instructions):
            if one.opname in loads:
                follows = instructions[k + 1].argval if k + 1 < len(instructions) else None
                (added_names if follows in _ONLY_ADD else read).add(str(one.argval))
            elif one.opname.startswith("LOAD_") and "DEREF" in one.opname:
                read.add(str(one.argval))
    return added_names - read


# -- modules -------------------------------------------------------------------------------------------


@functools.cache
def _library_folders() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple(os.path.join(os.path.realpath(sysconfig.get_path(name)), "") for name in names)


def is_installed(module: str | None) -> bool:
    """Whether a module belongs to Python or to an installed package, so that a version identifies it."""
    top = (module or "").partition(".")[0]
    if top == "__main__":  # its file may be that of a launcher, such as Jupyter's
        return False
    if top in sys.builtin_module_names or top in sys.stdlib_module_names or top == _PACKAGE:
        return True
    file = getattr(sys.modules.get(top), "__file__", None)
    if file is None:
        return version_of(top) != ""
    folder = os.path.realpath(file)
    return folder.startswith(_library_folders()) or "site-packages" in folder or "dist-packages" in folder


@functools.cache
def version_of(module: str) -> str:
    """Returns the version of the package that a module belongs to; empty if unknown."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return sys.version.split()[0]
    if top == _PACKAGE:
        return str(getattr(sys.modules.get(_PACKAGE), "__version__", ""))
    try:
        return importlib.metadata.version(top) if top else ""
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(top), "__version__", ""))
