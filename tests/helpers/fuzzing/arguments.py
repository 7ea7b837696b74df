"""Odd arguments to public functions: every answer is a result or one sentence."""

import contextlib
import tempfile
from pathlib import Path

import networkx
import numpy as np
import pandas as pd

import baechi_lab as bl
from baechi_lab import viz
from baechi_lab.graph.formats.files import load_placement, load_timeline, save

from . import mutations
from .case import Case

GRAPH, CLUSTER = mutations.graphs()[0], bl.Cluster.uniform(2, memory_bytes="1GB", link=bl.Link(1.0, 0.001))
PLACED = bl.Placement(device=[0, 1, 0, 1, 1])
TIMELINE = bl.simulate(GRAPH, CLUSTER, PLACED)
LENGTHS = {"time_limit", "steps", "warmup", "runs"}
"""Arguments that say how long a call takes."""
MOST_SECONDS_OR_RUNS = 5
"""Largest number of seconds, steps or runs that a case asks for; more would take as long as it says."""
HOSTED = CLUSTER.with_host("1GB")
PIPELINE = bl.generators.pipeline([1.0, 2.0], [2.0, 2.0])
STAGES = bl.Placement(device=[0, 1] * (PIPELINE.n // 2))

ODD = [
    None,
    True,
    False,
    "",
    " ",
    "x",
    "\0",
    "a\0b",
    "\ud800",
    "auto",
    "m-etf",
    "1GB",
    b"",
    b"x",
    0,
    1,
    2,
    5,
    -1,
    1.5,
    -0.5,
    0.0,
    1e308,
    5e-324,
    float("nan"),
    float("inf"),
    -float("inf"),
    2**31,
    2**63,
    -(2**63) - 1,
    10**400,
    -(10**400),
    1j,
    [],
    [[]],
    [1],
    [None],
    ["x"],
    [-1],
    [10**400],
    [float("nan")],
    (),
    (1, 2),
    (0, 1, 2, 3),
    {},
    {"x": 1},
    {1: 2},
    {"m-etf": None},
    set(),
    {1},
    range(3),
    np.array(2),
    np.array([]),
    np.array([1.0, np.nan]),
    np.array(["x"]),
    np.zeros((2, 2)),
    np.float32(1.5),
    np.int8(1),
    np.True_,
    np.str_("x"),
    np.datetime64("nat"),
    pd.NA,
    pd.NaT,
    pd.Series([1, 2]),
    pd.DataFrame(),
    object(),
    object,
    len,
    lambda *a, **k: None,
    lambda: 1 / 0,
    GRAPH,
    CLUSTER,
    PLACED,
    TIMELINE,
    TIMELINE.transfers,
    bl.Link(1, 1),
    bl.Device("d", "gpu", 1),
    Path("x"),
    Path("/"),
    networkx.DiGraph(),
    bl.OpGraph,
    ValueError("x"),
    Ellipsis,
    NotImplemented,
    iter([]),
    slice(3),
    memoryview(b"x"),
]
"""What somebody may give by mistake."""

SEARCH = {"time_limit": 0.05, "evaluations": 20, "seed": 0}
SWEEP = {
    "devices": [1],
    "placer": ["single"],
    "executor": "here",
    "progress": False,
    "batch_size": None,
    "memory_bytes": 10**9,
    "micro_batches": None,
    "schedule": None,
    "replicas": 1,
    "passes": (),
    "params": None,
    "path": None,
    "cluster": CLUSTER,
}
STEP = {"micro_batches": 2, "schedule": "1f1b"}
BATCH = np.ones((2, 3), dtype=np.float32)
TRACED = bl.Step("empty", b"", (), (), (), (), ())
"""A step of no ops: a placement of one op is refused before any process starts."""
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 16,
}
"""A configuration in the format of Hugging Face."""
MACHINES = bl.Cluster.machines(4, 2, kind="a100", memory_bytes="80GB")
TRAINING = {"global_batch": 8, "sequence_length": 16}
NOT_CALLED = {"LocalCluster", "Workbench", "calibrate", "measure_cluster", "measure_link"}
"""Names of the package that start processes, a notebook's page or long measurements: their tests are elsewhere."""
RESULTS = {"NativeRun", "Recording", "Result", "Run", "Step", "TensorSpec", "Timeline", "WrittenPlan"}
"""Records that only the library makes."""
WITHOUT_ARGUMENTS = {"list_passes", "list_placers"}


def calls(folder):
    """Name -> (function, arguments that are right)."""
    files = {name: folder / f"{name}.json" for name in ("graph", "cluster", "placement", "timeline", "new")}
    for name, record in (("graph", GRAPH), ("cluster", CLUSTER), ("placement", PLACED), ("timeline", TIMELINE)):
        save(record, files[name])
    triples = [(0, 1, 8), (1, 2, 8)]
    devices = (bl.Device("a", "gpu", 100), bl.Device("b", "cpu", 100))
    on = {"graph": GRAPH, "cluster": CLUSTER}
    placed_graph = {**on, "placement": PLACED}
    methods = {
        "with_memory": (CLUSTER.with_memory, {"memory_bytes": "1GB"}),
        "with_host": (CLUSTER.with_host, {"memory_bytes": "1GB"}),
        "cluster_index": (CLUSTER.index, {"name": "gpu:0"}),
        "link_between": (CLUSTER.link_between, {"source": 0, "target": 1}),
        "cluster_replace": (CLUSTER.replace, {"link": bl.Link(1, 1), "comm": "parallel", "devices": devices}),
        "cost_us": (bl.Link(1, 1).cost_us, {"size_bytes": 8}),
        "graph_replace": (GRAPH.replace, {"duration_us": [1.0] * 5, "name": "x", "info": {}}),
        "outputs": (GRAPH.outputs, {"op": 0}),
        "tensor_consumers": (GRAPH.tensor_consumers, {"tensor": 0}),
        "tensor_label": (GRAPH.tensor_label, {"tensor": 0}),
        "from_networkx": (bl.OpGraph.from_networkx, {"graph": GRAPH.to_networkx()}),
        "placement_on": (PLACED.on, {"graph": GRAPH}),
        "placement_checked": (PLACED.checked, {"graph": GRAPH, "devices": 2}),
        "placement_replace": (PLACED.replace, {"device": [0] * 5, "order": None, "priority": [1.0] * 5, "info": {}}),
        "peak_parts": (TIMELINE.peak_parts, {"device": 0}),
        "to_text": (TIMELINE.to_text, {"memory": True}),
        "to_chrome_trace": (TIMELINE.to_chrome_trace, {"path": files["new"]}),
        "samples_per_second": (bl.throughput(GRAPH, CLUSTER, PLACED).samples_per_second, {"batch_size": 4}),
    }
    return {
        **methods,
        "from_edges": (
            bl.OpGraph.from_edges,
            {
                "duration_us": [1.0, 2.0, 3.0],
                "edges": triples,
                "names": ["a", "b", "c"],
                "temp_bytes": [0, 1, 2],
                "persistent_bytes": [0, 1, 2],
                "colocation": [-1, 0, 0],
                "colocation_names": ("g",),
                "allowed": [-1, 0, 0],
                "allowed_sets": (("gpu",),),
                "forward_of": [-1, -1, 0],
                "op_types": ["x", "y", "z"],
                "duration_by_kind": {"gpu": [1, 2, 3]},
                "name": "g",
                "info": {},
                "reuse": [0, 0, 0],
            },
        ),
        "device": (bl.Device, {"name": "a", "kind": "gpu", "memory_bytes": 100, "speed": 1.0}),
        "link": (bl.Link, {"latency_us": 1.0, "us_per_byte": 0.1, "overhead_us": 0.0}),
        "cluster": (bl.Cluster, {"devices": devices, "link": bl.Link(1, 1), "comm": "parallel"}),
        "uniform": (
            bl.Cluster.uniform,
            {"n": 2, "memory_bytes": "1GB", "link": bl.Link(1, 1), "comm": "duplex", "kind": "gpu", "speed": 1.0},
        ),
        "placement": (
            bl.Placement,
            {
                "device": [0, 1],
                "order": [1, 0],
                "priority": None,
                "placer": "x",
                "params": {},
                "seconds": 0.0,
                "info": {},
                "replicas": (),
            },
        ),
        "transfers": (
            bl.Transfers,
            {"tensor": [0], "source": [0], "target": [1], "start_us": [0.0], "receive_us": [0.0], "end_us": [1.0]},
        ),
        "violation": (bl.Violation, {"kind": "memory", "message": "x", "device": 0, "time_us": 1.0, "op": 0}),
        "place": (bl.place, {**on, "placer": "m-etf"}),
        "place_search": (
            lambda **k: bl.place(GRAPH, CLUSTER, "search", **k),
            {
                **SEARCH,
                "start": None,
                "schedulers": ("fifo",),
                "error": 0.1,
                "objective": "makespan",
                "workers": 1,
                "islands": 2,
                "give_up": (),
                "callback": None,
                "sum": False,
            },
        ),
        "place_random": (lambda **k: bl.place(GRAPH, CLUSTER, "random", **k), {"seed": 0}),
        "place_sct": (lambda **k: bl.place(GRAPH, CLUSTER, "m-sct", **k), {"threshold": 0.1}),
        "list_scheduler": (
            bl.ListScheduler,
            {"priority": "upward-rank", "choice": "earliest-finish", "insertion": True},
        ),
        "optimize": (bl.optimize, {**on, "passes": ("colocation", "fusion"), "forward_only": "auto"}),
        "unroll": (bl.unroll, {"graph": PIPELINE, "micro_batches": 2, "placement": STAGES}),
        "recompute": (bl.recompute, {"graph": GRAPH, "keep": [], "drop": None, "budget": None, "ordered": False}),
        "offload": (
            bl.offload,
            {
                "graph": PIPELINE,
                "cluster": HOSTED,
                "ops": None,
                "share": 1.0,
                "state": False,
                "host": None,
                "lead": 2.0,
            },
        ),
        "simulate": (bl.simulate, {**placed_graph, "scheduler": "fifo"}),
        "simulate_step": (bl.simulate, {"graph": PIPELINE, "cluster": CLUSTER, "placement": STAGES, **STEP}),
        "check": (bl.check, {**placed_graph, "timeline": TIMELINE}),
        "bounds": (bl.bounds, {**on, "effort": "normal", "micro_batches": None, "period": False}),
        "throughput": (bl.throughput, {**placed_graph, "sum": False, "micro_batches": None}),
        "ratios": (bl.ratios, {**placed_graph}),
        "robustness": (bl.robustness, {**placed_graph, "error": (0.1,), "samples": 3, "seed": 0, "scheduler": None}),
        "critical_path": (bl.critical_path, {**on}),
        "upward_rank": (bl.upward_rank, {**on}),
        "downward_rank": (bl.downward_rank, {**on}),
        "total_rank": (bl.total_rank, {**on}),
        "compare": (
            bl.compare,
            {
                **on,
                "placers": ["single", "m-etf"],
                "passes": (),
                "forward_only": "auto",
                "scheduler": None,
                "micro_batches": None,
                "schedule": None,
                "batch_size": None,
                "step": None,
                "measure": False,
                "steps": 2,
                "native": False,
                "backend": None,
                "workers": (),
                "params": {},
                "progress": False,
                "seed": 0,
            },
        ),
        "fit": (
            bl.fit,
            {
                "graph": GRAPH,
                "cluster": CLUSTER,
                "batch_size": None,
                "placers": ["single"],
                "time_limit": 0.0,
                "seed": 0,
                "every_option": False,
                "give_up": ("devices",),
                "callback": None,
            },
        ),
        "sweep": (bl.sweep, {"subject": GRAPH, **SWEEP}),
        "move": (bl.move, {**placed_graph, "moves": [("a", "gpu:0")]}),
        "write_plan": (
            bl.write_plan,
            {"graph": GRAPH, "placement": PLACED, "format": "dot", "cluster": CLUSTER, "timeline": None, "model": None},
        ),
        "save_graph": (bl.save_graph, {"graph": GRAPH, "path": files["new"]}),
        "save_cluster": (bl.save_cluster, {"cluster": CLUSTER, "path": files["new"]}),
        "save": (save, {"record": PLACED, "path": files["new"]}),
        "load_graph": (bl.load_graph, {"path": files["graph"]}),
        "load_cluster": (bl.load_cluster, {"path": files["cluster"]}),
        "load_placement": (load_placement, {"path": files["placement"]}),
        "load_timeline": (load_timeline, {"path": files["timeline"]}),
        "load_trace": (bl.load_trace, {"path": files["graph"], "execution_trace": None}),
        "profile_program": (
            bl.profile_program,
            {
                "program": folder / "none.onnx",
                "hardware": "a100",
                "training": True,
                "batch_size": 2,
                "sizes": {},
                "optimizer_states": 0,
            },
        ),
        "make_secret": (bl.make_secret, {"path": folder / "graph.json"}),
        "pipeline": (
            lambda **k: (bl.Optimize(**{x: k[x] for x in ("passes", "forward_only")}) | bl.Place(k["placer"])).run(
                k["graph"], k["cluster"]
            ),
            {**on, "passes": ("fusion",), "forward_only": False, "placer": "m-topo"},
        ),
        "profile_stage": (
            bl.Profile,
            {"mode": "estimated", "hardware": "a100", "device": None, "warmup": 1, "runs": 1, "progress": False},
        ),
        "execute_stage": (bl.Execute, {"steps": 1, "warmup": 0, "cluster": None, "timeout": None}),
        "simulate_stage": (bl.Simulate, {"scheduler": "fifo", "micro_batches": None, "schedule": None}),
        "gantt": (
            lambda timeline, **k: viz.gantt(timeline, **k),
            {
                "timeline": TIMELINE,
                "transfers": True,
                "max_bars": 100,
                "title": None,
                "color_by": "device",
                "moved": False,
            },
        ),
        "memory_chart": (viz.memory, {"timeline": TIMELINE, "max_points": 100, "title": None}),
        "make_model": (_make_model, {"name": "mlp", "batch_size": 2, "layers": 2}),
        **_framework_calls(folder),
    }


def _framework_calls(folder):
    """What a framework, or a model by its configuration, is asked for."""
    step = {"step": TRACED, "placement": bl.Placement(device=[0]), "cluster": CLUSTER}
    options = {"graph": None, "micro_batches": None, "schedule": None, "reduction": None}
    model = {"model": LLAMA, **TRAINING, "precision": "mixed-bf16"}
    return {
        "apply": (bl.apply, {**step, "graph": None, "virtual": 2, "memory_limit": None, "kind": "cpu", "threads": 1}),
        "execute": (
            bl.execute,
            {
                **step,
                **options,
                "steps": 1,
                "warmup": 0,
                "timeout": 5.0,
                "on_step": None,
                "cancel": None,
                "native": False,
            },
        ),
        "export": (bl.export, {**step, **options, "folder": folder / "exported"}),
        "trace": (
            lambda fn, example, name: bl.trace(fn, example, name=name),
            {"fn": len, "example": BATCH, "name": "x"},
        ),
        "profile": (
            bl.profile,
            {
                "step_or_fn": TRACED,
                "mode": "estimated",
                "hardware": "a100",
                "precision": None,
                "device": None,
                "warmup": 1,
                "runs": 1,
                "timeout": 5.0,
                "progress": False,
                "gradients": None,
            },
        ),
        "hugging_face": (
            lambda **k: bl.torch.hugging_face(**k) and None,
            {"config": LLAMA, "batch_size": 1, "sequence_length": 4, "labels": True, "dtype": None},
        ),
        "machines": (
            bl.Cluster.machines,
            {
                "n": 4,
                "per_machine": 2,
                "kind": "a100",
                "memory_bytes": "80GB",
                "link": "nvlink",
                "network": "infiniband",
                "comm": "duplex",
            },
        ),
        "layout": (
            bl.Layout,
            {
                "tp": 1,
                "pp": 2,
                "dp": 2,
                "ep": 1,
                "cp": 1,
                "zero": 0,
                "micro_batch": 1,
                "schedule": "1f1b",
                "recompute": "none",
                "sequence_parallel": False,
                "stage_layers": (1, 1),
            },
        ),
        "layouts": (
            bl.layouts,
            {
                **model,
                "cluster": MACHINES,
                "layouts": [bl.Layout(pp=2, dp=2)],
                "hardware": "a100",
                "attention": "flash",
                "fused_loss": False,
                "overlap": True,
                "prefetch": 1,
                "overhead_bytes": 0,
                "measured": (),
                "efficiency": None,
            },
        ),
        "write_layout": (
            bl.write_layout,
            {**model, "layout": bl.Layout(pp=2, dp=2), "format": "torchrun", "per_machine": 2, "folder": None},
        ),
        "offloaded_placement": (
            bl.offloaded_placement,
            {"placement": STAGES, "graph": PIPELINE, "cluster": HOSTED},
        ),
    }


def _make_model(name, **params):
    from baechi_lab.models.registry import make_model

    return make_model(name, **params)


def cases(make_calls, count, seed):
    """One or two arguments of a call replaced by odd ones."""
    with tempfile.TemporaryDirectory() as name:
        functions = make_calls(Path(name))
        for function, arguments in functions.values():  # what is compiled on first use must not count for one case
            try:
                call_in_temporary_folder(function, arguments)
            except bl.BaechiLabError:  # a secret is never written over a file, a program is not there
                continue
        for k in range(count):
            rng = np.random.default_rng([seed, k])
            label = list(functions)[rng.integers(len(functions))]
            function, arguments = functions[label]
            changed_arguments = dict(arguments)
            for key in rng.choice(list(changed_arguments), int(rng.integers(1, 3))):
                value = ODD[rng.integers(len(ODD))]
                too_long = key in LENGTHS and isinstance(value, (int, float)) and value > MOST_SECONDS_OR_RUNS
                if not too_long and not (
                    key in ("on_step", "callback") and value is len
                ):  # errors of a caller's own function are his
                    changed_arguments[str(key)] = value
            changed = ", ".join(
                f"{key}={value!a:.80}" for key, value in changed_arguments.items() if value is not arguments[key]
            )
            yield Case(
                f"{label}({changed}) {seed}/{k}", lambda f=function, a=changed_arguments: call_in_temporary_folder(f, a)
            )


def call_in_temporary_folder(function, arguments):
    """Calls the function and prints its result. What it writes to relative paths is removed, also if it raises."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        repr(function(**arguments))
