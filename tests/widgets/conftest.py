"""Records that the widget tests share."""

import pytest

import baechi_lab as bl


@pytest.fixture
def diamond():
    """a 5 us -> b 10 us, c 10 us -> d 5 us; b and c in scope s; every tensor 8 bytes."""
    return bl.OpGraph.from_edges(
        [5, 10, 10, 5],
        [(0, 1, 8), (0, 2, 8), (1, 3, 8), (2, 3, 8)],
        names=["a", "s/b", "s/c", "d"],
        op_types=("Const", "MatMul", "MatMul", "Add"),
        output_shapes=("f32[2]", "f32[1,2]", "i64[1]", ""),
    )


@pytest.fixture
def pair():
    """Two devices of 1000 bytes, 2 us per transfer, transfers in parallel."""
    return bl.Cluster.uniform(2, memory_bytes=1000, link=bl.Link(2.0, 0.0), comm="parallel")


@pytest.fixture
def split(diamond, pair):
    """The diamond with c on the second device: a 0-5, b 5-15, c 7-17 (2 us later), d 19-24."""
    return bl.simulate(diamond, pair, bl.Placement(device=[0, 0, 1, 0]))
