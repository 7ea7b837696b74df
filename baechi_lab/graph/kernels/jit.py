"""numba's `njit` where numba is installed, otherwise a decorator that leaves the Python function as it is."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from ...importing import in_existing_folder, without_garbage_collection, without_modules
from .interpreted import run_interpreted

if TYPE_CHECKING:
    from numba.core.dispatcher import Dispatcher
    from numba.core.types import Type

try:
    import fcntl as _files
except ImportError:  # not on Windows: processes that start together each compile for themselves
    _files = None  # type: ignore[assignment]
try:
    # numba imports coverage, though it is not measuring, for a seventh longer.
    with in_existing_folder(), without_modules("coverage"):
        from numba import config as _config
        from numba import njit as _njit
        from numba import types as _types
        from numba.core.compiler_lock import global_compiler_lock as _compiler_lock
        from numba.core.cpu import CPUTargetOptions
        from numba.core.errors import NumbaError, WarningsFixer  # type: ignore[attr-defined]
        from numba.extending import register_jitable as _inside_kernels

        try:
            from . import libraries as _libraries
        except ImportError:  # another version of numba: each kernel is compiled on its own, which takes longer
            _libraries = None  # type: ignore[assignment]
    if _config.DISABLE_JIT:  # set by NUMBA_DISABLE_JIT: as if numba were not installed
        _njit = None
except ImportError:  # slower, but everything still works
    _njit = _inside_kernels = _types = _compiler_lock = _libraries = None  # type: ignore[assignment]

HAS_NUMBA = _njit is not None

_COMPILER: dict[str, object] = {"pipeline_class": _libraries.KernelCompiler} if _libraries else {}
_COMPILER_OF_CALLED: dict[str, object] = {"pipeline_class": _libraries.CalledCompiler} if _libraries else {}

P = ParamSpec("P")
R = TypeVar("R")


INTERPRETED_SECONDS = 3.0
"""Processor seconds that a kernel runs as plain Python in a process before it is compiled: about what compiling takes."""
FEW_ENTRIES = 300_000  # of all arrays: fewer are faster to interpret than to compile for
SKIPPED_ERRORS = (BlockingIOError, NumbaError) if HAS_NUMBA else (BlockingIOError,)
"""Raised in a second compiler by a call whose kernel, or one that it calls, another process is compiling."""
_is_second_compiler = False


def become_second_compiler() -> None:
    """Makes this process compile every kernel that it calls from now on, except what another process is compiling.

    Calls of those raise one of `SKIPPED_ERRORS`. For a process that only fills numba's cache on disk.
    """
    global _is_second_compiler
    _is_second_compiler = True


def njit(
    *, interpreted_if: Callable[..., bool] | None = None, allocates: bool = True, **options: object
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile a kernel (always call with options, for example `@njit(cache=True)`); `.py_func` is its Python form.

    While the kernel is neither compiled nor on disk, calls whose arguments satisfy `interpreted_if` run as plain Python
    (`interpreted.py`): what is small is done before a compiler would be.
    A kernel that makes no arrays says `allocates=False`: then numba counts no references to those that it is given, which
    takes up to half of the time of small kernels with many arguments.
    """
    if not allocates and _njit is not None and hasattr(CPUTargetOptions, "_nrt"):
        options["_nrt"] = False

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        if _njit is not None:
            kernel = _called_by_kernels(
                _for_disk(_njit(no_cfunc_wrapper=True, **(_COMPILER | options))(function)), options
            )
            return kernel if interpreted_if is None else _interpreted_at_first(kernel, interpreted_if)
        function.py_func = function  # type: ignore[attr-defined]
        return function

    return decorate


def has_few_entries(*arguments: object) -> bool:
    """Whether the arrays among `arguments` have few entries together: where work is linear, Python needs less than a second."""
    return _count_entries(arguments) < FEW_ENTRIES


def _count_entries(value: object) -> int:
    if isinstance(value, tuple):
        return sum(map(_count_entries, value))
    return value.size if isinstance(value, np.ndarray) else 0


