"""`bl.layouts`: every legal layout of a transformer on a cluster, with step time, memory, and why it does not fit.

The parts of a model are costed once per shape (tp, cp, ep, micro-batch, recomputation). From them every layout has a lower bound
on its step time and on its memory. Layouts are simulated in the order of their bounds, until no bound of the others is below the
best simulated time: the best layout of the list is proven to be the best of all that are legal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from ..checks import check_callback, check_flag, check_text, check_tokens, check_whole
from ..errors import InfeasiblePlacement, InvalidInput, in_short
from ..graph import Cluster, Timeline
from ..graph.collectives import Collectives, MeasuredCollective, MissingLink
from ..graph.columns import check_record, check_record_list
from ..graph.hardware import Hardware
from ..graph.layout import Layout
from ..graph.units import format_bytes, plural
from .configuration import configuration_fields, read_transformer
from .kernel_times import EFFICIENCIES, Efficiency
from .layout_stages import StageCosts, StepOptions, stage_blocks
from .layout_step import LayoutStep, make_layout_step
from .rank_costs import slowest_device
from .rank_ops import Storage
from .transformer import Transformer

if TYPE_CHECKING:
    import pandas as pd

PRECISIONS = {
    "mixed-bf16": Storage(gradient_bytes=4),
    "mixed-fp16": Storage(gradient_bytes=2),
    "mixed-fp8": Storage(gradient_bytes=4, products="fp8"),
}
"""Names of precisions, with the bytes of gradients between micro-batches and the number format of linear layers."""

ATTENTION = ("flash", "eager")
REDUCED_BYTES = {"float32": 4, "half": 2}
"""Number formats in which data parallelism reduces gradients, with the bytes of a number."""
MOST_OVERHEAD_BYTES = 2**50  # so that sums fit in 64 bits

MEAN_ERRORS = {"a100": (0.05, 0.08), "h100": (0.06, 0.12), "b200": (0.04, 0.04), "gh200": (0.09, 0.09)}
"""Hardware whose steps were measured -> smallest and largest mean error of predicted steps among the sources in
`studies/results/layouts.json`, rounded."""

LEAST_SIMULATED = 20
"""Least number of simulated layouts, even if their bounds prove that they are not the fastest."""

MOST_MICRO_BATCH = 64  # sequences of a micro-batch in the layouts that are listed


@dataclass(frozen=True, eq=False)
class LayoutRow:
    """One layout with its step and its memory.

    Args:
        layout: the layout.
        step_us: simulated microseconds of a step; None if the bound made a simulation unnecessary.
        lower_bound_us: a lower bound of the step in microseconds.
        peak_bytes: simulated peak of the fullest device; a lower bound if `step_us` is None.
        fits: whether the peak is within the memory of the devices.
        reason: the reason why it does not fit, or is not simulated.
        compute_us: time of the busiest device's kernels in a step.
        exposed_us: other time of that device's passes: collectives inside blocks, and waiting for the host.
        micro_batches: the number of micro-batches of a step.
        step: returns the layout's step, with its graph, cluster and timeline.
    """

    layout: Layout
    step_us: float | None
    lower_bound_us: float
    peak_bytes: int
    fits: bool
    reason: str
    compute_us: float
    exposed_us: float
    micro_batches: int
    step: Callable[[], LayoutStep] = field(repr=False)

    @property
    def tp(self) -> int:
        """Tensor parallelism of the layout."""
        return self.layout.tp

    @property
    def pp(self) -> int:
        """Pipeline parallelism of the layout."""
        return self.layout.pp

    @property
    def dp(self) -> int:
        """Data parallelism of the layout."""
        return self.layout.dp

    @property
    def ep(self) -> int:
        """Expert parallelism of the layout."""
        return self.layout.ep

    @property
    def cp(self) -> int:
        """Context parallelism of the layout."""
        return self.layout.cp

    @property
    def waiting_us(self) -> float | None:
        """Time in which the busiest device runs no pass: bubbles, exposed reductions of gradients, and the update."""
        return None if self.step_us is None else max(self.step_us - self.compute_us - self.exposed_us, 0.0)

    @property
    def timeline(self) -> Timeline:
        """The simulated timeline of the whole step."""
        return self.step().simulate()


@dataclass(frozen=True, eq=False)
class Layouts:
    """The answer of `bl.layouts`. Its rows: those that fit, fastest first; then bounded ones; then, by memory, the others."""

    model: Transformer
    global_batch: int
    sequence_length: int
    rows: tuple[LayoutRow, ...]
    memory_bytes: int
    reduce_precision: str
    cluster: Cluster
    precision: str
    overlap_products: bool
    configuration: Mapping[str, object] = field(default_factory=dict)
    """Fields of the model's configuration; none if the model was given as a `Transformer`."""
    measured_on: str = ""
    """Hardware with the same constants whose steps were measured; empty if there is none."""

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[LayoutRow]:
        return iter(self.rows)

    @cached_property
    def best(self) -> LayoutRow:
        """The fastest row that fits.

        Raises:
            InfeasiblePlacement: no layout fits.
        """
        row = next((row for row in self.rows if row.fits and row.step_us is not None), None)
        if row is None:
            least = min(self.rows, key=lambda row: row.peak_bytes)
            raise InfeasiblePlacement(
                f"no layout of {self.model.name} fits: the least needs {format_bytes(least.peak_bytes)} on "
                f"its fullest device, and a "
                f"device has {format_bytes(self.memory_bytes)} ({least.layout!r})"
            )
        return row

    @property
    def accuracy(self) -> str:
        """Sentences on the error of simulated steps, and on the number of rows that are as good as the best within it."""
        if not self.measured_on:
            return "No measured step was compared with simulated ones of this hardware or efficiency."
        low, high = MEAN_ERRORS[self.measured_on]
        errors = f"{low:.0%}" if low == high else f"{low:.0%} to {high:.0%}"
        sentence = f"Measured steps on {self.measured_on} differed from simulated ones by {errors} on average."
        rows = [row.step_us for row in self.rows if row.fits and row.step_us is not None]
        close = sum(us <= rows[0] * (1 + low) for us in rows) - 1 if rows else 0
        alike = f"{close} other {plural('row', close)} within {low:.0%} of the best may be as good."
        return f"{sentence} {alike}" if close else sentence

    def to_pandas(self) -> pd.DataFrame:
        """Returns a row per layout: its degrees, `step_us`, `lower_bound_us`, `peak_bytes`, `fits`, `reason`, times."""
        import pandas as pd

        tokens = self.global_batch * self.sequence_length
        return pd.DataFrame(
            {
                **{key: value for key, value in row.layout.get_params().items() if key != "stage_layers"},
                "micro_batches": row.micro_batches,
                "step_us": float("nan") if row.step_us is None else row.step_us,
                "lower_bound_us": row.lower_bound_us,
                "tokens_per_second": float("nan") if row.step_us is None else tokens / row.step_us * 1e6,
                "peak_bytes": row.peak_bytes,
                "fits": row.fits,
                "reason": row.reason,
                "compute_us": row.compute_us,
                "exposed_us": row.exposed_us,
                "waiting_us": float("nan") if row.waiting_us is None else row.waiting_us,
            }
            for row in self.rows
        )

    def __repr__(self) -> str:
        fitting = sum(row.fits for row in self.rows)
        return f"<Layouts of {self.model.name}: {len(self.rows)} legal, {fitting} fit>"


