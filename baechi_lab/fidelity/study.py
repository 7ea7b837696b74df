"""Runs every placement of every model on a local cluster, and predicts the same steps with the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidInput
from ..executors.statistics import mean_of_rounds
from ..executors.tensorflow.calibration import Calibration, calibrate, mean_calibration, process_seconds
from ..executors.tensorflow.cluster import LocalCluster
from ..graph import Link, OpGraph, Placement, Run, Step
from ..graph.costs import allowed_devices
from ..passes import optimize
from ..placers import place
from ..profilers.machine_load import MAX_OTHERS_SHARE, OtherPrograms
from ..simulator import simulate
from ..workers.client import Worker
from .gradient_pairs import Pairs, graph_under_placement, mean_pairs, measured_apart
from .message_costs import predicted_us, with_shared_caches
from .peaks import fullest, predicted_timelines
from .profiles import SETTLED, SETTLED_BEFORE, beside_us, mean_graph, measured_graph, run_placed, seconds_of_all_steps
from .quiet_machine import busy_machine_error, own_processes, wait_for_quiet
from .report import Report, Row

MODELS: dict[str, dict[str, object]] = {
    "inception_v3": {"batch_size": 1},
    "gnmt": {"batch_size": 128, "sequence_length": 10, "layers": 2, "units": 256, "vocabulary": 4000},
    "resnet50": {"batch_size": 2},
    "transformer": {
        "batch_size": 16,
        "layers": 3,
        "units": 256,
        "heads": 4,
        "inner": 1024,
        "vocabulary": 4000,
        "sequence_length": 32,
    },
}
"""Model -> parameters with which a step takes some hundred milliseconds on one core."""
BUILT_AS = {"resnet50": "resnet"}
"""Name in the study -> name in `bl.models.build`."""
PASSES = ("colocation", "fusion")
"""Co-placement is left out: it would put most of a recurrent step into one group, and placements should differ."""
WAIT = 60.0
"""Seconds that a study waits for a quiet machine."""
CALIBRATION_STEPS = 10
"""Steps of each synthetic kind that measure the overheads in a round."""
TRACES = 2
"""Traces of the step per round, alone and while another worker runs it."""
TRIES = 2
"""Measurements of a model before the study ends because other programs disturb it."""
PLACEMENTS = ("single", "m-topo", "m-etf", "m-sct", "random")


@dataclass(frozen=True)
class _Measurement:
    """Measurements of a model. Per placement: runs, CPU share of the workers and of other programs."""

    model: str
    graph: OpGraph
    beside_us: NDArray[np.float64] | None
    pairs: Pairs | None
    placement_of: dict[str, Placement]
    runs_by_placement: dict[str, list[Run]]
    busy_share: dict[str, float]
    others_share: dict[str, float]
    drift: float
    costs: Calibration


@dataclass(frozen=True)
class Case:
    """One model to study: its traced step under a name."""

    name: str
    step: Step


def study(
    cases: Iterable[Case] | Mapping[str, Mapping[str, object]] | None = None,
    placements: Sequence[str] = PLACEMENTS,
    *,
    workers: int = 2,
    steps: int = 3,
    rounds: int = 5,
    seed: int = 0,
    calibration: Calibration | None = None,
    progress: bool = True,
    on_model: Callable[[Report], None] | None = None,
    wait: float | None = WAIT,
    trusted_users: bool = False,
) -> Report:
    """Compares predicted with measured step times of placements on a `bl.LocalCluster`.

    Args:
        cases: models to study, as traced steps or as names with their parameters (default `MODELS`).
        placements: names of placers, and `random`: each colocation group on a device drawn with `seed`.
        workers: size of the local cluster.
        steps, rounds: measured steps of each placement per round; rounds profile the step and go through all placements
            of a model in turns, so that a drift of the machine meets them all, and what is predicted too.
        calibration: overheads measured before; by default they are measured in every round of a model, and its predictions
            go by their mean.
        seed: of the placement `random`.
        progress: show a progress bar.
        on_model: called with what there is so far whenever a model is done.
        wait: seconds to wait for a machine that other programs leave alone, before every model; a model that was disturbed
            is measured once more. None measures all the same.
        trusted_users: of the local cluster.

    Durations come from traces of the whole step on worker 0, alone and beside the same step on worker 1. Those of kernels that
    need another op beside them come from a trace in which these ops are on worker 1. So the prediction of `single` tests the
    overheads alone, and that of other placements the whole simulator. Every model has workers of its own, because workers that
    have run other models for a while take up to a quarter longer for a message.

    Raises `ExecutionError` when a step does not run or the machine stays busy, `InvalidInput` for bad counts.
    """
    if min(steps, rounds) < 1:
        raise InvalidInput(f"steps is {steps} and rounds is {rounds}; both must be at least 1")
    rows: list[Row] = []
    costs: list[Calibration] = []
    for case in cases_of(cases):
        with LocalCluster(workers, trusted_users=trusted_users) as local, Worker(network=local.network) as worker:
            own_seconds = own_processes([*local.pids, worker.pid])
            counts = (steps, rounds, seed)
            measure = partial(_measure, case, placements, local, worker, calibration, counts, progress)
            measurement = measure_undisturbed(wait, own_seconds, measure)
            costs.append(measurement.costs)
            rows += [_row(measurement, name, local) for name in placements]
        if on_model is not None:
            on_model(Report(tuple(rows), mean_calibration(costs)))
    return Report(tuple(rows), mean_calibration(costs))


def measure_undisturbed(
    wait: float | None, own_seconds: Callable[[], float], measure: Callable[[], _Measurement]
) -> _Measurement:
    """Measures a model, and repeats the measurement if other programs disturbed it."""
    if wait is None:
        return measure()
    for _ in range(TRIES):
        wait_for_quiet(own_seconds, wait)
        measurement = measure()
        worst = max(measurement.others_share.values(), default=0.0)
        if worst <= MAX_OTHERS_SHARE:
            return measurement
    raise busy_machine_error(worst, f"during {TRIES} measurements of {measurement.model!r}")


def cases_of(cases: Iterable[Case] | Mapping[str, Mapping[str, object]] | None) -> Iterable[Case]:
    """Returns the cases. Models given by name and parameters are built lazily; traced steps are used as they are."""
    from ..models import build

    if cases is None or isinstance(cases, Mapping):
        return (Case(name, build(BUILT_AS.get(name, name), **options)) for name, options in (cases or MODELS).items())
    return cases


def _measure(
    case: Case,
    placements: Sequence[str],
    local: LocalCluster,
    worker: Worker,
    calibration: Calibration | None,
    counts: tuple[int, int, int],
    progress: bool,
) -> _Measurement:
    """Profiles, calibrates and runs the placements in several rounds, so that changes of the machine affect all."""
    from tqdm.auto import tqdm

    steps, rounds, seed = counts
    costs: list[Calibration] = []
    profiles: list[OpGraph] = []
    busy_us_of_rounds: list[NDArray[np.float64]] = []
    pairs_of_rounds: list[Pairs | None] = []
    placement_of: dict[str, Placement] = {}
    runs_by_placement: dict[str, list[Run]] = {name: [] for name in placements}
    share, disturbance = dict.fromkeys(placements, np.inf), dict.fromkeys(placements, 0.0)
    own_seconds = own_processes([*local.pids, worker.pid])
    bar = tqdm(total=rounds * len(placements), desc=case.name, unit="run", disable=not progress, leave=False)
    with bar:
        for index in range(rounds):
            warmup = SETTLED_BEFORE if index else SETTLED
            costs.append(calibration or calibrate(local, CALIBRATION_STEPS))
            profiles.append(measured_graph(case.step, local, worker, TRACES, warmup))
            if len(busy_us_of_rounds) == index:  # None after one warning: two copies of the step cannot run at once
                busy_us_of_rounds += [
                    us for us in [beside_us(case.step, local, worker, TRACES, warmup)] if us is not None
                ]
            pairs_of_rounds.append(measured_apart(case.step, local, worker, profiles[-1], TRACES, warmup))
            placement_of = placement_of or {
                name: place_for(name, profiles[0], local, costs[0], seed) for name in placements
            }
            # The order alternates, so no placement always follows the same one.
            for name in list(placement_of)[:: 1 if index % 2 == 0 else -1]:
                other_programs = OtherPrograms(own_seconds)
                before = [process_seconds(pid) for pid in local.pids]
                run = run_placed(case.step, placement_of[name], local, worker, steps, profiles[0], warmup)
                busy_seconds = max(process_seconds(pid) - b for pid, b in zip(local.pids, before, strict=True))
                share[name] = min(share[name], busy_seconds / max(seconds_of_all_steps(run), 1e-9))
                disturbance[name] = max(disturbance[name], other_programs.share())
                runs_by_placement[name].append(run)
                bar.update()
    busy_us = np.mean(busy_us_of_rounds, axis=0) if busy_us_of_rounds else None
    profile_us = [float(graph.duration_us.sum()) for graph in profiles]
    drift = max(profile_us) / max(min(profile_us), 1e-9)
    mean = mean_calibration(costs)
    return _Measurement(
        model=case.name,
        graph=mean_graph(profiles),
        beside_us=busy_us,
        pairs=mean_pairs(pairs_of_rounds),
        placement_of=placement_of,
        runs_by_placement=runs_by_placement,
        busy_share=share,
        others_share=disturbance,
        drift=drift,
        costs=mean,
    )


def place_for(
    name: str, graph: OpGraph, local: LocalCluster, costs: Calibration, seed: int = 0, passes: Sequence[str] = PASSES
) -> Placement:
    """Returns a placement for this cluster. Placers get a link with the total cost of a message."""
    if name == "random":
        return random_placement(graph, local, seed)
    terms = ((costs.wire, 1.0), (costs.send, 1.0), (costs.receive, 1.0), (costs.overlap, -1.0))
    link = Link(
        sum(sign * term.latency_us for term, sign in terms), sum(sign * term.us_per_byte for term, sign in terms)
    )
    coarse = optimize(graph, passes=passes, forward_only=False)
    return place(coarse, local.cluster.replace(link=link), name).on(graph)


def random_placement(graph: OpGraph, local: LocalCluster, seed: int) -> Placement:
    """Returns a placement with every colocation group, and every op without one, on a random device."""
    rng = np.random.default_rng(seed)
    allowed_devices(graph, local.cluster)
    device = rng.integers(0, local.n, len(graph.colocation_names) + graph.n)
    return Placement(device=device[graph.device_unit].astype(np.int32), placer="random", graph_key=graph.key)


def _row(measurement: _Measurement, name: str, local: LocalCluster) -> Row:
    """Returns one row of the report: prediction, measurement, and the parts of the error."""
    runs_of_placement, costs = measurement.runs_by_placement[name], measurement.costs
    graph, placement, longer_us = graph_under_placement(
        measurement.graph, measurement.placement_of[name], measurement.pairs, measurement.beside_us
    )
    measured_us = mean_of_rounds([run.step_seconds for run in runs_of_placement])
    plain = simulate(graph, local.cluster.replace(link=costs.wire, comm="parallel"), placement, "fifo")
    extended_graph, _ = with_shared_caches(graph, placement, costs, longer_us)
    timelines = [run.timeline for run in runs_of_placement if run.timeline is not None]
    kernels_us = float(np.median([t.busy_us.max() for t in timelines]))
    # Peaks are those of the device with the largest measured peak.
    device = int(np.max([t.peak_bytes for t in timelines], axis=0).argmax())
    simulated_line = fullest(predicted_timelines(graph, local.cluster, placement, costs, longer_us), device)
    measured_line = fullest(timelines, device)
    return Row(
        model=measurement.model,
        placement=name,
        ops=graph.n,
        transfers=len(timelines[0].transfers),
        predicted_us=predicted_us(graph, placement, costs, longer_us),
        measured_us=measured_us[0] * 1e6,
        measured_low_us=measured_us[1] * 1e6,
        measured_high_us=measured_us[2] * 1e6,
        compute_us=float(plain.busy_us.max()),
        traced_compute_us=kernels_us,
        message_us=float(extended_graph.duration_us[graph.n :].sum()),
        without_overheads_us=plain.makespan_us,
        busy_share=measurement.busy_share[name],
        others_share=measurement.others_share[name],
        drift=measurement.drift,
        simulated_peak_bytes=int(simulated_line.peak_bytes[device]),
        measured_peak_bytes=int(measured_line.peak_bytes[device]),
        simulated_peak_parts=simulated_line.peak_parts(device),
        measured_peak_parts=measured_line.peak_parts(device),
    )
