"""`bl.sweep`: runs many settings on any executor, and stores rows in a file from which an interrupted sweep resumes."""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import BrokenExecutor, CancelledError, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

from ..checks import check_callback, check_flag, is_list
from ..errors import BaechiLabError, ExecutionError, InvalidInput, in_short
from ..graph import Cluster, OpGraph, Step
from ..graph.arguments import check_records
from ..graph.columns import text
from ..graph.costs import check_kinds
from ..graph.formats.wire import decode_graph, encode_graph
from ..graph.hardware import by_kind, known_kind
from ..identity import Unidentified, content_digest
from ..internal_warnings import outer_stacklevel
from ..passes.optimize import PASSES
from ..profilers.precision import profile_mode
from ..workers.executors import Calls, open_calls
from .grid import Cell, Placing, Profiling, Steps, Subject, as_list, cells, graph_key
from .store import COLUMNS, ComputedAgain, Store, as_stored
from .work import compute_row, encoded_model_graph, is_transient, step_graph

if TYPE_CHECKING:
    import pandas

    from ..simulator.schedules import ScheduleOption

MAX_RESUBMITS = 3
"""How often a call is submitted again when its machine was lost."""


class _Key(NamedTuple):
    """Identity of a graph or of a row; rows and graphs that lack one get a random text and are not stored in the file."""

    text: str
    is_stored: bool = True


