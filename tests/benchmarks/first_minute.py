"""How long a newcomer waits: first answers in an empty home with no compiled kernels, each in a process of its own.

    python tests/benchmarks/first_minute.py [--demo] [--kernels]

prints wall-clock and processor seconds beside what is wanted on two quiet cores. `--demo` adds `baechi-lab demo`, which needs
TensorFlow; `--kernels` prints the processor seconds that each kernel needs to compile, those that it calls apart.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]

START = """
import collections, time
import baechi_lab as bl
cluster = bl.Cluster.uniform(4, memory_bytes="8GB", comm="sequential")
"""
QUICKSTART = """
graph = bl.load_graph("data/gnmt-length40-batch128.json.gz")
cluster = bl.Cluster.uniform(4, memory_bytes="2GB")
print(bl.simulate(graph, cluster, bl.place(bl.optimize(graph, cluster), cluster, "m-etf")))
"""
TEN_THOUSAND = """
graph = bl.generators.random_dag(10_000, seed=1)
for placer in ("m-topo", "m-etf", "m-sct"):
    bl.simulate(graph, cluster, bl.place(graph, cluster, placer))
bl.bounds(graph, cluster)
"""
AUTO = """
graph = bl.generators.random_dag(10_000, seed=1)
bl.place(graph, cluster, "auto")
"""
KERNELS = """
from numba.core import event
from baechi_lab.graph.kernels import jit

class Compilations(event.Listener):
    def __init__(self):
        self.open, self.seconds, self.count = [], collections.Counter(), collections.Counter()
    def on_start(self, started):
        self.open.append([time.process_time(), 0.0])
    def on_end(self, ended):
        begin, inner = self.open.pop()
        seconds, function = time.process_time() - begin, ended.data["dispatcher"].py_func
        name = f"{function.__module__}.{function.__qualname__}"
        self.seconds[name] += seconds - inner
        self.count[name] += 1
        if self.open:
            self.open[-1][1] += seconds

jit.is_on_disk = lambda kernel, arguments: True  # compile small calls too
compilations = Compilations()
event.register("numba:compile", compilations)
"""
TABLE = """
print(f"{'seconds':>8} {'versions':>8}  kernel")
for name, seconds in compilations.seconds.most_common():
    if name.startswith("baechi_lab"):
        print(f"{seconds:8.2f} {compilations.count[name]:8d}  {name.removeprefix('baechi_lab.')}")
print(f"{sum(compilations.seconds.values()):8.2f}  all, numba's own functions included")
"""
PROGRAMS = {
    "first placed and simulated timeline (GNMT)": (QUICKSTART, 5),
    "m-topo, m-etf, m-sct, simulation and bounds of 10,000 ops": (TEN_THOUSAND, 10),
    "auto, 10,000 ops": (AUTO, 20),
}


def measure(command: list[str], home: Path, *, show: bool = False) -> tuple[float, float]:
    """Runs `command` with an empty home and cache. Returns its wall-clock and processor seconds."""
    environment = {**os.environ, "HOME": str(home), "NUMBA_CACHE_DIR": str(home / "kernels"), "PYTHONPATH": str(ROOT)}
    begin, before = time.perf_counter(), os.times()
    output = None if show else subprocess.DEVNULL
    subprocess.run(command, cwd=ROOT, env=environment, stdout=output, check=True)
    after = os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - begin, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--demo", action="store_true", help="also run `baechi-lab demo`")
    parser.add_argument("--kernels", action="store_true", help="print the processor seconds of compiling each kernel")
    arguments = parser.parse_args()
    if arguments.kernels:
        with tempfile.TemporaryDirectory() as home:
            program = START + KERNELS + QUICKSTART + TEN_THOUSAND + AUTO + TABLE
            measure([sys.executable, "-c", program], Path(home), show=True)
        return
    commands = {name: ([sys.executable, "-c", START + text], goal) for name, (text, goal) in PROGRAMS.items()}
    if arguments.demo:
        commands["baechi-lab demo"] = ([sys.executable, "-m", "baechi_lab", "demo"], 75)
    print(f"{'seconds':>8} {'processor':>9} {'wanted':>6}  an empty home, no compiled kernels, {os.cpu_count()} cores")
    for name, (command, goal) in commands.items():
        with tempfile.TemporaryDirectory() as home:
            wall, processor = measure(command, Path(home))
        print(f"{wall:8.1f} {processor:9.1f} {goal:6d}  {name}", flush=True)


if __name__ == "__main__":
    main()
