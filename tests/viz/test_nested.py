"""Nested boxes: where ops belong, levels between, the layered layout, and what a scene sums, on graphs one can count."""

import itertools

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.viz.nested.boxes import Box, repeats, segments, with_levels
from baechi_lab.viz.nested.boxes import crossings as crossing_edges
from baechi_lab.viz.nested.layered import crossings, longest_path, rows
from baechi_lab.viz.nested.scene import build_paint, build_scene, covering, text_width
from baechi_lab.viz.nested.scopes import BACKWARD, scope_paths
from baechi_lab.viz.nested.svg import CROSSING, draw_scene
from baechi_lab.viz.nested.tree import LEVEL, MOST_CHILDREN, OP, ROOT, SCOPE, build_tree


@pytest.fixture
def diamond():
    """a 5 us -> b 10 us, c 10 us -> d 5 us; b and c in scope s; every tensor 8 bytes."""
    edges = [(0, 1, 8), (0, 2, 8), (1, 3, 8), (2, 3, 8)]
    return bl.OpGraph.from_edges([5, 10, 10, 5], edges, names=["a", "s/b", "s/c", "d"])


def training(layers=3, dims=4):
    """w_k -> m_k -> m_k+1 ...; the gradient g_k of each, a sum of two gradients, and an update of every variable."""
    names, edges, forward_of, group, persistent_bytes = [], [], [], [], []

    def add(name, *reads, of=-1, colocation=-1, persistent=0):
        names.append(name)
        forward_of.append(of)
        group.append(colocation)
        persistent_bytes.append(persistent)
        edges.extend((r, len(names) - 1, dims) for r in reads)
        return len(names) - 1

    x = add("x")
    variable = [add(f"net/layer{k}/w", colocation=k, persistent=8) for k in range(layers)]
    products = [x]
    for k in range(layers):
        products.append(add(f"net/layer{k}/MatMul", products[-1], variable[k]))
    loss = add("loss/Mean", products[-1])
    grad = add("gradient_tape/loss/Mean", loss, of=loss)
    for k in reversed(range(layers)):
        grad = add(f"gradient_tape/net/layer{k}/MatMul", grad, products[k], of=products[k + 1])
        total = add(f"AddN_{k}", grad)
        rate = add(f"optimizer/net/layer{k}/w/lr")
        add(f"optimizer/net/layer{k}/w/Apply", total, rate, variable[k], colocation=k)
    return bl.OpGraph.from_edges(
        np.ones(len(names)),
        edges,
        names=names,
        forward_of=forward_of,
        colocation=group,
        colocation_names=tuple(f"net/layer{k}/w" for k in range(layers)),
        persistent_bytes=persistent_bytes,
    )


# -- where ops belong --------------------------------------------------------------------------------------


def test_hubs_and_updates_belong_where_they_serve():
    graph = training()
    path_of = dict(zip(graph.names, scope_paths(graph), strict=True))
    for k in range(3):
        layer = ("net", f"layer{k}")
        assert path_of[f"gradient_tape/net/layer{k}/MatMul"] == (BACKWARD, *layer)  # by forward_of
        assert path_of[f"AddN_{k}"] == (BACKWARD, *layer)  # a sum of gradients has no scope: by what it reads
        assert path_of[f"optimizer/net/layer{k}/w/Apply"] == layer  # by colocation with the variable
        assert path_of[f"optimizer/net/layer{k}/w/lr"][:2] == layer
    assert path_of["x"] == ("net", "layer0")  # read by both passes: the forward one


def test_a_variable_outside_belongs_to_its_readers():
    graph = bl.OpGraph.from_edges(
        [1, 1, 1], [(0, 1, 4), (1, 2, 4)], names=["conv2d/kernel", "net/conv2d_1/Read", "net/conv2d_1/Conv"]
    )
    assert scope_paths(graph)[0] == ("net", "conv2d_1")


def test_what_an_optimizer_does_for_all_stays_apart():
    graph = bl.OpGraph.from_edges(
        [1] * 6,
        [(0, 1, 4), (1, 2, 4), (1, 3, 4), (2, 3, 4), (3, 4, 4), (3, 5, 4)],
        names=["a/x", "a/y", "b/y", "optimizer/clip/AddN", "optimizer/a/Apply", "optimizer/b/Apply"],
    )
    assert scope_paths(graph)[3:] == (("optimizer",), ("a",), ("b",))


