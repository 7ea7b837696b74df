"""Programs in the workbench: operators without times, which are estimated for the hardware of the setting."""

import pytest

import baechi_lab as bl
from baechi_lab.widgets.codegen import from_code

onnx = pytest.importorskip("onnx")
RESULT = (bl.Place("single") | bl.Simulate()).run(bl.OpGraph.from_edges([1.0]), bl.Cluster.uniform(1))


@pytest.fixture
def program(tmp_path):
    """A file of one product, 8 x 64 times 64 x 32."""
    return product_file(tmp_path / "net.onnx", 8)


@pytest.fixture
def open_program(tmp_path):
    """The same for a batch of any size."""
    return product_file(tmp_path / "open.onnx", "batch")


def product_file(path, batch):
    x, y = (onnx.helper.make_tensor_value_info(*each) for each in (("x", 1, [batch, 64]), ("y", 1, [batch, 32])))
    weight = onnx.helper.make_tensor("w", 1, [64, 32], [0.0] * 2048)
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "net", [x], [y], [weight])), str(path))
    return str(path)


def test_a_program_opens_and_is_estimated_for_the_hardware_of_the_setting(diamond, pair, program):
    bench = bl.Workbench(diamond, pair.with_memory("1GB"), placer="single", passes=())
    bench.model.inline = True
    assert bench.setting.hardware.layout.display == "none"  # the times of a graph are its own
    bench.setting.file.value = program
    assert bench.model.problem is None
    assert bench.outcome.graph.key == bl.profile_program(program, hardware=bench.model.setting.hardware).key
    assert bench.setting.hardware.layout.display == "flex"
    bench.setting.hardware.value = "h100"
    assert bench.outcome.graph.key == bl.profile_program(program, hardware="h100").key
    assert "estimated for h100" in bench.header.facts.value
    names: dict = {}
    exec(bench.export.code.value, names)
    assert names["timeline"].makespan_us == bench.outcome.timeline.makespan_us
    assert from_code(bench.export.code.value).hardware == "h100"


@pytest.mark.slow
def test_a_program_without_a_batch_size_gets_one(diamond, pair, open_program):
    """Exported programs mostly leave it open."""
    bench = bl.Workbench(diamond, pair.with_memory("1GB"), placer="single", passes=())
    bench.model.inline = True
    bench.setting.file.value = open_program
    assert bench.model.problem is None and bench.setting.batch.value == 32
    bench.setting.batch.value = 64
    hardware = bench.model.setting.hardware
    assert bench.outcome.graph.key == bl.profile_program(open_program, hardware=hardware, batch_size=64).key
    bench.setting.micro.value = "4"
    assert bench.outcome.graph.key == bl.profile_program(open_program, hardware=hardware, batch_size=16).key
    assert bench.outcome.samples == 64 and bench.setting.source_note.value == ""
    names: dict = {}
    exec(bench.export.code.value, names)
    assert names["timeline"].makespan_us == bench.outcome.timeline.makespan_us
    assert from_code(bench.export.code.value) == bench.model.setting
    opened = bl.Workbench(None, pair.with_memory("1GB"), source=f"file:{open_program}", batch_size=16)
    assert opened.outcome.graph.key == bench.outcome.graph.key


def test_batches_of_a_program_are_swept_and_tried(pair, open_program):
    bench = bl.Workbench(None, pair.with_memory("1GB"), source=f"file:{open_program}", batch_size=16, placer="single")
    bench.model.inline = True
    bench.explore.batches.value, bench.explore.devices.value, bench.explore.placers.value = "16, 32", "1", "single"
    bench.explore.start.click()
    assert bench.model.problem is None
    table, alone = bench.explore.table, pair.with_memory("1GB").resized(1)
    for size in (16, 32):
        graph = bl.profile_program(open_program, hardware="rtx2080", batch_size=size)
        expected = bl.simulate(graph, alone, bl.place(graph, alone, "single")).makespan_us
        assert set(table[table["batch_size"] == size]["makespan_us"]) == {expected}


def test_a_program_cannot_be_measured(diamond, pair, program):
    bench = bl.Workbench(diamond, pair.with_memory("1GB"), placer="single", passes=())
    bench.setting.file.value = program
    bench.setting.hardware.value = "measured"
    assert "can only be estimated" in bench.model.problem.sentence
    assert bench.model.setting.profile == "estimated" and bench.setting.hardware.value != "measured"


@pytest.mark.parametrize(
    ("subject", "hint"), [("net.onnx", "source='file:PATH' names a file"), (RESULT, "give its graph")]
)
def test_what_a_workbench_does_not_open_on_has_a_hint(subject, hint):
    with pytest.raises(
        bl.InvalidInput, match=f"opens on a step or an OpGraph, not on {type(subject).__name__}; {hint}"
    ):
        bl.Workbench(subject)
