"""Programs of torch.export: from memory and from the JSON of a file alike; nothing is unpickled."""

from __future__ import annotations

import io
import json
import warnings
import zipfile

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import baechi_lab as bl
from baechi_lab.errors import FormatError, InvalidInput
from baechi_lab.graph.hardware import HOST_OP_US

pytestmark = pytest.mark.torch


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(4 * 8 * 8, 10)

    def forward(self, x):
        a, b = torch.relu(self.norm(self.conv(x))).chunk(2, 1)
        return self.head(torch.cat([a, b], 1).flatten(1))


@pytest.fixture(scope="module")
def exported():
    return torch.export.export(
        Small().eval(), (torch.randn(2, 3, 8, 8),), dynamic_shapes={"x": {0: torch.export.Dim("batch", max=64)}}
    )


@pytest.fixture(scope="module")
def file(exported, tmp_path_factory):
    path = tmp_path_factory.mktemp("export") / "small.pt2"
    torch.export.save(exported, path)
    return path


@pytest.mark.slow
def test_file_and_memory_give_one_graph(exported, file):
    a, b = (bl.profile_program(source, hardware="a100", batch_size=4) for source in (exported, file))
    assert (a.key, a.duration_us.tolist(), a.tensor_bytes.tolist()) == (
        b.key,
        b.duration_us.tolist(),
        b.tensor_bytes.tolist(),
    )
    assert a.persistent_bytes.tolist() == b.persistent_bytes.tolist() and a.forward_of.tolist() == b.forward_of.tolist()
    assert {"conv/conv2d", "conv/conv2d/backward/weight", "head/linear/backward/input", "head/linear/update"} <= set(
        b.names
    )
    assert "conv/conv2d/backward/input" not in b.names  # nobody asks for the gradient of the input
    trained = sum(p.nbytes for p in Small().parameters())
    buffers = sum(t.nbytes for t in Small().buffers())
    assert trained * 2 <= b.persistent_bytes.sum() <= trained * 2 + buffers


def test_flops_are_those_of_the_operators(exported):
    from baechi_lab.profilers.torch.exported_program import program_of

    program = program_of(exported, 4)
    by_name = {op.name: sum(k.flops for k in op.kernels) for op in program.ops}
    assert by_name["conv/conv2d"] == 2 * (4 * 4 * 8 * 8) * 3 * 9
    assert by_name["head/linear"] == 2 * 4 * 256 * 10
    chunk = next(op for op in program.ops if op.name.endswith("chunk"))
    assert len(chunk.makes) == 2 and not chunk.moves_data


def test_open_dimensions_are_named(exported, file):
    for source in (exported, file):
        with pytest.raises(
            InvalidInput, match=r"value 'x' has the open dimension 's[0-9]+' at position 0; give batch_size"
        ):
            bl.profile_program(source)
        with pytest.raises(InvalidInput, match=r"sizes names 'batch'; the program leaves open 's[0-9]+'"):
            bl.profile_program(source, batch_size=4, sizes={"batch": 4})


def repacked(file, change=None, drop=None, replace=None) -> bytes:
    repacked_file = io.BytesIO()
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(repacked_file, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if drop and drop in name:
                continue
            if change and "/models/" in name:
                document = json.loads(data)
                change(document)
                data = json.dumps(document).encode()
            if replace and replace in name:
                data = b"\x80\x04cos\nsystem\n."  # a pickle that would run a command
            target.writestr(name, data)
    return repacked_file.getvalue()


def test_weights_and_samples_are_never_read(file, tmp_path):
    (tmp_path / "small.pt2").write_bytes(repacked(file, replace="/data/"))
    assert bl.profile_program(tmp_path / "small.pt2", batch_size=4) == bl.profile_program(file, batch_size=4)


def test_checks_of_shapes_and_types_are_no_operators(file, tmp_path):
    check = {
        "target": "torch.ops.aten._assert_tensor_metadata.default",
        "inputs": [{"name": "a", "arg": {"as_tensor": {"name": "x"}}, "kind": 1}],
        "outputs": [],
        "metadata": {},
    }
    (tmp_path / "small.pt2").write_bytes(
        repacked(file, change=lambda d: d["graph_module"]["graph"]["nodes"].insert(0, check))
    )
    assert bl.profile_program(tmp_path / "small.pt2", batch_size=4) == bl.profile_program(file, batch_size=4)


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"change": lambda d: d["schema_version"].update(major=99)}, "schema_version is"),
        ({"change": lambda d: d["graph_module"].pop("graph")}, "damaged"),
        ({"change": lambda d: d["graph_module"]["graph"]["nodes"].append({"target": 3})}, "damaged"),
        ({"change": lambda d: d["graph_module"]["graph"]["outputs"][0]["as_tensor"].update(name=[1])}, "is named"),
        ({"change": lambda d: d["graph_module"]["graph"]["nodes"][0]["outputs"].append({})}, "must have one field"),
        ({"drop": "/models/"}, "holds 0 programs"),
        ({"replace": "archive_version"}, "archive_version is .*; version 0 is read"),
    ],
)
def test_bad_files_are_rejected(file, tmp_path, how, match):
    (tmp_path / "bad.pt2").write_bytes(repacked(file, **how))
    with pytest.raises(FormatError, match=match):
        bl.profile_program(tmp_path / "bad.pt2", batch_size=4)


def test_what_is_cut_off_is_refused(file, tmp_path):
    (tmp_path / "bad.pt2").write_bytes(file.read_bytes()[:-100])
    with pytest.raises(FormatError, match="cut off"):
        bl.profile_program(tmp_path / "bad.pt2")