def test_names_without_slashes_are_cut_at_dots():
    names = [f"encoder.layer.{k}.{x}" for k in range(2) for x in ("attn", "mlp")]
    assert scope_paths(bl.OpGraph.from_edges(np.ones(4), names=names))[0] == ("encoder", "layer", "0")


def test_operators_in_modules_belong_to_the_module_s_path():
    """As PyTorch profiles name them: a module's path, a slash and the operator; a bare number is told with its scope."""
    ahead = [f"net.layer.{k}.{x}" for k in range(3) for x in ("attn/addmm", "attn/add", "mlp/addmm")]
    backward = [name.replace("/", "/backward/") for name in ahead[::-1]]
    edges = [(k, k + 1, 8) for k in range(17)]
    graph = bl.OpGraph.from_edges(
        np.ones(18), edges, names=ahead + backward, forward_of=[-1] * 9 + list(range(9))[::-1]
    )
    assert scope_paths(graph)[0] == ("net", "layer", "0", "attn") and scope_paths(graph)[-1] == (
        "∇",
        "net",
        "layer",
        "0",
        "attn",
    )
    tree = build_tree(graph)
    shown = tree.visible(tree.open_until(24)).tolist()
    assert {"layer.0", "layer.1", "layer.2"} <= {tree.labels[k] for k in range(len(tree))}
    assert not (tree.kind == LEVEL).any() and len(shown) > 5


def test_a_module_outside_all_layers_is_a_box_of_its_own_with_its_update():
    """PyTorch's layer profiles name a call as its module: neither the embedding nor the head belongs to a layer of `enc`.

    A function outside of modules (`add`, `loss`) has no update, and belongs to its neighbours.
    """
    layers = [f"enc.layers.{k}.{x}" for k in range(8) for x in ("attn", "linear1")]
    ahead, functions = ["emb", *layers, "add", "head", "loss"], ("add", "loss")
    updated = [name for name in ahead if name not in functions]
    names = [*ahead, *(f"{name}/backward" for name in ahead[::-1]), *(f"{name}/update" for name in updated)]
    count = len(ahead)
    edges = [(k, k + 1, 8) for k in range(2 * count - 1)]
    edges += [(2 * count - 1 - ahead.index(name), 2 * count + k, 8) for k, name in enumerate(updated)]
    forward_of = [*[-1] * count, *range(count)[::-1], *[-1] * len(updated)]
    modules = [name.partition("/")[0] for name in names]
    columns = {"names": names, "forward_of": forward_of, "colocation": [ahead.index(module) for module in modules]}
    parameters = [8 * (name in updated) for name in names]
    graph = bl.OpGraph.from_edges(
        np.ones(len(names)), edges, persistent_bytes=parameters, colocation_names=ahead, **columns
    )
    tree = build_tree(graph)
    roots = [k for k in tree.children[ROOT] if not tree.backward[k]]
    inside = {tree.labels[k]: {names[op] for op in tree.members(k)} for k in roots}
    assert inside["emb"] == {"emb", "emb/update"} and inside["head"] == {"head", "head/update", "loss"}
    assert set(inside) == {"emb", "enc", "head"}
    layer = next(k for k in range(len(tree)) if tree.labels[k] == "layers.3" and not tree.backward[k])
    assert [tree.labels[k] for k in tree.children[layer]] == ["attn", "linear1"]  # no box has the name "update" alone
    scene = build_scene(graph, tree, ())
    x = {tree.labels[k]: scene.x[i] for i, k in enumerate(scene.nodes) if not tree.backward[k]}
    assert sorted(x, key=x.__getitem__) == ["emb", "enc", "head"]  # though their updates run last


