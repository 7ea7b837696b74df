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

        self.run_metadata = tf.compat.v1.RunMetadata()
        self.devices = {}

    def device(self, name):
        if name not in self.devices:
            self.devices[name] = self.run_metadata.step_stats.dev_stats.add(device=name)
        return self.devices[name]

    def op(self, device, name, start, end, scheduled=0, allocations=(), output_bytes=None, pointer=0, in_use=0):
        row = self.device(device).node_stats.add(node_name=name, scheduled_nanos=scheduled * 1000)
        row.all_start_nanos, row.all_start_micros = start * 1000, start
        row.op_end_rel_nanos, row.op_end_rel_micros = (end - start) * 1000, end - start
        if allocations:
            used = row.memory.add(allocator_name="cpu", allocator_bytes_in_use=in_use)
            for time_us, size in allocations:
                used.allocation_records.add(alloc_micros=time_us, alloc_bytes=size)
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
            partition = self.run_metadata.partition_graphs.add()
            node_def = partition.node.add(name=f"{producer}/_{node}", op=f"_{node.title()}", device=device)
            node_def.attr["tensor_name"].s = edge.encode()
            node_def.attr["send_device"].s, node_def.attr["recv_device"].s = source.encode(), target.encode()
            if node == "send":
                node_def.input.append(producer)
                partition.node.add(name=producer.split(":")[0], op="Add", device=device)
            else:
                partition.node.add(name=consumer, op="Add", device=device).input.append(node_def.name)


def test_kernels_on_a_gpus_streams_replace_their_launch():
    """Two kernels of one op on the streams, 120..130 and 140..155: the op ran 120..155, not when it was launched."""
    metadata = Metadata()
    metadata.op(GPU, "conv", 100, 105)
    metadata.op(CPU, "read", 90, 95)
    for stream in ("/device:GPU:0/stream:7", "/device:GPU:0/stream:all"):
        metadata.op(stream, "conv:volta_sgemm", 120, 130)
        metadata.op(stream, "conv:relu", 140, 155)
    trace = read_trace(metadata.run_metadata, ["read", "conv"], np.array([1, 0]), [GPU, CPU])
    rows = dict(zip(trace.op.tolist(), zip(trace.start_us, trace.end_us, trace.device, strict=True), strict=True))
    assert rows == {0: (90.0, 95.0, 1), 1: (120.0, 155.0, 0)}


def test_copy_of_a_constant_on_its_own_device_stands_for_it():
    metadata = Metadata()
    metadata.op(task(0), "two/replicate/_0", 10, 11)
    metadata.op(task(1), "two/replicate/_1", 20, 21)
    for device in (0, 1):
        trace = read_trace(metadata.run_metadata, ["two"], np.array([device]), [task(0), task(1)])
        assert (trace.op.tolist(), trace.device.tolist()) == ([0], [device])


def test_hand_over_within_a_process_ends_when_the_consumer_is_scheduled():
    """Produced at 30; its reader was scheduled at 42: the row is 30..42, of the producer's 64 bytes."""
    metadata = Metadata()
    metadata.op(GPU, "a", 10, 30, output_bytes=64)
    metadata.op(CPU, "b", 45, 50, scheduled=42)
    metadata.cut(GPU, CPU, "edge_3_a", "a", "b")
    trace = read_trace(metadata.run_metadata, ["a", "b"], np.array([0, 1]), [GPU, CPU])
    assert trace.transfers.tolist() == [[0, 0, 64, 0, 1, 30, 42, 42]]


