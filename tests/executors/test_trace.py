"""Traces read from hand-made RunMetadata: GPU streams, replicated constants, transfers, memory, clock offsets."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.executors.tensorflow.timeline import to_timeline
from baechi_lab.executors.tensorflow.trace import read_trace

pytest.importorskip("tensorflow")

CPU, GPU = "/job:localhost/replica:0/task:0/device:CPU:0", "/job:localhost/replica:0/task:0/device:GPU:0"


def task(index):
    return f"/job:worker/replica:0/task:{index}/device:CPU:0"


class Metadata:
    """Builds a RunMetadata; times in microseconds."""

    def __init__(self):
        import tensorflow as tf

        self.made = tf.compat.v1.RunMetadata()
        self.devices = {}

    def device(self, name):
        if name not in self.devices:
            self.devices[name] = self.made.step_stats.dev_stats.add(device=name)
        return self.devices[name]

    def op(self, device, name, start, end, scheduled=0, allocations=(), output_bytes=None, pointer=0, in_use=0):
        row = self.device(device).node_stats.add(node_name=name, scheduled_nanos=scheduled * 1000)
        row.all_start_nanos, row.all_start_micros = start * 1000, start
        row.op_end_rel_nanos, row.op_end_rel_micros = (end - start) * 1000, end - start
        if allocations:
            used = row.memory.add(allocator_name="cpu", allocator_bytes_in_use=in_use)
            for when, size in allocations:
                used.allocation_records.add(alloc_micros=when, alloc_bytes=size)
        if output_bytes is not None:
            output = row.output.add(slot=0)
            output.tensor_description.allocation_description.requested_bytes = output_bytes
            output.tensor_description.allocation_description.ptr = pointer

    def received(self, source, target, edge, size, start, end):
        label = f"[{size}B] [1Gb/s] {edge} from {source} to {target}"
        row = self.device(target).node_stats.add(node_name="RecvTensor", timeline_label=label)
        row.all_start_micros, row.all_end_rel_micros = start, end - start
        row.output.add().tensor_description.allocation_description.requested_bytes = size

    def cut(self, source, target, edge, producer, consumer):
        """Partition graphs with a Send of `producer` and a Recv that `consumer` reads."""
        for device, node in ((source, "send"), (target, "recv")):
            part = self.made.partition_graphs.add()
            made = part.node.add(name=f"{producer}/_{node}", op=f"_{node.title()}", device=device)
            made.attr["tensor_name"].s = edge.encode()
            made.attr["send_device"].s, made.attr["recv_device"].s = source.encode(), target.encode()
            if node == "send":
                made.input.append(producer)
                part.node.add(name=producer.split(":")[0], op="Add", device=device)
            else:
                part.node.add(name=consumer, op="Add", device=device).input.append(made.name)


def test_kernels_on_a_gpus_streams_replace_their_launch():
    """Two kernels of one op on the streams, 120..130 and 140..155: the op ran 120..155, not when it was launched."""
    made = Metadata()
    made.op(GPU, "conv", 100, 105)
    made.op(CPU, "read", 90, 95)
    for stream in ("/device:GPU:0/stream:7", "/device:GPU:0/stream:all"):
        made.op(stream, "conv:volta_sgemm", 120, 130)
        made.op(stream, "conv:relu", 140, 155)
    trace = read_trace(made.made, ["read", "conv"], np.array([1, 0]), [GPU, CPU])
    rows = dict(zip(trace.op.tolist(), zip(trace.start_us, trace.end_us, trace.device, strict=True), strict=True))
    assert rows == {0: (90.0, 95.0, 1), 1: (120.0, 155.0, 0)}


def test_copy_of_a_constant_on_its_own_device_stands_for_it():
    made = Metadata()
    made.op(task(0), "two/replicate/_0", 10, 11)
    made.op(task(1), "two/replicate/_1", 20, 21)
    for own in (0, 1):
        trace = read_trace(made.made, ["two"], np.array([own]), [task(0), task(1)])
        assert (trace.op.tolist(), trace.device.tolist()) == ([0], [own])


def test_hand_over_within_a_process_ends_when_the_consumer_is_scheduled():
    """Produced at 30; its reader was scheduled at 42: the row is 30..42, of the producer's 64 bytes."""
    made = Metadata()
    made.op(GPU, "a", 10, 30, output_bytes=64)
    made.op(CPU, "b", 45, 50, scheduled=42)
    made.cut(GPU, CPU, "edge_3_a", "a", "b")
    trace = read_trace(made.made, ["a", "b"], np.array([0, 1]), [GPU, CPU])
    assert trace.transfers.tolist() == [[0, 0, 64, 0, 1, 30, 42, 42]]


