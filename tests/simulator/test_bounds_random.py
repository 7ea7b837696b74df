"""No bound is above the optimum on many random instances: an enumeration of its own, written from the rules alone.

It tries every placement and, for each, every order in which ops and their transfers can be queued. So it knows more
schedules than the simulator (whose queues serve first what was made first); a valid bound holds for all of them.
"""

import numpy as np
import pytest

from baechi_lab import Cluster, Device, Link, OpGraph, bounds
from baechi_lab.graph import allowed_devices, durations, generators
from baechi_lab.graph.kernels.jit import HAS_NUMBA, njit
from baechi_lab.simulator.bounds import assignment as bounds_assignment
from baechi_lab.simulator.bounds.assignment import assignment
from baechi_lab.simulator.bounds.bounds import raise_heads_and_tails
from baechi_lab.simulator.bounds.merge import forced_merges
from baechi_lab.simulator.bounds.problem import merge_problem
from baechi_lab.simulator.paths import heads_and_tails

pytestmark = pytest.mark.slow  # `least` is compiled in every run
COMMS = ("parallel", "sequential", "duplex")
INSTANCES = 48 if HAS_NUMBA else 8
MOST_OPS = 8 if HAS_NUMBA else 5


def optimum(graph, cluster):
    """The least makespan over all placements that keep groups together and persistent bytes within memory."""
    table = durations(graph, cluster)
    after = np.zeros(graph.n)
    for i in graph.order[::-1].tolist():
        for t in graph.outputs(i):
            for j in graph.tensor_consumers(t).tolist():
                after[i] = max(after[i], table[j].min() + after[j])
    source = graph.edge_source
    edges = graph.consumers[np.argsort(source, kind="stable")], np.searchsorted(np.sort(source), np.arange(graph.n + 1))
    degree = np.bincount(graph.consumers, minlength=graph.n)
    cost = cluster.latency_us[:, :, None] + cluster.us_per_byte[:, :, None] * graph.tensor_bytes
    best = np.inf
    for device in valid_placements(graph, cluster):
        best = least(
            device,
            table[np.arange(graph.n), device],
            after,
            edges[0],
            edges[1],
            degree,
            graph.output_ptr,
            graph.consumer_ptr,
            graph.consumers,
            cost,
            COMMS.index(cluster.comm),
            best,
        )
    return best


def valid_placements(graph, cluster):
    """int64[placements, n]: all that keep groups together and persistent bytes within memory."""
    devices = np.arange(cluster.n**graph.n)[:, None] // cluster.n ** np.arange(graph.n) % cluster.n
    for group in range(len(graph.colocation_names)):
        members = devices[:, graph.colocation == group]
        devices = devices[np.all(members == members[:, :1], axis=1)]
    within = [(devices == d) @ graph.persistent_bytes <= limit for d, limit in enumerate(cluster.memory_bytes)]
    return devices[np.all(within, axis=0)]


@njit(nogil=True)  # not cached: test modules have changing names
def least(device, p, after, target, target_ptr, degree, output_ptr, consumer_ptr, consumers, cost, comm, best):
    """Depth first over all topological orders; a state is copied per level."""
    n, devices = len(p), cost.shape[0]
    free, out, into = np.zeros((n + 1, devices)), np.zeros((n + 1, devices)), np.zeros((n + 1, devices))
    ready, missing = np.zeros((n + 1, n)), np.zeros((n + 1, n), np.int64)
    makespan, trial, is_placed = np.zeros(n + 1), np.full(n + 1, -1), np.zeros(n, np.bool_)
    for j in range(n):
        missing[0, j] = degree[j]
    level = 0
    trial[0] = -1
    while level >= 0:
        if trial[level] >= 0:
            is_placed[trial[level]] = False
        i = trial[level] + 1
        while i < n and (is_placed[i] or missing[level, i] > 0):
            i += 1
        trial[level] = i
        if i == n:
            level -= 1
            continue
        is_placed[i] = True
        d = device[i]
        end = max(free[level, d], ready[level, i]) + p[i]
        if max(makespan[level], end + after[i]) >= best:
            continue
        k = level + 1
        for q in range(devices):  # loops compile in a fraction of the time of NumPy's slices
            free[k, q], out[k, q], into[k, q] = free[level, q], out[level, q], into[level, q]
        for j in range(n):
            ready[k, j], missing[k, j] = ready[level, j], missing[level, j]
        free[k, d] = end
        makespan[k] = max(makespan[level], end)
        for e in range(target_ptr[i], target_ptr[i + 1]):
            missing[k, target[e]] -= 1
        for t in range(output_ptr[i], output_ptr[i + 1]):
            for q in range(devices):
                is_needed = False
                for e in range(consumer_ptr[t], consumer_ptr[t + 1]):
                    is_needed = is_needed or device[consumers[e]] == q
                if not is_needed:
                    continue
                arrival = end
                if q != d:
                    c = cost[d, q, t]
                    start = receive = end
                    if comm > 0:
                        start = max(end, out[k, d])
                        out[k, d] = start + c
                        receive = max(start, out[k, q] if comm == 1 else into[k, q])
                        if comm == 1:
                            out[k, q] = receive + c
                        else:
                            into[k, q] = receive + c
                    arrival = receive + c
                for e in range(consumer_ptr[t], consumer_ptr[t + 1]):
                    j = consumers[e]
                    if device[j] == q:
                        ready[k, j] = max(ready[k, j], arrival)
        if k == n:
            best = makespan[k]
            continue
        level = k
        trial[level] = -1
    return best