def sweep(
    subject: Subject,
    *,
    batch_size: Iterable[int] | int | None = None,
    devices: Iterable[int] | int = (1, 2, 4),
    memory_bytes: Iterable[int | str] | int | str | None = None,
    placer: Iterable[str] | str = ("m-etf",),
    cluster: Cluster | None = None,
    passes: Iterable[str] = PASSES,
    forward_only: bool | str = "auto",
    scheduler: str | None = None,
    micro_batches: Iterable[int] | int | None = None,
    schedule: Iterable[ScheduleOption | None] | ScheduleOption | None = None,
    replicas: Iterable[int] | int = 1,
    params: Mapping[str, Mapping[str, object]] | None = None,
    profile: str = "estimated",
    hardware: str | None = None,
    model_params: Mapping[str, object] | None = None,
    path: str | os.PathLike[str] | None = None,
    executor: object = None,
    on_row: Callable[[dict[str, object]], None] | None = None,
    cancel: threading.Event | None = None,
    progress: bool = True,
) -> pandas.DataFrame:
    """Optimizes, places and simulates every combination of batch size, micro-batches, devices, memory, placer and schedule.

    Batch sizes and micro-batches enter by building and profiling the model again, never by scaling one profile.

    Args:
        subject: a benchmark model's name; a Step; an OpGraph (whose batch size is fixed: leave `batch_size` out); or
            a function from batch size to OpGraph.
        batch_size, devices, placer: one value or several.
        memory_bytes: memory per device, one value or several; by default that of the cluster's devices.
        cluster: a template for what is not swept: its first devices with their kinds, speeds and links, further devices like
            its last, its transfers; by default the kind, memory and link of named hardware.
        passes, forward_only, scheduler, params: as in `bl.compare` (`params` by placer name).
        micro_batches, schedule: as in `bl.simulate`, one value or several. `batch_size` is that of a step, which
            `micro_batches` must divide (else the row says so; with one count, at once): the model is profiled at the
            size of one micro-batch. A model's name without `batch_size` has its own; a graph is one micro-batch. Placers
            with parameters of these names get them, and `objective="step"` where they know it.
        replicas: so many copies of the placement side by side, each on its share of the devices and with its share of the
            micro-batches; gradients are all-reduced. One value or several.
        profile, hardware, model_params: as in `bl.profile` and `bl.models.build`. Measured profiles are taken one after
            the other in this process.
        path: SQLite file; rows that it already has are not computed again, new ones are written as they come. Graphs
            are kept there too, so that a resumed sweep measures nothing twice. None keeps all in memory. A row is known by
            the content of all that it comes from: a function counts by its code, defaults and the variables that it
            reads. A function that reads files, or refers to what has no content (a lock, an open file), is called again
            (`ComputedAgain` warns). So are rows that have changed in the file, and rows whose error may pass (a missing
            package, a timeout, too little memory on this machine).
        executor: any `concurrent.futures.Executor`, a `dask.distributed.Client` or what its `get_executor` returns, or
            a `baechi_lab.sweeps.RayExecutor`; rows lost with a machine of theirs are sent again. None is a pool of
            processes, for which a script needs the usual `if __name__ == "__main__":`; "here" computes in this thread.
        on_row: called with each row as it is written.
        cancel: an event that, once set, ends the sweep early.
        progress: show a progress bar.

    Returns:
        A table with a row per combination that is done, in the order of the combinations. Columns:

            - `batch_size, micro_batches, schedule, replicas, devices, memory_bytes, placer, params`: the combination;
              `memory_bytes` is that of the smallest device.
            - `makespan_us, samples_per_second, lower_bound_us, gap`: as in `compare`.
            - `moved_bytes, transfers, balance, place_seconds`: likewise.
            - `bubble`: the idle share of all devices.
            - `feasible`, `peak_bytes`: whether it fits, and the peak of the fullest device.
            - `ops, groups`: their numbers.
            - `finer_groups`: says so where smaller groups were placed, because none of the first ones fits.
            - `op_order`, `winner`: the order in which devices work, and what `auto` took: a placer, on ops or on groups.
            - `error`: why there is no step.

    Raises:
        InvalidInput, UnknownNameError: before anything runs.
        FormatError: a file that no sweep made, or that cannot be read or written.
        ExecutionError: a process of the pool was killed. What goes wrong for one combination is the `error` of its row.

    >>> graph = OpGraph.from_edges([4, 8, 8], [(0, 1, 4), (0, 2, 4)])
    >>> rows = sweep(graph, devices=[1, 2], placer=["single", "m-etf"], progress=False, executor="here")
    >>> rows[["devices", "placer", "makespan_us"]].values.tolist()[:2]
    [[1, 'single', 20.0], [1, 'm-etf', 20.0]]
    """
    import pandas as pd

    from ..placers.registry import make_placer

    for argument, value in (("params", params), ("model_params", model_params)):
        if value is not None and not isinstance(value, Mapping):
            raise InvalidInput(f"{argument} is {in_short(value)}; it must be a mapping from names")
    kind = known_kind(hardware) if isinstance(hardware, str) else None
    template = Cluster.uniform(1, kind=kind or "gpu") if cluster is None else cluster
    check_records(cluster=template)
    check_flag("progress", progress)
    check_callback("on_row", on_row, "row")
    placing = _checked_placing(passes, forward_only, scheduler, params or {})
    steps = Steps.of(micro_batches, schedule, replicas)
    profiling = Profiling(profile, hardware, tuple(sorted((model_params or {}).items())))
    sizes = None if batch_size is None else as_list("batch_size", batch_size)
    if sizes is None and isinstance(subject, str) and micro_batches is not None:
        from ..models.registry import make_model

        default_size = getattr(make_model(subject, **dict(profiling.model_params)), "batch_size", None)
        sizes = None if default_size is None else [int(default_size)]
    profile_mode(profile, hardware)
    if hardware is not None:
        by_kind(hardware)  # raises for a name that is not known
    _check_subject(subject, sizes, profiling, template)
    names = as_list("placer", placer)
    memory = None if memory_bytes is None else as_list("memory_bytes", memory_bytes)
    grid = list(cells(sizes, as_list("devices", devices), memory, names, template, steps))
    for name in names:
        make_placer(name, **placing.of(text("placer", name)))
    store = Store(path)
    try:
        graph_keys: dict[int | None, _Key] = {}
        for size in dict.fromkeys(cell.batch_size for cell in grid):
            try:
                graph_keys[size] = _Key(graph_key(subject, size, profiling))
            except Unidentified as reason:  # a function without identity is called, and its graph identified
                graph_keys[size] = _key_of_result(subject, size, reason, store)
        cells_with_keys = [(cell, _row_key(cell, graph_keys[cell.batch_size], placing, store)) for cell in grid]
        with open_calls(executor, len(grid)) as workers:
            run = _SweepRun(
                subject, profiling, placing, store, graph_keys, workers, on_row, cancel or threading.Event(), progress
            )
            run.answer_missing_rows(cells_with_keys)
        table = pd.DataFrame(
            [run.rows[key.text] for _, key in cells_with_keys if key.text in run.rows], columns=list(COLUMNS)
        )
    finally:
        store.close()
    return table.astype({"feasible": bool})


def _key_of_result(subject: object, size: int | None, reason: Unidentified, store: Store) -> _Key:
    if not store.in_memory:
        _warn(
            f"the sweep's subject has no identity ({reason}): its graphs are made again, and their rows used where equal"
        )
        if callable(subject) and size is not None:
            with suppress(BaechiLabError):  # the rows will say it
                graph = subject(size)
                key = content_digest(("graph", graph))
                store.add_graph(key, encode_graph(graph))
                return _Key(key)
    return _Key(token_hex(), is_stored=False)