def test_names_of_an_onnx_program_begin_with_a_slash():
    """PyTorch's exporter writes them so. No frame is without a name, and the first operator, without inputs, is in its scope."""
    ahead = ["/stem/Conv", "/body/Conv", "/body/Relu", "/head/Gemm"]
    names = [*ahead, *(f"{name}/backward" for name in ahead[::-1]), "/stem/Conv/update"]
    graph = bl.OpGraph.from_edges(
        np.ones(9), [(k, k + 1, 8) for k in range(8)], names=names, forward_of=[-1] * 4 + [3, 2, 1, 0, -1]
    )
    assert scope_paths(graph)[:4] == (("stem",), ("body",), ("body",), ("head",))
    assert scope_paths(graph)[7] == (BACKWARD, "stem")


# -- levels between ----------------------------------------------------------------------------------------


def test_crossings_count_producers_once():
    # 0 -> 1, 0 -> 2, 1 -> 2: behind 0 only 0's tensor is alive, behind 1 those of 0 and 1.
    assert crossing_edges(3, np.array([0, 0, 1]), np.array([1, 2, 2])).tolist() == [1, 2]


def test_repeated_blocks_are_found_between_head_and_tail():
    labels = np.array([90, 91, *[1, 2, 3, 4, 5] * 12, 92])
    start, period, count = repeats(labels)
    assert (start, period, count) == (2, 5, 12)
    chain = np.arange(len(labels))
    cut = segments(labels, chain[:-1], chain[1:], 20)
    assert cut.repeated == 12 and np.bincount(cut.segment_of).tolist() == [2, *[5] * 12, 1]


def test_a_mismatch_in_a_block_does_not_hide_the_pattern():
    labels = np.array([1, 2, 3, 4, 5] * 12)
    labels[17] = 77
    assert repeats(labels)[1:] == (5, 12)


@pytest.mark.parametrize("labels", [np.zeros(300, int), np.random.default_rng(0).integers(0, 40, 300)])
def test_chains_and_noise_have_no_pattern(labels):
    assert repeats(labels) is None


def test_segments_are_cut_where_fewest_edges_cross():
    # Two clusters of 30 and 34 ops joined by one edge. Borders at 30 and 31 are crossed by one tensor, others by many.
    source, target = zip(
        *[(a, b) for a, b in itertools.combinations(range(64), 2) if (a < 30) == (b < 30)], strict=True
    )
    segment = segments(np.arange(64), np.array([*source, 29]), np.array([*target, 30]), 2).segment_of
    assert segment.tolist() == [0] * 31 + [1] * 33


def test_no_box_holds_too_many_and_every_op_is_in_one():
    for graph in (bl.generators.random_dag(3000, seed=3), bl.generators.chain(700, seed=0), training(50)):
        tree = build_tree(graph)
        assert max(map(len, tree.children)) <= MOST_CHILDREN
        assert sorted(tree.ops.tolist()) == list(range(graph.n))
        assert [graph.names[op] for op in range(graph.n)] == [tree.names[node] for node in tree.leaf_of]


def test_a_box_that_was_cut_counts_the_items_that_it_has_now():
    """A chain of 40 ops in boxes of at most 5 items."""
    graph = bl.generators.chain(40, seed=0)
    whole_chain = Box("chain", "chain", SCOPE, [Box(name, name, OP, [], op) for op, name in enumerate(graph.names)])
    assert whole_chain.most_items == 40
    with_levels(graph, whole_chain, Box("backward", "backward", SCOPE, []), limit=5, outermost=5)
    assert 1 < whole_chain.most_items <= 5 and sorted(whole_chain.ops.tolist()) == list(range(40))


def test_bug_parts_without_a_name_were_counted_with_those_that_have_one():
    """Layers of two to five ops in a row, and twelve ops outside them: the last parts were "part 4 of 5" and "part 5 of 5"."""
    names = [
        f"net/{layer}/op{k}" for layer, size in enumerate([5, 3, 2, 2, 3, 2, 2, 2, 5, 4, 5, 5]) for k in range(size)
    ]
    names += [f"net/plain{k}x" for k in range(12)]
    chain = [(op, op + 1, 8) for op in range(len(names) - 1)]
    graph = bl.OpGraph.from_edges(
        np.ones(len(names)), chain, names=names, op_types=[f"type{k}" for k in range(len(names))]
    )
    tree = build_tree(graph)
    block_labels = [label for label, kind in zip(tree.labels, tree.kind, strict=True) if kind == LEVEL]
    assert block_labels[0].startswith("net/0 to ") and block_labels[-2:] == ["other ops (1)", "other ops (2)"]


