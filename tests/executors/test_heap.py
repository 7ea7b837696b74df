"""Freed memory stays: pages are asked for once."""

import subprocess
import sys

import pytest

BODY = """
import ctypes, resource
from baechi_lab.executors.tensorflow.heap import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(8):
        block = libc.malloc(48 << 20)
        ctypes.memset(block, 1, 48 << 20)
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
plain = faults()
print(keep_freed_memory(), plain, faults(), faults())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks glibc")
def test_pages_are_asked_for_once():
    process = subprocess.run([sys.executable, "-c", BODY], capture_output=True, text=True, check=True, timeout=60)
    retained, plain, first, second = process.stdout.split()
    # Eight blocks of 48 MB; pages may have 2 MB each.
    assert retained == "True" and int(plain) >= 8 * 24 and int(first) < int(plain) / 2 and int(second) < 8