def _row_key(cell: Cell, graph_key: _Key, placing: Placing, store: Store) -> _Key:
    try:
        return _Key(cell.key(graph_key.text, placing), graph_key.is_stored)
    except Unidentified as reason:
        if not store.in_memory:
            _warn(
                f"rows of {cell.placer} have no identity ({reason} among their parameters), and are not kept in the file"
            )
        return _Key(token_hex(), is_stored=False)


def _warn(message: str) -> None:
    warnings.warn(message, ComputedAgain, stacklevel=outer_stacklevel())


@dataclass(frozen=True, eq=False)
class _PendingRow:
    """A submitted row: its cell, its key in the file, and what the workers take its graph from."""

    cell: Cell
    key: _Key
    graph: OpGraph | Step


@dataclass(eq=False)
class _SweepRun:
    """A running sweep: builds graphs, submits the rows of each graph when it is ready, and writes finished rows."""

    subject: Subject
    profiling: Profiling
    placing: Placing
    store: Store
    graph_keys: Mapping[int | None, _Key]
    workers: Calls
    on_row: Callable[[dict[str, object]], None] | None
    cancel: threading.Event
    progress: bool
    rows: dict[str, dict[str, object]] = field(default_factory=dict)
    losses: Counter[object] = field(default_factory=Counter)
    waiting: dict[int | None, list[tuple[Cell, _Key]]] = field(default_factory=dict)
    building: dict[Future[Any], int | None] = field(default_factory=dict)
    answering: dict[Future[object], _PendingRow] = field(default_factory=dict)

    def answer_missing_rows(self, cells_with_keys: list[tuple[Cell, _Key]]) -> None:
        """Computes the rows that are not in the file."""
        from tqdm.auto import tqdm

        self.rows = self.store.rows(key.text for _, key in cells_with_keys)
        missing = [(cell, key) for cell, key in cells_with_keys if key.text not in self.rows]
        for cell, key in ((cell, key) for cell, key in missing if not cell.error):
            self.waiting.setdefault(cell.batch_size, []).append((cell, key))
        stored_rows = len(cells_with_keys) - len(missing)
        with tqdm(
            total=len(cells_with_keys), initial=stored_rows, desc="sweep", delay=1, disable=not self.progress
        ) as self.bar:
            try:
                for cell, key in missing:
                    if cell.error:
                        self._write(key, cell, {"feasible": False, "error": cell.error})
                # Models with estimated costs are built in the workers; a measured profile must not share the machine.
                if isinstance(self.subject, str) and self.profiling.mode == "estimated":
                    for size in self.waiting:
                        if self.store.graph(self.graph_keys[size].text) is None:
                            self._build(size)
                while (self.waiting or self.answering) and not self.cancel.is_set():
                    if not self._start_ready():
                        self._collect_finished()
                self._collect_finished(seconds=0.0)
            except BrokenExecutor as error:
                raise ExecutionError(
                    f"a process of the sweep's pool was killed, perhaps for want of memory ({error}); "
                    f"{self.store.stored_rows_text()}"
                ) from error
            finally:
                for future in (*self.building, *self.answering):
                    future.cancel()

    def _build(self, size: int | None) -> None:
        self.building[self.workers.submit(encoded_model_graph, self.subject, size, self.profiling)] = size

    def _start_ready(self) -> bool:
        """Submits the rows of one graph, from the file or built here; returns False when all other graphs are being built."""
        sizes_being_built = set(self.building.values())
        size = next((s for s in self.waiting if s not in sizes_being_built), ...)
        if size is ...:
            return False
        data = self.store.graph(self.graph_keys[size].text)  # type: ignore[index]
        if data is None:
            self._receive_graph(size, lambda: self._build_here(size))  # type: ignore[arg-type]
        else:
            # A damaged graph ends the sweep: in the workers it would be the error of rows that are kept.
            decode_graph(data)
            self._submit(size, data)  # type: ignore[arg-type]
        self._collect_finished(seconds=0.0)
        return True

    def _collect_finished(self, seconds: float = 0.2) -> None:
        """Processes finished calls, after waiting up to `seconds` for one."""
        finished_futures, _ = wait([*self.building, *self.answering], seconds, return_when="FIRST_COMPLETED")
        for future in finished_futures:
            if future not in self.answering and future not in self.building:
                continue  # already processed while the rows of another graph were submitted
            error = CancelledError() if future.cancelled() else future.exception()
            if isinstance(error, self.workers.retryable_errors):
                # Its machine was lost; a call that is lost every time ends the sweep.
                call = self.answering.get(future) or self.building.get(future)
                self.losses[call] += 1
                if self.losses[call] > MAX_RESUBMITS:
                    raise ExecutionError(
                        f"a row was lost with the machine that computed it {MAX_RESUBMITS + 1} times, perhaps for want of memory "
                        f"({error}); {self.store.stored_rows_text()}"
                    ) from error
                if future in self.answering:
                    self._send(self.answering.pop(future))
                else:
                    self._build(self.building.pop(future))
            elif future in self.answering:
                row = self.answering.pop(future)
                self._write(row.key, row.cell, future.result())
            else:
                self._receive_graph(self.building.pop(future), future.result)

    def _receive_graph(self, size: int | None, build: Callable[[], bytes]) -> None:
        """Stores a graph and submits its rows; where it cannot be built, its rows get the error."""
        try:
            data = build()
        except BaechiLabError as error:
            for cell, key in self.waiting.pop(size):
                self._write(key, cell, {"feasible": False, "error": str(error), "passing": is_transient(error)})
            return
        if self.graph_keys[size].is_stored:
            self.store.add_graph(self.graph_keys[size].text, data)
        self._submit(size, data)

    def _submit(self, size: int | None, data: bytes) -> None:
        shared_data = self.workers.share(data)
        for cell, key in self.waiting.pop(size):
            if self.cancel.is_set():
                return
            self._send(_PendingRow(cell, key, shared_data))
            self._collect_finished(seconds=0.0)  # an executor may already have finished it: write it before the next

    def _send(self, row: _PendingRow) -> None:
        cell = row.cell
        future = self.workers.submit(compute_row, row.graph, cell, self.placing)
        self.answering[future] = row

    def _write(self, key: _Key, cell: Cell, row: Mapping[str, object]) -> None:
        params = self.placing.of(cell.placer)
        full_row = {**cell.columns, **row, "params": json.dumps(params, sort_keys=True, default=repr)}
        full_row["feasible"] = bool(full_row["feasible"])
        self.rows[key.text] = as_stored(full_row)
        if not full_row.pop("passing", False) and key.is_stored:
            self.store.add(key.text, full_row)
        self.bar.update()
        if self.on_row is not None:
            self.on_row(full_row)

    def _build_here(self, size: int | None) -> bytes:
        if isinstance(self.subject, OpGraph):
            return encode_graph(self.subject)
        if isinstance(self.subject, Step):
            return encode_graph(step_graph(self.subject, size, self.profiling))
        if isinstance(self.subject, str):
            return encoded_model_graph(self.subject, size, self.profiling)
        if size is None:
            raise InvalidInput("a function from batch size to graph needs batch_size")
        return encode_graph(self.subject(size))


