"""What the graph view sends to its canvas, on graphs small enough to count by hand."""

import numpy as np

import baechi_lab as bl
from baechi_lab.viz.nested.scene import build_paint, build_scene
from baechi_lab.viz.nested.tree import build_tree
from baechi_lab.widgets.columns import pack, pack_texts
from baechi_lab.widgets.moves import all_moving_ops, in_words
from baechi_lab.widgets.scene_columns import paint_columns, scene_columns


def test_columns_come_back_and_text_stays_on_its_line():
    columns = pack(x=("f8", [1.5, 2.5]), n=("i4", [-1, 7]))
    assert np.frombuffer(columns["x"], "<f8").tolist() == [1.5, 2.5]
    assert np.frombuffer(columns["n"], "<i4").tolist() == [-1, 7]
    assert pack_texts(["a\nb", "ü"]).decode().split("\n") == ["a b", "ü"]


def test_scene_columns_name_type_and_forward():
    graph = bl.OpGraph.from_edges(
        [1, 1], [(0, 1, 4)], names=["f", "g"], op_types=("MatMul", "MatMulGrad"), forward_of=[-1, 0]
    )
    columns = scene_columns(graph, build_scene(graph, build_tree(graph), ()))
    names = columns["names"].decode().split("\n")
    assert columns["types"].decode().split("\n")[names.index("g")] == "MatMulGrad"
    assert columns["forward"].decode().split("\n")[names.index("g")] == "f"
    assert columns["labels"].decode().split("\n")[names.index("g")] == "∇ g"
    assert len(np.frombuffer(columns["points"], "<f4")) == 2 * np.frombuffer(columns["pointer"], "<i4")[-1]


def test_paint_columns_send_shares_of_mixed_boxes_alone(diamond, split):
    tree = build_tree(diamond)
    scene = build_scene(diamond, tree, ())
    columns = paint_columns(build_paint(diamond, scene, split, np.array([0, 3])))
    assert np.frombuffer(columns["mixed"], "<i4").tolist() == [scene.nodes.tolist().index(tree.names.index("s"))]
    assert np.frombuffer(columns["critical_arrow"], "<u1").tolist() == [0, 0]  # no edge leads from a to d


def test_what_moves_along_is_closed_under_groups_and_colocation():
    # 0 and 1 are colocated, 1 and 2 are one group of the coarse graph: moving 0 moves all three.
    graph = bl.OpGraph.from_edges([1] * 4, colocation=[0, 0, -1, -1], colocation_names=("w",))
    group_of = np.array([0, 1, 1, 2])
    assert all_moving_ops(graph, [0], group_of).tolist() == [0, 1, 2] and all_moving_ops(
        graph, [3], group_of
    ).tolist() == [3]
    tree = build_tree(graph)
    text = in_words(graph, tree, np.array([0]), np.array([0, 1, 2]), group_of)
    assert text == "op0, which moves with its group of 3 ops (colocation w)"
    assert in_words(graph, tree, np.array([0, 3]), np.array([0, 1, 2, 3]), group_of).startswith(
        "2 ops, which move with the rest of their 3 groups: 4 ops in all"
    )
    assert in_words(graph, tree, np.zeros(0, int), np.zeros(0, int)) == ""
