"""Predicts the matrix products of DeepBench, many of which have few rows.

    python -m studies.kernels.deepbench data/deepbench --store studies/results/kernel_deepbench.json

160 products per device and precision, of 8 to 48,000 rows, which ran many times one after another. Three constants were fitted
to them: `kernel_model.NARROW_SHARE`, to those of up to 32 rows on V100 and T4 in float32; `matrix_unit_pj` of Turing, to those of
more than 128 rows on a T4 in float16; and `EARLY_MATRIX_TILE_ROWS`, to those of up to 128 rows on a V100 in float16. Nothing was
fitted to P100 and GTX 1080 Ti.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import NamedTuple

import numpy as np

from baechi_lab.graph.hardware import Hardware
from baechi_lab.profilers.kernel_model import estimated_us
from baechi_lab.profilers.work import Kernel, Product, work_of
from studies.csv_records import read_records
from studies.results import store

SIDES = {"1 to 32": 32, "33 to 64": 64, "65 to 128": 128, "more": inf}
"""Ranges of a product's rows or columns, whichever are fewer, and their upper ends."""
MULTIPLE = 8
"""DeepBench fills the sides of products in float16 up to a multiple of it."""


class MeasuredProduct(NamedTuple):
    """A product on a device; `order` says which of its operands is transposed ("TN": the weights)."""

    device: str
    precision: str
    rows: int
    columns: int
    inner: int
    order: str
    ms: float

    @property
    def kernel(self) -> Kernel:
        """The work of the product."""
        number_bytes, multiple = (4, 1) if self.precision == "fp32" else (2, MULTIPLE)
        rows, columns, inner = (-(-side // multiple) * multiple for side in (self.rows, self.columns, self.inner))
        numbers = rows * inner + inner * columns + rows * columns
        product = Product(1, rows, columns, inner)
        return Kernel(product.flops, float(number_bytes * numbers), self.precision, matrix=True, products=(product,))


def read_products(folder: Path) -> list[MeasuredProduct]:
    """Returns the rows of `products.csv`."""
    return read_records(folder / "products.csv", MeasuredProduct)


def side_label(rows: int, columns: int) -> str:
    """Returns the range in which the fewer of rows and columns lie.

    >>> side_label(16, 1760), side_label(7000, 700)
    ('1 to 32', 'more')
    """
    return next(label for label, end in SIDES.items() if min(rows, columns) <= end)


def mean_errors(products: Sequence[MeasuredProduct]) -> dict[str, dict[str, float]]:
    """Returns device and precision -> range of sides, or "all" -> mean relative error."""
    table: dict[str, dict[str, float]] = {}
    for device, precision in dict.fromkeys((product.device, product.precision) for product in products):
        of_device = [product for product in products if product[:2] == (device, precision)]
        work = work_of(len(of_device), enumerate(product.kernel for product in of_device))
        us = estimated_us(work, Hardware.named(device), follows=True)
        errors = np.abs(us / (1e3 * np.array([product.ms for product in of_device])) - 1)
        labels = np.array([side_label(product.rows, product.columns) for product in of_device])
        means = {label: errors[labels == label].mean() for label in SIDES}
        table[f"{device} {precision}"] = {
            label: round(float(mean), 4) for label, mean in {"all": errors.mean(), **means}.items()
        }
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Predicts, prints and stores the mean errors."""
    parser = argparse.ArgumentParser(prog="python -m studies.kernels.deepbench", description=__doc__)
    parser.add_argument("data", type=Path, help="folder of the measurements")
    parser.add_argument("--store", type=Path, required=True, help="the file to write")
    options = parser.parse_args(arguments)
    products = read_products(options.data)
    table = mean_errors(products)
    for name, by_side in table.items():
        print(name, by_side)
    command = "python -m studies.kernels.deepbench data/deepbench --store FILE"
    store(options.store, command, products=len(products), mean_errors=table)


if __name__ == "__main__":
    main()
