"""Orders of pipelines: their text, what they promise, and what is refused."""

import numpy as np
import pytest
from fewer import slow

import baechi_lab as bl
from baechi_lab.simulator.schedules import RULES, Schedule, Setting, list_schedules, make_rule, make_schedule


def setting(devices, count, shape="chain", chunks=2, capacity=np.inf, kept_bytes=1.0, us=(1.0, 1.0, 1.0), send=0.0):
    stages = {"chain": devices, "loop": devices * chunks, "v": 2 * devices}[shape]
    line = [*range(devices), *reversed(range(devices))] if shape == "v" else [s % devices for s in range(stages)]
    full = [np.full(stages, x) for x in us]
    sends = [np.full(stages - 1, send)] * 2
    return Setting(
        tuple(line), count, *full, *sends, np.ones(stages), np.full(stages, kept_bytes), np.full(devices, capacity)
    )


def in_flight(schedule, device, until):
    """Most micro-batches (of all stages of a device) between F and `until`."""
    change = {"F": 1, until: -1}
    return int(np.cumsum([change.get(unit.kind, 0) for unit in schedule.orders[device]]).max())


GOLDEN = {
    "gpipe": "0F0 0F1 0F2 0B0 0B1 0B2\n1F0 1F1 1F2 1B0 1B1 1B2",
    "1f1b": "0F0 0F1 0B0 0F2 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2",
    "interleaved-1f1b": (
        "0F0 0F1 0F2 2F0 2F1 2F2 2B0 2B1 2B2 0B0 0B1 0B2\n1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1B0 1B1 1B2"
    ),
    "zb-h1": "0F0 0F1 0B0 0W0 0F2 0B1 0W1 0B2 0W2\n1F0 1B0 1F1 1B1 1W0 1F2 1B2 1W1 1W2",
    "zb-h2": "0F0 0F1 0F2 0B0 0W0 0B1 0W1 0B2 0W2\n1F0 1B0 1F1 1B1 1F2 1B2 1W0 1W1 1W2",
    "zb-v": (
        "0F0 0F1 0F2 3F0 3B0 3W0 3F1 3B1 3W1 0B0 0W0 3F2 3B2 3W2 0B1 0W1 0B2 0W2\n"
        "1F0 2F0 1F1 2F1 2B0 2W0 1F2 1B0 1W0 2F2 2B1 2W1 1B1 2B2 1B2 1W1 2W2 1W2"
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_two_devices_and_three_micro_batches(name):
    rule = make_rule(name)
    assert str(make_schedule(rule, setting(2, 3, rule.shape))) == GOLDEN[name]


@pytest.mark.parametrize("name", RULES)
def test_every_schedule_is_complete_free_of_dead_lock_and_parses_back(name):
    rule = make_rule(name)
    for devices in range(1, 6):
        for count in (1, 2, 3, 5, 8, 13):
            if name == "zb-auto" and count * devices > 8:
                continue
            schedule = make_schedule(rule, setting(devices, count, rule.shape, capacity=2.0 * devices))
            assert Schedule.parse(str(schedule)) == schedule
            assert schedule.splits == rule.splits


def test_interleaved_with_more_stages_per_device():
    for chunks in (1, 2, 3, 4):
        for devices in (2, 3, 4):
            for count in range(1, 18):
                pipeline = setting(devices, count, "loop", chunks)
                schedule = make_schedule(make_rule("interleaved-1f1b"), pipeline)
                schedule.check(pipeline.stage_device, count)  # complete, and free of dead-lock
                stages_of_lines = [{unit.stage for unit in order} for order in schedule.orders]
                assert stages_of_lines == [set(range(d, chunks * devices, devices)) for d in range(devices)]


@pytest.mark.parametrize("count", [2, 4, 9])
def test_activations_held(count):
    p = 4
    schedules = {
        name: make_schedule(make_rule(name), setting(p, count)) for name in ("gpipe", "1f1b", "zb-h1", "zb-h2")
    }
    assert [in_flight(schedules["gpipe"], d, "B") for d in range(p)] == [count] * p
    assert [in_flight(schedules["1f1b"], d, "B") for d in range(p)] == [min(count, p - d) for d in range(p)]
    assert all(in_flight(schedules["zb-h1"], d, "W") <= p for d in range(p))
    assert all(in_flight(schedules["zb-h2"], d, "W") <= 2 * p - 1 for d in range(p))
    v = make_schedule(make_rule("zb-v"), setting(p, count, "v"))
    assert all(in_flight(v, d, "W") <= 2 * p for d in range(p))  # of half a device's work each


@pytest.mark.slow
@pytest.mark.parametrize("capacity", slow([1.0, 2.5, 4.0, 7.0], 4.0, 7.0))
@pytest.mark.parametrize("kept_bytes", [0.0, 0.4, 1.0])
def test_zb_auto_keeps_to_the_room(capacity, kept_bytes):
    rng = np.random.default_rng(3)
    schedule = make_schedule(
        make_rule("zb-auto"),
        setting(4, 6, capacity=capacity, kept_bytes=kept_bytes, us=rng.uniform(1, 3, (3, 1)), send=0.1),
    )
    change = {"F": 1.0, "B": kept_bytes - 1.0, "W": -kept_bytes}
    for order in schedule.orders:
        assert np.cumsum([change[unit.kind] for unit in order]).max() <= capacity + kept_bytes + 1e-9
        if capacity > 1.0:
            assert np.cumsum([change[unit.kind] for unit in order]).max() <= capacity + 1e-9


def test_inference_has_forwards_only():
    pipeline = setting(3, 4)
    for name in ("gpipe", "1f1b", "zb-h1", "zb-auto"):
        schedule = make_schedule(make_rule(name), Setting(**{**vars(pipeline), "training": False}))
        assert str(schedule) == "\n".join(" ".join(f"{s}F{m}" for m in range(4)) for s in range(3))


def test_schedules_have_names_and_unknown_ones_are_rejected():
    assert set(list_schedules()) == {"gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-auto", "zb-v"}
    with pytest.raises(bl.UnknownNameError, match="unknown schedule '1f2b'; did you mean '1f1b'"):
        make_rule("1f2b")
    with pytest.raises(bl.InvalidInput, match=r"schedule is 3; it must be a name"):
        make_rule(3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0 0X0", "schedule line 1 has '0X0'; a unit is a stage, F, B or W, and a micro-batch"),
        ("0F0 0F1\n1f0", "schedule line 2 has '1f0'"),
    ],
)
def test_text_that_is_no_schedule(text, message):
    with pytest.raises(bl.BaechiLabError, match=message):
        Schedule.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0 0B0", "the schedule has 1 lines; the pipeline has 2 devices"),
        ("0F0 0B0\n1F0", "the schedule lacks 1B0"),
        ("0F0 0F0 0B0\n1F0 1B0", "line 1 of the schedule has 0F0 twice"),
        ("0F0 0B0 1F0\n1B0", "line 1 of the schedule has 1F0, which belongs to line 2"),
        (
            "0F0 0B0 0F7\n1F0 1B0",
            "line 1 of the schedule has 0F7; the pipeline has stages 0 to 1, micro-batches 0 to 0",
        ),
        ("0B0 0F0\n1F0 1B0", "the schedule blocks itself: 0B0 waits for 0F0"),
    ],
)
def test_orders_that_cannot_be(text, message):
    with pytest.raises(bl.InvalidInput, match=message):
        Schedule.parse(text).check([0, 1], 1)


