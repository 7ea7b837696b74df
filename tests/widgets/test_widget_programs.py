"""Programs in the workbench: operators without times, which are estimated for the hardware of the setting."""

import pytest

import baechi_lab as bl
from baechi_lab.widgets.codegen import from_code

onnx = pytest.importorskip("onnx")


@pytest.fixture
def program(tmp_path):
    """A file of one product, 8 x 64 times 64 x 32."""
    x, y = (onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [8, 64]), ("y", [8, 32])))
    weight = onnx.helper.make_tensor("w", 1, [64, 32], [0.0] * 2048)
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    path = tmp_path / "net.onnx"
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


def test_a_program_cannot_be_measured(diamond, pair, program):
    bench = bl.Workbench(diamond, pair.with_memory("1GB"), placer="single", passes=())
    bench.setting.file.value = program
    bench.setting.hardware.value = "measured"
    assert "can only be estimated" in bench.model.problem.sentence
    assert bench.model.setting.profile == "estimated" and bench.setting.hardware.value != "measured"
