"""Files: round trips, determinism, atomic writes, and every way in which a file can be bad."""

import gzip
import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import baechi_lab as bl
from baechi_lab.graph import generators
from baechi_lab.graph.formats import leftovers
from baechi_lab.graph.formats.files import load_cluster, load_placement, load_timeline, save, write_atomically
from baechi_lab.graph.formats.json_format import from_document, schema, to_document


@pytest.mark.parametrize("name", ["g.json", "g.json.gz"])
def test_graph_round_trip_keeps_every_column(tmp_path, name, full_graph):
    graph = full_graph
    bl.save_graph(graph, tmp_path / name)
    loaded = bl.load_graph(tmp_path / name)
    assert loaded == graph and loaded.output_shapes == graph.output_shapes
    assert loaded.batch_readers == graph.batch_readers == ("b",)
    assert loaded.content_key == graph.content_key == graph.replace(output_shapes=(), batch_readers=()).content_key
    assert loaded.name == "full"
    assert loaded.tensor_label(1) == "a:right"


@settings(max_examples=30, deadline=None)
@given(n=st.integers(0, 30), seed=st.integers(0, 10**6), groups=st.integers(0, 3))
def test_any_graph_survives_its_document(n, seed, groups):
    graph = generators.random_dag(n, second_output=0.5, colocation_groups=groups, temp_bytes=(1, 1e9), seed=seed)
    document = json.loads(json.dumps(to_document(graph)))
    assert from_document(document) == graph


