"""The link of the table is the one that measured all-reduces give, and the simulator's ring takes as long."""

from pathlib import Path

import numpy as np
import pytest

from baechi_lab.graph import Cluster, Link
from baechi_lab.graph.link_presets import LINKS
from baechi_lab.passes.all_reduce import ring_us
from studies.links.study import LARGE_BYTES, AllReduces, fit, read, relative_errors
from studies.results import result

DATA = Path(__file__).parents[2] / "data" / "vtrain" / "all_reduce_a100.csv"


def test_an_exact_ring_gives_its_link():
    """Rounds of 5 us + 0.001 us per byte of a part: two of 1000 bytes, six of 500."""
    rows = AllReduces(np.array([2, 4]), np.array([2000, 2000]), np.array([2 * 6.0, 6 * 5.5]))
    assert fit(rows) == Link(5.0, 0.001)


def test_the_table_has_the_fitted_link():
    rows, stored, preset = read(DATA), result("links"), LINKS["nvlink3"].link
    link = fit(rows)
    assert (link.latency_us, link.us_per_byte) == pytest.approx((stored["latency_us"], stored["us_per_byte"]))
    assert (preset.latency_us, preset.us_per_byte) == pytest.approx((link.latency_us, link.us_per_byte), rel=1e-3)
    errors = np.abs(relative_errors(preset, rows))
    assert errors.mean() < 0.11
    assert errors[rows.size_bytes >= LARGE_BYTES].mean() < 0.07


def test_the_simulated_ring_takes_as_long_as_the_measured_one():
    """A gigabyte over eight A100 took 8.19 ms."""
    cluster = Cluster.uniform(8, kind="a100", comm="duplex")
    assert ring_us(cluster, range(8), 1 << 30) == pytest.approx(8193, rel=0.12)
