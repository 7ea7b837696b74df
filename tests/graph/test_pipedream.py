"""PipeDream's profiles: what becomes what, and what is refused."""

from pathlib import Path

import pytest

from baechi_lab import load_graph
from baechi_lab.errors import CycleError, DuplicateNameError, FormatError, UnknownOpError
from baechi_lab.graph.formats.pipedream import graph_from_pipedream

VGG = Path(__file__).parents[2] / "data" / "pipedream" / "vgg16_graph.txt"
FIELDS = "forward_compute_time=1.0, backward_compute_time=2.0, activation_size=8.0, parameter_size=4.0"


def profile(*edges: str, nodes: tuple[str, ...] = ("node1 -- Input0", "node2 -- Linear(3, 4)", "node3 -- ReLU")) -> str:
    return "\n".join([f"{node} -- {FIELDS}" for node in nodes] + [f"\t{edge}" for edge in edges])


def test_three_layers_by_hand():
    """The input loads data: no time, no backward op. Linear's gradient stays; ReLU's goes to Linear."""
    graph = graph_from_pipedream(profile("node1 -- node2", "node2 -- node3"), "three")
    assert graph.names == ("node1", "node2", "node3", "node2/backward", "node3/backward")
    assert graph.duration_us.tolist() == [0.0, 1000.0, 1000.0, 2000.0, 2000.0]
    assert graph.persistent_bytes.tolist() == [4, 4, 4, 0, 0]
    assert graph.forward_of.tolist() == [-1, -1, -1, 1, 2]
    assert graph.colocation.tolist() == [0, 1, 2, 1, 2]
    read = {graph.names[t]: graph.tensor_consumers(k).tolist() for k, t in enumerate(graph.tensor_producer)}
    assert read == {"node1": [1, 3], "node2": [2, 3, 4], "node3": [4], "node3/backward": [3]}
    assert set(graph.tensor_bytes.tolist()) == {8}


def test_vgg16_has_the_published_costs():
    graph = load_graph(VGG)
    assert graph.n == 41 + 40
    assert graph.duration_us.sum() == pytest.approx(672_535)  # PipeDream's time on one machine
    assert graph.persistent_bytes.sum() == pytest.approx(553_430_176, rel=1e-3)  # 138.36 million float32 parameters


@pytest.mark.parametrize(
    ("text", "error", "match"),
    [
        (profile("node1 -- node9"), UnknownOpError, "line 4: no node is named 'node9'"),
        (profile("node1"), FormatError, "line 4 is 'node1'"),
        (profile(nodes=("node1 -- A", "node1 -- B")), DuplicateNameError, "line 2: node 'node1' is there twice"),
        (profile("node2 -- node3", "node3 -- node2"), CycleError, "cycle"),
        ("node1 -- A -- forward_compute_time=1.0", FormatError, "line 1: field backward_compute_time is missing"),
        (f"node1 -- A -- {FIELDS}".replace("=1.0", "=fast"), FormatError, "forward_compute_time is 'fast'"),
        (
            f"node1 -- A -- {FIELDS}".replace("=8.0", "=-8.0"),
            FormatError,
            "activation_size is -8.0; it must be at least 0",
        ),
        ("node1", FormatError, "NODE -- DESCRIPTION -- FIELDS"),
    ],
)
def test_bad_files_are_rejected(text, error, match):
    with pytest.raises(error, match=match):
        graph_from_pipedream(text, "bad")


def test_a_damaged_file_is_a_damaged_profile(tmp_path):
    """Whatever is missing of its first layers; what begins like JSON is none."""
    path = tmp_path / "graph.txt"
    path.write_text("node1 -- Conv2d(3, 64) -- forward_compute_ti")
    with pytest.raises(FormatError, match="line 1: field forward_compute_time is missing"):
        load_graph(path)
    layer = "-- L -- forward_compute_time=1, backward_compute_time=2, activation_size=8, parameter_size=4\n"
    path.write_text(f"node1 {layer}node2 {layer}node3 {layer}\tnode1 -- node2\n")
    with pytest.raises(
        FormatError, match=r"1 of 3 nodes have no edge, such as 'node3' \(edges come last: is the file trunc"
    ):
        load_graph(path)
    path.write_text(f"node1 {layer}")
    assert load_graph(path).n == 2
    path.write_text('{"name": "a -- b", ')
    with pytest.raises(FormatError, match="not JSON"):
        load_graph(path)
