"""Mutated files: small valid ones of every kind, and random damage to their trees, their text and their bytes."""

import functools
import gzip
import json

import baechi_lab as bl
from baechi_lab.graph.formats.json_format import to_document

RAW = {
    "@huge": "1e400",
    "@long": "1" + "0" * 400,
    "@longer": "9" * 5000,
    "@nan": "NaN",
    "@infinity": "Infinity",
    "@half": '"\\ud800"',
    "@nul": '"a\\u0000b"',
    "@deep": "[" * 500 + "]" * 500,
    "@deeper": "[" * 100_000,
    "@minus": "-0",
    "@tiny": "1e-400",
    "@objects": '{"a":' * 300 + "1" + "}" * 300,
}
"""Stand-ins for what `json.dumps` would not write."""

VALUES = [
    None,
    True,
    False,
    [],
    {},
    "",
    "x",
    "gpu",
    "gpu:0",
    "cpu",
    "/",
    ":",
    "\n",
    " ",
    "\u2028",
    -1,
    0,
    1,
    2,
    3,
    7,
    1.5,
    -0.5,
    1e18,
    1e300,
    1e308,
    2**31 - 1,
    2**31,
    -(2**31) - 1,
    2**32 + 1,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    [0],
    [1],
    [[]],
    [None],
    ["x"],
    [1.5],
    {"x": 1},
    {"latency_us": 1, "us_per_byte": 1},
    "Infinity",
    "null",
    *RAW,
]


@functools.cache
def graphs():
    """Graphs with every column, small."""
    rich = bl.OpGraph.from_edges(
        [1.0, 2.5, 3.0, 4.0, 5.0],
        [(0, 1, 4), (0, 2, 8), (1, 3, 16), (2, 3, 4), (3, 4, 0)],
        names=["a", "b", "c", "d", "e"],
        op_types=["op", "x", "x", "op", "y"],
        duration_by_kind={"cpu": [2, 2, 2, 2, 2]},
        temp_bytes=[1, 2, 3, 4, 5],
        persistent_bytes=[5, 4, 3, 2, 1],
        colocation=[0, -1, 0, 1, -1],
        colocation_names=("g", "h"),
        allowed=[-1, 0, -1, 1, -1],
        allowed_sets=(("gpu", "cpu"), ("gpu:0", "gpu:1")),
        forward_of=[-1, -1, -1, 1, 0],
    )
    return [
        rich,
        bl.optimize(rich),
        bl.generators.random_dag(6, seed=1),
        bl.OpGraph.from_edges([]),
        bl.OpGraph.from_edges([3]),
    ]


@functools.cache
def clusters():
    """A uniform cluster, and one with a matrix of links."""
    link = bl.Link(1.0, 0.5, overhead_us=2.0)
    mixed = (bl.Device("gpu:0", "gpu", 10**6, 2.0), bl.Device("cpu:0", "cpu", 10**9))
    return [bl.Cluster.uniform(2), bl.Cluster(mixed, [[link, link], [bl.Link(3.0, 0.0), link]], "duplex")]


def partitioning():
    """A document of the dnn-partitioning set."""
    node = {"supportedOnFpga": 1, "cpuLatency": 2.0, "fpgaLatency": 1.0, "size": 4.0, "isBackwardNode": False}
    names = ["conv", "w", "conv_grad", "AdamOptimizer_w"]
    nodes = [{**node, "id": k, "name": x, "colorClass": k % 2, "isBackwardNode": k > 1} for k, x in enumerate(names)]
    edges = [{"sourceId": a, "destId": b, "size": 8.0, "cost": 1.0} for a, b in ((0, 2), (1, 0), (2, 3))]
    return {"nodes": nodes, "edges": edges}


STG = "4\n0 0 0\n1 7 1 0\n2 3 1 0 # a comment\n3 2 2 1 5 2 6\n4 4 1\n2 9\n5 0 2 3 4\n"


