"""Shares of peak fitted to measured times: found again where they are known, refused where they cannot be."""

from dataclasses import replace

import numpy as np
import pytest

from baechi_lab import calibrate
from baechi_lab.errors import InvalidInput, UnknownNameError
from baechi_lab.graph.hardware import Hardware
from baechi_lab.profilers.kernel_model import estimated_us
from baechi_lab.profilers.work import Kernel, Work, work_of


def work(flops: float, moved_bytes: float, batched: bool = False) -> Work:
    return work_of(1, [(0, Kernel(flops, moved_bytes, "fp16", matrix=True, batched=batched))])


def test_shares_and_launch_are_found_again():
    """Products, attention's products, copies and empty kernels, measured on an A100 of known shares."""
    shares = {"matmul_share": 0.6, "batched_share": 0.25, "bandwidth_share": 0.8}
    a100 = Hardware.named("a100").as_roofline()
    truth = replace(a100, launch_us=9.0, **shares)
    products = [work(1e12, 0), work(5e12, 0), work(1e12, 0, True), work(3e12, 0, True)]
    kernels = [*products, work(0, 1e9), work(0, 4e9), work(0, 0), work(1, 1)]
    rows = [
        (lambda hardware, k=k: float(estimated_us(k, hardware)[0]), float(estimated_us(k, truth)[0])) for k in kernels
    ]
    calibration = calibrate(a100, rows, fit=[0, 2, 4, 6])
    for key in ("matmul_share", "batched_share", "bandwidth_share"):
        assert getattr(calibration.hardware, key) == pytest.approx(getattr(truth, key), rel=1e-3)
    assert calibration.hardware.launch_us == pytest.approx(9.0, rel=1e-3)
    assert np.abs(calibration.held_out).max() < 1e-3
    assert "on 4 rows" in repr(calibration)


def test_hidden_launches_are_a_floor():
    """312e12 FLOP/s at a share of 0.5: 156e6 FLOPs take 1 us; a launch of 6.7 us hides that, not 1560e6 (10 us)."""
    hidden = replace(Hardware.named("a100").as_roofline(), matmul_share=0.5, launches_hidden=True)
    assert estimated_us(work(156e6, 0), hidden).tolist() == [6.7]
    assert estimated_us(work(1560e6, 0), hidden) == pytest.approx([10.0])


def test_bad_input_is_rejected():
    row = (lambda hardware: 1.0, 1.0)
    with pytest.raises(InvalidInput, match="4 parameters need at least as many"):
        calibrate("a100", [row])
    with pytest.raises(InvalidInput, match=r"measurements\[1\] took 0.0 us"):
        calibrate("a100", [row, (row[0], 0.0)], parameters=["launch_us"])
    with pytest.raises(InvalidInput, match="measurements is None"):
        calibrate("a100", None)
    with pytest.raises(InvalidInput, match=r"measurements\[1\] is 3; it must be a pair"):
        calibrate("a100", [row, 3], parameters=["launch_us"])
    with pytest.raises(InvalidInput, match="hardware is None"):
        calibrate(None, [row], parameters=["launch_us"])
    with pytest.raises(InvalidInput, match="fit names row 5"):
        calibrate("a100", [row], fit=[5], parameters=["launch_us"])
    with pytest.raises(UnknownNameError, match="bandwidth_share"):
        calibrate("a100", [row], parameters=["bandwith_share"])
    with pytest.raises(InvalidInput, match=r"matmul_share is 1\.5"):
        estimated_us(work(1, 1), replace(Hardware.named("a100"), matmul_share=1.5))
