"""The command: what it prints, and that bad input is one sentence and exit code 2."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from fewer import fast

import baechi_lab as bl
from baechi_lab.cli import COMMANDS, console, main, output
from baechi_lab.cli.options import parameters
from baechi_lab.graph.formats.files import load_placement, load_timeline, save
from baechi_lab.passes.optimize import PASSES

CLUSTER = ["--devices", "2", "--memory", "1kB", "--link-latency", "2", "--link-us-per-byte", "0", "--comm", "parallel"]


@pytest.fixture
def graph_file(tmp_path):
    """Two ops of 10 and a sink of 5, outputs of 100 bytes, in a file."""
    path = tmp_path / "graph.json.gz"
    bl.save_graph(bl.OpGraph.from_edges([10, 10, 5], [(0, 2, 100), (1, 2, 100)]), path)
    return str(path)


@pytest.fixture
def call(capsys):
    """Run the command; returns exit code, stdout, stderr."""

    def run(*argv):
        try:
            code = main([str(a) for a in argv])
        except SystemExit as stop:  # argparse
            code = stop.code
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def check_refused(result, text):
    """Exit code 2, nothing on stdout, one line on stderr that says what is wrong."""
    code, out, err = result
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert text in err


# -- results -------------------------------------------------------------------------------------------------


def test_compare_json_is_one_object_per_placer(call, graph_file):
    code, out, err = call("compare", graph_file, *CLUSTER, "--placers", "single,m-etf", "--no-optimize", "--json")
    assert code == 0
    assert err == ""
    rows = json.loads(out)
    assert [row["placer"] for row in rows] == ["single", "m-etf"]
    assert [row["makespan_us"] for row in rows] == [25.0, 17.0]  # 10 + 10 + 5 and 10 + 2 + 5
    assert [row["lower_bound_us"] for row in rows] == [17.0, 17.0]  # 10 + 2 + 5
    assert all(row["feasible"] is True for row in rows)
    assert {"placer", "makespan_us", "peak_bytes", "feasible", "place_seconds", "lower_bound_us", "gap"} <= set(rows[0])
    assert rows[0]["measured_us"] is None


def test_compare_equals_the_library(call, graph_file):
    _, out, _ = call("compare", graph_file, "--devices", "3", "--memory", "2kB", "--placers", "m-sct,m-topo", "--json")
    cluster = bl.Cluster.uniform(3, memory_bytes=2000)
    table = bl.compare(bl.load_graph(graph_file), cluster, ["m-sct", "m-topo"], passes=PASSES)
    rows = json.loads(out)
    for column in ("makespan_us", "peak_bytes", "lower_bound_us", "moved_bytes", "feasible"):
        assert [row[column] for row in rows] == table[column].tolist()


def test_compare_table_for_people(call, graph_file):
    code, out, _ = call("compare", graph_file, *CLUSTER, "--placers", "single,m-etf,auto", "--no-optimize")
    assert code == 0
    assert "25.00 us" in out
    assert "47.1%" in out  # 25 / 17 - 1
    assert "speedup" in out and "  1.00  " in out and "  1.47  " in out  # 25 / 25 and 25 / 17
    assert "auto: took the placement of " in out


def test_compare_says_what_the_table_would_hide(call, tmp_path):
    path = tmp_path / "chain.json"
    bl.save_graph(bl.OpGraph.from_edges([10, 10], [(0, 1, 8)]), path)
    _, out, _ = call("compare", path, "--placers", "random", "--seed", "0", "--no-optimize")
    assert out.count("note: one device alone takes 20.00 us") == 1 and "times slower than one device" in out


def test_compare_keeps_rows_that_do_not_fit(call, graph_file):
    code, out, err = call("compare", graph_file, "--memory", "150B", "--placers", "single,m-etf", "--json")
    assert code == 1 and re.search("none of 2 placers gave a placement that can run: .*150 B", err)
    rows = json.loads(out)
    assert [row["feasible"] for row in rows] == [False, False]
    assert all(row["error"] for row in rows)


def test_compare_places_groups_with_optimize(call, graph_file):
    code, out, _ = call("compare", graph_file, *CLUSTER, "--placers", "m-etf", "--optimize", "--json")
    assert code == 0
    assert json.loads(out)[0]["makespan_us"] >= 15.0


def test_place_then_simulate(call, graph_file, tmp_path):
    file = tmp_path / "placement.json"
    code, out, _ = call("place", graph_file, *CLUSTER, "--placer", "m-etf", "--no-optimize", "-o", file, "--json")
    assert code == 0
    printed = json.loads(out)
    assert printed["makespan_us"] == 17.0
    assert load_placement(file).n == 3
    trace, timeline, page = tmp_path / "trace.json", tmp_path / "timeline.json", tmp_path / "gantt.html"
    code, out, _ = call(
        "simulate", graph_file, file, *CLUSTER, "--trace", trace, "-o", timeline, "--figure", page, "--json"
    )
    assert code == 0
    simulated = json.loads(out)
    assert simulated["makespan_us"] == 17.0
    assert simulated["gap"] == pytest.approx(17 / 17 - 1)
    assert [d["name"] for d in simulated["devices"]] == ["gpu:0", "gpu:1"]
    assert load_timeline(timeline).makespan_us == 17.0
    assert "traceEvents" in json.loads(trace.read_text())
    assert "plotly" in page.read_text().lower()


def test_bug_a_script_took_a_placement_that_does_not_fit_for_a_good_one(call, graph_file, tmp_path):
    file = tmp_path / "placement.json"
    save(bl.Placement(device=[0, 0, 0]), file)
    code, out, err = call("simulate", graph_file, file, "--devices", "1", "--memory", "10B", "--json")
    assert code == 1 and not json.loads(out)["feasible"]
    assert re.fullmatch("baechi-lab simulate: the placement is not feasible: .*10 B.*\n", err)
    code, _, err = call("simulate", graph_file, file, "--devices", "1", "--memory", "1GB")
    assert code == 0 and not err


def test_placement_of_groups_is_written_for_ops(call, graph_file, tmp_path):
    file = tmp_path / "placement.json"
    code, out, _ = call("place", graph_file, *CLUSTER, "--placer", "m-topo", "-o", file)
    assert code == 0
    assert "m-topo" in out
    assert load_placement(file).on(bl.load_graph(graph_file)).n == 3


@pytest.mark.parametrize("command", fast(["place", "compare --placers m-etf", "sweep --placers m-etf"], 2))
def test_groups_that_do_not_fit_are_taken_apart_and_it_is_said(call, tmp_path, command):
    path = tmp_path / "heavy.json"
    bl.save_graph(bl.OpGraph.from_edges([1, 1], [(0, 1, 8)], persistent_bytes=[60, 60]), path)
    name, *arguments = command.split()
    code, out, _ = call(
        name, str(path), *arguments, "--devices", "2", "--memory", "100", "--passes", "coplacement,fusion"
    )
    assert code == 0 and "was found that fits: single ops were placed" in out


def test_place_parameters_and_text_output(call, graph_file):
    code, out, _ = call("place", graph_file, *CLUSTER, "--placer", "m-sct", "-p", "threshold=0.3")
    assert code == 0
    assert "lower bound" in out
    assert "gpu:1" in out


@pytest.mark.parametrize(
    ("passes", "proof"), [("colocation,fusion", "OPTIMAL of groups, bound 15.00 us"), ("", "OPTIMAL, bound 10.00 us")]
)
def test_place_says_what_is_proven(call, tmp_path, passes, proof):
    """a works 5 us for y. x and y, 5 us each, are a group: as one op it waits for a, its ops do not."""
    pytest.importorskip("ortools")
    path = tmp_path / "group.json"
    graph = bl.OpGraph.from_edges([5, 5, 5], [(0, 2, 0), (1, 2, 0)], colocation=[-1, 0, 0], colocation_names=("g",))
    bl.save_graph(graph, path)
    links = ["--devices", "2", "--link-latency", "0", "--link-us-per-byte", "0"]
    optimize = ["--passes", passes] if passes else ["--no-optimize"]
    code, out, _ = call("place", path, *links, "--placer", "exact", "--time-limit", "5", *optimize)
    assert code == 0 and proof in out


def test_place_lists_the_placers(call):
    code, out, _ = call("place", "--list")
    assert code == 0
    assert "m-sct" in out and max(map(len, out.splitlines())) <= 100
    for words in (("--list", "--json"), ("--json", "--list")):
        code, out, _ = call("place", *words)
        assert code == 0 and json.loads(out) == bl.list_placers()
    check_refused(call("place"), "GRAPH is missing")


def test_a_placer_named_twice_is_one_row(call, graph_file):
    _, out, _ = call("compare", graph_file, *CLUSTER, "--placers", "m-etf,single,m-etf", "--json")
    assert [row["placer"] for row in json.loads(out)] == ["m-etf", "single"]
    _, out, _ = call(
        "sweep", graph_file, "--devices", "1,1", "--memory", "1kB", "--placers", "m-etf,m-etf", "--json", "--jobs", "1"
    )
    assert len(json.loads(out)) == 1


def test_time_limits_reach_the_placers_that_have_one(call, graph_file, tmp_path):
    file = tmp_path / "p.json"
    assert call("place", graph_file, "--placer", "search", "--time-limit", "0.25", "-o", file)[0] == 0
    assert load_placement(file).params["time_limit"] == 0.25
    check_refused(call("place", graph_file, "--placer", "m-etf", "--time-limit", "1"), "placer 'm-etf' ends by itself")
    check_refused(
        call("place", graph_file, "--placer", "search", "--time-limit", "1", "-p", "time_limit=2"), "more than once"
    )
    arguments = ("--devices", "2", "--jobs", "1", "--json", "--time-limit", "0.25")
    _, out, _ = call("sweep", graph_file, *arguments, "--placers", "m-etf,search")
    params = {row["placer"]: row["params"] for row in json.loads(out)}
    assert '"time_limit": 0.25' in params["search"] and "time_limit" not in params["m-etf"]
    check_refused(call("sweep", graph_file, *arguments, "--placers", "m-etf"), "placer 'm-etf' ends by itself")


@pytest.mark.parametrize("command", [["place"], ["compare"], ["sweep"], ["fit"]])
@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "x"])
def test_a_time_limit_is_a_finite_number_of_seconds(call, graph_file, command, seconds):
    placer = {"place": ["--placer", "search"], "sweep": ["--placers", "search"]}.get(command[0], [])
    check_refused(call(*command, graph_file, *placer, f"--time-limit={seconds}"), f"--time-limit is {seconds!r}"[:15])


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "1e400", "0"])
def test_fidelity_waits_and_grades_for_a_finite_time(call, seconds, tmp_path):
    if seconds != "0":
        check_refused(call("fidelity", f"--wait={seconds}"), f"--wait is {seconds}; it must be a number of seconds")
    message = f"--seconds is {seconds}; it must be a number of seconds above 0"
    check_refused(call("grade", tmp_path, f"--seconds={seconds}"), message)


def test_a_worker_names_the_option_of_a_bad_address(call):
    for address in ("foo", "127.0.0.1:99999", ""):
        check_refused(call("worker", f"--bind={address}"), f"--bind is {address!r}; it must be HOST:PORT")


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ("8", "'8', which is 8 bytes; did you mean 8GB? (write 8B for bytes)"),
        ("0.5", "'0.5', which is 0.5 bytes; did you mean 0.5GB?"),
        ("8GB,16,8GB,8GB", "'16', which is 16 bytes; did you mean 16GB?"),
    ],
)
def test_a_memory_of_a_few_bytes_is_asked_about(call, graph_file, memory, message):
    check_refused(call("place", graph_file, "--memory", memory), message)


def test_a_worker_is_pinned_to_a_core_that_there_is(call):
    cores = len(os.sched_getaffinity(0))
    check_refused(
        call("worker", "--core", "9999"), f"--core is 9999; it must be one of the {cores} cores of this machine"
    )
    check_refused(call("worker", "--core", str(cores)), f"--core is {cores}")


def test_a_worker_warns_of_an_open_network_only_when_it_starts(call, tmp_path):
    for words in (["--secret", tmp_path / "none"], ["--bind", "no.such.host.example:1x"]):
        code, _, err = call("worker", "--trusted-network", *words)
        assert code == 2 and err.count("\n") == 1 and "warning" not in err


def test_the_configuration_of_a_model_is_told_apart_from_traces_and_graphs(call, tmp_path):
    path = tmp_path / "llama.json"
    path.write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64}))
    for command in ("profile", "compare", "place"):
        check_refused(call(command, path), f"is the configuration of a model; `baechi-lab profile hf:{path}`")


@pytest.mark.parametrize("name", ["mlp", "step.py:train", "hf:config.json"])
@pytest.mark.parametrize("command", ["place", "compare", "fit"])
def test_the_name_of_a_step_instead_of_a_graph_file_is_answered_with_the_command(call, command, name):
    check_refused(call(command, name), f"'baechi-lab profile {name} -o FILE.json'")


def test_tables_are_at_most_100_columns_wide(capsys):
    output.print_rows(
        ["placer", *("a measured value" for _ in range(9))], [["x" * 90, *("12.34 ms" for _ in range(9))]]
    )
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(line.count("12.34 ms") for line in lines) == 9
    assert sum(line.startswith("xxx") for line in lines) == 3  # 40 + 3 * 18 columns in each


@pytest.mark.parametrize(
    "line", ["compare GRAPH --batch-size 4", "sweep GRAPH --devices 1,2 --jobs 1 --micro-batches 2", "fit GRAPH --all"]
)
def test_tables_of_commands_fit_a_terminal(call, graph_file, line):
    code, out, _ = call(*[graph_file if word == "GRAPH" else word for word in line.split()])
    table = [
        row
        for row in out.splitlines()
        if not row.startswith(("note:", "  ", "cluster =", "graph =")) and "bl." not in row
    ]
    assert code == 0 and len(table) > 2 and max(map(len, table)) <= 100


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_said_on_terminals_alone(monkeypatch, capsys):
    monkeypatch.setattr(console, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(console, "REFRESH_SECONDS", 0.01)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with console.progress("placing") as status:
        status.detail = "3 rows"
        while "placing (0 s, 3 rows)" not in sys.stderr.getvalue():
            time.sleep(0.01)
    assert sys.stderr.getvalue().endswith("\r\x1b[K")  # nothing is left of it
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with console.progress("placing"):
        time.sleep(0.05)
    assert sys.stderr.getvalue() == "" and capsys.readouterr().out == ""


@pytest.mark.slow
def test_a_lost_interrupt_is_raised_again():
    """Python prints and forgets what a callback of C code raises, as numba's compiler has them."""
    code = """
import ctypes, signal, time
from baechi_lab import cli
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start jobs in the background without it
def callback():
    signal.raise_signal(signal.SIGINT)
    for _ in range(10):
        pass
def work(arguments):
    ctypes.CFUNCTYPE(None)(callback)()
    time.sleep(60)
cli.place.run = work
raise SystemExit(cli.main(["place", "--list"]))
"""
    code = code.replace("cli.place.run = work", "import baechi_lab.cli.place\nbaechi_lab.cli.place.run = work")
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "baechi-lab place: interrupted\n")