def documents():
    """Kind -> documents of it."""
    documents = {"graph": [to_document(g) for g in graphs()], "cluster": [to_document(c) for c in clusters()]}
    placements, timelines = [], []
    for graph, cluster in zip(graphs()[:2], clusters(), strict=True):
        for placer in ("m-etf", "single"):
            placement = bl.place(graph, cluster, placer)
            placements.append(to_document(placement))
            short = bl.simulate(graph, cluster.with_memory([8] * 2), placement)  # with violations
            timelines += [to_document(bl.simulate(graph, cluster, placement)), to_document(short)]
    pipeline, two = bl.generators.pipeline([1.0, 2.0], [2.0, 2.0]), bl.Cluster.uniform(2)
    by_stage = bl.Placement(device=[0, 1] * (pipeline.n // 2))
    timelines.append(to_document(bl.simulate(pipeline, two, by_stage, micro_batches=2, schedule="1f1b")))
    return {**documents, "placement": placements, "timeline": timelines, "partitioning": [partitioning()]}


def mutated_json(document, rng):
    """The text of the document with one to four changes of its tree, its text or its bytes."""
    tree = json.loads(json.dumps(document))
    for _ in range(int(rng.integers(0, 4))):
        tree = _changed(tree, rng)
    text = json.dumps(tree)
    for word, raw in RAW.items():
        text = text.replace(json.dumps(word), raw)
    if rng.random() < 0.1:
        text = _doubled(text, rng)
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.3:
        data = mutated_bytes(data, rng)
    if rng.random() < 0.1:
        data = gzip.compress(data, 1)
        data = mutated_bytes(data, rng) if rng.random() < 0.5 else data
    return data


def mutated_stg(rng):
    """The text of a task graph with changed words, lines and bytes."""
    lines = [line.split(" ") for line in STG.splitlines()]
    words = [
        "-1",
        "1.5",
        "1e400",
        "1" + "0" * 400,
        "9" * 5000,
        "nan",
        "inf",
        "1_0",
        "x",
        "",
        "#",
        "99",
        str(2**63),
        str(2**53 + 1),
        "\0",
    ]
    for _ in range(int(rng.integers(0, 4))):
        line = lines[rng.integers(len(lines))]
        mutation = rng.integers(4)
        if mutation == 0:
            line[rng.integers(len(line))] = words[rng.integers(len(words))]
        elif mutation == 1:
            line.insert(int(rng.integers(len(line) + 1)), words[rng.integers(len(words))])
        elif mutation == 2 and len(lines) > 1:
            del lines[rng.integers(len(lines))]
        else:
            lines.insert(int(rng.integers(len(lines) + 1)), list(lines[rng.integers(len(lines))]))
    data = "\n".join(" ".join(line) for line in lines).encode()
    return mutated_bytes(data, rng) if rng.random() < 0.3 else data


def mutated_bytes(data, rng):
    """Bytes flipped, cut out, doubled, inserted, or cut off."""
    mutated = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        at, length = int(rng.integers(len(mutated) + 1)), int(rng.integers(1, 20))
        mutation = rng.integers(5)
        if mutation == 0 and at < len(mutated):
            mutated[at] ^= 1 << int(rng.integers(8))
        elif mutation == 1:
            del mutated[at : at + length]
        elif mutation == 2:
            mutated[at:at] = mutated[at : at + length]
        elif mutation == 3:
            mutated[at:at] = rng.bytes(length)
        elif rng.random() < 0.3:
            del mutated[at:]
    return bytes(mutated)


def _places(tree, path=()):
    """Ways to all parts of a tree."""
    yield path
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        yield from _places(child, (*path, key))


def _changed(tree, rng):
    """One part replaced, removed, repeated, renamed or exchanged with another."""
    paths = list(_places(tree))
    path = paths[rng.integers(len(paths))]
    if not path:
        return VALUES[rng.integers(len(VALUES))] if rng.random() < 0.2 else tree
    home = tree
    for key in path[:-1]:
        home = home[key]
    key, mutation = path[-1], rng.integers(6)
    if mutation <= 2:
        home[key] = json.loads(json.dumps(VALUES[rng.integers(len(VALUES))]))
    elif mutation == 3:
        del home[key]
    elif mutation == 4 and isinstance(home, list):
        home.insert(key, json.loads(json.dumps(home[key])))
    elif mutation == 4:
        home[f"{key}'"] = home.pop(key)
    else:
        subtree = tree
        for step in paths[rng.integers(len(paths))]:
            subtree = subtree[step]
        home[key] = json.loads(json.dumps(subtree))
    return tree


def _doubled(text, rng):
    """The text with one `"key": ` said twice."""
    marks = [k for k in range(len(text)) if text.startswith('": ', k)]
    if not marks:
        return text
    end = marks[rng.integers(len(marks))]
    begin = text.rfind('"', 0, end)
    return f'{text[:begin]}"{text[begin + 1 : end]}": 1, {text[begin:]}' if begin >= 0 else text