def test_offset_of_another_workers_clock_is_removed():
    """Task 1's clock is 1000 ahead. a (0..10) is sent to b (1020..1030 there), whose result returns at 45.

    There: 1015 - 10 = 1005; back: 45 - 1030 = -985; the window is 985 .. 1005 and its middle 995. On task 0's clock b
    ran 25..35, and its input arrived at 20.
    """
    metadata = Metadata()
    metadata.op(task(0), "a", 0, 10)
    metadata.op(task(1), "b", 1020, 1030)
    metadata.op(task(0), "c", 46, 50)
    metadata.cut(task(0), task(1), "edge_1_a", "a", "b")
    metadata.cut(task(1), task(0), "edge_2_b", "b", "c")
    metadata.received(task(0), task(1), "edge_1_a", 8, 1012, 1015)
    metadata.received(task(1), task(0), "edge_2_b", 4, 40, 45)
    trace = read_trace(metadata.run_metadata, ["a", "b", "c"], np.array([0, 1, 0]), [task(0), task(1)])
    assert trace.offsets_us.tolist() == [0.0, 995.0]
    assert trace.start_us[trace.op == 1] == 25.0 and trace.end_us[trace.op == 1] == 35.0
    assert trace.transfers.tolist() == [[0, 0, 8, 0, 1, 17, 20, 35], [1, 0, 4, 1, 0, 40, 45, 50]]


@pytest.fixture
def chain():
    """a -> b -> c, b on another worker; a's output 100 bytes, b's scratch of 30."""
    graph = bl.OpGraph.from_edges([1, 1, 1], [(0, 1, 100), (1, 2, 40)], names=["a", "b", "c"])
    metadata = Metadata()
    metadata.op(task(0), "a", 0, 10, allocations=[(1, 100), (25, -100)], output_bytes=100)
    metadata.op(task(1), "b", 30, 40, allocations=[(31, 30), (39, -30), (32, 40), (60, -40)], output_bytes=40)
    metadata.op(task(0), "c", 65, 70)
    metadata.cut(task(0), task(1), "edge_1_a", "a", "b")
    metadata.cut(task(1), task(0), "edge_2_b", "b", "c")
    metadata.received(task(0), task(1), "edge_1_a", 100, 12, 24)
    metadata.received(task(1), task(0), "edge_2_b", 40, 45, 58)
    trace = read_trace(metadata.run_metadata, graph.names, np.array([0, 1, 0]), [task(0), task(1)])
    return to_timeline(trace, graph, ["x", "y"], [1000, 1000], [(0, 0, 500), (1, 1, 7)], has_copies=True)


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
    metadata = Metadata()
    metadata.op(task(0), "a", 0, 10, output_bytes=100)
    metadata.op(task(1), "b", 30, 40, output_bytes=100, pointer=7)
    metadata.op(task(1), "c", 60, 70, output_bytes=8, pointer=9)
    metadata.cut(task(0), task(1), "edge_1_a", "a", "b")
    metadata.run_metadata.partition_graphs[1].node[-1].device = task(1)
    metadata.run_metadata.partition_graphs[1].node.add(name="c", op="Mul", device=task(1)).input.append("b")
    metadata.received(task(0), task(1), "edge_1_a", 100, 12, 24)
    trace = read_trace(metadata.run_metadata, ["a", "b", "c"], np.array([0, 1, 1]), [task(0), task(1)])
    assert trace.transfers[0, 5:].tolist() == [12, 24, 70]


@pytest.mark.parametrize(("second_reader", "held_until"), [(None, (70, 40)), ("a", (45, 70))])
def test_a_result_lies_in_one_of_two_copies_alike(second_reader, held_until):
    """b reads copies of a and z, 100 bytes each, and gives 100 bytes that it did not allocate; c reads them until 70.

    They lie in one copy, the other goes with b, at 40. Where d still reads that of a, until 45, they lie in that of z.
    """
    metadata = Metadata()
    for name in "az":
        metadata.op(task(0), name, 0, 10, output_bytes=100)
        metadata.cut(task(0), task(1), f"edge_1_{name}", name, "b")
        metadata.received(task(0), task(1), f"edge_1_{name}", 100, 12, 24)
    metadata.op(task(1), "b", 30, 40, output_bytes=100, pointer=7)
    metadata.op(task(1), "c", 60, 70, output_bytes=8, pointer=9)
    metadata.op(task(1), "d", 41, 45)
    partition = metadata.run_metadata.partition_graphs[1]
    partition.node.add(name="c", op="Mul", device=task(1)).input.append("b")
    if second_reader is not None:
        partition.node.add(name="d", op="Mul", device=task(1)).input.append(f"{second_reader}/_recv")
    for each in metadata.run_metadata.partition_graphs:
        for node in each.node:
            node.device = node.device or each.node[0].device
    trace = read_trace(metadata.run_metadata, ["a", "z", "b", "c", "d"], np.array([0, 0, 1, 1, 1]), [task(0), task(1)])
    assert dict(trace.transfers[:, [0, 7]].tolist()) == {0: held_until[0], 1: held_until[1]}


