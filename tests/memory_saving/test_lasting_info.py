"""What a profile says of ops beside their costs stays true after recomputation and offloading."""

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.graph.tensors import BATCH_BYTES, UNREPEATABLE

BATCH = 300
HOST = bl.Cluster.uniform(1, memory_bytes="1GB", kind="a100").with_host("1GB")


def estimated_chain():
    """Returns a training step of twelve layers; the first holds the batch, and the third must not run twice."""
    graph = bl.generators.with_backward(bl.generators.chain(12, size_bytes=1 << 20, duration_us=5, seed=0))
    first, third = graph.names[0], graph.names[2]
    persistent = np.zeros(graph.n, dtype=np.int64)
    persistent[0] = 1000
    return graph.replace(
        persistent_bytes=persistent,
        duration_by_kind={"gpu": graph.duration_us * 2},
        info={
            "estimate": {"hardware": {"gpu": "a100"}},
            UNREPEATABLE: {"it draws numbers": [third]},
            BATCH_BYTES: {first: BATCH},
        },
    )


CHANGES = {
    "recompute": lambda graph: bl.recompute(graph, [graph.names[1], graph.names[6]]),
    "offload": lambda graph: bl.offload(graph, HOST, [graph.names[1]]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_bug_changed_graphs_forgot_the_hardware_of_their_estimate(name):
    graph = CHANGES[name](estimated_chain())
    durations = bl.graph.costs.durations(graph, HOST)
    original = estimated_chain()
    assert durations[: original.n, 0].tolist() == (2 * original.duration_us).tolist()


@pytest.mark.parametrize("name", CHANGES)
def test_bug_changed_graphs_forgot_what_must_not_run_twice(name):
    graph = CHANGES[name](estimated_chain())
    kept_output = graph.names[4]
    names = bl.recompute(graph, [kept_output]).names
    third, eighth = graph.names[2], graph.names[7]
    assert f"{third}/again" not in names
    assert any(name.startswith(f"{eighth}/again") for name in names)


def test_bug_groups_forgot_what_must_not_run_twice():
    graph = estimated_chain()
    label = np.arange(graph.n)
    label[1] = 2  # op1 and op2, which must not run twice, become a group; op1 names it
    groups = bl.passes.contraction.contract(graph, label)
    unrolled = bl.unroll(groups, 2)
    repeated = {name for name in bl.recompute(unrolled, [unrolled.names[4]]).names if name.endswith("/again")}
    assert "op3/mb0/again" in repeated
    assert not repeated & {f"{op}/mb{batch}/again" for op in ("op1", "op2") for batch in (0, 1)}


def test_bug_micro_batches_forgot_what_must_not_run_twice():
    unrolled = bl.unroll(estimated_chain(), 2)
    names = bl.recompute(unrolled, [unrolled.names[4]]).names
    repeated = {name for name in names if name.endswith("/again")}
    assert "op1/mb0/again" in repeated
    assert not repeated & {"op2/mb0/again", "op2/mb1/again"}


@pytest.mark.parametrize("name", CHANGES)
def test_bug_micro_batches_of_changed_graphs_held_one_batch(name):
    graph = bl.unroll(CHANGES[name](estimated_chain()), 4)
    assert graph.persistent_bytes.sum() == 1000 + 3 * BATCH
