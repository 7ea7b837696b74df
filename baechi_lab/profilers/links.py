"""`bl.measure_link`: move tensors between two devices, fit `latency_us + us_per_byte * bytes`.

Least squares over sizes of 2^2 .. 2^26 bytes would see only the largest. The fit minimises the squared *relative*
error instead, over the median time of each size, with both coefficients kept non-negative (if the best line has a
negative coefficient, the best non-negative one has it at 0). Weights are renewed from the fit a few times, and a sample
further off than half its fitted time counts less (Huber, doi:10.1214/aoms/1177703732). The residual says how linear
the link is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import ExecutionError, InvalidInput, UnknownNameError
from ..graph.cluster import Link

SIZES = tuple(2**k for k in range(2, 27, 2))
"""Bytes of the tensors that are moved by default."""

ROUNDS = 20
"""Reweightings of the fit."""

OUTLIER = 0.5
"""Relative error from which a sample counts less."""

SHORTEST_US = 1e-3
"""The resolution of the clock, which no fitted time goes below."""


MAX_LOGICAL_CPUS = 64
"""Logical CPU devices that a session may be asked for."""


@dataclass(frozen=True, eq=False)
class LinkFit:
    """A fitted `link`, and the samples behind it.

    `size_bytes` int64[s] and `seconds` float64[s, repeats] hold every transfer; `residual` is the root mean square,
    over the medians, of the error relative to the fitted time (0.1 = 10 %).
    """

    source: str
    target: str
    link: Link
    residual: float
    size_bytes: NDArray[np.int64]
    seconds: NDArray[np.float64]

    @property
    def median_us(self) -> NDArray[np.float64]:
        """float64[s]: median microseconds per size."""
        return 1e6 * np.median(self.seconds, axis=1)

    def __repr__(self) -> str:
        return (
            f"<LinkFit {self.source} -> {self.target}: {self.link.latency_us:.4g} us "
            f"+ {self.link.us_per_byte:.4g} us/byte, residual {self.residual:.1%}>"
        )


def fit_link(size_bytes: ArrayLike, time_us: ArrayLike) -> tuple[Link, float]:
    """The link nearest to the samples in relative error, and the root mean square of that error.

    Args:
        size_bytes, time_us: one entry per sample, times above 0.

    >>> fit_link([0, 1000, 2000], [10.0, 11.0, 12.0])
    (Link(latency_us=10.0, us_per_byte=0.001), 0.0)
    """
    size, took = np.asarray(size_bytes, dtype=np.float64), np.asarray(time_us, dtype=np.float64)
    if size.shape != took.shape or size.ndim != 1 or len(size) < 2:
        raise InvalidInput(f"sizes {size.shape} and times {took.shape} must be two lists of equal length, at least 2")
    if not (np.all(np.isfinite(took)) and np.all(took > 0) and np.all(size >= 0)):
        raise InvalidInput("every transfer time must be finite and above 0, and every size not negative")
    fitted = took
    for _ in range(ROUNDS):
        error = np.abs(took / fitted - 1.0)
        weight = np.minimum(1.0, OUTLIER / np.maximum(error, OUTLIER)) / fitted**2
        latency, per_byte = _non_negative(size, took, weight)
        fitted = np.maximum(latency + per_byte * size, SHORTEST_US)
    residual = float(np.sqrt(np.mean((took / fitted - 1.0) ** 2)))
    # No digits beyond what least squares can tell.
    return Link(float(f"{latency:.10g}"), float(f"{per_byte:.10g}")), float(f"{residual:.10f}")


def _non_negative(size: NDArray[Any], took: NDArray[Any], weight: NDArray[Any]) -> tuple[float, float]:
    """Weighted least squares for `a + b * size` with `a, b >= 0`: the best of both, `a` alone and `b` alone."""
    root = np.sqrt(weight)
    table = np.stack([root, root * size], axis=1)
    candidates = []
    for columns in ([0, 1], [0], [1]):
        found = np.zeros(2)
        found[columns] = np.linalg.lstsq(table[:, columns], root * took, rcond=None)[0]
        if np.all(found >= 0):
            candidates.append((float(np.sum((table @ found - root * took) ** 2)), float(found[0]), float(found[1])))
    _, latency, per_byte = min(candidates)
    return latency, per_byte


def measure_link(
    source: str = "/device:CPU:0",
    target: str = "/device:CPU:1",
    *,
    sizes: Sequence[int] = SIZES,
    repeats: int = 11,
    progress: bool = True,
) -> LinkFit:
    """Time transfers from one TensorFlow device to another, in a session of this process.

    Args:
        source, target: TensorFlow device names. CPU devices beyond the first are logical devices of the session, so
            that `/device:CPU:1` exists on every machine; a transfer between two of them costs a message, not a copy.
        sizes: bytes of the tensors, at least two different, multiples of 4.
        repeats: timed transfers per size, after one that is not counted.

    Returns:
        a LinkFit. A sample is the time, in TensorFlow's trace of one step, from the end of the op on `source` that
        has the tensor to the start of the op on `target` that reads it.

    Raises:
        UnknownNameError: no such device. InvalidInput: sizes or repeats. ExecutionError: a device is out of memory.
    """
    from tqdm.auto import tqdm

    _check(sizes, repeats)
    _check_devices(source, target)
    seconds = np.zeros((len(sizes), repeats))
    with tqdm(total=len(sizes), desc="link", unit="size", disable=not progress, leave=False) as bar:
        for k, size in enumerate(sizes):
            seconds[k] = _transfer_seconds(source, target, size, repeats)
            bar.update()
    link, residual = fit_link(sizes, 1e6 * np.median(seconds, axis=1))
    return LinkFit(source, target, link, residual, np.array(sizes, dtype=np.int64), seconds)


def _check(sizes: Sequence[int], repeats: int) -> None:
    bad = [s for s in sizes if isinstance(s, bool) or not isinstance(s, (int, np.integer)) or s < 4 or s % 4]
    if bad or len(set(sizes)) < 2:
        raise InvalidInput(f"sizes is {list(sizes)!r}; give at least two different multiples of 4 bytes")
    if isinstance(repeats, bool) or not isinstance(repeats, (int, np.integer)) or repeats < 1:
        raise InvalidInput(f"repeats is {repeats!r}; it must be a whole number of at least 1")


def _check_devices(*names: str) -> None:
    import tensorflow as tf

    gpus = [f"/device:GPU:{k}" for k in range(len(tf.config.list_physical_devices("GPU")))]
    cpus = [f"/device:CPU:{k}" for k in range(MAX_LOGICAL_CPUS)]
    for name in names:
        if name not in gpus and name not in cpus:
            raise UnknownNameError.of("device", name, [*cpus[:2], *gpus])
    if names[0] == names[1]:
        raise InvalidInput(f"source and target are both {names[0]!r}; on one device a tensor costs nothing to move")


def _transfer_seconds(source: str, target: str, size: int, repeats: int) -> NDArray[np.float64]:
    """float64[repeats]: seconds of each timed transfer of `size` bytes."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    graph = tf.Graph()
    with graph.as_default():
        with tf.device(source):
            handle = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=(size // 4,), shared_name="payload")
            fill = tf.raw_ops.AssignVariableOp(resource=handle, value=tf.zeros((size // 4,)))
            sent = tf.identity(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32), name="sent")
        with tf.device(target):
            received = tf.identity(sent, name="received")
    try:
        with tf1.Session(graph=graph, config=_config(source, target)) as session:
            session.run(fill)
            traces = [_traced(tf1, session, received.op) for _ in range(repeats + 1)]
    except tf.errors.OpError as error:
        raise ExecutionError(f"cannot move {size} bytes from {source} to {target}: {error.message}") from error
    return np.array([_gap(metadata) for metadata in traces[1:]])


def _config(*devices: str) -> Any:
    import tensorflow as tf

    config = tf.compat.v1.ConfigProto(allow_soft_placement=False)
    config.device_count["CPU"] = 1 + max((int(d.rsplit(":", 1)[1]) for d in devices if "CPU" in d), default=0)
    config.graph_options.optimizer_options.opt_level = -1
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.gpu_options.allow_growth = True
    return config


def _traced(tf1: Any, session: Any, op: Any) -> Any:
    metadata = tf1.RunMetadata()
    session.run(op, options=tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE), run_metadata=metadata)
    return metadata


def _gap(metadata: Any) -> float:
    """Seconds from the end of `sent` to the start of `received`; at least a nanosecond, the clock's resolution."""
    at = {}
    for device in metadata.step_stats.dev_stats:
        for stats in device.node_stats:
            if stats.node_name in ("sent", "received") and "/stream" not in device.device:
                at[stats.node_name] = stats
    ended = at["sent"].all_start_nanos + at["sent"].op_end_rel_nanos
    started = at["received"].all_start_nanos + at["received"].op_start_rel_nanos
    return max(started - ended, 1) / 1e9
