"""Named devices for `mode="estimated"`: peak rates, bandwidth, launch overhead and memory, each with its source.

Units: FLOP/s count a multiply-add as two; bandwidth in bytes/s; times in microseconds; memory in bytes. Peaks are
those of the vendor's tables, dense (without the doubling for structured sparsity). `matmul_flops` is what float32
matrix products and convolutions reach in TensorFlow by default: TF32 tensor cores from Ampere on, else the float32
units. `half_flops` is for float16/bfloat16 products, accumulated in float32; devices without units for bfloat16 or TF32
compute those with the units of float32 (`Hardware.uses_float32_units`). Products of float64 have `FLOAT64_SHARES`; all other
arithmetic on float64 counts as that on float32.

Launch overhead: NVIDIA's "Getting Started with CUDA Graphs" (A. Gray, 2019) times a 2.9 us kernel on a V100 at 9.6 us
when each launch is waited for, so a launch costs 6.7 us; it is a property of host and driver, and the same figure is
used for every GPU here. Host overhead (an op that only changes metadata, and every op on a CPU): a chain of 2000
Reshape or Negative ops of 4 floats in a TensorFlow 2.21 session with one thread takes 0.25 us per op.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidInput, UnknownNameError, in_short
from ..params import Params

HOST = "host"
"""Kind of the devices that hold what is offloaded (`memory_saving.offload`)."""

FAMILIES = ("gpu", "cpu", "tpu", HOST)
"""Kinds that name no product; they are written in lower case, however they are given."""

HOST_OP_US = 0.25
"""Time of an op that only changes metadata, and of every op on a CPU, see above."""
DEFAULT_HARDWARE = "rtx2080"
"""Hardware of an estimate that names none."""

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp64")
"""Of the operands of matrix products."""
UNITS_OF_GENERATIONS = {"kepler": (), "pascal": (), "volta": ("fp16",), "turing": ("fp16",)}
"""Generation -> precisions for whose products its devices have units besides those of float32; those that are not here have all.
By NVIDIA's architecture whitepapers: matrix units since Volta, for TF32 and bfloat16 since Ampere. Of CDNA, some devices have
TF32, by their data sheets."""
FLOAT64_SHARES = {
    "": 1 / 2,
    "kepler": 1 / 3,
    "pascal": 1 / 32,
    "volta": 1 / 2,
    "turing": 1 / 32,
    "ampere": 1.0,
    "rtx-ampere": 1 / 64,
    "ada": 1 / 64,
    "hopper": 1.0,
    "rtx-blackwell": 1 / 64,
    "blackwell": 1 / 2,
    "cdna": 1.0,
    "p100": 1 / 2,
    "h20": 1 / 44,
    "mi100": 1 / 4,
    **dict.fromkeys(("mi350x", "mi355x"), 1 / 2),
}
"""Generation, or a device that differs from its generation -> FLOP/s of float64 products per FLOP/s of float32 ones, by the data
sheets, matrix units included; "" is a processor."""
CONVERTED_SHARE = 0.57
"""Share of the rate of float32 products that bfloat16 products reach on units of float32: between 0.52 and 0.74 on seven devices
(`data/products`)."""


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
        generation: its architecture ("ampere"), whose constants estimates use (`profilers.generations`); "" is a roofline.
        multiprocessors: units that compute tiles of matrix products; 0 without a generation.
        multiprocessor_threads: threads that one multiprocessor runs at a time, by NVIDIA's CUDA C++ Programming Guide.
        float32_units: units of one multiprocessor for float32 ("CUDA cores"), each of which computes two FLOPs in a cycle.
        l2_bytes: size of the last cache before memory; 0 without a generation, so that what is read again is not counted.
        power_w: power limit of the board in watts; 0 without a generation, so that it does not hold products back.
        workspace_bytes: what libraries hold on the device besides tensors while a PyTorch step runs, a part of every peak.
        float64_share: FLOP/s of float64 matrix products and convolutions per `peak_flops`.
        inline_ecc: True for boards of GDDR6 memory that keep the error correction code of their data in the same memory, as those
            for servers do. Reading and writing it takes bandwidth: with LLaMA 2 7B, an RTX 6000 Ada reads 0.70 of its data
            sheet's bytes per second, an RTX 4090 0.80 (llama.cpp). No board of Turing is marked: its constants come from a
            T4, which has it.

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
    generation: str = ""
    multiprocessors: int = 0
    l2_bytes: int = 0
    power_w: float = 0.0
    multiprocessor_threads: int = 2048
    float32_units: int = 128
    workspace_bytes: int = 0
    float64_share: float = 1.0
    inline_ecc: bool = False

    def validate(self) -> None:
        """Raises `InvalidInput` for a number that is out of range, or missing although the generation's constants need it."""
        for key in ("peak_flops", "matmul_flops", "half_flops", "bandwidth"):
            value = getattr(self, key)
            if not (isfinite(value) and value > 0):
                raise InvalidInput(f"hardware {key} is {value}; it must be finite and above 0")
        for key in ("fp8_flops", "int8_ops"):
            if not 0 <= getattr(self, key) < float("inf"):
                raise InvalidInput(f"hardware {key} is {getattr(self, key)}; it must be finite and not negative")
        if not (isfinite(self.launch_us) and self.launch_us >= 0):
            raise InvalidInput(f"hardware launch_us is {self.launch_us}; it must be finite and not negative")
        for key in ("matmul_share", "batched_share", "bandwidth_share", "arithmetic_share", "float64_share"):
            if not 0 < getattr(self, key) <= 1:
                raise InvalidInput(f"hardware {key} is {getattr(self, key)}; it must be above 0 and at most 1")
        if not 0 < self.float32_units < float("inf"):
            raise InvalidInput(f"hardware float32_units is {self.float32_units}; it must be finite and above 0")
        for key in ("multiprocessors", "multiprocessor_threads", "l2_bytes", "power_w", "workspace_bytes"):
            if not 0 <= getattr(self, key) < float("inf"):
                raise InvalidInput(f"hardware {key} is {getattr(self, key)}; it must be finite and not negative")
        for key in ("multiprocessors", "l2_bytes", "power_w"):
            if self.generation and not getattr(self, key):
                raise InvalidInput(
                    f"hardware {key} is 0; estimates of generation {in_short(self.generation)} need it: take it from the data "
                    "sheet, or leave generation empty for a roofline"
                )
        if self.memory_bytes < 0:
            raise InvalidInput(f"hardware memory_bytes is {self.memory_bytes}; it must not be negative")

    @classmethod
    def named(cls, name: str) -> Hardware:
        """Returns the device of that name, in any case; `UnknownNameError` suggests the nearest."""
        canonical = known_kind(name)
        if canonical is None:
            raise UnknownNameError.of("hardware", name, HARDWARE)
        return HARDWARE[canonical]

    def as_roofline(self) -> Hardware:
        """Returns the device as a plain roofline of its data sheet, without the constants of its generation."""
        return replace(
            self,
            generation="",
            multiprocessors=0,
            l2_bytes=0,
            power_w=0.0,
            launches_hidden=False,
            workspace_bytes=0,
            inline_ecc=False,
        )

    @property
    def kind(self) -> str:
        """`gpu`, `cpu` or `tpu`: the device kind under which its durations are recorded beside its own name."""
        return self.name[:3] if self.name.startswith(("cpu", "tpu")) else "gpu"

    @property
    def clock_hz(self) -> float:
        """Clock at which the units for float32 reach `peak_flops`; for hardware with `multiprocessors`.

        >>> round(Hardware.named("a100").clock_hz / 1e9, 2)
        1.41
        """
        return self.peak_flops / (2 * self.multiprocessors * self.float32_units)

    def product_flops(self, precision: str) -> float:
        """Returns the FLOP/s of matrix products of operands in one of `PRECISIONS`.

        >>> a100 = Hardware.named("a100")    # has no units for 8-bit floats
        >>> [a100.product_flops(p) / 1e12 for p in PRECISIONS]
        [19.5, 156.0, 312.0, 312.0, 312.0, 624.0, 19.5]
        """
        return {
            "fp32": self.peak_flops,
            "tf32": self.matmul_flops,
            "fp16": self.half_flops,
            "bf16": CONVERTED_SHARE * self.peak_flops if self.uses_float32_units("bf16") else self.half_flops,
            "fp8": self.fp8_flops or self.half_flops,
            "int8": self.int8_ops or self.half_flops,
            "fp64": self.float64_share * self.peak_flops,
        }[precision]

    def uses_float32_units(self, precision: str) -> bool:
        """Whether products of operands in one of `PRECISIONS` run on the units of float32, for want of others.

        Those of float64 run on units of their own, in the same tiles.

        >>> t4 = Hardware.named("t4")    # Turing has matrix units for float16, none for bfloat16
        >>> t4.uses_float32_units("fp16"), t4.uses_float32_units("bf16"), t4.product_flops("bf16") < t4.peak_flops
        (False, True, True)
        """
        if precision == "tf32" and self.generation == "cdna":
            return self.matmul_flops <= self.peak_flops
        if precision in ("tf32", "fp16", "bf16"):
            return precision not in UNITS_OF_GENERATIONS.get(self.generation, PRECISIONS)
        return precision in ("fp32", "fp64")

    if TYPE_CHECKING:  # set in `baechi_lab.graph`, from `baechi_lab.graph.device`

        def device(self, name: str | None = None) -> Any: ...


