"""Records that several tests of `graph` share."""

import pytest

import baechi_lab as bl
from baechi_lab.graph.timeline import MemoryLog, Timeline, Transfers, Violation


@pytest.fixture
def full_graph() -> bl.OpGraph:
    """Every column in use: several outputs, an unread tensor, kinds, groups, lists, backward ops, members."""
    return bl.OpGraph(
        names=("a", "b", "b/grad"),
        duration_us=[1.5, 0.0, 3.0],
        duration_by_kind={"cpu": [10.0, 0.1, 30.0]},
        tensor_producer=[0, 0, 1],
        tensor_bytes=[8, 16, 4],
        consumer_ptr=[0, 2, 3, 3],
        consumers=[1, 2, 2],
        tensor_names=("left", "right", "unread"),
        op_types=("MatMul", "op", "MatMulGrad"),
        temp_bytes=[1, 2, 3],
        persistent_bytes=[2**40, 0, 0],
        colocation=[0, -1, 0],
        colocation_names=("w",),
        allowed=[-1, 0, -1],
        allowed_sets=(("gpu:0", "cpu"),),
        forward_of=[-1, -1, 1],
        output_shapes=("f32[2], f32[4]", "", "f32[2]"),
        batch_readers=("b",),
        group_of=[0, 1, 1, 2],
        source_key="abc",
        name="full",
    )


@pytest.fixture
def small_timeline() -> Timeline:
    return Timeline(
        op=[0, 1],
        device=[0, 1],
        start_us=[0.0, 6.0],
        end_us=[1.0, 8.0],
        transfers=Transfers([0], [0], [1], [1.0], [2.0], [6.0]),
        memory=MemoryLog([0, 1], [0.0, 2.0], [1, 3], [8, 8], [0, 0]),
        peak_bytes=[8, 8],
        makespan_us=8.0,
        origin="simulated",
        op_names=("a", "b"),
        device_names=("d0", "d1"),
        memory_bytes=[100, 4],
        tensor_producer=[0],
        tensor_bytes=[8],
        violations=(Violation("memory", "d1 holds 8 of 4 bytes", 1, 2.0, 0), Violation("allowed", "never ran")),
        info={"scheduler": "fifo"},
    )
