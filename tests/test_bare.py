"""Processes that serve import less; what they left out can still be imported."""

import subprocess
import sys

import pytest

pytest.importorskip("tensorflow")

PROGRAM = """
import sys
from baechi_lab.workers.tensorflow_import import OPTIONAL, import_tensorflow
tf = import_tensorflow()
print([name for name in OPTIONAL if name in sys.modules])
import pandas, keras
print(float(tf.keras.losses.MeanSquaredError()([[1.0]], [[3.0]])), len(pandas.DataFrame({"a": [1, 2]})))
"""


@pytest.mark.slow
def test_what_was_left_out_works_afterwards():
    process = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert process.stdout.splitlines() == ["[]", "4.0 2"], process.stderr