def test_bug_without_standard_error_the_command_ended_with_a_traceback(monkeypatch, graph_file):
    """Python has no `sys.stderr` where it was closed before the start."""
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["place", str(graph_file), *map(str, CLUSTER)]) == 0
    sys.stderr.close()  # the null device in its place


def test_a_closed_standard_error_leaves_the_exit_code(monkeypatch, tmp_path):
    """`2>&-` leaves a descriptor that cannot be written: the command ended with Python's own error, and exit code 1."""
    with open(os.open(os.devnull, os.O_RDONLY), "w") as unwritable:
        monkeypatch.setattr(sys, "stderr", unwritable)
        assert main(["place", str(tmp_path / "nofile.json")]) == 2
    sys.stderr.close()  # the null device in its place


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is full")
@pytest.mark.parametrize("words", [["place", "--list"], ["place", "--help"], ["--version"]])
def test_a_full_disk_under_standard_output_is_one_sentence(words, monkeypatch, capsys):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(words) == 2
    assert capsys.readouterr().err == f"baechi-lab {words[0]}: the output cannot be written: No space left on device\n"


def test_an_interrupted_search_ends_with_what_it_has_and_says_so(call, graph_file, tmp_path, monkeypatch):
    from baechi_lab.placers.search.multistart import MultiStart

    def interrupted(*ignored):
        raise KeyboardInterrupt

    monkeypatch.setattr(MultiStart, "search", interrupted)
    file = tmp_path / "p.json"
    code, out, err = call("place", graph_file, *CLUSTER, "--placer", "search", "--no-optimize", "-o", file, "--json")
    assert code == 130 and json.loads(out)["feasible"] and load_placement(file).n == 3
    assert err == "baechi-lab place: interrupted; the placement is the best so far\n"


