"""`bl.sweep`: rows equal to the library's numbers, resumable, through any executor."""

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab import passes
from baechi_lab.errors import ExecutionError, InvalidInput, MissingPackage, UnknownNameError
from baechi_lab.graph.step import BuiltFrom
from baechi_lab.placers.m_etf import METF
from baechi_lab.sweeps import best, grid
from baechi_lab.sweeps.store import ComputedAgain, Store

BUILT_SIZES = []


def graph_of(batch_size):
    """A stage that takes 1 us per sample, then four of 2 us per sample that can run beside one another."""
    BUILT_SIZES.append(batch_size)
    time = [batch_size, *[2 * batch_size] * 4]
    return bl.OpGraph.from_edges(time, [(0, k, 4) for k in range(1, 5)], persistent_bytes=[10] * 5)


GRID = {
    "batch_size": [2, 4],
    "devices": [1, 2],
    "memory_bytes": [20, 100],
    "placer": ["m-etf"],
    "passes": (),
    "cluster": bl.Cluster.uniform(1, link=bl.Link(1.0, 0.0), comm="parallel"),
    "progress": False,
}


@pytest.fixture(autouse=True)
def _forget():
    BUILT_SIZES.clear()


def test_rows_equal_compare():
    table = bl.sweep(graph_of, executor="here", **GRID)
    assert len(table) == 2 * 2 * 2
    for _, row in table.iterrows():
        cluster = GRID["cluster"].resized(int(row["devices"])).with_memory(int(row["memory_bytes"]))
        one = bl.compare(graph_of(int(row["batch_size"])), cluster, ["m-etf"], progress=False).iloc[0]
        assert bool(row["feasible"]) == bool(one["feasible"])
        if row["feasible"]:
            assert row["makespan_us"] == one["makespan_us"] and row["gap"] == one["gap"]
            assert row["samples_per_second"] == row["batch_size"] / one["makespan_us"] * 1e6


def test_bug_devices_had_8_gb_whatever_the_cluster_s_had():
    """An op that needs 20 GB fits the 80 GB of a named device, and of two devices the larger one alone."""
    graph = bl.OpGraph.from_edges([1.0], [], persistent_bytes=[20 << 30])
    options = {"placer": "m-etf", "passes": (), "progress": False, "executor": "here"}
    named = bl.sweep(graph, devices=1, cluster=bl.Cluster.uniform(1, kind="a100"), **options)
    assert named.memory_bytes.tolist() == [80_000_000_000] and named.feasible.all()
    pair = bl.Cluster.uniform(2).with_memory(["8GB", "24GiB"])
    rows = bl.sweep(graph, devices=[1, 2], cluster=pair, **options)
    assert rows.memory_bytes.tolist() == [8_000_000_000, 8_000_000_000] and rows.feasible.tolist() == [False, True]