def test_same_record_same_bytes(tmp_path, full_graph):
    for name in ("a.json.gz", "b.json.gz"):
        bl.save_graph(full_graph, tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def test_the_content_decides_not_the_name(tmp_path, full_graph):
    bl.save_graph(full_graph, tmp_path / "g.json.gz")
    (tmp_path / "g.json").write_bytes((tmp_path / "g.json.gz").read_bytes())
    assert bl.load_graph(tmp_path / "g.json") == full_graph


@pytest.mark.parametrize(
    "cluster",
    [
        bl.Cluster.uniform(3, memory_bytes=10, comm="duplex"),
        bl.Cluster(
            (bl.Device("a", "gpu", 5), bl.Device("b", "cpu", 7, 0.5)),
            [[bl.Link(0, 0), bl.Link(1, 2)], [bl.Link(3, 4.5), bl.Link(0, 0)]],
            "parallel",
        ),
    ],
)
def test_a_saved_cluster_loads_equal(tmp_path, cluster):
    save(cluster, tmp_path / "c.json")
    assert load_cluster(tmp_path / "c.json") == cluster


def test_a_saved_placement_loads_equal(tmp_path):
    placement = bl.Placement(
        device=[0, 1, 1],
        order=[0.0, np.inf, 2.0],
        placer="m-etf",
        params={"x": (1, 2)},
        seconds=0.25,
        graph_key="k",
        group_of=[0, 1, 2, 2],
        member_order=[0.0, 1.0, 3.0, 2.0],
        source_key="s",
        finer_groups="single ops were placed",
        info={"bound": np.float64(3.0), "dropped": np.array([1, 2]), "gap": float("nan")},
    )
    save(placement, tmp_path / "p.json.gz")
    loaded = load_placement(tmp_path / "p.json.gz")
    assert loaded == placement
    assert (loaded.placer, loaded.params, loaded.seconds) == ("m-etf", {"x": [1, 2]}, 0.25)
    assert loaded.info == {"bound": 3.0, "dropped": [1, 2], "gap": None}
    assert loaded.group_of.tolist() == [0, 1, 2, 2]
    assert (loaded.source_key, loaded.finer_groups) == ("s", "single ops were placed")


def test_a_saved_timeline_loads_equal(tmp_path, small_timeline):
    save(small_timeline, tmp_path / "t.json")
    loaded = load_timeline(tmp_path / "t.json")
    assert to_document(loaded) == to_document(small_timeline)
    assert str(loaded.violations[0]) == "d1 holds 8 of 4 bytes"
    assert np.isnan(loaded.violations[1].time_us)


def test_documents_follow_the_published_schema(full_graph, small_timeline):
    """Whole documents are checked here; the reader checks shortened ones."""
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(schema())
    validator = Draft202012Validator(schema())
    cluster = bl.Cluster.uniform(2)
    placement = bl.Placement(device=[0, 1], priority=[1.0, -np.inf])
    for record in (full_graph, generators.chain(20), cluster, placement, small_timeline):
        validator.validate(json.loads(json.dumps(to_document(record))))


def test_the_schema_refuses_what_the_reader_refuses(full_graph):
    from jsonschema import Draft202012Validator

    document = to_document(full_graph)
    document["ops"]["duration_us"][2] = "long"
    assert not Draft202012Validator(schema()).is_valid(document)


# -- bad files ---------------------------------------------------------------------------------------------------


def write_damaged(tmp_path, change, record):
    """Writes a record whose document is damaged by `change`; returns the path."""
    document = json.loads(json.dumps(to_document(record)))
    change(document)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("change", "error", "phrases"),
    [
        (lambda d: d.update(version=2), bl.FormatError, ["version", "2", "1"]),
        (lambda d: d.update(format="other"), bl.FormatError, ["format"]),
        (lambda d: d.update(kind="step"), bl.FormatError, ["kind", "step"]),
        (lambda d: d.pop("ops"), bl.FormatError, ["ops"]),
        (lambda d: d["ops"].pop("duration_us"), bl.FormatError, ["ops", "duration_us"]),
        (lambda d: d["ops"].update(colour=[1, 2, 3]), bl.FormatError, ["ops", "colour"]),
        (lambda d: d["ops"].update(name=5), bl.FormatError, ["ops.name"]),
        (lambda d: d["ops"]["name"].__setitem__(2, 7), bl.FormatError, ["ops.name[2]", "7"]),
        (lambda d: d["ops"]["temp_bytes"].__setitem__(1, 1.5), bl.FormatError, ["ops.temp_bytes[1]", "1.5"]),
        (lambda d: d["ops"]["temp_bytes"].__setitem__(1, 2**70), bl.FormatError, ["ops.temp_bytes[1]", "64"]),
        (lambda d: d["ops"]["colocation"].__setitem__(0, 4), bl.FormatError, ["ops.colocation[0]", "4"]),
        (lambda d: d["ops"]["type"].__setitem__(0, 9), bl.FormatError, ["ops.type[0]", "9"]),
        (lambda d: d["ops"]["output_shapes"].__setitem__(0, 9), bl.FormatError, ["ops.output_shapes[0]", "9"]),
        (lambda d: d["ops"]["output_shapes"].pop(), bl.InvalidInput, ["output_shapes", "2", "3"]),
        (lambda d: d.pop("output_shapes"), bl.FormatError, ["ops.output_shapes[0]"]),
        (lambda d: d["tensors"]["producer"].__setitem__(2, 3), bl.FormatError, ["tensors.producer[2]", "3"]),
        (lambda d: d["tensors"]["consumers"].__setitem__(1, [3]), bl.FormatError, ["tensors.consumers[1]", "3"]),
        (lambda d: d["tensors"]["consumers"].__setitem__(1, 3), bl.FormatError, ["tensors.consumers[1]"]),
        (lambda d: d["tensors"]["size_bytes"].pop(), bl.FormatError, ["tensors.size_bytes", "2", "3"]),
        (lambda d: d["group_of"].__setitem__(0, 8), bl.FormatError, ["group_of[0]", "8"]),
        (lambda d: d["ops"]["duration_us"].pop(), bl.InvalidInput, ["duration_us"]),
        (lambda d: d["ops"]["duration_us"].__setitem__(2, None), bl.BaechiLabError, ["duration_us"]),
        (lambda d: d["ops"]["name"].__setitem__(1, "a"), bl.DuplicateNameError, ["'a'"]),
        (lambda d: d["tensors"]["consumers"].__setitem__(2, [0]), bl.CycleError, ["cycle"]),
    ],
)
def test_a_bad_document_names_file_field_and_place(tmp_path, full_graph, change, error, phrases):
    with pytest.raises(error) as caught:
        bl.load_graph(write_damaged(tmp_path, change, full_graph))
    for phrase in ["bad.json", *phrases]:
        assert phrase in str(caught.value)