HardwareChoice = str | Hardware | Sequence[str | Hardware] | Mapping[str, str | Hardware]


def by_kind(hardware: HardwareChoice) -> dict[str, Hardware]:
    """Returns device kind -> hardware, the reference first.

    One device has its durations under `gpu`, `cpu` or `tpu` and under its own name, several under their names; a mapping
    says so itself.

    >>> list(by_kind("A100")), list(by_kind(["v100", "h100"])), list(by_kind({"gpu": "l4"}))
    (['gpu', 'a100'], ['v100', 'h100'], ['gpu'])
    """
    if isinstance(hardware, (str, Hardware)):
        row = _hardware(hardware)
        return {row.kind: row, row.name: row}
    if isinstance(hardware, Mapping):
        kinds = {kind_named(kind): _hardware(h) for kind, h in hardware.items()}
    elif isinstance(hardware, Sequence):
        kinds = {h.name: h for h in map(_hardware, hardware)}
    else:
        raise InvalidInput(
            f"hardware is {in_short(hardware)}; give a name, a Hardware, several, or a mapping from device kinds"
        )
    if not kinds:
        raise InvalidInput("hardware is empty; name at least one device")
    return kinds


def _hardware(choice: str | Hardware) -> Hardware:
    return choice if isinstance(choice, Hardware) else Hardware.named(choice)


