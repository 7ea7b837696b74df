"""Fits the kernel model to measured kernels of GPUs, and predicts devices and rows that were not fitted.

    python -m studies.kernels.study data/neusight --store studies/results/kernels.json

DATA is `data/neusight` (NeuSight, ASPLOS 2025, MIT licence): float32 kernels of PyTorch 2.1, run alone. Stored are mean relative
errors by device and kind:

    roofline    of data sheets, without any constant
    catalog     with the constants of `profilers/generations.csv`
    half        every second row, with constants fitted to the other rows of the same devices
    device      all rows, with constants fitted to another device: of the same generation where one was measured, else of a
                neighbouring generation, whose tile and constants are then those of other hardware
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from baechi_lab.graph.hardware import Hardware
from baechi_lab.profilers.generations import GENERATIONS, Generation
from studies.kernels.fit import fit_generation, mean_error
from studies.kernels.measurements import KINDS, Measurements, read_measurements
from studies.results import store

FITTED_ON = {
    "pascal": ("p100", "p4"),
    "volta": ("v100-pcie-32gb",),
    "turing": ("t4",),
    "ampere": ("a100-pcie-40gb", "a100-80gb-pcie"),
    "ada": ("l4",),
    "hopper": ("h100",),
}
"""Generation -> the devices whose rows its constants come from."""
FIXED = {
    "hopper": ("tile",),
    "turing": ("product_share",),
    "ada": ("tile", "tile_us", "product_share", "long_row_ps", "cached_bytes_per_flop", "bandwidth_share"),
}
"""Constants that a generation's rows do not tell apart from others, so that they are a neighbour's: of Turing, whose T4 its power
limit holds back, that of Volta; of Ada, which has few rows, those of Ampere; of Hopper, that of products on an H200."""
HELD_OUT = {
    "p100": ("p4",),
    "p4": ("p100",),
    "a100-80gb-pcie": ("a100-pcie-40gb",),
    "v100-pcie-32gb": ("t4",),
    "t4": ("v100-pcie-32gb",),
    "a100-pcie-40gb": ("v100-pcie-32gb",),
    "h100": ("a100-pcie-40gb",),
}
"""Device -> the devices that its constants are fitted to instead."""

Table = Mapping[tuple[str, str], Measurements]
Errors = dict[str, dict[str, float]]


def fitted_generations(table: Table) -> dict[str, Generation]:
    """Returns the constants of every generation, fitted to all rows of its devices."""
    return {
        name: fit_generation(table, devices, GENERATIONS[name], FIXED.get(name, ()))
        for name, devices in FITTED_ON.items()
    }


def errors(table: Table, device: str, generation: Generation | None = None) -> dict[str, float]:
    """Returns kind -> mean relative error on one device."""
    kinds = [kind for kind in KINDS if (device, kind) in table]
    return {kind: round(mean_error(table, device, kind, generation), 4) for kind in kinds}


def half_errors(table: Table) -> Errors:
    """Returns the errors of every second row, with constants fitted to the others."""
    fitted_rows, other_rows = ({key: rows.part(k, 2) for key, rows in table.items()} for k in (0, 1))
    return {
        device: errors(other_rows, device, generation)
        for name, generation in fitted_generations(fitted_rows).items()
        for device in FITTED_ON[name]
    }


def device_errors(table: Table) -> Errors:
    """Returns the errors of devices with constants that are fitted to other devices."""
    result = {}
    for device, other_devices in HELD_OUT.items():
        start = GENERATIONS[Hardware.named(other_devices[0]).generation]
        result[device] = errors(table, device, fit_generation(table, other_devices, start))
    return result


def roofline_errors(table: Table) -> Errors:
    """Returns the errors of a plain roofline of data sheets."""
    result: Errors = {}
    for (device, kind), rows in table.items():
        error = abs(rows.errors(Hardware.named(device).as_roofline())).mean()
        result.setdefault(device, {})[kind] = round(float(error), 4)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Fits, predicts, prints and stores the tables."""
    parser = argparse.ArgumentParser(prog="python -m studies.kernels.study", description=__doc__)
    parser.add_argument("data", type=Path, help="folder of the measurements")
    parser.add_argument("--store", type=Path, required=True, help="the file to write")
    options = parser.parse_args(arguments)
    table = read_measurements(options.data)
    devices = list(dict.fromkeys(device for device, _ in table))
    constants = {name: generation.constants for name, generation in fitted_generations(table).items()}
    for name, values in constants.items():
        print(name, {key: round(value, 4) for key, value in values.items()})
    tables = {
        "roofline": roofline_errors(table),
        "catalog": {device: errors(table, device) for device in devices},
        "half": half_errors(table),
        "device": device_errors(table),
    }
    for label, by_device in tables.items():
        for device, by_kind in by_device.items():
            print(label, device, by_kind)
    store(
        options.store,
        "python -m studies.kernels.study data/neusight --store FILE",
        rows={d: {kind: len(rows.kernels) for (device, kind), rows in table.items() if device == d} for d in devices},
        fitted_on=FITTED_ON,
        constants=constants,
        errors=tables,
        held_out=HELD_OUT,
    )


if __name__ == "__main__":
    main()
