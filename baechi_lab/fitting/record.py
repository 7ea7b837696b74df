"""Records that `bl.fit` returns: `Fit` and its options."""

from __future__ import annotations

import html
import itertools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ..graph import Cluster, OpGraph, Placement, Timeline
from ..graph.units import format_bytes, format_us, plain_number
from ..placers.memory_trades.recomputation import format_arguments
from ..simulator.bounds.bounds import bounds
from ..simulator.runtime_peaks import notes_on_runtime_peaks
from .proof import Proof

if TYPE_CHECKING:
    import pandas

COLUMNS = tuple(
    "way choice fits step_us samples_per_second device_peak_bytes gives_up command error peak_margin".split()
)
KEPT_IN_WORDS = {
    "boundaries": "keeps outputs that another layer reads",
    "sqrt": "keeps outputs between about √n segments",
}
"""What recomputation keeps (`bl.recompute(keep=...)`), as people read it."""
HEAD = ("option", "choice", "fits", "step", "samples/s", "peak memory of each device", "gives up")


@dataclass(frozen=True, eq=False)
class FitOption:
    """One option to run the step. Where it could not be simulated, `timeline` is None and `error` says why.

    Args:
        kind: "as it is", "more devices", "smaller batch", "micro-batches", "recomputation", "offloading", or two of
            them: "smaller batch + recomputation", "micro-batches + recomputation", "recomputation + offloading".
        choice: the parameters of the option, for example "4 devices".
        gives_up: its disadvantages, for example "21.2% more computation".
        command: Python code that makes the timeline.
        batch_size: samples of the whole step, where known.
        graph, cluster, placement, timeline: the records that were simulated.
        error: the reason why the option does not fit, or could not be tried.
        applicable: False where the step does not have the option, which says nothing about what fits.
        recomputation: the arguments of `bl.recompute` that chose the ops that are computed again, where there are any.
    """

    kind: str
    choice: str = ""
    gives_up: str = ""
    command: str = ""
    batch_size: int | None = None
    graph: OpGraph | None = None
    cluster: Cluster | None = None
    placement: Placement | None = None
    timeline: Timeline | None = None
    error: str = ""
    applicable: bool = True
    recomputation: Mapping[str, object] = field(default_factory=dict)

    @property
    def way(self) -> str:
        """Deprecated name of `kind`."""
        warnings.warn("way is deprecated; use kind", DeprecationWarning, stacklevel=2)
        return self.kind

    @property
    def fits(self) -> bool:
        """Whether its simulation breaks no rule."""
        return self.timeline is not None and self.timeline.feasible

    @property
    def fits_with_margin(self) -> bool:
        """Whether it also fits with the peaks that the framework may reach (`Timeline.runtime_peak_bytes`)."""
        return self.fits and not (self.timeline and self.timeline.devices_in_doubt)

    @property
    def peak_margin(self) -> float:
        """The share by which a device may hold more than simulated; 0.1 is a tenth (`Timeline.peak_margin`)."""
        return 0.0 if self.timeline is None else float(self.timeline.peak_margin.max(initial=0.0))

    @property
    def preference(self) -> tuple[bool, float]:
        """Sort key of options that fit: those that fit with their margin first, then the fastest."""
        return not self.fits_with_margin, self.time_per_sample_us

    @property
    def step_us(self) -> float:
        """Simulated microseconds of a step; NaN where nothing was simulated."""
        return float("nan") if self.timeline is None else self.timeline.makespan_us

    @property
    def samples_per_second(self) -> float:
        """Samples per second of the simulated step; NaN where the batch size is not known."""
        return self.batch_size * 1e6 / self.step_us if self.batch_size and self.step_us > 0 else float("nan")

    @property
    def peak_bytes(self) -> list[int]:
        """Simulated peak of every device."""
        return [] if self.timeline is None else self.timeline.peak_bytes.tolist()

    @property
    def peaks_of_devices_and_hosts(self) -> tuple[list[int], list[int]]:
        """Simulated peaks of the devices, and of the hosts that hold what is offloaded."""
        if self.cluster is None:
            return self.peak_bytes, []
        peaks = list(zip(self.peak_bytes, self.cluster.is_host.tolist(), strict=False))
        return [peak for peak, is_host in peaks if not is_host], [peak for peak, is_host in peaks if is_host]

    @property
    def time_per_sample_us(self) -> float:
        """Microseconds per sample, or per step where the batch size is unknown; options are compared by it."""
        return self.step_us / (self.batch_size or 1)

    @property
    def choice_in_words(self) -> str:
        """The choice as people read it; `command` has the arguments.

        A budget is one device's peak in the order of readiness, and of one micro-batch. Where a device holds more as it was
        placed, the words say how much.

        >>> FitOption("recomputation", "batch 16, budget=13240524", recomputation={"budget": 13240524}).choice_in_words
        'batch 16, budget of 13.24 MB'
        >>> FitOption("recomputation", "keep='sqrt'", recomputation={"keep": "sqrt"}).choice_in_words
        'keeps outputs between about √n segments'
        """
        if not self.recomputation:
            return self.choice
        return self.choice.replace(format_arguments(self.recomputation), self._recomputation_in_words())

    def _recomputation_in_words(self) -> str:
        if "keep" in self.recomputation:
            return KEPT_IN_WORDS[str(self.recomputation["keep"])]
        device_peaks, _ = self.peaks_of_devices_and_hosts
        budget = int(str(self.recomputation["budget"]))
        words = f"budget of {format_bytes(budget)}" + (" for one device" if len(device_peaks) > 1 else "")
        peak_bytes = max(device_peaks, default=0)
        return words if peak_bytes <= budget else f"{words}, {format_bytes(peak_bytes)} as placed"

    @property
    def fits_in_words(self) -> str:
        """Whether it fits, as text: an option that the step does not have is neither.

        >>> FitOption("offloading", "any", error="cannot: no output waits", applicable=False).fits_in_words
        'not tried'
        """
        if not self.applicable:
            return "not tried"
        return "yes" if self.fits_with_margin else "in doubt" if self.fits else "no"

    def row(self) -> dict[str, object]:
        """Returns the option as a row of the table."""
        attribute_names = {"way": "kind", "device_peak_bytes": "peak_bytes"}
        return {column: getattr(self, attribute_names.get(column, column)) for column in COLUMNS}

    def texts(self) -> list[str]:
        """Returns the row as texts; the columns are `HEAD`."""
        rate = self.samples_per_second
        devices, hosts = self.peaks_of_devices_and_hosts
        return [
            self.kind,
            self.choice_in_words,
            self.fits_in_words,
            format_us(self.step_us) if self.timeline else "-",
            plain_number(rate) if rate == rate else "-",
            ", ".join(filter(None, [peaks_in_words(devices), *(f"host {format_bytes(peak)}" for peak in hosts)]))
            or "-",
            self.gives_up if self.timeline else self.error,
        ]


