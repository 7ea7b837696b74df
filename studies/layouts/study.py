"""Predict measured training steps under layouts, with the constants of `efficiency.csv` fitted on 24 of them.

    python -m studies.layouts.study --fit --table FILE.csv --store RESULT.json
    python -m studies.layouts.study --store RESULT.json

Rows are of six sources (`measured`): vTrain's GPT on one machine of A100, BLOOM's preparation on 384 A100, MPT under
FSDP on A100 and H100, Megatron on B200, Sailor's GPT-Neo and OPT on GH200, and what Megatron-LM's authors published of up to
3072 A100 and H100, to which nothing is fitted. Fitted are shares of peaks and the time that hosts take; a prior holds each
near where it starts. The rows to fit on are spread over the degrees of layouts.
`choice`: of measured layouts of one model, batch and number of devices, how much slower is the one with the smallest
predicted time than the fastest measured?
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from baechi_lab.graph.formats.files import write_atomically
from baechi_lab.parallel.kernel_times import EFFICIENCIES, Efficiency
from studies.layouts.measured import SOURCES, MeasuredStep
from studies.results import result, store

FIT_ROWS = {"vtrain": 9, "bloom": 4, "mpt": 5, "b200": 3, "sailor": 3, "megatron": 0}
"""Number of rows of every source to fit on: about in proportion to the cube root of its rows, 24 in all. Steps that Megatron-LM's
authors published are only predicted."""

SHARED = (
    "misaligned_share",
    "score_share",
    "collective_share",
    "network_share",
    "host_us",
    "backward_host_us",
    "collective_host_us",
    "drift_us",
    "stage_us",
    "gather_us",
)
"""Constants that all hardware shares."""

OWN_CONSTANTS = {
    "a100": ("product_share", "attention_share", "bandwidth_share"),
    "h100": ("product_share", "attention_share", "bandwidth_share"),
    "b200": ("product_share", "attention_share", "collective_share"),
    "gh200": ("product_share", "bandwidth_share", "collective_share"),
}
"""Constants that are fitted for one kind of hardware."""

START = {
    "a100": Efficiency(product_share=0.75, attention_share=0.35),
    "h100": Efficiency(product_share=0.7, attention_share=0.25),
    "b200": Efficiency(product_share=0.45, attention_share=0.4),
    "gh200": Efficiency(product_share=0.4, bandwidth_share=0.25),
}
"""Where the fit starts: round numbers, and for products of an H100 what those of an H200 reached alone."""

MEASURED_SPREADS = {("h100", "product_share"): 0.12}
"""Standard deviations of the prior where the start was measured: the mean error of linear layers in bf16 on the H200."""

SPREAD_OF_SHARES, SPREAD_OF_TIMES = 0.3, 0.7
"""Standard deviations of the prior of shares and times, in their logarithms, around where the fit starts."""

ROW_ERROR = 0.05
"""Relative error of a row that costs as much as a constant one standard deviation away from its start."""

KEYS = [("", key) for key in SHARED] + [(kind, key) for kind, constants in OWN_CONSTANTS.items() for key in constants]
"""Hardware ("" for all) and name of every constant that is fitted."""


def constants_by_hardware(values: np.ndarray) -> dict[str, Efficiency]:
    """The constants of every kind of hardware from logarithms float64[constants], in the order of `KEYS`."""
    table = {}
    for kind, start in START.items():
        new_values: dict[str, Any] = {
            key: float(np.exp(value)) for (owner, key), value in zip(KEYS, values, strict=True) if owner in ("", kind)
        }
        table[kind] = replace(start, **new_values)
    return table


def _starting_values() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logarithms at which the constants start, their standard deviations and upper bounds."""
    share = np.array([key.endswith("_share") for _, key in KEYS])
    upper = np.where(share, 0.0, np.inf)
    start = np.log([getattr(START[kind or "a100"], key) for kind, key in KEYS])
    usual = np.where(share, SPREAD_OF_SHARES, SPREAD_OF_TIMES).tolist()
    spread = [MEASURED_SPREADS.get(key, value) for key, value in zip(KEYS, usual, strict=True)]
    return np.minimum(start, upper - 1e-3), np.array(spread), upper


