"""The ten-task example of Topcuoglu, Hariri, Wu 2002 (doi:10.1109/71.993206), figure 2: HEFT's makespan is 80."""

import baechi_lab as bl

COST = {
    "P1": [14, 13, 11, 13, 12, 13, 7, 5, 18, 21],
    "P2": [16, 19, 13, 8, 13, 16, 15, 11, 12, 7],
    "P3": [9, 18, 19, 17, 10, 9, 11, 14, 20, 16],
}
EDGES = [
    (1, 2, 18),
    (1, 3, 12),
    (1, 4, 9),
    (1, 5, 11),
    (1, 6, 14),
    (2, 8, 19),
    (2, 9, 16),
    (3, 7, 23),
    (4, 8, 27),
    (4, 9, 23),
    (5, 9, 13),
    (6, 8, 15),
    (7, 10, 17),
    (8, 10, 11),
    (9, 10, 13),
]
TEN_TASKS = bl.OpGraph.from_edges(
    COST["P1"],
    [(a - 1, b - 1, size) for a, b, size in EDGES],
    names=[f"t{i + 1}" for i in range(10)],
    duration_by_kind=COST,
    name="ten tasks",
)
CLUSTER = bl.Cluster(tuple(bl.Device(p, p, 1 << 30) for p in COST), bl.Link(0.0, 1.0), comm="parallel")
