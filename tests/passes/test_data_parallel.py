"""Data parallelism and ZeRO over the graph of one copy, with times by hand."""

from __future__ import annotations

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.passes.data_parallel import Bucket, divide_data


def two_layers() -> tuple[bl.OpGraph, list[Bucket]]:
    """f0 (2), f1 (2), b1 (4), b0 (4), update (8); 100 bytes of parameters per layer, 200 of gradients, 600 of states."""
    graph = bl.OpGraph.from_edges(
        [2.0, 2.0, 4.0, 4.0, 8.0],
        [(0, 1, 10), (1, 2, 10), (2, 3, 10), (2, 4, 4), (3, 4, 4)],
        names=["f0", "f1", "b1", "b0", "update"],
        op_types=["matmul", "matmul", "matmul", "matmul", "Update"],
        forward_of=[-1, -1, 1, 0, -1],
        persistent_bytes=[900, 900, 0, 0, 0],
    )
    buckets = [Bucket(f"layer{k}", k, (3 - k,), 4, 100, 200, 200, 600, copies=4) for k in (0, 1)]
    return graph, buckets


def us(kind: str, axis: str, size: float) -> float:
    return size / 100 * (2 if kind == "all_reduce" else 1)


def simulated(graph: bl.OpGraph, micro_batches: int = 1) -> bl.Timeline:
    cluster, placement = bl.Cluster.uniform(1), bl.Placement(device=np.zeros(graph.n, dtype=np.int32))
    timeline = bl.simulate(graph, cluster, placement, micro_batches=micro_batches, schedule="1f1b")
    step = bl.unroll(graph, micro_batches)
    assert bl.check(step, cluster, placement.on(step), timeline) == ()
    return timeline


def test_all_reduces_follow_the_backward_ops_that_make_the_gradients() -> None:
    graph, buckets = two_layers()
    timeline = simulated(divide_data(graph, buckets, us, zero=0))
    start = dict(zip(timeline.op_names, timeline.start_us.tolist(), strict=True))
    assert (start["layer1/all_reduce"], start["layer0/all_reduce"]) == (8, 12)  # 4 us each
    assert start["update"] == 16 and timeline.makespan_us == 24


def test_without_overlap_they_wait_for_the_whole_backward_pass() -> None:
    graph, buckets = two_layers()
    timeline = simulated(divide_data(graph, buckets, us, zero=0, overlap=False))
    assert timeline.makespan_us == 12 + 4 + 4 + 8


def test_zero_1_updates_a_share_and_gathers_it() -> None:
    graph, buckets = two_layers()
    divided = divide_data(graph, buckets[:1], us, zero=1)
    assert divided.duration_us[4] == 8 / 4
    assert divided.persistent_bytes.tolist()[:2] == [900 - 600 + 150, 900]
    # b0 ends at 12, reduce_scatter 2, update 2, all_gather 1
    assert simulated(divided).makespan_us == 12 + 2 + 2 + 1


def test_parameters_are_gathered_beside_the_next_forward_pass() -> None:
    """f0 waits for 1 us of gathering, f1 for none; b0 ends at 13, then reduce_scatter and update take 2 us each."""
    graph, buckets = two_layers()
    divided = divide_data(graph, buckets, us, zero=1, overlap_gather=True)
    timeline = simulated(divided)
    start = dict(zip(timeline.op_names, timeline.start_us.tolist(), strict=True))
    assert [start[name] for name in ("layer0/all_gather", "layer1/all_gather", "f0", "f1")] == [0, 1, 1, 3]
    assert timeline.makespan_us == 13 + 2 + 2
    assert simulated(divide_data(graph, buckets, us, zero=1)).makespan_us == 12 + 2 + 2 + 1 + 1
    names = simulated(divided, micro_batches=3).op_names
    assert sum("all_gather" in name for name in names) == 2  # of a step, not of a micro-batch


def test_gradients_are_reduced_once_per_step_up_to_zero_1_and_per_micro_batch_above() -> None:
    graph, buckets = two_layers()
    for zero, times in ((0, 1), (1, 1), (2, 3), (3, 3)):
        timeline = simulated(divide_data(graph, buckets, us, zero=zero), micro_batches=3)
        kind = "all_reduce" if zero == 0 else "reduce_scatter"
        assert sum(f"layer0/{kind}" in name for name in timeline.op_names) == times


def test_zero_3_gathers_parameters_one_bucket_ahead_and_holds_two() -> None:
    graph, buckets = two_layers()
    divided = divide_data(graph, buckets, us, zero=3)
    timeline = simulated(divided)
    start = dict(zip(timeline.op_names, timeline.start_us.tolist(), strict=True))
    assert start["layer0/all_gather/mb0" if "layer0/all_gather/mb0" in start else "layer0/all_gather"] == 0
    assert start["layer1/all_gather"] == 1  # while layer 0 computes
    assert start["f0"] == 1 and start["f1"] == 3
    # One quarter of parameters, gradients and states remains.
    assert divided.persistent_bytes.tolist()[:2] == [225, 225]
    without = divide_data(graph, buckets, us, zero=3, prefetch=0)
    assert simulated(without).makespan_us > timeline.makespan_us


@pytest.mark.parametrize("zero", [2, 3])
def test_two_buckets_of_one_op_are_gathered_together(zero: int) -> None:
    """A block has a bucket of experts besides that of its other parameters. Without prefetch, no gather waits for its own op."""
    graph, _ = two_layers()
    halves = [Bucket(f"layer{k}{half}", k, (3 - k,), 4, 50, 100, 100, 300, copies=4) for k in (0, 1) for half in "ab"]
    for prefetch in (0, 1):
        timeline = simulated(divide_data(graph, halves, us, zero=zero, prefetch=prefetch))
        start = dict(zip(timeline.op_names, timeline.start_us.tolist(), strict=True))
        end = dict(zip(timeline.op_names, timeline.end_us.tolist(), strict=True))
        for half in "ab":
            ahead = start[f"layer1{half}/all_gather"] < end["f0"]
            assert ahead == (prefetch == 1)


def test_one_copy_changes_nothing() -> None:
    graph, buckets = two_layers()
    alone = [Bucket(b.name, b.forward, b.backward, b.update, 100, 200, 200, 600, copies=1) for b in buckets]
    assert divide_data(graph, alone, us, zero=3) == graph


def test_bad_input_is_rejected() -> None:
    graph, buckets = two_layers()
    with pytest.raises(bl.InvalidInput, match="zero is 4; it must be 0, 1, 2 or 3"):
        divide_data(graph, buckets, us, zero=4)
    with pytest.raises(bl.InvalidInput, match="overlap is 'yes'; it must be True or False"):
        divide_data(graph, buckets, us, overlap="yes")  # type: ignore[arg-type]