def test_errors_far_down_a_long_column_are_found(tmp_path):
    """The schema checks the first entries only; arrays are checked to the end."""
    path = write_damaged(tmp_path, lambda d: d["ops"]["duration_us"].__setitem__(917, "x"), generators.chain(1000))
    with pytest.raises(bl.FormatError, match=r"ops\.duration_us\[917\] is 'x'"):
        bl.load_graph(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "line 1, column 1"),
        (b'{"format": "baechi_lab", "version": 1', "truncated"),
        (b"[1, 2", "truncated"),
        (b'{"name": "gnm', "not JSON: Unterminated string starting at line 1, column 10$"),
        (b"[1, 2]", "format"),
        (b'"text"', "format"),
        (b"\xff\xfe\x00", "UTF-8"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -1e400}', "a number is -1e400; numbers must fit into a float64"),
        (b'{"a": 1' + b"0" * 230 + b"e99}", "a number is 10000"),
        (b"[" * 100_000, "nested"),
        (b"9" * 5000, "document"),
        (b"\x1f\x8b\x08\x00rubbish", "gzip"),
        (gzip.compress(b"[1, 2]", mtime=0)[:-6], "gzip"),
        (b'{"fpgas": [], "cpus": []}', "nodes"),
        (b"strict digraph {\n a -> b\n}", r"Graphviz's language, .* bl\.OpGraph\.from_networkx"),
        (b'/* costs */ digraph "G" {a -> b}', "Graphviz's language"),
        (b"graph {\n a -- b\n}", "Graphviz's language"),
        (b"/**/" * 1000, "not JSON"),
    ],
)
def test_foreign_and_truncated_files(tmp_path, data, words):
    path = tmp_path / "odd.json"
    path.write_bytes(data)
    with pytest.raises(bl.FormatError, match=words) as caught:
        bl.load_graph(path)
    assert "odd.json" in str(caught.value)


def test_unreadable_and_missing_files(tmp_path):
    with pytest.raises(bl.FormatError, match="cannot be read"):
        bl.load_graph(tmp_path / "missing.json")
    with pytest.raises(bl.FormatError, match="cannot be read"):
        bl.load_graph(tmp_path)
    with pytest.raises(bl.FormatError) as caught:
        load_placement(tmp_path / "missing.json")
    assert str(caught.value).count("missing.json") == 1


def test_another_kind_of_record(tmp_path):
    save(bl.Cluster.uniform(2), tmp_path / "c.json")
    with pytest.raises(bl.FormatError, match="field kind is 'cluster'; it must be 'graph'"):
        bl.load_graph(tmp_path / "c.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["devices"][1].update(memory_bytes=-1), "memory_bytes"),
        (lambda d: d["devices"][1].update(memory="8GB"), "memory"),
        (lambda d: d["link"].update(latency_us="slow"), "link"),
        (lambda d: d.update(comm="telepathy"), "comm"),
        (lambda d: d.update(devices=[]), "devices"),
        (lambda d: d.update(link=[[d["link"]]]), "link"),
    ],
)
def test_files_of_bad_clusters_are_rejected(tmp_path, change, words):
    with pytest.raises(bl.InvalidInput, match=words):
        load_cluster(write_damaged(tmp_path, change, bl.Cluster.uniform(2)))


