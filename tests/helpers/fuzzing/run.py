"""Load mutated files and run mutated command lines: the answer must be a result, or one sentence, and soon.

At any length, in the folder tests/helpers:

    python -m fuzzing.run graphs 100000 --seed 1
    python -m fuzzing.run files 50000 --seed 1
    python -m fuzzing.run commands 1000 --seed 1
    python -m fuzzing.run traces 10000 --seed 1
    python -m fuzzing.run configs 2000 --seed 1
    python -m fuzzing.run layouts 10000 --seed 1
    python -m fuzzing.run arguments 50000 --seed 1
    python -m fuzzing.run torch 10000 --seed 1

All of them for some hours, with what failed in a folder: `python -m tests.fuzz --hours 2`, see there.

Each prints how many cases were refused, how many were taken, and every failure with the seed that makes it again.
"""

import argparse
import contextlib
import functools
import json
import os
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

import numpy as np

import baechi_lab as bl
from baechi_lab import viz
from baechi_lab.errors import BaechiLabError
from baechi_lab.graph.formats.files import load_placement, load_timeline, save

from . import arguments, command_lines, mutations, recorded, torch_arguments
from .case import Case

SECONDS = 20
"""Processor time that a single case may take, which is far more than any does."""
PATIENCE = 300
"""Seconds after which one is ended that waits, for example for a pipe."""


class TooLong(BaseException):
    """A case did not end."""


