"""`mode="measured"`: run the step under TensorFlow's full trace and read what every op took.

`step_session` runs a Step on one device in this process (`isolated` calls it in a worker process); `read_traces` turns
RunMetadata, from this session or from any other that runs the same names, into per-op costs. One thread runs ops one
after the other, so that times do not overlap; TensorFlow's graph rewriters are off, so that the ops are those of the
step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...checks import check_whole
from ...errors import ExecutionError, UnknownNameError
from ...graph.kernels.csr import Ints
from ...graph.step import Step
from ...workers.failures import first_line
from .apart import keep_apart
from .structure import HANDLE_BYTES, Structure, bytes_per_element

PROBE = "baechi_lab_probe"
"""Scope of ops that only measuring adds."""

FEED_BYTES = 256 << 20
"""Most bytes of variables that are fed in one run."""

Runner = Callable[[bool], Any]
"""Runs one step; given True, under a full trace, and returns its RunMetadata (else None)."""


@dataclass(frozen=True, eq=False)
class Measurement:
    """Per op, averaged over the traced steps: microseconds, temporary bytes, bytes it keeps after the step; and the
    bytes of each (op, output). `seen` marks ops that the trace shows; the others took no measurable time. `run_us`
    float64[runs, ops] are the microseconds of each traced step, `others_share` what other programs used meanwhile."""

    duration_us: NDArray[np.float64]
    temp_bytes: Ints
    kept_bytes: Ints
    output_bytes: dict[tuple[int, int], int]
    seen: NDArray[np.bool_]
    run_us: NDArray[np.float64]
    others_share: float = 0.0


def default_device() -> str:
    """The first GPU that TensorFlow sees, else the CPU."""
    import tensorflow as tf

    return "/device:GPU:0" if tf.config.list_physical_devices("GPU") else "/device:CPU:0"


def device_kind(device: str) -> str:
    """`/device:GPU:0` -> `gpu`.

    Raises:
        UnknownNameError: TensorFlow has no such device here.
    """
    import tensorflow as tf

    known = [f"/device:{d.device_type}:{k}" for t in ("CPU", "GPU", "TPU") for k, d in enumerate(_physical(tf, t))]
    short = {name.replace("/device:", "/") for name in known}
    if device not in known and device.upper() not in short:
        raise UnknownNameError.of("device", device, known)
    return device.rsplit(":", 2)[-2].rsplit("/", 1)[-1].lower()


def _physical(tf: Any, kind: str) -> list[Any]:
    return list(tf.config.list_physical_devices(kind))


@contextmanager
def step_session(step: Step, device: str) -> Iterator[Runner]:
    """A session with the whole step on one device, its variables set to the step's values.

    Raises:
        ExecutionError: TensorFlow cannot run the step there (out of memory, no kernel).
    """
    import tensorflow as tf

    graph_def = tf.compat.v1.GraphDef.FromString(step.graph_def)
    for node in graph_def.node:
        node.device = device
        if "_class" in node.attr:
            del node.attr["_class"]
    keep_apart(graph_def, PROBE)
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    try:
        with tf.compat.v1.Session(graph=graph, config=_one_at_a_time(tf)) as session:
            _initialize(tf, graph, session, step)
            yield _runner(tf, session, step)
    except tf.errors.OpError as error:
        raise ExecutionError(f"step {step.name!r} cannot run on {device}: {first_line(error)}") from error


def _one_at_a_time(tf: Any) -> Any:
    config = tf.compat.v1.ConfigProto(
        allow_soft_placement=True, intra_op_parallelism_threads=1, inter_op_parallelism_threads=1
    )
    config.graph_options.optimizer_options.opt_level = -1
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.gpu_options.allow_growth = True
    return config


def _initialize(tf: Any, graph: Any, session: Any, step: Step) -> None:
    """Set the variables in a few runs of limited size: every run prunes the whole graph, every fed value is a copy."""
    pending: list[tuple[Any, Any, NDArray[Any]]] = []
    with graph.as_default():
        for variable, value in zip(step.variables, step.initial_values, strict=True):
            fed = tf.compat.v1.placeholder(variable.dtype, variable.shape)
            assign = tf.raw_ops.AssignVariableOp(resource=graph.get_tensor_by_name(variable.name + ":0"), value=fed)
            pending.append((assign, fed, value))
    while pending:
        count, held = 0, 0
        while count < len(pending) and (count == 0 or held + pending[count][2].nbytes <= FEED_BYTES):
            held += pending[count][2].nbytes
            count += 1
        session.run([p[0] for p in pending[:count]], {p[1]: p[2] for p in pending[:count]})
        pending = pending[count:]


def _runner(tf: Any, session: Any, step: Step) -> Runner:
    feeds = {spec.name: value for spec, value in zip(step.inputs, step.example_inputs, strict=True)}
    fetches = [[spec.name for spec in step.outputs], list(step.updates)]

    def run(traced: bool) -> Any:
        if not traced:
            session.run(fetches, feeds)
            return None
        metadata = tf.compat.v1.RunMetadata()
        session.run(fetches, feeds, tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE), metadata)
        return metadata

    return run


def collect(run: Runner, warmup: int, runs: int, progress: bool = True) -> list[Any]:
    """`warmup` steps, then the RunMetadata of `runs` traced ones; a first trace, which loads the tracer, is dropped."""
    from tqdm.auto import tqdm

    check_counts(warmup, runs)
    found = []
    for k in tqdm(range(warmup + 1 + runs), desc="profile", unit="step", disable=not progress, leave=False):
        metadata = run(k >= warmup)
        if k > warmup:
            found.append(metadata)
    return found


def check_counts(warmup: int, runs: int) -> None:
    """Raise `InvalidInput` unless both are whole numbers, `warmup` at least 0 and `runs` at least 1."""
    check_whole("warmup", warmup, low=0)
    check_whole("runs", runs)


def read_traces(structure: Structure, traces: Sequence[Any], on_gpu: bool = False) -> Measurement:
    """Average the traces of several steps into per-op costs; an op of several kernels counts their sum.

    Raises:
        ExecutionError: `on_gpu`, and the traces show no kernels: what the host took to launch them is not their cost.
    """
    n = structure.n
    run_us, temp, kept = np.zeros((len(traces), n)), np.zeros(n), np.zeros(n)
    sizes: dict[tuple[int, int], int] = {}
    seen = np.zeros(n, dtype=np.bool_)
    seen_kernels = False
    for k, metadata in enumerate(traces):
        host, kernels = _one_trace(metadata, structure, temp, kept, sizes)
        for i in host.keys() | kernels.keys():
            run_us[k, i] = kernels.get(i, host.get(i, 0.0))
            seen[i] = True
        seen_kernels = seen_kernels or bool(kernels)
    if on_gpu and not seen_kernels:
        raise ExecutionError(
            "the trace shows no GPU kernel (is CUPTI installed, and are its counters open to this user?), so op times on "
            'the GPU are unknown; use mode="estimated"'
        )
    runs = max(len(traces), 1)
    whole = lambda column: np.rint(column / runs).astype(np.int64)  # noqa: E731
    return Measurement(run_us.sum(axis=0) / runs, whole(temp), whole(kept), sizes, seen, run_us)


def _one_trace(
    metadata: Any, structure: Structure, temp: NDArray[Any], kept: NDArray[Any], sizes: dict[tuple[int, int], int]
) -> tuple[dict[int, float], dict[int, float]]:
    """Microseconds of each op where the executor ran it, and of its kernels on a GPU's streams."""
    host: dict[int, float] = defaultdict(float)
    kernels: dict[int, float] = defaultdict(float)
    for device in metadata.step_stats.dev_stats:
        on_stream = "/stream:" in device.device
        if on_stream and not device.device.endswith("/stream:all"):
            continue  # each kernel is listed under its own stream and again under `all`
        if not on_stream and ("memcpy" in device.device or "/host:" in device.device):
            continue
        for stats in device.node_stats:
            i = structure.index.get(stats.node_name.split(":")[0].split("@@")[0])
            if i is None:
                continue
            if on_stream:
                kernels[i] += _microseconds(stats)
                continue
            host[i] += _microseconds(stats)
            temp[i] += max(stats.memory_stats.temp_memory_size, 0)
            kept[i] += max(stats.memory_stats.persistent_memory_size, 0)
            for output in stats.output:
                sizes[i, output.slot] = _tensor_bytes(output.tensor_description)
    return host, kernels


def _microseconds(stats: Any) -> float:
    """How long an entry ran; GPU entries may carry whole microseconds only."""
    nanos = stats.op_end_rel_nanos - stats.op_start_rel_nanos
    return nanos / 1e3 if nanos > 0 else float(stats.op_end_rel_micros - stats.op_start_rel_micros)


def _tensor_bytes(description: Any) -> int:
    width = bytes_per_element().get(description.dtype)
    return HANDLE_BYTES if width is None else width * prod(d.size for d in description.shape.dim)
