"""Timeline: what ran where and when, and each device's memory. Simulation and execution return it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..checks import check_position
from ..errors import InvalidInput
from .columns import numbers, whole_numbers
from .kernels.csr import Integers

if TYPE_CHECKING:
    import os

    import pandas

MEMORY_CATEGORIES = ("persistent", "outputs", "temporary", "copies")


@dataclass(frozen=True)
class Violation:
    """One broken rule.

    Args:
        kind: memory, precedence, overlap, transfer, idling, order, colocation, allowed, rows, duration or makespan.
        message: one sentence.
        device: its index, -1 where the rule is of no device.
        time_us: when, NaN where the rule is of no moment.
        op: its index, -1 where the rule is of no op.
    """

    kind: str
    message: str
    device: int = -1
    time_us: float = float("nan")
    op: int = -1

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, eq=False)
class Transfers:
    """One row per tensor sent to a device.

    Args:
        tensor: int32[k], index of the tensor.
        source: int32[k], index of the sending device.
        target: int32[k], index of the receiving device.
        start_us: float64[k] microseconds, when the send starts.
        receive_us: float64[k], when the receiving side starts (later where it had to wait).
        end_us: float64[k], when the tensor is there.
    """

    tensor: Integers
    source: Integers
    target: Integers
    start_us: NDArray[np.float64]
    receive_us: NDArray[np.float64]
    end_us: NDArray[np.float64]

    def __post_init__(self) -> None:
        for key in ("tensor", "source", "target"):
            object.__setattr__(self, key, whole_numbers(key, getattr(self, key), np.int32))
        for key in ("start_us", "receive_us", "end_us"):
            object.__setattr__(self, key, numbers(key, getattr(self, key)))
        columns = {key: getattr(self, key) for key in ("source", "target", "start_us", "receive_us", "end_us")}
        _check_lengths("tensor", len(self.tensor), **columns)

    def __len__(self) -> int:
        return len(self.tensor)

    @classmethod
    def none(cls) -> Transfers:
        """Returns an empty record."""
        return cls(*([np.zeros(0)] * 6))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class MemoryLog:
    """Changes of memory in the order in which they happened: at `time_us` on `device`, `delta` bytes of a category.

    `category` indexes `MEMORY_CATEGORIES`; `op` is the op that caused the change, for a copy the producer of its tensor.
    """

    device: Integers
    time_us: NDArray[np.float64]
    category: NDArray[np.int8]
    delta: NDArray[np.int64]
    op: Integers

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", whole_numbers("device", self.device, np.int32))
        object.__setattr__(self, "time_us", numbers("time_us", self.time_us))
        object.__setattr__(self, "category", whole_numbers("category", self.category, np.int8))
        object.__setattr__(self, "delta", whole_numbers("delta", self.delta, np.int64))
        object.__setattr__(self, "op", whole_numbers("op", self.op, np.int32))
        columns = {key: getattr(self, key) for key in ("time_us", "category", "delta", "op")}
        _check_lengths("device", len(self.device), **columns)
        _check_indices(len(MEMORY_CATEGORIES), "categories", category=self.category)

    def __len__(self) -> int:
        return len(self.device)

    @classmethod
    def none(cls) -> MemoryLog:
        """Returns an empty log."""
        return cls(*([np.zeros(0)] * 5))  # type: ignore[arg-type]

    def levels(self, device: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Returns times float64[k], and bytes int64[k, 4] per category on `device` after each change."""
        on_device = np.flatnonzero(self.device == device)
        change = np.zeros((len(on_device), len(MEMORY_CATEGORIES)), dtype=np.int64)
        change[np.arange(len(on_device)), self.category[on_device]] = self.delta[on_device]
        return self.time_us[on_device], np.cumsum(change, axis=0)


def _check_lengths(first: str, length: int, **columns: NDArray[np.generic]) -> None:
    for name, values in columns.items():
        if values.shape != (length,):
            raise InvalidInput(f"{name} has {len(values)} entries; {first} has {length}")


def _check_indices(count: int, kind: str, **columns: Integers) -> None:
    for name, values in columns.items():
        if len(values) and not 0 <= values.min() <= values.max() < count:
            wrong = int(np.flatnonzero((values < 0) | (values >= count))[0])
            raise InvalidInput(
                f"{name}[{wrong}] is {values[wrong]}; it must be one of the {count} {kind}, counted from 0"
            )


_COLUMNS_OF_OPS = ("micro_batch", "unit", "phase", "turn", "on_communication_lane")
"""Entries of `Timeline.info` that have a number for every op of the graph."""


