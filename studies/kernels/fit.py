"""Fits the constants of a generation to measured kernels: Nelder and Mead's simplex over mean errors, by kind.

An error is the logarithm of predicted / measured, which treats too long and too short alike. Those of convolutions are so large
that it is no longer the relative error, which the targets are of: theirs are relative.

The tile is the best of those that the libraries of GPUs have. Every kind of kernel counts as much as its target is small, so that
the many element-wise rows do not outweigh the few of others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from baechi_lab.graph.hardware import Hardware
from baechi_lab.profilers.generations import Generation

from .measurements import KINDS, Measurements

TARGETS = {
    "linear": 0.08,
    "bmm": 0.14,
    "softmax": 0.12,
    "layer norm": 0.12,
    "element-wise": 0.06,
    "convolution": 0.25,
}
"""Mean relative errors to stay below on rows that were not fitted."""
TILE_SIDES = (64, 128)
STEPS = {"products": 240, "all": 700}
"""Evaluations of the simplex."""
PRODUCTS = ("product_share", "tile_us", "long_row_ps", "product_pj")
KIND_OF_CONSTANT = {
    "bandwidth_share": "element-wise",
    "cached_bytes_per_flop": "softmax",
    "convolution_us": "convolution",
}
"""Constants beside those of products, and the kind of kernel that tells each."""

Table = Mapping[tuple[str, str], Measurements]


def fit_generation(
    table: Table, devices: Sequence[str], start: Generation, fixed_constants: Collection[str] = ()
) -> Generation:
    """Returns the constants that fit the kernels of `devices` best.

    Args:
        table: measurements by device and kind.
        devices: names in the catalog, of one generation.
        start: where the search starts; what is 0 there stays 0, and what no row tells stays as it is.
        fixed_constants: constants that stay as in `start`, beside those that no row tells.
    """
    kinds = [kind for kind in KINDS if any((device, kind) in table for device in devices)]
    tiles = (
        [(start.tile_rows, start.tile_columns)] if "tile" in fixed_constants else list(product(TILE_SIDES, TILE_SIDES))
    )
    keys = [key for key in (*PRODUCTS, "start_us") if getattr(start, key) and key not in fixed_constants]
    best = min(
        (
            _search(
                table, devices, ["linear", "bmm"], replace(start, tile_rows=r, tile_columns=c), keys, STEPS["products"]
            )
            for r, c in tiles
        ),
        key=lambda generation_loss: generation_loss[1],
    )[0]
    keys += [key for key, kind in KIND_OF_CONSTANT.items() if kind in kinds and key not in fixed_constants]
    return _search(table, devices, kinds, best, keys, STEPS["all"])[0]


def mean_error(table: Table, device: str, kind: str, generation: Generation | None = None) -> float:
    """Returns the mean relative error of one kind on one device."""
    return float(np.abs(table[device, kind].errors(Hardware.named(device), generation)).mean())


def _search(
    table: Table,
    devices: Sequence[str],
    kinds: Sequence[str],
    start: Generation,
    keys: Sequence[str],
    evaluations: int,
) -> tuple[Generation, float]:
    """Returns the best constants that were found, and their loss; they are searched by their logarithms."""

    def constants(logarithms: NDArray[np.float64]) -> Generation:
        values = {key: float(value) for key, value in zip(keys, np.exp(logarithms), strict=True)}
        return replace(start, **values)  # type: ignore[arg-type]

    def loss(logarithms: NDArray[np.float64]) -> float:
        generation, total = constants(logarithms), 0.0
        for device in devices:
            hardware = Hardware.named(device)
            for kind in kinds:
                if (device, kind) in table:
                    errors = table[device, kind].errors(hardware, generation)
                    sizes = errors if kind == "convolution" else np.log1p(errors)
                    total += float(np.abs(sizes).mean()) / TARGETS[kind]
        return total

    origin = np.log([getattr(start, key) for key in keys])
    simplex = np.vstack([origin, origin + 0.3 * np.eye(len(keys))])
    options = {"maxfev": evaluations, "initial_simplex": simplex, "xatol": 1e-3, "fatol": 1e-4}
    solution = minimize(loss, origin, method="Nelder-Mead", options=options)
    return constants(solution.x), float(solution.fun)
