"""The measured Timeline of one PyTorch step.

Forward calls are observed by the session, backward calls by hooks on their autograd nodes (a backward row spans from
the first of its nodes to the last). The optimizer is one call, whose time its update ops share (`synthetic_rows`). On GPUs
the marks are CUDA events on the streams that do the work, read after the step against one event per GPU that was recorded at its
start; on the CPU they are the host's clock. Transfers between CPU devices move nothing and take no time.

Memory of CPU devices is that of the storages alive in one more step (`storages`), whose times are brought to those of this
one, op by op. In that step tensors are copied between CPU devices as if each had memory of its own (`copying`). On GPUs it is
accounted: persistent bytes, outputs from their call to the end of its backward call, and received copies; where every
device is a GPU of its own, the peak is the allocator's.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node
from torch.utils._python_dispatch import _disable_current_modes

from ...graph import MEMORY_CATEGORIES, MemoryLog, OpGraph, Timeline, Transfers
from ...memory_saving.offload import OFFLOADED
from ...profilers.torch.layer_graph import LOSS, backward_ops
from ...profilers.torch.storages import StorageTracker
from ...torch_runtime.forward_state import Observer
from ...torch_runtime.intercept import Interceptor
from ...torch_runtime.optimizer_offload import offloaded_state_of
from ...torch_runtime.rerun import HostCopier
from ...torch_runtime.sequence import inputs_of, nodes_between
from ...torch_runtime.transport import EventMark, HostTransport, StreamTransport
from ...torch_runtime.tree import map_tensors, tensors
from ...torch_steps.activation_rows import offloaded_state_groups, rerun_ops
from ...torch_steps.assigner import distribution
from ...torch_steps.optimizer_tensors import all_optimizer_tensors, optimizer_state_tensors
from ...torch_steps.step import TorchStep
from .copying import CopyingTransport, SeparateMemoryCopier, receive_copy
from .placed_model import PlacedModel
from .synthetic_rows import parts_rows, update_rows

_HOOKED = "baechi hooked"
"""Key of the metadata of an autograd node that is observed as part of a call's backward pass."""

Mark: TypeAlias = "EventMark | float"
"""A CUDA event with its device, or the host's clock in nanoseconds."""
_MemoryRow = tuple[float, int, int, int, int, int]
"""A change of memory: time, 0 to free or 1 to allocate, device, category, bytes, op."""