def test_the_backward_pass_is_cut_as_the_forward_pass():
    n = 60
    names = [f"op{k}" for k in range(n)] + [f"op{k}_grad" for k in range(n)]
    edges = (
        [(k, k + 1, 4) for k in range(n - 1)] + [(n - 1, 2 * n - 1, 4)] + [(n + k + 1, n + k, 4) for k in range(n - 1)]
    )
    graph = bl.OpGraph.from_edges(np.ones(2 * n), edges, names=names, forward_of=[-1] * n + list(range(n)))
    tree = build_tree(graph)
    backward_nodes = [c for c in tree.children[ROOT] if tree.backward[c]]
    assert len(backward_nodes) == len(tree.children[ROOT]) / 2
    for node in backward_nodes:
        assert sorted(graph.forward_of[tree.members(node)]) == sorted(tree.members(tree.twin[node]))


# -- the tree ----------------------------------------------------------------------------------------------


def test_tree_of_scopes(diamond):
    tree = build_tree(diamond)
    scope = tree.names.index("s")
    assert tree.kind[scope] == SCOPE and sorted(tree.members(scope).tolist()) == [1, 2]
    assert [tree.names[n] for n in tree.children[scope]] == ["s/b", "s/c"]
    assert tree.path(tree.children[scope][0]) == [ROOT, scope]


def test_single_child_scopes_are_one_box_with_the_outer_label():
    graph = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 4), (1, 2, 4)], names=["x/y/z/a", "x/y/z/b", "q/c"])
    tree = build_tree(graph)
    assert [(tree.names[n], tree.labels[n]) for n in tree.children[ROOT]] == [("x/y/z", "x"), ("q/c", "c")]


def test_the_first_picture_has_few_boxes_and_is_the_same_for_both_passes():
    graph = training(12)
    tree = build_tree(graph)
    opened = tree.open_until(24)
    shown = tree.visible(opened)
    assert 5 <= len(shown) <= 24
    assert {tree.labels[n] for n in opened if tree.backward[n]} <= {
        tree.labels[n] for n in opened if not tree.backward[n]
    }
    assert tree.kind[shown].tolist().count(OP) <= len(shown) / 2


# -- layout ------------------------------------------------------------------------------------------------


def test_layers_follow_the_longest_path_and_sources_wait_for_their_use():
    # 0 -> 1 -> 2 and a constant 3 -> 2: 3 moves from layer 0 to layer 1, next to its reader.
    order = np.array([0.0, 1.0, 3.0, 2.0])
    assert longest_path(order, np.array([0, 1, 3]), np.array([1, 2, 2])).tolist() == [0, 1, 2, 1]


def test_an_edge_against_the_order_does_not_stretch_the_layers():
    assert longest_path(np.arange(3.0), np.array([0, 1, 2]), np.array([1, 2, 0])).tolist() == [0, 1, 2]


def test_crossings_of_a_swapped_pair():
    layer, rank = np.array([0, 0, 1, 1]), np.array([0.0, 1, 0, 1])
    assert crossings(layer, rank, np.array([0, 1]), np.array([2, 3])) == 0
    assert crossings(layer, rank, np.array([0, 1]), np.array([3, 2])) == 1


def test_rows_untangle_and_keep_boxes_apart():
    # Two chains 0-3 and 1-2, listed crosswise; heights 20 and 40.
    layer, height = np.array([0, 0, 1, 1]), np.array([20.0, 40.0, 20.0, 40.0])
    middles = rows(layer, height, np.array([0, 1]), np.array([3, 2]), np.ones(2), np.arange(4.0))
    assert (middles.y[0] - middles.y[1]) * (middles.y[3] - middles.y[2]) > 0
    assert abs(middles.y[0] - middles.y[1]) >= 30 and abs(middles.y[2] - middles.y[3]) >= 30


def overlaps(boxes):
    """Pairs of (x, y, w, h) that cover a common spot."""
    return [
        (a, b)
        for a, b in itertools.combinations(range(len(boxes)), 2)
        if all(abs(boxes[a][k] - boxes[b][k]) < (boxes[a][2 + k] + boxes[b][2 + k]) / 2 - 0.5 for k in (0, 1))
    ]


