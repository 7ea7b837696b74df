"""Kernels that were compiled by an earlier version, or by another process at the same time."""

import subprocess
import sys

import pytest

pytest.importorskip("numba")

SOURCE = """
from typing import NamedTuple
import numpy as np
from baechi_lab.graph.kernels.jit import njit

class {name}(NamedTuple):
    a: np.ndarray

@njit(cache=True)
def total(given):
    return given.a.sum() + {added}

print(total({name}(np.arange(4.0))))
"""


def printed(folder):
    process = subprocess.run(
        [sys.executable, "-c", "import kernels"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


@pytest.mark.slow
def test_bug_a_cache_that_names_a_class_of_an_earlier_version_is_written_anew(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(SOURCE.format(name="Before", added=0))
    assert printed(tmp_path) == "6.0"  # 0 + 1 + 2 + 3
    assert list(tmp_path.rglob("*.nbi"))
    path.write_text(SOURCE.format(name="After", added=1))
    assert printed(tmp_path) == "7.0"  # failed: Can't get attribute 'Before'
    assert printed(tmp_path) == "7.0"  # from the new cache


@pytest.mark.slow
@pytest.mark.subprocess
def test_bug_a_kernel_ran_the_old_code_of_one_that_it_calls_in_another_file(tmp_path):
    """numba compares only the time and size of the kernel's own file."""
    called = tmp_path / "called.py"
    head = "from baechi_lab.graph.kernels.jit import njit\n"
    called.write_text(f"{head}FACTOR = 2\n@njit(cache=True)\ndef times(x):\n    return FACTOR * x\n")
    lines = "from called import times\n@njit(cache=True)\ndef more(x):\n    return times(x) + 1\nprint(more(3))\n"
    (tmp_path / "kernels.py").write_text(head + lines)
    assert printed(tmp_path) == "7"
    called.write_text(called.read_text().replace("FACTOR = 2", "FACTOR = 10"))
    assert printed(tmp_path) == "31"  # failed: 7


TOGETHER = """
import sys
from kernels import inner, outer
from numba.core.caching import FunctionCache
saved, save = [], FunctionCache.save_overload
def note_and_save(cache, signature, compiled):
    if cache._py_func.__module__ == "kernels":
        saved.append(cache._py_func.__qualname__)
    save(cache, signature, compiled)
FunctionCache.save_overload = note_and_save
print("ready", flush=True)
sys.stdin.readline()
assert outer(3.0) == 7.0 and outer(3) == 7
print(*saved)
"""
KERNELS = """
from baechi_lab.graph.kernels.jit import njit

@njit(cache=True)
def inner(x):
    return 2 * x

@njit(cache=True)
def outer(x):
    return inner(x) + 1
"""


@pytest.mark.slow
@pytest.mark.subprocess
def test_of_processes_that_start_together_one_compiles_and_the_others_read(tmp_path):
    """Two kernels, one calling the other, each for two types: four versions in all, whoever makes them.

    Of `inner`, only the form that kernels call is compiled: nobody calls it from Python.
    """
    pytest.importorskip("fcntl")
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "together.py").write_text(TOGETHER)
    command = [sys.executable, str(tmp_path / "together.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as one, subprocess.Popen(command, **pipes) as second:
        assert one.stdout.readline() == second.stdout.readline() == "ready\n"
        for process in (one, second):
            process.stdin.write("\n")
            process.stdin.flush()
        compiled = [name for process in (one, second) for name in process.communicate(timeout=100)[0].split()]
    assert sorted(compiled) == ["inner_part", "inner_part", "outer", "outer"]
    assert one.returncode == second.returncode == 0


COUNTED = """
import numpy as np
from baechi_lab.graph.kernels.jit import njit

@njit()
def twice(x):
    return 2 * x

@njit()
def total(narrow, wide):
    return twice(narrow[0]) + twice(wide[0]) + twice(-1) + twice(len(wide))

@njit()
def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)
"""


def test_kernels_that_kernels_call_are_compiled_once_for_all_whole_numbers(tmp_path, monkeypatch):
    """int32, int64, a constant and a length: 2 * 3 + 2 * 4 + 2 * -1 + 2 * 1 = 14 by one version of `twice`."""
    numba_event = pytest.importorskip("numba.core.event")
    (tmp_path / "counted_kernels.py").write_text(COUNTED)
    monkeypatch.syspath_prepend(tmp_path)
    import counted_kernels as kernels
    import numpy as np

    class Names(numba_event.Listener):
        def on_start(self, event):
            compiled.append(event.data["dispatcher"].py_func.__qualname__)

        def on_end(self, event):
            pass

    compiled = []
    with numba_event.install_listener("numba:compile", Names()):
        assert kernels.total(np.array([3], np.int32), np.array([4])) == 14
    assert [name for name in compiled if name.startswith(("t", "d"))] == ["total", "twice_part"]
    assert kernels.twice(0.5) == 1.0  # from Python too, for another type
    assert kernels.depth(3) == 3  # a kernel that calls itself


NESTED = """
import numpy as np
from baechi_lab.graph.kernels.jit import njit

@njit(cache=True)
def root(x):
    if x < 0:
        raise ValueError("below zero")
    return np.sqrt(x)

@njit(cache=True)
def twice_root(x):
    return 2 * root(x)

@njit(cache=True)
def sum_of_roots(values):
    total = 0.0
    for x in values:
        total += twice_root(x)
    return total
"""


@pytest.mark.slow
@pytest.mark.subprocess
def test_machine_code_is_generated_once_for_a_kernel_and_all_that_it_calls(tmp_path, monkeypatch):
    """Before, numba generated that of `root` and of `twice_root` too, which nobody runs: 2 (1 + 2 + 3) = 12."""
    codegen = pytest.importorskip("numba.core.codegen")
    (tmp_path / "nested_kernels.py").write_text(NESTED)
    monkeypatch.syspath_prepend(tmp_path)
    import nested_kernels as kernels
    import numpy as np

    generated = []
    generate = codegen.JITCodeLibrary._finalize_specific
    monkeypatch.setattr(
        codegen.JITCodeLibrary, "_finalize_specific", lambda library: (generated.append(library), generate(library))
    )
    kernels.root(4.0)  # generates numba's own library, too
    generated.clear()
    assert kernels.sum_of_roots(np.array([1.0, 4.0, 9.0])) == 12
    assert len(generated) == 1
    with pytest.raises(ValueError, match="below zero"):
        kernels.sum_of_roots(np.array([-1.0]))
    process = "import numpy as np, nested_kernels as k; print(k.sum_of_roots(np.array([16.0])), k.twice_root(1.0))"
    output = subprocess.run([sys.executable, "-c", process], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert output.stdout == "8.0 2.0\n", (
        output.stderr
    )  # of the first, from the disk; of the second, with its part from there


UNUSED_ARGUMENTS = """
from baechi_lab.graph.kernels.jit import njit

@njit(cache=True, allocates=False)
def largest_gap(values, shares, limits):  # too long to be put in place of two calls
    gap = 0.0
    for i in range(len(values)):
        for j in range(i):
            for k in range(j):
                gap = max(gap, abs(values[i] - values[j]), abs(values[j] - values[k]), abs(values[k] - values[i]))
                gap = max(gap, values[k] % 7.0, values[j] % 11.0, values[i] % 13.0)
    return gap

@njit(cache=True)
def sum_of_gaps(values, shares, limits):
    return largest_gap(values, shares, limits) + largest_gap(values, limits, shares) + largest_gap(limits, shares, values)
"""


@pytest.mark.slow
def test_kernels_hand_on_no_arguments_that_those_they_call_do_not_use(tmp_path, monkeypatch):
    """`largest_gap` reads one of three arrays. With all of them, m-etf on a traced GNMT took two thirds more processor time."""
    codegen = pytest.importorskip("numba.core.codegen")
    (tmp_path / "unused_arguments.py").write_text(UNUSED_ARGUMENTS)
    monkeypatch.syspath_prepend(tmp_path)
    import numpy as np
    import unused_arguments as kernels

    generated = []
    generate = codegen.JITCodeLibrary._finalize_specific
    monkeypatch.setattr(
        codegen.JITCodeLibrary, "_finalize_specific", lambda library: (generated.append(library), generate(library))
    )
    assert kernels.sum_of_gaps(*np.arange(12.0).reshape(3, 4)) == 3 + 3 + 11  # 11 % 13 of 8, 9, 10, 11
    functions = [f for f in generated[-1].get_defined_functions() if "largest_gap_part" in f.name]
    assert functions
    for function in functions:  # of an array at most the pointer to its entries, its length and its stride
        assert len(list(function.arguments)) <= 5, str(function).splitlines()[0]


def test_equal_flags_of_kernels_are_one_object_and_equal_to_those_of_numba():
    """numba looks up functions by flags: as two objects, all their values were compared, a tenth of compiling."""
    from numba.core.compiler import Flags

    from baechi_lab.graph.kernels.libraries import KernelFlags

    flags, other_flags = Flags(), Flags()
    flags.nrt = True
    in_use = KernelFlags(flags).copy()
    assert KernelFlags(flags).copy() is in_use
    assert in_use == flags and flags == in_use and hash(in_use) == hash(flags)
    assert in_use != KernelFlags(other_flags).copy() and in_use != other_flags
    changed = in_use.copy()  # numba changes such copies
    changed.nrt = False
    assert in_use.nrt and changed != in_use and KernelFlags(changed).copy() is not in_use


@pytest.mark.slow
@pytest.mark.subprocess
def test_versions_of_numba_that_were_not_tested_compile_by_their_own_classes(tmp_path):
    """numba 0.62 has other classes: every compiled kernel ended with an AttributeError."""
    pytest.importorskip("numba")
    (tmp_path / "nested_kernels.py").write_text(NESTED)
    process = (
        "import numba, numpy as np; numba.version_info = numba.version_info._replace(short=(0, 62)); "
        "import sys, nested_kernels as k; print(k.sum_of_roots(np.array([16.0])), len(k.sum_of_roots.signatures), "
        "'baechi_lab.graph.kernels.libraries' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", process], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert output.stdout == "8.0 1 False\n", output.stderr


def test_compiling_replaces_no_filters_of_warnings(monkeypatch):
    """numba does, for all threads: while a workbench compiled in its own, the notebook's cells warned of nothing."""
    import numba

    from baechi_lab.graph.kernels import jit

    def replaced(*_, **__):
        raise AssertionError("the filters of warnings are replaced")

    kernel = numba.njit(lambda x: x + 1)
    with jit.same_warning_filters(), monkeypatch.context() as patch:
        patch.setattr("warnings.catch_warnings", replaced)
        assert kernel(2) == 3
