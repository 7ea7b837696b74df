"""Linear programs are solved without a word on standard output, where commands write JSON."""

import os
import subprocess
import sys

import pytest

from baechi_lab.highs import nothing_printed

PROGRAM = """
import ctypes, os
from baechi_lab.highs import nothing_printed, silent_highs
print("before")
with nothing_printed():
    ctypes.CDLL(None).printf(b"C has a buffer of its own\\n")
    os.write(1, b"and so has nobody\\n")
print(silent_highs(threads=1).getOptionValue("threads")[1])
"""


@pytest.mark.skipif(os.name != "posix", reason="needs the C library by no name")
def test_what_c_code_prints_is_lost_and_nothing_else():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["before", "1"]


def test_the_stream_comes_back_after_an_error(capfd):
    with pytest.raises(ValueError, match="inside"), nothing_printed():
        os.write(1, b"gone")
        raise ValueError("inside")
    os.write(1, b"there")
    assert capfd.readouterr().out == "there"