def choose_rows() -> dict[str, list[int]]:
    """Indices of the rows of every source to fit on: in order of their degrees, rows at equal distances.

    The choice depends neither on measurements nor on predictions. Rows in fp8 are left out.
    """
    fit_rows = {}
    for source, count in FIT_ROWS.items():
        steps = SOURCES[source]()
        rows = [k for k, step in enumerate(steps) if step.seconds and step.options.precision.products == "fp16"]
        rows.sort(key=lambda k: (*_degrees(steps[k]), k))
        fit_rows[source] = sorted(evenly_spaced(rows, count))
    return fit_rows


def _degrees(step: MeasuredStep) -> tuple[str, int, int, int, int, int, int]:
    """Hardware and degrees of a layout, by which rows are ordered."""
    layout = step.layout
    return (step.constants, layout.ep, layout.tp, layout.pp, layout.cp, layout.micro_batch, step.model.hidden)


def evenly_spaced(rows: Sequence[int], count: int) -> list[int]:
    """Returns `count` rows, each from the middle of one of as many equal parts.

    >>> evenly_spaced([10, 11, 12, 13, 14, 15], 2)
    [11, 14]
    """
    return [rows[int((k + 0.5) * len(rows) / count)] for k in range(count)]


def fit(steps: Sequence[MeasuredStep]) -> dict[str, Efficiency]:
    """Constants per hardware, fitted to rows by least squares with a prior; large errors count less."""
    from scipy.optimize import least_squares

    start, spread, upper = _starting_values()
    predicted_seconds = cache(MeasuredStep.predicted_seconds)  # most constants change the predictions of some rows only

    def residuals(values: np.ndarray) -> np.ndarray:
        table = constants_by_hardware(values)
        errors = [predicted_seconds(step, table[step.constants]) / float(step.seconds or 1) - 1 for step in steps]
        return np.r_[errors, ROW_ERROR * (values - start) / spread]

    solution = least_squares(
        residuals, start, bounds=(-np.inf, upper), loss="soft_l1", f_scale=0.1, diff_step=2e-3, ftol=1e-3, max_nfev=18
    )
    return constants_by_hardware(solution.x)


def write_table(path: Path, efficiencies: dict[str, Efficiency]) -> None:
    """Writes `efficiency.csv`."""
    names = [field.name for field in fields(Efficiency)]
    lines = [",".join(["hardware", *names])]
    for kind, efficiency in efficiencies.items():
        lines.append(",".join([kind, *(f"{getattr(efficiency, name):.4g}" for name in names)]))
    write_atomically(path, ("\n".join(lines) + "\n").encode())


def errors_of(steps: Sequence[MeasuredStep]) -> list[dict[str, Any]]:
    """Predicted against measured, one record per row."""
    rows = []
    for step in steps:
        us, peaks = step.step().makespan_and_peaks
        peak = int(peaks.max())
        row: dict[str, Any] = {"layout": repr(step.layout), "predicted_s": us / 1e6, "predicted_bytes": peak}
        if step.seconds:
            row |= {"measured_s": step.seconds, "error": us / 1e6 / step.seconds - 1}
        if step.peak_bytes:
            row |= {"measured_bytes": step.peak_bytes, "memory_error": peak / step.peak_bytes - 1}
        if step.out_of_memory:
            row["out_of_memory_said"] = peak > min(device.memory_bytes for device in step.cluster.devices)
        rows.append(row)
    return rows