@dataclass(frozen=True, eq=False, repr=False)
class Timeline:
    """Op rows, transfer rows, memory and violations of one step.

    Args:
        op, device: int32[k], which op ran where; one row per op. Columns of other lengths and indices beyond what they
            name raise `InvalidInput`.
        start_us, end_us: float64[k] microseconds.
        transfers: one row per tensor sent.
        memory: every change of the bytes on a device, in time order.
        peak_bytes: int64[devices], the most bytes on each.
        makespan_us: microseconds from the start of the step to the end of its last op.
        origin: "simulated" or "measured".
        op_names: of the graph.
        device_names, memory_bytes: of the cluster.
        tensor_producer, tensor_bytes: of the graph, for what the rows of transfers mean.
        violations: rules that the step breaks, memory above all.
        info: further entries, which files keep. Code reads them as `micro_batch`, `phase`, `unit`, `schedule_lines`,
            `stage_device`, `pipeline_devices`, `turn`, `on_communication_lane` and `runtime_peak_bytes`.

    >>> from baechi_lab import Cluster, OpGraph, Placement, simulate
    >>> timeline = simulate(OpGraph.from_edges([3, 4]), Cluster.uniform(1), Placement(device=[0, 0]))
    >>> timeline.start_us.tolist(), timeline.makespan_us, timeline.origin
    ([0.0, 3.0], 7.0, 'simulated')
    """

    op: Integers
    device: Integers
    start_us: NDArray[np.float64]
    end_us: NDArray[np.float64]
    transfers: Transfers
    memory: MemoryLog
    peak_bytes: NDArray[np.int64]
    makespan_us: float
    origin: str
    op_names: tuple[str, ...]
    device_names: tuple[str, ...]
    memory_bytes: NDArray[np.int64]
    tensor_producer: NDArray[np.int32]
    tensor_bytes: NDArray[np.int64]
    violations: tuple[Violation, ...] = ()
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in ("op", "device", "tensor_producer"):
            object.__setattr__(self, key, whole_numbers(key, getattr(self, key), np.int32))
        for key in ("start_us", "end_us"):
            object.__setattr__(self, key, numbers(key, getattr(self, key)))
        for key in ("peak_bytes", "memory_bytes", "tensor_bytes"):
            object.__setattr__(self, key, whole_numbers(key, getattr(self, key), np.int64))
        devices, tensors = len(self.device_names), len(self.tensor_producer)
        transfers, log = self.transfers, self.memory
        _check_lengths("op", len(self.op), device=self.device, start_us=self.start_us, end_us=self.end_us)
        _check_lengths("device_names", devices, peak_bytes=self.peak_bytes, memory_bytes=self.memory_bytes)
        _check_lengths("tensor_producer", tensors, tensor_bytes=self.tensor_bytes)
        _check_indices(len(self.op_names), "ops", op=self.op, tensor_producer=self.tensor_producer)
        _check_indices(devices, "devices", device=self.device, source=transfers.source, target=transfers.target)
        _check_indices(tensors, "tensors", tensor=transfers.tensor)
        _check_indices(devices, "devices", **{"device of the memory log": log.device})
        _check_indices(len(self.op_names), "ops", **{"op of the memory log": log.op[log.op >= 0]})
        self._check_info()
        for violation in self.violations:
            if violation.device >= devices or violation.op >= len(self.op_names):
                raise InvalidInput(
                    f"a violation is of device {violation.device} and op {violation.op}; the timeline has {devices} "
                    f"devices and {len(self.op_names)} ops"
                )

    def _check_info(self) -> None:
        """Raises `InvalidInput` for entries of `info` that code reads and that do not fit the ops or devices."""
        devices, ops = len(self.device_names), len(self.op_names)
        lengths = {**dict.fromkeys(_COLUMNS_OF_OPS, ("op_names", ops)), "runtime_peak_bytes": ("device_names", devices)}
        for key in lengths.keys() | {"stage_device", "line_device"}:
            if key not in self.info:
                continue
            label = f"info[{key!r}]"
            column = whole_numbers(label, self.info[key])
            if len(column) and np.asarray(self.info[key]).dtype.kind == "f":
                raise InvalidInput(f"{label} holds floats; it must hold whole numbers")
            if key in lengths:
                first, length = lengths[key]
                _check_lengths(first, length, **{label: column})
            else:
                _check_indices(devices, "devices", **{label: column})
            if key == "micro_batch":
                _check_indices(ops, "micro-batches", micro_batch=np.maximum(column, 0))
            if key == "phase":
                _check_indices(5, "phases", phase=column)

    @property
    def feasible(self) -> bool:
        """Whether the step breaks no rule."""
        return not self.violations

    def _column(self, key: str) -> NDArray[np.int64] | None:
        return whole_numbers(key, self.info[key], np.int64) if key in self.info else None

    @property
    def micro_batch(self) -> NDArray[np.int64] | None:
        """int64[n]: the micro-batch of every op, -1 for ops that run once; None without micro-batches."""
        return self._column("micro_batch")

    @property
    def phase(self) -> NDArray[np.int64] | None:
        """int64[n]: 0 before all micro-batches, 1 forward, 2 backward, 3 gradients of weights, 4 after; or None."""
        return self._column("phase")

    @property
    def unit(self) -> NDArray[np.int64] | None:
        """int64[n]: the position of every op's unit in the order of its device; None without a schedule."""
        return self._column("unit")

    @property
    def schedule_lines(self) -> str:
        """The schedule of a pipeline as text, a line of units per device; empty without a schedule."""
        return str(self.info.get("schedule", ""))

    @property
    def stage_device(self) -> NDArray[np.int64]:
        """int64[stages]: the device of each pipeline stage; empty without a schedule."""
        return np.asarray(self.info.get("stage_device", ()), dtype=np.int64)

    @property
    def pipeline_devices(self) -> list[int]:
        """The device of every line of the schedule; empty without a schedule."""
        return list(dict.fromkeys(np.asarray(self.info.get("line_device", self.stage_device)).tolist()))

    @property
    def turn(self) -> NDArray[np.int64] | None:
        """int64[n]: the order of ops that start at one instant, lowest first; None for topological order."""
        return self._column("turn")

    @property
    def on_communication_lane(self) -> NDArray[np.bool_]:
        """bool[n]: the collectives, which run beside what their device computes."""
        return np.asarray(self.info.get("on_communication_lane", np.zeros(len(self.op_names))), dtype=np.bool_)

    @cached_property
    def busy_us(self) -> NDArray[np.float64]:
        """float64[devices]: time each device computed."""
        time_us = np.bincount(self.device, self.end_us - self.start_us, minlength=len(self.device_names))
        return time_us.astype(np.float64)

    @property
    def peak_margin(self) -> NDArray[np.float64]:
        """float64[devices]: the share by which a device may exceed `peak_bytes`, such as 0.1 for a tenth.

        See `runtime_peak_bytes`.
        """
        return self.runtime_peak_bytes / np.maximum(self.peak_bytes, 1) - np.where(self.peak_bytes > 0, 1.0, 0.0)

    @property
    def runtime_peak_bytes(self) -> NDArray[np.int64]:
        """int64[devices]: peak bytes that the graph's framework may reach; at least `peak_bytes`.

        TensorFlow's workers run ops in other orders, and send a tensor only when they have nothing left to compute, so that
        they hold it longer. PyTorch runs one op after another, in the order of the code, whichever device they
        are on (`baechi_lab.simulator.runtime_peaks`). Equal to `peak_bytes` for measured timelines, and for graphs that do not
        say how outputs share memory.
        """
        return np.maximum(
            self.peak_bytes, np.asarray(self.info.get("runtime_peak_bytes", self.peak_bytes), dtype=np.int64)
        )

    @property
    def devices_in_doubt(self) -> tuple[int, ...]:
        """The devices whose memory `peak_bytes` fit and `runtime_peak_bytes` exceed."""
        fits, exceeds = self.peak_bytes <= self.memory_bytes, self.runtime_peak_bytes > self.memory_bytes
        return tuple(np.flatnonzero(fits & exceeds).tolist())

    def peak_parts(self, device: int) -> dict[str, int]:
        """Returns the bytes by category (`MEMORY_CATEGORIES`) at the peak of `device`; zeros without a log."""
        _, levels = self.memory.levels(check_position("device", device, len(self.device_names), "devices"))
        peak_levels = levels[levels.sum(axis=1).argmax()].tolist() if len(levels) else [0] * len(MEMORY_CATEGORIES)
        return dict(zip(MEMORY_CATEGORIES, peak_levels, strict=True))

    @property
    def idle_us(self) -> NDArray[np.float64]:
        """float64[devices]: time each device did not compute before the step ended."""
        return self.makespan_us - self.busy_us

    @cached_property
    def moved_bytes(self) -> int:
        """Bytes sent between devices."""
        return int(self.tensor_bytes[self.transfers.tensor].sum())

    def to_pandas(self) -> pandas.DataFrame:
        """Returns one row per op and per transfer: kind, name, device, target, start_us, end_us, duration_us, size_bytes."""
        import pandas as pd

        names = np.array(self.op_names, dtype=object)
        devices = np.array(self.device_names, dtype=object)
        transfers = self.transfers
        ops = pd.DataFrame(
            {
                "kind": "op",
                "name": names[self.op],
                "device": devices[self.device],
                "target": devices[self.device],
                "start_us": self.start_us,
                "end_us": self.end_us,
                "size_bytes": 0,
            }
        )
        transfer_rows = pd.DataFrame(
            {
                "kind": "transfer",
                "name": names[self.tensor_producer[transfers.tensor]],
                "device": devices[transfers.source],
                "target": devices[transfers.target],
                "start_us": transfers.start_us,
                "end_us": transfers.end_us,
                "size_bytes": self.tensor_bytes[transfers.tensor],
            }
        )
        table = pd.concat([ops, transfer_rows], ignore_index=True) if len(transfer_rows) else ops
        table.insert(6, "duration_us", table["end_us"] - table["start_us"])
        return table.sort_values(["start_us", "end_us"], kind="stable", ignore_index=True)

    if TYPE_CHECKING:  # set in `baechi_lab.graph`, from `baechi_lab.graph.formats`

        def to_chrome_trace(self, path: str | os.PathLike[str]) -> None: ...

        def to_text(self, memory: bool = False) -> str: ...

    def __repr__(self) -> str:
        violations_text = f", {len(self.violations)} violations" if self.violations else ""
        return (
            f"<Timeline {self.origin}: {self.makespan_us:.6g} us, {len(self.op)} ops on {len(self.device_names)} devices, "
            f"{len(self.transfers)} transfers{violations_text}>"
        )
