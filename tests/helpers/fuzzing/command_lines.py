"""Mutated command lines, run in this process on small files: exit code 0, or 2 with one line on stderr."""

import contextlib
import io
import itertools
import os
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np

import baechi_lab as bl
from baechi_lab.cli import main
from baechi_lab.errors import BaechiLabError, ExecutionError
from baechi_lab.graph.formats.files import save

from . import mutations
from .case import Case

LINES = [
    "place G --placer m-etf --devices 2 --memory 1MB -o OUT",
    "place G --placer post-adjusted -p rule=majority --no-optimize",
    "place G --placer m-sct -p threshold=0.2 --cluster C --json",
    "place G --placer hash --seed 3 --kind cpu --devices 3",
    "place G --placer contiguous --passes colocation,fusion --optimize",
    "place G --placer metis --devices 2",
    "place G --placer random -p seed=3",
    "place G --placer heft --comm duplex --speed 1,2 --devices 2 --memory 1MB,2MB",
    "compare G --placers single,m-topo,m-etf --devices 2 --json",
    "compare G --placers dfs,mite --scheduler fifo --seed 1",
    "compare G --optimize --link-latency 3 --link-us-per-byte 0.1",
    "simulate G P --devices 2 --trace T --figure F",
    "simulate G P --cluster C --scheduler planned -o OUT --json",
    "sweep G --devices 1,2 --placers m-etf --jobs 1 -o DB",
    "sweep G --memory 1MB,1GB --jobs 1 --json",
    "sweep mlp --batch-size 2,4 --hardware rtx2080 --jobs 1",
    "profile mlp --batch-size 4 --mode estimated --hardware v100 --precision bf16 -o OUT",
    "profile mlp -p layers=2",
    "run mlp --placement P --devices 2 --steps 3",
    "run mlp --placer m-etf --hardware v100 --precision tf32 --trace T",
    "export mlp --placement P -o DIR2",
    "demo --model mlp --devices 2 --placers m-etf --passes fusion --steps 2 --memory 1GB",
    "lab --print",
    "place --list",
    "--version",
]

WORDS = [
    "",
    "x",
    "-1",
    "0",
    "1",
    "2",
    "1.5",
    "1e400",
    "-1e400",
    "nan",
    "inf",
    "1" + "0" * 20,
    "9" * 5000,
    "1_0",
    "\u0662",
    "None",
    ",",
    "1,",
    "1,1",
    "2,2,2",
    "[]",
    "{}",
    "'",
    "\n",
    "\udcff",
    "a\0b",
    "self=1",
    "name=1",
    "placer=1",
    "placer=m-topo",
    "graph=1",
    "params=1",
    "seed=-1",
    "seed=x",
    "seed=[1]",
    "seed=1e400",
    "seed=" + "9" * 400,
    "threshold=None",
    "threshold=nan",
    "threshold='a'",
    "rule=1",
    "rule=[]",
    "explain=2",
    "time_limit=x",
    "x=1",
    "=1",
    "x",
    "x=" + "[" * 3000,
    "x={[]:1}",
    "--json",
    "--devices",
    "--memory",
    "--placer",
    "--placers",
    "--passes",
    "-p",
    "-o",
    "--cluster",
    "--speed",
    "--seed",
    "--comm",
    "--",
    "single",
    "m-topo",
    "post-adjusted",
    "sct",
    "expert",
    "cpu-only",
    "scotch",
    "critical-path",
    "batch-split",
    "duplex",
    "1TB",
    "1e5GB",
    "99999999999999999999TB",
    "-5GB",
    "1XB",
    "8 GB",
    "G",
    "P",
    "C",
    "OUT",
    "T",
    "DB",
    "PIPE",
    "DIR",
    "MISSING",
    "/dev/zero",
    "/dev/null",
    "/dev/full",
    "OUT.html",
    "mlp",
    "gnmt",
    "x.py:f",
    "S",
]


def cases(count, seed):
    """(name, work) per command line."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = _files(folder)
        _answered(["compare", files["G"]], folder)  # what is compiled on first use must not count for one case
        for k in range(count):
            rng = np.random.default_rng([seed, k])
            line = [files.get(word, word) for word in _mutated(LINES[rng.integers(len(LINES))].split(), rng)]
            yield Case(f"{seed}/{k} {str(line)[:400]!a}", lambda line=line: _answered(line, folder))


def _files(folder):
    graph, cluster = mutations.graphs()[0], mutations.clusters()[1]
    bl.save_graph(graph, folder / "g.json")
    bl.save_cluster(cluster, folder / "c.json")
    save(bl.place(graph, cluster, "m-etf"), folder / "p.json")
    (folder / "s.stg").write_text(mutations.STG)
    (folder / "dir").mkdir()
    os.mkfifo(folder / "pipe.json")
    names = {
        "G": "g.json",
        "P": "p.json",
        "C": "c.json",
        "OUT": "out.json",
        "T": "trace.json",
        "F": "figure.html",
        "DB": "rows.db",
        "PIPE": "pipe.json",
        "DIR": "dir",
        "DIR2": "exported",
        "MISSING": "no/such.json",
        "S": "s.stg",
        "OUT.html": "out.html",
    }
    return {word: str(folder / name) for word, name in names.items()}


def _mutated(words, rng):
    mutated = list(words)
    for _ in range(int(rng.integers(0, 4))):
        at, word = int(rng.integers(1, len(mutated) + 1)), WORDS[rng.integers(len(WORDS))]
        mutation = rng.integers(4)
        if mutation == 0 and at < len(mutated):
            mutated[at] = word
        elif mutation == 1 and at < len(mutated) and len(mutated) > 2:
            del mutated[at]
        elif mutation == 2:
            mutated.insert(at, word)
        elif at < len(mutated):
            mutated.insert(at, mutated[at])
    return mutated


def _no_step(*ignored, **also):
    raise ExecutionError("command lines are tried here without a framework")


def _answered(line, folder):
    """Run the line; a `BaechiLabError` that carries the sentence where the command refused it."""
    out, err = io.StringIO(), io.StringIO()
    before = {path: path.read_bytes() for path in (folder / "g.json", folder / "p.json", folder / "c.json")}
    with (
        mock.patch("baechi_lab.cli.steps.step_from", _no_step),
        mock.patch("baechi_lab.sweeps.work.model_graph", _no_step),
        mock.patch("baechi_lab.cli.lab.run", lambda *ignored: 0),  # JupyterLab would take the place of this process
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = main(line)
        except SystemExit as stop:
            code = stop.code or 0
    outputs = [os.path.basename(word) for option, word in itertools.pairwise(line) if option in ("-o", "--output")]
    for path, data in before.items():
        # A file that a line names as its output, and does not read, is replaced.
        assert path.name in outputs or path.read_bytes() == data, f"{path.name} was overwritten"
        path.write_bytes(data)
    error_text = err.getvalue()
    # A sweep of which no combination worked: of models, since none is built here. Or a placement that breaks a rule, or where
    # nothing fits.
    assert code in (0, 2) or (code == 1 and line[0] in ("sweep", "simulate", "compare", "fit") and out.getvalue()), (
        f"exit code {code}"
    )
    if code:
        assert code == 1 or not out.getvalue() or "--json" not in line, "output beside an error"
        raise BaechiLabError(error_text.rstrip("\n") if len(error_text) < 1500 else "x" * 2000)
    assert not error_text, f"stderr says {error_text[:300]}"
