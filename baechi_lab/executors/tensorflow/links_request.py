"""The `links` request: time transfers between devices of one session, in a worker process.

Every sample comes from the trace of one run and from one clock. A tensor goes from `a` to `b`, which sends its first element
back. The time from the end of the op that has the tensor to the start of the op that has the answer, minus the op on `b`, is
`cost(bytes) + cost(4)`. Half of the fastest round trip of 4 bytes is subtracted (both directions of a small message count the
same, as in NTP). Devices of one task share a clock and are timed one way.

Before that, `b` sends `a` a token, so both have started the step and no start-up is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...errors import ExecutionError
from ...workers.failures import first_line
from ...workers.messages import Message, Send
from .devices import select
from .session import session_config

if TYPE_CHECKING:
    from types import ModuleType

    from tensorflow.compat.v1 import Session
    from tensorflow.core.framework.step_stats_pb2 import NodeExecStats

SMALL_BYTES = 4  # of the answer, and of the smallest tensor timed
KINDS = ("one", "back", "same", "opposite")
"""What a probe times after `a` is ready: one tensor to `b`, one to `a`, two to `b`, or one in each direction."""


def serve(request: Message, send: Send) -> None:
    """Times the pairs of a `links` request. Sends `link` per pair (float64[sizes, repeats] seconds, probes) and `done`."""
    import tensorflow as tf

    header = request.header
    selection = select(header["devices"], header["options"], len(header["devices"]))
    config = session_config(selection.cpus, soft=selection.soft, threads=selection.threads, workers=selection.workers)
    selection.apply(config)
    for a, b in header["pairs"]:
        places = selection.devices[a], selection.devices[b]
        try:
            graph = _Graph(tf, *places)
            with tf.compat.v1.Session(selection.target, graph=graph.graph, config=config) as session:
                timer = _Timer(tf, graph, session)
                sizes, repeats = header["sizes"], header["repeats"]
                if _task(graph.source) == _task(graph.target):  # one clock
                    seconds = _in_turns([partial(timer.one_way, size) for size in sizes], repeats)
                else:
                    durations = _in_turns(
                        [partial(timer.there_and_back, size) for size in (SMALL_BYTES, *sizes)], repeats
                    )
                    # Half of the fastest: a disturbance delays a message and never speeds it up.
                    half = durations[0].min() / 2
                    seconds = np.maximum(durations[1:] - half, half)
                probe_sizes = (SMALL_BYTES, header["probe_bytes"]) if header["probe_bytes"] else ()
                measures = [partial(timer.probe, kind, size) for size in probe_sizes for kind in KINDS]
                if measures:
                    probes = _in_turns(measures, repeats).reshape(len(probe_sizes), len(KINDS), repeats)
                else:
                    probes = np.zeros((2, len(KINDS), 0))
        except (tf.errors.OpError, ValueError) as error:
            raise ExecutionError(f"cannot move tensors from {places[0]} to {places[1]}: {first_line(error)}") from error
        send("link", {"pair": [a, b]}, (seconds, probes))
    send("done")


def _in_turns(measures: Sequence[Callable[[], float]], repeats: int) -> NDArray[np.float64]:
    """Returns float64[measures, repeats] seconds. Each round calls all, so a drift affects all; the first round is dropped."""
    return np.array([[measure() for measure in measures] for _ in range(repeats + 1)])[1:].T


@dataclass
class _Timer:
    """Runs one pair's graph and reads the times from traces."""

    tf: ModuleType
    graph: _Graph
    session: Session

    def one_way(self, size: int) -> float:
        """Returns seconds from the end of the op that has the tensor to the start of the first reader."""
        at = self._trace("one", size)
        return max(_start(at["head_x0"]) - _end(at["x0"]), 1) / 1e9

    def there_and_back(self, size: int) -> float:
        """Returns seconds as `one_way`, plus 4 bytes back. The op on the other device is not counted."""
        at = self._trace("one", size)
        duration = _start(at["joined_one"]) - _end(at["x0"])
        return max(duration - (_end(at["head_x0"]) - _start(at["head_x0"])), 1) / 1e9

    def probe(self, kind: str, size: int) -> float:
        """Returns seconds from `a` being ready until it has all answers."""
        at = self._trace(kind, size)
        return max(_start(at[f"joined_{kind}"]) - _end(at["ready"]), 1) / 1e9

    def _trace(self, kind: str, size: int) -> dict[str, NodeExecStats]:
        tf1 = self.tf.compat.v1
        metadata = tf1.RunMetadata()
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        feeds = {self.graph.elements: [size // 4]}
        self.session.run(self.graph.joined[kind].op, feeds, options=options, run_metadata=metadata)
        at: dict[str, NodeExecStats] = {}
        for device in metadata.step_stats.dev_stats:
            if "/stream" not in device.device:
                at |= {stats.node_name: stats for stats in device.node_stats}
        return at


class _Graph:
    """The ops to time one ordered pair: tensors x0 and x1 go from source to target, y in the other direction."""

    def __init__(self, tf: ModuleType, source: str, target: str) -> None:
        self.source, self.target, self.graph = source, target, tf.Graph()
        raw = tf.raw_ops
        with self.graph.as_default():
            with tf.device(f"{_task(source)}/device:CPU:0"):
                self.elements = tf.compat.v1.placeholder(tf.int32, [1], name="elements")
            with tf.device(target):
                tensor_y = raw.Fill(dims=self.elements, value=1.0, name="filled_y")
                with tf.control_dependencies([tensor_y]):
                    hello = raw.Identity(input=tf.constant([1.0]), name="hello")
            with tf.device(source):
                tensors = [raw.Fill(dims=self.elements, value=1.0, name=f"filled_x{i}") for i in range(2)]
                with tf.control_dependencies(tensors):
                    ready = raw.Identity(input=hello, name="ready")
                with tf.control_dependencies([ready]):
                    outgoing = [raw.Identity(input=tensor, name=f"x{i}") for i, tensor in enumerate(tensors)]
            with tf.device(target):
                token = raw.Identity(input=ready, name="token")
                with tf.control_dependencies([token]):
                    y = raw.Identity(input=tensor_y, name="y")
                heads = [raw.Slice(input=x, begin=[0], size=[1], name=f"head_x{i}") for i, x in enumerate(outgoing)]
                sum_of_heads = raw.AddV2(x=heads[0], y=heads[1], name="heads")
            with tf.device(source):
                head_y = raw.Slice(input=y, begin=[0], size=[1], name="head_y")
                answers = {"one": heads[0], "back": head_y, "same": sum_of_heads}
                self.joined = {k: raw.Identity(input=x, name=f"joined_{k}") for k, x in answers.items()}
                self.joined["opposite"] = raw.AddV2(x=heads[0], y=head_y, name="joined_opposite")


def _task(device: str) -> str:
    return device.rsplit("/device:", 1)[0]


def _start(stats: NodeExecStats) -> int:
    return int(stats.all_start_nanos + stats.op_start_rel_nanos)


def _end(stats: NodeExecStats) -> int:
    return int(stats.all_start_nanos + stats.op_end_rel_nanos)