def _interpreted_at_first(kernel: Any, is_small: Callable[..., bool]) -> Any:
    compile_for_arguments = kernel._compile_for_args
    seconds_left = INTERPRETED_SECONDS

    def run(*arguments: Any) -> Any:
        nonlocal seconds_left
        start_seconds = time.thread_time()
        outputs = run_interpreted(kernel.py_func, records, arguments)
        seconds_left -= time.thread_time() - start_seconds
        return outputs

    def choose(*arguments: object, **keywords: object) -> object:
        if (
            seconds_left > 0
            and not _is_second_compiler
            and not keywords
            and is_small(*arguments)
            and not is_on_disk(kernel, arguments)
        ):
            return run
        return compile_for_arguments(*arguments, **keywords)

    kernel._compile_for_args = choose
    return kernel


def is_on_disk(kernel: Dispatcher, arguments: tuple[object, ...]) -> bool:
    """Whether numba's cache has this kernel for these arguments; True, which leaves it to numba, if the cache is not known."""
    cache = getattr(kernel, "_cache", None)
    index: object = getattr(cache, "_cache_file", None)
    if not (hasattr(index, "_load_index") and hasattr(cache, "_index_key")):
        return True
    signature = tuple(kernel.typeof_pyval(argument) for argument in arguments)
    return cache._index_key(signature, kernel.targetctx.codegen()) in index._load_index()  # type: ignore[union-attr]


def is_missing(kernel: Any) -> bool:
    """Whether this process would compile `kernel` at its first call and other processes could read it afterwards."""
    index: Any = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    return _files is not None and hasattr(index, "_load_index") and not kernel.signatures and not index._load_index()


def _for_disk(kernel: Dispatcher) -> Dispatcher:
    index: Any = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if hasattr(index, "_load_index"):
        load, own_stamp = index._load_index, index._source_stamp

        def load_index() -> object:
            index._source_stamp = (own_stamp, _stamp_of_called(kernel.py_func))  # type: ignore[arg-type]
            try:
                return load()
            except (AttributeError, ImportError):
                return {}

        index._load_index = load_index
    return _compiled_by_one(kernel)


@functools.cache
def _stamp_of_called(function: FunctionType) -> tuple[object, ...]:
    """Returns what a compiled kernel contains beside its own file: the kernels that it calls and constants.

    numba looks only at the time and the size of the kernel's own file. After a change of another file it would run the old
    code of a called kernel.
    """
    functions, stamps, constants = [function], dict[FunctionType, object](), set[tuple[str, str]]()
    while functions:
        called = functions.pop()
        if called in stamps:
            continue
        stamps[called] = (called.__qualname__, _file_stamp(called.__code__.co_filename))
        for name in called.__code__.co_names:
            value = called.__globals__.get(name)
            callee = getattr(value, "py_func", value)
            if isinstance(callee, FunctionType):
                functions.append(callee)
            elif isinstance(value, (int, float, str)):
                constants.add((name, repr(value)))
    return (*sorted(map(repr, stamps.values())), *sorted(constants))


@functools.cache
def _file_stamp(path: str) -> tuple[float, int] | None:
    try:
        status = os.stat(path)
    except OSError:  # code that is in no file
        return None
    return status.st_mtime, status.st_size


def _called_by_kernels(kernel: Any, options: dict[str, Any]) -> Any:
    """Compiles a kernel separately for calls from kernels and from Python, which takes a third less time.

    Kernels call a form without the wrappers that convert Python objects. It is compiled once for all values of a type,
    where numba would compile it for every constant, and once for whole numbers of all widths.
    """

    @functools.cache
    def unwrapped_form() -> Dispatcher:
        function = kernel.py_func
        function_copy = FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        function_copy.__module__, function_copy.__qualname__ = function.__module__, f"{function.__qualname__}_part"
        return _for_disk(
            _njit(no_cfunc_wrapper=True, no_cpython_wrapper=True, **(_COMPILER_OF_CALLED | options))(function_copy)
        )

    def resolve(arguments: Sequence[Type], keywords: Mapping[str, Type]) -> object:
        widened_types = [_widest(a) for a in arguments]
        return unwrapped_form().get_call_template(widened_types, {name: _widest(a) for name, a in keywords.items()})

    kernel.get_call_template = resolve
    kernel.get_overload = lambda signature: unwrapped_form().get_overload(signature)
    return kernel