def choices(steps: Sequence[MeasuredStep], rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of layouts of one model, batch and number of devices: is the one with the smallest prediction the fastest?"""
    groups: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for step, row in zip(steps, rows, strict=True):
        if step.seconds:
            key = (
                step.source,
                step.model,
                step.cluster.n,
                step.global_batch,
                step.sequence_length,
                step.cluster.devices[0].kind,
            )
            groups[key].append((row["predicted_s"], step.seconds))
    slower = []
    for group in groups.values():
        if len(group) > 1:
            slower.append(min(group)[1] / min(seconds for _, seconds in group) - 1)
    extra = np.array(slower)
    return {
        "groups": len(extra),
        "within_3_percent": round(float((extra <= 0.03).mean()), 3) if len(extra) else float("nan"),
        "slower_on_average": round(float(extra.mean()), 4) if len(extra) else float("nan"),
    }


def summary(fitted_rows: dict[str, list[int]]) -> dict[str, Any]:
    """Errors of every source, with the rows that were fitted left out and in."""
    sources: dict[str, Any] = {}
    for name, read in SOURCES.items():
        steps = read()
        rows = errors_of(steps)
        held_out = [row for k, row in enumerate(rows) if k not in fitted_rows[name] and "error" in row]
        errors = np.abs([row["error"] for row in held_out])
        entry: dict[str, Any] = {
            "rows": len(rows),
            "fitted_rows": fitted_rows[name],
            "mean_error_of_others": round(float(errors.mean()), 4),
            "percentiles_of_others": {p: round(float(np.percentile(errors, p)), 4) for p in (50, 90, 100)},
            "mean_error_of_all": round(float(np.abs([row["error"] for row in rows if "error" in row]).mean()), 4),
            "choice": choices(steps, rows),
            "errors": [round(row["error"], 3) for row in rows if "error" in row],
            "mean_errors_by_hardware": _mean_errors_by_hardware(steps, rows, fitted_rows[name]),
        }
        memory = [row for row in rows if "memory_error" in row]
        if memory:
            entry["memory_mean_error"] = round(float(np.abs([row["memory_error"] for row in memory]).mean()), 4)
            gigabytes = [abs(row["predicted_bytes"] - row["measured_bytes"]) / 1e9 for row in memory]
            entry["memory_mean_gigabytes"] = round(float(np.mean(gigabytes)), 2)
        predictions = [row["out_of_memory_said"] for row in rows if "out_of_memory_said" in row]
        if predictions:
            entry["out_of_memory"] = {"rows": len(predictions), "said": sum(predictions)}
        sources[name] = entry
    return sources


def _mean_errors_by_hardware(
    steps: Sequence[MeasuredStep], rows: Sequence[dict[str, Any]], fitted_rows: Sequence[int]
) -> dict[str, float]:
    """Returns the mean absolute error of the rows that were not fitted, by the hardware whose constants they have."""
    errors: dict[str, list[float]] = defaultdict(list)
    for k, (step, row) in enumerate(zip(steps, rows, strict=True)):
        if k not in fitted_rows and "error" in row:
            errors[step.constants].append(abs(row["error"]))
    return {kind: round(float(np.mean(values)), 4) for kind, values in sorted(errors.items())}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m studies.layouts.study", description=__doc__)
    parser.add_argument("--fit", action="store_true", help="fit the constants again")
    parser.add_argument("--table", help="where to write the fitted constants")
    parser.add_argument("--store", help="where to write the result as JSON")
    options = parser.parse_args(arguments)
    if options.fit:
        chosen_rows = choose_rows()
        efficiencies = fit([SOURCES[name]()[k] for name, rows in chosen_rows.items() for k in rows])
        for kind, efficiency in efficiencies.items():
            print(kind, efficiency)
        if options.table:
            write_table(Path(options.table), efficiencies)
        EFFICIENCIES.update(efficiencies)
    else:
        chosen_rows = {name: entry["fitted_rows"] for name, entry in result("layouts")["sources"].items()}
    sources = summary(chosen_rows)
    for name, entry in sources.items():
        print(name, {key: value for key, value in entry.items() if key != "errors"})
    if options.store:
        command = f"python -m studies.layouts.study {'--fit ' if options.fit else ''}--store FILE"
        store(options.store, command, seed=None, sources=sources)


if __name__ == "__main__":
    main()
