"""Generations of hardware: the constants that a data sheet does not have, for `kernel_model`.

The constants of a generation hold for all its devices and models. `generations.csv` says what rows of published measurements
each one was fitted to (`python -m studies.kernels`). A generation without measurements has the constants of a neighbour, and its
`fitted_on` says so.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import UnknownNameError


@dataclass(frozen=True)
class Generation:
    """What kernels reach on the devices of one generation. The defaults are those of ideal hardware: a plain roofline.

    In parentheses: the unit, and the rows of `studies.kernels` that tell the constant.

    Args:
        name: such as "ampere"; "" for hardware of no known generation.
        tile_rows, tile_columns: the part of a matrix product's output that one block of threads computes (numbers; linear, bmm).
        product_share: what the inner loop of a float32 product reaches (share of the peak; linear, bmm).
        matrix_unit_share: the same of products in TF32 and narrower types, which matrix units compute (share of the peak;
            training iterations, products on an H200).
        tile_us: what a block needs besides its inner loop: first operands, and writing its output (microseconds; linear, bmm).
        long_row_ps: what a FLOP of a float32 product takes more each time that the summed dimension doubles beyond `LONG_ROW`
            numbers, whatever the number of multiprocessors: rows are then too far apart in memory (picoseconds; linear).
        product_pj: energy of a FLOP in float32 products; the board's power limit divided by it is the lasting rate (picojoules;
            linear, bmm).
        matrix_unit_pj: energy of a FLOP in 16-bit products on matrix units; 0 where no measurement is held back by power
            (picojoules; largest products).
        bandwidth_share: what kernels reach of the memory's bandwidth (share; element-wise).
        cached_bytes_per_flop: what a kernel reads again from caches in the time of one FLOP at peak (bytes; softmax).
        convolution_us: what a float32 convolution that is run alone needs besides its products and its start, until the host
            has chosen an algorithm (microseconds; convolution).
        start_us: what a kernel that is run alone needs besides its own time (microseconds; all kinds).
        fitted_on: the devices whose measurements the constants come from.
    """

    name: str = ""
    tile_rows: int = 1
    tile_columns: int = 1
    product_share: float = 1.0
    matrix_unit_share: float = 1.0
    tile_us: float = 0.0
    long_row_ps: float = 0.0
    product_pj: float = 0.0
    matrix_unit_pj: float = 0.0
    bandwidth_share: float = 1.0
    cached_bytes_per_flop: float = float("inf")
    convolution_us: float = 0.0
    start_us: float = 0.0
    fitted_on: str = ""

    @property
    def constants(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)[1:-1]}


IDEAL = Generation()
"""Of hardware of no known generation: a plain roofline of its data sheet."""
GENERATIONS: dict[str, Generation] = {}
"""Known generations by name."""
for _row in csv.DictReader(Path(__file__).with_name("generations.csv").read_text(encoding="utf-8").splitlines()):
    _constants: dict[str, Any] = {key: type(value)(_row[key]) for key, value in IDEAL.constants.items()}
    GENERATIONS[_row["name"]] = Generation(_row["name"], fitted_on=_row["fitted_on"], **_constants)


def generation_named(name: str) -> Generation:
    """Returns the generation of that name; "" is the ideal one.

    >>> generation_named("ampere").tile_rows, generation_named("").product_share
    (128, 1.0)
    """
    if not name:
        return IDEAL
    if name not in GENERATIONS:
        raise UnknownNameError.of("generation of hardware", name, GENERATIONS)
    return GENERATIONS[name]