@pytest.mark.parametrize("seed", range(3))
def test_boxes_never_overlap_and_frames_hold_theirs(seed):
    rng = np.random.default_rng(seed)
    names = [f"s{rng.integers(4)}/t{rng.integers(4)}/op{k}" for k in range(120)]
    source, target = np.sort(rng.integers(0, 120, (2, 300)), axis=0)
    keep = source < target
    graph = bl.OpGraph.from_edges(np.ones(120), zip(source[keep], target[keep], itertools.repeat(4)), names=names)
    tree = build_tree(graph)
    scopes = [n for n in range(len(tree)) if tree.children[n]]
    for opened in ((), scopes[1::2], scopes):
        scene = build_scene(graph, tree, opened)
        box = np.stack([scene.x, scene.y, scene.width, scene.height], axis=1)
        assert overlaps(box.tolist()) == []
        place = dict(zip([*scene.nodes.tolist(), *scene.frames.tolist()], [*box, *scene.frame_box], strict=True))
        for node, (x, y, w, h) in place.items():
            if (parent := int(tree.parent[node])) in place:
                a, b, c, d = place[parent]
                assert abs(x - a) + w / 2 <= c / 2 and abs(y - b) + h / 2 <= d / 2
            assert w >= text_width(scene.label(node), 11)  # labels are whole
        assert scene.arrows.points.min() >= -1 and (scene.arrows.points <= np.array(scene.size) + 1).all()


def test_opening_a_box_keeps_the_others_in_their_rows():
    names = [f"s{k}/{x}" for k in range(12) for x in "abc"]
    graph = bl.OpGraph.from_edges(np.ones(36), [(k, k + 1, 4) for k in range(35)], names=names)
    tree = build_tree(graph)
    before, after = (build_scene(graph, tree, opened) for opened in ((), (tree.children[ROOT][5],)))
    place_before, place_after = (
        {n: (x, y) for n, x, y in zip(s.nodes.tolist(), s.x, s.y, strict=True)} for s in (before, after)
    )
    in_both = [n for n in place_before if n in place_after]
    assert len(in_both) == 11 and len(place_after) == 14
    for a, b in itertools.combinations(in_both, 2):
        if abs(place_before[a][1] - place_before[b][1]) < 1:  # in one row: still in one, in the same order
            assert abs(place_after[a][1] - place_after[b][1]) < 1 and (place_before[a][0] < place_before[b][0]) == (
                place_after[a][0] < place_after[b][0]
            )
        else:
            assert (place_before[a][1] < place_before[b][1]) == (place_after[a][1] < place_after[b][1])


# -- scene and paint ---------------------------------------------------------------------------------------


def arrow_bytes(scene):
    at = scene.tree.names
    rows_ = zip(scene.arrows.source, scene.arrows.target, scene.arrows.bytes, scene.arrows.tensors, strict=True)
    return {(at[u], at[v]): (int(b), int(c)) for u, v, b, c in rows_}


def test_bug_boxes_were_as_wide_as_the_longest_names():
    """Twelve names of 170 letters: no label on the screen was large enough to be read. Their ends are what differs."""
    names = [f"model/{'very_long_name_' * 11}{k}" for k in range(12)]
    graph = bl.OpGraph.from_edges([1.0] * 12, [(k, k + 1, 8) for k in range(11)], names=names)
    tree = build_tree(graph)
    scene = build_scene(graph, tree, [ROOT, *range(1, len(tree.labels))])
    labels = [scene.label(node) for node in scene.nodes.tolist()]
    assert len(set(labels)) == 12 and all(len(text) == 40 and "…" in text for text in labels)
    assert scene.width.max() < 40 * 12  # pixels of a letter
    assert text_width("日本", 10.0) == 20.0  # as wide as high