def known_kind(name: object) -> str | None:
    """Returns the name in the table for a text, in any case and with any spaces and hyphens; None if there is none.

    >>> known_kind("A100"), known_kind("NVIDIA H100"), known_kind("gpu")
    ('a100', 'h100', None)
    """
    return _NAMES.get(_plain(name)) if isinstance(name, str) else None


def kind_named(name: str) -> str:
    """Returns a device kind in its standard form: its name in the table, or "gpu", "cpu", ..., from any case.

    >>> kind_named("NVIDIA H100"), kind_named("CPU"), kind_named("Fpga")
    ('h100', 'cpu', 'Fpga')

    Raises `InvalidInput` for what is no text.
    """
    if not isinstance(name, str):
        raise InvalidInput(f"kind is {in_short(name)}; it must be a text such as 'gpu' or 'a100'")
    return known_kind(name) or (name.lower() if name.lower() in FAMILIES else name)


def _plain(name: str) -> str:
    words = re.sub(r"[\s_-]+", "", name.strip().lower())
    return re.sub(r"^(nvidia|amd|google)?(tesla|geforce|instinct)?", "", words)


_WORKSPACE_BYTES = {"hopper": 2 * (32 << 20)}
"""Workspaces of cuBLAS: 32 MiB in the thread of the forward pass and in that of the backward pass, as measured on an H200.
Earlier generations have 8 MiB each, which is not counted."""