@pytest.mark.slow
def test_the_command_in_a_deleted_folder(call, graph_file, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert call("place", graph_file, "--placer", "m-etf")[0] == 0
    check_refused(call("place", graph_file, "--placer", "m-etf", "-o", "p.json"), "the current folder was deleted")
    check_refused(call("lab", "--print"), "the current folder was deleted")
    process = subprocess.run(
        [sys.executable, "-m", "baechi_lab", "place", "--list"], capture_output=True, text=True, timeout=100
    )
    assert process.returncode == 0 and "m-sct" in process.stdout


def test_speeds_and_memories_per_device(call, graph_file):
    _, out, _ = call(
        "compare",
        graph_file,
        "--devices",
        "2",
        "--speed",
        "1,2",
        "--memory",
        "1kB,2kB",
        "--placers",
        "single",
        "--json",
    )
    assert len(json.loads(out)[0]["device_peak_bytes"]) == 2


def test_version_and_help(call):
    assert call("--version")[1] == f"baechi-lab {bl.__version__}\n"
    for command in COMMANDS:
        code, out, _ = call(command, "--help")
        assert code == 0
        assert "--json" in out


def test_key_value_parameters():
    assert parameters(["a=1", "b-c=x", "d=[1, 2]", "e=None"]) == {"a": 1, "b_c": "x", "d": [1, 2], "e": None}


def test_module_is_the_command(graph_file):
    process = subprocess.run(
        [sys.executable, "-m", "baechi_lab", "compare", graph_file, "--placers", "nope"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    check_refused((process.returncode, process.stdout, process.stderr), "unknown placer 'nope'")


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--placers", "m-etff"], "did you mean 'm-etf'"),
        (["--placers", ","], "name at least one"),
        (["--devices", "0"], "--devices is 0; it must be at least 1"),
        (["--devices", "two"], "--devices is 'two'"),
        (["--memory", "-8GB"], "'-8GB' is not an amount of memory"),
        (["--memory", "lots"], "'lots' is not an amount of memory"),
        (["--memory", "1GB,2GB,3GB"], "3 values for 4 devices"),
        (["--link-latency", "-1"], "--link-latency is -1; it must be a number from 0 to 1e+150"),
        (["--link-us-per-byte", "nan"], "--link-us-per-byte is nan; it must be a number from 0 to 1e+150"),
        (["--comm", "paralel"], "did you mean 'parallel'"),
        (["--speed", "0"], "--speed is 0; it must be a number from 1e-150 to 1e+150"),
        (["--speed", "1,x,1,1"], "--speed is 'x'; it must be a number"),
        (["--seed", "x"], "--seed is 'x'"),
        (["--scheduler", "fifi"], "did you mean 'fifo'"),
        (["--nonsense"], "baechi-lab compare: unrecognized arguments: --nonsense (see baechi-lab compare --help)"),
    ],
)
def test_bad_options_of_compare(call, graph_file, arguments, text):
    check_refused(call("compare", graph_file, *_joined(arguments)), text)


def _joined(arguments):
    """`--memory=-8GB`: a value with a leading minus needs the equals sign."""
    return ["=".join(arguments)] if len(arguments) == 2 else arguments


def test_a_missing_command_is_rejected(call):
    check_refused(call(), "COMMAND")


def test_an_unknown_command_is_rejected(call):
    check_refused(call("plaec"), "plaec")


def test_a_missing_file_is_rejected(call, tmp_path):
    check_refused(call("compare", tmp_path / "none.json"), "No such file")


def test_a_file_of_another_kind_is_rejected(call, tmp_path):
    path = tmp_path / "foreign.json"
    path.write_text('{"hello": 1}')
    check_refused(call("compare", path), "foreign.json")


def test_a_truncated_file_is_rejected(call, graph_file):
    data = Path(graph_file).read_bytes()
    Path(graph_file).write_bytes(data[: len(data) // 2])
    check_refused(call("compare", graph_file), "truncated")


def test_nan_duration_in_a_file(call, graph_file, tmp_path):
    path = tmp_path / "nan.json"
    text = gzip.decompress(Path(graph_file).read_bytes()).decode()
    assert "[10.0,10.0,5.0]" in text
    path.write_text(text.replace("[10.0,10.0,5.0]", "[10.0,NaN,5.0]"))
    check_refused(call("compare", path), "NaN")


def test_model_that_fits_nowhere(call, graph_file):
    check_refused(call("place", graph_file, "--memory", "150B", "--placer", "m-etf"), "150")


def test_placement_of_another_graph(call, graph_file, tmp_path):
    other_graph, file = tmp_path / "other.json", tmp_path / "placement.json"
    bl.save_graph(bl.OpGraph.from_edges([1.0]), other_graph)
    assert call("place", other_graph, "-o", file)[0] == 0
    check_refused(call("simulate", graph_file, file), "another graph")


def test_output_name_is_refused_before_the_work(call, graph_file, tmp_path):
    target = tmp_path / "placement.txt"
    check_refused(call("place", graph_file, "-o", target), "must end in .json or .json.gz")
    assert not target.exists()


def test_an_output_that_cannot_be_written_is_rejected(call, graph_file, tmp_path):
    check_refused(call("place", graph_file, "-o", tmp_path / "none" / "p.json"), "cannot be written")


def test_a_bad_parameter_of_a_placer_is_rejected(call, graph_file):
    check_refused(call("place", graph_file, "-p", "treshold=1"), "did you mean 'threshold'")
    check_refused(call("place", graph_file, "-p", "threshold"), "KEY=VALUE")


@pytest.mark.parametrize("command", ["profile", "run", "export"])
def test_an_unknown_model_is_rejected(call, command):
    check_refused(call(command, "inception_v4"), "did you mean 'inception_v3'")


@pytest.mark.parametrize("command", ["profile", "run", "export"])
def test_a_missing_step_file_is_rejected(call, command, tmp_path):
    check_refused(call(command, f"{tmp_path}/none.py:step"), "no such file")


def test_unknown_mode_and_counts(call):
    check_refused(call("profile", "mlp", "--mode", "guessed"), "'guessed'")
    check_refused(call("run", "mlp", "--steps", "0"), "--steps is 0")
    check_refused(call("demo", "--devices", "0"), "--devices is 0")
    check_refused(call("demo", "--model", "inception_v4"), "did you mean 'inception_v3'")


def test_step_file_without_the_function(call, tmp_path):
    path = tmp_path / "steps.py"
    path.write_text("def mine():\n    return 5\n")
    check_refused(call("profile", f"{path}:yours"), "function in")
    check_refused(call("profile", f"{path}:mine"), "returned int")
    check_refused(call("profile", f"{path}:mine", "--batch-size", "3"), "takes no parameters")


def test_lab_names_the_notebook(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("lab", "--print")[1] == f"{tmp_path}/notebooks/00_quickstart.ipynb\n"
    assert json.loads(call("lab", "--json")[1]) == {"notebook": f"{tmp_path}/notebooks/00_quickstart.ipynb"}


def test_lab_copies_the_notebook_once_and_opens_it(call, tmp_path, monkeypatch):
    from baechi_lab.cli import lab

    opened = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lab, "_replace_process", lambda command: opened.append(command) or 0)
    monkeypatch.setattr(lab.importlib.util, "find_spec", lambda name: name)
    assert call("lab")[0] == 0
    notebook = tmp_path / "notebooks" / "00_quickstart.ipynb"
    assert f"--ServerApp.root_dir={tmp_path}" in opened[0]
    source = "".join("".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"])
    read = re.findall(r'load_graph\("(.+?)"\)', source)  # copied with it, where the notebook looks for it
    assert read and all((notebook.parent / path).is_file() for path in read)
    # Links to notebooks and pages that were not copied are no links.
    assert not re.findall(r"\]\([^)]*\.(?:ipynb|md)\)", source)
    notebook.write_text("mine")
    assert call("lab", "--", "--no-browser")[0] == 0
    assert notebook.read_text() == "mine"
    assert opened[1][-1] == "--no-browser"
    monkeypatch.setattr(lab.importlib.util, "find_spec", lambda name: None)
    check_refused(call("lab"), "pip install jupyterlab (in a checkout: pip install .)")


def fetched(address: str) -> str:
    """What a server answers that is just starting to listen."""
    until = time.monotonic() + 20
    while True:
        try:
            with urllib.request.urlopen(address) as answer:
                return answer.read().decode()
        except urllib.error.URLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.subprocess
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_lab_prints_an_address_that_opens_the_notebook_and_ends_when_told(ending, tmp_path):
    """The address is the notebook's, with its token; one signal ends JupyterLab, where nobody can confirm it as well."""
    pytest.importorskip("jupyterlab")
    (tmp_path / "home").mkdir()
    own_folders = {"HOME": str(tmp_path / "home"), "JUPYTER_CONFIG_DIR": str(tmp_path / "home")}
    command = [sys.executable, "-m", "baechi_lab", "lab", "--", "--no-browser", "--allow-root", "--ServerApp.port=0"]
    # What is installed opens its own copy of the notebook.
    outer_environment = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "PYTHONPATH"))}
    lighter = str(Path(__file__).parent / "helpers" / "without_address_grammar")
    environment = {**outer_environment, **own_folders, "PYTHONPATH": lighter}
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    lab = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdin=nothing,
        stdout=nothing,
        stderr=pipe,
        text=True,
        # A shell starts what it runs in the background with SIGINT ignored, which children inherit.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        pattern = r"http://(?:localhost|127.0.0.1):\d+/lab/tree/notebooks/00_quickstart\.ipynb\?token=\w+"
        address = next(match[0] for line in lab.stderr if (match := re.search(pattern, line)))
        contents = address.replace("/lab/tree/", "/api/contents/")
        assert json.loads(fetched(contents))["name"] == "00_quickstart.ipynb" and "jupyter" in fetched(address)
        lab.send_signal(ending)
        assert lab.wait(30) in (0, -ending)
    finally:
        lab.kill()
        lab.communicate()


# -- sweep ---------------------------------------------------------------------------------------------------


def test_sweep_of_a_graph_file_resumes(call, graph_file, tmp_path):
    store = tmp_path / "sweep.sqlite"
    options = ["--memory", "2kB", "--placers", "single,m-etf", "--link-latency", "2", "--link-us-per-byte", "0"]
    arguments = [*options, "--comm", "parallel", "--no-optimize", "--jobs", "1", "-o", store]
    code, out, _ = call("sweep", graph_file, "--devices", "1,2", *arguments, "--json")
    assert code == 0
    rows = json.loads(out)
    makespans = {(row["devices"], row["placer"]): row["makespan_us"] for row in rows}
    # one device: 10 + 10 + 5; two: the second op runs beside the first, and its output takes 2
    assert makespans == {(1, "single"): 25.0, (1, "m-etf"): 25.0, (2, "single"): 25.0, (2, "m-etf"): 17.0}
    assert store.stat().st_size > 0
    code, out, _ = call("sweep", graph_file, "--devices", "1,2,3", *arguments)
    assert code == 0
    assert "17.00 us" in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--devices", "1,x"], "--devices is 'x'"),
        (["--devices", "1-4"], "--devices is '1-4'; it must be a whole number or a list such as 1,2,4"),
        (["--placers", "m-etff"], "did you mean 'm-etf'"),
        (["--mode", "guessed"], "'guessed'"),
        (["--jobs", "0"], "--jobs is 0"),
        (["--batch-size", "4"], "--batch-size is for benchmark models"),
        (["--hardware", "a1000"], "unknown hardware 'a1000'; did you mean 'a100'"),
        (["-o", "rows.xlsx"], "rows.xlsx: the name must end in .sqlite or .sqlite3 or .db"),
        (["-o", ""], "sweep: '': the name must end in .sqlite"),
    ],
)
def test_bad_sweeps_are_rejected(call, graph_file, arguments, text):
    check_refused(call("sweep", graph_file, *arguments), text)