def test_scene_sums_members_and_counts_a_tensor_once(diamond):
    scene = build_scene(diamond, build_tree(diamond), ())
    at = {scene.tree.names[n]: k for k, n in enumerate(scene.nodes.tolist())}
    assert (
        scene.duration_us[at["s"]] == 10 + 10
        and scene.made_bytes[at["s"]] == 8 + 8
        and scene.persistent_bytes[at["s"]] == 0
    )
    # a's one tensor of 8 bytes is read by b and by c: 8, not 16. The two tensors into d: 8 + 8.
    assert arrow_bytes(scene) == {("a", "s"): (8, 1), ("s", "d"): (16, 2)}


def test_a_frame_has_one_arrow_per_pair_of_its_boxes(diamond):
    tree = build_tree(diamond)
    scene = build_scene(diamond, tree, {tree.names.index("s")})
    # b and c are not joined; what comes from a or goes to d passes the frame.
    assert arrow_bytes(scene) == {("a", "s"): (8, 1), ("s", "d"): (16, 2)}
    assert scene.arrows.edge_of.min() >= 0 and len(scene) == 4


def test_paint_shares_transfers_and_the_chain(diamond):
    cluster = bl.Cluster.uniform(2, link=bl.Link(2.0, 0.0), comm="parallel")
    line = bl.simulate(diamond, cluster, bl.Placement(device=[0, 0, 1, 0]))
    scene = build_scene(diamond, build_tree(diamond), ())
    # a -> c -> d wait for transfers; the chain's edges cross both arrows.
    paint = build_paint(diamond, scene, line, np.array([0, 2, 3]))
    at = {scene.tree.names[n]: k for k, n in enumerate(scene.nodes.tolist())}
    assert paint.share[at["s"]] == pytest.approx([0.5, 0.5]) and paint.share[at["a"]] == pytest.approx([1.0, 0.0])
    assert (paint.sent_bytes[at["a"]], paint.sent_bytes[at["s"]]) == (8, 8)
    assert (paint.received_bytes[at["s"]], paint.received_bytes[at["d"]]) == (8, 8)
    assert paint.crossing_bytes.tolist() == [8, 8] and paint.critical_arrow.all()


def test_bug_a_tensor_of_0_bytes_to_another_device_seemed_to_stay():
    graph = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 0), (1, 2, 0)], names=["a", "b", "c"])
    line = bl.simulate(graph, bl.Cluster.uniform(2), bl.Placement(device=[0, 1, 1]))
    scene = build_scene(graph, build_tree(graph), ())
    paint = build_paint(graph, scene, line)
    names_of_edges = [
        tuple(graph.names[op] for op in pair) for pair in zip(graph.edge_source, graph.consumers, strict=True)
    ]
    assert dict(zip(names_of_edges, paint.crossing_bytes[scene.arrows.edge_of].tolist(), strict=True)) == {
        ("a", "b"): 0.0,
        ("b", "c"): -1.0,
    }
    assert CROSSING in draw_scene(scene, ("#000000", "#111111"), paint.share, paint.crossing_bytes)


def test_an_arrow_is_critical_only_if_an_edge_of_the_chain_crosses_it(diamond):
    line = bl.simulate(diamond, bl.Cluster.uniform(1), bl.Placement(device=[0] * 4))
    scene = build_scene(diamond, build_tree(diamond), range(9))
    # On one device c follows b, which it does not read: a -> b is on the chain, b -> c is no edge, c -> d is one.
    paint = build_paint(diamond, scene, line, np.array([0, 1, 2, 3]))
    assert paint.critical.all()
    on = {
        (scene.tree.names[u], scene.tree.names[v])
        for u, v in zip(
            scene.arrows.source[paint.critical_arrow], scene.arrows.target[paint.critical_arrow], strict=True
        )
    }
    assert on == {("a", "s"), ("s", "d")}
    # Both boxes of a pair may be on the chain without an edge of it between them.
    paint = build_paint(diamond, scene, line, np.array([0, 1]))
    assert paint.critical_arrow.sum() == 1


def test_covering_boxes_and_the_empty_graph(diamond):
    scene = build_scene(diamond, build_tree(diamond), ())
    assert [scene.tree.names[n] for n in covering(scene, [2])] == ["s"] and covering(scene, []) == []
    empty = bl.OpGraph.from_edges([])
    assert draw_scene(build_scene(empty, build_tree(empty), ())) == ""