@pytest.mark.parametrize("replicas", [1, 2])
def test_bug_all_devices_were_like_the_first_and_had_the_link_of_the_first_pair(replicas):
    """Two machines of two devices, the second device half as fast: rows of 4 devices are of exactly this cluster."""
    cluster = bl.Cluster.machines(4, 2, memory_bytes="1GB", link=bl.Link(1.0, 0.0), network=bl.Link(50.0, 0.0))
    slow = [bl.Device(d.name, d.kind, d.memory_bytes, 0.5 if k % 2 else 1.0) for k, d in enumerate(cluster.devices)]
    cluster = cluster.replace(devices=slow)
    graph = bl.generators.pipeline([8.0] * 4, [8.0] * 4, output_bytes=4)
    options = {"passes": (), "micro_batches": 4, "progress": False, "executor": "here"}
    rows = bl.sweep(
        graph, devices=[4, 2], memory_bytes="1GB", placer="m-topo", cluster=cluster, replicas=replicas, **options
    )
    for count, row in zip((4, 2), rows.itertuples(), strict=True):
        smaller = bl.Cluster(cluster.devices[:count], cluster.link if count == 4 else bl.Link(1.0, 0.0), cluster.comm)
        share = (
            bl.Cluster(smaller.devices[: count // replicas], bl.Link(1.0, 0.0), smaller.comm)
            if replicas > 1
            else smaller
        )
        placement = bl.place(graph, share, "m-topo")
        if replicas > 1:
            copies = [(d, d + share.n) for d in sorted(set(placement.device.tolist()))]
            placement = placement.replace(replicas=copies)
        assert row.makespan_us == bl.simulate(graph, smaller, placement, micro_batches=4).makespan_us


def test_the_ops_of_a_graph_are_grouped_once_for_all_of_its_rows(monkeypatch):
    """A device of 60 bytes holds the whole model, as one of 100 does."""
    batch_us = []
    optimize = bl.optimize
    monkeypatch.setattr(
        passes, "optimize", lambda graph, *a, **k: batch_us.append(graph.duration_us[0]) or optimize(graph, *a, **k)
    )
    options = {**GRID, "batch_size": [6, 8], "memory_bytes": [60, 100], "passes": ("coplacement",)}
    table = bl.sweep(graph_of, executor="here", **options)
    assert table.feasible.all() and len(table) == 8 and batch_us == [6.0, 8.0]


def test_one_device_is_the_sum_of_the_work():
    table = bl.sweep(graph_of, executor="here", **GRID)
    row = table[(table.batch_size == 4) & (table.devices == 1) & (table.memory_bytes == 100)].iloc[0]
    assert row["makespan_us"] == 4 + 4 * 8


def test_what_does_not_fit_is_a_row_with_its_reason():
    table = bl.sweep(graph_of, executor="here", **GRID)
    row = table[(table.devices == 1) & (table.memory_bytes == 20)].iloc[0]
    # 5 ops of 10 persistent bytes do not fit into 20.
    assert not row["feasible"] and row["error"]


def test_a_finished_file_computes_nothing(tmp_path):
    path = tmp_path / "s.sqlite"
    first = bl.sweep(graph_of, executor="here", path=path, **GRID)
    BUILT_SIZES.clear()
    rows = []
    second = bl.sweep(graph_of, executor="here", path=path, on_row=rows.append, **GRID)
    assert BUILT_SIZES == [] and rows == [] and first.equals(second)


def test_an_interrupted_sweep_resumes_where_it_stopped(tmp_path):
    path, rows_before = tmp_path / "s.sqlite", []

    def interrupt(row):
        rows_before.append(row)
        if len(rows_before) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bl.sweep(graph_of, executor="here", path=path, on_row=interrupt, **GRID)
    store = Store(path)
    stored_count = len(store.keys())
    store.close()
    assert stored_count == 3
    rows_after = []
    table = bl.sweep(graph_of, executor="here", path=path, on_row=rows_after.append, **GRID)
    assert len(rows_after) == 8 - 3 and len(table) == 8
    plain = bl.sweep(graph_of, executor="here", **GRID)
    timeless = [c for c in table.columns if c != "place_seconds"]
    assert table[timeless].equals(plain[timeless])


def test_cancelling_keeps_finished_rows(tmp_path):
    stop, rows = threading.Event(), []

    def on_row(row):
        rows.append(row)
        stop.set()

    table = bl.sweep(graph_of, executor="here", path=tmp_path / "s.sqlite", on_row=on_row, cancel=stop, **GRID)
    assert 1 <= len(table) == len(rows) < 8


def test_a_thread_pool_of_the_caller_stays_open():
    with ThreadPoolExecutor(2) as pool:
        table = bl.sweep(graph_of, executor=pool, **GRID)
        assert pool.submit(max, 1, 2).result() == 2
    plain = bl.sweep(graph_of, executor="here", **GRID)
    assert table["makespan_us"].equals(plain["makespan_us"])


@pytest.mark.subprocess
@pytest.mark.slow
def test_the_default_pool_of_processes():
    graph = bl.OpGraph.from_edges([4, 8, 8], [(0, 1, 4), (0, 2, 4)])
    table = bl.sweep(graph, devices=[1, 2], memory_bytes="1GB", placer="single", passes=(), progress=False)
    assert table["makespan_us"].tolist() == [20.0, 20.0]


def test_more_values_reuse_the_rows_that_are_there(tmp_path):
    path, fresh = tmp_path / "s.sqlite", []
    bl.sweep(graph_of, executor="here", path=path, **GRID)
    wider = {**GRID, "placer": ["m-etf", "single"]}
    bl.sweep(graph_of, executor="here", path=path, on_row=fresh.append, **wider)
    assert len(fresh) == 8 and {row["placer"] for row in fresh} == {"single"}
    assert BUILT_SIZES == [2, 4]  # the graphs were in the file


def test_the_best_that_fits():
    table = bl.sweep(graph_of, executor="here", **GRID)
    best_row = best(table)
    assert best_row["feasible"]
    assert best_row["samples_per_second"] == table[table.feasible]["samples_per_second"].max()
    with pytest.raises(bl.InfeasiblePlacement, match="no setting fits"):
        best(table[~table.feasible])


def test_bug_rounding_errors_chose_the_best_of_equal_rows():
    import pandas as pd

    settings = {"feasible": True, "error": "", "samples_per_second": float("nan"), "devices": 1}
    table = pd.DataFrame(
        {
            "makespan_us": [244.0, 243.99999999999994, 244.0],
            "memory_bytes": [4e9, 8e9, 4e9],
            "peak_bytes": [3e9, 3e9, 2e9],
        }
    ).assign(**settings)
    assert best(table).name == 2  # of equal steps the smaller memory, then the lower peak
    rates = table.assign(samples_per_second=[8.0, 8.000000000000002, 8.0])
    assert best(rates).name == 2
    assert best(rates.assign(samples_per_second=[8.0, 8.0001, 8.0])).name == 1


def test_placer_parameters_are_part_of_a_row(tmp_path):
    path, rows = tmp_path / "s.sqlite", []
    small = {**GRID, "batch_size": [2], "devices": [2], "memory_bytes": [100]}
    bl.sweep(graph_of, executor="here", path=path, **small)
    bl.sweep(graph_of, executor="here", path=path, params={"m-etf": {"reservation": True}}, on_row=rows.append, **small)
    assert [row["params"] for row in rows] == ['{"reservation": true}']


SMALL = {"batch_size": [8], "devices": [2], "placer": "m-etf", "progress": False, "executor": "here"}


def chain_of(factor):
    """One step of a chain of 4 ops on one device takes 4 * factor * batch microseconds."""
    return lambda b: bl.OpGraph.from_edges([factor * b] * 4, [(0, 1, 4), (1, 2, 4), (2, 3, 4)])


def test_rows_of_another_function_are_not_those_of_this_one(tmp_path):
    path = tmp_path / "s.sqlite"
    for factor in (1, 10, 1, 3):
        assert bl.sweep(chain_of(factor), path=path, **SMALL)["makespan_us"].tolist() == [4 * factor * 8]
    fresh = []
    for factor in (1, 10, 3):
        bl.sweep(chain_of(factor), path=path, on_row=fresh.append, **SMALL)
    assert fresh == []


def test_a_function_that_reads_a_file_is_called_again(tmp_path):
    path, file, fresh = tmp_path / "s.sqlite", tmp_path / "us.txt", []

    def graph_from_file(b):
        with open(file) as stream:
            return chain_of(float(stream.read()))(b)

    def makespan():
        with pytest.warns(ComputedAgain, match="has no identity .*open"):
            return bl.sweep(graph_from_file, path=path, on_row=fresh.append, **SMALL)["makespan_us"].tolist()

    file.write_text("1")
    assert makespan() == [32] and len(fresh) == 1
    assert makespan() == [32] and len(fresh) == 1  # the same graph: its row is in the file
    file.write_text("2")
    assert makespan() == [64] and len(fresh) == 2


def test_start_placements_and_arrays_in_parameters_count_by_content(tmp_path):
    graph = bl.OpGraph.from_edges([9, 1, 9, 1], [(0, 1, 8), (2, 3, 8)])
    path, options = tmp_path / "s.sqlite", {**SMALL, "batch_size": None, "placer": "search", "passes": ()}

    def makespan(start):
        params = {"search": {"start": start, "time_limit": None, "evaluations": 1}}
        return bl.sweep(graph, path=path, params=params, **options)["makespan_us"].tolist()

    def alone(start):
        one = bl.Cluster.uniform(2, memory_bytes="8GB")
        return [
            bl.simulate(
                graph, one, bl.place(graph, one, "search", start=start, time_limit=None, evaluations=1)
            ).makespan_us
        ]

    starts = [bl.Placement(device=[0, 0, 1, 1]), bl.Placement(device=[0, 1, 0, 1])]
    assert [makespan(start) for start in starts] == [alone(start) for start in starts]


def test_parameters_without_an_identity_are_computed_and_not_kept(tmp_path):
    path, fresh = tmp_path / "s.sqlite", []
    lock = threading.Lock()

    def callback(*progress):
        with lock:
            return False

    for _ in range(2):
        with pytest.warns(ComputedAgain, match="rows of search have no identity"):
            table = bl.sweep(
                chain_of(1),
                path=path,
                params={"search": {"callback": callback, "evaluations": 1}},
                on_row=fresh.append,
                **{**SMALL, "placer": "search"},
            )
        assert table["makespan_us"].tolist() == [32]
    assert len(fresh) == 2


PASSING = [
    MissingPackage("placer 'metis' needs the package 'pymetis'"),
    MemoryError("no room"),
    ExecutionError("died"),
    RuntimeError("cancelled"),
    UnknownNameError.of("LP solver", "mosek", ["highs"]),
    bl.FormatError("damaged"),
]
LASTING = [bl.InfeasiblePlacement("does not fit"), bl.InvalidInput("k is 0"), bl.CostError("duration is -1")]


@pytest.mark.parametrize("error", PASSING + LASTING, ids=lambda e: type(e).__name__)
def test_errors_that_may_pass_are_tried_again(tmp_path, monkeypatch, error):
    path = tmp_path / "s.sqlite"
    with monkeypatch.context() as patch:
        patch.setattr(METF, "assign", lambda *_: (_ for _ in ()).throw(error))
        table = bl.sweep(chain_of(1), path=path, **SMALL)
    assert table["makespan_us"].isna().all() and str(error) in table["error"][0] and not table["feasible"][0]
    second_table = bl.sweep(chain_of(1), path=path, **SMALL)
    if error in PASSING:
        assert second_table["makespan_us"].tolist() == [32] and second_table["error"].tolist() == [""]
    else:
        assert second_table["error"].tolist() == table["error"].tolist()


def test_a_graph_that_could_not_be_made_is_tried_again(tmp_path):
    path, missing = tmp_path / "s.sqlite", [True]

    def graph_of(b):
        if missing:
            raise MissingPackage("needs the package 'x'")
        return chain_of(1)(b)

    assert bl.sweep(graph_of, path=path, **SMALL)["error"].tolist() == ["needs the package 'x'"]
    missing.clear()
    assert bl.sweep(graph_of, path=path, **SMALL)["makespan_us"].tolist() == [32]


def test_a_step_is_known_by_its_program_and_not_by_its_values_or_times():
    """What tracing took, and random initial values, differ in every process that goes on with a sweep."""

    def key(graph=b"graph", weight=1.0, built_from=None, **info):
        spec = bl.TensorSpec("w", "float32", (1,))
        values = (np.array([weight], dtype=np.float32),)
        step = bl.Step("tiny", graph, (), (), (), (spec,), values, info=info, built_from=built_from)
        return grid.graph_key(step, 8, grid.Profiling())

    assert key(trace_seconds=1.0) == key(weight=2.0, trace_seconds=3.0)
    small, large = (BuiltFrom("mlp", {"units": units}) for units in (3, 4))
    assert key() != key(graph=b"other") and key(built_from=small) != key(built_from=large)


def test_another_release_computes_its_own_rows(tmp_path, monkeypatch):
    path, fresh = tmp_path / "s.sqlite", []
    bl.sweep(chain_of(1), path=path, **SMALL)
    monkeypatch.setattr(grid, "__version__", "99.0")
    bl.sweep(chain_of(1), path=path, on_row=fresh.append, **SMALL)
    assert len(fresh) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": [0]}, "devices is 0"),
        ({"batch_size": []}, "batch_size is empty"),
        ({"batch_size": [1.5]}, "batch_size is 1.5"),
        ({"placer": ["m-eft"]}, "m-etf"),
        ({"passes": "fusion"}, "passes is the text"),
        ({"scheduler": "fivo"}, "fifo"),
        ({"executor": "dask"}, "executor is 'dask'"),
        ({"executor": 3}, "executor is 3"),
        ({"memory_bytes": ["8 parsecs"]}, "not an amount of memory"),
    ],
)
def test_bad_grids_are_refused_before_anything_runs(changes, message):
    with pytest.raises(bl.InvalidInput) as error:
        bl.sweep(graph_of, **{**GRID, "executor": "here", **changes})
    assert message in str(error.value) and BUILT_SIZES == []


