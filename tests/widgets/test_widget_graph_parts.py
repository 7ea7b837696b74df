"""Tree, layout, scene and paint of the graph view, on graphs small enough to count by hand."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.widgets.columns import pack, pack_texts, unpack
from baechi_lab.widgets.hierarchy import GROUP, OP, SCOPE, build_tree
from baechi_lab.widgets.layout import layered
from baechi_lab.widgets.scene import build_paint, build_scene, covering, paint_columns, scene_columns


def test_columns_come_back_and_text_stays_on_its_line():
    columns = pack(x=("f8", [1.5, 2.5]), n=("i4", [-1, 7]))
    assert unpack(columns, "x", "f8").tolist() == [1.5, 2.5]
    assert unpack(columns, "n", "i4").tolist() == [-1, 7]
    assert pack_texts(["a\nb", "ü"]).decode().split("\n") == ["a b", "ü"]


def test_tree_of_scopes(diamond):
    tree = build_tree(diamond)
    assert [(tree.names[n], int(tree.kind[n])) for n in tree.children[0]] == [("s", SCOPE), ("a", OP), ("d", OP)]
    scope = tree.children[0][0]
    assert sorted(tree.members(scope).tolist()) == [1, 2]
    assert [tree.names[n] for n in tree.children[scope]] == ["s/b", "s/c"]
    assert [tree.path(n) for n in tree.children[scope]] == [[0, scope], [0, scope]]
    assert [int(tree.leaf_of[op]) for op in range(4)] == [tree.names.index(n) for n in diamond.names]


def test_single_child_scopes_are_merged():
    graph = bl.OpGraph.from_edges([1, 1, 1], names=["x/y/z/a", "x/y/z/b", "q"])
    tree = build_tree(graph)
    assert [tree.names[n] for n in tree.children[0]] == ["x/y/z", "q"]


def test_numbered_children_of_a_crowded_scope_are_bundled():
    # 60 scopes block_0/a, block_0/b, ...; 9 single ops AddN, AddN_1, ...; and two that stand alone.
    names = (
        [f"block_{k}/{x}" for k in range(60) for x in "ab"] + ["AddN"] + [f"AddN_{k}" for k in range(1, 9)] + ["x", "y"]
    )
    graph = bl.OpGraph.from_edges(np.ones(len(names)), names=names)
    tree = build_tree(graph)
    assert sorted(tree.names[n] for n in tree.children[0]) == ["AddN_*", "block_*", "x", "y"]
    assert sorted(tree.ops.tolist()) == list(range(graph.n))
    bundle = tree.names.index("AddN_*")
    assert [graph.names[i] for i in tree.members(bundle)] == names[120:129]


def test_groups_of_a_coarse_graph_hold_their_members(diamond):
    coarse = bl.OpGraph.from_edges([5, 20, 5], [(0, 1, 8), (1, 2, 8)], names=["a", "s/b", "d"], group_of=[0, 1, 1, 2])
    tree = build_tree(diamond, coarse)
    group = next(n for n in range(len(tree)) if tree.kind[n] == GROUP)
    assert tree.names[group] == "s/b" and tree.members(group).tolist() == [1, 2]
    assert int(tree.unit[group]) == 1
    # Closed, the group is one node; open, its members are.
    assert len(tree.visible(frozenset())) == 3
    assert len(tree.visible({group})) == 4


def test_open_until_stays_below_the_limit():
    names = [f"s{i}/o{j}" for i in range(10) for j in range(20)]
    tree = build_tree(bl.OpGraph.from_edges(np.ones(200), names=names))
    assert len(tree.visible(frozenset())) == 10
    # One open scope adds 19 nodes: 10 + 2 * 19 = 48 fit under 60, a third would make 67.
    assert len(tree.visible(tree.open_until(60))) == 48
    assert len(tree.visible(tree.open_all(200))) == 200
    assert len(tree.visible(tree.open_all(199))) <= 199


def test_layers_follow_the_longest_path_and_sources_wait_for_their_use():
    # 0 -> 1 -> 2 and a constant 3 -> 2: 3 moves from layer 0 to layer 1, next to its reader.
    x, _ = layered(np.arange(4.0)[[0, 1, 3, 2]], np.array([0, 1, 3]), np.array([1, 2, 2]))
    assert x.tolist() == [0, 1, 2, 1]


def test_layout_ignores_edges_against_the_order_and_never_overlaps():
    rng = np.random.default_rng(1)
    source, target = rng.integers(0, 300, 900), rng.integers(0, 300, 900)
    keep = source != target
    x, y = layered(np.arange(300.0), source[keep], target[keep])
    assert len({(a, b) for a, b in zip(x.tolist(), y.tolist(), strict=True)}) == 300


def test_a_long_chain_is_broken_into_bands():
    n = 400
    x, y = layered(np.arange(float(n)), np.arange(n - 1), np.arange(1, n))
    assert x.max() < n / 4 and len(np.unique(y)) > 4
    # Read like text: within a band to the right, then down.
    order = np.lexsort((x, y))
    assert order.tolist() == list(range(n))


def test_empty_layout():
    assert [len(c) for c in layered(np.zeros(0), np.zeros(0, int), np.zeros(0, int))] == [0, 0]


def test_scene_sums_members_and_counts_a_tensor_once(diamond):
    tree = build_tree(diamond)
    scene = build_scene(diamond, tree, frozenset())
    at = {tree.names[n]: k for k, n in enumerate(scene.nodes.tolist())}
    assert scene.duration_us[at["s"]] == 10 + 10
    # b and c each produce 8 bytes; nothing is persistent or temporary.
    assert scene.memory_bytes[at["s"]] == 8 + 8
    edges = {
        (u, v): b
        for u, v, b in zip(scene.source.tolist(), scene.target.tolist(), scene.edge_bytes.tolist(), strict=True)
    }
    # a's one tensor of 8 bytes is read by b and by c: 8, not 16. The two tensors into d: 8 + 8.
    assert edges == {(at["a"], at["s"]): 8, (at["s"], at["d"]): 16}


def test_scene_columns_name_type_and_forward():
    graph = bl.OpGraph.from_edges(
        [1, 1], [(0, 1, 4)], names=["f", "g"], op_types=("MatMul", "MatMulGrad"), forward_of=[-1, 0]
    )
    scene = build_scene(graph, build_tree(graph), frozenset())
    columns = scene_columns(graph, scene)
    names = columns["names"].decode().split("\n")
    assert columns["types"].decode().split("\n")[names.index("g")] == "MatMulGrad"
    assert columns["forward"].decode().split("\n")[names.index("g")] == "f"
    assert len(unpack(columns, "x", "f4")) == 2


def test_paint_shares_and_transfers(diamond, split):
    tree = build_tree(diamond)
    scene = build_scene(diamond, tree, frozenset())
    paint = build_paint(diamond, scene, split, np.array([0, 3]))
    at = {tree.names[n]: k for k, n in enumerate(scene.nodes.tolist())}
    assert paint.share[at["s"]] == pytest.approx([0.5, 0.5])
    assert paint.share[at["a"]] == pytest.approx([1.0, 0.0])
    # a sends its tensor to c (8 bytes), c sends to d (8 bytes).
    assert (paint.sent_bytes[at["a"]], paint.sent_bytes[at["s"]]) == (8, 8)
    assert (paint.received_bytes[at["s"]], paint.received_bytes[at["d"]]) == (8, 8)
    assert [bool(paint.critical[at[n]]) for n in ("a", "s", "d")] == [True, False, True]
    columns = paint_columns(paint)
    assert unpack(columns, "mixed", "i4").tolist() == [at["s"]]


def test_covering_nodes(diamond):
    tree = build_tree(diamond)
    scene = build_scene(diamond, tree, frozenset())
    assert [tree.names[n] for n in covering(scene, [2])] == ["s"]
    assert covering(scene, []) == []
