"""Libraries of machine code: numba makes one for each function that it compiles.

A library contains all functions that its function calls, in turn. numba optimises a called kernel and generates its machine
code also on its own, and again in each kernel on the way, though only the kernel that Python calls is run. With these classes
LLVM does so once, in the library of the kernel that Python calls, which leaves out half of its work.

The classes that are extended here are not public. With a version of numba that they were not tested with, the module cannot be
imported, and kernels are compiled by numba's own classes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import numba
from llvmlite.binding import Linkage
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, Flags
from numba.core.environment import lookup_environment

FIRST_VERSION, NEXT_VERSION = (0, 63), (0, 69)
"""The first version of numba that these classes were tested with, and the first one that they were not tested with."""
if not FIRST_VERSION <= numba.version_info.short < NEXT_VERSION:
    raise ImportError(f"numba {numba.__version__} is not one that these classes were tested with")


class _Library(JITCodeLibrary):  # type: ignore[misc]  # numba has no types
    def _optimize_functions(self, module: Any) -> None:
        """Simplifies functions before they are linked; numba makes a pass manager for each, even for declarations."""
        module.data_layout = self._codegen._data_layout
        passes, builder = self._codegen._function_pass_manager(opt=1)
        for function in module.functions:
            if not function.is_declaration:
                passes.run(function, builder)


class KernelLibrary(_Library):
    """The library of a kernel that Python calls."""

    def _optimize_final_module(self) -> None:
        """Optimises what was linked as functions of this module alone.

        LLVM then drops arguments that they do not use. A kernel hands a record of many arrays on as an argument per pointer,
        length and stride, and most of those that it calls use few of them.
        """
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == Linkage.linkonce_odr:
                function.linkage = Linkage.internal
        super()._optimize_final_module()

    def _finalize_final_module(self) -> None:
        super()._finalize_final_module()
        for variable in self._final_module.global_variables:  # Python objects of called kernels, as when read from disk
            environment = lookup_environment(variable.name) if variable.name.startswith("_ZN08NumbaEnv") else None
            if environment is not None:
                self._codegen.set_env(variable.name, environment)


class CalledLibrary(_Library):
    """The library of a function that only compiled functions call: code of LLVM, which is linked into theirs."""

    def finalize(self) -> None:
        self._raise_if_finalized()
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalize_final_module()

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> type[_NoEnvironments]:
        return _NoEnvironments

    def serialize_using_object_code(self) -> tuple[str, str, bytes]:
        return self.serialize_using_bitcode()  # type: ignore[no-any-return]

    @classmethod
    def _unserialize(cls, codegen: object, state: tuple[str, str, object]) -> Any:
        if state[1] == "bitcode":
            return super()._unserialize(codegen, state)
        with making_libraries(codegen, KernelLibrary):
            return KernelLibrary._unserialize(codegen, state)


class _NoEnvironments:
    """Stands for the code generator of a library that is not run: there is no variable to set."""

    @staticmethod
    def set_env(name: str, environment: object) -> None:
        pass


class FlagsInUse(Flags):  # type: ignore[misc]  # numba has no types
    """Flags of the kernel that is compiled, the same object if equal.

    numba looks them up at each call of a function, and compares the values of all flags unless they are the same object.
    """

    __slots__ = ()
    instances: ClassVar[list[FlagsInUse]] = []

    def __eq__(self, flags: object) -> bool:
        return self is flags or (type(flags) is not FlagsInUse and super().__eq__(flags))

    def __hash__(self) -> int:
        return _HASH_OF_FLAGS

    def copy(self) -> Flags:
        return Flags(self)  # to be changed


_HASH_OF_FLAGS = hash(Flags())  # the hash of numba is one of the names of flags, the same for all


class KernelFlags(Flags):  # type: ignore[misc]  # numba has no types
    """Flags of a kernel, of which numba takes a copy to compile it."""

    __slots__ = ()

    def copy(self) -> FlagsInUse:
        values = self.values()
        for flags in FlagsInUse.instances:
            if flags.values() == values:
                return flags
        FlagsInUse.instances.append(FlagsInUse(self))
        return FlagsInUse.instances[-1]


class CalledCompiler(Compiler):  # type: ignore[misc]  # numba has no types
    """Compiles a kernel that kernels call."""

    def __init__(self, *arguments: object):
        super().__init__(*arguments)
        self.state.flags = KernelFlags(self.state.flags)


class KernelCompiler(CalledCompiler):
    """Compiles a kernel that Python calls."""

    def __init__(self, typing_context: Any, target_context: Any, library: Any, *arguments: Any):
        if library is None:
            library = KernelLibrary(target_context.codegen(), "kernel")
            library.enable_object_caching()
        super().__init__(typing_context, target_context, library, *arguments)


@contextlib.contextmanager
def making_libraries(codegen: Any, library_class: type[Any]) -> Iterator[None]:
    """Within the block, `codegen` makes libraries of this class; whoever enters it holds numba's lock."""
    before = codegen._library_class
    codegen._library_class = library_class
    try:
        yield
    finally:
        codegen._library_class = before