def test_sweep_of_an_unknown_model(call):
    check_refused(call("sweep", "inception_v4", "--jobs", "1"), "did you mean 'inception_v3'")


# -- nothing is overwritten, nothing starts before its options are checked -----------------------------------------


def test_unknown_hardware_is_refused_before_the_step_is_built(call, monkeypatch):
    monkeypatch.setattr("baechi_lab.cli.steps.step_from", lambda arguments: pytest.fail("the step was built"))
    check_refused(call("profile", "mlp", "--hardware", "a100,a1000"), "unknown hardware 'a1000'; did you mean 'a100'")


@pytest.fixture
def inputs(tmp_path):
    """A graph, a placement and a cluster in files, all `.json`."""
    graph, cluster = bl.OpGraph.from_edges([10, 5], [(0, 1, 100)]), bl.Cluster.uniform(2)
    for record, name in ((graph, "g"), (bl.place(graph, cluster, "m-etf"), "p"), (cluster, "c")):
        save(record, tmp_path / f"{name}.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "g.json")
    return {name: str(tmp_path / f"{name}.json") for name in ("g", "p", "c", "link", "new")}


@pytest.mark.parametrize(
    "line",
    [
        "place g -o g",
        "place g -o link",
        "place g --cluster c -o c",
        "simulate g p -o p",
        "simulate g p --trace g",
        "simulate g p --cluster c --trace c",
        "simulate g p -o new --trace new",
        "sweep g -o g --jobs 1",
        "run mlp --placement p --trace p",
        "place g --placer m-etf -o {folder}/../{name}/g.json",
    ],
)
def test_an_output_never_replaces_an_input(call, inputs, tmp_path, line):
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    words = [inputs.get(word, word.format(folder=tmp_path, name=tmp_path.name)) for word in line.split()]
    check_refused(call(*words), "would replace")
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "option", ["--devices 3", "--memory 1GB", "--speed 2", "--kind cpu", "--comm duplex", "--link pcie"]
)
@pytest.mark.parametrize("line", ["place g", "compare g", "simulate g p", "fit g"])
def test_bug_options_beside_a_cluster_file_were_ignored(call, inputs, line, option):
    words = [inputs.get(word, word) for word in f"{line} --cluster c {option}".split()]
    check_refused(call(*words), f"{option.split()[0]} is given too; give the file or the options")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-p self=1", "unknown parameter of placer 'm-sct': 'self'"),
        ("-p name=1", "unknown parameter of placer 'm-sct': 'name'"),
        ("-p placer=1", "unknown parameter of placer 'm-sct': 'placer'"),
        ("-p threshold=a", "threshold is 'a'; it must be a number"),
        ("-p threshold=None", "threshold is None; it must be a number"),
        ("-p explain=2", "explain is 2; it must be True or False"),
        ("-p threshold=0.1 -p threshold=0.2", "parameter threshold is given more than once"),
        ("--placer random -p seed=[1]", "seed is [1]; it must be a whole number"),
        ("--devices 100000000000000000000", "--devices is 100000000000000000000; it must be at most"),
        ("--devices 5000", "--devices is 5000; at most 4096 are possible"),
        ("--memory 1e400", "'1e400' is too large"),
        ("-p x=" + "[" * 3000, "unknown parameter"),
    ],
)
def test_odd_options_are_one_sentence(call, graph_file, words, message):
    check_refused(call("place", graph_file, *words.split()), message)