@contextlib.contextmanager
def limited():
    """Ends what hangs."""

    def stop(*ignored):
        raise TooLong(f"more than {SECONDS} s of processor time, or {PATIENCE} s")

    before = {number: signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


def use_graph(path, folder):
    """What anybody does with a graph: print, hash, save, optimize, place, simulate, check."""
    graph = bl.load_graph(path)
    repr(graph), graph.content_key
    bl.save_graph(graph, folder / "again.json")
    if path.suffix != ".stg":  # its name is not a graph's
        assert bl.load_graph(folder / "again.json") == graph
    cluster = mutations.clusters()[graph.n % 2]
    for one in (graph, bl.optimize(graph, cluster)):
        run = one if graph.group_of is not None else graph  # of a coarse graph, the coarser one is none of its ops
        placement = bl.place(one, cluster, "m-etf").on(run)
        bl.check(run, cluster, placement, bl.simulate(run, cluster, placement))


def use_cluster(path, folder):
    """Print, save, and simulate on it."""
    cluster = bl.load_cluster(path)
    repr(cluster), cluster.content_key
    save(cluster, folder / "again.json")
    assert bl.load_cluster(folder / "again.json") == cluster
    graph = mutations.graphs()[2]
    bl.simulate(graph, cluster, bl.place(graph, cluster, "m-etf"))


def use_placement(path, folder):
    """Print, save, and simulate."""
    placement = load_placement(path)
    repr(placement)
    save(placement, folder / "again.json")
    load_placement(folder / "again.json")
    for graph in mutations.graphs()[:2]:
        with contextlib.suppress(BaechiLabError):
            bl.simulate(graph, mutations.clusters()[0], placement)


def use_timeline(path, folder):
    """Print, save, tabulate, and write a trace."""
    timeline = load_timeline(path)
    repr(timeline), timeline.busy_us, timeline.moved_bytes, timeline.feasible
    [str(v) for v in timeline.violations]
    save(timeline, folder / "again.json")
    load_timeline(folder / "again.json")
    timeline.to_pandas()
    timeline.to_text(memory=True)
    timeline.to_chrome_trace(folder / "trace.json")
    for color_by in ("device", "micro-batch") if "micro_batch" in timeline.info else ("device",):
        viz.gantt(timeline, color_by=color_by)
    viz.memory(timeline)


USES = {
    "graph": use_graph,
    "partitioning": use_graph,
    "stg": use_graph,
    "cluster": use_cluster,
    "placement": use_placement,
    "timeline": use_timeline,
}


def file_cases(kinds, count, seed):
    """(name, work) per case; `work()` writes and uses the file."""
    documents = mutations.documents()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in sorted(set(kinds) & documents.keys()):  # what is compiled on first use must not count for one case
            for document in documents[kind]:
                (folder / "case.json").write_text(json.dumps(document))
                USES[kind](folder / "case.json", folder)
        for k in range(count):
            rng = np.random.default_rng([seed, k])
            kind = kinds[rng.integers(len(kinds))]
            path = folder / ("case.stg" if kind == "stg" else "case.json")
            if kind == "stg":
                data = mutations.mutated_stg(rng)
            else:
                data = mutations.mutated_json(documents[kind][rng.integers(len(documents[kind]))], rng)
            path.write_bytes(data)
            yield Case(f"{kind} {seed}/{k}", lambda kind=kind, path=path: USES[kind](path, folder), path)


def use_trace(path, folder):
    """Load, print, and replay; programs are estimated."""
    if path.suffix in (".onnx", ".pt2"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            graph = bl.profile_program(path, hardware="a100")
        repr(graph), bl.save_graph(graph, folder / "again.json")
        return
    pair = path.name == "pair.json"  # an execution trace, which goes with the Kineto trace of the same run
    recording = bl.load_trace(folder / "whole.json", execution_trace=path) if pair else bl.load_trace(path)
    repr(recording), recording.graph.content_key
    timeline = bl.simulate(recording.graph, recording.cluster, recording.placement)
    bl.check(recording.graph, recording.cluster, recording.placement, timeline)
    assert timeline.makespan_us <= recording.timeline.makespan_us * 1.05 + 2 * recording.graph.n


def trace_cases(count, seed):
    """Traces and programs: of JSON the tree is changed, of what is binary the bytes."""
    files = recorded.traces()
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "whole.json").write_bytes(files["t.json"])
        for kind, data in files.items():  # what is imported on first use must not count for the first case
            (Path(name) / kind).write_bytes(data)
            use_trace(Path(name) / kind, Path(name))
        for k in range(count):
            rng = np.random.default_rng([seed, k])
            kind = sorted(files)[rng.integers(len(files))]
            if kind in ("t.json", "pair.json"):
                data = mutations.mutated_json(json.loads(files[kind]), rng)
            elif kind == "t.pt2" and rng.random() < 0.8:
                data = recorded.mutated_pt2(files[kind], rng)
            else:
                data = mutations.mutated_bytes(files[kind], rng) if rng.random() < 0.9 else files[kind]
            path = Path(name) / kind
            path.write_bytes(data)
            yield Case(f"{kind} {seed}/{k}", lambda path=path: use_trace(path, Path(name)), path)


def use_config(path):
    """A model by configuration, estimated."""
    model, inputs = bl.torch.hugging_face(path, batch_size=2, sequence_length=8)
    repr(bl.torch.profile(model, inputs, hardware="a100"))


def use_layouts(path):
    """All layouts of a model by configuration on two devices."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # sizes that nobody checked
        bl.layouts(path, bl.Cluster.machines(2, 2, kind="h100"), global_batch=2, sequence_length=16).to_pandas()


def config_cases(use, documents, count, seed):
    """Configurations of small Hugging Face models."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "config.json"
        for document in documents:
            path.write_text(json.dumps(document))
            use(path)
        for k in range(count):
            rng = np.random.default_rng([seed, k])
            path.write_bytes(mutations.mutated_json(documents[rng.integers(len(documents))], rng))
            yield Case(f"{use.__name__} {seed}/{k}", functools.partial(use, path), path)


def tried(case):
    """`"taken"`, `"refused"`, or what failed: an exception that is not ours, a sentence of many lines, or no end."""
    try:
        with limited(), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # NumPy's way to say that a number was lost
            case.work()
        return "taken"
    except BaechiLabError as error:
        if "\n" in str(error).strip() or len(str(error)) > 1500 or not str(error):
            return f"{case.name}: not one sentence: {str(error)[:300]}"
        return "refused"
    except (Exception, TooLong, SystemExit) as error:  # noqa: BLE001  # whatever it is, it is what is looked for
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{case.name}: {type(error).__name__}: {str(error)[:200]} ({Path(frame.filename).name}:{frame.lineno})"


def run(cases):
    """(refused, taken, failures)."""
    answers = [tried(case) for case in cases]
    failures = [answer for answer in answers if answer not in ("refused", "taken")]
    return answers.count("refused"), answers.count("taken"), failures


def graph_cases(count, seed):
    """Graph files in three formats."""
    return file_cases(["graph", "graph", "graph", "partitioning", "stg"], count, seed)


def other_cases(count, seed):
    """All other files."""
    return file_cases(["placement", "timeline", "cluster"], count, seed)


CASES = {
    "graphs": graph_cases,
    "files": other_cases,
    "commands": command_lines.cases,
    "traces": trace_cases,
    "configs": functools.partial(config_cases, use_config, recorded.CONFIGS),
    "layouts": functools.partial(config_cases, use_layouts, recorded.LAYOUT_CONFIGS),
    "arguments": functools.partial(arguments.cases, arguments.calls),
    "torch": functools.partial(arguments.cases, torch_arguments.calls),
}


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=CASES)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sys.stdout.reconfigure(errors="backslashreplace")
    refused, accepted, failures = run(CASES[options.what](options.count, options.seed))
    for failure in failures[:200]:
        print(failure)
    print(f"{options.count} {options.what}: {refused} refused, {accepted} taken, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