def fork_joins(rng, max_ops):
    """Fork-joins in a row, sometimes with an edge that skips: where neighbourhoods are local or paid for."""
    edges, fork = [], 0
    while fork + 3 < max_ops:
        branches = range(fork + 1, min(fork + 1 + int(rng.integers(2, 4)), max_ops - 1))
        join = branches[-1] + 1
        edges += [
            e for b in branches for e in ((fork, b, int(rng.integers(10, 100))), (b, join, int(rng.integers(10, 100))))
        ]
        fork = join
    if rng.random() < 0.5:
        u, v = sorted(rng.choice(fork + 1, 2, replace=False).tolist())
        edges.append((u, v, 20))
    n = fork + 1
    return OpGraph.from_edges(rng.integers(1, 20, n).astype(float), edges, persistent_bytes=rng.integers(1, 100, n))


def instance(seed):
    """Shapes, zero durations, groups, speeds, links, memory and communication modes mixed by seed."""
    rng = np.random.default_rng(seed)
    devices = int(rng.integers(2, 4))
    max_ops = MOST_OPS if devices == 2 else MOST_OPS - 1
    if seed % 2:
        graph = fork_joins(rng, max_ops)
    else:
        graph = generators.random_dag(
            int(rng.integers(3, max_ops + 1)),
            degree=float(rng.uniform(0.7, 2.5)),
            second_output=0.3,
            duration_us=(1, 20),
            size_bytes=(10, 100),
            colocation_groups=int(rng.integers(0, 3)),
            grouped=0.5,
            persistent_bytes=(1, 100),
            seed=seed,
        )
    if seed % 5 == 0:
        graph = graph.replace(duration_us=np.where(rng.random(graph.n) < 0.3, 0.0, graph.duration_us))
    speeds = np.where(rng.random(devices) < 0.25, float(rng.choice([0.5, 2.0])), 1.0)
    link = Link(float(rng.choice([0, 1, 3, 6, 10, 30])), float(rng.choice([0.0, 0.02, 0.1])))
    cluster = Cluster(
        tuple(Device(f"gpu:{k}", "gpu", 1 << 30, s) for k, s in enumerate(speeds)), link, COMMS[int(rng.integers(3))]
    )
    if seed % 6 == 0:
        cluster = cluster.with_memory(int(0.75 * graph.persistent_bytes.sum()))
    return graph, cluster


def all_bounds(graph, cluster, monkeypatch):
    """Every bound by name, also with zones so small that they cut neighbourhoods, and merges from zero heads."""
    all_values = dict(bounds(graph, cluster, effort="high", time_limit=2.0))
    problem = merge_problem(graph, cluster, reach=False)
    for zone in (2, 3, 5):
        all_values |= {
            f"{name}, zones of {zone}": v for name, v in raise_heads_and_tails(problem, [zone, zone]).bounds.items()
        }
    table = np.where(allowed_devices(graph, cluster), durations(graph, cluster), np.inf)
    times = heads_and_tails(graph, table.min(axis=1))
    monkeypatch.setattr(bounds_assignment, "BINARY_UNITS", 3)
    all_values["assignment of three"] = assignment(graph, cluster, table, *times, all_values["critical-path"])
    monkeypatch.undo()
    all_values["forced-merges from zero"] = forced_merges(graph, cluster, 0.0, np.inf, 2.0)
    return all_values


@pytest.mark.parametrize("block", range(INSTANCES // 8))
def test_no_bound_is_above_the_optimum(block, monkeypatch):
    for seed in range(8 * block, 8 * block + 8):
        graph, cluster = instance(seed)
        best = optimum(graph, cluster)
        above = {k: v for k, v in all_bounds(graph, cluster, monkeypatch).items() if v > best * (1 + 1e-9) + 1e-9}
        assert not above, (seed, best, above)


def fork_join(colocation):
    names = None if colocation is None else ["ends"]
    edges = [(0, 1, 1), (0, 2, 1), (1, 3, 1), (2, 3, 1)]
    graph = OpGraph.from_edges([1, 9, 9, 1], edges)
    return graph if names is None else graph.replace(colocation=colocation, colocation_names=names)


def test_the_enumeration_by_hand():
    # 1 + 9 + 9 + 1 on one device; one branch and the join elsewhere: 1 + 9 + latency + 1; fork and join together: the
    # branch is sent there and back, 1 + 4 + 9 + 4 + 1.
    graph, together = fork_join(None), fork_join([0, -1, -1, 0])
    for comm in COMMS:
        near, far = (Cluster.uniform(2, link=Link(latency, 0.0), comm=comm) for latency in (4.0, 10.0))
        assert optimum(graph, near) == 15.0 and optimum(graph, far) == 20.0
        assert optimum(together, near) == 19.0
    # Two tensors for two readers elsewhere: the queue serves one after the other.
    pair = OpGraph.from_edges([1, 1, 5, 5], [(0, 2, 1), (1, 3, 1)], persistent_bytes=[3, 3, 1, 1])
    cluster = Cluster.uniform(2, memory_bytes=4, link=Link(2.0, 0.0), comm="sequential")
    assert optimum(pair, cluster) == 6.0


def test_raised_bounds_are_often_the_optimum():
    cases = [instance(seed) for seed in range(1, 2 * MOST_OPS * 4, 2)]
    tight = sum(bounds(g, c).best >= 0.999 * optimum(g, c) for g, c in cases)
    assert tight >= len(cases) // 4