def test_bad_subjects_are_refused():
    with pytest.raises(bl.InvalidInput, match="leave batch_size out"):
        bl.sweep(graph_of(2), **{**GRID, "executor": "here"})
    with pytest.raises(bl.UnknownNameError, match="gnmt"):
        bl.sweep("gmnt", **{**GRID, "executor": "here"})
    with pytest.raises(bl.CostError, match="of kind 'h100' and the graph was estimated for a100"):
        estimated = graph_of(2).replace(duration_by_kind={"a100": graph_of(2).duration_us})
        other_devices = bl.Cluster.uniform(1, kind="h100")
        bl.sweep(estimated, **{**GRID, "executor": "here", "batch_size": None, "cluster": other_devices})
    with pytest.raises(bl.InvalidInput, match="not on 3"):
        bl.sweep(3, **{**GRID, "executor": "here"})


def test_foreign_files_are_left_alone(tmp_path):
    path = tmp_path / "other.sqlite"
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE mine (x)")
    base.commit()
    base.close()
    with pytest.raises(bl.BaechiLabError, match="no sweep made"):
        bl.sweep(graph_of, path=path, executor="here", **GRID)
    text = tmp_path / "text.sqlite"
    text.write_text("no database" * 100)
    with pytest.raises(bl.BaechiLabError, match="cannot be used"):
        bl.sweep(graph_of, path=text, executor="here", **GRID)


def test_measured_rows_are_of_no_hardware():
    with pytest.raises(InvalidInput, match="mode is 'measured' and hardware is 'h100'"):
        bl.sweep("mlp", batch_size=[4], profile="measured", hardware="h100")