def test_offset_of_another_workers_clock_is_removed():
    """Task 1's clock is 1000 ahead. a (0..10) is sent to b (1020..1030 there), whose result returns at 45.

    There: 1015 - 10 = 1005; back: 45 - 1030 = -985; the window is 985 .. 1005 and its middle 995. On task 0's clock b
    ran 25..35, and its input arrived at 20.
    """
    made = Metadata()
    made.op(task(0), "a", 0, 10)
    made.op(task(1), "b", 1020, 1030)
    made.op(task(0), "c", 46, 50)
    made.cut(task(0), task(1), "edge_1_a", "a", "b")
    made.cut(task(1), task(0), "edge_2_b", "b", "c")
    made.received(task(0), task(1), "edge_1_a", 8, 1012, 1015)
    made.received(task(1), task(0), "edge_2_b", 4, 40, 45)
    trace = read_trace(made.made, ["a", "b", "c"], np.array([0, 1, 0]), [task(0), task(1)])
    assert trace.offsets_us.tolist() == [0.0, 995.0]
    assert trace.start_us[trace.op == 1] == 25.0 and trace.end_us[trace.op == 1] == 35.0
    assert trace.transfers.tolist() == [[0, 0, 8, 0, 1, 17, 20, 35], [1, 0, 4, 1, 0, 40, 45, 50]]


@pytest.fixture
def chain():
    """a -> b -> c, b on another worker; a's output 100 bytes, b's scratch of 30."""
    graph = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 100), (1, 2, 40)], names=["a", "b", "c"])
    made = Metadata()
    made.op(task(0), "a", 0, 10, allocations=[(1, 100), (25, -100)], output_bytes=100)
    made.op(task(1), "b", 30, 40, allocations=[(31, 30), (39, -30), (32, 40), (60, -40)], output_bytes=40)
    made.op(task(0), "c", 65, 70)
    made.cut(task(0), task(1), "edge_1_a", "a", "b")
    made.cut(task(1), task(0), "edge_2_b", "b", "c")
    made.received(task(0), task(1), "edge_1_a", 100, 12, 24)
    made.received(task(1), task(0), "edge_2_b", 40, 45, 58)
    trace = read_trace(made.made, graph.names, np.array([0, 1, 0]), [task(0), task(1)])
    return to_timeline(trace, graph, ["x", "y"], [1000, 1000], [(0, 0, 500), (1, 1, 7)], copied=True)


def test_memory_of_a_chain(chain):
    """Device x: 500 of variables, a's 100 (1..25), the copy of b's 40 (58..70). Peak 600.

    Device y: 7 of variables, the copy of a's 100 (24..40), b's scratch 30 (31..39) and output 40 (32..60). Peak
    7 + 100 + 30 + 40 = 177, at 32.
    """
    assert chain.peak_bytes.tolist() == [600, 177]
    times, levels = chain.memory.levels(1)
    assert levels[times == 32.0].tolist() == [[7, 40, 30, 100]]
    assert levels[-1].tolist() == [7, 0, 0, 0]


