"""Clock offsets from send and arrival times, worked out by hand; messages and device names."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.executors.tensorflow.devices import attached_names, select
from baechi_lab.executors.tensorflow.trace import clock_offsets
from baechi_lab.workers.messages import Decoder, Message, encode


def test_clocks_that_nothing_contradicts_are_left_alone():
    """100 there, 300 back: the offset lies in -300 .. 100, which holds 0."""
    assert clock_offsets([(0, 1, 0.0, 100.0), (1, 0, 200.0, 500.0)], 2) == [0.0, 0.0]


def test_the_middle_of_the_window():
    """Task 1's clock is 5000 ahead, a message takes 100: 5100 there, -4900 back; the window is 4900 .. 5100."""
    assert clock_offsets([(0, 1, 0.0, 5100.0), (1, 0, 5200.0, 300.0)], 2) == [0.0, 5000.0]


def test_only_the_fastest_message_counts():
    messages = [(0, 1, 0.0, 9000.0), (0, 1, 10.0, 5110.0), (1, 0, 5200.0, 300.0), (1, 0, 5300.0, 2000.0)]
    assert clock_offsets(messages, 2) == [0.0, 5000.0]


def test_one_direction_gives_its_bound():
    """Arrived 800 before it was sent: task 1's clock is at least 800 behind."""
    assert clock_offsets([(0, 1, 1000.0, 200.0)], 2) == [0.0, -800.0]


def test_offsets_add_up_along_a_chain_and_strangers_keep_theirs():
    """1 is 5000 ahead of 0, 2 is 3000 behind 1; nobody spoke with 3. Messages take 100."""
    messages = [(0, 1, 0.0, 5100.0), (1, 0, 5000.0, 100.0), (1, 2, 5000.0, 2100.0), (2, 1, 2000.0, 5100.0)]
    assert clock_offsets(messages, 4) == [0.0, 5000.0, 2000.0, 0.0]


@pytest.mark.parametrize("seed", range(20))
def test_after_removal_nothing_arrives_before_it_was_sent(seed):
    rng = np.random.default_rng(seed)
    true = np.r_[0.0, rng.normal(0, 10_000, 2)]
    messages = []
    for _ in range(60):
        a, b = rng.choice(3, 2, replace=False)
        start = rng.uniform(0, 1000)
        messages.append((int(a), int(b), start + true[a], start + rng.uniform(50, 500) + true[b]))
    offsets = clock_offsets(messages, 3)
    # Both estimates of a pair come from windows at most 1000 wide, over at most two hops.
    assert np.all(np.abs(np.array(offsets) - true) < 1000)


# -- messages ---------------------------------------------------------------------------------------------


def test_arrays_of_every_kind_survive():
    import ml_dtypes

    arrays = (
        np.float32(3.5),
        np.zeros((0, 3)),
        np.arange(6).reshape(2, 3).T,
        np.array([True, False]),
        np.array([b"a", b"bc"], dtype=object),
        np.array([1, 2], dtype=ml_dtypes.bfloat16),
        np.array("text"),
    )
    (message,) = Decoder().feed(encode(Message("step", {"x": [1, None]}, tuple(np.asarray(a) for a in arrays))))
    assert message.kind == "step" and message.header == {"x": [1, None]}
    for array, received in zip(arrays, message.arrays, strict=True):
        np.testing.assert_array_equal(np.asarray(array).astype(received.dtype), received)
    assert message.arrays[5].dtype == ml_dtypes.bfloat16


def test_messages_arrive_in_pieces():
    data = b"".join(encode(Message("step", {"index": i}, (np.arange(i),))) for i in range(3))
    decoder, decoded = Decoder(), []
    for i in range(0, len(data), 7):
        decoded += decoder.feed(data[i : i + 7])
    assert [m.header["index"] for m in decoded] == [0, 1, 2]


def test_objects_are_not_sent_and_pickles_not_read():
    with pytest.raises(bl.ExecutionError, match="array of Python objects cannot be sent"):
        encode(Message("x", {}, (np.array([object()]),)))
    import io

    stream = io.BytesIO()
    np.save(stream, np.array([{}], dtype=object), allow_pickle=True)
    raw = stream.getvalue()
    good = encode(Message("x", {}, (np.frombuffer(raw, np.uint8),)))
    forged = good.replace(good[good.index(b"\x93NUMPY") :], raw)
    text = b'{"kind": "x", "arrays": [{"bytes": %d, "dtype": "npy"}]}' % len(raw)
    import struct

    with pytest.raises(bl.FormatError, match="not readable"):
        list(Decoder().feed(struct.pack(">4sIQ", b"BLM1", len(text), len(raw)) + text + raw))
    assert forged


# -- devices ----------------------------------------------------------------------------------------------


def test_gpus_are_used_whole_when_there_are_enough():
    assert attached_names([80, 80], 2, None, None) == [("gpu:0", 80), ("gpu:1", 80)]


def test_gpus_are_split_when_there_are_too_few():
    """4 parts on 2 cards of 80 bytes: 2 each, of 0.9 * 80 / 2 = 36."""
    expected = [("gpu:0/0", 36), ("gpu:0/1", 36), ("gpu:1/0", 36), ("gpu:1/1", 36)]
    assert attached_names([80, 80], 4, None, None) == expected


def test_memory_limits_above_the_card_are_refused():
    with pytest.raises(bl.ExecutionError, match="4 parts of 30 B need 120 B; GPU 0 has 100 B"):
        attached_names([100], None, 4, 30)
    assert attached_names([100], None, 4, 25) == [(f"gpu:0/{i}", 25) for i in range(4)]


def test_cpu_devices_split_the_machine_evenly():
    names = attached_names([], None, 4, None)
    assert [n for n, _ in names] == ["cpu:0", "cpu:1", "cpu:2", "cpu:3"] and len({m for _, m in names}) == 1


def test_names_become_tensorflow_devices():
    selection = select([("cpu:2", 1), ("CPU:0", 1), ("/device:CPU:1", 1)], {"kind": "cpu"}, 3)
    local = "/job:localhost/replica:0/task:0/device:CPU:"
    assert selection.devices == [f"{local}2", f"{local}0", f"{local}1"] and selection.cpus == 3


def test_foreign_names_of_a_cluster_are_refused():
    with pytest.raises(bl.ExecutionError, match="'cpu:0' is not one of the cluster's"):
        select([("cpu:0", 1)], {"workers": ["127.0.0.1:1"]}, 1)
    with pytest.raises(bl.ExecutionError, match=r"task:0..0/device:CPU:0"):
        select([("/job:worker/task:1/device:CPU:0", 1)], {"workers": ["127.0.0.1:1"]}, 1)


def test_attached_cluster_asks_a_process_of_its_own():
    cluster = bl.Cluster.from_tensorflow(virtual=3, kind="cpu", memory_limit="1GB")
    assert cluster.names == ("cpu:0", "cpu:1", "cpu:2") and set(cluster.memory_bytes.tolist()) == {10**9}
    assert {d.kind for d in cluster.devices} == {"cpu"}


@pytest.mark.gpu
def test_virtual_gpus_have_their_limits():
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        pytest.skip("no GPU attached")
    cluster = bl.Cluster.from_tensorflow(virtual=4, memory_limit="2400MB")
    assert cluster.names == ("gpu:0/0", "gpu:0/1", "gpu:0/2", "gpu:0/3")
    assert all(abs(m - 2.4e9) < 1 << 20 for m in cluster.memory_bytes.tolist())