def test_a_placer_may_have_a_parameter_named_placer(call, graph_file):
    code, out, _ = call(
        "place", graph_file, *CLUSTER, "--placer", "post-adjusted", "-p", "placer=single", "--no-optimize", "--json"
    )
    assert code == 0
    assert json.loads(out)["placer"] == "post-adjusted"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--passes fusion,none", "unknown pass 'none'"),
        ("--placers m-etf,none", "unknown placer 'none'"),
        ("--memory much", "'much' is not an amount of memory"),
        ("--devices 5000", "at most 4096"),
        ("-p layers=x", "layers of model 'mlp' is 'x'"),
        ("-p none=1", "unknown parameter of model 'mlp'"),
        ("-o nowhere/out", "nowhere is not a folder that exists"),
    ],
)
def test_demo_checks_its_options_before_it_traces(call, monkeypatch, words, message):
    monkeypatch.setattr("baechi_lab.cli.steps.step_from", lambda _: pytest.fail("traced"))
    check_refused(call("demo", "--model", "mlp", *words.split()), message)


def test_export_looks_at_its_folder_before_it_places(call, monkeypatch, tmp_path):
    monkeypatch.setattr("baechi_lab.cli.step_placement.placed_step", lambda _: pytest.fail("placed"))
    (tmp_path / "thesis.tex").write_text("mine")
    check_refused(call("export", "mlp", "-o", tmp_path), "holds no earlier export")