def _widest(argument: Type) -> Type:
    general = _types.unliteral(argument)
    return _types.int64 if isinstance(general, _types.Integer) and general.bitwidth < 64 else general


def _compiled_by_one(kernel: Any) -> Any:
    """Makes one of several processes compile a kernel that all need; the others wait and read the cache.

    A process holds a kernel's lock while it compiles those that it calls. No two kernels call each other, so nobody waits
    in a circle; within a process numba's own lock comes first. Another thread has numba's lock, and compiles other kernels,
    while a thread that compiles no caller waits for another process.
    """
    index: Any = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if _files is None or not hasattr(index, "_index_path"):
        return kernel
    compile_it = kernel.compile

    def compile_alone(signature: object) -> object:
        path = Path(index._index_path).with_suffix(".lock")
        while True:
            with _compiler_lock, contextlib.ExitStack() as stack:
                has_caller = bool(_locked_paths)  # which this thread compiles, as it has numba's lock
                try:
                    stack.enter_context(holding_lock(path, waits=has_caller and not _is_second_compiler))
                except BlockingIOError:
                    if _is_second_compiler:
                        raise
                else:
                    stack.enter_context(in_existing_folder())
                    stack.enter_context(without_garbage_collection())
                    stack.enter_context(same_warning_filters())
                    stack.enter_context(_making_libraries_of_called(kernel))
                    return compile_it(signature)
            _wait_for_lock(path)

    kernel.compile = compile_alone
    return kernel


def _making_libraries_of_called(kernel: Any) -> contextlib.AbstractContextManager[None]:
    """Within the block, functions that `kernel` calls get a `CalledLibrary`."""
    if _libraries is None:
        return contextlib.nullcontext()
    return _libraries.making_libraries(kernel.targetctx.codegen(), _libraries.CalledLibrary)


@contextlib.contextmanager
def same_warning_filters() -> Iterator[None]:
    """Keeps the process's filters of warnings, which numba replaces while it infers types; other threads warn meanwhile."""
    catch_warnings = WarningsFixer.catch_warnings
    WarningsFixer.catch_warnings = lambda *_, **__: contextlib.nullcontext()
    try:
        yield
    finally:
        WarningsFixer.catch_warnings = catch_warnings


_locked_paths: set[Path] = set()


@contextlib.contextmanager
def holding_lock(path: Path, waits: bool) -> Iterator[None]:
    """Holds a file's lock, which the system releases if the process ends. Holds none if the file cannot be written.

    Raises:
        BlockingIOError: another process holds the lock, and this one does not wait.
    """
    if path in _locked_paths:  # a kernel that calls itself
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("ab"))
            _files.flock(file, _files.LOCK_EX | (0 if waits else _files.LOCK_NB))
        except BlockingIOError:
            if not waits:
                raise
        except OSError:
            pass
        _locked_paths.add(path)
        stack.callback(_locked_paths.discard, path)
        yield


def _wait_for_lock(path: Path) -> None:
    with contextlib.suppress(OSError), path.open("ab") as file:
        _files.flock(file, _files.LOCK_EX)


if HAS_NUMBA:

    @_inside_kernels
    def records(array: NDArray[np.void]) -> NDArray[np.void]:
        """An array of a structured dtype whose entries have its fields as attributes: in compiled code, any."""
        return array

else:

    def records(array: NDArray[np.void]) -> NDArray[np.void]:
        """An array of a structured dtype whose entries have its fields as attributes, at the price of slow access."""
        return array.view(np.dtype((_Row, array.dtype)))


class _Row(np.void):  # type: ignore[misc]  # NumPy's own record class does the same
    """One entry. Unlike in `numpy.record` a field goes before an attribute of NumPy's, such as `size` or `device`."""

    def __getattribute__(self, name: str) -> Any:
        if name in (super().__getattribute__("dtype").names or ()):
            return self[name]
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value