def layouts(
    model: object,
    cluster: Cluster,
    *,
    global_batch: int,
    sequence_length: int,
    layouts: Iterable[Layout] | None = None,
    hardware: Hardware | str | None = None,
    precision: str = "mixed-bf16",
    reduce_precision: str | None = None,
    attention: str = "flash",
    fused_loss: bool = False,
    overlap: bool = True,
    overlap_gather: bool = False,
    overlap_tensor: bool = False,
    overlap_products: bool = False,
    prefetch: int = 1,
    bucket_bytes: int | None = None,
    overhead_bytes: int = 0,
    measured: Sequence[MeasuredCollective] = (),
    efficiency: Efficiency | None = None,
    callback: Callable[[str], None] | None = None,
) -> Layouts:
    """Lists layouts of a transformer on a cluster, with simulated step time and memory.

    Args:
        model: a configuration (path of its `config.json`, its fields, a Hugging Face model or configuration), or a `Transformer`.
        cluster: all devices, those of one machine next to each other; links as they are while all devices send at once.
        global_batch: number of sequences of a step.
        sequence_length: number of tokens of a sequence.
        layouts: the layouts to simulate; by default every legal combination of tensor, pipeline, data, expert and context
            parallelism whose devices have links, with micro-batches of powers of two, 1F1B and interleaved 1F1B, ZeRO 1 (with a
            pipeline) or 1 to 3, no or full recomputation, and sequence parallelism if tp is above 1.
        hardware: hardware of the devices, if their kinds do not name it.
        precision: "mixed-bf16" (gradients are added up in float32), "mixed-fp16", or "mixed-fp8" (linear layers of blocks
            in fp8).
        reduce_precision: "float32" or "half": number format in which data parallelism reduces gradients. By default it is the
            one in which they are added up: "half" for "mixed-fp16", else "float32".
        attention: "flash" (one kernel, no scores in memory) or "eager".
        fused_loss: whether cross entropy is one kernel, which keeps logits in half precision.
        overlap: whether gradients are reduced as soon as their backward ops have run, or after all backward ops.
        overlap_gather: with ZeRO 1, whether updated parameters are gathered beside the next step's forward pass, as with
            `--overlap-param-gather` of Megatron-LM, or before the step ends.
        overlap_tensor: whether collectives of tensor parallelism in the backward pass run beside gradients of weights, as
            Megatron-LM does; Megatron-DeepSpeed and PyTorch's DTensor do not.
        overlap_products: whether collectives of sequence parallelism run in pieces beside the products that read or write
            their tensors, as with `--tp-comm-overlap` of Megatron-LM.
        prefetch: with ZeRO 3, the number of blocks that are gathered ahead.
        bucket_bytes: with ZeRO 0 and 1 and `overlap`, bytes of gradients that are reduced together, in whole blocks (default:
            500 MB, or more if a stage would otherwise have more than 8 buckets).
        overhead_bytes: bytes that a device holds besides tensors.
        measured: tables of measured collectives, in place of formulas.
        efficiency: shares that kernels, links and hosts reach, in place of the constants of the hardware.
        callback: a function that is called with texts on the progress.

    Returns:
        Rows, the best first. A row that is not simulated has a lower bound that is above the best row's time, or
        needs more memory than there is.

    Raises:
        InvalidInput: a model without the sizes of a transformer; a layout of `layouts` that is not legal; no legal layout;
            devices without a link; unknown hardware.

    >>> from baechi_lab import Cluster
    >>> gpt = {"model_type": "gpt2", "n_embd": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 50257, "n_positions": 1024}
    >>> table = layouts(gpt, Cluster.uniform(8, kind="a100", link="nvlink"), global_batch=64, sequence_length=1024)
    >>> table.best.layout.devices, table.best.fits
    (8, True)
    """
    transformer = read_transformer(model)
    global_batch, sequence_length = check_tokens("global_batch", global_batch, sequence_length)
    if check_whole("overhead_bytes", overhead_bytes, 0) > MOST_OVERHEAD_BYTES:
        raise InvalidInput(f"overhead_bytes is {in_short(overhead_bytes)}; it must be at most {MOST_OVERHEAD_BYTES}")
    if not isinstance(cluster, Cluster):
        raise InvalidInput(f"cluster is {type(cluster).__name__}; it must be a Cluster")
    check_text("precision", precision, PRECISIONS)
    check_text("attention", attention, ATTENTION)
    storage = PRECISIONS[precision]
    if reduce_precision is None:
        reduce_precision = next(name for name, size in REDUCED_BYTES.items() if size == storage.gradient_bytes)
    check_text("reduce_precision", reduce_precision, REDUCED_BYTES)
    hardware_record = Hardware.named(hardware) if isinstance(hardware, str) else hardware
    if hardware_record is not None:
        check_record("hardware", hardware_record, Hardware)
    if efficiency is not None:
        check_record("efficiency", efficiency, Efficiency)
    check_callback("callback", callback, "text")
    measured = check_record_list("measured", measured, MeasuredCollective)
    fused_loss = check_flag("fused_loss", fused_loss)
    options = StepOptions(
        precision=replace(
            storage,
            flash_attention=attention == "flash",
            fused_loss=fused_loss,
            reduced_bytes=REDUCED_BYTES[reduce_precision],
        ),
        overlap=check_flag("overlap", overlap),
        overlap_gather=check_flag("overlap_gather", overlap_gather),
        overlap_tensor=check_flag("overlap_tensor", overlap_tensor),
        overlap_products=check_flag("overlap_products", overlap_products),
        prefetch=check_whole("prefetch", prefetch, 0),
        bucket_bytes=None if bucket_bytes is None else check_whole("bucket_bytes", bucket_bytes),
        overhead_bytes=int(overhead_bytes),
        efficiency=efficiency,
        hardware=hardware_record,
    )
    slowest = slowest_device(cluster, range(cluster.n), hardware_record).hardware
    efficiencies = efficiency or Efficiency.of(slowest)
    collectives = Collectives(cluster, tuple(measured), efficiencies.collective_share, efficiencies.network_share)
    candidates = _candidates(layouts, transformer, cluster.n, global_batch, sequence_length)
    costs = StageCosts(transformer, cluster, sequence_length, options, collectives)
    search = _Search(costs, global_batch, callback)
    rows = search.rows(candidates, all_of_them=layouts is not None)
    memory_bytes = int(cluster.memory_bytes.min())
    measured_on = next((name for name, constants in EFFICIENCIES.items() if constants is efficiencies), "")
    return Layouts(
        transformer,
        global_batch,
        sequence_length,
        tuple(rows),
        memory_bytes,
        reduce_precision,
        cluster,
        precision,
        options.overlap_products,
        {} if isinstance(model, Transformer) else configuration_fields(model)[0],
        measured_on,
    )


