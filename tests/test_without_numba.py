"""Everything works, slower, where numba is not installed; and what is computed is the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

PROGRAM = """
import sys
if {blocked}:
    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "numba":
                raise ImportError("No module named 'numba'")
    sys.meta_path.insert(0, Blocker())
import json
import baechi_lab as bl
from baechi_lab.graph.kernels.jit import HAS_NUMBA
graph = bl.generators.random_dag(40, colocation_groups=3, persistent_bytes=1 << 20, temp_bytes=1 << 10, seed=5)
cluster = bl.Cluster.uniform(3, memory_bytes=1 << 30, link=bl.Link(20.0, 0.001), comm="sequential")
result = {{"numba": HAS_NUMBA, "coarse": bl.optimize(graph).n}}
for placer in ("m-topo", "m-etf", "m-sct", "etf", "sct"):
    placed = bl.place(graph, cluster, placer)
    timeline = bl.simulate(graph, cluster, placed)
    result[placer] = [placed.device.tolist(), timeline.makespan_us, len(bl.check(graph, cluster, placed, timeline))]
print(json.dumps(result))
"""


def run(blocked):
    program = PROGRAM.format(blocked=blocked)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_results_do_not_depend_on_numba():
    without, with_it = run(True), run(False)
    assert without.pop("numba") is False
    with_it.pop("numba")
    assert without == with_it
    assert all(without[placer][2] == 0 for placer in ("m-topo", "m-etf", "m-sct"))