def test_sweep_prints_why_a_row_failed(call, graph_file):
    code, out, err = call("sweep", graph_file, "--devices", "1,2", "--memory", "10B", "--jobs", "1")
    assert code == 1 and re.search("none of 2 combinations worked: .*needs", err)  # a script took it for a success
    code, out_of_two, err = call("sweep", graph_file, "--devices", "1", "--memory", "10B,2kB", "--jobs", "1")
    assert code == 0 and not err and "needs" in out_of_two
    assert len(re.findall(r"m-etf, [12] x 10 B: .*needs", out)) == 2


def test_a_command_or_a_file_that_is_misspelt_is_told_the_right_one(call, tmp_path):
    check_refused(call("comapre", "graph.json"), "unknown command 'comapre'; did you mean 'compare'?")
    (tmp_path / "net.py").write_text("")
    check_refused(call("profile", tmp_path / "net.py"), "net.py names no training step; write FILE.py:FUNCTION")
    (tmp_path / "config.json").write_text("{}")
    check_refused(
        call("profile", tmp_path / "config.json", "--hardware", "a100"), "config.json would be a model's config"
    )


def test_place_says_that_groups_leave_nothing_to_divide(call, graph_file):
    note = "note: the passes left 1 group"
    assert note in call("place", graph_file, *CLUSTER)[1]
    assert note not in call("place", graph_file, *CLUSTER, "--no-optimize")[1]