def _candidates(
    layouts: Iterable[Layout] | None, model: Transformer, devices: int, global_batch: int, sequence_length: int
) -> list[Layout]:
    """Returns the layouts to simulate: those that are given, or every legal one.

    Raises:
        InvalidInput: a given layout is not legal; there is none.
    """
    if layouts is None:
        candidates = list(_legal_layouts(model, devices, global_batch, sequence_length))
        if not candidates:
            copies = Layout(dp=devices)
            raise InvalidInput(
                f"no layout of {model.name} on {devices} devices is legal for global_batch {global_batch} and sequence_length "
                f"{sequence_length}; for example, {copies!r}: "
                f"{why_illegal(model, copies, devices, global_batch, sequence_length)}"
            )
        return candidates
    candidates = check_record_list("layouts", layouts, Layout)
    if not candidates:
        raise InvalidInput("layouts is empty; give at least one Layout, or None for all that are legal")
    for layout in candidates:
        reason = why_illegal(model, layout, devices, global_batch, sequence_length)
        if reason:
            raise InvalidInput(f"{layout!r}: {reason}")
    return candidates


def why_illegal(model: Transformer, layout: Layout, devices: int, global_batch: int, sequence_length: int) -> str:
    """Returns a sentence why a layout is not legal for the model, cluster or batch; empty if it is legal."""
    if layout.devices != devices:
        degrees = f"{layout.tp} * {layout.cp} * {layout.dp} * {layout.pp}"
        return f"tp * cp * dp * pp is {degrees} = {layout.devices}; it must be the number of devices, {devices}"
    for name in ("heads", "kv_heads", "feed_forward", "expert_feed_forward", "shared_feed_forward"):
        size = getattr(model, name)
        if size % layout.tp:
            return f"tp is {layout.tp}; it must divide the model's {name}, which is {size}"
    if layout.ep > 1 and not model.experts:
        return f"ep is {layout.ep} and the model has no experts; it must be 1"
    if model.experts and model.experts % layout.ep:
        return f"ep is {layout.ep}; it must divide the model's experts, which are {model.experts}"
    for name, degree in (("cp", layout.cp), ("tp * cp", layout.cp * (layout.tp if layout.sequence_parallel else 1))):
        if sequence_length % degree:
            return f"{name} is {degree}; it must divide sequence_length, which is {sequence_length}"
    if global_batch % (layout.dp * layout.micro_batch):
        return f"dp * micro_batch is {layout.dp} * {layout.micro_batch}; it must divide global_batch, which is {global_batch}"
    try:
        stage_blocks(layout, model.layers)
    except InvalidInput as error:
        return str(error)
    micro_batches = global_batch // (layout.dp * layout.micro_batch)
    if layout.schedule == "interleaved-1f1b" and layout.pp > 1 and micro_batches % layout.pp:
        return (
            f"schedule is 'interleaved-1f1b' and there are {micro_batches} micro-batches; their number must be a multiple of pp, "
            f"which is {layout.pp}"
        )
    return ""