def test_a_copy_that_an_op_wrote_over_lives_as_long_as_its_result():
    """b gives 100 bytes that it did not allocate, so they lie in the copy of a's; c reads them until 70."""
    made = Metadata()
    made.op(task(0), "a", 0, 10, output_bytes=100)
    made.op(task(1), "b", 30, 40, output_bytes=100, pointer=7)
    made.op(task(1), "c", 60, 70, output_bytes=8, pointer=9)
    made.cut(task(0), task(1), "edge_1_a", "a", "b")
    made.made.partition_graphs[1].node[-1].device = task(1)
    made.made.partition_graphs[1].node.add(name="c", op="Mul", device=task(1)).input.append("b")
    made.received(task(0), task(1), "edge_1_a", 100, 12, 24)
    trace = read_trace(made.made, ["a", "b", "c"], np.array([0, 1, 1]), [task(0), task(1)])
    assert trace.transfers[0, 5:].tolist() == [12, 24, 70]


@pytest.mark.parametrize(("again", "held"), [(None, (70, 40)), ("a", (45, 70))])
def test_a_result_lies_in_one_of_two_copies_alike(again, held):
    """b reads copies of a and z, 100 bytes each, and gives 100 bytes that it did not allocate; c reads them until 70.

    They lie in one copy, the other goes with b, at 40. Where d still reads that of a, until 45, they lie in that of z.
    """
    made = Metadata()
    for name in "az":
        made.op(task(0), name, 0, 10, output_bytes=100)
        made.cut(task(0), task(1), f"edge_1_{name}", name, "b")
        made.received(task(0), task(1), f"edge_1_{name}", 100, 12, 24)
    made.op(task(1), "b", 30, 40, output_bytes=100, pointer=7)
    made.op(task(1), "c", 60, 70, output_bytes=8, pointer=9)
    made.op(task(1), "d", 41, 45)
    part = made.made.partition_graphs[1]
    part.node.add(name="c", op="Mul", device=task(1)).input.append("b")
    if again is not None:
        part.node.add(name="d", op="Mul", device=task(1)).input.append(f"{again}/_recv")
    for each in made.made.partition_graphs:
        for node in each.node:
            node.device = node.device or each.node[0].device
    trace = read_trace(made.made, ["a", "z", "b", "c", "d"], np.array([0, 0, 1, 1, 1]), [task(0), task(1)])
    assert dict(trace.transfers[:, [0, 7]].tolist()) == {0: held[0], 1: held[1]}


def test_a_variables_new_value_replaces_the_old_one():
    """The update takes 64 bytes and keeps them; the old value goes when it ends, so nothing is held afterwards."""
    made = Metadata()
    made.op(CPU, "update", 10, 20, allocations=[(12, 64)])
    made.made.step_stats.dev_stats[0].node_stats[0].timeline_label = "update = ResourceApplyMomentum(v, m)"
    trace = read_trace(made.made, ["update"], np.array([0]), [CPU])
    assert trace.memory[:, [1, 3]].tolist() == [[12, 64], [20, -64]]


def test_logical_devices_of_one_process_share_their_allocator():
    """It has 900 bytes out while both ran ops; that says nothing of one of them. Where one alone runs ops, it does."""
    other = CPU.replace("CPU:0", "CPU:1")
    made = Metadata()
    made.op(CPU, "a", 0, 10, allocations=[(1, 100)], in_use=900)
    alone = read_trace(made.made, ["a", "b"], np.array([0, 1]), [CPU, other])
    made.op(other, "b", 0, 10, allocations=[(1, 50)], in_use=900)
    both = read_trace(made.made, ["a", "b"], np.array([0, 1]), [CPU, other])
    assert (alone.in_use.tolist(), both.in_use.tolist()) == ([900, 0], [0, 0])


def test_transfers_of_a_chain_are_the_graphs_tensors(chain):
    moved = chain.transfers
    assert moved.tensor.tolist() == [0, 1] and chain.moved_bytes == 140
    assert moved.start_us.tolist() == [12.0, 45.0] and moved.end_us.tolist() == [24.0, 58.0]
    assert chain.makespan_us == 70.0 and chain.origin == "measured"


def test_it_is_drawn_by_the_views_of_a_simulated_one(chain, tmp_path):
    table = chain.to_pandas()
    assert table["kind"].tolist() == ["op", "transfer", "op", "transfer", "op"]
    chain.to_chrome_trace(tmp_path / "trace.json")
    assert (tmp_path / "trace.json").stat().st_size > 0