@pytest.mark.filterwarnings("always")
def test_bug_warnings_of_a_step_were_printed_twice_with_lines_of_this_package(call, tmp_path):
    """They are notes below the results, as those of a class of their own are."""
    names, types = ["x", "batch_norm/Rsqrt", "gradient"], ["Placeholder", "Rsqrt", "RsqrtGrad"]
    graph = bl.OpGraph.from_edges(
        [0, 10, 10], [(0, 1, 100), (1, 2, 100)], names=names, op_types=types, forward_of=[-1, -1, 1]
    )
    bl.save_graph(graph, tmp_path / "norm.json")
    code, out, err = call("compare", tmp_path / "norm.json", "--placers", "single", "--micro-batches", "2")
    assert code == 0 and "Warning" not in out + err
    assert err.count("note: op 'batch_norm/Rsqrt' normalises by the statistics of its batch") == err.count("\n") == 1


def test_descriptions_are_as_wide_as_the_terminal(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert all(len(line) <= 60 for line in call("profile", "--help")[1].splitlines())


def test_export_refuses_an_unknown_format_at_once(call):
    check_refused(call("export", "mlp", "--format", "dott"), "unknown value of --format: 'dott'; did you mean 'dot'?")


def test_hardware_kinds_are_taken_in_any_case(call, tmp_path):
    graph = bl.OpGraph.from_edges([1.0], duration_by_kind={"a100": [3.0]})
    bl.save_graph(graph, tmp_path / "a100.json")
    words = ("place", str(tmp_path / "a100.json"), "--devices", "2", "--placer", "single", "--kind")
    assert call(*words, "A100")[0] == 0 and call(*words, "H100")[0] == 2


@pytest.fixture
def h100_graph(tmp_path):
    """A file of a graph of two ops, 20 us each, estimated for an H100."""
    us = [20.0, 20.0]
    info = {"estimate": {"hardware": {"gpu": "h100", "h100": "h100"}}}
    graph = bl.OpGraph.from_edges(us, [(0, 1, 370_000_000)])
    graph = graph.replace(duration_by_kind={"gpu": us, "h100": us}, info=info)
    path = tmp_path / "h100.json"
    bl.save_graph(graph, path)
    save(bl.Placement(device=[0, 1]), tmp_path / "placement.json")
    return str(path)


@pytest.mark.parametrize(
    ("options", "transfer_us"),
    [
        ((), 7.26 + 1000.0),  # NVLink 4 reaches 370 GB/s
        (("--kind", "h100"), 7.26 + 1000.0),
        (("--kind", "H100", "--link", "pcie"), 9.56 + 370e3 / 48),
        (("--link", "infiniband-ndr"), 13.46 + 370e3 / 48),
        (("--link-latency", "5"), 5 + 1000.0),
        (("--link-us-per-byte", "0"), 7.26),
    ],
)
def test_named_hardware_has_its_link(call, h100_graph, options, transfer_us):
    placement = str(Path(h100_graph).with_name("placement.json"))
    code, out, _ = call("simulate", h100_graph, placement, "--devices", "2", *options, "--json")
    assert code == 0
    assert json.loads(out)["makespan_us"] == pytest.approx(40.0 + transfer_us, abs=0.01)


def test_named_hardware_has_its_memory(call, tmp_path):
    """An op of 20 GB fits an H100, not the 8 GB of devices of no named kind, nor the 10 GB that are asked for."""
    graph = bl.OpGraph.from_edges([5.0], []).replace(persistent_bytes=[20 * 10**9])
    bl.save_graph(graph, tmp_path / "large.json")
    words = ("place", str(tmp_path / "large.json"), "--devices", "1", "--placer", "m-etf")
    assert call(*words, "--kind", "h100")[0] == 0
    assert call(*words)[0] == call(*words, "--kind", "h100", "--memory", "10GB")[0] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--kind", "banana"), "unknown device kind 'banana'"),
        (("--kind", "h10"), "unknown device kind 'h10'; did you mean 'h100'?"),
        (("--kind", "a100"), "of kind 'a100' and the graph was estimated for gpu, h100"),
        (("--link", "nvlnk"), "unknown link 'nvlnk'"),
        (("--kind", "gpu", "--link", "nvlink"), "which nvlink devices of kind 'gpu' have is not known"),
        (("--link", "nvlink", "--link-latency", "3"), "--link is 'nvlink' and --link-latency is given too"),
    ],
)
def test_kinds_and_links_that_are_not_there(call, h100_graph, options, message):
    """Previously `--kind banana` was accepted."""
    for words in (("place", h100_graph, "--placer", "single"), ("compare", h100_graph, "--placers", "single")):
        check_refused(call(*words, "--devices", "2", *options), message)


def test_a_kind_that_only_the_graph_knows(call, tmp_path):
    graph = bl.OpGraph.from_edges([5.0], []).replace(duration_by_kind={"fpga": [2.0]})
    bl.save_graph(graph, tmp_path / "fpga.json")
    code, out, _ = call("place", str(tmp_path / "fpga.json"), "--devices", "1", "--kind", "fpga", "--json")
    assert (code, json.loads(out)["makespan_us"]) == (0, 2.0)