def _divisors(number: int) -> list[int]:
    return [k for k in range(1, number + 1) if number % k == 0]


def _legal_layouts(model: Transformer, devices: int, global_batch: int, sequence_length: int) -> Iterator[Layout]:
    """Yields every legal layout of the combinations that `layouts` lists."""
    micro_batches = [2**k for k in range(MOST_MICRO_BATCH.bit_length())]
    for tp in _divisors(devices):
        if model.heads % tp:
            continue
        for cp, pp in product(_divisors(devices // tp), repeat=2):
            if (devices // tp) % (cp * pp) or pp > model.layers or sequence_length % (cp * tp):
                continue
            dp = devices // (tp * cp * pp)
            if global_batch % dp:
                continue
            eps = [ep for ep in _divisors(dp * cp) if model.experts % ep == 0] if model.experts else [1]
            zeros = ((1,) if dp * cp > 1 else (0,)) if pp > 1 else ((1, 2, 3) if dp * cp > 1 else (0,))
            schedules = ("1f1b", "interleaved-1f1b") if pp > 1 else ("1f1b",)
            for micro_batch, ep, zero, schedule, recompute in product(
                micro_batches, eps, zeros, schedules, ("none", "full")
            ):
                if (global_batch // dp) % micro_batch:
                    continue
                layout = Layout(tp, pp, dp, ep, cp, zero, micro_batch, schedule, recompute, tp > 1)
                if not why_illegal(model, layout, devices, global_batch, sequence_length):
                    yield layout


class _Search:
    """Bounds of all layouts, and simulations of those that may be the best."""

    def __init__(self, costs: StageCosts, global_batch: int, callback: Callable[[str], None] | None) -> None:
        self.costs, self.global_batch = costs, global_batch
        self.callback = callback or (lambda text: None)

    def step(self, layout: Layout) -> LayoutStep:
        return make_layout_step(self.costs, layout, self.global_batch)

    def rows(self, layouts: Sequence[Layout], all_of_them: bool) -> list[LayoutRow]:
        outlines: list[LayoutRow] = []
        missing_link: MissingLink | None = None
        for k, layout in enumerate(layouts):
            if k % 50 == 0:
                self.callback(f"bounding layout {k + 1} of {len(layouts)}")
            try:
                outlines.append(self._bounded_row(layout))
            except MissingLink as error:
                if all_of_them:
                    raise
                missing_link = error
        if not outlines and missing_link is not None:
            raise missing_link
        outlines.sort(key=lambda row: (not row.fits, row.lower_bound_us))
        rows, best, simulated_count = [], float("inf"), 0
        for row in outlines:
            is_needed = row.fits and (row.lower_bound_us < best or simulated_count < LEAST_SIMULATED)
            if all_of_them or is_needed:
                simulated_count += 1
                self.callback(
                    f"simulating layout {simulated_count}, best so far {best / 1e6:.4g} s"
                    if best < float("inf")
                    else "simulating"
                )
                step = row.step()
                us, peaks = step.makespan_and_peaks
                reason = _too_large(peaks, step.memory_bytes)
                row = replace(row, step_us=us, peak_bytes=int(peaks.max()), fits=not reason, reason=reason)
                if row.fits and row.step_us is not None:
                    best = min(best, row.step_us)
            rows.append(row)
        fitting = [row for row in rows if row.fits]
        fitting.sort(key=lambda row: (row.step_us is None, row.step_us or row.lower_bound_us))
        return fitting + sorted((row for row in rows if not row.fits), key=lambda row: row.peak_bytes)

    def _bounded_row(self, layout: Layout) -> LayoutRow:
        step = self.step(layout)
        step.check_links()
        too_large = _too_large(step.least_bytes, step.memory_bytes, "at least ")
        reason = too_large or "its lower bound is above the best layout's time"
        least = int(step.least_bytes.max())
        count = step.micro_batches
        busiest = float(step.stage_us.sum(axis=1).max()) * count
        compute_us = step.compute_us * count
        times = compute_us, max(busiest - compute_us, 0.0)
        return LayoutRow(
            layout, None, step.lower_bound_us, least, not too_large, reason, *times, count, lambda: self.step(layout)
        )


def _too_large(peaks: np.ndarray, memory_bytes: np.ndarray, least: str = "") -> str:
    """Returns a sentence on the device of the pipeline that lacks most memory; empty if none does."""
    lack = peaks - memory_bytes
    device = int(lack.argmax())
    if lack[device] <= 0:
        return ""
    device_has = "a device has" if memory_bytes.min() == memory_bytes.max() else "it has"
    fullest = f"its fullest device holds {least}{format_bytes(int(peaks[device]))}"
    return f"{fullest}; {device_has} {format_bytes(int(memory_bytes[device]))}"
