"""bl.measure_link: the fit by hand, and a measurement between two logical CPU devices."""

from __future__ import annotations

import numpy as np
import pytest

import baechi_lab as bl
from baechi_lab.profilers.links import fit_link


def test_exact_line():
    sizes = [4, 1000, 10**6]
    link, residual = fit_link(sizes, [20 + 0.01 * s for s in sizes])
    assert (link.latency_us, link.us_per_byte) == pytest.approx((20, 0.01)) and residual == pytest.approx(0, abs=1e-9)


def test_coefficients_are_never_negative():
    falling, _ = fit_link([10, 20, 30], [3.0, 2.0, 1.0])
    assert falling.us_per_byte == 0 and falling.latency_us > 0
    steep, _ = fit_link([1, 10, 100], [0.1, 10.0, 1000.0])  # grows faster than the size: a line would start below 0
    assert steep.latency_us == 0 and steep.us_per_byte > 0


def test_one_outlier_does_not_move_the_line():
    sizes = np.array([2.0**k for k in range(2, 27, 2)])
    took = 50 + 0.001 * sizes
    took[4] *= 10
    link, residual = fit_link(sizes, took)
    assert link.latency_us == pytest.approx(50, rel=0.15) and link.us_per_byte == pytest.approx(0.001, rel=0.05)
    assert residual > 1  # and the residual says that one sample does not fit


@pytest.mark.parametrize(
    ("sizes", "times"), [([1], [1.0]), ([1, 2], [1.0]), ([1, 2], [0.0, 1.0]), ([1, 2], [np.nan, 1.0])]
)
def test_bad_samples(sizes, times):
    with pytest.raises(bl.InvalidInput):
        fit_link(sizes, times)


def test_between_two_cpu_devices():
    pytest.importorskip("tensorflow")
    sizes = (4, 1 << 12, 1 << 20)
    found = bl.measure_link(sizes=sizes, repeats=3, progress=False)
    assert found.seconds.shape == (3, 3) and np.all(found.seconds > 0)
    assert found.link.latency_us >= 0 and found.link.us_per_byte >= 0 and found.residual >= 0
    assert found.size_bytes.tolist() == list(sizes)
    assert "/device:CPU:0 -> /device:CPU:1" in repr(found)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("/device:CPU:0", "/device:GPU:77"), {}, "unknown device '/device:GPU:77'"),
        (("cpu", "/device:CPU:1"), {}, "unknown device 'cpu'"),
        (("/device:CPU:0", "/device:CPU:0"), {}, "costs nothing to move"),
        ((), {"sizes": (4,)}, "at least two different"),
        ((), {"sizes": (4, 6)}, "multiples of 4"),
        ((), {"repeats": 0}, "repeats is 0"),
    ],
)
def test_bad_links(arguments, options, message):
    pytest.importorskip("tensorflow")
    with pytest.raises(bl.InvalidInput, match=message):
        bl.measure_link(*arguments, progress=False, **options)
