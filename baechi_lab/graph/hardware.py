"""Named devices for `mode="estimated"`: peak rates, bandwidth, launch overhead and memory, each with its source.

Units: FLOP/s count a multiply-add as two; bandwidth in bytes/s; times in microseconds; memory in bytes. Peaks are
those of the vendor's tables, dense (without the doubling for structured sparsity). `matmul_flops` is what float32
matrix products and convolutions reach in TensorFlow by default: TF32 tensor cores from Ampere on, else the float32
units. `half_flops` is for float16/bfloat16 products, accumulated in float32. float64 counts as float32.

Launch overhead: NVIDIA's "Getting Started with CUDA Graphs" (A. Gray, 2019) times a 2.9 us kernel on a V100 at 9.6 us
when each launch is waited for, so a launch costs 6.7 us; it is a property of host and driver, and the same figure is
used for every GPU here. Host overhead (an op that only changes metadata, and every op on a CPU): a chain of 2000
Reshape or Negative ops of 4 floats in a TensorFlow 2.21 session with one thread takes 0.25 us per op.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput, UnknownNameError
from ..params import Params

HOST = "host"
"""Kind of the devices that hold what is offloaded (`memory_saving.offload`)."""

FAMILIES = ("gpu", "cpu", "tpu", HOST)
"""Kinds that name no product; they are written in lower case, however they are given."""

GPU_LAUNCH_US = 6.7
HOST_OP_US = 0.25
PRECISIONS = ("fp32", "tf32", "fp16", "fp8", "int8")
"""Of the operands of matrix products; bfloat16 products run at the rate of float16 ones."""


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
        arithmetic_share: what element-wise operators and reductions reach of `peak_flops`, where memory does not hold them up.
        launches_hidden: the host runs ahead, so that a kernel lasts at least `launch_us` instead of that much longer.
        fp8_flops, int8_ops: of products of 8-bit numbers; 0 where the device has no units for them, so that they run
            like float16 ones.
        links: names of the links that it can have to its like, see `bl.Cluster.uniform`; the fastest first.

    >>> Hardware.named("v100").bandwidth, Hardware.named("RTX 4090").name
    (900000000000.0, 'rtx4090')
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
    fp8_flops: float = 0.0
    int8_ops: float = 0.0
    links: tuple[str, ...] = ()
    arithmetic_share: float = 1.0

    def validate(self) -> None:
        for key in ("peak_flops", "matmul_flops", "half_flops", "bandwidth"):
            value = getattr(self, key)
            if not (isfinite(value) and value > 0):
                raise InvalidInput(f"hardware {key} is {value}; it must be finite and above 0")
        for key in ("fp8_flops", "int8_ops"):
            if not 0 <= getattr(self, key) < float("inf"):
                raise InvalidInput(f"hardware {key} is {getattr(self, key)}; it must be finite and not negative")
        if not (isfinite(self.launch_us) and self.launch_us >= 0):
            raise InvalidInput(f"hardware launch_us is {self.launch_us}; it must be finite and not negative")
        for key in ("matmul_share", "batched_share", "bandwidth_share", "arithmetic_share"):
            if not 0 < getattr(self, key) <= 1:
                raise InvalidInput(f"hardware {key} is {getattr(self, key)}; it must be above 0 and at most 1")
        if self.memory_bytes < 0:
            raise InvalidInput(f"hardware memory_bytes is {self.memory_bytes}; it must not be negative")

    @classmethod
    def named(cls, name: str) -> Hardware:
        """The device of that name, in any case; `UnknownNameError` suggests the nearest."""
        canonical = known_kind(name)
        if canonical is None:
            raise UnknownNameError.of("hardware", name, HARDWARE)
        return HARDWARE[canonical]

    @property
    def kind(self) -> str:
        """`gpu`, `cpu` or `tpu`: the device kind under which its durations are recorded beside its own name."""
        return self.name[:3] if self.name.startswith(("cpu", "tpu")) else "gpu"

    def product_flops(self, precision: str) -> float:
        """FLOP/s of matrix products of operands in one of `PRECISIONS`.

        >>> a100 = Hardware.named("a100")    # has no units for 8-bit floats
        >>> [a100.product_flops(p) / 1e12 for p in PRECISIONS]
        [19.5, 156.0, 312.0, 312.0, 624.0]
        """
        return {
            "fp32": self.peak_flops, "tf32": self.matmul_flops, "fp16": self.half_flops,
            "fp8": self.fp8_flops or self.half_flops, "int8": self.int8_ops or self.half_flops,
        }[precision]  # fmt: skip

    if TYPE_CHECKING:  # set in `baechi_lab.graph`, from `baechi_lab.graph.device`

        def device(self, name: str | None = None) -> Any: ...


HardwareChoice = str | Hardware | Sequence[str | Hardware] | Mapping[str, str | Hardware]


def by_kind(hardware: HardwareChoice) -> dict[str, Hardware]:
    """Device kind -> hardware, the reference first.

    One device has its durations under `gpu`, `cpu` or `tpu` and under its own name, several under their names; a mapping
    says so itself.

    >>> list(by_kind("A100")), list(by_kind(["v100", "h100"])), list(by_kind({"gpu": "l4"}))
    (['gpu', 'a100'], ['v100', 'h100'], ['gpu'])
    """
    if isinstance(hardware, (str, Hardware)):
        row = _hardware(hardware)
        return {row.kind: row, row.name: row}
    if isinstance(hardware, Mapping):
        kinds = {kind_named(str(kind)): _hardware(h) for kind, h in hardware.items()}
    elif isinstance(hardware, Sequence):
        kinds = {h.name: h for h in map(_hardware, hardware)}
    else:
        raise InvalidInput(
            f"hardware is {hardware!r}; give a name, a Hardware, several, or a mapping from device kinds"
        )
    if not kinds:
        raise InvalidInput("hardware is empty; name at least one device")
    return kinds


def _hardware(choice: str | Hardware) -> Hardware:
    return choice if isinstance(choice, Hardware) else Hardware.named(choice)


def known_kind(name: object) -> str | None:
    """The name in the table that a text means, whatever its case, spaces and hyphens; None if it means none.

    >>> known_kind("A100"), known_kind("NVIDIA H100"), known_kind("gpu")
    ('a100', 'h100', None)
    """
    return _NAMES.get(_plain(str(name)))


def kind_named(name: str) -> str:
    """A device kind as it is written here: by its name in the table, or "gpu", "cpu", ..., whatever its case.

    >>> kind_named("NVIDIA H100"), kind_named("CPU"), kind_named("Fpga")
    ('h100', 'cpu', 'Fpga')

    Raises `InvalidInput` for what is no text.
    """
    if not isinstance(name, str):
        raise InvalidInput(f"kind is {name!r:.60}; it must be a text such as 'gpu' or 'a100'")
    return known_kind(name) or (name.lower() if name.lower() in FAMILIES else name)


def _plain(name: str) -> str:
    return re.sub(r"^(nvidia|amd|google)|[\s_-]+", "", name.strip().lower())


def _gpu(
    name: str, peaks: tuple[float, float, float, float, float], bandwidth: float, memory: int, links: str, source: str
) -> Hardware:
    full, products, half, fp8, int8 = (1e12 * peak for peak in peaks)
    return Hardware(
        name, full, products, half, bandwidth * 1e9, GPU_LAUNCH_US, memory * 10**9, source, fp8_flops=fp8, int8_ops=int8,
        links=tuple(links.split()),
    )  # fmt: skip


# GPU rows: TFLOP/s of float32, float32 products, half products, fp8 and int8 products (0: none); GB/s; GB; links.
_TABLE = (
    _gpu(
        "k40", (4.29, 4.29, 4.29, 0, 0), 288, 12, "pcie3",
        "NVIDIA Tesla K40 board specification BD-06902-001: 4.29 TFLOP/s single precision at base clock, 288 GB/s, "
        "12 GB GDDR5; Kepler has no faster half precision",
    ),
    _gpu(
        "rtx2080", (10.1, 10.1, 40.3, 0, 161.1), 448, 8, "pcie3",
        "NVIDIA Turing GPU architecture whitepaper WP-09183-001, reference GeForce RTX 2080: 10.1 TFLOP/s FP32, "
        "40.3 TFLOP/s FP16 tensor with FP32 accumulate, 161.1 INT8, 448 GB/s, 8 GB GDDR6",
    ),
    _gpu(
        "rtx4090", (82.6, 82.6, 165.2, 330.3, 660.6), 1008, 24, "pcie4",
        "NVIDIA Ada GPU architecture whitepaper, appendix A, GeForce RTX 4090: 82.6 TFLOP/s FP32 and TF32, 165.2 FP16 and "
        "330.3 FP8 with FP32 accumulate, 660.6 INT8, 1008 GB/s, 24 GB GDDR6X, PCIe Gen4",
    ),
    _gpu(
        "rtx5090", (104.8, 104.8, 209.5, 419, 838), 1792, 32, "pcie5",
        "NVIDIA RTX Blackwell GPU architecture whitepaper, appendix A, GeForce RTX 5090: 104.8 TFLOP/s FP32 and TF32, "
        "209.5 FP16 and 419 FP8 with FP32 accumulate, 838 INT8, 1792 GB/s, 32 GB GDDR7, PCIe Gen5",
    ),
    _gpu(
        "v100", (15.7, 15.7, 125, 0, 0), 900, 16, "nvlink2 pcie3",
        "NVIDIA V100 datasheet, SXM2: 15.7 TFLOP/s single precision, 125 TFLOP/s tensor, 900 GB/s, 16 GB HBM2",
    ),
    _gpu(
        "a10", (31.2, 62.5, 125, 0, 250), 600, 24, "pcie4",
        "NVIDIA A10 datasheet: 31.2 TFLOP/s FP32, 62.5 TF32, 125 FP16, 250 INT8, 600 GB/s, 24 GB GDDR6, PCIe Gen4",
    ),
    _gpu(
        "a100-40gb", (19.5, 156, 312, 0, 624), 1555, 40, "nvlink3 pcie4",
        "NVIDIA A100 datasheet, 40GB SXM: 19.5 TFLOP/s FP32, 156 TF32, 312 FP16 tensor, 624 INT8, 1555 GB/s, 40 GB HBM2",
    ),
    _gpu(
        "a100", (19.5, 156, 312, 0, 624), 2039, 80, "nvlink3 pcie4",
        "NVIDIA A100 datasheet, 80GB SXM: 19.5 TFLOP/s FP32, 156 TF32, 312 FP16 tensor, 624 INT8, 2039 GB/s, 80 GB HBM2e",
    ),
    _gpu(
        "l4", (30.3, 60, 121, 242.5, 242.5), 300, 24, "pcie4",
        "NVIDIA L4 datasheet: 30.3 TFLOP/s FP32; TF32 120, FP16 242, FP8 and INT8 485 with sparsity, half of that dense; "
        "300 GB/s, 24 GB GDDR6, PCIe Gen4",
    ),
    _gpu(
        "l40s", (91.6, 183, 362.05, 733, 733), 864, 48, "pcie4",
        "NVIDIA L40S datasheet: 91.6 TFLOP/s FP32, 183 TF32, 362.05 FP16, 733 FP8, 733 INT8, 864 GB/s, 48 GB GDDR6, PCIe Gen4",
    ),
    _gpu(
        "h100", (67, 494.7, 989.4, 1978.9, 1978.9), 3350, 80, "nvlink4 pcie5",
        "NVIDIA H100 datasheet, SXM5: 67 TFLOP/s FP32; TF32 989, FP16 1979, FP8 and INT8 3958 with sparsity, half of that "
        "dense; 3.35 TB/s, 80 GB HBM3",
    ),
    _gpu(
        "h200", (67, 494.7, 989.4, 1978.9, 1978.9), 4800, 141, "nvlink4 pcie5",
        "NVIDIA H200 datasheet, SXM: 67 TFLOP/s FP32; TF32 989, FP16 1979, FP8 and INT8 3958 with sparsity, half of that "
        "dense; 4.8 TB/s, 141 GB HBM3e",
    ),
    _gpu(
        "b200", (80, 1100, 2250, 4500, 4500), 8000, 180, "nvlink5 pcie5",
        "NVIDIA Blackwell architecture technical brief, HGX B200 at 1000 W: 80 TFLOP/s FP32, 1100 TF32, 2250 FP16, 4500 FP8 "
        "and INT8, dense; NVIDIA DGX B200 datasheet: 1440 GB and 64 TB/s for eight, 180 GB HBM3e and 8 TB/s each",
    ),
    _gpu(
        "mi300x", (163.4, 653.7, 1307.4, 2614.9, 2614.9), 5300, 192, "infinity-fabric pcie5",
        "AMD Instinct MI300X data sheet: 163.4 TFLOP/s FP32, 653.7 TF32, 1307.4 FP16, 2614.9 FP8 and INT8, dense; "
        "5.3 TB/s, 192 GB HBM3",
    ),
    Hardware(
        "tpu-v5e", 6.1e12, 197e12, 197e12, 819e9, 0.0, 16 * 10**9,
        "Google Cloud documentation, TPU v5e: 197 TFLOP/s bf16, 393 TOP/s INT8, 819 GB/s, 16 GB HBM2. XLA multiplies "
        "float32 in bf16 by default. Not published: the vector unit, 8 x 128 lanes with 4 units each (J. Austin et al., "
        "How to Scale Your Model, 2025) at the 1.5 GHz that 197 TFLOP/s of four 128 x 128 arrays take. A step is one "
        "program, so that nothing is launched op by op",
        int8_ops=393e12, links=("ici",),
    ),
    Hardware(
        "cpu-core", 96e9, 96e9, 96e9, 25.6e9, HOST_OP_US, 16 * 10**9,
        "one x86 core at 3.0 GHz with two 8-wide FMA units (Intel 64 and IA-32 Optimization Reference Manual, AVX2: "
        "2 x 8 x 2 FLOP per cycle = 96 GFLOP/s) and one DDR4-3200 channel (JEDEC JESD79-4: 25.6 GB/s); 16 GB assumed",
    ),
    Hardware(
        "cpu-epyc-9654", 7.37e12, 7.37e12, 14.7e12, 460.8e9, HOST_OP_US, 768 * 10**9,
        "AMD EPYC 9654 product page: 96 cores at 2.4 GHz base, 12 channels of DDR5-4800 (460.8 GB/s); AMD Zen 4 "
        "optimization guide: two 8-wide FMA units per core, twice that for bf16 and four times for int8 dot products; "
        "768 GB assumed",
        int8_ops=29.5e12,
    ),
    Hardware(
        "cpu-xeon-8480", 7.17e12, 7.17e12, 114.7e12, 307.2e9, HOST_OP_US, 512 * 10**9,
        "Intel Xeon Platinum 8480+ product page: 56 cores at 2.0 GHz base, two 16-wide FMA units each, 8 channels of "
        "DDR5-4800 (307.2 GB/s); Intel AMX: 1024 bf16 or 2048 int8 operations per cycle and core; 512 GB assumed",
        int8_ops=229.4e12,
    ),
)  # fmt: skip

HARDWARE = {h.name: h for h in _TABLE}
"""Known devices by name."""

_NAMES = {_plain(name): name for name in HARDWARE} | {"a10080gb": "a100", "a10080": "a100", "a10040": "a100-40gb"}
