"""Named devices for `mode="estimated"`: peak rates, bandwidth, launch overhead and memory, each with its source.

Units: FLOP/s count a multiply-add as two; bandwidth in bytes/s; times in microseconds; memory in bytes. Peaks are
those of the vendor's tables, dense (without the doubling for structured sparsity). `matmul_flops` is what float32
matrix products and convolutions reach in TensorFlow by default: TF32 tensor cores from Ampere on, else the float32
units. `half_flops` is for float16/bfloat16 products.

Launch overhead: NVIDIA's "Getting Started with CUDA Graphs" (A. Gray, 2019) times a 2.9 us kernel on a V100 at 9.6 us
when each launch is waited for, so a launch costs 6.7 us; it is a property of host and driver, and the same figure is
used for every GPU here. Host overhead (an op that only changes metadata, and every op on a CPU): a chain of 2000
Reshape or Negative ops of 4 floats in a TensorFlow 2.21 session with one thread takes 0.25 us per op.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from ..errors import InvalidInput, UnknownNameError
from ..graph.cluster import Device
from ..params import Params

GPU_LAUNCH_US = 6.7
HOST_OP_US = 0.25


@dataclass(frozen=True)
class Hardware(Params):
    """One kind of device, by its data sheet.

    Args:
        name: what `Hardware.named` knows it by.
        peak_flops: float32 FLOP/s of the ordinary arithmetic units.
        matmul_flops: FLOP/s of float32 matrix products and convolutions.
        half_flops: FLOP/s of float16 and bfloat16 matrix products and convolutions.
        bandwidth: bytes/s to and from device memory.
        launch_us: microseconds before a kernel starts.
        memory_bytes: memory of the device.
        source: where the numbers come from.
        matmul_share, batched_share, bandwidth_share: what kernels reach of `matmul_flops` or `half_flops`, of these in
            products of many small matrices, and of `bandwidth`; `bl.calibrate` fits them.
        launches_hidden: the host runs ahead, so that a kernel lasts at least `launch_us` instead of that much longer.

    >>> Hardware.named("v100").bandwidth
    900000000000.0
    """

    name: str
    peak_flops: float
    matmul_flops: float
    half_flops: float
    bandwidth: float
    launch_us: float
    memory_bytes: int
    source: str = ""
    matmul_share: float = 1.0
    batched_share: float = 1.0
    bandwidth_share: float = 1.0
    launches_hidden: bool = False

    def validate(self) -> None:
        for key in ("peak_flops", "matmul_flops", "half_flops", "bandwidth"):
            value = getattr(self, key)
            if not (isfinite(value) and value > 0):
                raise InvalidInput(f"hardware {key} is {value}; it must be finite and above 0")
        if not (isfinite(self.launch_us) and self.launch_us >= 0):
            raise InvalidInput(f"hardware launch_us is {self.launch_us}; it must be finite and not negative")
        for key in ("matmul_share", "batched_share", "bandwidth_share"):
            if not 0 < getattr(self, key) <= 1:
                raise InvalidInput(f"hardware {key} is {getattr(self, key)}; it must be above 0 and at most 1")
        if self.memory_bytes < 0:
            raise InvalidInput(f"hardware memory_bytes is {self.memory_bytes}; it must not be negative")

    @classmethod
    def named(cls, name: str) -> Hardware:
        """The device of that name; `UnknownNameError` suggests the nearest."""
        if name not in HARDWARE:
            raise UnknownNameError.of("hardware", name, HARDWARE)
        return HARDWARE[name]

    @property
    def kind(self) -> str:
        """`gpu` or `cpu`: the device kind under which its durations are recorded beside its own name."""
        return "cpu" if self.name.startswith("cpu") else "gpu"

    def device(self, name: str | None = None) -> Device:
        """A `Device` of this kind and memory, for a cluster."""
        return Device(name or f"{self.kind}:0", self.kind, self.memory_bytes)


def _gpu(name: str, peak: float, matmul: float, half: float, bandwidth: float, memory: int, source: str) -> Hardware:
    return Hardware(
        name, peak * 1e12, matmul * 1e12, half * 1e12, bandwidth * 1e9, GPU_LAUNCH_US, memory * 10**9, source
    )


# GPU rows: TFLOP/s float32, float32 products, half products; GB/s; GB.
_TABLE = (
    _gpu(
        "k40", 4.29, 4.29, 4.29, 288, 12,
        "NVIDIA Tesla K40 board specification BD-06902-001: 4.29 TFLOP/s single precision at base clock, 288 GB/s, "
        "12 GB GDDR5; Kepler has no faster half precision",
    ),
    _gpu(
        "rtx2080", 10.1, 10.1, 40.3, 448, 8,
        "NVIDIA Turing GPU architecture whitepaper WP-09183-001, reference GeForce RTX 2080: 10.1 TFLOP/s FP32, "
        "40.3 TFLOP/s FP16 tensor with FP32 accumulate, 448 GB/s, 8 GB GDDR6",
    ),
    _gpu(
        "v100", 15.7, 15.7, 125, 900, 16,
        "NVIDIA V100 datasheet, SXM2: 15.7 TFLOP/s single precision, 125 TFLOP/s tensor, 900 GB/s, 16 GB HBM2",
    ),
    _gpu(
        "a100", 19.5, 156, 312, 2039, 80,
        "NVIDIA A100 datasheet, 80GB SXM: 19.5 TFLOP/s FP32, 156 TF32, 312 FP16 tensor, 2039 GB/s, 80 GB HBM2e",
    ),
    _gpu(
        "h100", 67, 494.7, 989.4, 3350, 80,
        "NVIDIA H100 datasheet, SXM5: 67 TFLOP/s FP32; TF32 989 and FP16 1979 with sparsity, half of that dense; "
        "3.35 TB/s, 80 GB HBM3",
    ),
    _gpu(
        "h200", 67, 494.7, 989.4, 4800, 141,
        "NVIDIA H200 datasheet, SXM: 67 TFLOP/s FP32; TF32 989 and FP16 1979 with sparsity, half of that dense; "
        "4.8 TB/s, 141 GB HBM3e",
    ),
    Hardware(
        "cpu-core", 96e9, 96e9, 96e9, 25.6e9, HOST_OP_US, 16 * 10**9,
        "one x86 core at 3.0 GHz with two 8-wide FMA units (Intel 64 and IA-32 Optimization Reference Manual, AVX2: "
        "2 x 8 x 2 FLOP per cycle = 96 GFLOP/s) and one DDR4-3200 channel (JEDEC JESD79-4: 25.6 GB/s); 16 GB assumed",
    ),
)  # fmt: skip

HARDWARE = {h.name: h for h in _TABLE}
"""Known devices by name."""
