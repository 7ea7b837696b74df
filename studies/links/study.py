"""Fit a link to measured times of NCCL's all-reduce on two to eight A100 of one machine.

    python -m studies.links.study data/vtrain/all_reduce_a100.csv --store RESULT.json

The data are those of vTrain (MICRO 2024, MIT licence): microseconds of all-reduces of 1 MB to 1 GB, joined by NVSwitch. On a
ring of n devices an all-reduce of S bytes is 2 (n - 1) rounds, in which every device sends a message of S / n bytes
(Patarasuk, Yuan 2009, doi:10.1016/j.jpdc.2008.09.002); this is how the simulator carries gradients. The link is fitted to the
time of one round (`baechi_lab.profilers.links.fit_link`). For every n, the link that is fitted without the rows of n predicts
them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from baechi_lab.graph import Link
from baechi_lab.profilers.links import fit_link
from studies.csv_records import read_rows
from studies.results import store

LARGE_BYTES = 1 << 24
"""All-reduces from here on are reported apart: the gradients of a layer are that large."""


class AllReduces(NamedTuple):
    """One entry per measured all-reduce: devices int64[rows], bytes int64[rows], microseconds float64[rows]."""

    devices: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    measured_us: NDArray[np.float64]

    def select(self, mask: NDArray[np.bool_]) -> AllReduces:
        """Returns the rows of `mask`."""
        return AllReduces(self.devices[mask], self.size_bytes[mask], self.measured_us[mask])


def read(path: str | Path) -> AllReduces:
    """Reads the out-of-place times of a file."""
    rows = read_rows(path)
    return AllReduces(
        np.array([int(row["gpus"]) for row in rows]),
        np.array([int(row["bytes"]) for row in rows]),
        np.array([float(row["out_of_place_us"]) for row in rows]),
    )


def fit(rows: AllReduces) -> Link:
    """Fits the link to the time of one round of the ring."""
    rounds = 2 * (rows.devices - 1)
    return fit_link(rows.size_bytes / rows.devices, rows.measured_us / rounds)[0]


def relative_errors(link: Link, rows: AllReduces) -> NDArray[np.float64]:
    """Returns float64[rows], the predicted time of each all-reduce relative to the measured one, minus 1.

    >>> rows = AllReduces(np.array([2]), np.array([2000]), np.array([24.0]))
    >>> relative_errors(Link(5.0, 0.001), rows).tolist()    # two rounds of 5 us + 1000 bytes
    [-0.5]
    """
    rounds = 2 * (rows.devices - 1)
    predicted_us = rounds * (link.latency_us + link.us_per_byte * rows.size_bytes / rows.devices)
    return predicted_us / rows.measured_us - 1.0


def main() -> None:
    """Fits, leaves one device count out at a time, prints and stores."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="the measured all-reduces")
    parser.add_argument("--store", metavar="FILE", help="write the result")
    arguments = parser.parse_args()
    rows = read(arguments.data)
    link = fit(rows)
    errors = np.abs(relative_errors(link, rows))
    held_out = {}
    for n in np.unique(rows.devices).tolist():
        left_out = rows.select(rows.devices == n)
        held_out[str(n)] = float(np.abs(relative_errors(fit(rows.select(rows.devices != n)), left_out)).mean())
    result = {
        "rows": len(errors),
        "latency_us": link.latency_us,
        "us_per_byte": link.us_per_byte,
        "mean_error": float(errors.mean()),
        "mean_error_of_large": float(errors[rows.size_bytes >= LARGE_BYTES].mean()),
        "worst_error": float(errors.max()),
        "mean_error_of_left_out_devices": held_out,
    }
    print(result)
    if arguments.store:
        store(arguments.store, f"python -m studies.links.study {arguments.data}", **result)


if __name__ == "__main__":
    main()
