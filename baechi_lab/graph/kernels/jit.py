"""numba's `njit` where numba is installed, otherwise a decorator that leaves the Python function as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...importing import in_existing_folder

try:
    import fcntl as _files
except ImportError:  # not on Windows: processes that start together each compile for themselves
    _files = None  # type: ignore[assignment]
try:
    with in_existing_folder():
        from numba import njit as _njit
        from numba import types as _types
        from numba.core.compiler_lock import global_compiler_lock as _compiler_lock
        from numba.extending import register_jitable as _inside_kernels
except ImportError:  # slower, but everything still works
    _njit = _inside_kernels = _types = _compiler_lock = None

HAS_NUMBA = _njit is not None


def njit(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a kernel (always call with options, for example `@njit(cache=True)`); `.py_func` is its Python form."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if _njit is not None:
            return _compiled_by_one(_compiled_once(_with_forgiving_cache(_njit(**options)(function))))
        function.py_func = function  # type: ignore[attr-defined]
        return function

    return decorate


def _with_forgiving_cache(kernel: Any) -> Any:
    """A cache on disk that was written for argument classes that are gone since is an empty one, not an error.

    numba reads the whole index before it sees that the source has changed, and names every class in it.
    """
    index: Any = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if hasattr(index, "_load_index"):
        load = index._load_index

        def load_index() -> Any:
            try:
                return load()
            except (AttributeError, ImportError):
                return {}

        index._load_index = load_index
    return kernel


def _compiled_once(kernel: Any) -> Any:
    """Called by another kernel with a constant, numba would compile a version for that very constant.

    A version for all values of the type does as well: the largest kernels were compiled three times for a `-1` and a
    `False`, which is a fifth of all compiling.
    """
    resolve = kernel.get_call_template
    kernel.get_call_template = lambda args, kws: resolve(
        [_types.unliteral(a) for a in args], {name: _types.unliteral(a) for name, a in kws.items()}
    )
    return kernel


def _compiled_by_one(kernel: Any) -> Any:
    """Of several processes that need a kernel at a time one compiles it; the others wait and read its cache.

    A process holds a kernel's lock while it compiles those that it calls. No two kernels call each other, so nobody waits
    in a circle; within a process numba's own lock comes first.
    """
    index: Any = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if _files is None or not hasattr(index, "_index_path"):
        return kernel
    compile_it = kernel.compile

    def compile_alone(signature: object) -> Any:
        with _compiler_lock, _alone(Path(index._index_path).with_suffix(".lock")), in_existing_folder():
            return compile_it(signature)

    kernel.compile = compile_alone
    return kernel


_locked_paths: set[Path] = set()


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a file's lock, which the system takes back from a process that ends; without one where none can be written."""
    if path in _locked_paths:  # a kernel that calls itself
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("ab"))
            _files.flock(file, _files.LOCK_EX)
        except OSError:
            pass
        _locked_paths.add(path)
        stack.callback(_locked_paths.discard, path)
        yield


if HAS_NUMBA:

    @_inside_kernels
    def records(array: Any) -> Any:
        """An array of a structured dtype whose entries have its fields as attributes: in compiled code, any."""
        return array

else:

    def records(array: Any) -> Any:
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
