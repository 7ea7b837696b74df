"""The measured kernels of `data/neusight` as work for the kernel model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from baechi_lab.graph.hardware import Hardware, kind_named
from baechi_lab.profilers.generations import Generation, generation_named
from baechi_lab.profilers.kernel_model import estimated_us, start_us
from baechi_lab.profilers.work import Kernel, Product, Rows, Work, convolution_products, work_of
from studies.csv_records import read_rows

FLOAT_BYTES = 4
KINDS = ("linear", "bmm", "softmax", "layer norm", "element-wise", "convolution")
_TENSORS = {"add": 3, "mul": 3, "div": 3, "pow": 3}
"""Tensors that an element-wise operator of two tensors reads and writes; those of one tensor and a number have two."""


@dataclass(frozen=True, eq=False)
class Measurements:
    """Kernels of one kind on one device, and float64[kernels] the microseconds that each took."""

    device: str
    kind: str
    kernels: tuple[Kernel, ...]
    measured_us: NDArray[np.float64]

    @cached_property
    def work(self) -> Work:
        """One op per kernel."""
        return work_of(len(self.kernels), enumerate(self.kernels))

    def part(self, first: int, step: int) -> Measurements:
        """Returns every `step`-th kernel from the one at `first` on."""
        return Measurements(self.device, self.kind, self.kernels[first::step], self.measured_us[first::step])

    def predicted_us(self, hardware: Hardware, generation: Generation | None = None) -> NDArray[np.float64]:
        """Returns the microseconds of each kernel, run alone."""
        constants = generation_named(hardware.generation) if generation is None else generation
        start = start_us(self.work, hardware, constants)
        return start + estimated_us(self.work, hardware, generation=constants, follows=True)

    def errors(self, hardware: Hardware, generation: Generation | None = None) -> NDArray[np.float64]:
        """Returns the relative errors, predicted / measured - 1."""
        return self.predicted_us(hardware, generation) / self.measured_us - 1


def read_measurements(folder: str | Path = "data/neusight") -> dict[tuple[str, str], Measurements]:
    """Returns (device, kind) -> measurements, the devices by their names in the catalog."""
    rows: dict[tuple[str, str], list[tuple[Kernel, float]]] = {}
    for device, kind, kernel, us in _rows(Path(folder)):
        rows.setdefault((device, kind), []).append((kernel, us))
    return {
        key: Measurements(*key, tuple(k for k, _ in pairs), np.array([us for _, us in pairs]))
        for key, pairs in sorted(rows.items())
    }


def _rows(folder: Path) -> Iterator[tuple[str, str, Kernel, float]]:
    for row in read_rows(folder / "kernels.csv.gz"):
        kind, kernel = _kernel(row)
        yield kind_named(row["device"]), kind, kernel, 1e3 * float(row["ms"])
    for row in read_rows(folder / "convolutions.csv.gz"):
        yield kind_named(row["device"]), "convolution", _convolution(row), 1e3 * float(row["ms"])


def _kernel(row: dict[str, str]) -> tuple[str, Kernel]:
    count, op = int(row["count"]), row["op"]
    if op in ("linear", "bmm"):
        rows, inner, columns = (int(row[key]) for key in ("rows", "inner", "columns"))
        product = Product(1, count * rows, columns, inner) if op == "linear" else Product(count, rows, columns, inner)
        weights = product.inner * product.columns * product.count
        moved_bytes = FLOAT_BYTES * (product.count * product.rows * (product.inner + product.columns) + weights)
        return op, Kernel(product.flops, float(moved_bytes), matrix=True, batched=op == "bmm", products=(product,))
    length = int(row["length"])
    numbers = count * length
    if op in ("softmax", "ln"):
        rows_read = (Rows.of_softmax if op == "softmax" else Rows.of_norm)(numbers, length, FLOAT_BYTES)
        return ("softmax" if op == "softmax" else "layer norm"), Kernel(
            moved_bytes=2.0 * FLOAT_BYTES * numbers, rows=rows_read
        )
    return "element-wise", Kernel(moved_bytes=float(FLOAT_BYTES * numbers * _TENSORS.get(op, 2)))


def _convolution(row: dict[str, str]) -> Kernel:
    batch, size, channels, filters = (int(row[k]) for k in ("batch", "size", "in_channels", "out_channels"))
    pixels = batch * size**2
    moved_bytes = FLOAT_BYTES * (pixels * (channels + filters) + 9 * channels * filters)
    (product,) = convolution_products(batch, (size, size), channels, filters, (3, 3), plain=True)
    return Kernel(product.flops, float(moved_bytes), matrix=True, products=(product,), convolution=True)
