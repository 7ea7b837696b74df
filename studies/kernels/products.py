"""Predicts the largest rate of matrix products that users of PyTorch measured on GPUs.

    python -m studies.kernels.products data/products --store studies/results/kernel_products.json

Every report is the largest rate of products of square matrices of five sizes, in four precisions. No constant of the kernel
model was fitted to them but four: `hardware.CONVERTED_SHARE`, what Blackwell's matrix units reach, and the two energies per FLOP
of `rtx-ampere`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from baechi_lab.graph.hardware import Hardware
from baechi_lab.profilers.kernel_model import kernel_us
from baechi_lab.profilers.work import Kernel, Product
from studies.csv_records import read_records
from studies.results import store

SIZES = (1024, 2048, 4096, 8192, 10240)
"""Rows and columns of the matrices."""


class BestProduct(NamedTuple):
    """What matrix products of one precision reach on a device: TFLOP/s, the median of so many reports."""

    device: str
    precision: str
    tflops: float
    reports: int


def read_best_products(folder: Path) -> list[BestProduct]:
    """Returns the rows of `best_products.csv`."""
    return read_records(folder / "best_products.csv", BestProduct)


def predicted_tflops(device: str, precision: str) -> float:
    """Returns the largest of the estimated rates of the five products, in TFLOP/s."""
    hardware, number_bytes = Hardware.named(device), 4 if precision in ("fp32", "tf32") else 2
    rates = []
    for size in SIZES:
        flops = 2.0 * size**3
        kernel = Kernel(
            flops=flops,
            moved_bytes=3.0 * number_bytes * size**2,
            precision=precision,
            matrix=True,
            products=(Product(1, size, size, size),),
        )
        rates.append(flops / kernel_us(kernel, hardware) / 1e6)
    return max(rates)


def errors(rows: Sequence[BestProduct]) -> dict[str, dict[str, float]]:
    """Returns device -> precision -> relative error of the predicted rate; below 0 where the estimated time is too long."""
    table: dict[str, dict[str, float]] = {}
    for row in rows:
        error = predicted_tflops(row.device, row.precision) / row.tflops - 1
        table.setdefault(row.device, {})[row.precision] = round(error, 4)
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Predicts, prints and stores every row."""
    parser = argparse.ArgumentParser(prog="python -m studies.kernels.products", description=__doc__)
    parser.add_argument("data", type=Path, help="folder of the measurements")
    parser.add_argument("--store", type=Path, required=True, help="the file to write")
    options = parser.parse_args(arguments)
    table = errors(read_best_products(options.data))
    every = [abs(error) for by_precision in table.values() for error in by_precision.values()]
    for device, by_precision in table.items():
        print(f"{device:16s}", "  ".join(f"{name} {error:+5.0%}" for name, error in by_precision.items()))
    print(f"mean {sum(every) / len(every):.1%} of {len(every)}, worst {max(every):.0%}")
    store(
        options.store,
        "python -m studies.kernels.products data/products --store FILE",
        mean_error=round(sum(every) / len(every), 4),
        worst_error=round(max(every), 4),
        errors=table,
    )


if __name__ == "__main__":
    main()
