"""Arguments of types and sizes that nobody means: each is refused in one sentence, never by an exception of Python's own."""

import contextlib
import inspect
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import baechi_lab as bl
from baechi_lab.fidelity.quiet_machine import wait_for_quiet
from tests.helpers.fuzzing import arguments
from tests.helpers.fuzzing.arguments import ODD

GRAPH = bl.OpGraph.from_edges([1, 2], [(0, 1, 10)])
CLUSTER = bl.Cluster.uniform(2)
THROUGHPUT = bl.throughput(GRAPH, CLUSTER, bl.Placement(device=[0, 1]))


def swept(**changed):
    return bl.sweep(GRAPH, **{"devices": [1], "placer": ["single"], "executor": "here", "progress": False, **changed})


STEP = (arguments.TRACED, bl.Placement(device=[0]))
GPT = {"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 16, "n_positions": 16}


def list_layouts(**changed):
    return bl.layouts(GPT, arguments.MACHINES, **{**arguments.TRAINING, **changed})


CALLS = {
    "an export to no cluster": lambda: bl.export(*STEP, "folder", cluster=5),
    "an export of no placement": lambda: bl.export(arguments.TRACED, [], "folder"),
    "a run of half a graph": lambda: bl.execute(*STEP, graph=0.5),
    "a run that ends after a text": lambda: bl.execute(*STEP, timeout=""),
    "a run that ends after 400 digits": lambda: bl.execute(*STEP, timeout=10**400),
    "a graph of minus 5,000 digits": lambda: bl.generators.random_dag(-(10**5000)),
    "minus 5,000 digits of micro-batches": lambda: bl.simulate(GRAPH, CLUSTER, STEP[1], micro_batches=-(10**5000)),
    "a search for minus 5,000 digits": lambda: bl.place(GRAPH, CLUSTER, "search", time_limit=-(10**5000)),
    "a step on no cluster": lambda: bl.apply(*STEP, cluster=True),
    "a step on kinds in an array": lambda: bl.apply(*STEP, kind=np.array([1.0, 2.0])),
    "a trace with a number as its name": lambda: bl.trace(len, np.ones(2), name=5),
    "a profile in modes of an array": lambda: bl.profile(arguments.TRACED, mode=np.ones(2)),
    "a profile of a numbered precision": lambda: bl.profile(arguments.TRACED, precision=5, gradients=5),
    "a model of a numbered type": lambda: bl.torch.hugging_face(arguments.LLAMA, dtype=5),
    "a model with labels in an array": lambda: bl.torch.hugging_face(arguments.LLAMA, labels=np.ones(2)),
    "layouts that are a text": lambda: list_layouts(layouts=" "),
    "layouts of 400 digits of sequences": lambda: list_layouts(global_batch=10**400),
    "layouts beside 400 digits of bytes": lambda: list_layouts(overhead_bytes=10**400),
    "layouts that are numbers": lambda: list_layouts(layouts=[1]),
    "layouts on hardware 0": lambda: list_layouts(hardware=0),
    "layouts by an efficiency of 1": lambda: list_layouts(efficiency=1),
    "layouts that tell a number": lambda: list_layouts(callback=1),
    "layouts with measured texts": lambda: list_layouts(measured=" "),
    "layouts with a fused list": lambda: list_layouts(fused_loss=[]),
    "layouts with half an overlap": lambda: list_layouts(overlap=0.5),
    "a layout for no file": lambda: bl.write_layout(bl.Layout(), model="x", **arguments.TRAINING),
    "an offloaded placement that is a number": lambda: bl.offloaded_placement(0, GRAPH, CLUSTER),
    "an edge of lists": lambda: bl.OpGraph.from_edges([1, 1], [([0], 1, 4)]),
    "a size that is a list": lambda: bl.OpGraph.from_edges([1, 1], [(0, 1, [])]),
    "one number for a column": lambda: bl.OpGraph.from_edges([1], temp_bytes=1e308),
    "no allowed sets": lambda: bl.OpGraph.from_edges([1], allowed_sets=None),
    "edges in an array without dimensions": lambda: bl.OpGraph.from_edges([1], np.array(2)),
    "names in an array without dimensions": lambda: bl.OpGraph.from_edges([1], names=np.array("a")),
    "memory in an array without dimensions": lambda: CLUSTER.with_memory(np.array(2)),
    "passes in an array without dimensions": lambda: bl.optimize(GRAPH, passes=np.array(2)),
    "placers in an array without dimensions": lambda: bl.compare(GRAPH, CLUSTER, np.array(2)),
    "outputs of the op before the first": lambda: GRAPH.outputs(-1),
    "outputs of no op": lambda: GRAPH.outputs(pd.NA),
    "readers of a tensor beyond the last": lambda: GRAPH.tensor_consumers(1),
    "the label of a tensor that is half": lambda: GRAPH.tensor_label(0.5),
    "a fit from half a seed": lambda: bl.fit(GRAPH, CLUSTER, seed=0.5),
    "a fit of some options": lambda: bl.fit(GRAPH, CLUSTER, every_option="some"),
    "the price of no bytes": lambda: bl.Link(1, 1).cost_us(pd.NA),
    "the price of bytes that were taken back": lambda: bl.Link(1, 1).cost_us(-1),
    "a device without a name": lambda: CLUSTER.index(pd.NA),
    "a link from the device before the first": lambda: CLUSTER.link_between(-1, 0),
    "lines of memory, or not": lambda: bl.simulate(GRAPH, CLUSTER, bl.Placement(device=[0, 1])).to_text(pd.NA),
    "peaks of no device": lambda: bl.simulate(GRAPH, CLUSTER, bl.Placement(device=[0, 1])).peak_parts(2),
    "400 digits of micro-batches": lambda: bl.unroll(GRAPH, 10**400),
    "no memory": lambda: CLUSTER.with_memory(None),
    "no batch": lambda: THROUGHPUT.samples_per_second(None),
    "a huge batch": lambda: THROUGHPUT.samples_per_second(10**400),
    "a seed of 65 bits": lambda: bl.place(GRAPH, CLUSTER, "metis", seed=2**64),
    "a seed of 400 digits": lambda: bl.place(GRAPH, CLUSTER, "hash", seed=10**400),
    "a name of 400 digits": lambda: bl.place(GRAPH, CLUSTER, 10**400),
    "a sweep on no cluster": lambda: swept(cluster=True),
    "a sweep of no passes": lambda: swept(passes=None),
    "a sweep with odd parameters": lambda: swept(params=1.5),
    "a sweep with an array of parameters": lambda: swept(params=np.ones(2)),
    "a sweep with odd parameters of a placer": lambda: swept(params={"single": None}),
    "a sweep of a placer that is a list": lambda: swept(placer=[[1]]),
    "a sweep to half a character": lambda: swept(path="\ud800"),
    "a sweep of 10^80 devices": lambda: swept(devices=[10**80]),
    "a sweep of 10^80 copies": lambda: swept(replicas=[10**80]),
    "a sweep of 10^80 micro-batches": lambda: swept(micro_batches=10**80),
    "a sweep whose progress is a table": lambda: swept(progress=pd.DataFrame()),
    "a callback of fit that takes nothing": lambda: bl.fit(GRAPH, CLUSTER, callback=lambda: None),
    "a callback of search that is a class": lambda: bl.place(GRAPH, CLUSTER, "search", callback=object),
    "a callback of a sweep that takes nothing": lambda: swept(on_row=lambda: None),
    "errors in a square": lambda: bl.robustness(GRAPH, CLUSTER, bl.Placement(device=[0, 1]), error=np.zeros((2, 2))),
    "a secret in half a character": lambda: bl.make_secret("\ud800"),
    "a secret with a NUL": lambda: bl.make_secret("a\0b"),
    "a secret without a name": lambda: bl.make_secret(""),
    "a graph in no file": lambda: bl.load_graph(""),
    "a graph in a name with a NUL": lambda: bl.load_graph("a\0.json"),
    "more samples than memory": lambda: bl.robustness(GRAPH, CLUSTER, bl.Placement(device=[0, 1]), samples=2**31),
    "more threads than machines have": lambda: bl.place(GRAPH, CLUSTER, "search", workers=2**31),
    "a trade that is an array": lambda: bl.place(GRAPH, CLUSTER, "search", give_up=[np.array([])]),
    "no parameters of a placer": lambda: bl.compare(GRAPH, CLUSTER, ["m-etf"], params={"m-etf": None}, progress=False),
    "a fit with a placer that is a list": lambda: bl.fit(GRAPH, CLUSTER, placers=[[]]),
    "a sweep of 400 digits of micro-batches": lambda: swept(micro_batches=10**400),
    "a sweep of 64 bits of micro-batches": lambda: swept(micro_batches=2**63),
    "a wait for ever": lambda: wait_for_quiet(lambda: 0.0, float("nan")),
}


@pytest.mark.parametrize("case", CALLS)
def test_odd_arguments_are_refused_in_one_sentence(case):
    with pytest.raises(bl.BaechiLabError) as refused:
        CALLS[case]()
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 600


GENERATED = {  # each argument of each generator, and sizes that no memory holds
    "chain": {"n": 3},
    "fork_join": {"width": 2, "length": 2},
    "layered_dag": {"n": 6, "width": 2},
    "random_dag": {"n": 6, "window": 2, "colocation_groups": 2},
    "pipeline": {"forward_us": [1.0, 2.0], "backward_us": [1.0, 2.0], "weight_us": [1.0, 1.0]},
    "unrolled_rnn": {"steps": 2, "layers": 1},
    "gnmt": {"length": 2, "layers": 1},
    "with_backward": {"forward": bl.generators.chain(3)},
}


@pytest.mark.parametrize("name", GENERATED)
def test_generators_refuse_odd_and_huge_arguments_in_one_sentence(name):
    """`random_dag(n=2**31)` filled the memory of the machine; 10**400 ended in a foreign exception."""
    generator = getattr(bl.generators, name)
    parameters = inspect.signature(generator).parameters.values()
    plain = {p.name: p.default for p in parameters if p.default is not p.empty} | GENERATED[name]
    generator(**plain)
    for key in plain:
        for odd in ODD:
            with contextlib.suppress(bl.BaechiLabError):
                assert generator(**{**plain, key: odd}).n < 1000, (key, odd)


def test_sizes_of_generated_graphs_have_a_stated_limit():
    for call in (
        lambda: bl.generators.random_dag(2**31),
        lambda: bl.generators.random_dag(100, degree=1e12),
        lambda: bl.generators.chain(10_000_001),
        lambda: bl.generators.unrolled_rnn(10**6, 10),
        lambda: bl.generators.fork_join(10**4, 10**4),
    ):
        with pytest.raises(bl.InvalidInput, match=r"at most 10000000 ops|more than (10000000 ops|50000000 edges)"):
            call()


@pytest.mark.tensorflow
@pytest.mark.parametrize("odd", [5, "", "a\0b", "\ud800", b"", [], True, 1.5])
def test_odd_places_of_steps_are_refused_in_one_sentence(odd):
    """Folders of exports, and secrets of workers, which are looked at before anything starts."""
    step = bl.models.build("mlp", batch_size=2, layers=1)
    graph = bl.profile(step, mode="estimated")
    placement = bl.Placement(device=[0] * graph.n)
    calls = {
        "folder": lambda: bl.export(step, placement, odd),
        "secret": lambda: bl.execute(step, placement, secret=odd, workers=["127.0.0.1:1"]),
        "secret is ": lambda: bl.execute(step, placement, secret=odd),
    }
    for name, call in calls.items():
        with pytest.raises(bl.InvalidInput, match=rf"{name}.*; it must name a (file|folder)"):
            call()
    with pytest.raises(bl.InvalidInput, match="folder is None; it must name a folder"):
        bl.export(step, placement, None)


@pytest.mark.slow
@pytest.mark.subprocess
def test_a_deleted_folder_ends_nothing_that_needs_none(tmp_path):
    code = """
import os, sys
import baechi_lab as bl
os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])
graph, cluster = bl.OpGraph.from_edges([1, 2, 3], [(0, 1, 8)]), bl.Cluster.uniform(2)
for name in ("m-etf", "exact"):
    print(bl.place(graph, cluster, name).placer)
print(len(bl.sweep(graph, devices=[1, 2], placer=["single"], progress=False)))
from baechi_lab.exporters.folder import check_place
print(check_place(os.sep + "tmp").is_dir() or True)
try:
    check_place("out")
except bl.InvalidInput as error:
    print(error)
"""
    (tmp_path / "gone").mkdir()
    (tmp_path / "free").mkdir()
    code = code.replace('os.sep + "tmp"', repr(str(tmp_path / "free")))
    completed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "gone")], capture_output=True, text=True, timeout=200
    )
    text = "folder is 'out', and the current folder was deleted; give an absolute path, or change the folder"
    assert completed.stdout.splitlines() == ["m-etf", "exact", "2", "True", text], completed.stderr