class Distilled(torch.nn.Module):
    """A layer that learns from a teacher under `no_grad`, behind a frozen one."""

    def __init__(self):
        super().__init__()
        self.teacher, self.student, self.frozen = (torch.nn.Linear(8, 8) for _ in range(3))
        self.frozen.requires_grad_(False)

    def forward(self, x):
        with torch.no_grad():
            target = torch.relu(self.teacher(x))
        return self.frozen(self.student(x)) - target


def test_bug_what_runs_without_gradients_was_trained(tmp_path):
    """The ops under `no_grad` are ops of the graph; only the student has a gradient, two states and an update."""
    exported = torch.export.export(Distilled(), (torch.zeros(4, 8),))
    torch.export.save(exported, tmp_path / "distilled.pt2")
    for program in (exported, tmp_path / "distilled.pt2"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            graph = bl.profile_program(program, hardware="a100", optimizer_states=2)
        assert {t.split(".")[1] for t in graph.op_types[:5]} == {"linear", "relu", "sub"}
        assert [n for n in graph.names if n.endswith("/update")] == ["student/linear_1/update"]
        assert not any(n.startswith(("teacher", "relu")) and "backward" in n for n in graph.names)
        assert graph.persistent_bytes.sum() == (2 + 4) * 4 * (8 * 8 + 8)
        relu, teacher, sub = (
            next(i for i, n in enumerate(graph.names) if key in n) for key in ("relu", "teacher", "sub")
        )
        edges = set(zip(graph.edge_source.tolist(), graph.consumers.tolist(), strict=True))
        assert {(teacher, relu), (relu, sub)} <= edges


class _Attention(nn.Module):
    """Causal attention with dropout between a linear layer and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(32, 96), nn.RMSNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.linear(x).view(2, 64, 3, 2, 16).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=0.1)
        return functional.dropout(self.norm(attended.transpose(1, 2).reshape(2, 64, 32)), 0.1, self.training)


@pytest.mark.parametrize("model", [_Attention(), nn.GroupNorm(2, 64)], ids=lambda m: type(m).__name__)
def test_an_exported_program_has_the_kernels_of_the_model(model: nn.Module) -> None:
    """Fused attention, dropout and norms, as in the estimate of the model itself, whose backward pass begins with ones."""
    inputs = torch.ones(2, 64, 32)
    program = torch.export.export(model, (inputs,), strict=False)
    exported = bl.profile_program(program, hardware="a100", training=False).duration_us
    graph = bl.torch.profile(model, inputs, hardware="a100", granularity="operator")
    forward = [name.startswith("ones_like") or "backward" in name for name in graph.names]
    assert exported[exported > HOST_OP_US].sum() == pytest.approx(graph.duration_us[np.logical_not(forward)].sum())


def test_bug_gradients_of_transposed_inputs_were_batches_of_small_products():
    """As in `nn.MultiheadAttention`, whose projection reads (positions, samples, numbers): 298 us in place of 24."""
    model = nn.Sequential(nn.Linear(256, 256), _Transposed(), nn.Linear(256, 768))
    x = torch.ones(8, 65, 256)
    exported = bl.profile_program(torch.export.export(model, (x,)), hardware="a100")
    of_input = [i for i, name in enumerate(exported.names) if name.endswith("linear_1/backward/input")]
    graph = bl.torch.profile(model, x, hardware="a100", mode="training", granularity="operator")
    products = [us for us, name in zip(graph.duration_us, graph.names, strict=True) if name.startswith("2/backward/mm")]
    assert len(of_input) == 1 and exported.duration_us[of_input[0]] == pytest.approx(max(products))


class _Transposed(nn.Module):
    def forward(self, x):
        return x.transpose(0, 1)


class _Pairs(nn.Module):
    """A bilinear layer, whose backward pass multiplies all pairs of numbers of each row."""

    def __init__(self):
        super().__init__()
        self.layer, self.scores = nn.Linear(64, 32), nn.Bilinear(32, 32, 4)

    def forward(self, x):
        y = self.layer(x)
        return self.scores(y, y)


class _Heads(nn.Module):
    """Products of transposed heads, which are copied in order and kept for the backward pass."""

    def __init__(self):
        super().__init__()
        self.norm, self.query, self.key = nn.LayerNorm(32), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x):
        query, key = (layer(self.norm(x)).view(4, 16, 4, 8).transpose(1, 2) for layer in (self.query, self.key))
        return (query @ key.transpose(-1, -2)).softmax(-1) @ key


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "shape"), [(_Pairs, (16, 64)), (_Heads, (4, 16, 32)), (lambda: nn.Conv2d(3, 16, 3), (2, 3, 16, 16))]
)
def test_bug_peaks_of_exported_programs_left_out_what_operators_hold(build, shape):
    """Scratch memory, copies that operators save for their gradients, the batch and the outputs: up to 69 % was missing."""
    model, x = build(), torch.ones(shape)
    program = bl.profile_program(torch.export.export(model, (x,)), hardware="cpu-core")
    options = {"hardware": "cpu-core", "mode": "training"}
    graphs = (program, *(bl.torch.profile(model, x, granularity=g, **options) for g in ("layer", "operator")))
    cluster = bl.Cluster.uniform(1, kind="cpu-core")
    peaks = [bl.simulate(g, cluster, bl.Placement(device=[0] * g.n)).peak_bytes[0] for g in graphs]
    assert 0.95 <= peaks[0] / peaks[1] <= 1.25
    first_gradient = graphs[2].index["ones_like"]
    gradient_bytes = graphs[2].tensor_bytes[graphs[2].tensor_producer == first_gradient].max()
    assert 0.99 * peaks[1] <= peaks[2] <= peaks[1] + gradient_bytes + 100, "operators left out the outputs"