def peaks_in_words(peak_bytes: Iterable[int]) -> str:
    """Returns the peaks of devices as text; four and more equal ones in a row are counted.

    >>> peaks_in_words([2_000_000, 0, 0, 0, 0]), peaks_in_words([0, 0])
    ('2.00 MB, 4 x 0 B', '0 B, 0 B')
    """
    return ", ".join(counted(map(format_bytes, peak_bytes)))


def counted(texts: Iterable[str]) -> list[str]:
    """Returns the texts with four and more equal ones in a row as one, which says how many they are.

    >>> counted(["2", "0", "0", "0", "0"])
    ['2', '4 x 0']
    """
    counts = [(text, len(list(equal_texts))) for text, equal_texts in itertools.groupby(texts)]
    return [word for text, n in counts for word in ([f"{n} x {text}"] if n > 3 else [text] * n)]


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """The answer of `bl.fit`.

    Args:
        options: "as it is" first, then every other option that was tried.
        missing_bytes: bytes that the fullest device lacks in the placement that exceeds the limits least; 0 if the step fits.
        cluster: the devices of the question.
        proof: lower bounds of the memory that the step needs; None if it fits.
    """

    options: tuple[FitOption, ...]
    missing_bytes: int = 0
    cluster: Cluster = field(default_factory=lambda: Cluster.uniform(1))
    proof: Proof | None = None

    @property
    def ways(self) -> tuple[FitOption, ...]:
        """Deprecated name of `options`."""
        warnings.warn("ways is deprecated; use options", DeprecationWarning, stacklevel=2)
        return self.options

    @property
    def fits(self) -> bool:
        """Whether the step fits as it is."""
        return self.options[0].fits

    @property
    def best(self) -> FitOption | None:
        """The step as it is if that fits, else the option that fits with least time per sample; None if none fits.

        Options that fit with the margin of their peaks (`FitOption.fits_with_margin`) come before those that do not.
        """
        first, fitting = self.options[0], [option for option in self.options if option.fits]
        if first.fits_with_margin or (first.fits and not any(option.fits_with_margin for option in fitting)):
            return first
        return min(fitting, key=lambda option: option.preference, default=None)

    @property
    def cheapest(self) -> tuple[FitOption, ...]:
        """The fastest option that fits of every kind, those that fit with their margin first, then the fastest."""
        fastest_by_kind: dict[str, FitOption] = {}
        for option in sorted((w for w in self.options if w.fits), key=lambda w: w.preference):
            fastest_by_kind.setdefault(option.kind, option)
        return tuple(fastest_by_kind.values())

    @property
    def room_bytes(self) -> int:
        """The memory of the smallest device that computes."""
        return int(self.cluster.memory_bytes[~self.cluster.is_host].min())

    def pareto(self) -> tuple[FitOption, ...]:
        """Returns options that no other one beats in both time per sample and peak of the fullest device that computes."""
        simulated_options = sorted(
            (w for w in self.options if w.timeline), key=lambda w: (w.time_per_sample_us, fullest_device_bytes(w))
        )
        front: list[FitOption] = []
        for option in simulated_options:
            if not front or fullest_device_bytes(option) < fullest_device_bytes(front[-1]):
                front.append(option)
        return tuple(front)

    def to_pandas(self) -> pandas.DataFrame:
        """Returns one row per option; `device_peak_bytes` is a list, `command` the code."""
        import pandas as pd

        return pd.DataFrame([option.row() for option in self.options], columns=list(COLUMNS))

    @property
    def answer(self) -> str:
        """The answer in one sentence."""
        best = self.best
        if best is not None and self.fits and best is not self.options[0]:
            return (
                f"By the simulation alone: {self.doubt} The fastest option that fits with this margin is {best.kind}: "
                f"{best.choice_in_words}, {format_us(best.step_us)} per step."
            )
        if self.fits and best is not None:
            peak = format_bytes(fullest_device_bytes(best))
            return f"Yes: {best.choice_in_words}, {format_us(best.step_us)} per step, at most {peak} per device."
        lacks = f"No: the fullest device lacks {format_bytes(self.missing_bytes)}." if self.missing_bytes else "No."
        if best is None:
            return f"{lacks} No option that was tried fits. {self.proof or ''}".rstrip()
        # Faster options may fit by the simulation alone: the table says "in doubt" of them.
        fastest = min((option for option in self.options if option.fits), key=lambda option: option.time_per_sample_us)
        fits = "fits" if fastest is best else "fits with the margin of its peak"
        choice = f"{best.kind}: {best.choice_in_words}, {format_us(best.step_us)} per step"
        return f"{lacks} The fastest option that {fits} is {choice}."

    @property
    def doubt(self) -> str:
        """Names the devices that may exceed their memory in the step as it is, or else in `best`; empty if there are none."""
        option = self.options[0] if self.fits else self.best
        notes = notes_on_runtime_peaks(option.timeline) if option is not None and option.timeline is not None else []
        return " ".join(f"{note}." for note in notes)

    @cached_property
    def caveat(self) -> str:
        """Says that a faster placement on several devices may exist; empty where none can, or the step does not fit."""
        first = self.options[0]
        if (
            not self.fits
            or self.best is not first
            or first.cluster is None
            or np.count_nonzero(~first.cluster.is_host) == 1
        ):
            return ""
        least = bounds(first.graph, first.cluster).best  # type: ignore[arg-type]
        if first.step_us <= least * (1 + 1e-9):
            return ""
        return (
            f"This is the best of some rules: another placement may be faster, but none takes less than {format_us(least)} "
            "(time_limit= searches on from it, placement= counts one that is there already)."
        )

    @property
    def commands(self) -> list[str]:
        """Lines that say how to take each of the cheapest options."""
        return [
            f"{option.kind}, {option.choice_in_words}: {option.command}" for option in self.cheapest if option.command
        ]

    def _sentences(self) -> list[str]:
        return [self.answer, "" if self.doubt in self.answer else self.doubt, self.caveat]

    def __str__(self) -> str:
        rows: list[Sequence[str]] = [HEAD, *(option.texts() for option in self.options)]
        widths = [min(max(len(r[k]) for r in rows), 60) for k in range(len(HEAD))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
        proof = ["", str(self.proof)] if self.proof is not None and self.best is not None else []
        commands = ["", *self.commands] if self.commands else []
        return "\n".join([*filter(None, self._sentences()), "", *lines, *proof, *commands])

    def __repr__(self) -> str:
        return f"<Fit: {self.answer}>"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{h}</th>" for h in HEAD)
        body = "".join(
            f'<tr title="{html.escape(w.command)}">'
            + "".join(f"<td>{html.escape(c)}</td>" for c in w.texts())
            + "</tr>"
            for w in self.options
        )
        return f"<p>{html.escape(' '.join(filter(None, self._sentences())))}</p><table><tr>{head}</tr>{body}</table>"


def fullest_device_bytes(option: FitOption) -> int:
    """Returns the peak bytes of the fullest device that computes."""
    if option.timeline is None or option.cluster is None:
        return 0
    return int(np.where(option.cluster.is_host, 0, option.timeline.peak_bytes).max(initial=0))


def __getattr__(name: str) -> Any:
    if name == "Way":
        warnings.warn("Way is deprecated; use FitOption", DeprecationWarning, stacklevel=2)
        return FitOption
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