def test_odd_subjects_of_commands_are_refused_in_one_sentence(tmp_path, capsys):
    """A name longer than a file's may be, and a file of one's own that ends the program."""
    from baechi_lab.cli import main

    program = tmp_path / "ends.py"
    program.write_text("import sys\nsys.exit(7)\n")
    for command in (["sweep", "a" * 5000, "--devices", "1"], ["profile", f"{program}:step"]):
        assert main(command) == 2
        error_text = capsys.readouterr().err
        assert error_text.count("\n") == 1 and len(error_text) < 600
    assert "raised SystemExit: 7" in error_text


def test_every_public_function_is_fuzzed(tmp_path):
    """Exceptions, records that only the library makes, and what starts processes are left out by name."""
    fuzzed = {function for function, _ in arguments.calls(tmp_path).values()}
    by_other_calls = {
        "Execute",
        "ListScheduler",
        "Optimize",
        "OpGraph",
        "Pipeline",
        "Place",
        "profile_program",
        "trace",
    }
    left_out = arguments.NOT_CALLED | arguments.RESULTS | arguments.WITHOUT_ARGUMENTS | by_other_calls
    public = {name: getattr(bl, name) for name in bl.__all__ if callable(getattr(bl, name))}
    errors = {name for name, value in public.items() if isinstance(value, type) and issubclass(value, Exception)}
    assert {name for name in public.keys() - errors - left_out if public[name] not in fuzzed} == set()


@pytest.mark.slow
def test_numbers_that_python_does_not_write_are_refused_in_one_sentence(tmp_path):
    """Python writes no whole numbers of more than 4,300 digits: messages that showed one raised a ValueError of Python."""
    huge = 10**5000
    foreign = set()
    for name, (function, right) in arguments.calls(tmp_path).items():
        for key in right:
            for odd in (huge, -huge, [huge], [[-huge]], {"x": huge}, {huge: 1}):
                try:
                    function(**{**right, key: odd})
                except bl.BaechiLabError as refusal:
                    assert len(str(refusal)) < 600, (name, key)
                except ValueError as error:
                    foreign.add((name, key, str(error)))
    assert not foreign