def _read_table() -> dict[str, Hardware]:
    """Reads the named devices; the table has TFLOP/s (0: no such units), GB/s, microseconds and GB."""
    lines = Path(__file__).with_name("hardware.csv").read_text(encoding="utf-8").splitlines()
    return {
        row["name"]: Hardware(
            row["name"],
            peak_flops=1e12 * float(row["peak_tflops"]),
            matmul_flops=1e12 * float(row["matmul_tflops"]),
            half_flops=1e12 * float(row["half_tflops"]),
            bandwidth=1e9 * float(row["bandwidth_gb"]),
            launch_us=float(row["launch_us"]),
            memory_bytes=10**9 * int(row["memory_gb"]),
            source=row["source"],
            fp8_flops=1e12 * float(row["fp8_tflops"]),
            int8_ops=1e12 * float(row["int8_tops"]),
            links=tuple(row["links"].split()),
            generation=row["generation"],
            multiprocessors=int(row["multiprocessors"]),
            multiprocessor_threads=int(row["multiprocessor_threads"]),
            float32_units=int(row["float32_units"]),
            l2_bytes=int(1e6 * float(row["l2_mb"])),
            power_w=float(row["power_w"]),
            launches_hidden=bool(row["generation"]),
            workspace_bytes=_WORKSPACE_BYTES.get(row["generation"], 0),
            float64_share=FLOAT64_SHARES.get(row["name"], FLOAT64_SHARES[row["generation"]]),
            inline_ecc=row["inline_ecc"] == "1",
        )
        for row in csv.DictReader(lines)
    }


HARDWARE = _read_table()
"""Known devices by name."""

_ALIASES = {
    "a100": "a100-80gb a100-80 a100-sxm a100-sxm4 a100-sxm-80gb a100-sxm4-80gb a100-80gb-sxm a100-80gb-sxm4",
    "a100-40gb": "a100-40 a100-sxm4-40gb a100-sxm-40gb a100-40gb-sxm a100-40gb-sxm4",
    "a100-pcie-40gb": "a100-pcie a100-40gb-pcie",
    "a100-80gb-pcie": "a100-pcie-80gb",
    "h100": "h100-sxm h100-sxm5 h100-80gb h100-sxm-80gb h100-sxm5-80gb h100-80gb-hbm3",
    "h100-pcie": "h100-pcie-80gb h100-80gb-pcie",
    "h200": "h200-sxm h200-sxm5 h200-141gb",
    "gh200": "gh200-480gb",
    "k40": "k40m k40c",
    "p100": "p100-pcie p100-pcie-16gb",
    "quadro-rtx-8000": "rtx8000",
    "rtx-6000-ada": "rtx-6000-ada-generation",
    "rtx-a5000": "a5000",
    "rtx-a6000": "a6000",
    "rtx-pro-6000": "rtx-pro-6000-blackwell rtx-pro-6000-blackwell-workstation-edition",
    "v100": "v100-sxm2 v100-16gb v100-sxm2-16gb",
    "v100-32gb": "v100-sxm2-32gb v100-sxm3 v100-sxm3-32gb",
    "v100-pcie-32gb": "v100-pcie",
}
"""Name in the table -> what vendors, drivers and clouds call the device besides."""

_NAMES = {_plain(alias): name for name, aliases in _ALIASES.items() for alias in aliases.split()} | {
    _plain(name): name for name in HARDWARE
}