@pytest.mark.parametrize(("slot", "held_until_us"), [(0, 70), (1, 40)])
def test_bug_a_received_list_was_held_while_another_list_of_a_loop_was_read(slot, held_until_us):
    """Handles of lists have 64 bytes. A loop returns what it read in the same place; c reads one of both until 70."""
    metadata = Metadata()
    metadata.op(task(0), "a", 0, 10, output_bytes=64)
    metadata.op(task(1), "b", 30, 40, output_bytes=64, pointer=7)
    second_output = metadata.run_metadata.step_stats.dev_stats[1].node_stats[0].output.add(slot=1).tensor_description
    second_output.allocation_description.requested_bytes, second_output.allocation_description.ptr = 64, 8
    metadata.op(task(1), "c", 60, 70, output_bytes=8, pointer=9)
    metadata.cut(task(0), task(1), "edge_1_a", "a", "b")
    loop = metadata.run_metadata.partition_graphs[1].node[-1]
    loop.op, loop.device = "While", task(1)
    loop.input.append("own_list")
    metadata.run_metadata.partition_graphs[1].node.add(name="c", op="Mul", device=task(1)).input.append(f"b:{slot}")
    metadata.received(task(0), task(1), "edge_1_a", 64, 12, 24)
    trace = read_trace(metadata.run_metadata, ["a", "b", "c"], np.array([0, 1, 1]), [task(0), task(1)])
    assert trace.transfers[0, 5:].tolist() == [12, 24, held_until_us]


def test_a_variables_new_value_replaces_the_old_one():
    """The update takes 64 bytes and keeps them; the old value goes when it ends, so nothing is held afterwards."""
    metadata = Metadata()
    metadata.op(CPU, "update", 10, 20, allocations=[(12, 64)])
    metadata.run_metadata.step_stats.dev_stats[0].node_stats[0].timeline_label = "update = ResourceApplyMomentum(v, m)"
    trace = read_trace(metadata.run_metadata, ["update"], np.array([0]), [CPU])
    assert trace.memory[:, [1, 3]].tolist() == [[12, 64], [20, -64]]


def test_logical_devices_of_one_process_share_their_allocator():
    """It has 900 bytes out while both ran ops; that says nothing of one of them. Where one alone runs ops, it does."""
    second_device = CPU.replace("CPU:0", "CPU:1")
    metadata = Metadata()
    metadata.op(CPU, "a", 0, 10, allocations=[(1, 100)], in_use=900)
    alone = read_trace(metadata.run_metadata, ["a", "b"], np.array([0, 1]), [CPU, second_device])
    metadata.op(second_device, "b", 0, 10, allocations=[(1, 50)], in_use=900)
    trace = read_trace(metadata.run_metadata, ["a", "b"], np.array([0, 1]), [CPU, second_device])
    assert (alone.in_use.tolist(), trace.in_use.tolist()) == ([900, 0], [0, 0])


def test_transfers_of_a_chain_are_the_graphs_tensors(chain):
    transfers = chain.transfers
    assert transfers.tensor.tolist() == [0, 1] and chain.moved_bytes == 140
    assert transfers.start_us.tolist() == [12.0, 45.0] and transfers.end_us.tolist() == [24.0, 58.0]
    assert chain.makespan_us == 70.0 and chain.origin == "measured"


def test_it_is_drawn_by_the_views_of_a_simulated_one(chain, tmp_path):
    table = chain.to_pandas()
    assert table["kind"].tolist() == ["op", "transfer", "op", "transfer", "op"]
    chain.to_chrome_trace(tmp_path / "trace.json")
    assert (tmp_path / "trace.json").stat().st_size > 0