def test_shapes_are_checked():
    with pytest.raises(
        bl.InvalidInput, match=r"schedule 'zb-v' needs two stages on each device.*4 stages on 4 devices"
    ):
        make_schedule(make_rule("zb-v"), setting(4, 8))
    with pytest.raises(bl.InvalidInput, match=r"schedule '1f1b' needs one stage on each device.*4 stages on 2 devices"):
        make_schedule(make_rule("1f1b"), setting(2, 8, "loop"))


def test_the_empty_schedule_of_a_graph_without_ops_parses_back():
    graph, cluster, placement = bl.OpGraph.from_edges([]), bl.Cluster.uniform(2), bl.Placement(device=[])
    timeline = bl.simulate(graph, cluster, placement, micro_batches=2, schedule="1f1b")
    assert timeline.schedule_lines == "" and Schedule.parse("") == Schedule(())
    replayed = bl.simulate(graph, cluster, placement, micro_batches=2, schedule=timeline.schedule_lines)
    assert replayed.makespan_us == 0.0
    with pytest.raises(bl.InvalidInput, match="the schedule has 0 lines; the pipeline has 1 devices"):
        bl.simulate(bl.OpGraph.from_edges([1.0]), cluster, bl.Placement(device=[0]), micro_batches=2, schedule="")


@pytest.mark.parametrize("text", ["-", "-\n0F0 0B0", "0F0 0B0\n-", "0F0\n-\n1F0"])
def test_devices_without_units_keep_their_lines(text):
    schedule = Schedule.parse(text)
    assert str(schedule) == text and len(schedule.orders) == text.count("\n") + 1