class Measurement(Observer):
    """Observes one step of a distributed model. Afterwards `timeline` returns the measured Timeline.

    A step of several micro-batches is reported in the ops of `unrolled_graph`. Whoever runs the step sets `micro_batch`
    before the forward pass of each.
    """

    def __init__(
        self, placed_model: PlacedModel, unrolled_graph: OpGraph | None = None, storages: StorageTracker | None = None
    ):
        model = placed_model.model
        model_trace = placed_model.model_trace
        graph = placed_model.graph
        placement = placed_model.placement
        self.storages, self.modes = storages, contextlib.ExitStack()
        self.micro_batch = 0
        self.row_of_op = np.broadcast_to(np.arange(graph.n), (1, graph.n))
        groups = offloaded_state_groups(model_trace, graph)
        # parameter -> the device that has its optimizer state between steps
        self.state_device = {name: int(placement.device[op]) for op, names in groups for name in names}
        hosts = placement.device[[kind == OFFLOADED for kind in graph.op_types]]
        self.host = int(hosts[0]) if len(hosts) else 0  # where tensors wait for the backward pass
        self.copies = rerun_ops(len(model_trace.calls), graph)
        per_batch = graph
        if unrolled_graph is not None and unrolled_graph is not graph:
            # int64[micro-batches, n]: the op of the unrolled graph that each op is in each micro-batch.
            origin, batch = np.asarray(unrolled_graph.copy_of), np.asarray(unrolled_graph.micro_batch)
            row_of_op = np.zeros((int(batch.max()) + 1, graph.n), dtype=np.int64)
            once, each = np.flatnonzero(batch < 0), np.flatnonzero(batch >= 0)
            row_of_op[:, origin[once]] = once
            row_of_op[batch[each], origin[each]] = each
            self.row_of_op = row_of_op
            graph, placement = unrolled_graph, placement.on(unrolled_graph)
        self.model_trace, self.graph, self.placement, self.cluster = model_trace, graph, placement, placed_model.cluster
        self.model, self.distribution = model, distribution(model)
        self.session = self.distribution.session
        # A graph of the forward pass alone has no op beyond the calls.
        self.backward = backward_ops(model_trace) if self.row_of_op.shape[1] > len(model_trace.calls) else {}
        self.loss = next((op for op, kind in enumerate(per_batch.op_types) if kind == LOSS), None)
        if self.loss is not None:
            self.backward = {**self.backward, self.loss: self.loss + 1}
        self.start_marks: dict[int, Mark] = {}
        self.stop_marks: dict[int, Mark] = {}
        self.send_marks: list[tuple[int, int, int, int, Mark, Mark]] = []
        self.lock = threading.Lock()
        self.local = threading.local()
        self.bases: dict[int, torch.cuda.Event] = {}
        self.base_ns, self.update_start_ns = 0, sys.maxsize
        self.update_start_marks, self.update_stop_marks = {}, {}  # type: dict[int, Mark], dict[int, Mark]
        self.session.observer = self
        self.transport, self.plain = self.session.transport, self.session.plain
        if storages is not None and type(self.transport) is HostTransport:
            self.session.transport = CopyingTransport(self.session.plan.devices, storages)
            self.session.plain = False
        self.own_interceptor: Interceptor | None = None
        if self.distribution.interceptor is None:  # one device only: the model is not intercepted yet
            self.own_interceptor = Interceptor(model, model_trace.layers, self.session).install()
        if isinstance(self.session.transport, StreamTransport):
            self.session.transport.on_send = self._on_send

    def remove(self) -> None:
        """Ends the observation: the session is as it was before."""
        self.session.observer = None
        self.session.transport, self.session.plain = self.transport, self.plain
        if self.own_interceptor is not None:
            self.own_interceptor.remove()
        if isinstance(self.session.transport, StreamTransport):
            self.session.transport.on_send = None

    @property
    def on_gpus(self) -> bool:
        """Whether any device is a GPU; the memory of GPUs is measured by their allocator."""
        return any(d.startswith("cuda") for d in self.session.plan.devices)

    def begin_step(self, optimizer: torch.optim.Optimizer | None = None, batch: object = ()) -> None:
        """Starts the observation of a step. What the optimizer and the batch hold in memory is counted."""
        if self.storages is not None:
            device_of_call = self.session.plan.device
            first_device = device_of_call[0] if device_of_call else 0
            parameter_device = self.session.plan.parameters
            for name, tensor in (*self.model.named_parameters(), *self.model.named_buffers()):
                device = parameter_device.get(name, first_device)
                self.storages.add([tensor], device, persistent=True)
                if optimizer is not None:
                    self.storages.add(
                        optimizer_state_tensors(optimizer, tensor), self.state_device.get(name, device), persistent=True
                    )
            self.storages.add_batch(tensors(batch), first_device)
            self.storages.add(
                [] if optimizer is None else all_optimizer_tensors(optimizer), first_device, persistent=True
            )
            if (offloaded_state := offloaded_state_of(optimizer)) is not None:
                device_of = {
                    id(p): parameter_device.get(name, first_device) for name, p in self.model.named_parameters()
                }
                offloaded_state.copy = lambda state, parameter: receive_copy(
                    state, self.storages, device_of[id(parameter)]
                )
                self.modes.callback(setattr, offloaded_state, "copy", None)
            if not self.on_gpus:
                self.modes.enter_context(self.storages.from_events())
            self.modes.enter_context(self.storages.mode())
        for device in {torch.device(d) for d in self.session.plan.devices if d.startswith("cuda")}:
            index = device.index or 0
            torch.cuda.reset_peak_memory_stats(device)
            self.bases[index] = torch.cuda.Event(enable_timing=True)
            self.bases[index].record(torch.cuda.current_stream(device))
        self.base_ns = time.perf_counter_ns()

    def begin_update(self) -> None:
        """Called when the backward pass is over. What is allocated from now on belongs to no call."""
        self.update_start_ns = time.perf_counter_ns()
        self.update_start_marks = self._marks()
        if self.storages is not None:
            self.storages.call(-1, self.storages.default_device)

    def end_update(self) -> None:
        """Called when the optimizer's call is over."""
        self.update_stop_marks = self._marks()

    def finish(self) -> None:
        """Called when the step is over. The gradients that exist belong to their parameters."""
        if self.storages is not None:
            self.storages.keep(p.grad for p in self.model.parameters() if p.grad is not None)
        self.modes.close()

    # -- the observer --------------------------------------------------------------------------------

    def start(self, op: int, arguments: object) -> set[Node]:
        """Returns the autograd nodes of the arguments. They keep what a recomputation has saved, so nothing else holds them."""
        nodes = inputs_of(arguments) if torch.is_grad_enabled() else set()
        self.start_marks[self._row(op)] = self._mark(op)
        self.local.call = op
        if self.storages is not None:
            self.storages.claim(tensors(arguments), self._device(op))
            self.storages.call(self._row(op), self._device(op))
            self.local.mode = None if torch._C._len_torch_dispatch_stack() else self.storages.mode()
            if self.local.mode is not None:  # a thread of a waiting call
                self.local.mode.__enter__()
        return nodes

    def compute_loss(self, step: TorchStep, outputs: object) -> torch.Tensor:
        """Computes the loss of the model's outputs under observation. A loss on another device receives the targets."""
        if self.loss is None:
            return step.loss_of(outputs)
        nodes = self.start(self.loss, outputs)
        device, devices = self._device(self.loss), self.session.plan.device
        if self.storages is not None and not self.on_gpus and device != devices[0]:
            storages = self.storages
            step = replace(step, targets=map_tensors(step.targets, lambda t: receive_copy(t, storages, device)))
        loss = step.loss_of(outputs)
        self.stop(self.loss, nodes, loss)
        if self.storages is not None:
            self.storages.keep(tensors(outputs))
        return loss

    def run_backward(self, loss: torch.Tensor) -> None:
        """Runs the backward pass of a loss.

        Autograd adds up gradients in place, and its formulas write in place, except where a dispatch mode is active. So no mode
        is active between nodes and in nodes of autograd's own.
        """
        if self.storages is None or self.on_gpus:
            loss.backward()
            return
        for node in nodes_between(loss, ()):
            self._follow_node(node, self.storages)
        with _disable_current_modes():
            loss.backward()

    def _follow_node(self, node: Node, storages: StorageTracker) -> None:
        local, is_function = self.local, isinstance(node, BackwardCFunction)

        def add_mark(op: int, device: int) -> None:
            storages.node_marks.append((time.perf_counter_ns(), device, op))

        def before(gradients: object) -> None:
            op = getattr(storages.local, "op", -1)
            if op >= 0:  # set by the first call of a thread
                local.node_device = storages.local.device
            if is_function:
                local.node_mode = storages.mode()
                local.node_mode.__enter__()
            else:
                add_mark(op, storages.local.device if op >= 0 else storages.device_of(gradients))

        def after(input_gradients: object, output_gradients: object) -> None:
            if is_function:
                local.node_mode.__exit__(None, None, None)
            else:
                storages.assign(tensors(input_gradients), storages.node_marks[-1][1])
            add_mark(-1, getattr(local, "node_device", storages.default_device))

        node.register_prehook(before)
        node.register_hook(after)

    def _device(self, op: int) -> int:
        """Returns the device of a call, or of the loss."""
        calls = self.session.plan.device
        return calls[op] if op < len(calls) else calls[self.model_trace.results[0]]

    def _row(self, op: int) -> int:
        """Returns the op of the graph of all micro-batches that `op` is in the present one."""
        return int(self.row_of_op[self.micro_batch, op])

    def stop(self, op: int, nodes: set[Node], outputs: object) -> None:
        if self.storages is not None:
            if self.local.mode is not None:
                self.local.mode.__exit__(None, None, None)
            self.storages.call(-1, self.storages.default_device)
        self.stop_marks[self._row(op)] = self._mark(op)
        self.local.call = -1
        if op in self.backward:
            self._hook_all(nodes_between(outputs, nodes), op)

    def repeating(self) -> Callable[[int, int], contextlib.AbstractContextManager[object]]:
        rows = self.row_of_op[self.micro_batch]

        @contextlib.contextmanager
        def around(op: int, run: int) -> Iterator[None]:
            row, backward_call = int(rows[self.copies[op, run]]), getattr(self.local, "backward_call", None)
            with self.lock:
                self.start_marks.setdefault(row, self._mark(op))
            mode: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
            if self.storages is not None:
                self.storages.call(row, self.session.plan.device[op])
                if not torch._C._len_torch_dispatch_stack():  # a node of autograd's own
                    mode = self.storages.mode()
            with mode:
                yield
            self.stop_marks[row] = self._mark(op)
            if backward_call is None:
                return
            backward_row, forward_op = backward_call
            if backward_row not in self.stop_marks:  # the backward call begins only now
                self.start_marks[backward_row] = self._mark(forward_op)
            if self.storages is not None:
                self.storages.call(backward_row, self._device(forward_op))

        return around

    def host_copier(self) -> HostCopier:
        if self.storages is None or self.on_gpus:
            return HostCopier()
        return SeparateMemoryCopier(self.storages, self.host, self.session.plan.device)

    def _hook_all(self, nodes: Iterable[Node], op: int) -> None:
        """Assigns nodes to the backward pass of a call, except for those that another call has made."""
        for node in nodes:
            if _HOOKED not in node.metadata:
                node.metadata[_HOOKED] = True
                self._hook(node, op)

    def _hook(self, node: Node, op: int) -> None:
        backward_row = self._row(self.backward[op])

        def before(gradients: object) -> None:
            call = getattr(self.local, "call", -1)
            if call >= 0:  # the call differentiates: autograd works where the tensors of the node are
                if self.storages is not None:
                    self.storages.call(self._row(call), self._device(op))
                return
            self.local.backward_call = (backward_row, op)
            with self.lock:
                self.start_marks.setdefault(backward_row, self._mark(op))
            if self.storages is not None:
                self.storages.call(backward_row, self._device(op))

        def after(input_gradients: object, output_gradients: object) -> None:
            call = getattr(self.local, "call", -1)
            if call >= 0:
                self._hook_all(nodes_between(input_gradients, inputs_of(output_gradients)), op)
                if self.storages is not None:
                    self.storages.call(self._row(call), self._device(call))
                return
            self.stop_marks[backward_row] = self._mark(op)
            if self.storages is not None:  # autograd adds gradients between nodes, and some nodes belong to no call
                self.storages.call(-1, self.storages.default_device)

        node.register_prehook(before)
        node.register_hook(after)

    def _mark(self, op: int) -> Mark:
        return self._mark_on(self._device(op))

    def _mark_on(self, number: int) -> Mark:
        device = torch.device(self.session.plan.devices[number])
        if device.type != "cuda":
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(device))
        return event, device.index or 0

    @property
    def _clocks(self) -> list[int]:
        """Per device, the index of its GPU; -1 for the host."""
        devices = [torch.device(name) for name in self.session.plan.devices]
        return [(device.index or 0) if device.type == "cuda" else -1 for device in devices]

    def _marks(self) -> dict[int, Mark]:
        return {clock: self._mark_on(number) for number, clock in enumerate(self._clocks)}

    def _on_send(self, op: int, target: int, size: int, start: EventMark, stop: EventMark) -> None:
        with self.lock:
            row, source = (self._row(op), self.session.plan.device[op]) if op >= 0 else (-1, -1)
            self.send_marks.append((row, source, target, size, start, stop))

    # -- reading it out ------------------------------------------------------------------------------

    def _us(self, mark: Mark) -> float:
        """Returns the microseconds of a mark since the step began."""
        if isinstance(mark, tuple):
            event, index = mark
            return float(self.bases[index].elapsed_time(event)) * 1e3
        return (mark - self.base_ns) / 1e3

    def timeline(self, measurement: Measurement | None = None) -> Timeline:
        """Builds the Timeline. Ops that did not run have no row. `measurement` has followed the storages of another step."""
        spans = {
            op: (self._us(self.start_marks[op]), self._us(stop))
            for op, stop in self.stop_marks.items()
            if op in self.start_marks
        }
        if self.update_stop_marks:
            clocks = {
                k: (self._us(start_mark), self._us(self.update_stop_marks[k]))
                for k, start_mark in self.update_start_marks.items()
            }
            spans |= update_rows(self.graph, self.placement, self._clocks, clocks)
        spans |= parts_rows(self.graph, spans)
        ops = np.array(sorted(spans), dtype=np.int32)
        start = np.array([max(spans[op][0], 0.0) for op in ops.tolist()])
        end = np.maximum([spans[op][1] for op in ops.tolist()], start)
        device = self.placement.device[ops]
        end_of_op = np.zeros(self.graph.n)
        end_of_op[ops] = end
        transfers = self._transfers(end_of_op, set(ops.tolist()))
        if measurement is None or not len(ops):  # a model that is one layer has no calls of its own
            memory = self._memory(ops, start, end_of_op, transfers)
            peak, source = self._peak(memory)
        else:
            memory = measurement.alive(self)
            peak, source = self._levels_peak(memory), "storages alive"
        batch_info = {} if self.graph.micro_batch is None else {"micro_batch": self.graph.micro_batch}
        return Timeline(
            op=ops,
            device=device,
            start_us=start,
            end_us=end,
            transfers=transfers,
            memory=memory,
            peak_bytes=peak,
            makespan_us=float(max(end.max(initial=0.0), transfers.end_us.max(initial=0.0))),
            origin="measured",
            op_names=self.graph.names,
            device_names=self.cluster.names,
            memory_bytes=self.cluster.memory_bytes,
            tensor_producer=self.graph.tensor_producer,
            tensor_bytes=self.graph.tensor_bytes,
            info={"clock": "cuda events" if self.bases else "host", "peak": source, **batch_info},
        )

    def _transfers(self, end_of_op: NDArray[np.float64], executed_ops: set[int]) -> Transfers:
        """Returns every tensor that another device reads, once per target."""
        graph, device = self.graph, self.placement.device.tolist()
        rows: dict[tuple[int, int], tuple[int, int, int, float, float]] = {}
        marks_of = {(op, target, size): (start, stop) for op, _, target, size, start, stop in self.send_marks}
        for tensor, producer, consumer in zip(
            graph.edge_tensor.tolist(), graph.edge_source.tolist(), graph.consumers.tolist(), strict=True
        ):
            source, target = device[producer], device[consumer]
            if source == target or producer not in executed_ops or graph.tensor_names[tensor] == "control":
                continue
            marks = marks_of.get((producer, target, int(graph.tensor_bytes[tensor])))
            start_us = end_us = end_of_op[producer]  # between CPU devices, or of a gradient that autograd sends
            if marks is not None:
                start_us = self._us(marks[0])
                end_us = max(start_us, self._us(marks[1]))
            rows[tensor, target] = (tensor, source, target, start_us, end_us)
        if not rows:
            return Transfers.none()
        column = [np.array(c) for c in zip(*rows.values(), strict=True)]
        return Transfers(column[0], column[1], column[2], column[3], column[3], column[4])

    def _memory(
        self, ops: NDArray[np.int32], start: NDArray[np.float64], end_of_op: NDArray[np.float64], transfers: Transfers
    ) -> MemoryLog:
        """Returns the log of persistent bytes, outputs and copies, from the times of ops and transfers."""
        persistent, outputs, _, copies = range(len(MEMORY_CATEGORIES))
        rows: list[_MemoryRow] = []
        persistent_bytes = np.bincount(self.placement.device, self.graph.persistent_bytes, minlength=self.cluster.n)
        rows += [(0.0, 0, d, persistent, int(persistent_bytes[d]), -1) for d in range(self.cluster.n)]
        last = float(end_of_op.max(initial=0.0))
        start_of = dict(zip(ops.tolist(), start.tolist(), strict=True))
        for rows_of_batch in self.row_of_op.tolist():
            for i, call in enumerate(self.model_trace.calls):
                row = rows_of_batch[i]
                if row in start_of and call.output_bytes:
                    device = int(self.placement.device[row])
                    rows.append((start_of[row], 1, device, outputs, call.output_bytes, row))
                    free_us = float(end_of_op[rows_of_batch[self.backward[i]]]) if i in self.backward else last
                    rows.append((max(free_us, start_of[row]), 0, device, outputs, -call.output_bytes, row))
        if self.bases:
            for k in range(len(transfers)):
                tensor = int(transfers.tensor[k])
                size, device = int(self.graph.tensor_bytes[tensor]), int(transfers.target[k])
                readers = [
                    r for r in self.graph.tensor_consumers(tensor).tolist() if self.placement.device[r] == device
                ]
                free_us = max(float(transfers.end_us[k]), *(float(end_of_op[r]) for r in readers))
                producer = int(self.graph.tensor_producer[tensor])
                rows.append((float(transfers.receive_us[k]), 1, device, copies, size, producer))
                rows.append((free_us, 0, device, copies, -size, producer))
        return _memory_log(rows)

    def _peak(self, memory: MemoryLog) -> tuple[NDArray[np.int64], str]:
        """Returns int64[devices], the peaks, and where they come from: the allocator if every device is a GPU of its own."""
        devices = [torch.device(d) for d in self.session.plan.devices]
        if all(d.type == "cuda" for d in devices) and len(set(devices)) == len(devices):
            return np.array([torch.cuda.max_memory_allocated(d) for d in devices], dtype=np.int64), "allocator"
        return self._levels_peak(memory), "accounted from the sizes of parameters and outputs"

    def _levels_peak(self, memory: MemoryLog) -> NDArray[np.int64]:
        """Returns int64[devices]: the highest level of each device in a log."""
        levels = [memory.levels(d)[1].sum(axis=1) for d in range(self.cluster.n)]
        return np.array([level.max(initial=0) for level in levels], dtype=np.int64)

    def alive(self, times: Measurement) -> MemoryLog:
        """Returns the memory log of this step's storages, at the times at which the same ops started and ended in `times`."""
        mark_pairs = [
            (own_marks[op], other_marks[op])
            for own_marks, other_marks in ((self.start_marks, times.start_marks), (self.stop_marks, times.stop_marks))
            for op in own_marks.keys() & other_marks.keys()
        ]
        own_times, other_times = (
            np.array(column, dtype=np.float64) for column in zip(*sorted(mark_pairs), strict=True)
        )
        other_times = np.maximum.accumulate(other_times)

        def at(mark: float) -> float:
            return max(times._us(float(np.interp(mark, own_times, other_times))), 0.0)

        persistent, outputs, temporary, copies = range(len(MEMORY_CATEGORIES))
        rows: list[_MemoryRow] = []
        for interval in self.storages.records if self.storages is not None else ():
            stop_mark = self.stop_marks.get(interval.op, -1)
            op_end_ns = -1 if isinstance(stop_mark, tuple) else stop_mark
            is_temporary = 0 <= interval.end_ns <= op_end_ns or (
                interval.end_ns >= 0 and interval.start_ns >= self.update_start_ns
            )
            if interval.persistent:
                category = persistent
            elif interval.is_received:
                category = copies
            else:
                category = temporary if is_temporary else outputs
            rows.append((interval.start_ns, 1, interval.device, category, interval.size, max(interval.op, -1)))
            if interval.end_ns >= 0:
                rows.append((interval.end_ns, 0, interval.device, category, -interval.size, max(interval.op, -1)))
        return _memory_log(rows, at)


def _memory_log(rows: list[_MemoryRow], time_of: Callable[[float], float] = float) -> MemoryLog:
    """Returns the log of the changes in order of time, which `time_of` converts. At one instant, frees come first."""
    rows.sort(key=lambda row: row[:2])
    times, _, *columns = ([row[k] for row in rows] for k in range(6))
    device, category, delta, op = (np.array(column, dtype=np.int64) for column in columns)
    time_us = np.array([time_of(time) for time in times], dtype=np.float64)
    return MemoryLog(device.astype(np.int32), time_us, category.astype(np.int8), delta, op.astype(np.int32))