def test_a_bad_device_past_the_sampled_ones(tmp_path):
    def change(document):
        document["devices"][9] = {"name": "x"}

    with pytest.raises(bl.FormatError, match=r"devices\[9\]"):
        load_cluster(write_damaged(tmp_path, change, bl.Cluster.uniform(12)))


def test_only_our_own_suffixes_are_written(tmp_path, full_graph):
    with pytest.raises(bl.FormatError, match=r"\.json"):
        bl.save_graph(full_graph, tmp_path / "g.pkl")
    with pytest.raises(bl.InvalidInput, match="OpGraph"):
        bl.save_graph(bl.Cluster.uniform(2), tmp_path / "g.json")
    with pytest.raises(bl.FormatError, match="file format"):
        save({"a": 1}, tmp_path / "g.json")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, full_graph):
    path = tmp_path / "g.json"
    bl.save_graph(full_graph, path)
    before = path.read_bytes()

    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(bl.FormatError, match="No space left"):
        bl.save_graph(generators.chain(5), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["g.json"]


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(bl.FormatError, match="cannot be written"):
        write_atomically(tmp_path / "none" / "g.json", b"")


def test_links_stay_and_pipes_are_never_replaced(tmp_path):
    pipe, link = tmp_path / "pipe", tmp_path / "link.json"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(pipe, b"plan")
    assert os.read(reader, 10) == b"plan" and pipe.is_fifo()
    os.close(reader)
    link.symlink_to("g.json")
    write_atomically(link, b"plan")
    assert link.is_symlink() and (tmp_path / "g.json").read_bytes() == b"plan"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process that is killed")
def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "OLD_SECONDS", 0.0)
    target, unrelated = tmp_path / "g.json", tmp_path / ".g.json.mine.part"
    unrelated.write_text("of another program")
    child = os.fork()
    if child == 0:
        os.replace = lambda *names: os._exit(9)
        write_atomically(target, b"half")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    (leftover,) = (path for path in tmp_path.iterdir() if path != unrelated)
    lock_file = leftovers.lock(leftover)
    write_atomically(target, b"whole")
    assert leftover.exists() and target.read_bytes() == b"whole"  # somebody holds it
    os.close(lock_file)
    write_atomically(target, b"again")
    assert sorted(path.name for path in tmp_path.iterdir()) == [unrelated.name, "g.json"]


KERAS = {
    "keras3.json": b'{"module": "keras", "class_name": "Sequential", "config": {"layers": []}}',
    "keras2.json": b'{"class_name": "Model", "config": {"layers": []}, "keras_version": "2.2.4-tf", "backend": "tensorflow"}',
}
SAVED = {"model.keras": b"PK\x03\x04\x14\x00rest", "model.h5": b"\x89HDF\r\n\x1a\nrest"}
NODE_TEXT = b'node { name: "x" op: "Placeholder" }\nversions { producer: 498 }'
GRAPH_DEFS = {
    "graph.pb": b"\n\x15\n\x01x\x12\x0bPlaceholder\x2a\x03\n\x01a",
    "text.pb": NODE_TEXT,
    "graph.pbtxt": NODE_TEXT,
}


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        *((name, data, "is the architecture of a Keras model; make the model") for name, data in KERAS.items()),
        *(
            (name, data, "file, as saved models of Keras and PyTorch are; load the model")
            for name, data in SAVED.items()
        ),
        *((name, data, "a GraphDef and a SavedModel") for name, data in GRAPH_DEFS.items()),
    ],
)
@pytest.mark.parametrize("read", [bl.load_graph, bl.load_trace])
def test_models_of_keras_and_tensorflow_are_refused_with_how_to_bring_them_in(tmp_path, read, name, data, sentence):
    """Previously a field "format" was missing, byte 14 was no UTF-8, and the protocol buffer could not be decoded."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(bl.errors.FormatError, match=sentence):
        read(tmp_path / name)