def _checked_placing(
    passes: Iterable[str], forward_only: bool | str, scheduler: str | None, params: Mapping[str, Mapping[str, object]]
) -> Placing:
    from ..stages import Optimize, Simulate

    Simulate(scheduler)  # refuses an unknown name before anything runs
    if not is_list(passes):
        raise InvalidInput(f"passes is {in_short(passes)}; it must be a list of passes")
    if not isinstance(params, Mapping) or not all(isinstance(values, Mapping) for values in params.values()):
        raise InvalidInput(f"params is {in_short(params)}; it must map names of placers to parameters, each by name")
    # A text is left as it is, for Optimize to refuse it.
    names = Optimize(passes if isinstance(passes, str) else tuple(passes), forward_only).passes  # type: ignore[arg-type]
    frozen_params = tuple(sorted((name, tuple(sorted(values.items()))) for name, values in params.items()))
    return Placing(names, forward_only, scheduler, frozen_params)


def _check_subject(subject: object, sizes: list[object] | None, profiling: Profiling, template: Cluster) -> None:
    """Rejects invalid subjects before anything slow starts."""
    if isinstance(subject, str):
        from ..models.registry import make_model

        first = {} if sizes is None else {"batch_size": sizes[0]} if sizes else {}
        make_model(subject, **{**dict(profiling.model_params), **first})
    elif isinstance(subject, OpGraph):
        if sizes is not None:
            raise InvalidInput("an OpGraph has the batch size it was profiled with; leave batch_size out")
        check_kinds(subject, template)
    elif not isinstance(subject, Step) and not callable(subject):
        raise InvalidInput(
            f"a sweep runs on a model's name, a Step, an OpGraph or a function, not on {in_short(subject, 200)}"
        )
